//! Newtypes with a unit, validated by their constructors, and the number conversions that the core uses. Inside the numeric code of
//! `analyze` and `learn` seconds and rates are plain `f64`; the docs say which.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A value outside the range its unit allows.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{unit} {value} is out of range: must be {allowed}")]
pub struct OutOfRange {
    /// What the value was meant to be.
    pub unit: &'static str,
    /// The offending value, as it was given.
    pub value: f64,
    /// The allowed range, in words.
    pub allowed: &'static str,
}

/// Checks that `value` is finite and not negative.
///
/// # Errors
/// When it is not.
pub(crate) fn at_least_zero(unit: &'static str, value: f64) -> Result<(), OutOfRange> {
    let allowed = "finite and at least 0";
    if value.is_finite() && value >= 0.0 { Ok(()) } else { Err(OutOfRange { unit, value, allowed }) }
}

/// A count of serving pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Replicas(u32);

impl Replicas {
    /// No pods.
    pub const ZERO: Self = Self(0);
    /// One pod.
    pub const ONE: Self = Self(1);
    /// The maximum of any variant: two thirds of the pods of the largest cluster that Kubernetes is tested with (150,000). No real
    /// fleet reaches it, and nothing has to count to two billion.
    pub const MAX: Self = Self(100_000);

    /// `count` pods.
    #[must_use]
    pub const fn new(count: u32) -> Self {
        Self(count)
    }

    /// The plain count.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    pub(crate) const fn plus_one(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// One fewer, never below zero.
    #[cfg(test)]
    pub(crate) const fn minus_one(self) -> Self {
        Self(self.0.saturating_sub(1))
    }

    /// The difference, never below zero.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// This count divided by `current` (0 counts as 1), in units of `1 / scale`. The scale is applied before the division, so that a
    /// whole number of units stays one.
    #[must_use]
    pub fn ratio_to(self, current: Self, scale: f64) -> f64 {
        scale * f64::from(self.0) / f64::from(current.0.max(1))
    }

    /// The nearest count: negative is zero, too large is the maximum.
    pub(crate) fn saturating_from(count: i64) -> Self {
        Self(u32::try_from(count.max(0)).unwrap_or(u32::MAX))
    }

    /// The smallest count that is at least `value`. Negative numbers and NaN are zero.
    #[must_use]
    pub fn ceil(value: f64) -> Self {
        Self(truncated_u32(value.ceil()))
    }
}

/// Truncates `value`: too large is the maximum, negative numbers and NaN are zero.
#[must_use]
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a float cast saturates")]
pub const fn truncated_u32(value: f64) -> u32 {
    value as u32
}

/// Truncates `value`: out of range is the nearest, NaN is zero.
#[must_use]
#[expect(clippy::cast_possible_truncation, reason = "a float cast saturates")]
pub const fn truncated_i64(value: f64) -> i64 {
    value as i64
}

/// The length of a collection; more than `u32` holds is the maximum.
#[must_use]
pub fn count(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

/// The nearest float: exact up to 2⁵³.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "a cast gives the nearest float")]
pub const fn to_f64(value: i64) -> f64 {
    value as f64
}

/// The nearest single-precision float, as the models of latency calculate.
#[expect(clippy::cast_possible_truncation, reason = "a cast gives the nearest float")]
pub(crate) const fn to_f32(value: f64) -> f32 {
    value as f32
}

/// `value` as explanations keep it: four decimals, and finite, since JSON has no other numbers.
pub(crate) fn figure(value: f64) -> f64 {
    // Beyond this a float has no decimals to round, and the product could overflow.
    const MAX_ROUNDED: f64 = 1e11;
    if value.is_nan() {
        0.0
    } else if value.abs() < MAX_ROUNDED {
        (value * 1e4).round() / 1e4
    } else {
        value.clamp(f64::MIN, f64::MAX)
    }
}

impl fmt::Display for Replicas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

macro_rules! non_negative {
    ($(#[$doc:meta])* $name:ident, $unit:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Default, Serialize, Deserialize)]
        #[serde(try_from = "f64", into = "f64")]
        pub struct $name(f64);

        impl $name {
            /// Zero.
            pub const ZERO: Self = Self(0.0);

            /// # Errors
            /// When `value` is negative or not finite.
            pub fn new(value: f64) -> Result<Self, OutOfRange> {
                at_least_zero($unit, value)?;
                Ok(Self(value))
            }

            /// The plain number.
            #[must_use]
            pub const fn get(self) -> f64 {
                self.0
            }
        }

        impl TryFrom<f64> for $name {
            type Error = OutOfRange;
            fn try_from(value: f64) -> Result<Self, OutOfRange> {
                Self::new(value)
            }
        }

        impl From<$name> for f64 {
            fn from(value: $name) -> f64 {
                value.0
            }
        }
    };
}

non_negative!(
    /// A length of time.
    Seconds,
    "seconds"
);
non_negative!(
    /// What one replica costs an hour, in the user's own unit: only ratios matter.
    Cost,
    "cost"
);
non_negative!(
    /// A number of requests.
    Requests,
    "requests"
);

non_negative!(
    /// Electrical power.
    Watts,
    "watts"
);

impl Seconds {
    /// Whole seconds, for constants.
    #[must_use]
    pub const fn whole(seconds: u32) -> Self {
        // Every u32 is exact in f64; `f64::from` is not const.
        Self(seconds as f64)
    }

    /// From `earlier` to `later`; zero when the order is reversed.
    #[must_use]
    pub fn between(earlier: jiff::Timestamp, later: jiff::Timestamp) -> Self {
        Self::from_duration(later.duration_since(earlier))
    }

    /// A negative duration is zero.
    pub(crate) fn from_duration(duration: jiff::SignedDuration) -> Self {
        Self(duration.as_secs_f64().max(0.0))
    }

    /// This long before `later`, or the earliest time stamp there is.
    #[must_use]
    pub fn before(self, later: jiff::Timestamp) -> jiff::Timestamp {
        // Nearly every window is in whole seconds, which are converted without rounding.
        let whole = truncated_i64(self.0);
        let length = if to_f64(whole).to_bits() == self.0.to_bits() && whole < i64::from(u32::MAX) {
            Some(jiff::SignedDuration::from_secs(whole))
        } else {
            jiff::SignedDuration::try_from_secs_f64(self.0).ok()
        };
        length.and_then(|length| later.checked_sub(length).ok()).unwrap_or(jiff::Timestamp::MIN)
    }

    /// The longer one.
    #[must_use]
    pub const fn max(self, other: Self) -> Self {
        Self(self.0.max(other.0))
    }

    /// The shorter one.
    #[must_use]
    pub const fn min(self, other: Self) -> Self {
        Self(self.0.min(other.0))
    }
}

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.0}s", self.0)
    }
}

