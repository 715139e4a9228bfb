//! Metrics of the requests to the fallback server.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CodeLabel {
    code: String,
}

/// Requests to the fallback server.
#[derive(Debug, Clone)]
pub struct FallbackMetrics {
    requests: Family<CodeLabel, Counter>,
    duration: Histogram,
    up: Gauge<f64, AtomicU64>,
}

impl FallbackMetrics {
    /// New families, registered in `registry`.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            requests: Family::default(),
            duration: Histogram::new([0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0]),
            up: Gauge::default(),
        };
        let help = "Requests to the fallback server, by status code, or by what went wrong: timeout, connect, body, refused, \
                    too_large, content_type, token, config";
        registry.register("wva_fallback_requests", help, metrics.requests.clone());
        let help = "Time of a request to the fallback server";
        registry.register("wva_fallback_request_duration_seconds", help, metrics.duration.clone());
        registry.register("wva_fallback_up", "Whether the fallback server answered last", metrics.up.clone());
        metrics
    }

    /// A request took so long, and ended with a status code or an error.
    pub fn observe(&self, code: String, took: Duration, is_up: bool) {
        self.requests.get_or_create(&CodeLabel { code }).inc();
        self.duration.observe(took.as_secs_f64());
        self.up.set(if is_up { 1.0 } else { 0.0 });
    }
}
