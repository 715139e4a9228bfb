//! Errors of all components, in one family.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    component: &'static str,
    error_type: &'static str,
}

/// Counts errors. Its clones share one family; one that is not registered counts for nobody.
#[derive(Debug, Clone, Default)]
pub struct ErrorMetrics {
    errors: Family<Labels, Counter>,
}

impl ErrorMetrics {
    /// A new family, registered in `registry`.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register("wva_errors", "Total number of errors by component", metrics.errors.clone());
        metrics
    }

    /// Counts `count` errors of `error_type` of `component`, which is one of WVA's: collector, analyzer, enforcer, controller.
    pub fn count(&self, component: &'static str, error_type: &'static str, count: usize) {
        if count > 0 {
            let count = count.try_into().unwrap_or(u64::MAX);
            self.errors.get_or_create(&Labels { component, error_type }).inc_by(count);
        }
    }
}