/// A share of a whole, 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Default, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct Ratio(f64);

impl Ratio {
    /// # Errors
    /// When `value` is outside 0..=1 or not finite.
    pub fn new(value: f64) -> Result<Self, OutOfRange> {
        if (0.0..=1.0).contains(&value) {
            Ok(Self(value))
        } else {
            Err(OutOfRange { unit: "ratio", value, allowed: "0 to 1" })
        }
    }

    /// The plain number.
    #[must_use]
    pub const fn get(self) -> f64 {
        self.0
    }
}

impl TryFrom<f64> for Ratio {
    type Error = OutOfRange;
    fn try_from(value: f64) -> Result<Self, OutOfRange> {
        Self::new(value)
    }
}

impl From<Ratio> for f64 {
    fn from(value: Ratio) -> f64 {
        value.0
    }
}

/// A whole number of tokens, 0 to 2⁶³ − 1. Nothing wraps and nothing is negative: arithmetic saturates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(from = "i64", into = "i64")]
pub struct Tokens(i64);

impl Tokens {
    /// None.
    pub const ZERO: Self = Self(0);

    /// Negative is zero.
    #[must_use]
    pub const fn new(count: i64) -> Self {
        Self(if count < 0 { 0 } else { count })
    }

    /// Truncates `value`: too large is the maximum, negative numbers and NaN are zero.
    #[must_use]
    pub const fn truncated(value: f64) -> Self {
        Self::new(truncated_i64(value))
    }

    /// The plain count.
    #[must_use]
    pub const fn get(self) -> i64 {
        self.0
    }

    /// The nearest float: exact up to 2⁵³.
    #[must_use]
    pub const fn to_f64(self) -> f64 {
        to_f64(self.0)
    }

    /// The sum.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// The product.
    #[must_use]
    pub const fn times(self, factor: u32) -> Self {
        // Every u32 fits; `i64::from` is not const.
        Self(self.0.saturating_mul(factor as i64))
    }

    /// `share` of them, truncated.
    #[must_use]
    pub fn share(self, share: f64) -> Self {
        Self::truncated(self.to_f64() * share)
    }

    /// Halfway to a larger `other`, rounded down.
    pub(crate) const fn midway(self, other: Self) -> Self {
        Self::new(self.0 + (other.0 - self.0) / 2)
    }
}

impl From<i64> for Tokens {
    fn from(count: i64) -> Self {
        Self::new(count)
    }
}

impl From<Tokens> for i64 {
    fn from(tokens: Tokens) -> Self {
        tokens.0
    }
}

impl fmt::Display for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_moment_is_earlier_than_the_first() {
        let now = jiff::Timestamp::constant(1_800_000_000, 250_000_000);
        assert_eq!(Seconds::new(0.25).unwrap().before(now), jiff::Timestamp::constant(1_800_000_000, 0));
        assert_eq!(Seconds::new(1e300).unwrap().before(now), jiff::Timestamp::MIN);
        assert_eq!(Seconds::new(1e12).unwrap().before(now), jiff::Timestamp::MIN);
    }
}
