//! What did not fit into the state objects, as a metric.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// What is kept, and how much of it is missing.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    kind: &'static str,
    lost: &'static str,
}

/// Entries of state objects that are not kept whole.
#[derive(Debug, Clone, Default)]
pub struct StateMetrics {
    cut: Family<Labels, Gauge>,
}

impl StateMetrics {
    /// A fresh family, registered in `registry`.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let help = "Entries of the state objects that the last write could not keep whole, by what they lost";
        registry.register("wva_state_entries_cut", help, metrics.cut.clone());
        metrics
    }

    /// So many entries of `kind` are kept without `lost`.
    pub fn cut(&self, kind: &'static str, lost: &'static str, entries: usize) {
        let entries = i64::try_from(entries).unwrap_or(i64::MAX);
        self.cut.get_or_create(&Labels { kind, lost }).set(entries);
    }
}
