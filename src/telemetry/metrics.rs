//! Metric families about wva itself. Those about variants are rendered from the board.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

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
        };
        registry.register("wva_evaluations", "Evaluations by result", metrics.evaluations.clone());
        let help = "Time from collecting to publishing";
        registry.register("wva_evaluation_duration_seconds", help, metrics.duration.clone());
        let help = "Reads that got the last result instead of a new evaluation, because evaluations may take at most a quarter of \
                    the time";
        registry.register("wva_evaluations_postponed", help, metrics.postponed.clone());
        let help = "Collections that failed, by kind";
        registry.register("wva_source_errors", help, metrics.source_errors.clone());
        let help = "Samples dropped because they are NaN, infinite or impossibly negative";
        registry.register("wva_bad_samples", help, metrics.bad_samples.clone());
        let help = "Series left out because their pod has more series or engines, or longer labels, than are kept; counted in each collection";
        registry.register("wva_dropped_series", help, metrics.dropped_series.clone());
        let help =
            "Parts of a restored memory that were dropped because they were damaged or of another version";
        registry.register("wva_memory_dropped", help, metrics.dropped.clone());
        let help = "Decisions withheld by the independent checker";
        registry.register("wva_check_violations", help, metrics.violations.clone());
        let help = "Decisions about a model that failed; its numbers are held until the next try";
        registry.register("wva_model_failures", help, metrics.failed.clone());
        let help = "Decisions that timed out; the last numbers are held";
        registry.register("wva_evaluations_overdue", help, metrics.overdue.clone());
        metrics
    }

    /// An evaluation ended after `duration`. `error` is the kind of the source's error, if any.
    pub fn evaluated(&self, duration: Duration, error: Option<&'static str>) {
        let result = if error.is_some() { "source_error" } else { "ok" };
        self.evaluations.get_or_create(&ResultLabel { result }).inc();
        self.duration.observe(duration.as_secs_f64());
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
    }

    /// A decision timed out.
    pub fn overdue(&self) {
        self.overdue.inc();
    }

    /// `count` decisions were withheld.
    pub fn violations(&self, count: usize) {
        self.violations.inc_by(count.try_into().unwrap_or(u64::MAX));
    }
}

/// Registers `wva_build_info`.
pub fn build_info(registry: &mut Registry) {
    let info = Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]);
    registry.register("wva_build", "The running build", info);
}
