//! Metrics about requests: how many there were, how long they took, and how old the evidence of their answers was.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::time::Duration;

use axum::extract::MatchedPath;
use jiff::Timestamp;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use wva_core::units::Seconds;

use super::paths::{CUSTOM_GROUP, EXTERNAL_GROUP};

/// The route that a path matched, if any. Holds the router's own text: a copy per request would cost more than counting it.
#[derive(Debug, Clone)]
pub(crate) struct Route(pub(crate) Option<MatchedPath>);

impl Route {
    fn as_str(&self) -> &str {
        self.0.as_ref().map_or("other", MatchedPath::as_str)
    }
}

impl PartialEq for Route {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Route {}

impl Hash for Route {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl EncodeLabelValue for Route {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), fmt::Error> {
        self.as_str().encode(encoder)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    route: Route,
    code: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DurationLabels {
    route: Route,
}

/// Metrics about requests. Bounded, since a route is a pattern and never a path.
#[derive(Debug, Clone)]
pub(crate) struct RequestMetrics {
    total: Family<RequestLabels, Counter>,
    duration: Family<DurationLabels, Histogram, fn() -> Histogram>,
}

impl RequestMetrics {
    pub(crate) fn register(registry: &mut Registry) -> Self {
        // From 0.1 ms (a read from memory) to 1.6 s (a read that waited).
        let histogram: fn() -> Histogram = || Histogram::new(exponential_buckets(0.000_1, 2.0, 15));
        let metrics = Self { total: Family::default(), duration: Family::new_with_constructor(histogram) };
        let help = "Requests answered, by route and status code";
        registry.register("wva_http_requests", help, metrics.total.clone());
        let help = "Time from a request's head to its answer, by route";
        registry.register("wva_http_request_duration_seconds", help, metrics.duration.clone());
        metrics
    }

    pub(crate) fn observe(&self, route: Route, code: u16, took: Duration) {
        self.total.get_or_create(&RequestLabels { route: route.clone(), code }).inc();
        self.duration.get_or_create(&DurationLabels { route }).observe(took.as_secs_f64());
    }
}

/// A histogram of how old the evidence of each answered item was.
#[derive(Debug, Clone)]
pub(crate) struct EvidenceAge {
    pub(crate) external: Histogram,
    pub(crate) custom: Histogram,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct GroupLabel {
    group: &'static str,
}

impl EvidenceAge {
    pub(crate) fn register(registry: &mut Registry) -> Self {
        // From 1 s to 364 s, which is more than any useful `--max-stale`. Name and buckets are those of metrics-server, so that
        // its dashboards work.
        let buckets = || Histogram::new(exponential_buckets(1.0, 1.364, 20));
        let family = Family::<GroupLabel, Histogram, _>::new_with_constructor(buckets);
        let help = "Age of the evidence of each answered item, by API group";
        registry.register("metrics_apiserver_metric_freshness_seconds", help, family.clone());
        // Looked up once, not for every read.
        let histogram = |group| family.get_or_create(&GroupLabel { group }).clone();
        Self { external: histogram(EXTERNAL_GROUP), custom: histogram(CUSTOM_GROUP) }
    }
}

/// Notes how old the evidence of each answered item is.
pub(crate) fn observe_ages(histogram: &Histogram, evidence: impl Iterator<Item = Timestamp>, now: Timestamp) {
    evidence.for_each(|evidence| histogram.observe(Seconds::between(evidence, now).get()));
}
