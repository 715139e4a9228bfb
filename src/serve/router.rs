//! The routes, who may use them, and how many requests each kind may have at once.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Extension, Path, RawPathParams, Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use axum::{RequestPartsExt, Router};
use http::request::Parts;
use tokio::task::spawn_blocking;

use super::admin::{self, AdminState, health, snapshots};
use super::auth::{Attributes, AuthState, admit_discovery, authenticate_discovery, authorize};
use super::custom_metrics::{self, RootRead};
use super::data_read::ReadState;
use super::decisions;
use super::discovery;
use super::encoding::negotiation::accepts_gzip;
use super::encoding::{Reason, Status, internal_error};
use super::explanations::{ExplanationState, ObjectPath as ExplanationPath};
use super::external_metrics::{self, MetricRead};
use super::forward::{ForwarderVerifier, InstanceVerifier};
use super::installations::Installations;
use super::middleware::{AuditId, observe_request};
use super::paths::{
    ALL_SNAPSHOTS, ANSWERED_BY, CUSTOM_GROUP, CUSTOM_OBJECT, CUSTOM_PREFIX, DECISIONS, EXPLANATION,
    EXPLANATION_LIST, EXPLANATIONS, EXPLANATIONS_PREFIX, EXTERNAL_GROUP, EXTERNAL_METRIC,
    EXTERNAL_NAMESPACES, INSTALLATION, INSTALLATION_CUSTOM, INSTALLATION_EXTERNAL, INTERNAL_CUSTOM,
    INTERNAL_CUSTOM_VALUES, INTERNAL_DECISIONS, INTERNAL_EXPLANATIONS, INTERNAL_EXTERNAL,
    INTERNAL_EXTERNAL_VALUES, LATEST_SNAPSHOT, MAX_NAME_BYTES, METRICS, SNAPSHOTS, USAGE_PREFIX,
};
use super::resource_metrics::UsagePath;
use super::state::AppState;
use super::tls::AnswerPermit;

/// All routes. Every request is authorised before its method is looked at. Discovery and snapshots are authorised by a layer,
/// reads of metrics in their handlers: axum clones all that is behind a layer for each request, and reads are by far the
/// most frequent.
pub(crate) fn router(state: AppState) -> Router {
    Router::new()
        .merge(health_routes())
        .merge(discovery_routes(&state))
        .merge(snapshot_routes(&state))
        .merge(metric_routes())
        .merge(usage_routes(&state))
        .merge(explanation_routes())
        .layer(from_fn_with_state(state.clone(), observe_request))
        .with_state(state)
}

/// Health needs no authorisation: the kubelet has no credentials.
fn health_routes() -> Router<AppState> {
    ["/livez", "/readyz", "/healthz"].into_iter().fold(Router::new(), |router, path| {
        router
            .route(path, get(health::all).fallback(method_not_allowed))
            .route(&format!("{path}/{{check}}"), get(health::single).fallback(method_not_allowed))
    })
}

async fn method_not_allowed() -> Status {
    Status::method_not_allowed()
}

/// Discovery, and the answer to every unknown path.
fn discovery_routes(state: &AppState) -> Router<AppState> {
    let reads = &state.0.reads;
    let rules = reads.rules.as_ref().map(|reads| Arc::clone(&reads.rules));
    let fallback = reads.fallback.as_ref().map(|reads| Arc::clone(&reads.server));
    discovery::routes(rules, fallback).layer(from_fn_with_state(state.clone(), authenticate_discovery))
}

fn metric_routes() -> Router<AppState> {
    Router::new()
        .route(METRICS, any(own_metrics))
        .route(DECISIONS, any(all_decisions))
        .route(&format!("{EXTERNAL_NAMESPACES}{EXTERNAL_METRIC}"), any(read::<external_metrics::Read>))
        .route(&format!("{CUSTOM_PREFIX}{CUSTOM_OBJECT}"), any(read::<custom_metrics::Read>))
        .route(&format!("{CUSTOM_PREFIX}{{version}}/{{*rest}}"), any(read_root))
        .route(
            &format!("{INTERNAL_EXTERNAL}{EXTERNAL_METRIC}"),
            any(read_for_instance::<external_metrics::Read>),
        )
        .route(&format!("{INTERNAL_CUSTOM}{CUSTOM_OBJECT}"), any(read_for_instance::<custom_metrics::Read>))
        .route(
            &format!("{INTERNAL_EXTERNAL_VALUES}{EXTERNAL_METRIC}"),
            any(values_for_instance::<external_metrics::Read>),
        )
        .route(
            &format!("{INTERNAL_CUSTOM_VALUES}{CUSTOM_OBJECT}"),
            any(values_for_instance::<custom_metrics::Read>),
        )
        .route(
            &format!("{INSTALLATION_EXTERNAL}{EXTERNAL_METRIC}"),
            any(values_for_installation::<external_metrics::Read>),
        )
        .route(
            &format!("{INSTALLATION_CUSTOM}{CUSTOM_OBJECT}"),
            any(values_for_installation::<custom_metrics::Read>),
        )
        .route(INTERNAL_DECISIONS, any(all_decisions_for_instance))
}

