//! The gates in front of routes, from the most open to the narrowest. Health has none.

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::Method;

use super::{Access, Attributes, Caller, Chain, Unauthenticated, Undecided};
use crate::serve::admin::snapshots;
use crate::serve::custom_metrics::{self, ObjectPath, Version};
use crate::serve::external_metrics::metric::{GROUP, VERSION};
use crate::serve::state::AppState;
use crate::serve::status::{Reason, Status};
use crate::serve::tls::Peer;

/// The longest name that an object may have, in bytes; a longer one costs neither a review nor memory.
pub(crate) const MAX_NAME: usize = 253;

/// Discovery: whoever is known, without a review (Kubernetes grants it to every user by `system:discovery`, and the
/// cluster's discovery must not hang on one call more). Who shows nothing is refused, as by other API servers.
///
/// In doubt it is served, since what it says is static and public, and an aggregator that is refused stops the deletion
/// of namespaces in the whole cluster: to a certificate that is not known here (of a proxy whose CA has just been
/// rotated, say), to everybody before the trust has been read, and to a token that cannot be reviewed, or not now.
pub(crate) async fn discovery(State(state): State<AppState>, mut request: Request, next: Next) -> Response {
    let shows_certificate = request.extensions().get::<Peer>().is_some_and(|peer| !peer.chain.is_empty());
    let place = if shows_certificate { None } else { state.unproven() };
    let Some(place) = place else {
        state.auth().strip(request.headers_mut());
        return only_get(request, next).await;
    };
    let caller = authenticate(&state, &mut request).await;
    drop(place);
    match caller {
        Ok(caller @ Caller::Anonymous) => forbidden_path(&caller, &request, None).into_response(),
        Err(Unauthenticated::BadToken) => unauthorized().into_response(),
        Ok(Caller::Known(_)) | Err(Unauthenticated::NotLoaded | Unauthenticated::Undecided(_)) => {
            only_get(request, next).await
        }
    }
}

/// Data: who may `list` the metric in the namespace.
pub(crate) async fn data(
    State(state): State<AppState>,
    path: Result<Path<(String, String)>, PathRejection>,
    request: Request,
    next: Next,
) -> Response {
    let Ok(Path((namespace, metric))) = path else {
        return Status::invalid_path().into_response();
    };
    if let Some(refusal) = too_long([&namespace, &metric]) {
        return refusal;
    }
    let wanted = Attributes::Resource {
        verb: verb(&request, ""),
        group: GROUP,
        version: VERSION,
        resource: metric,
        subresource: String::new(),
        namespace,
        name: String::new(),
    };
    authorized(&state, wanted, request, next).await
}

/// Data of an object: who may `get` the metric of it.
pub(crate) async fn object_data(
    State(state): State<AppState>,
    path: Result<Path<ObjectPath>, PathRejection>,
    request: Request,
    next: Next,
) -> Response {
    let Ok(Path(ObjectPath { version, namespace, resource, name, metric })) = path else {
        return Status::invalid_path().into_response();
    };
    let Some(version) = Version::named(&version) else {
        return Status::no_such_resource().into_response();
    };
    if let Some(refusal) = too_long([&namespace, &resource, &name, &metric]) {
        return refusal;
    }
    let wanted = Attributes::Resource {
        verb: verb(&request, &name),
        group: custom_metrics::GROUP,
        version: version.as_str(),
        resource,
        subresource: metric,
        namespace,
        name,
    };
    authorized(&state, wanted, request, next).await
}

/// `/metrics`: who may `get` the path.
pub(crate) async fn metrics(State(state): State<AppState>, request: Request, next: Next) -> Response {
    let wanted = Attributes::Path { verb: "get", path: "/metrics" };
    authorized(&state, wanted, request, next).await
}

/// `/debug/snapshots`: the same, for each path of its own.
pub(crate) async fn snapshots(State(state): State<AppState>, request: Request, next: Next) -> Response {
    let asked = request.uri().path();
    let path = [snapshots::LATEST, snapshots::ALL].into_iter().find(|path| *path == asked);
    let wanted = Attributes::Path { verb: "get", path: path.unwrap_or(snapshots::LIST) };
    authorized(&state, wanted, request, next).await
}

