//! The listening server: binds, serves, drains.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::router::router;
use super::state::AppState;
use super::tls::{CertificateError, Peer, Vouched, Vouches, accept};

/// A server that cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address cannot be bound.
    #[error("cannot listen on {address}: {source}; check --bind-address and --secure-port")]
    Bind {
        /// Where.
        address: SocketAddr,
        /// The cause.
        source: io::Error,
    },
    /// The certificate given by flags cannot be used.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
}

/// A bound server that does not accept yet.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    state: AppState,
    places: usize,
    age: Option<Duration>,
}

impl Vouches for AppState {
    fn vouched<'a>(&'a self, peer: &'a Peer) -> BoxFuture<'a, Vouched> {
        Box::pin(async {
            let vouched = self.auth().vouched(&peer.chain).await;
            if vouched != Vouched::ForTheCluster && self.guard().knows(peer).await {
                return Vouched::ForTheCluster;
            }
            vouched
        })
    }
}

impl Server {
    /// Binds `address`, and reads the certificates that are there already.
    ///
    /// # Errors
    /// When the address cannot be bound, or certificate files that flags name cannot be used.
    pub async fn bind(address: SocketAddr, state: AppState) -> Result<Self, ServeError> {
        let failed = |source| ServeError::Bind { address, source };
        let listener = listen(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        state.load_certificates().await?;
        Ok(Self { listener, address, state, places: accept::MAX_CONNECTIONS, age: None })
    }

    /// Where it listens, the port chosen by the system included.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves `places` connections at once instead of the usual 1,024; at most a quarter of them for peers that nobody
    /// vouches for, a quarter for users with a certificate, and a quarter for handshakes.
    #[must_use]
    pub fn with_places(mut self, places: usize) -> Self {
        self.places = places;
        self
    }

    /// Asks a connection to leave, between two requests, when it is about so old: the peer's next one may go to another
    /// instance. `None`: never.
    #[must_use]
    pub fn with_connection_age(mut self, age: Option<Duration>) -> Self {
        self.age = age;
        self
    }

    /// Serves until `shutdown`; then closes the door, lets requests finish for at most `drain`, and cuts the rest.
    pub async fn serve(self, shutdown: CancellationToken, drain: Duration) {
        let Self { listener, state, places, age, .. } = self;
        let certificates = state.certificates().clone();
        let (stopping, ledger) = (state.stopping().clone(), state.ledger().clone());
        let leaving = stopping.clone();
        let announce = async {
            shutdown.cancelled().await;
            stopping.cancel();
        };
        let (router, vouching) = (router(state.clone()), Arc::new(state.clone()));
        let service = accept::Service { certificates, router, vouching, ledger, places, age, leaving };
        let accepting = accept::serve(listener, service, shutdown.clone(), drain);
        tokio::select! {
            ((), ()) = async { tokio::join!(accepting, announce) } => {}
            () = state.follow() => {}
        }
    }
}

/// `[::]` takes IPv4 too, as Linux has it by default; where a machine has no IPv6 it means every IPv4 address, as it does
/// for Go servers.
async fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let listening = TcpListener::bind(address).await;
    let other_cause = |error: &io::Error| {
        matches!(error.kind(), io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied)
    };
    match listening {
        Err(error) if address.ip() == Ipv6Addr::UNSPECIFIED && !other_cause(&error) => {
            tracing::info!(%error, "no IPv6 here; listening on IPv4 alone");
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await
        }
        listening => listening,
    }
}
