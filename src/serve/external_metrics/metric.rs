//! The metrics by name, the labels of their items, and their values as `resource.Quantity` prints them.

use std::fmt;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use wva_core::VariantId;
use wva_core::units::Replicas;

/// The largest value that an HPA reads correctly: `MilliValue()` of a larger one silently wraps to zero or below.
pub(crate) const MAX_VALUE: u64 = 9_223_372_036_854_775;

/// Thousandths in a whole.
const MILLI: u64 = 1_000;

/// A metric that is served for each variant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Metric {
    /// The published target.
    Desired,
    /// The scale target's current replicas.
    Current,
    /// Desired divided by current.
    Ratio,
}

impl Metric {
    /// The served names, in the order of discovery. Lower case only, since the HPA lower-cases the name that it reads.
    /// `inferno_desired_replicas` is the name in releases of upstream before 0.5.
    pub(crate) const NAMES: [(&'static str, Self); 4] = [
        ("wva_desired_replicas", Self::Desired),
        ("wva_current_replicas", Self::Current),
        ("wva_desired_ratio", Self::Ratio),
        ("inferno_desired_replicas", Self::Desired),
    ];

    /// The metric of that name, and its static name.
    pub(crate) fn find(name: &str) -> Option<(&'static str, Self)> {
        Self::NAMES.into_iter().find(|(served, _)| *served == name)
    }

    /// The value in thousandths; `None` when it needs the current count and the scale target has none. Without a replica the
    /// ratio is that to a single replica, which is `desired`.
    ///
    /// A count is below 2³², so its thousandths are exact. A quotient that is not whole stays so: its distance to the next
    /// whole number is at least `1 / current`, and rounding changes it by at most 2⁻⁵³ of its value.
    pub(crate) fn thousandths(self, desired: Replicas, current: Option<Replicas>) -> Option<f64> {
        let thousandths = |replicas: Replicas| 1_000.0 * f64::from(replicas.get());
        match self {
            Self::Desired => Some(thousandths(desired)),
            Self::Current => current.map(thousandths),
            Self::Ratio => current.map(|current| desired.ratio_to(current, 1_000.0)),
        }
    }
}

/// The labels of a variant's item, sorted.
///
/// `variant` is an alias of `variant_name`. `exported_namespace` is what Prometheus makes of `namespace`, and what existing
/// HPAs select by. A label with an unknown value is absent: an invented value would match the wrong selectors.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Labels<'a> {
    namespace: &'a str,
    name: &'a str,
    accelerator: Option<&'a str>,
    controller_instance: Option<&'a str>,
}

impl<'a> Labels<'a> {
    pub(crate) fn new(
        id: &'a VariantId,
        accelerator: Option<&'a str>,
        controller_instance: Option<&'a str>,
    ) -> Self {
        Self { namespace: &id.namespace, name: &id.name, accelerator, controller_instance }
    }

    /// The same labels under a further name of the variant: every item has the labels by which it was selected.
    pub(crate) fn with_name(self, name: &'a str) -> Self {
        Self { name, ..self }
    }

    /// The value of one label.
    pub(crate) fn get(&self, key: &str) -> Option<&'a str> {
        self.iter().find(|(name, _)| *name == key).map(|(_, value)| value)
    }

    /// The labels with a value.
    pub(crate) fn iter(self) -> impl Iterator<Item = (&'static str, &'a str)> {
        let Self { namespace, name, accelerator, controller_instance } = self;
        let sorted = [
            ("accelerator_type", accelerator),
            ("controller_instance", controller_instance),
            ("exported_namespace", Some(namespace)),
            ("namespace", Some(namespace)),
            ("variant", Some(name)),
            ("variant_name", Some(name)),
        ];
        sorted.into_iter().filter_map(|(key, value)| value.map(|value| (key, value)))
    }
}

impl Serialize for Labels<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (key, value) in self.iter() {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

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

    /// The number in thousandths.
    pub(super) const fn thousandths(self) -> u64 {
        self.milli
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

    fn ratio(desired: u32, current: u32) -> Quantity {
        let current = Some(Replicas::new(current));
        Quantity::from_thousandths(Metric::Ratio.thousandths(Replicas::new(desired), current).unwrap())
            .unwrap()
    }

    #[test]
    fn a_ratio_is_rounded_up_and_never_divides_by_zero() {
        for (desired, current, expected) in
            [(4, 2, "2"), (1, 3, "334m"), (11, 10, "1100m"), (23, 10, "2300m"), (0, 3, "0"), (5, 0, "5")]
        {
            assert_eq!(ratio(desired, current).to_string(), expected, "{desired}/{current}");
        }
    }

    #[test]
    fn without_a_current_count_only_desired_has_a_value() {
        let value = |metric: Metric| metric.thousandths(Replicas::new(5), None);
        assert_eq!([Metric::Desired, Metric::Current, Metric::Ratio].map(value), [Some(5_000.0), None, None]);
    }

    proptest! {
        #[test]
        fn every_pair_of_counts_gives_the_exact_ratio_rounded_up(desired: u32, current: u32, small in 0..2_000_u32) {
            for (desired, current) in [(desired, current), (desired, small), (small, current), (small, small + 1)] {
                let exact = (u64::from(desired) * 1_000).div_ceil(u64::from(current.max(1)));
                prop_assert_eq!(ratio(desired, current), Quantity::from_milli(exact).unwrap());
            }
        }

        #[test]
        fn every_count_is_itself(count: u32) {
            let exact = Quantity::from_milli(u64::from(count) * 1_000).unwrap();
            for metric in [Metric::Desired, Metric::Current] {
                let count = Replicas::new(count);
                prop_assert_eq!(Quantity::from_thousandths(metric.thousandths(count, Some(count)).unwrap()).unwrap(), exact);
            }
        }
    }

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
        for Case { milli, text: expected } in cases {
            assert_eq!(text(milli), expected);
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
