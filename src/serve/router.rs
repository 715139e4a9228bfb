//! Which path is answered by whom, and through which gate.

use axum::extract::rejection::PathRejection;
use axum::extract::{Extension, Path, RawPathParams, Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use axum::{RequestExt, Router};
use tokio::sync::OwnedSemaphorePermit;

use super::admin::{health, snapshots};
use super::auth::layers;
use super::custom_metrics::ObjectPath;
use super::observe::AuditId;
use super::state::AppState;
use super::status::{Reason, Status};
use super::tls::UntilSent;
use super::{admin, custom_metrics, discovery, external_metrics, forward, observe};

/// Where the namespaces of the external metrics begin.
pub(crate) const NAMESPACES: &str = "/apis/external.metrics.k8s.io/v1beta1/namespaces/";

/// Every route. Each group of routes has its own gate, which is passed before the method is looked at. That of discovery is
/// a layer. A read of data passes its own in its handler instead, because axum copies for each request all that is behind
/// a layer, and reads are what there are many of.
pub fn router(state: AppState) -> Router {
    Router::new()
        .merge(open_to_all())
        .merge(public(&state))
        .merge(snapshots(&state))
        .merge(behind_their_own_gates())
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

fn behind_their_own_gates() -> Router<AppState> {
    let object = custom_metrics::PATTERN;
    Router::new()
        .route("/metrics", any(metrics))
        .route(&format!("{NAMESPACES}{{namespace}}/{{metric}}"), any(data))
        .route(&format!("{}{object}", custom_metrics::PREFIX), any(object_data))
        .route(&format!("{}{{namespace}}/{{metric}}", forward::EXTERNAL), any(data_for_instances))
        .route(&format!("{}{object}", forward::CUSTOM), any(object_data_for_instances))
}

fn snapshots(state: &AppState) -> Router<AppState> {
    Router::new()
        .route(snapshots::LIST, any(snapshots::list))
        .route(snapshots::LATEST, any(snapshots::latest))
        .route(snapshots::ALL, any(snapshots::all))
        .route_layer(from_fn_with_state(state.clone(), bounded_look))
}

/// What is asked for; an error when its path is no text.
type Asked<T> = Result<Path<T>, PathRejection>;

fn understood<T>(asked: Asked<T>) -> Result<T, Status> {
    asked.map(|Path(path)| path).map_err(|_| Status::invalid_path())
}

async fn metrics(State(state): State<AppState>, mut request: Request) -> Response {
    bounded_scrape(&state, async {
        layers::metrics(&state, &mut request).await?;
        Ok(admin::metrics(&state))
    })
    .await
}

async fn data(
    State(state): State<AppState>,
    asked: Asked<(String, String)>,
    Extension(audit): Extension<AuditId>,
    request: Request,
) -> Response {
    bounded(&state, request, async |mut request| {
        let path = understood(asked)?;
        layers::data(&state, &path, &mut request).await?;
        external_metrics::get(&state, &path, &audit, request).await
    })
    .await
}

async fn object_data(
    State(state): State<AppState>,
    asked: Asked<ObjectPath>,
    Extension(audit): Extension<AuditId>,
    request: Request,
) -> Response {
    bounded(&state, request, async |mut request| {
        let path = understood(asked)?;
        layers::object_data(&state, &path, &mut request).await?;
        custom_metrics::get(&state, &path, &audit, request).await
    })
    .await
}

async fn data_for_instances(
    State(state): State<AppState>,
    asked: Asked<(String, String)>,
    request: Request,
) -> Response {
    bounded(&state, request, async |mut request| {
        forward::instances(&state, &mut request).await?;
        forward::external(&state, &understood(asked)?, request).await
    })
    .await
}

async fn object_data_for_instances(
    State(state): State<AppState>,
    asked: Asked<ObjectPath>,
    request: Request,
) -> Response {
    bounded(&state, request, async |mut request| {
        forward::instances(&state, &mut request).await?;
        forward::custom(&state, &understood(asked)?, request).await
    })
    .await
}

/// Refuses a read at once when too many wait or are being sent. Discovery and health are not counted.
async fn bounded(
    state: &AppState,
    mut request: Request,
    answer: impl AsyncFnOnce(Request) -> Result<Response, Status>,
) -> Response {
    match state.place() {
        Some(place) => match answer(request).await {
            Ok(answer) => until_sent(place, answer),
            // A refusal is small and made already: whoever leaves it lying takes nobody's place.
            Err(refused) => refused.into_response(),
        },
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
async fn bounded_scrape(
    state: &AppState,
    answer: impl Future<Output = Result<Response, Status>>,
) -> Response {
    let refusal = "too many others look at the metrics of this server; ask again later";
    match state.scrape() {
        Some(place) => match answer.await {
            Ok(answer) => until_sent(place, answer),
            Err(refused) => refused.into_response(),
        },
        None => Status::new(Reason::TooManyRequests, refusal).into_response(),
    }
}

/// The same for looks at the snapshots, and who may.
async fn bounded_look(State(state): State<AppState>, mut request: Request, next: Next) -> Response {
    let refusal = "others look at the snapshots of this server already; ask again later";
    // Who may not look takes no place; asking whether he may is bounded by itself.
    if let Err(refused) = layers::snapshots(&state, &mut request).await {
        return refused.into_response();
    }
    let Some(place) = state.look().map(UntilSent::new) else {
        return Status::new(Reason::TooManyRequests, refusal).into_response();
    };
    // Looks are work, which goes on when nobody waits for it any more: it has its place too.
    request.extensions_mut().insert(place.clone());
    let mut answer = next.run(request).await;
    answer.extensions_mut().insert(place);
    answer
}

/// An answer that nobody takes fills memory as one that is being made does: it keeps its place.
fn until_sent(place: OwnedSemaphorePermit, mut answer: Response) -> Response {
    answer.extensions_mut().insert(UntilSent::new(place));
    answer
}
