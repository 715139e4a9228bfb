//! Numbers as `resource.Quantity` prints them. Every number that an HPA reads passes here: the HPA would scale to the maximum
//! for a negative number, and to an arbitrary one for NaN, infinity or a number that is too large.

use std::fmt;

use serde::{Serialize, Serializer};

/// The largest value that an HPA reads correctly: `MilliValue()` of a larger one silently wraps to zero or below.
pub(crate) const MAX_VALUE: u64 = 9_223_372_036_854_775;

/// Thousandths in a whole.
const MILLI: u64 = 1_000;

/// A number that an HPA would misread.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub(crate) enum InvalidQuantity {
    #[error("it is not a number")]
    NotANumber,
    #[error("it is infinite")]
    Infinite,
    #[error("it is negative, {0} thousandths")]
    Negative(f64),
    #[error("it is {0} thousandths, and the largest value that an autoscaler can read is {MAX_VALUE}")]
    TooLarge(u64),
}

/// A number that an HPA reads correctly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Quantity {
    milli: u64,
}

impl Quantity {
    /// From thousandths, rounded up to a whole thousandth as an HPA would.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "not negative, and a float cast saturates at u64::MAX, which is rejected"
    )]
    pub(crate) fn from_thousandths(thousandths: f64) -> Result<Self, InvalidQuantity> {
        if thousandths.is_nan() {
            Err(InvalidQuantity::NotANumber)
        } else if thousandths.is_infinite() {
            Err(InvalidQuantity::Infinite)
        } else if thousandths < 0.0 {
            Err(InvalidQuantity::Negative(thousandths))
        } else {
            Self::from_milli(thousandths.ceil() as u64)
        }
    }

    /// From whole thousandths.
    pub(super) const fn from_milli(milli: u64) -> Result<Self, InvalidQuantity> {
        if milli > MAX_VALUE * MILLI { Err(InvalidQuantity::TooLarge(milli)) } else { Ok(Self { milli }) }
    }
}

/// A string in JSON and YAML.
impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The canonical form: no fraction, with the largest suffix that is exact.
impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SUFFIXES: [&str; 7] = ["m", "", "k", "M", "G", "T", "P"];
        if self.milli == 0 {
            return f.write_str("0");
        }
        let mut number = self.milli;
        let mut suffix = 0;
        while number.is_multiple_of(1_000) && suffix + 1 < SUFFIXES.len() {
            number /= 1_000;
            suffix += 1;
        }
        write!(f, "{number}{}", SUFFIXES[suffix])
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text(milli: u64) -> String {
        Quantity::from_milli(milli).unwrap().to_string()
    }

    /// Reads a quantity back, as thousandths.
    fn read(text: &str) -> u64 {
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let power = match &text[digits.len()..] {
            "m" => 0,
            "" => 1,
            "k" => 2,
            "M" => 3,
            "G" => 4,
            "T" => 5,
            "P" => 6,
            other => panic!("unknown suffix {other:?}"),
        };
        digits.parse::<u64>().unwrap() * 1_000_u64.pow(power)
    }

    #[test]
    fn quantities_print_as_kubernetes_prints_them() {
        let cases =
            [(0, "0"), (3_000, "3"), (1_500, "1500m"), (1, "1m"), (1_200_000, "1200"), (2_000_000, "2k")];
        for (milli, want) in cases.into_iter().chain([(12_500_000, "12500"), (1_000_000_000, "1M")]) {
            assert_eq!(text(milli), want);
        }
    }

    /// What Kubernetes' own code prints, written by `tests/conformance/corpus`.
    #[test]
    fn every_quantity_of_the_corpus_prints_as_kubernetes_prints_it() {
        #[derive(serde::Deserialize)]
        struct Case {
            milli: u64,
            text: String,
        }
        let corpus = include_str!("../../../tests/it/golden/corpus/quantities.json");
        let cases: Vec<Case> = serde_json::from_str(corpus).unwrap();
        assert!(cases.len() > 200);
        for Case { milli, text: want } in cases {
            assert_eq!(text(milli), want);
        }
    }

    #[test]
    fn a_number_that_an_hpa_would_wrap_is_an_error() {
        assert_eq!(text(MAX_VALUE * MILLI), "9223372036854775");
        assert_eq!(
            Quantity::from_milli(MAX_VALUE * MILLI + 1),
            Err(InvalidQuantity::TooLarge(MAX_VALUE * MILLI + 1))
        );
        assert!(Quantity::from_milli(u64::MAX).is_err());
        // The nearest thousandths that a float has: 2⁶³ is 808 thousandths too many, 1,024 fewer are allowed.
        let above = 9_223_372_036_854_775_808.0;
        assert_eq!(Quantity::from_thousandths(above), Err(InvalidQuantity::TooLarge(1 << 63)));
        assert_eq!(Quantity::from_thousandths(above - 1_024.0).unwrap().milli, (1 << 63) - 1_024);
        assert_eq!(Quantity::from_thousandths(f64::MAX), Err(InvalidQuantity::TooLarge(u64::MAX)));
    }

    #[test]
    fn nan_infinite_and_negative_numbers_are_errors() {
        assert!(matches!(Quantity::from_thousandths(f64::NAN), Err(InvalidQuantity::NotANumber)));
        assert!(matches!(Quantity::from_thousandths(-f64::NAN), Err(InvalidQuantity::NotANumber)));
        assert_eq!(Quantity::from_thousandths(f64::INFINITY), Err(InvalidQuantity::Infinite));
        assert_eq!(Quantity::from_thousandths(f64::NEG_INFINITY), Err(InvalidQuantity::Infinite));
        for negative in [-1_000.0, -1.0, -1e-300, f64::MIN] {
            assert_eq!(Quantity::from_thousandths(negative), Err(InvalidQuantity::Negative(negative)));
        }
        assert_eq!(Quantity::from_thousandths(-0.0).unwrap().milli, 0, "zero has no sign here");
        assert_eq!(
            Quantity::from_thousandths(1e-300).unwrap().milli,
            1,
            "and what is above zero does not become zero"
        );
    }

    proptest! {
        #[test]
        fn every_quantity_reads_back_exactly(milli in 0..=MAX_VALUE * MILLI) {
            prop_assert_eq!(read(&text(milli)), milli);
        }

        #[test]
        fn every_quantity_is_between_zero_and_the_maximum(thousandths: f64) {
            match Quantity::from_thousandths(thousandths) {
                Ok(quantity) => {
                    prop_assert!(thousandths >= 0.0 && quantity.milli <= MAX_VALUE * MILLI);
                    prop_assert!(!quantity.to_string().starts_with('-'));
                }
                Err(_) => prop_assert!(!(0.0..=9.2e18).contains(&thousandths)),
            }
        }
    }
}
