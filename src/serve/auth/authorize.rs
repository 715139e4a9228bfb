//! The gates in front of answers, from the most open to the narrowest. Health has none.

use std::sync::Arc;

use axum::extract::{Request, State};
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
        return got(request, next).await;
    };
    let caller = authenticate(&state, &mut request).await;
    drop(place);
    match caller {
        Ok(caller @ Caller::Anonymous) => forbidden_path(&caller, &request, None).into_response(),
        Err(Unauthenticated::BadToken) => unauthorized().into_response(),
        Ok(Caller::Known(_)) | Err(Unauthenticated::NotLoaded | Unauthenticated::Undecided(_)) => {
            got(request, next).await
        }
    }
}

async fn got(request: Request, next: Next) -> Response {
    match only_get(&request) {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    }
}

/// Data: who may `list` the metric in the namespace.
pub(crate) async fn data(
    state: &AppState,
    (namespace, metric): &(String, String),
    request: &mut Request,
) -> Result<(), Status> {
    short_enough([namespace, metric])?;
    let wanted = Attributes::Resource {
        verb: verb(request, ""),
        group: GROUP,
        version: VERSION,
        resource: metric.clone(),
        subresource: String::new(),
        namespace: namespace.clone(),
        name: String::new(),
    };
    authorized(state, wanted, request).await
}

/// Data of an object: who may `get` the metric of it.
pub(crate) async fn object_data(
    state: &AppState,
    path: &ObjectPath,
    request: &mut Request,
) -> Result<(), Status> {
    let ObjectPath { version, namespace, resource, name, metric } = path;
    let version = Version::named(version).ok_or_else(Status::no_such_resource)?;
    short_enough([namespace, resource, name, metric])?;
    let wanted = Attributes::Resource {
        verb: verb(request, name),
        group: custom_metrics::GROUP,
        version: version.as_str(),
        resource: resource.clone(),
        subresource: metric.clone(),
        namespace: namespace.clone(),
        name: name.clone(),
    };
    authorized(state, wanted, request).await
}

/// `/metrics`: who may `get` the path.
pub(crate) async fn metrics(state: &AppState, request: &mut Request) -> Result<(), Status> {
    authorized(state, Attributes::Path { verb: "get", path: "/metrics" }, request).await
}

/// `/debug/snapshots`: the same, for each path of its own.
pub(crate) async fn snapshots(state: &AppState, request: &mut Request) -> Result<(), Status> {
    let asked = request.uri().path();
    let path = [snapshots::LATEST, snapshots::ALL].into_iter().find(|path| *path == asked);
    let wanted = Attributes::Path { verb: "get", path: path.unwrap_or(snapshots::LIST) };
    authorized(state, wanted, request).await
}

async fn authorized(state: &AppState, wanted: Attributes, request: &mut Request) -> Result<(), Status> {
    let caller = match authenticate(state, request).await {
        Ok(caller) => caller,
        Err(Unauthenticated::BadToken) => return Err(unauthorized()),
        Err(cause @ Unauthenticated::Undecided(Undecided::Busy)) => {
            return Err(unnamed(&wanted, Reason::TooManyRequests, &cause));
        }
        Err(cause @ (Unauthenticated::NotLoaded | Unauthenticated::Undecided(_))) => {
            return Err(unnamed(&wanted, Reason::ServiceUnavailable, &cause));
        }
    };
    match state.auth().authorize(&caller, &wanted).await {
        Ok(Access::Allowed) => only_get(request),
        Ok(Access::Denied { reason }) => Err(forbidden(&wanted, &caller, request, reason)),
        Err(error) => Err(undecided(&caller, request, &error)),
    }
}

async fn authenticate(state: &AppState, request: &mut Request) -> Result<Caller, Unauthenticated> {
    let chain =
        request.extensions().get::<Peer>().map_or_else(Arc::<Chain>::default, |peer| peer.chain.clone());
    state.auth().authenticate(&chain, request.headers_mut()).await
}

pub(crate) fn only_get(request: &Request) -> Result<(), Status> {
    if request.method() == Method::GET { Ok(()) } else { Err(Status::method_not_allowed()) }
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

fn short_enough<const N: usize>(names: [&str; N]) -> Result<(), Status> {
    if names.iter().all(|name| name.len() <= MAX_NAME) {
        return Ok(());
    }
    let message = format!("no namespace, no object and no metric has a name of more than {MAX_NAME} bytes");
    Err(Status::new(Reason::NotFound, message))
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