async fn authorized(state: &AppState, wanted: Attributes, mut request: Request, next: Next) -> Response {
    let caller = match authenticate(state, &mut request).await {
        Ok(caller) => caller,
        Err(Unauthenticated::BadToken) => return unauthorized().into_response(),
        Err(cause @ Unauthenticated::Undecided(Undecided::Busy)) => {
            return unnamed(&wanted, Reason::TooManyRequests, &cause).into_response();
        }
        Err(cause @ (Unauthenticated::NotLoaded | Unauthenticated::Undecided(_))) => {
            return unnamed(&wanted, Reason::ServiceUnavailable, &cause).into_response();
        }
    };
    match state.auth().authorize(&caller, wanted.clone()).await {
        Ok(Access::Allowed) => only_get(request, next).await,
        Ok(Access::Denied { reason }) => forbidden(&wanted, &caller, &request, reason).into_response(),
        Err(error) => undecided(&caller, &request, &error).into_response(),
    }
}

async fn authenticate(state: &AppState, request: &mut Request) -> Result<Caller, Unauthenticated> {
    let chain = request.extensions().get::<Peer>().map_or_else(|| Chain::from([]), |peer| peer.chain.clone());
    state.auth().authenticate(&chain, request.headers_mut()).await
}

async fn only_get(request: Request, next: Next) -> Response {
    if request.method() == Method::GET {
        return next.run(request).await;
    }
    Status::method_not_allowed().into_response()
}

/// The verb that authorisation sees. An external metric has no name in its path, so that reading it is `list`.
fn verb(request: &Request, name: &str) -> &'static str {
    let named = !name.is_empty();
    match *request.method() {
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE if named => "delete",
        Method::DELETE => "deletecollection",
        _ if named => "get",
        _ if crate::serve::external_metrics::query::watches(request.uri()) => "watch",
        _ => "list",
    }
}

/// Only to a caller whose own token is bad. Never to one that the front proxy vouches for: kube-controller-manager
/// would throw its token away.
fn unauthorized() -> Status {
    Status::new(Reason::Unauthorized, "Unauthorized")
}

/// The refusal of a caller of whom nobody can say who it is, with what was asked for.
fn unnamed(wanted: &Attributes, reason: Reason, cause: &Unauthenticated) -> Status {
    let refusal = Status::new(reason, cause.to_string());
    match wanted {
        Attributes::Path { .. } => refusal,
        Attributes::Resource { group, resource, subresource, namespace, .. } if subresource.is_empty() => {
            let note = format!("asked for {resource} in namespace {namespace}");
            refusal.with_note(&note).about(group, resource.as_str(), "")
        }
        Attributes::Resource { group, resource, subresource, namespace, name, .. } => {
            let note = format!("asked for {subresource} of {resource} {name} in namespace {namespace}");
            refusal.with_note(&note).about(group, subresource.as_str(), name.as_str())
        }
    }
}

fn too_long<const N: usize>(names: [&str; N]) -> Option<Response> {
    let longer = names.iter().any(|name| name.len() > MAX_NAME);
    let message =
        || format!("no namespace, no object and no metric has a name of more than {MAX_NAME} bytes");
    longer.then(|| Status::new(Reason::NotFound, message()).into_response())
}

/// The refusal in the words of Kubernetes.
fn forbidden(wanted: &Attributes, caller: &Caller, request: &Request, reason: Option<String>) -> Status {
    let Attributes::Resource { verb, group, resource, subresource, namespace, name, .. } = wanted else {
        return forbidden_path(caller, request, reason);
    };
    let named = if name.is_empty() { String::new() } else { format!(" \"{name}\"") };
    let part = if subresource.is_empty() { String::new() } else { format!("/{subresource}") };
    let message = format!(
        "{resource}.{group}{named} is forbidden: User \"{}\" cannot {verb} resource \"{resource}{part}\" in API group \
         \"{group}\" in the namespace \"{namespace}\"{}",
        caller.name(),
        because(reason)
    );
    Status::new(Reason::Forbidden, message).about(group, resource.clone(), name.clone())
}

fn forbidden_path(caller: &Caller, request: &Request, reason: Option<String>) -> Status {
    let (method, path) = (request.method().as_str().to_ascii_lowercase(), request.uri().path());
    let message =
        format!("forbidden: User \"{}\" cannot {method} path \"{path}\"{}", caller.name(), because(reason));
    Status::new(Reason::Forbidden, message)
}

fn because(reason: Option<String>) -> String {
    reason.filter(|reason| !reason.is_empty()).map_or_else(String::new, |reason| format!(": {reason}"))
}

fn undecided(caller: &Caller, request: &Request, error: &Undecided) -> Status {
    let (name, path) = (caller.name(), request.uri().path());
    let message = format!("whether User \"{name}\" may read {path} cannot be decided: {error}");
    match error {
        Undecided::Busy => Status::new(Reason::TooManyRequests, message),
        Undecided::Failed(_) => {
            let next = "check that this server reaches the API server and may create subjectaccessreviews";
            Status::new(Reason::ServiceUnavailable, format!("{message}; {next}"))
        }
    }
}
