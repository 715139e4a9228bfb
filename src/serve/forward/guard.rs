//! The inner door: the holder's answer to another instance. Open only to the shared leaf itself; it never forwards, so
//! a read travels at most once.

use std::time::Duration;

use axum::extract::{Path, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::Method;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use super::{ANSWERED, HOLDER, NOTHING_YET};
use crate::engine::Origin;
use crate::serve::auth::{Chain, Subject, vouches};
use crate::serve::custom_metrics::{self, ObjectPath};
use crate::serve::external_metrics;
use crate::serve::reading::Read;
use crate::serve::state::AppState;
use crate::serve::status::{Reason, Status};
use crate::serve::tls::{Peer, SharedPki, pem};

/// How long a verified peer is believed: as long as a chain in `auth`.
const BELIEVED: Duration = Duration::from_secs(60);

/// Knows other instances.
pub(crate) struct Guard {
    instance_name: String,
    pki: watch::Receiver<Option<SharedPki>>,
    /// The last peer let in, under which CA and when: they all show the same leaf.
    known: Mutex<Option<(String, Chain, Instant)>>,
}

impl Guard {
    pub(crate) fn new(instance_name: String, pki: watch::Receiver<Option<SharedPki>>) -> Self {
        Self { instance_name, pki, known: Mutex::new(None) }
    }

    /// True when the peer's certificate is of the shared CA and has the name of an instance, exactly.
    pub(crate) fn knows(&self, peer: &Peer) -> bool {
        let Some(bundle) = self.pki.borrow().as_ref().map(|pki| pki.ca_pem.clone()) else { return false };
        let fresh = |(ca, chain, at): &(String, Chain, Instant)| {
            *ca == bundle && *chain == peer.chain && at.elapsed() < BELIEVED
        };
        if self.known.lock().as_ref().is_some_and(fresh) {
            return true;
        }
        let known = self.verify(&bundle, peer);
        if known {
            *self.known.lock() = Some((bundle, peer.chain.clone(), Instant::now()));
        }
        known
    }

    fn verify(&self, bundle: &str, peer: &Peer) -> bool {
        let Some(leaf) = peer.chain.first() else { return false };
        let named =
            Subject::of(leaf).dns_names.iter().any(|name| name.eq_ignore_ascii_case(&self.instance_name));
        let cas = pem::ClientCas::of(bundle.as_bytes());
        named && cas.is_ok_and(|cas| vouches(&cas, &peer.chain))
    }
}

/// Lets instances in and nobody else.
pub(crate) async fn instances(State(state): State<AppState>, request: Request, next: Next) -> Response {
    let known = request.extensions().get::<Peer>().is_some_and(|peer| state.guard().knows(peer));
    if !known {
        let message = "forbidden: this path is for instances of wva that show the shared certificate";
        return Status::new(Reason::Forbidden, message).into_response();
    }
    if request.method() != Method::GET {
        return Status::method_not_allowed().into_response();
    }
    next.run(request).await
}

/// `GET /internal/v1/external/{namespace}/{metric}`: the answer for another instance, which has already asked who may
/// read it.
pub(crate) async fn external(
    State(state): State<AppState>,
    Path((namespace, metric)): Path<(String, String)>,
    request: Request,
) -> Response {
    let read = external_metrics::Read::of(request.headers(), request.uri(), &namespace, &metric);
    as_holder(&state, read).await
}

/// `GET /internal/v1/custom/{version}/…`: the same for the metrics of objects.
pub(crate) async fn custom(
    State(state): State<AppState>,
    Path(path): Path<ObjectPath>,
    request: Request,
) -> Response {
    let read = custom_metrics::Read::of(request.headers(), request.uri(), &path);
    as_holder(&state, read).await
}

/// The answer to `read`, marked as the holder's; none from an instance that is not.
async fn as_holder(state: &AppState, read: Result<impl Read, Status>) -> Response {
    if !state.decides() {
        return Status::new(Reason::NotTheHolder, "this instance does not hold the lease").into_response();
    }
    let (mut answer, answered) = match read {
        Ok(read) => {
            let published = state.current().await;
            // To know nothing is no decision: the one who asks may still have the number.
            if published.origin == Origin::Empty {
                let message =
                    "this instance holds the lease but has neither evaluated nor restored anything yet";
                (Status::new(Reason::NotTheHolder, message).into_response(), NOTHING_YET)
            } else {
                (read.render(state, &published).into_response(), HOLDER)
            }
        }
        Err(refusal) => (refusal.into_response(), HOLDER),
    };
    answer.headers_mut().insert(ANSWERED, answered);
    answer
}