/// Processor time and memory, where these are served.
fn usage_routes(state: &AppState) -> Router<AppState> {
    let is_served = state.0.reads.rules.as_ref().is_some_and(|reads| reads.rules.serves_usage());
    let router = Router::new();
    if is_served { router.route(&format!("{USAGE_PREFIX}{{*rest}}"), any(usage)) } else { router }
}

fn explanation_routes() -> Router<AppState> {
    let public = |path: &str| format!("{EXPLANATIONS_PREFIX}{path}");
    let internal = |path: &str| format!("{INTERNAL_EXPLANATIONS}{path}");
    Router::new()
        .route(&public(EXPLANATIONS), any(all_explanations))
        .route(&public(EXPLANATION_LIST), any(explanations))
        .route(&public(EXPLANATION), any(explanations))
        .route(&internal(EXPLANATIONS), any(all_explanations_for_instance))
        .route(&internal(EXPLANATION_LIST), any(explanations_for_instance))
        .route(&internal(EXPLANATION), any(explanations_for_instance))
}

fn snapshot_routes(state: &AppState) -> Router<AppState> {
    Router::new()
        .route(SNAPSHOTS, any(snapshots::list))
        .route(LATEST_SNAPSHOT, any(snapshots::latest))
        .route(ALL_SNAPSHOTS, any(snapshots::all))
        .route_layer(from_fn_with_state(state.clone(), admit_snapshot_request))
}

/// The parsed path of a request; an error when it is not UTF-8.
type ParsedPath<T> = Result<Path<T>, PathRejection>;

fn valid<T>(path: ParsedPath<T>) -> Result<T, Status> {
    path.map(|Path(path)| path).map_err(|_| Status::invalid_path())
}

async fn own_metrics(
    State(auth): State<Arc<AuthState>>,
    State(admin): State<Arc<AdminState>>,
    request: Request,
) -> Response {
    let Some(permit) = admin.metrics_permits.acquire() else {
        let message = "too many clients are reading this server's metrics; retry later";
        return Status::new(Reason::TooManyRequests, message).into_response();
    };
    let mut request = request.into_parts().0;
    let attributes = Attributes::Path { verb: "get", path: METRICS };
    match authorize(&auth, &mut request, &attributes).await {
        Ok(()) => {
            // Not on the threads that answer reads: thousands of variants take tens of milliseconds. The permit stays with the
            // thread if the client goes away.
            let gzip = accepts_gzip(&request.headers);
            match spawn_blocking(move || (admin::metrics(&admin, gzip), permit)).await {
                Ok((answer, permit)) => hold_permit(permit, answer),
                Err(failure) => internal_error(&failure).into_response(),
            }
        }
        Err(error) => error.into_response(),
    }
}

/// A read of a client.
async fn read<R: MetricRead>(
    State(auth): State<Arc<AuthState>>,
    State(reads): State<Arc<ReadState>>,
    State(installations): State<Arc<Installations>>,
    path: ParsedPath<R::Path>,
    Extension(audit): Extension<AuditId>,
    request: Request,
) -> Response {
    limit_reads(&reads, request, async |mut request| {
        let path = valid(path)?;
        let attributes = R::attributes(&path, &request)?;
        authorize(&auth, &mut request, &attributes).await?;
        if let Some(answer) = R::beside_variants((&request, &audit), &path, &reads).await {
            return answer;
        }
        let read = R::parse(&request, path)?;
        installations.answer(&reads, &request, &audit, &read).await
    })
    .await
}

