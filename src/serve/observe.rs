//! Around every request: its name in all logs, its count and duration, and the headers that every answer has.

use std::fmt::Write as _;
use std::hash::{BuildHasher, Hasher, RandomState};

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::header::CACHE_CONTROL;
use http::{HeaderMap, HeaderValue};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use tokio::time::Instant;
use wva_core::units::Seconds;

use super::discovery::CUSTOM_GROUP;
use super::external_metrics::metric::GROUP;
use super::forward::AUDIT_ID;
use super::represent;
use super::state::AppState;

/// The longest `Audit-Id` taken over from a caller; a UUID has 36 characters.
const MAX_AUDIT_ID: usize = 64;

/// Duration buckets in seconds: 15, from 0.1 ms (a read from memory) doubling to 1.6 s (one that waited).
const BUCKETS: (f64, f64, u16) = (0.000_1, 2.0, 15);

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answered {
    route: String,
    code: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Route {
    route: String,
}

/// Our own families about requests. Bounded: a route is a pattern, never a path.
#[derive(Debug, Clone)]
pub(crate) struct RequestMetrics {
    total: Family<Answered, Counter>,
    duration: Family<Route, Histogram, fn() -> Histogram>,
}

impl RequestMetrics {
    pub(crate) fn registered(registry: &mut Registry) -> Self {
        let histogram: fn() -> Histogram =
            || Histogram::new(exponential_buckets(BUCKETS.0, BUCKETS.1, BUCKETS.2));
        let (total, duration) = (Family::default(), Family::new_with_constructor(histogram));
        let metrics = Self { total, duration };
        registry.register(
            "wva_http_requests",
            "Requests answered, by route and status",
            metrics.total.clone(),
        );
        let help = "Time from a request's head to its answer, by route";
        registry.register("wva_http_request_duration_seconds", help, metrics.duration.clone());
        metrics
    }
}

/// Age buckets in seconds: 20, from 1 s by the factor 1.364 to 364 s (more than the longest `--max-stale` that makes
/// sense). The name and the buckets are those of other metrics servers, whose dashboards show this one too.
const AGES: (f64, f64, u16) = (1.0, 1.364, 20);

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Group {
    group: &'static str,
}

/// How old the evidence was in each item that was answered.
#[derive(Debug, Clone)]
pub(crate) struct Freshness {
    groups: [(&'static str, Histogram); 2],
}

impl Freshness {
    pub(crate) fn registered(registry: &mut Registry) -> Self {
        let histogram: fn() -> Histogram = || Histogram::new(exponential_buckets(AGES.0, AGES.1, AGES.2));
        let family: Family<Group, Histogram, fn() -> Histogram> = Family::new_with_constructor(histogram);
        let help = "Age of the evidence of each item answered, by API group";
        registry.register("metrics_apiserver_metric_freshness_seconds", help, family.clone());
        // Made here once: a read looks no series up.
        let of = |group| (group, family.get_or_create(&Group { group }).clone());
        Self { groups: [GROUP, CUSTOM_GROUP].map(of) }
    }

    /// Notes the ages of what was answered in `group`.
    pub(crate) fn observe(&self, group: &str, ages: impl Iterator<Item = Seconds>) {
        if let Some((_, histogram)) = self.groups.iter().find(|(own, _)| *own == group) {
            ages.for_each(|age| histogram.observe(age.get()));
        }
    }
}

/// The name of one request in the logs of all servers that it passes.
#[derive(Debug, Clone)]
pub(crate) struct AuditId(pub(crate) String);

impl AuditId {
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let given = headers.get(AUDIT_ID).and_then(|value| value.to_str().ok());
        let usable = |id: &&str| {
            !id.is_empty() && id.len() <= MAX_AUDIT_ID && id.bytes().all(|b| b.is_ascii_graphic())
        };
        Self(given.filter(usable).map_or_else(random_id, str::to_owned))
    }
}

/// Shaped like a UUID. Unique enough for logs; not a secret.
fn random_id() -> String {
    let bits = || RandomState::new().build_hasher().finish();
    let (a, b) = (bits(), bits());
    let mut id = String::with_capacity(36);
    let _ = write!(id, "{:08x}-{:04x}-4{:03x}", a >> 32, (a >> 16) & 0xffff, a & 0xfff);
    let _ = write!(id, "-a{:03x}-{:012x}", (b >> 48) & 0xfff, b & 0xffff_ffff_ffff);
    id
}

/// The outermost layer.
pub(crate) async fn request(State(state): State<AppState>, mut request: Request, next: Next) -> Response {
    let started = Instant::now();
    let audit = AuditId::of(request.headers());
    request.extensions_mut().insert(audit.clone());
    let matched = request.extensions().get::<MatchedPath>();
    let route = matched.map_or_else(|| "other".to_owned(), |matched| matched.as_str().to_owned());
    let (method, uri) = (request.method().clone(), request.uri().clone());
    let wire = represent::Wire::of(request.headers());
    let mut answer = wire.finish(next.run(request).await).await;
    let headers = answer.headers_mut();
    if let Ok(id) = HeaderValue::from_str(&audit.0) {
        headers.insert(AUDIT_ID, id);
    }
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-cache, private"));
    let (code, took) = (answer.status().as_u16(), started.elapsed());
    let metrics = state.request_metrics();
    metrics.total.get_or_create(&Answered { route: route.clone(), code }).inc();
    metrics.duration.get_or_create(&Route { route }).observe(took.as_secs_f64());
    tracing::debug!(%method, path = uri.path(), code, took_us = took.as_micros(), audit_id = audit.0, "answered");
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_keeps_its_audit_id_and_gets_one_when_it_has_none() {
        let given = |id: &'static str| {
            AuditId::of(&HeaderMap::from_iter([(AUDIT_ID, HeaderValue::from_static(id))])).0
        };
        assert_eq!(given("8d0f1a52"), "8d0f1a52");
        let (one, two) = (AuditId::of(&HeaderMap::new()).0, given("two words"));
        assert_eq!((one.len(), two.len()), (36, 36));
        assert_ne!(one, two);
    }
}
