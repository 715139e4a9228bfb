//! The listening server: binds, serves, drains.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::to_bytes;
use futures::future::{BoxFuture, OptionFuture};
use http::{HeaderMap, HeaderValue, Uri};
use rustls::pki_types::CertificateDer;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;

use super::auth::AuthState;
use super::external_scaler::{self, Numbers, ReadLeader};
use super::forward::{ForwarderVerifier, InstanceVerifier};
use super::paths::DECISIONS;
use super::router::router;
use super::state::AppState;
use super::tls::connection::{MAX_CONNECTIONS, Service, Traffic};
use super::tls::{CertificateError, PeerChain, PeerTrust, PeerVerifier, Permits, accept};

/// A server that cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address cannot be bound.
    #[error("cannot listen on {address}: {source}; check --bind-address and {flag}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The flag that gives its port.
        flag: &'static str,
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
    /// For KEDA's external scaler.
    external_scaler: Option<(TcpListener, SocketAddr)>,
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
        let bind_error = |source| ServeError::Bind { address, flag: "--secure-port", source };
        let listener = listen(address).await.map_err(bind_error)?;
        let address = listener.local_addr().map_err(bind_error)?;
        state.load_certificates().await?;
        Ok(Self {
            listener,
            address,
            external_scaler: None,
            state,
            max_connections: MAX_CONNECTIONS,
            max_connection_age: None,
        })
    }

    /// Serves KEDA's external scaler too, on `address` if there is one.
    ///
    /// # Errors
    /// When the address cannot be bound.
    pub async fn with_external_scaler(mut self, address: Option<SocketAddr>) -> Result<Self, ServeError> {
        let Some(address) = address else { return Ok(self) };
        let bind_error = |source| ServeError::Bind { address, flag: "--external-scaler-port", source };
        let listener = listen(address).await.map_err(bind_error)?;
        let address = listener.local_addr().map_err(bind_error)?;
        tracing::info!(%address, "serving KEDA's external scaler");
        self.external_scaler = Some((listener, address));
        Ok(self)
    }

    /// The bound address of the external scaler, if it is served.
    #[must_use]
    pub fn external_scaler(&self) -> Option<SocketAddr> {
        self.external_scaler.as_ref().map(|(_, address)| *address)
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
        let Self { listener, external_scaler, state, max_connections, max_connection_age, .. } = self;
        let stopping = state.0.settings.stopping.clone();
        let routes = router(state.clone());
        let service =
            |router, traffic| service(&state, router, traffic, (max_connections, max_connection_age));
        let numbers = Arc::new(numbers(&state, routes.clone()));
        let leader = leader_decisions(&state);
        let following = external_scaler
            .is_some()
            .then(|| external_scaler::follow_leader(&numbers.leader, &numbers.leadership, &leader));
        let scaler = external_scaler.map(|(listener, _)| {
            let router = external_scaler::router(numbers.clone());
            accept::serve(listener, service(router, Traffic::GRPC), shutdown.clone(), drain)
        });
        let announce = async {
            shutdown.cancelled().await;
            stopping.cancel();
        };
        let accepting = accept::serve(listener, service(routes, Traffic::READS), shutdown.clone(), drain);
        let (scaling, following) = (OptionFuture::from(scaler), OptionFuture::from(following));
        tokio::select! {
            ((), _, ()) = async { tokio::join!(accepting, scaling, announce) } => {}
            ((), _) = async { tokio::join!(state.follow(), following) } => {}
        }
    }
}

/// Reads what the leader has decided.
fn leader_decisions(state: &AppState) -> ReadLeader {
    let reads = state.0.reads.clone();
    Arc::new(move || {
        let reads = reads.clone();
        Box::pin(async move {
            let leadership = reads.leadership.borrow().clone();
            let (uri, headers) = (Uri::from_static(DECISIONS), HeaderMap::new());
            let audit = HeaderValue::from_static("external-scaler");
            let answer = reads.forwarder.forward(&leadership, &uri, &headers, &audit).await.ok()?;
            let body = answer.status().is_success().then(|| answer.into_body())?;
            to_bytes(body, usize::MAX).await.ok()
        })
    })
}

/// What is served on one port.
fn service(
    state: &AppState,
    router: Router,
    traffic: Traffic,
    (max_connections, max_age): (usize, Option<Duration>),
) -> Service {
    let states = &state.0;
    let verifier = CaVerifier {
        auth: states.auth.clone(),
        instances: states.instances.clone(),
        forwarder: states.forwarder.clone(),
    };
    Service {
        certificates: states.certificates.clone(),
        router,
        traffic,
        peer_verifier: Arc::new(verifier),
        errors: states.connection_errors.clone(),
        max_connections,
        max_age,
        stopping: states.settings.stopping.clone(),
    }
}

/// What KEDA is answered from.
fn numbers(state: &AppState, routes: Router) -> Numbers {
    let settings = &state.0.settings;
    Numbers {
        routes,
        reader: state.0.reads.reader.clone(),
        calls: state.0.calls.clone(),
        published: settings.published.clone(),
        leadership: settings.leadership.clone(),
        leader: watch::Sender::new(None),
        stopping: settings.stopping.clone(),
        waiting: Permits::new(external_scaler::MAX_WAITING),
        streams: Permits::new(external_scaler::MAX_STREAMS),
        stream_reads: Semaphore::new(external_scaler::MAX_STREAM_READS),
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
