//! Numbers as `resource.Quantity` prints them. Only whole thousandths can be made, so a negative number, NaN and
//! infinity cannot be expressed: to an HPA the first means the maximum and the others mean anything.

use std::fmt;

use serde::{Serialize, Serializer};
use wva_core::units::Replicas;

/// The largest value an HPA reads correctly: `MilliValue()` of anything above wraps, silently, to zero or below.
pub(crate) const LARGEST: u64 = 9_223_372_036_854_775;

/// Thousandths in one.
const MILLI: u64 = 1_000;

/// A value above [`LARGEST`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0} thousandths are more than an autoscaler can read ({LARGEST}); this is a bug of this server")]
pub(crate) struct TooLarge(u64);

/// A number that an HPA reads as it is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Quantity {
    milli: u64,
}

impl Quantity {
    /// From thousandths.
    pub(crate) const fn from_milli(milli: u64) -> Result<Self, TooLarge> {
        if milli > LARGEST * MILLI { Err(TooLarge(milli)) } else { Ok(Self { milli }) }
    }

    /// A count.
    pub(crate) fn count(replicas: Replicas) -> Result<Self, TooLarge> {
        Self::from_milli(u64::from(replicas.get()) * MILLI)
    }

    /// `desired / current`, rounded up to a thousandth as an HPA would; `desired` itself when nothing runs.
    pub(crate) fn ratio(desired: Replicas, current: Replicas) -> Result<Self, TooLarge> {
        let milli = u64::from(desired.get()) * MILLI;
        Self::from_milli(milli.div_ceil(u64::from(current.get().max(1))))
    }
}

/// As JSON and YAML have it: a string.
impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The canonical form: no fraction, the largest suffix that loses nothing.
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
        assert_eq!(text(LARGEST * MILLI), "9223372036854775");
        assert_eq!(Quantity::from_milli(LARGEST * MILLI + 1), Err(TooLarge(LARGEST * MILLI + 1)));
        assert!(Quantity::from_milli(u64::MAX).is_err());
    }

    #[test]
    fn a_ratio_is_never_rounded_down_and_never_divides_by_zero() {
        let ratio = |d, c| Quantity::ratio(Replicas::new(d), Replicas::new(c)).unwrap().to_string();
        assert_eq!(ratio(4, 2), "2");
        assert_eq!(ratio(1, 3), "334m");
        assert_eq!(ratio(0, 3), "0");
        assert_eq!(ratio(5, 0), "5");
    }

    proptest! {
        #[test]
        fn every_quantity_reads_back_exactly(milli in 0..=LARGEST * MILLI) {
            prop_assert_eq!(read(&text(milli)), milli);
        }

        #[test]
        fn every_pair_of_counts_gives_a_safe_ratio(desired: u32, current: u32) {
            let ratio = Quantity::ratio(Replicas::new(desired), Replicas::new(current)).unwrap();
            prop_assert!(ratio.milli * u64::from(current.max(1)) >= u64::from(desired) * MILLI);
            prop_assert!(Quantity::count(Replicas::new(desired)).is_ok());
        }
    }
}
