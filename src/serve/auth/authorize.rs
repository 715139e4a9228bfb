//! Authenticates callers and authorises requests: for discovery without a review, for everything else with one. Health needs
//! none.

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use http::{HeaderMap, Method};
use tokio::sync::watch;

use super::certificate::{CertificateIdentity, VerifiedChains};
use super::review::{ReviewUnavailable, Reviews};
use super::reviewer::{Access, Attributes, Caller, Reviewer};
use super::trust::{self, CONFIG_MAP, Trust};
use crate::serve::encoding::{Reason, Status};
use crate::serve::paths::MAX_NAME_BYTES;
use crate::serve::tls::{PeerChain, PeerTrust, Permits};

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
    let has_certificate = parts.extensions.get::<PeerChain>().is_some_and(|chain| !chain.is_empty());
    let permit = if has_certificate { None } else { auth.unauthenticated_permits.acquire() };
    if let Some(permit) = permit {
        let caller = auth.authenticate(&mut parts).await;
        drop(permit);
        match caller {
            Ok(caller @ Caller::Anonymous) => return forbidden_path(&caller, &parts, None).into_response(),
            Err(AuthenticationError::InvalidToken) => return unauthorized().into_response(),
            Ok(Caller::Known(_))
            | Err(AuthenticationError::TrustNotLoaded | AuthenticationError::ReviewUnavailable(_)) => {}
        }
    } else {
        auth.strip(&mut parts.headers);
    }
    match require_get(&parts) {
        Ok(()) => next.run(Request::from_parts(parts, body)).await,
        Err(error) => error.into_response(),
    }
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
    let message = format!(
        "{resource}.{group}{object} is forbidden: User \"{}\" cannot {verb} resource \"{resource}{part}\" in API group \
         \"{group}\" in the namespace \"{namespace}\"{}",
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

/// Concurrent discovery requests whose token is being reviewed: as many as there may be token reviews. A request's head has
/// at most 256 KiB, so they hold at most 16 MiB.
const MAX_UNAUTHENTICATED: usize = 64;

/// The data of ConfigMap `kube-system/extension-apiserver-authentication`; `None` until it has been read once.
pub type TrustData = Option<BTreeMap<String, String>>;

/// A caller that cannot be authenticated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AuthenticationError {
    /// The ConfigMap has not been read yet.
    #[error(
        "{CONFIG_MAP} has not been read yet, so callers cannot be authenticated; check that this server's service account is \
         bound to Role extension-apiserver-authentication-reader in kube-system"
    )]
    TrustNotLoaded,
    /// The token is not valid.
    #[error("Unauthorized")]
    InvalidToken,
    /// The token could not be reviewed.
    #[error("the bearer token cannot be reviewed: {0}")]
    ReviewUnavailable(#[from] ReviewUnavailable),
}

/// The cluster's trust, and the results of reviews.
pub(crate) struct AuthState {
    trust: ArcSwap<LoadedTrust>,
    identities: VerifiedChains<Arc<CertificateIdentity>>,
    reviews: Reviews,
    unauthenticated_permits: Permits,
}

/// The trust in force. What was verified under one generation does not hold for the next.
struct LoadedTrust {
    generation: u64,
    trust: Option<Trust>,
}

impl AuthState {
    pub(crate) fn new(reviewer: Arc<dyn Reviewer>) -> Self {
        Self {
            trust: ArcSwap::from_pointee(LoadedTrust { generation: 0, trust: None }),
            identities: VerifiedChains::new(),
            reviews: Reviews::new(reviewer),
            unauthenticated_permits: Permits::new(MAX_UNAUTHENTICATED),
        }
    }

    /// Applies every new version of the ConfigMap, for ever. An invalid one is logged and not used.
    pub(crate) async fn follow(&self, mut data: watch::Receiver<TrustData>) {
        loop {
            let newest = data.borrow_and_update().clone();
            self.apply(newest);
            if data.changed().await.is_err() {
                return futures::future::pending().await;
            }
        }
    }

    /// Applies one version of the ConfigMap.
    pub(crate) fn apply(&self, data: TrustData) {
        match data.as_ref().map(Trust::parse) {
            None => {}
            Some(Err(error)) => tracing::warn!(%error, "the cluster's trust cannot be read"),
            Some(Ok(trust)) => {
                let generation = self.trust.load().generation + 1;
                self.trust.store(Arc::new(LoadedTrust { generation, trust: Some(trust) }));
            }
        }
    }

    /// Authenticates the caller and removes every credential from the request.
    async fn authenticate(&self, request: &mut Parts) -> Result<Caller, AuthenticationError> {
        let loaded = self.trust.load_full();
        let chain = request.extensions.get::<PeerChain>().cloned().unwrap_or_default();
        let headers = &mut request.headers;
        let bearer = trust::bearer(headers);
        let Some(trust) = &loaded.trust else {
            trust::strip(headers, None);
            return Err(AuthenticationError::TrustNotLoaded);
        };
        let identity = self.identity(loaded.generation, trust, &chain).await;
        let names = trust.front_proxy.as_ref().map(|proxy| &proxy.headers);
        let proxied = names.filter(|_| identity.is_front_proxy);
        let proxied = proxied.and_then(|names| trust::remote_user(headers, names));
        trust::strip(headers, names);
        if let Some(user) = proxied.or_else(|| identity.user.clone()) {
            return Ok(Caller::Known(user.authenticated()));
        }
        let Some(token) = bearer else { return Ok(Caller::Anonymous) };
        let user = self.reviews.token(token).await?.ok_or(AuthenticationError::InvalidToken)?;
        Ok(Caller::Known(user.authenticated()))
    }

    /// Removes every credential from the `headers` of a request that needs none.
    fn strip(&self, headers: &mut HeaderMap) {
        let loaded = self.trust.load();
        let proxy = loaded.trust.as_ref().and_then(|trust| trust.front_proxy.as_ref());
        trust::strip(headers, proxy.map(|proxy| &proxy.headers));
    }

    /// Which of the cluster's CAs issued `chain`.
    pub(crate) async fn peer_trust(&self, chain: &PeerChain) -> PeerTrust {
        let loaded = self.trust.load_full();
        let Some(trust) = &loaded.trust else { return PeerTrust::Untrusted };
        let identity = self.identity(loaded.generation, trust, chain).await;
        match identity.user {
            _ if identity.is_front_proxy => PeerTrust::Infrastructure,
            Some(_) => PeerTrust::User,
            None => PeerTrust::Untrusted,
        }
    }

    async fn identity(&self, generation: u64, trust: &Trust, chain: &PeerChain) -> Arc<CertificateIdentity> {
        let verify = |chain: &[_]| Arc::new(CertificateIdentity::verify(trust, chain));
        self.identities.verify(generation, chain, verify).await
    }

    /// Whether `caller` may do what `attributes` describe.
    async fn access(&self, caller: &Caller, attributes: &Attributes) -> Result<Access, ReviewUnavailable> {
        match caller {
            Caller::Known(user) => self.reviews.access(user, attributes).await,
            Caller::Anonymous => Ok(Access::Denied { reason: None }),
        }
    }
}
