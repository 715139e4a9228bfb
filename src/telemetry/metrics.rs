//! Metric families about wva itself. Those about variants are rendered from the board.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use smol_str::SmolStr;

use super::errors::ErrorMetrics;

/// The outcome of one evaluation.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

/// The kind of a source's error.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabel {
    kind: &'static str,
}

/// How an evaluation ended, as WVA names it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StatusLabel {
    status: &'static str,
}

/// What was queried. All signals are queried together.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct QueryLabel {
    query_type: &'static str,
}

const SIGNALS: &str = "signals";

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct QueryErrorLabels {
    query_type: &'static str,
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct UnattributedLabels {
    namespace: String,
    reason: &'static str,
}

impl UnattributedLabels {
    fn new(namespace: &str) -> Self {
        Self { namespace: namespace.to_owned(), reason: "unresolved" }
    }
}

/// Histograms by a label, with WVA's buckets.
type Histograms<L> = Family<L, Histogram, fn() -> Histogram>;

/// Metrics of evaluations.
#[derive(Debug, Clone)]
pub struct EvaluationMetrics {
    evaluations: Family<ResultLabel, Counter>,
    duration: Histogram,
    postponed: Counter,
    source_errors: Family<KindLabel, Counter>,
    bad_samples: Counter,
    dropped_series: Counter,
    dropped: Counter,
    violations: Counter,
    failed: Counter,
    overdue: Counter,
    cycles: Histograms<StatusLabel>,
    collections: Histograms<QueryLabel>,
    collection_errors: Family<QueryErrorLabels, Counter>,
    unattributed: Family<UnattributedLabels, Counter>,
    /// The namespaces that `unattributed` has.
    namespaces: Arc<Mutex<BTreeSet<SmolStr>>>,
    errors: ErrorMetrics,
}

impl EvaluationMetrics {
    /// New families, registered in `registry`.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            evaluations: Family::default(),
            // 1 ms doubling to 16 s: from a single variant to an evaluation that is about to time out.
            duration: Histogram::new(exponential_buckets(0.001, 2.0, 15)),
            postponed: Counter::default(),
            source_errors: Family::default(),
            bad_samples: Counter::default(),
            dropped_series: Counter::default(),
            dropped: Counter::default(),
            violations: Counter::default(),
            failed: Counter::default(),
            overdue: Counter::default(),
            cycles: Family::new_with_constructor(|| {
                Histogram::new([0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0])
            }),
            collections: Family::new_with_constructor(|| {
                Histogram::new([0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5])
            }),
            collection_errors: Family::default(),
            unattributed: Family::default(),
            namespaces: Arc::default(),
            errors: ErrorMetrics::register(registry),
        };
        metrics.register_all(registry);
        metrics
    }

    fn register_all(&self, registry: &mut Registry) {
        registry.register("wva_evaluations", "Evaluations by result", self.evaluations.clone());
        let help = "Time from collecting to publishing";
        registry.register("wva_evaluation_duration_seconds", help, self.duration.clone());
        let help = "Reads that got the last result instead of a new evaluation, because evaluations may take at most a quarter of \
                    the time";
        registry.register("wva_evaluations_postponed", help, self.postponed.clone());
        let help = "Collections that failed, by kind";
        registry.register("wva_source_errors", help, self.source_errors.clone());
        let help = "Samples dropped because they are NaN, infinite or impossibly negative";
        registry.register("wva_bad_samples", help, self.bad_samples.clone());
        let help = "Series left out because their pod has more series or engines, or longer labels, than are kept; counted in each collection";
        registry.register("wva_dropped_series", help, self.dropped_series.clone());
        let help =
            "Parts of a restored memory that were dropped because they were damaged or of another version";
        registry.register("wva_memory_dropped", help, self.dropped.clone());
        let help = "Decisions withheld by the independent checker";
        registry.register("wva_check_violations", help, self.violations.clone());
        let help = "Decisions about a model that failed; its numbers are held until the next try";
        registry.register("wva_model_failures", help, self.failed.clone());
        let help = "Decisions that timed out; the last numbers are held";
        registry.register("wva_evaluations_overdue", help, self.overdue.clone());
        let help = "Duration of optimization loop cycles in seconds";
        registry.register("wva_optimization_duration_seconds", help, self.cycles.clone());
        let help = "Duration of metrics collection operations in seconds";
        registry.register("wva_metrics_collection_duration_seconds", help, self.collections.clone());
        let help = "Total number of metrics collection errors";
        registry.register("wva_metrics_collection_errors", help, self.collection_errors.clone());
        let help = "Pods that belong to no variant, with a sample of a model server within 30 s; counted in each evaluation, by namespace of variants";
        registry.register("wva_pod_mapping_miss", help, self.unattributed.clone());
    }

    /// The errors of all components.
    #[must_use]
    pub fn errors(&self) -> &ErrorMetrics {
        &self.errors
    }

    /// The metric source was queried for `duration`. `error` is the kind of its error, if any.
    pub fn collected(&self, duration: Duration, error: Option<&'static str>) {
        self.collections.get_or_create(&QueryLabel { query_type: SIGNALS }).observe(duration.as_secs_f64());
        if let Some(reason) = error {
            self.collection_errors.get_or_create(&QueryErrorLabels { query_type: SIGNALS, reason }).inc();
            self.errors.count("collector", reason, 1);
        }
    }

    /// So many pods of each namespace belong to no variant. The series of other namespaces end.
    pub fn unattributed(&self, by_namespace: &BTreeMap<SmolStr, u64>) {
        let mut namespaces = self.namespaces.lock();
        namespaces.retain(|namespace| {
            let stays = by_namespace.contains_key(namespace);
            stays || !self.unattributed.remove(&UnattributedLabels::new(namespace))
        });
        for (namespace, pods) in by_namespace {
            self.unattributed.get_or_create(&UnattributedLabels::new(namespace)).inc_by(*pods);
            if !namespaces.contains(namespace) {
                namespaces.insert(namespace.clone());
            }
        }
    }

    /// An evaluation ended after `duration`. `error` is the kind of the source's error, if any.
    pub fn evaluated(&self, duration: Duration, error: Option<&'static str>) {
        let result = if error.is_some() { "source_error" } else { "ok" };
        self.evaluations.get_or_create(&ResultLabel { result }).inc();
        self.duration.observe(duration.as_secs_f64());
        let status = if error.is_some() { "error" } else { "success" };
        self.cycles.get_or_create(&StatusLabel { status }).observe(duration.as_secs_f64());
        if let Some(kind) = error {
            self.source_errors.get_or_create(&KindLabel { kind }).inc();
        }
    }

    /// A read got the last result, because an evaluation would have come too soon after it.
    pub fn postponed(&self) {
        self.postponed.inc();
    }

    /// `count` samples were dropped.
    pub fn bad_samples(&self, count: u64) {
        self.bad_samples.inc_by(count);
    }

    /// `count` series of pods with too many were left out.
    pub fn dropped_series(&self, count: u64) {
        self.dropped_series.inc_by(count);
    }

    /// `count` parts of a restored memory were dropped.
    pub fn dropped(&self, count: usize) {
        self.dropped.inc_by(count.try_into().unwrap_or(u64::MAX));
    }

    /// Deciding about `count` models failed.
    pub fn failed(&self, count: usize) {
        self.failed.inc_by(count.try_into().unwrap_or(u64::MAX));
        self.errors.count("analyzer", "decision_failed", count);
    }

    /// A decision timed out.
    pub fn overdue(&self) {
        self.overdue.inc();
        self.errors.count("analyzer", "decision_overdue", 1);
    }

    /// `count` decisions were withheld.
    pub fn violations(&self, count: usize) {
        self.violations.inc_by(count.try_into().unwrap_or(u64::MAX));
        self.errors.count("enforcer", "rule_broken", count);
    }
}

/// Registers `wva_build_info`.
pub fn build_info(registry: &mut Registry) {
    let info = Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]);
    registry.register("wva_build", "The running build", info);
}
