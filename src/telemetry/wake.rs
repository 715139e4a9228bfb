//! Metrics of models that are woken, because a request waits for them at a scheduler.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabel {
    kind: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct UntilLabel {
    until: &'static str,
}

/// Metrics of wake-ups.
#[derive(Debug, Clone)]
pub struct WakeMetrics {
    wake_ups: Counter,
    seconds: Family<UntilLabel, Histogram, fn() -> Histogram>,
    scale_writes: Family<ResultLabel, Counter>,
    failed_reads: Family<KindLabel, Counter>,
}

impl WakeMetrics {
    /// New families, registered in `registry`.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            wake_ups: Counter::default(),
            seconds: Family::new_with_constructor(|| {
                Histogram::new([0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0])
            }),
            scale_writes: Family::default(),
            failed_reads: Family::default(),
        };
        let help = "Sleeping models that were woken, because a request waited at their scheduler";
        registry.register("wva_wake_ups", help, metrics.wake_ups.clone());
        let help = "Time from seeing the waiting request until the number was published, and from then until the scale was written";
        registry.register("wva_wake_seconds", help, metrics.seconds.clone());
        let help = "Writes of scale subresources to wake variants, by result: scaled, left (it has been scaled or is gone), failed";
        registry.register("wva_wake_scale_writes", help, metrics.scale_writes.clone());
        let help = "Reads of the queue of a scheduler whose model sleeps that failed, by kind";
        registry.register("wva_queue_read_errors", help, metrics.failed_reads.clone());
        metrics
    }

    /// The number of a woken model was published, so long after the waiting request was seen.
    pub fn published(&self, after: Duration) {
        self.wake_ups.inc();
        self.observe("published", after);
    }

    /// A scale was written, so long after the number was published.
    pub fn scaled(&self, after: Duration) {
        self.scale_written("scaled");
        self.observe("scaled", after);
    }

    /// A scale was not written: `left` as it is, or `failed`.
    pub fn scale_written(&self, result: &'static str) {
        self.scale_writes.get_or_create(&ResultLabel { result }).inc();
    }

    /// A queue could not be read.
    pub fn read_failed(&self, kind: &'static str) {
        self.failed_reads.get_or_create(&KindLabel { kind }).inc();
    }

    fn observe(&self, until: &'static str, after: Duration) {
        self.seconds.get_or_create(&UntilLabel { until }).observe(after.as_secs_f64());
    }
}
