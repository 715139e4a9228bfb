//! Authenticates callers: by the front proxy's headers, then by a user's certificate, then by a bearer token.

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use http::HeaderMap;
use http::request::Parts;
use tokio::sync::watch;

use super::certificate::{CertificateIdentity, VerifiedChains};
use super::review::{ReviewUnavailable, Reviews};
use super::reviewer::{Access, Attributes, Caller, Reviewer};
use super::trust::{self, CONFIG_MAP, Trust};
use crate::serve::tls::{PeerChain, PeerTrust, Permits};

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
    /// For discovery without a client certificate.
    pub(super) unauthenticated_permits: Permits,
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
    pub(super) async fn authenticate(&self, request: &mut Parts) -> Result<Caller, AuthenticationError> {
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
        if let Some(user) = proxied {
            return Ok(Caller::Proxied(user.authenticated()));
        }
        if let Some(user) = &identity.user {
            return Ok(Caller::Known(user.clone().authenticated()));
        }
        let Some(token) = bearer else { return Ok(Caller::Anonymous) };
        let user = self.reviews.token(token).await?.ok_or(AuthenticationError::InvalidToken)?;
        Ok(Caller::Known(user.authenticated()))
    }

    /// Removes every credential from the `headers` of a request that needs none.
    pub(super) fn strip(&self, headers: &mut HeaderMap) {
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

    /// Whether `caller` may do what `attributes` describe. Where the API server has authorised that already, the review of one object is that
    /// of all objects if these may be read: reads of thousands would cost it a review each.
    pub(super) async fn access(
        &self,
        caller: &Caller,
        attributes: &Attributes,
    ) -> Result<Access, ReviewUnavailable> {
        match caller {
            Caller::Known(user) => self.reviews.access(user, attributes).await,
            Caller::Proxied(user) => {
                let all =
                    attributes.of_all_objects().filter(|_| !self.reviews.has_answered(user, attributes));
                if let Some(all) = all
                    && self.reviews.access(user, &all).await? == Access::Allowed
                {
                    return Ok(Access::Allowed);
                }
                self.reviews.access(user, attributes).await
            }
            Caller::Anonymous => Ok(Access::Denied { reason: None }),
        }
    }
}
