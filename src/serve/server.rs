//! The listening server: binds, serves, drains.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use rustls::pki_types::CertificateDer;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::auth::AuthState;
use super::forward::{ForwarderVerifier, InstanceVerifier};
use super::router::router;
use super::state::AppState;
use super::tls::connection::{MAX_CONNECTIONS, Service};
use super::tls::{CertificateError, PeerChain, PeerTrust, PeerVerifier, accept};

/// A server that cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address cannot be bound.
    #[error("cannot listen on {address}: {source}; check --bind-address and --secure-port")]
    Bind {
        /// The address.
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
    max_connections: usize,
    max_connection_age: Option<Duration>,
}

/// Knows the cluster's CAs, the CA that instances share, and that of the installation that may forward reads.
struct CaVerifier {
    auth: Arc<AuthState>,
    instances: Arc<InstanceVerifier>,
    forwarder: Arc<ForwarderVerifier>,
}

impl PeerVerifier for CaVerifier {
    fn verify<'a>(&'a self, chain: &'a PeerChain) -> BoxFuture<'a, PeerTrust> {
        Box::pin(async {
            let trust = self.auth.peer_trust(chain).await;
            let is_ours = trust != PeerTrust::Infrastructure
                && (self.instances.is_instance(chain).await || self.forwarder.is_forwarder(chain).await);
            if is_ours { PeerTrust::Infrastructure } else { trust }
        })
    }
}

impl Server {
    /// Binds `address`, and loads the certificates that exist already.
    ///
    /// # Errors
    /// When the address cannot be bound, or certificate files that flags name cannot be used.
    pub async fn bind(address: SocketAddr, state: AppState) -> Result<Self, ServeError> {
        let bind_error = |source| ServeError::Bind { address, source };
        let listener = listen(address).await.map_err(bind_error)?;
        let address = listener.local_addr().map_err(bind_error)?;
        state.load_certificates().await?;
        Ok(Self { listener, address, state, max_connections: MAX_CONNECTIONS, max_connection_age: None })
    }

    /// The bound address, with the port that the system chose.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Reads the chain that API clients are served, leaf first; empty while there is no certificate.
    pub fn served_chain(&self) -> impl Fn() -> Vec<CertificateDer<'static>> + Send + Sync + use<> {
        let certificates = self.state.0.certificates.clone();
        move || certificates.served_chain()
    }

    /// Changes the limit of open connections from 1,024. A quarter of it at most is for untrusted peers, a quarter for users
    /// with a certificate, and a quarter for handshakes.
    #[must_use]
    pub fn with_max_connections(mut self, max_connections: usize) -> Self {
        self.max_connections = max_connections;
        self
    }

    /// Closes connections that are about this old, between two requests, so that the peer's next one may reach another
    /// instance. `None`: never.
    #[must_use]
    pub fn with_max_connection_age(mut self, age: Option<Duration>) -> Self {
        self.max_connection_age = age;
        self
    }

    /// Serves until `shutdown`; then stops listening, lets requests finish for at most `drain`, and cuts the rest.
    pub async fn serve(self, shutdown: CancellationToken, drain: Duration) {
        let Self { listener, state, max_connections, max_connection_age, .. } = self;
        let states = state.0.clone();
        let stopping = states.settings.stopping.clone();
        let verifier = CaVerifier {
            auth: states.auth.clone(),
            instances: states.instances.clone(),
            forwarder: states.forwarder.clone(),
        };
        let service = Service {
            certificates: states.certificates.clone(),
            router: router(state.clone()),
            peer_verifier: Arc::new(verifier),
            errors: states.connection_errors.clone(),
            max_connections,
            max_age: max_connection_age,
            stopping: stopping.clone(),
        };
        let announce = async {
            shutdown.cancelled().await;
            stopping.cancel();
        };
        let accepting = accept::serve(listener, service, shutdown.clone(), drain);
        tokio::select! {
            ((), ()) = async { tokio::join!(accepting, announce) } => {}
            () = state.follow() => {}
        }
    }
}

/// Listens on `address`. `[::]` includes IPv4, as is the default on Linux; on a machine without IPv6 it means all IPv4
/// addresses, as it does for Go servers.
async fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let listening = TcpListener::bind(address).await;
    let has_other_cause = |error: &io::Error| {
        matches!(error.kind(), io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied)
    };
    match listening {
        Err(error) if address.ip() == Ipv6Addr::UNSPECIFIED && !has_other_cause(&error) => {
            tracing::info!(%error, "IPv6 is not available; listening on IPv4 only");
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await
        }
        listening => listening,
    }
}
