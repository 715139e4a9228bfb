//! The single values of a scenario file, each with its range.

use std::time::Duration;

use crate::config::ranged::{Number, Time, ranged};

/// The longest time of a scenario: 366 days.
pub const MAX_DURATION: Duration = Duration::from_secs(366 * 24 * 3600);

ranged! {
    /// Requests a second.
    pub Rps: f64 in Number::between(0.0, 100_000.0);
    /// A share of something.
    pub Share: f64 in Number::between(0.0, 1.0);
    /// A factor.
    pub Times: f64 in Number::between(0.000_1, 10_000.0);
    /// Mean tokens.
    pub MeanTokens: f64 in Number::between(1.0, 10_000_000.0);
    /// A coefficient of variation: standard deviation by mean.
    pub Variation: f64 in Number::between(0.0, 10.0);
    /// A cost an hour.
    pub Price: f64 in Number::between(0.0, 1_000_000_000.0);
    /// Seconds of a step or of a part of it.
    pub StepSeconds: f64 in Number::between(0.0, 60.0);
    /// Seconds of an empty step.
    pub BaseSeconds: f64 in Number::between(0.000_001, 60.0);
    /// Tokens that a sequence gains in a step.
    pub TokensPerStep: f64 in Number::between(1.0, 64.0);
    /// A relative surcharge.
    pub Surcharge: f64 in Number::between(0.0, 100.0);
    /// Seconds of a stall.
    pub StallSeconds: f64 in Number::between(0.0, 3600.0);
    /// A number of pods.
    pub Pods: f64 in Number::whole(0.0, 10_000.0);
    /// A number of pods, at least one.
    pub SomePods: f64 in Number::whole(1.0, 10_000.0);
    /// A number of at least one.
    pub Count: f64 in Number::whole(1.0, 1_000_000.0);
    /// Accelerators of one replica.
    pub Gpus: f64 in Number::whole(1.0, 1024.0);
    /// A capacity in tokens.
    pub Capacity: f64 in Number::whole(1.0, 4_294_967_295.0);
    /// A duration, or a time since the start.
    pub Span: Duration in Time::between(Duration::ZERO, MAX_DURATION);
    /// The duration of a part of a load.
    pub Length: Duration in Time::between(Duration::from_millis(100), MAX_DURATION);
    /// An interval.
    pub Every: Duration in Time::between(Duration::from_millis(10), Duration::from_secs(3600));
    /// A delay.
    pub Late: Duration in Time::between(Duration::ZERO, Duration::from_secs(3600));
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;
    use crate::config::ranged::Written;

    fn error<T: for<'de> Deserialize<'de>>(text: &str) -> String {
        let read: Result<T, _> = serde_json::from_str(text);
        read.map(|_| ()).unwrap_err().to_string()
    }

    #[test]
    fn what_is_out_of_range_is_told_with_the_range() {
        assert!(error::<Rps>("-3").starts_with("-3 is out of range: must be 0 to 100000"));
        assert!(error::<Pods>("1.5").starts_with("1.5 is out of range: must be a whole number, 0 to 10000"));
        assert!(error::<Share>("\"half\"").starts_with("\"half\" is not a number: must be a number, 0 to 1"));
        assert!(error::<Share>("[]").contains("expected a number, 0 to 1"));
        assert!(
            error::<Every>("\"1h30m\"")
                .starts_with("\"1h30m\" is out of range: must be 10ms to 1h, such as 90s")
        );
        assert!(error::<Span>("90").starts_with("90 has no unit: must be 0s to 8784h, such as 90s"));
        assert!(error::<Span>("\"soon\"").starts_with("\"soon\" is not a duration: must be 0s to 8784h"));
    }

    #[test]
    fn times_are_written_as_they_are_read() {
        let length: Length = serde_json::from_str("\"1h 30m\"").unwrap();
        assert_eq!(length.get(), Duration::from_secs(5400));
        assert_eq!(Written(length.get()).to_string(), "1h 30m");
    }
}
