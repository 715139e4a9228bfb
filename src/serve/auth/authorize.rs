//! Authorises requests: those for discovery without a review, all others with one. Health needs neither.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::Method;
use http::request::Parts;

use super::authenticate::{AuthState, AuthenticationError};
use super::review::ReviewUnavailable;
use super::reviewer::{Access, Attributes, Caller};
use crate::serve::encoding::{Reason, Status};
use crate::serve::paths::MAX_NAME_BYTES;
use crate::serve::tls::PeerChain;

/// The layer around discovery. It serves every authenticated caller without a review: Kubernetes grants discovery to all users
/// by `system:discovery`, and the discovery of the cluster must not depend on one call more. Requests without credentials are
/// rejected, as by other API servers.
///
/// In doubt it serves, because discovery is static and public, and an aggregator that is rejected stops the deletion of
/// namespaces in the whole cluster. That covers certificates that are not known here (of a proxy whose CA has just been
/// rotated), every caller before the trust has been read, and tokens that cannot be reviewed now.
pub(crate) async fn authenticate_discovery(
    State(auth): State<Arc<AuthState>>,
    request: Request,
    next: Next,
) -> Response {
    let (mut parts, body) = request.into_parts();
    match admit_discovery(&auth, &mut parts).await {
        Ok(()) => next.run(Request::from_parts(parts, body)).await,
        Err(error) => error.into_response(),
    }
}

/// The same, for a single request.
///
/// # Errors
/// 401 and 403 for a caller that may not, 405 for other methods than GET.
pub(crate) async fn admit_discovery(auth: &AuthState, parts: &mut Parts) -> Result<(), Status> {
    let has_certificate = parts.extensions.get::<PeerChain>().is_some_and(|chain| !chain.is_empty());
    let permit = if has_certificate { None } else { auth.unauthenticated_permits.acquire() };
    if let Some(permit) = permit {
        let caller = auth.authenticate(parts).await;
        drop(permit);
        match caller {
            Ok(caller @ Caller::Anonymous) => return Err(forbidden_path(&caller, parts, None)),
            Err(AuthenticationError::InvalidToken) => return Err(unauthorized()),
            Ok(Caller::Known(_) | Caller::Proxied(_))
            | Err(AuthenticationError::TrustNotLoaded | AuthenticationError::ReviewUnavailable(_)) => {}
        }
    } else {
        auth.strip(&mut parts.headers);
    }
    require_get(parts)
}

/// Lets a GET pass when its caller may do what `attributes` describe, and removes every credential from the request.
///
/// # Errors
/// 404 for names that no object can have, 401 and 403 for a caller that may not, 429 and 503 when that cannot be decided,
/// 405 for other methods.
pub(crate) async fn authorize(
    auth: &AuthState,
    request: &mut Parts,
    attributes: &Attributes,
) -> Result<(), Status> {
    check_names(attributes)?;
    let caller = match auth.authenticate(request).await {
        Ok(caller) => caller,
        Err(AuthenticationError::InvalidToken) => return Err(unauthorized()),
        Err(error @ AuthenticationError::ReviewUnavailable(ReviewUnavailable::Busy)) => {
            return Err(unauthenticated(attributes, Reason::TooManyRequests, &error));
        }
        Err(error @ (AuthenticationError::TrustNotLoaded | AuthenticationError::ReviewUnavailable(_))) => {
            return Err(unauthenticated(attributes, Reason::ServiceUnavailable, &error));
        }
    };
    match auth.access(&caller, attributes).await {
        Ok(Access::Allowed) => require_get(request),
        Ok(Access::Denied { reason }) => Err(forbidden(attributes, &caller, request, reason)),
        Err(error) => Err(undecided(&caller, request, &error)),
    }
}

/// Rejects every method but GET.
pub(crate) fn require_get(request: &Parts) -> Result<(), Status> {
    if request.method == Method::GET { Ok(()) } else { Err(Status::method_not_allowed()) }
}

