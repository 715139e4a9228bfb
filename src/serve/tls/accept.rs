//! The accept loop: who gets a place, and the end of all. Every wait has an end, every count a bound, and a failing
//! connection costs the others nothing. Knows no route.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::certificates::Certificates;
use super::connection::{self, ConnectionError};
use super::door;
use super::ledger::Ledger;
use super::peer::{Vouched, Vouches};
use super::shares::{Place, Shares};

/// Connections open at once. Each API server needs a few. One holds at most 64 KiB of certificates, the longest message
/// of a handshake, and 256 KiB of a request's head; anybody in the network can have the quarter that is for handshakes
/// and the quarter that is for strangers: 256 × 64 KiB + 256 × 320 KiB is 96 MiB at worst.
pub(crate) const MAX_CONNECTIONS: usize = 1_024;

/// One of this many places is for handshakes under way, in which a peer may be anybody; as many for users of the
/// cluster with a certificate; and as many for peers that nobody vouches for. The rest is always there for API servers
/// and other instances.
const GROUPS: usize = 4;

/// What is served on the connections, and for how long.
pub(crate) struct Service {
    pub(crate) certificates: Arc<Certificates>,
    pub(crate) router: Router,
    pub(crate) vouching: Arc<dyn Vouches>,
    pub(crate) ledger: Arc<Ledger>,
    /// Connections at once.
    pub(crate) places: usize,
    /// A connection older than about this is asked to leave, between two requests; `None`: never.
    pub(crate) age: Option<Duration>,
    /// Cancelled when the process is about to stop accepting: peers with HTTP/1.1 are asked not to come back here.
    pub(crate) leaving: CancellationToken,
}

/// What every connection needs.
pub(super) struct Shared {
    pub(super) service: Service,
    pub(super) handshakes: Shares,
    users: Shares,
    strangers: Shares,
    pub(super) stop: CancellationToken,
}

impl Shared {
    fn new(service: Service, stop: CancellationToken) -> Self {
        let group = || Shares::new(service.places / GROUPS);
        let (handshakes, users, strangers) = (group(), group(), group());
        Self { service, handshakes, users, strangers, stop }
    }

    /// A place for as long as the connection lasts; none is needed for whom everything depends on.
    pub(super) fn place(&self, vouched: Vouched, from: IpAddr) -> Result<Option<Place<'_>>, ConnectionError> {
        let (group, refusal) = match vouched {
            Vouched::ForTheCluster => return Ok(None),
            Vouched::ForAUser => (&self.users, ConnectionError::CrowdOfUsers),
            Vouched::No => (&self.strangers, ConnectionError::CrowdOfStrangers),
        };
        group.claim(from).map(Some).ok_or(refusal)
    }
}

/// Accepts until `stop`; then lets connections finish for `drain`, and cuts what is left. A peer may ignore every
/// request to leave (hyper#4170), so the end does not depend on it.
pub(crate) async fn serve(listener: TcpListener, service: Service, stop: CancellationToken, drain: Duration) {
    let shared = Arc::new(Shared::new(service, stop.clone()));
    let mut connections = JoinSet::new();
    let accepting = accept(&listener, &shared, &mut connections);
    tokio::select! {
        () = accepting => {}
        () = shared.service.ledger.summarise() => {}
        () = stop.cancelled() => {}
    }
    drop(listener);
    let open = connections.len();
    let all = async { while connections.join_next().await.is_some() {} };
    if timeout(drain, all).await.is_err() {
        tracing::warn!(open, left = connections.len(), "connections did not drain in time and are cut");
    }
    connections.shutdown().await;
}

async fn accept(listener: &TcpListener, shared: &Arc<Shared>, connections: &mut JoinSet<()>) {
    let room = Arc::new(Semaphore::new(shared.service.places));
    loop {
        while connections.try_join_next().is_some() {}
        let Ok(permit) = room.clone().acquire_owned().await else { return };
        let (tcp, address) = door::next(listener, &shared.service.ledger).await;
        let shared = shared.clone();
        connections.spawn(async move {
            run(tcp, address, &shared).await;
            drop(permit);
        });
    }
}

/// One connection, to its end, whatever that is.
async fn run(tcp: TcpStream, address: SocketAddr, shared: &Shared) {
    let Err(error) = connection::run(tcp, address, shared).await else { return };
    match error.loss() {
        Some(loss) => shared.service.ledger.note(loss, &address, &error),
        None => tracing::debug!(%address, %error, "connection ended"),
    }
}
