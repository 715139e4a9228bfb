//! Around every request: its name in all logs, its count and duration, and the headers that every answer has.

use std::any::Any;
use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::panic::AssertUnwindSafe;

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures::FutureExt as _;
use http::header::CACHE_CONTROL;
use http::{HeaderMap, HeaderValue};
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
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
use super::status::{Reason, Status};

/// The longest `Audit-Id` taken over from a caller; a UUID has 36 characters.
const MAX_AUDIT_ID: usize = 64;

/// Duration buckets in seconds: 15, from 0.1 ms (a read from memory) doubling to 1.6 s (one that waited).
const BUCKETS: (f64, f64, u16) = (0.000_1, 2.0, 15);

/// The pattern that a path matched, if any: the router's own, because a copy a request would cost more than counting it.
#[derive(Debug, Clone)]
struct Pattern(Option<MatchedPath>);

impl Pattern {
    fn as_str(&self) -> &str {
        self.0.as_ref().map_or("other", MatchedPath::as_str)
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Pattern {}

impl Hash for Pattern {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl EncodeLabelValue for Pattern {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), fmt::Error> {
        self.as_str().encode(encoder)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answered {
    route: Pattern,
    code: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Route {
    route: Pattern,
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

/// The name of one request in the logs of all servers that it passes: visible ASCII.
#[derive(Debug, Clone)]
pub(crate) struct AuditId(pub(crate) HeaderValue);

impl AuditId {
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let usable = |id: &&HeaderValue| {
            !id.is_empty() && id.len() <= MAX_AUDIT_ID && id.as_bytes().iter().all(u8::is_ascii_graphic)
        };
        Self(headers.get(AUDIT_ID).filter(usable).cloned().unwrap_or_else(random_id))
    }

    fn as_str(&self) -> &str {
        self.0.to_str().unwrap_or_default()
    }
}

/// Shaped like a UUID. Unique enough for logs; not a secret.
fn random_id() -> HeaderValue {
    let bits = || RandomState::new().build_hasher().finish();
    let mut rest = u128::from(bits()) << 64 | u128::from(bits());
    let id = b"xxxxxxxx-xxxx-4xxx-axxx-xxxxxxxxxxxx".map(|letter| {
        let digit = b"0123456789abcdef"[(rest & 0xf) as usize];
        rest >>= if letter == b'x' { 4 } else { 0 };
        if letter == b'x' { digit } else { letter }
    });
    HeaderValue::from_bytes(&id).unwrap_or(HeaderValue::from_static("none"))
}

/// The outermost layer.
pub(crate) async fn request(State(state): State<AppState>, mut request: Request, next: Next) -> Response {
    let started = Instant::now();
    let audit = AuditId::of(request.headers());
    request.extensions_mut().insert(audit.clone());
    let route = Pattern(request.extensions().get::<MatchedPath>().cloned());
    let (method, uri) = (request.method().clone(), request.uri().clone());
    let wire = represent::Wire::of(request.headers());
    let answer = AssertUnwindSafe(next.run(request)).catch_unwind().await;
    let mut answer = wire.finish(answer.unwrap_or_else(|panic| panicked(&*panic))).await;
    let headers = answer.headers_mut();
    headers.insert(AUDIT_ID, audit.0.clone());
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-cache, private"));
    let (code, took) = (answer.status().as_u16(), started.elapsed());
    let metrics = state.request_metrics();
    metrics.total.get_or_create(&Answered { route: route.clone(), code }).inc();
    metrics.duration.get_or_create(&Route { route }).observe(took.as_secs_f64());
    tracing::debug!(%method, path = uri.path(), code, took_us = took.as_micros(), audit_id = audit.as_str(), "answered");
    answer
}

/// A panic costs its own request and nothing else.
fn panicked(panic: &(dyn Any + Send)) -> Response {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or_default();
    tracing::error!(panic = text, "a request handler panicked; this is a bug");
    Status::new(Reason::InternalError, "this request hit a bug of the server; its log says more")
        .into_response()
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
