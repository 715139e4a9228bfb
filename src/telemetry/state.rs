//! Metric of what did not fit into the state objects.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// The kind of an entry, and what it lost.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    kind: &'static str,
    lost: &'static str,
}

/// Metric of incomplete entries of state objects.
#[derive(Debug, Clone, Default)]
pub struct StateMetrics {
    cut: Family<Labels, Gauge>,
}

impl StateMetrics {
    /// A new family, registered in `registry`.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let help =
            "Entries of the state objects that the last write could keep only in part, by what they lost";
        registry.register("wva_state_entries_cut", help, metrics.cut.clone());
        metrics
    }

    /// Sets the number of `entries` of `kind` that are kept without `lost`.
    pub fn set_cut(&self, kind: &'static str, lost: &'static str, entries: usize) {
        let entries = i64::try_from(entries).unwrap_or(i64::MAX);
        self.cut.get_or_create(&Labels { kind, lost }).set(entries);
    }
}
