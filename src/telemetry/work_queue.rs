//! What waits to be written to the API server, under the names that controllers use.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    name: &'static str,
    controller: &'static str,
}

/// The queues of the program.
#[derive(Debug, Clone, Default)]
pub struct WorkQueueMetrics {
    depth: Family<Labels, Gauge>,
    adds: Family<Labels, Counter>,
    retries: Family<Labels, Counter>,
}

/// One queue. One that is not registered counts for nobody.
#[derive(Debug, Clone, Default)]
pub struct QueueMetrics {
    depth: Gauge,
    adds: Counter,
    retries: Counter,
}

impl WorkQueueMetrics {
    /// New families, registered in `registry`.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register("workqueue_depth", "Current depth of workqueue", metrics.depth.clone());
        registry.register(
            "workqueue_adds",
            "Total number of adds handled by workqueue",
            metrics.adds.clone(),
        );
        let help = "Total number of retries handled by workqueue";
        registry.register("workqueue_retries", help, metrics.retries.clone());
        metrics
    }

    /// The queue of this name.
    #[must_use]
    pub fn queue(&self, name: &'static str) -> QueueMetrics {
        let labels = Labels { name, controller: name };
        QueueMetrics {
            depth: self.depth.get_or_create_owned(&labels),
            adds: self.adds.get_or_create_owned(&labels),
            retries: self.retries.get_or_create_owned(&labels),
        }
    }
}

impl QueueMetrics {
    /// `count` items have been added.
    pub fn added(&self, count: usize) {
        self.depth.inc_by(count.try_into().unwrap_or(i64::MAX));
        self.adds.inc_by(count.try_into().unwrap_or(u64::MAX));
    }

    /// An item has been taken out.
    pub fn taken(&self) {
        self.depth.dec();
    }

    /// An item will be tried again.
    pub fn retried(&self) {
        self.retries.inc();
    }
}
