//! Requests to the API server, under the names that Kubernetes clients use.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// `<error>` where there was no answer.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    code: String,
    method: String,
    host: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DurationLabels {
    verb: String,
    host: String,
}

/// Metrics of requests to the API server. Its clones share the families.
#[derive(Debug, Clone)]
pub struct ApiRequestMetrics {
    requests: Family<RequestLabels, Counter>,
    duration: Family<DurationLabels, Histogram, fn() -> Histogram>,
}

impl Default for ApiRequestMetrics {
    fn default() -> Self {
        // The buckets of Kubernetes' own clients: from a read of a cache to a request that times out.
        let histogram: fn() -> Histogram =
            || Histogram::new([0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0]);
        Self { requests: Family::default(), duration: Family::new_with_constructor(histogram) }
    }
}

impl ApiRequestMetrics {
    /// Registers the families in `registry`.
    pub fn register(&self, registry: &mut Registry) {
        let help = "Number of HTTP requests, partitioned by status code, method, and host";
        registry.register("rest_client_requests", help, self.requests.clone());
        let help = "Request latency in seconds until the head of the answer, by verb and host";
        registry.register("rest_client_request_duration_seconds", help, self.duration.clone());
    }

    /// The host answered a request with `code` after `took`, or not at all.
    pub fn observe(&self, method: &str, host: &str, code: Option<u16>, took: Duration) {
        let (method, host) = (method.to_owned(), host.to_owned());
        let code = code.map_or_else(|| "<error>".to_owned(), |code| code.to_string());
        self.duration
            .get_or_create(&DurationLabels { verb: method.clone(), host: host.clone() })
            .observe(took.as_secs_f64());
        self.requests.get_or_create(&RequestLabels { code, method, host }).inc();
    }
}
