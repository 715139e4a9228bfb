//! The single values of a scenario file, each with its range: read with an error that names it, written into the schema.

use std::fmt;
use std::time::Duration;

use jiff::SignedDuration;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserialize, Deserializer, Error, Visitor};

/// A number in a range; reads whatever is there and says what should be.
struct Number {
    least: f64,
    most: f64,
    whole: bool,
}

impl Number {
    fn checked<E: Error>(&self, value: f64) -> Result<f64, E> {
        if (self.least..=self.most).contains(&value) && (!self.whole || value.fract().abs() < f64::EPSILON) {
            return Ok(value);
        }
        Err(E::custom(format!("{value} is out of range: must be {}", Allowed(self))))
    }
}

/// A range in words.
struct Allowed<'a>(&'a Number);

impl fmt::Display for Allowed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Number { least, most, whole } = self.0;
        let kind = if *whole { "a whole number, " } else { "" };
        write!(f, "{kind}{least} to {most}")
    }
}

impl Visitor<'_> for Number {
    type Value = f64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.whole { "" } else { "a number, " };
        write!(f, "{kind}{}", Allowed(self))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<f64, E> {
        self.checked(value)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<f64, E> {
        self.checked(wva_core::units::float(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<f64, E> {
        self.checked(wva_core::units::float(i64::try_from(value).unwrap_or(i64::MAX)))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<f64, E> {
        let kind = if self.whole { "" } else { "a number, " };
        Err(E::custom(format!("{text:?} is no number: must be {kind}{}", Allowed(&self))))
    }
}

macro_rules! numbers {
    ($($(#[$doc:meta])* $name:ident: $kind:literal, $least:literal to $most:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
        pub struct $name(f64);

        impl $name {
            /// The plain number.
            #[must_use]
            pub const fn get(self) -> f64 {
                self.0
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let number = Number { least: $least, most: $most, whole: $kind == "integer" };
                from.deserialize_any(number).map(Self)
            }
        }

        impl JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "type": $kind, "minimum": $least, "maximum": $most })
            }
        }
    )*};
}

numbers! {
    /// Requests a second.
    Rps: "number", 0.0 to 100_000.0;
    /// A share of something.
    Share: "number", 0.0 to 1.0;
    /// How many times as much.
    Times: "number", 0.000_1 to 10_000.0;
    /// Mean tokens.
    MeanTokens: "number", 1.0 to 10_000_000.0;
    /// A coefficient of variation: standard deviation by mean.
    Variation: "number", 0.0 to 10.0;
    /// What something costs an hour.
    Price: "number", 0.0 to 1_000_000_000.0;
    /// Seconds of a step, or of a part of it.
    StepSeconds: "number", 0.0 to 60.0;
    /// Seconds of an empty step.
    BaseSeconds: "number", 0.000_001 to 60.0;
    /// Tokens that a sequence gains in a step.
    TokensPerStep: "number", 1.0 to 64.0;
    /// How much dearer something becomes.
    Dearer: "number", 0.0 to 100.0;
    /// Seconds of a stall.
    StallSeconds: "number", 0.0 to 3600.0;
    /// How many pods.
    Pods: "integer", 0.0 to 10_000.0;
    /// How many pods, one at least.
    SomePods: "integer", 1.0 to 10_000.0;
    /// How many of something, one at least.
    Count: "integer", 1.0 to 1_000_000.0;
    /// Accelerators of one replica.
    Gpus: "integer", 1.0 to 1024.0;
    /// Tokens that fit somewhere.
    Capacity: "integer", 1.0 to 4_294_967_295.0;
}

/// The longest time a scenario knows: 366 days.
pub const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);

/// A length of time in a range.
struct Time {
    least: Duration,
    most: Duration,
}

/// A length of time as it is written.
pub struct Written(pub Duration);

impl fmt::Display for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match SignedDuration::try_from(self.0) {
            Ok(span) if !span.is_zero() => write!(f, "{span:#}"),
            _ => f.write_str("0s"),
        }
    }
}

impl Time {
    fn allowed(&self) -> String {
        format!("{} to {}, as 90s, 10m or 1h30m", Written(self.least), Written(self.most))
    }
}

impl Visitor<'_> for Time {
    type Value = Duration;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a time, {}", self.allowed())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Duration, E> {
        let span = text.parse::<SignedDuration>().ok().and_then(|span| Duration::try_from(span).ok());
        let inside = span.filter(|span| (self.least..=self.most).contains(span));
        inside.ok_or_else(|| {
            let what = if span.is_some() { "out of range" } else { "no time" };
            E::custom(format!("{text:?} is {what}: must be {}", self.allowed()))
        })
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Duration, E> {
        Err(E::custom(format!("{value} has no unit: must be {}", self.allowed())))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Duration, E> {
        self.visit_f64(wva_core::units::float(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Duration, E> {
        self.visit_f64(wva_core::units::float(i64::try_from(value).unwrap_or(i64::MAX)))
    }
}

macro_rules! times {
    ($($(#[$doc:meta])* $name:ident: $least:expr, $most:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
        pub struct $name(Duration);

        impl $name {
            /// The plain length.
            #[must_use]
            pub const fn get(self) -> Duration {
                self.0
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                from.deserialize_any(Time { least: $least, most: $most }).map(Self)
            }
        }

        impl JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({
                    "type": "string",
                    "pattern": "^([0-9]+(\\.[0-9]+)?(h|m|s|ms))( ?[0-9]+(\\.[0-9]+)?(h|m|s|ms))*$",
                    "examples": ["90s", "10m", "1h30m"],
                })
            }
        }
    )*};
}

times! {
    /// A length of time, or a moment since the start.
    Span: Duration::ZERO, LONGEST;
    /// How long a part of a load lasts.
    Length: Duration::from_millis(100), LONGEST;
    /// How often something happens.
    Every: Duration::from_millis(10), Duration::from_secs(3600);
    /// How late something is.
    Late: Duration::ZERO, Duration::from_secs(3600);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error<T: for<'de> Deserialize<'de>>(text: &str) -> String {
        let read: Result<T, _> = serde_json::from_str(text);
        read.map(|_| ()).unwrap_err().to_string()
    }

    #[test]
    fn what_is_out_of_range_is_told_with_the_range() {
        assert!(error::<Rps>("-3").starts_with("-3 is out of range: must be 0 to 100000"));
        assert!(error::<Pods>("1.5").starts_with("1.5 is out of range: must be a whole number, 0 to 10000"));
        assert!(error::<Share>("\"half\"").starts_with("\"half\" is no number: must be a number, 0 to 1"));
        assert!(error::<Share>("[]").contains("expected a number, 0 to 1"));
        assert!(
            error::<Every>("\"1h30m\"").starts_with("\"1h30m\" is out of range: must be 10ms to 1h, as 90s")
        );
        assert!(error::<Span>("90").starts_with("90 has no unit: must be 0s to 8784h, as 90s"));
        assert!(error::<Span>("\"soon\"").starts_with("\"soon\" is no time: must be 0s to 8784h"));
    }

    #[test]
    fn times_are_written_as_they_are_read() {
        let length: Length = serde_json::from_str("\"1h 30m\"").unwrap();
        assert_eq!(length.get(), Duration::from_secs(5400));
        assert_eq!(Written(length.get()).to_string(), "1h 30m");
    }
}
