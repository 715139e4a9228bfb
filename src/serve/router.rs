//! Which path is answered by whom, and through which gate.

use std::any::Any;

use axum::extract::{RawPathParams, Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use axum::{RequestExt, Router};
use tokio::sync::OwnedSemaphorePermit;
use tower_http::catch_panic::CatchPanicLayer;

use super::admin::{health, snapshots};
use super::auth::layers;
use super::state::AppState;
use super::status::{Reason, Status};
use super::tls::UntilSent;
use super::{admin, custom_metrics, discovery, external_metrics, forward, observe};

/// Where the namespaces of the external metrics begin.
pub(crate) const NAMESPACES: &str = "/apis/external.metrics.k8s.io/v1beta1/namespaces/";

/// Every route. Each group of routes has its own gate, which is passed before the method is looked at.
pub fn router(state: AppState) -> Router {
    let catch = CatchPanicLayer::custom(panicked);
    Router::new()
        .merge(open_to_all())
        .merge(public(&state))
        .merge(metrics(&state))
        .merge(snapshots(&state))
        .merge(data(&state))
        .merge(instances(&state))
        .layer(catch)
        .layer(from_fn_with_state(state.clone(), observe::request))
        .with_state(state)
}

/// Health: the kubelet shows no credential.
fn open_to_all() -> Router<AppState> {
    ["/livez", "/readyz", "/healthz"].into_iter().fold(Router::new(), |router, path| {
        let one = get(health::one).fallback(method_not_allowed);
        router
            .route(path, get(health::all).fallback(method_not_allowed))
            .route(&format!("{path}/{{check}}"), one)
    })
}

async fn method_not_allowed() -> Status {
    Status::method_not_allowed()
}

/// Discovery, and the answer to everything that is not there.
fn public(state: &AppState) -> Router<AppState> {
    let gate = from_fn_with_state(state.clone(), layers::discovery);
    Router::new()
        .route("/", any(discovery::root))
        .route("/version", any(discovery::version_info))
        .route("/apis", any(discovery::groups))
        .route("/apis/", any(discovery::groups))
        .route("/apis/external.metrics.k8s.io", any(discovery::external))
        .route("/apis/external.metrics.k8s.io/v1beta1", any(discovery::external_v1beta1))
        .route("/apis/custom.metrics.k8s.io", any(discovery::custom))
        .route("/apis/custom.metrics.k8s.io/v1beta1", any(discovery::custom_v1beta1))
        .route("/apis/custom.metrics.k8s.io/v1beta2", any(discovery::custom_v1beta2))
        .route("/openapi/v2", any(discovery::openapi_v2))
        .route("/openapi/v3", any(discovery::openapi_v3))
        .route("/openapi/v3/apis/external.metrics.k8s.io/v1beta1", any(discovery::openapi_external_v1beta1))
        .route("/openapi/v3/apis/custom.metrics.k8s.io/v1beta1", any(discovery::openapi_custom_v1beta1))
        .route("/openapi/v3/apis/custom.metrics.k8s.io/v1beta2", any(discovery::openapi_custom_v1beta2))
        .route(&format!("{}{{version}}/{{*rest}}", custom_metrics::PREFIX), any(custom_metrics::elsewhere))
        .fallback(discovery::nothing_here)
        .layer(gate)
}

fn metrics(state: &AppState) -> Router<AppState> {
    let gate = from_fn_with_state(state.clone(), layers::metrics);
    Router::new()
        .route("/metrics", any(admin::metrics))
        .route_layer(gate)
        .route_layer(from_fn_with_state(state.clone(), bounded_scrapes))
}

fn snapshots(state: &AppState) -> Router<AppState> {
    let gate = from_fn_with_state(state.clone(), layers::snapshots);
    Router::new()
        .route(snapshots::LIST, any(snapshots::list))
        .route(snapshots::LATEST, any(snapshots::latest))
        .route(snapshots::ALL, any(snapshots::all))
        .route_layer(gate)
        .route_layer(from_fn_with_state(state.clone(), bounded_looks))
}

fn data(state: &AppState) -> Router<AppState> {
    let gate = from_fn_with_state(state.clone(), layers::data);
    Router::new()
        .route(&format!("{NAMESPACES}{{namespace}}/{{metric}}"), any(external_metrics::get))
        .route_layer(gate)
        .merge(object_data(state))
        .route_layer(from_fn_with_state(state.clone(), bounded))
}

fn object_data(state: &AppState) -> Router<AppState> {
    let gate = from_fn_with_state(state.clone(), layers::object_data);
    let path = format!("{}{}", custom_metrics::PREFIX, custom_metrics::PATTERN);
    Router::new().route(&path, any(custom_metrics::get)).route_layer(gate)
}

fn instances(state: &AppState) -> Router<AppState> {
    let gate = from_fn_with_state(state.clone(), forward::instances);
    Router::new()
        .route(&format!("{}{{namespace}}/{{metric}}", forward::EXTERNAL), any(forward::external))
        .route(&format!("{}{}", forward::CUSTOM, custom_metrics::PATTERN), any(forward::custom))
        .route_layer(gate)
        .route_layer(from_fn_with_state(state.clone(), bounded))
}

/// Refuses a read at once when too many wait or are being sent. Discovery and health are not counted.
async fn bounded(State(state): State<AppState>, mut request: Request, next: Next) -> Response {
    match state.place() {
        Some(place) => until_sent(place, next.run(request).await),
        None => {
            let path = request.extract_parts::<RawPathParams>().await;
            too_many_reads(path.ok().as_ref()).into_response()
        }
    }
}

/// The refusal, with what was asked for as far as that can be a name.
fn too_many_reads(path: Option<&RawPathParams>) -> Status {
    let part = |name: &str| {
        let mut parts = path.into_iter().flatten();
        let named = parts.find(|(own, value)| *own == name && value.len() <= layers::MAX_NAME);
        named.map(|(_, value)| value.to_owned())
    };
    let refusal = "too many reads are waiting on this server; ask again later";
    let (Some(namespace), Some(metric)) = (part("namespace"), part("metric")) else {
        return Status::new(Reason::TooManyRequests, refusal);
    };
    let (group, name, of) = match (part("resource"), part("name")) {
        (Some(resource), Some(name)) => {
            let of = format!(" of {resource} {name}");
            (custom_metrics::GROUP, name, of)
        }
        _ => (external_metrics::metric::GROUP, String::new(), String::new()),
    };
    let message = format!("{metric}{of} in namespace {namespace} cannot be read now: {refusal}");
    Status::new(Reason::TooManyRequests, message).about(group, metric, name)
}

/// The same for looks at the metrics.
async fn bounded_scrapes(State(state): State<AppState>, request: Request, next: Next) -> Response {
    let refusal = "too many others look at the metrics of this server; ask again later";
    match state.scrape() {
        Some(place) => until_sent(place, next.run(request).await),
        None => Status::new(Reason::TooManyRequests, refusal).into_response(),
    }
}

/// The same for looks at the snapshots.
async fn bounded_looks(State(state): State<AppState>, request: Request, next: Next) -> Response {
    let refusal = "others look at the snapshots of this server already; ask again later";
    match state.look() {
        Some(place) => until_sent(place, next.run(request).await),
        None => Status::new(Reason::TooManyRequests, refusal).into_response(),
    }
}

/// An answer that nobody takes fills memory as one that is being made does: it keeps its place.
fn until_sent(place: OwnedSemaphorePermit, mut answer: Response) -> Response {
    answer.extensions_mut().insert(UntilSent::new(place));
    answer
}

/// A panic costs its own request and nothing else.
#[expect(clippy::needless_pass_by_value, reason = "the signature that tower-http asks for")]
fn panicked(panic: Box<dyn Any + Send + 'static>) -> Response {
    let text = panic.downcast_ref::<&str>().copied().map(str::to_owned);
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
    tracing::error!(panic = text, "a request handler panicked; this is a bug");
    Status::new(Reason::InternalError, "this request hit a bug of the server; its log says more")
        .into_response()
}
