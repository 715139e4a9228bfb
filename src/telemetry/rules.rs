//! Metrics about rules of prometheus-adapter.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabel {
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabel {
    kind: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    purpose: &'static str,
    result: &'static str,
}

/// What rules there are, and what they make.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RuleCounts {
    /// Rules of the file that are in force.
    pub valid: usize,
    /// Those that are wrong and make nothing.
    pub wrong: usize,
    /// Whether the text of the file is that of the rules in force, and not one that cannot be read.
    pub is_file_valid: bool,
    /// Queries of series whose last list failed.
    pub failing_lists: usize,
    /// External metrics.
    pub external_metrics: usize,
    /// Metrics of objects, one for each kind that has it.
    pub object_metrics: usize,
}

/// Metrics of rules.
#[derive(Debug, Clone)]
pub struct RuleMetricFamilies {
    rules: Family<StateLabel, Gauge>,
    file_valid: Gauge,
    failing_lists: Gauge,
    metrics: Family<KindLabel, Gauge>,
    relists: Histogram,
    requests: Family<RequestLabels, Histogram, fn() -> Histogram>,
}

impl Default for RuleMetricFamilies {
    /// New families, which nothing shows.
    fn default() -> Self {
        Self {
            rules: Family::default(),
            file_valid: Gauge::default(),
            failing_lists: Gauge::default(),
            metrics: Family::default(),
            relists: Histogram::new([0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0]),
            requests: Family::new_with_constructor(|| {
                Histogram::new([0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0])
            }),
        }
    }
}

impl RuleMetricFamilies {
    /// New families, registered in `registry`.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let help = "Rules of --adapter-config, by state: valid, and wrong, of which none makes a metric";
        registry.register("wva_adapter_rules", help, metrics.rules.clone());
        let help =
            "1 while the file of --adapter-config can be read; with 0, the rules of before are in force";
        registry.register("wva_adapter_rules_file_valid", help, metrics.file_valid.clone());
        let help = "Series queries of rules whose last list failed: their metrics are those of before";
        registry.register("wva_adapter_rule_lists_failing", help, metrics.failing_lists.clone());
        let help =
            "Metrics that rules make, by kind: external, and object for each kind of objects that has it";
        registry.register("wva_adapter_rule_metrics", help, metrics.metrics.clone());
        let help = "Time to list the series of all rules";
        registry.register("wva_adapter_rule_relist_seconds", help, metrics.relists.clone());
        let help =
            "Time of requests to Prometheus for rules, by purpose, read or list, and by result, ok or failed";
        registry.register("wva_adapter_rule_request_seconds", help, metrics.requests.clone());
        metrics
    }

    /// Shows what rules there are.
    pub fn show(&self, counts: RuleCounts) {
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        for (state, count) in [("valid", counts.valid), ("wrong", counts.wrong)] {
            self.rules.get_or_create(&StateLabel { state }).set(number(count));
        }
        self.file_valid.set(counts.is_file_valid.into());
        self.failing_lists.set(number(counts.failing_lists));
        for (kind, count) in [("external", counts.external_metrics), ("object", counts.object_metrics)] {
            self.metrics.get_or_create(&KindLabel { kind }).set(number(count));
        }
    }

    /// All series were listed.
    pub fn relisted(&self, took: Duration) {
        self.relists.observe(took.as_secs_f64());
    }

    /// Prometheus has answered, or not, for a `read` or a `list`.
    pub fn requested(&self, purpose: &'static str, is_ok: bool, took: Duration) {
        let result = if is_ok { "ok" } else { "failed" };
        self.requests.get_or_create(&RequestLabels { purpose, result }).observe(took.as_secs_f64());
    }
}
