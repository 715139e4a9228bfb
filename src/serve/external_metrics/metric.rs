//! The metrics by name, and the labels of their items.

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use wva_core::VariantId;
use wva_core::units::Replicas;

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
    id: &'a VariantId,
    accelerator: Option<&'a str>,
    controller_instance: Option<&'a str>,
}

impl<'a> Labels<'a> {
    pub(crate) fn new(
        id: &'a VariantId,
        accelerator: Option<&'a str>,
        controller_instance: Option<&'a str>,
    ) -> Self {
        Self { id, accelerator, controller_instance }
    }

    /// The value of one label.
    pub(crate) fn get(&self, key: &str) -> Option<&'a str> {
        self.iter().find(|(name, _)| *name == key).map(|(_, value)| value)
    }

    /// The labels with a value.
    pub(crate) fn iter(self) -> impl Iterator<Item = (&'static str, &'a str)> {
        let Self { id: VariantId { namespace, name }, accelerator, controller_instance } = self;
        let sorted = [
            ("accelerator_type", accelerator),
            ("controller_instance", controller_instance),
            ("exported_namespace", Some(namespace.as_str())),
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::quantity::Quantity;
    use super::*;

    fn ratio(desired: u32, current: u32) -> Quantity {
        let current = Some(Replicas::new(current));
        Quantity::from_thousandths(Metric::Ratio.thousandths(Replicas::new(desired), current).unwrap())
            .unwrap()
    }

    #[test]
    fn a_ratio_is_rounded_up_and_never_divides_by_zero() {
        for (desired, current, want) in
            [(4, 2, "2"), (1, 3, "334m"), (11, 10, "1100m"), (23, 10, "2300m"), (0, 3, "0"), (5, 0, "5")]
        {
            assert_eq!(ratio(desired, current).to_string(), want, "{desired}/{current}");
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
}
