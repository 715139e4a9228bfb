//! The inner door: the holder's answer to another instance. Open only to the shared leaf itself; it never forwards, so
//! a read travels at most once.

use std::sync::Arc;

use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use parking_lot::Mutex;
use rustls::pki_types::CertificateDer;
use tokio::sync::watch;

use super::{ANSWERED, HOLDER, NOTHING_YET};
use crate::engine::Origin;
use crate::serve::auth::layers::only_get;
use crate::serve::auth::{Proven, Subject, vouches};
use crate::serve::custom_metrics::{self, ObjectPath};
use crate::serve::external_metrics;
use crate::serve::reading::Read;
use crate::serve::state::AppState;
use crate::serve::status::{Reason, Status};
use crate::serve::tls::pem::ClientCas;
use crate::serve::tls::{Peer, SharedPki};

/// Knows other instances.
pub(crate) struct Guard {
    instance_name: String,
    pki: watch::Receiver<Option<SharedPki>>,
    authority: Mutex<Arc<Authority>>,
    known: Proven<bool>,
}

/// One version of the CAs that instances share.
#[derive(Default)]
struct Authority {
    generation: u64,
    bundle: String,
    /// `None` when none can be used.
    cas: Option<ClientCas>,
}

impl Guard {
    pub(crate) fn new(instance_name: String, pki: watch::Receiver<Option<SharedPki>>) -> Self {
        Self { instance_name, pki, authority: Mutex::default(), known: Proven::new() }
    }

    /// True when the peer's certificate is of the shared CA and has the name of an instance, exactly.
    pub(crate) async fn knows(&self, peer: &Peer) -> bool {
        let Some(authority) = self.authority() else { return false };
        let prove = |chain: &[CertificateDer<'static>]| self.is_of(&authority, chain);
        self.known.of(authority.generation, &peer.chain, &peer.chain.instance, prove).await
    }

    /// The newest version of the CAs, each parsed once.
    fn authority(&self) -> Option<Arc<Authority>> {
        let pki = self.pki.borrow();
        let bundle = &pki.as_ref()?.ca_pem;
        let mut newest = self.authority.lock();
        if newest.bundle != *bundle {
            let (generation, cas) = (newest.generation + 1, ClientCas::of(bundle.as_bytes()).ok());
            *newest = Arc::new(Authority { generation, bundle: bundle.clone(), cas });
        }
        Some(newest.clone())
    }

    fn is_of(&self, authority: &Authority, chain: &[CertificateDer<'static>]) -> bool {
        let Some(leaf) = chain.first() else { return false };
        let named =
            Subject::of(leaf).dns_names.iter().any(|name| name.eq_ignore_ascii_case(&self.instance_name));
        named && authority.cas.as_ref().is_some_and(|cas| vouches(cas, chain))
    }
}

/// Lets instances in and nobody else.
pub(crate) async fn instances(state: &AppState, request: &mut Request) -> Result<(), Status> {
    let known = match request.extensions().get::<Peer>().cloned() {
        Some(peer) => state.guard().knows(&peer).await,
        None => false,
    };
    if !known {
        let message = "forbidden: this path is for instances of wva that show the shared certificate";
        return Err(Status::new(Reason::Forbidden, message));
    }
    only_get(request)
}

/// `GET /internal/v1/external/{namespace}/{metric}`: the answer for another instance, which has already asked who may
/// read it.
pub(crate) async fn external(
    state: &AppState,
    (namespace, metric): &(String, String),
    request: Request,
) -> Result<Response, Status> {
    as_holder(state, external_metrics::Read::of(request.headers(), request.uri(), namespace, metric)).await
}

/// `GET /internal/v1/custom/{version}/…`: the same for the metrics of objects.
pub(crate) async fn custom(
    state: &AppState,
    path: &ObjectPath,
    request: Request,
) -> Result<Response, Status> {
    as_holder(state, custom_metrics::Read::of(request.headers(), request.uri(), path)).await
}

/// The answer to `read`, marked as the holder's; none from an instance that is not.
async fn as_holder(state: &AppState, read: Result<impl Read, Status>) -> Result<Response, Status> {
    if !state.decides() {
        return Err(Status::new(Reason::NotTheHolder, "this instance does not hold the lease"));
    }
    let (answer, answered) = match read {
        Ok(read) => {
            let published = state.current().await;
            // To know nothing is no decision: the one who asks may still have the number. Nor is a number of an earlier term.
            if published.origin == Origin::Empty || !state.may_answer(&published) {
                let message =
                    "this instance holds the lease but has neither evaluated nor restored anything yet";
                (Err(Status::new(Reason::NotTheHolder, message)), NOTHING_YET)
            } else {
                (read.render(state, &published), HOLDER)
            }
        }
        Err(refusal) => (Err(refusal), HOLDER),
    };
    let mut answer = answer.into_response();
    answer.headers_mut().insert(ANSWERED, answered);
    Ok(answer)
}