/// A read of a metric of objects without a namespace, which only rules make; or a path that is none.
async fn read_root(
    State(auth): State<Arc<AuthState>>,
    State(reads): State<Arc<ReadState>>,
    path: ParsedPath<(String, String)>,
    request: Request,
) -> Response {
    let path = match valid(path) {
        Ok(path) => path,
        Err(error) => return error.into_response(),
    };
    if let (Some(read), Some(rules)) = (RootRead::find(&path.0, &path.1), &reads.rules) {
        return limit_reads(&reads, request, async |mut request| {
            let attributes = read.attributes(&request);
            authorize(&auth, &mut request, &attributes).await?;
            read.answer(&request, rules, reads.reader.now()).await
        })
        .await;
    }
    let mut request = request.into_parts().0;
    match admit_discovery(&auth, &mut request).await {
        Ok(()) => custom_metrics::unknown_path(&path.0, &path.1).into_response(),
        Err(error) => error.into_response(),
    }
}

/// A read of processor time and memory.
async fn usage(
    State(auth): State<Arc<AuthState>>,
    State(reads): State<Arc<ReadState>>,
    path: ParsedPath<String>,
    request: Request,
) -> Response {
    limit_reads(&reads, request, async |mut request| {
        let read = UsagePath::find(&valid(path)?).ok_or_else(Status::no_such_resource)?;
        let attributes = read.attributes(&request);
        authorize(&auth, &mut request, &attributes).await?;
        let rules = reads.rules.as_ref().ok_or_else(Status::no_such_resource)?;
        read.answer(&request, rules, reads.reader.now()).await
    })
    .await
}

async fn all_decisions(
    State(auth): State<Arc<AuthState>>,
    State(reads): State<Arc<ReadState>>,
    Extension(audit): Extension<AuditId>,
    request: Request,
) -> Response {
    limit_reads(&reads, request, async |mut request| {
        authorize(&auth, &mut request, &Attributes::Path { verb: "get", path: DECISIONS }).await?;
        reads.answer(&request, &audit, |published| decisions::render(&reads, published)).await
    })
    .await
}

/// A read that another instance forwards.
async fn read_for_instance<R: MetricRead>(
    State(instances): State<Arc<InstanceVerifier>>,
    State(reads): State<Arc<ReadState>>,
    path: ParsedPath<R::Path>,
    request: Request,
) -> Response {
    limit_reads(&reads, request, async |request| {
        instances.authorize(&request).await?;
        let read = R::parse(&request, valid(path)?);
        reads.answer_instance(read, |read, published| read.render(&reads, published)).await
    })
    .await
}

/// A read of another installation that another instance forwards.
async fn values_for_instance<R: MetricRead>(
    State(instances): State<Arc<InstanceVerifier>>,
    State(reads): State<Arc<ReadState>>,
    path: ParsedPath<R::Path>,
    request: Request,
) -> Response {
    limit_reads(&reads, request, async |request| {
        instances.authorize(&request).await?;
        let read = R::parse(&request, valid(path)?);
        reads.answer_instance(read, |read, published| read.render_values(&reads, published)).await
    })
    .await
}

/// A read of another installation, which has authorised its client. Answered from own variants only.
async fn values_for_installation<R: MetricRead>(
    State(forwarder): State<Arc<ForwarderVerifier>>,
    State(reads): State<Arc<ReadState>>,
    path: ParsedPath<R::Path>,
    Extension(audit): Extension<AuditId>,
    request: Request,
) -> Response {
    limit_reads(&reads, request, async |request| {
        forwarder.authorize(&request).await?;
        let answer = match R::parse(&request, valid(path)?) {
            Ok(read) => {
                reads.answer(&request, &audit, |published| read.render_values(&reads, published)).await
            }
            Err(error) => Err(error),
        };
        let mut answer = answer.into_response();
        answer.headers_mut().insert(ANSWERED_BY, INSTALLATION);
        Ok(answer)
    })
    .await
}

async fn all_decisions_for_instance(
    State(instances): State<Arc<InstanceVerifier>>,
    State(reads): State<Arc<ReadState>>,
    request: Request,
) -> Response {
    limit_reads(&reads, request, async |request| {
        instances.authorize(&request).await?;
        reads.answer_instance(Ok(()), |(), published| decisions::render(&reads, published)).await
    })
    .await
}

async fn explanations(
    State(auth): State<Arc<AuthState>>,
    State(reads): State<Arc<ReadState>>,
    State(explanations): State<Arc<ExplanationState>>,
    path: ParsedPath<ExplanationPath>,
    Extension(audit): Extension<AuditId>,
    request: Request,
) -> Response {
    let request = request.into_parts().0;
    explanations.answer((&auth, &reads), &audit, valid(path), request).await.into_response()
}

