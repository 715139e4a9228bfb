//! Metric of invalid configuration entries.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// An entry of a ConfigMap.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Entry {
    configmap: String,
    namespace: String,
    key: String,
}

/// Metric of invalid entries.
#[derive(Debug, Clone)]
pub struct ConfigMetrics {
    invalid: Family<Entry, Gauge>,
}

impl ConfigMetrics {
    /// A new family, registered in `registry`.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self { invalid: Family::default() };
        let help =
            "1 for each invalid entry of a ConfigMap: its last valid text, or the default, is in force";
        registry.register("wva_config_invalid", help, metrics.invalid.clone());
        metrics
    }

    /// Sets the invalid entries: namespace, ConfigMap and key of each.
    pub fn set_invalid<'a>(&self, entries: impl Iterator<Item = (&'a str, &'a str, &'a str)>) {
        self.invalid.clear();
        for (namespace, configmap, key) in entries {
            let [namespace, configmap, key] = [namespace, configmap, key].map(str::to_owned);
            self.invalid.get_or_create(&Entry { configmap, namespace, key }).set(1);
        }
    }
}
