//! The single values of a scenario file, each with its range.

use std::time::Duration;

use wva_sim::{RequestSizes, Scenario};

use crate::config::ranged::{Number, Time, ranged};

/// The most requests a second.
pub(super) const MAX_RPS: f64 = 100_000.0;

ranged! {
    /// Requests a second.
    pub Rps: f64 in Number::between(0.0, MAX_RPS);
    /// A share of something.
    pub Share: f64 in Number::between(0.0, 1.0);
    /// A factor.
    pub Factor: f64 in Number::between(0.000_1, 10_000.0);
    /// Mean tokens.
    pub MeanTokens: f64 in Number::between(1.0, RequestSizes::MAX_TOKENS);
    /// A coefficient of variation: standard deviation by mean.
    pub VariationCoefficient: f64 in Number::between(0.0, 10.0);
    /// A cost an hour.
    pub CostPerHour: f64 in Number::between(0.0, 1_000_000_000.0);
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
    pub PodCount: f64 in Number::whole(0.0, Scenario::MAX_PODS as f64);
    /// A number of pods, at least one.
    pub PositivePodCount: f64 in Number::whole(1.0, Scenario::MAX_PODS as f64);
    /// A number of at least one.
    pub PositiveCount: f64 in Number::whole(1.0, 1_000_000.0);
    /// Accelerators of one replica.
    pub GpuCount: f64 in Number::whole(1.0, 1024.0);
    /// A capacity in tokens.
    pub TokenCapacity: f64 in Number::whole(1.0, 4_294_967_295.0);
    /// A duration, or a time since the start.
    pub ScenarioTime: Duration in Time::between(Duration::ZERO, Scenario::MAX_DURATION);
    /// A duration of at least 100 ms.
    pub PositiveDuration: Duration in Time::between(Duration::from_millis(100), Scenario::MAX_DURATION);
    /// An interval of at most an hour.
    pub ShortInterval: Duration in Time::between(Duration::from_millis(10), Duration::from_secs(3600));
    /// A delay.
    pub Delay: Duration in Time::between(Duration::ZERO, Duration::from_secs(3600));
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;
    use crate::config::ranged::DisplayDuration;

    fn error<T: for<'de> Deserialize<'de>>(text: &str) -> String {
        let read: Result<T, _> = serde_json::from_str(text);
        read.map(|_| ()).unwrap_err().to_string()
    }

    #[test]
    fn what_is_out_of_range_is_told_with_the_range() {
        assert!(error::<Rps>("-3").starts_with("-3 is out of range: must be 0 to 100000"));
        assert!(
            error::<PodCount>("1.5").starts_with("1.5 is out of range: must be a whole number, 0 to 10000")
        );
        assert!(error::<Share>("\"half\"").starts_with("\"half\" is not a number: must be a number, 0 to 1"));
        assert!(error::<Share>("[]").contains("expected a number, 0 to 1"));
        assert!(
            error::<ShortInterval>("\"1h30m\"")
                .starts_with("\"1h30m\" is out of range: must be 10ms to 1h, such as 90s")
        );
        assert!(error::<ScenarioTime>("90").starts_with("90 has no unit: must be 0s to 8784h, such as 90s"));
        assert!(
            error::<ScenarioTime>("\"soon\"").starts_with("\"soon\" is not a duration: must be 0s to 8784h")
        );
    }

    #[test]
    fn times_are_written_as_they_are_read() {
        let length: PositiveDuration = serde_json::from_str("\"1h 30m\"").unwrap();
        assert_eq!(length.get(), Duration::from_secs(5400));
        assert_eq!(DisplayDuration(length.get()).to_string(), "1h 30m");
    }
}