async fn all_explanations(
    State(auth): State<Arc<AuthState>>,
    State(reads): State<Arc<ReadState>>,
    State(explanations): State<Arc<ExplanationState>>,
    Extension(audit): Extension<AuditId>,
    request: Request,
) -> Response {
    let (path, request) = (Ok(ExplanationPath::default()), request.into_parts().0);
    explanations.answer((&auth, &reads), &audit, path, request).await.into_response()
}

async fn explanations_for_instance(
    State(instances): State<Arc<InstanceVerifier>>,
    State(reads): State<Arc<ReadState>>,
    State(explanations): State<Arc<ExplanationState>>,
    path: ParsedPath<ExplanationPath>,
    request: Request,
) -> Response {
    let request = request.into_parts().0;
    explanations.answer_instance((&instances, &reads), valid(path), request).await.into_response()
}

async fn all_explanations_for_instance(
    State(instances): State<Arc<InstanceVerifier>>,
    State(reads): State<Arc<ReadState>>,
    State(explanations): State<Arc<ExplanationState>>,
    request: Request,
) -> Response {
    let (path, request) = (Ok(ExplanationPath::default()), request.into_parts().0);
    explanations.answer_instance((&instances, &reads), path, request).await.into_response()
}

/// Answers a read, or rejects it at once when too many reads are waiting or being sent.
async fn limit_reads(
    reads: &ReadState,
    request: Request,
    answer: impl AsyncFnOnce(Parts) -> Result<Response, Status>,
) -> Response {
    let mut request = request.into_parts().0;
    let Some(permit) = reads.permits.acquire() else {
        let path = request.extract::<RawPathParams>().await;
        return too_many_reads(path.ok().as_ref()).into_response();
    };
    match answer(request).await {
        Ok(answer) => hold_permit(permit, answer),
        // An error is small, so a client that does not take it holds no permit.
        Err(error) => error.into_response(),
    }
}

/// The error, with the requested metric as far as its names are valid.
fn too_many_reads(path: Option<&RawPathParams>) -> Status {
    let parameter = |name: &str| {
        let mut parameters = path.into_iter().flatten();
        let found = parameters.find(|(key, value)| *key == name && value.len() <= MAX_NAME_BYTES);
        found.map(|(_, value)| value.to_owned())
    };
    let cause = "too many reads are waiting on this server; retry later";
    let (Some(namespace), Some(metric)) = (parameter("namespace"), parameter("metric")) else {
        return Status::new(Reason::TooManyRequests, cause);
    };
    match (parameter("resource"), parameter("name")) {
        (Some(resource), Some(name)) => {
            let message =
                format!("{metric} of {resource} {name} in namespace {namespace} cannot be read now: {cause}");
            Status::new(Reason::TooManyRequests, message).about(CUSTOM_GROUP, metric, name)
        }
        _ => {
            let message = format!("{metric} in namespace {namespace} cannot be read now: {cause}");
            Status::new(Reason::TooManyRequests, message).about(EXTERNAL_GROUP, metric, "")
        }
    }
}

/// Authorises a request for snapshots and limits how many there are at once.
async fn admit_snapshot_request(
    State(auth): State<Arc<AuthState>>,
    State(admin): State<Arc<AdminState>>,
    request: Request,
    next: Next,
) -> Response {
    let (mut parts, body) = request.into_parts();
    let path = parts.uri.path();
    let path = [LATEST_SNAPSHOT, ALL_SNAPSHOTS].into_iter().find(|known| *known == path).unwrap_or(SNAPSHOTS);
    let attributes = Attributes::Path { verb: "get", path };
    // Before the permit: a caller that may not read takes none, and the number of reviews has its own limit.
    if let Err(error) = authorize(&auth, &mut parts, &attributes).await {
        return error.into_response();
    }
    let Some(permit) = admin.snapshot_permits.acquire() else {
        let message = "others are reading this server's snapshots; retry later";
        return Status::new(Reason::TooManyRequests, message).into_response();
    };
    // The handler's work goes on after its client is gone, so it holds the permit too.
    parts.extensions.insert(permit.clone());
    let mut answer = next.run(Request::from_parts(parts, body)).await;
    answer.extensions_mut().insert(permit);
    answer
}

/// Makes `answer` hold the permit until it is sent: until then it occupies memory, as one that is being computed does.
fn hold_permit(permit: AnswerPermit, mut answer: Response) -> Response {
    answer.extensions_mut().insert(permit);
    answer
}
