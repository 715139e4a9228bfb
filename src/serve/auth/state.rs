//! Who may read. Authentication: front proxy, then a user's certificate, then a bearer token, then nobody.
//! Authorisation: by review, except for discovery, which everybody who is known may read.

mod certificate;
pub(crate) mod headers;
mod identity;
pub(crate) mod layers;
mod review;
mod reviewer;
pub(crate) mod trust;

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use http::HeaderMap;
use rustls::pki_types::CertificateDer;
use tokio::sync::watch;

pub use certificate::Chain;
pub(crate) use certificate::{Proven, Subject, vouches};
pub use identity::{Caller, Token, User};
pub use reviewer::{Access, AllowAll, Attributes, ReviewError, Reviewer};
pub use trust::{Trust, TrustError};

use self::certificate::Standing;
use self::review::Reviews;
pub(crate) use self::review::Undecided;
use crate::serve::tls::Vouched;

/// The data of the ConfigMap that says whom to trust; `None` until it has been read once.
pub type TrustData = Option<BTreeMap<String, String>>;

/// Why nobody can say who the caller is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unauthenticated {
    /// The ConfigMap has not been read yet.
    #[error(
        "{} has not been read yet, so nobody can be authenticated; check that this server's service account is bound \
         to Role extension-apiserver-authentication-reader in kube-system",
        trust::CONFIG_MAP
    )]
    NotLoaded,
    /// The token stands for nobody.
    #[error("Unauthorized")]
    BadToken,
    /// The token could not be reviewed.
    #[error("the bearer token cannot be reviewed: {0}")]
    Undecided(#[from] Undecided),
}

/// Knows whom the cluster trusts and what reviews have said.
pub(crate) struct Auth {
    trust: ArcSwap<Loaded>,
    standings: Proven<Standing>,
    reviews: Reviews,
}

/// The trust in force. The generation keeps what an older one proved from being believed under a newer one.
struct Loaded {
    generation: u64,
    trust: Option<Trust>,
}

impl Auth {
    pub(crate) fn new(reviewer: Arc<dyn Reviewer>) -> Self {
        Self {
            trust: ArcSwap::from_pointee(Loaded { generation: 0, trust: None }),
            standings: Proven::new(),
            reviews: Reviews::new(reviewer),
        }
    }

    /// Takes every new version of the ConfigMap into use, for ever. A damaged one is reported and not used.
    pub(crate) async fn follow(&self, mut data: watch::Receiver<TrustData>) {
        loop {
            let newest = data.borrow_and_update().clone();
            self.adopt(newest);
            if data.changed().await.is_err() {
                return futures::future::pending().await;
            }
        }
    }

    /// Takes one version of the ConfigMap into use.
    pub(crate) fn adopt(&self, data: TrustData) {
        match data.as_ref().map(Trust::parse) {
            None => {}
            Some(Err(error)) => tracing::warn!(%error, "the trust of the cluster cannot be read"),
            Some(Ok(trust)) => {
                let generation = self.trust.load().generation + 1;
                self.trust.store(Arc::new(Loaded { generation, trust: Some(trust) }));
            }
        }
    }

    /// Who asks. Removes every credential from `headers`.
    pub(crate) async fn authenticate(
        &self,
        chain: &Chain,
        headers: &mut HeaderMap,
    ) -> Result<Caller, Unauthenticated> {
        let loaded = self.trust.load_full();
        let bearer = headers::bearer(headers);
        let Some(trust) = &loaded.trust else {
            headers::strip(headers, None);
            return Err(Unauthenticated::NotLoaded);
        };
        let standing = self.standing(loaded.generation, trust, chain).await;
        let names = trust.front_proxy.as_ref().map(|proxy| &proxy.headers);
        let remote =
            names.filter(|_| standing.front_proxy).and_then(|names| headers::remote_user(headers, names));
        headers::strip(headers, names);
        if let Some(user) = remote.or(standing.user) {
            return Ok(Caller::Known(user.authenticated()));
        }
        let Some(token) = bearer else { return Ok(Caller::Anonymous) };
        let user = self.reviews.token(token).await?.ok_or(Unauthenticated::BadToken)?;
        Ok(Caller::Known(user.authenticated()))
    }

    /// Removes every credential from `headers` of a request that needs none.
    pub(crate) fn strip(&self, headers: &mut HeaderMap) {
        let loaded = self.trust.load();
        let proxy = loaded.trust.as_ref().and_then(|trust| trust.front_proxy.as_ref());
        headers::strip(headers, proxy.map(|proxy| &proxy.headers));
    }

    /// As whose the cluster vouches for `chain`: the front proxy's, or a user's.
    pub(crate) async fn vouched(&self, chain: &Chain) -> Vouched {
        let loaded = self.trust.load_full();
        let Some(trust) = &loaded.trust else { return Vouched::No };
        let standing = self.standing(loaded.generation, trust, chain).await;
        match standing.user {
            _ if standing.front_proxy => Vouched::ForTheCluster,
            Some(_) => Vouched::ForAUser,
            None => Vouched::No,
        }
    }

    async fn standing(&self, generation: u64, trust: &Trust, chain: &Chain) -> Standing {
        let prove = |chain: &[CertificateDer<'static>]| Standing::of(trust, chain);
        self.standings.of(generation, chain, &chain.standing, prove).await
    }

    /// Whether `caller` may do something.
    pub(crate) async fn authorize(
        &self,
        caller: &Caller,
        attributes: &Attributes,
    ) -> Result<Access, Undecided> {
        match caller {
            Caller::Known(user) => self.reviews.access(user, attributes).await,
            Caller::Anonymous => Ok(Access::Denied { reason: None }),
        }
    }
}
