//! Metrics of the configuration: invalid entries, and the settings that WVA shows.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use wva_core::Policy;
use wva_core::model::LimitPolicy;

use super::errors::ErrorMetrics;

/// An entry of a ConfigMap.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Entry {
    configmap: String,
    namespace: String,
    key: String,
}

/// A ConfigMap.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Adopted {
    configmap: String,
    namespace: String,
}

/// The settings that decide how models without their own are scaled.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct InfoLabels {
    analyzer_name: &'static str,
    limiter_enabled: &'static str,
    scale_to_zero_enabled: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OptimizerLabel {
    optimizer_name: &'static str,
}

/// Metrics of the configuration.
#[derive(Debug, Clone, Default)]
pub struct ConfigMetrics {
    invalid: Family<Entry, Gauge>,
    adopted: Family<Adopted, Gauge>,
    info: Family<InfoLabels, Gauge>,
    /// The labels that `info` has.
    shown: Arc<Mutex<Option<InfoLabels>>>,
    kv_spare: Gauge<f64, AtomicU64>,
    queue_spare: Gauge<f64, AtomicU64>,
    optimizers: Family<OptimizerLabel, Gauge>,
    errors: ErrorMetrics,
}

impl ConfigMetrics {
    /// New families, registered in `registry`, with the settings of the default policy.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let help =
            "1 for each invalid entry of a ConfigMap: its last valid text, or the default, is in force";
        registry.register("wva_config_invalid", help, metrics.invalid.clone());
        let help = "1 for each ConfigMap that is in force without being configured, because it has a name that WVA gave it";
        registry.register("wva_config_adopted", help, metrics.adopted.clone());
        let help = "WVA configuration information (value is always 1)";
        registry.register("wva_config_info", help, metrics.info.clone());
        let help = "Global default (not per-model override) KV cache spare threshold configuration value";
        registry.register("wva_config_kv_spare_threshold", help, metrics.kv_spare.clone());
        let help = "Global default (not per-model override) queue spare threshold configuration value";
        registry.register("wva_config_queue_spare_threshold", help, metrics.queue_spare.clone());
        let help = "1 for active optimizer, 0 for inactive";
        registry.register("wva_optimizer_active", help, metrics.optimizers.clone());
        metrics.set_policy(&Policy::default());
        metrics
    }

    /// The same, which counts invalid entries in `errors` too.
    #[must_use]
    pub fn with_errors(self, errors: ErrorMetrics) -> Self {
        Self { errors, ..self }
    }

    /// Shows the settings of `policy`: those of models without their own, outside of namespaces with their own.
    pub fn set_policy(&self, policy: &Policy) {
        let flag = |is_set| if is_set { "true" } else { "false" };
        let LimitPolicy { inventory, quotas, power, spend, .. } = &policy.limits;
        let is_limited = *inventory || !quotas.is_empty() || power.is_some() || spend.is_some();
        let default = &policy.global.default;
        let labels = InfoLabels {
            analyzer_name: default.analyzer.as_str(),
            limiter_enabled: flag(is_limited),
            scale_to_zero_enabled: flag(default.scale_to_zero.unwrap_or_default().enabled),
        };
        // The new series first, so that no scrape finds none.
        self.info.get_or_create(&labels).set(1);
        let before = self.shown.lock().replace(labels.clone());
        if let Some(before) = before.filter(|before| *before != labels) {
            self.info.remove(&before);
        }
        self.kv_spare.set(default.saturation.kv_spare_trigger);
        self.queue_spare.set(default.saturation.queue_spare_trigger);
        // Where limits are shared, all models share what they leave by their scores.
        for (optimizer_name, is_active) in [("greedy-by-score", is_limited), ("cost-aware", !is_limited)] {
            self.optimizers.get_or_create(&OptimizerLabel { optimizer_name }).set(i64::from(is_active));
        }
    }

    /// So many entries have become invalid.
    pub fn rejected(&self, entries: usize) {
        self.errors.count("controller", "invalid_config", entries);
    }

    /// Sets the invalid entries: namespace, ConfigMap and key of each.
    pub fn set_invalid<'a>(&self, entries: impl Iterator<Item = (&'a str, &'a str, &'a str)>) {
        self.invalid.clear();
        for (namespace, configmap, key) in entries {
            let [namespace, configmap, key] = [namespace, configmap, key].map(str::to_owned);
            self.invalid.get_or_create(&Entry { configmap, namespace, key }).set(1);
        }
    }

    /// Sets the ConfigMaps of `namespace` that are in force without being configured.
    pub fn set_adopted<'a>(&self, namespace: &str, names: impl Iterator<Item = &'a str>) {
        self.adopted.clear();
        for configmap in names {
            let adopted = Adopted { configmap: configmap.to_owned(), namespace: namespace.to_owned() };
            self.adopted.get_or_create(&adopted).set(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;

    #[test]
    fn the_settings_are_one_series_that_was_removed_when_they_were_read_again() {
        let mut registry = Registry::default();
        let metrics = ConfigMetrics::register(&mut registry);
        let shown = || {
            let mut text = String::new();
            encode(&mut text, &registry).unwrap();
            let lines = text.lines().filter(|line| line.starts_with("wva_config_info{"));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        let before = shown();
        assert_eq!(before.len(), 1);
        metrics.set_policy(&Policy::default());
        assert_eq!(shown(), before);
        let mut limited = Policy::default();
        limited.limits.inventory = true;
        metrics.set_policy(&limited);
        let after = shown();
        assert!(after.len() == 1 && after[0].contains(r#"limiter_enabled="true""#), "{after:?}");
    }
}