/// The verb of a request for authorisation. An external metric has no object name in its path, so reading it is `list`.
pub(crate) fn attributes_verb(method: &Method, has_name: bool, is_watch: bool) -> &'static str {
    match *method {
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE if has_name => "delete",
        Method::DELETE => "deletecollection",
        _ if has_name => "get",
        _ if is_watch => "watch",
        _ => "list",
    }
}

/// Rejects names that are too long for any object: they cost neither a review nor memory.
fn check_names(attributes: &Attributes) -> Result<(), Status> {
    let Attributes::Resource { namespace, resource, subresource, name, .. } = attributes else {
        return Ok(());
    };
    if [namespace, resource, subresource, name].iter().all(|name| name.len() <= MAX_NAME_BYTES) {
        return Ok(());
    }
    let message = format!("no namespace, object or metric has a name of more than {MAX_NAME_BYTES} bytes");
    Err(Status::new(Reason::NotFound, message))
}

/// Only for a caller whose own token is invalid. Never for one that the front proxy authenticated:
/// kube-controller-manager would discard its token.
fn unauthorized() -> Status {
    Status::new(Reason::Unauthorized, "Unauthorized")
}

/// The error for a caller that could not be authenticated, with what was requested.
fn unauthenticated(attributes: &Attributes, reason: Reason, error: &AuthenticationError) -> Status {
    let status = Status::new(reason, error.to_string());
    match attributes {
        Attributes::Path { .. } => status,
        Attributes::Resource { group, resource, subresource, namespace, .. } if subresource.is_empty() => {
            let note = format!("requested {resource} in namespace {namespace}");
            status.with_note(&note).about(group, resource.as_str(), "")
        }
        Attributes::Resource { group, resource, subresource, namespace, name, .. } => {
            let note = format!("requested {subresource} of {resource} {name} in namespace {namespace}");
            status.with_note(&note).about(group, subresource.as_str(), name.as_str())
        }
    }
}

/// The message is that of Kubernetes.
fn forbidden(attributes: &Attributes, caller: &Caller, request: &Parts, reason: Option<String>) -> Status {
    let Attributes::Resource { verb, group, resource, subresource, namespace, name, .. } = attributes else {
        return forbidden_path(caller, request, reason);
    };
    let object = if name.is_empty() { String::new() } else { format!(" \"{name}\"") };
    let part = if subresource.is_empty() { String::new() } else { format!("/{subresource}") };
    let place = match namespace.as_str() {
        "" => "at the cluster scope".to_owned(),
        namespace => format!("in the namespace \"{namespace}\""),
    };
    let message = format!(
        "{resource}.{group}{object} is forbidden: User \"{}\" cannot {verb} resource \"{resource}{part}\" in API group \
         \"{group}\" {place}{}",
        caller.name(),
        suffix(reason)
    );
    Status::new(Reason::Forbidden, message).about(group, resource.clone(), name.clone())
}

fn forbidden_path(caller: &Caller, request: &Parts, reason: Option<String>) -> Status {
    let method = request.method.as_str().to_ascii_lowercase();
    let path = request.uri.path();
    let name = caller.name();
    let message = format!("forbidden: User \"{name}\" cannot {method} path \"{path}\"{}", suffix(reason));
    Status::new(Reason::Forbidden, message)
}

fn suffix(reason: Option<String>) -> String {
    reason.filter(|reason| !reason.is_empty()).map_or_else(String::new, |reason| format!(": {reason}"))
}

fn undecided(caller: &Caller, request: &Parts, error: &ReviewUnavailable) -> Status {
    let name = caller.name();
    let path = request.uri.path();
    let message = format!("whether User \"{name}\" may read {path} cannot be decided: {error}");
    match error {
        ReviewUnavailable::Busy => Status::new(Reason::TooManyRequests, message),
        ReviewUnavailable::Failed(_) => {
            let next = "check that this server reaches the API server and may create subjectaccessreviews";
            Status::new(Reason::ServiceUnavailable, format!("{message}; {next}"))
        }
    }
}
