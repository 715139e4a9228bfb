//! The metrics of `external.metrics.k8s.io` by name, and the labels of their items.

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use wva_core::units::Replicas;
use wva_core::{Decision, VariantId};

use super::quantity::{Quantity, TooLarge};

/// The API group.
pub(crate) const GROUP: &str = "external.metrics.k8s.io";

/// The API version.
pub(crate) const VERSION: &str = "v1beta1";

/// A number that is served for each variant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Metric {
    /// The committed target.
    Desired,
    /// The scale target's current replicas.
    Current,
    /// The one divided by the other.
    Ratio,
}

impl Metric {
    /// Every served name, in the order of discovery. Lower case only: the HPA lower-cases what it asks for.
    /// `inferno_desired_replicas` is the name of releases before 0.5.
    pub(crate) const NAMES: [(&'static str, Self); 4] = [
        ("wva_desired_replicas", Self::Desired),
        ("wva_current_replicas", Self::Current),
        ("wva_desired_ratio", Self::Ratio),
        ("inferno_desired_replicas", Self::Desired),
    ];

    /// The metric of that name and its name as served.
    pub(crate) fn named(name: &str) -> Option<(&'static str, Self)> {
        Self::NAMES.into_iter().find(|(served, _)| *served == name)
    }

    /// Its value; `None` when it needs a current count and the scale target has none.
    pub(crate) fn value(
        self,
        desired: Replicas,
        current: Option<Replicas>,
    ) -> Option<Result<Quantity, TooLarge>> {
        match self {
            Self::Desired => Some(Quantity::count(desired)),
            Self::Current => current.map(Quantity::count),
            Self::Ratio => current.map(|current| Quantity::ratio(desired, current)),
        }
    }
}

/// The labels of a variant's item, sorted.
///
/// `variant` is another name of `variant_name`; `exported_namespace` is what Prometheus made of `namespace`, and what
/// existing HPAs select. A label whose value is unknown is absent: to invent one would match the wrong selectors.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Labels<'a> {
    sorted: [(&'static str, Option<&'a str>); 6],
}

impl<'a> Labels<'a> {
    pub(crate) fn of(
        id: &'a VariantId,
        decision: &'a Decision,
        controller_instance: Option<&'a str>,
    ) -> Self {
        Self {
            sorted: [
                ("accelerator_type", decision.accelerator.as_deref()),
                ("controller_instance", controller_instance),
                ("exported_namespace", Some(&id.namespace)),
                ("namespace", Some(&id.namespace)),
                ("variant", Some(&id.name)),
                ("variant_name", Some(&id.name)),
            ],
        }
    }

    /// The value of one label.
    pub(crate) fn get(&self, key: &str) -> Option<&'a str> {
        self.sorted.iter().find(|(name, _)| *name == key).and_then(|(_, value)| *value)
    }

    /// The labels that have a value.
    pub(crate) fn iter(self) -> impl Iterator<Item = (&'static str, &'a str)> {
        self.sorted.into_iter().filter_map(|(key, value)| value.map(|value| (key, value)))
    }
}

/// A map, as JSON and YAML have it.
impl Serialize for Labels<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (key, value) in self.iter() {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}
