//! The accept loop: TCP to TLS to HTTP/2 or 1.1, as ALPN says. Every wait has an end, every count a bound, and a
//! failing connection costs the others nothing. Knows no route.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use futures::future::BoxFuture;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulConnection;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use super::activity::{Activity, Answering, QUIET};
use super::certificates::Certificates;
use super::handshakes::Handshakes;
use super::peer::Peer;

/// Connections open at once. Each API server needs a few; 1,024 × ~100 KiB of buffers is 100 MiB at worst.
pub(crate) const MAX_CONNECTIONS: usize = 1_024;

/// One of this many places is for peers that nobody vouches for (probes, scrapes with a token, anybody in the network),
/// and as many for handshakes under way, in which a peer may be anybody. Together they have half of the places: they can
/// never keep API servers and other instances out.
const STRANGERS: usize = 4;

/// A TLS handshake is two round trips.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// The head of an HTTP/1.1 request, the wait for it included; as Go servers have it.
const HEADERS: Duration = Duration::from_secs(32);

/// What a connection may still finish after its own close, outside a drain.
const LINGER: Duration = Duration::from_secs(5);

/// Requests at once on one HTTP/2 connection; the aggregator sends all of its on one.
const MAX_STREAMS: u32 = 250;

/// Bytes of request headers: a user may be in thousands of groups.
const MAX_HEADERS: u32 = 256 * 1024;

/// Header lines of an HTTP/1.1 request: one for each of those groups.
const MAX_HEADER_LINES: usize = 4_096;

/// HTTP/2 pings find peers that are gone.
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_PATIENCE: Duration = Duration::from_secs(15);

/// The wait after a failed accept (no file handles, mostly), doubled up to the second value.
const BACK_OFF: Duration = Duration::from_millis(5);
const BACK_OFF_MOST: Duration = Duration::from_secs(1);

/// Says who is no stranger.
pub(crate) trait Vouches: Send + Sync + 'static {
    /// True when a CA that the cluster or the instances trust issued the peer's certificate.
    fn vouches<'a>(&'a self, peer: &'a Peer) -> BoxFuture<'a, bool>;
}

/// What is served on the connections.
pub(crate) struct Service {
    pub(crate) certificates: Arc<Certificates>,
    pub(crate) router: Router,
    pub(crate) vouching: Arc<dyn Vouches>,
    /// Connections at once.
    pub(crate) places: usize,
}

/// What every connection needs.
struct Shared {
    service: Service,
    handshakes: Handshakes,
    strangers: Semaphore,
    stop: CancellationToken,
}

/// Accepts until `stop`; then lets connections finish for `drain`, and cuts what is left. A peer may ignore every
/// request to leave (hyper#4170), so the end does not depend on it.
pub(crate) async fn serve(listener: TcpListener, service: Service, stop: CancellationToken, drain: Duration) {
    let few = service.places / STRANGERS;
    let (handshakes, strangers) = (Handshakes::new(few), Semaphore::new(few));
    let shared = Arc::new(Shared { service, handshakes, strangers, stop: stop.clone() });
    let mut connections = JoinSet::new();
    stop.run_until_cancelled(accept(&listener, &shared, &mut connections)).await;
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
    let mut back_off = BACK_OFF;
    loop {
        while connections.try_join_next().is_some() {}
        let Ok(permit) = room.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((tcp, address)) => {
                back_off = BACK_OFF;
                // A dual-stack socket says ::ffff:10.0.0.1; people and logs know 10.0.0.1.
                let address = SocketAddr::new(address.ip().to_canonical(), address.port());
                let shared = shared.clone();
                connections.spawn(async move {
                    if let Err(error) = connection(tcp, address, &shared).await {
                        tracing::debug!(%address, %error, "connection failed");
                    }
                    drop(permit);
                });
            }
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => {
                tracing::warn!(%error, wait_ms = back_off.as_millis(), "cannot accept connections");
                sleep(back_off).await;
                back_off = (back_off * 2).min(BACK_OFF_MOST);
            }
        }
    }
}

fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset)
}

/// Why a connection ended badly.
#[derive(Debug, thiserror::Error)]
enum ConnectionError {
    #[error("no certificate to show yet")]
    NoCertificate,
    #[error("no TLS handshake within {} s", HANDSHAKE.as_secs())]
    Late,
    #[error("TLS: {0}")]
    Tls(#[from] io::Error),
    #[error("HTTP: {0}")]
    Http(#[from] hyper::Error),
    #[error("no request within {} s", QUIET.as_secs())]
    Quiet,
    #[error("its handshake gave way to a newer one: every place for handshakes is taken")]
    Displaced,
    #[error("every place for peers without a certificate that is trusted here is taken")]
    Crowded,
}

async fn connection(tcp: TcpStream, address: SocketAddr, shared: &Shared) -> Result<(), ConnectionError> {
    tcp.set_nodelay(true)?;
    let config = shared.service.certificates.config().ok_or(ConnectionError::NoCertificate)?;
    let handshake = shared.handshakes.begin();
    let tls = handshake.unless_displaced(timeout(HANDSHAKE, TlsAcceptor::from(config).accept(tcp)));
    let Some(tls) = shared.stop.run_until_cancelled(tls).await else { return Ok(()) };
    let tls = tls.ok_or(ConnectionError::Displaced)?.map_err(|_| ConnectionError::Late)??;
    let is_h2 = tls.get_ref().1.alpn_protocol() == Some(b"h2");
    let peer = peer(&tls, address);
    let vouched = shared.service.vouching.vouches(&peer).await;
    let place = if vouched { None } else { Some(shared.strangers.try_acquire()) };
    let _place = place.transpose().map_err(|_| ConnectionError::Crowded)?;
    drop(handshake);
    let activity = Activity::new();
    let (router, requests) = (shared.service.router.clone(), activity.clone());
    let service = hyper::service::service_fn(move |request| {
        answer(router.clone(), peer.clone(), requests.begin(), request)
    });
    let (io, quiet) = (TokioIo::new(tls), activity.quiet(vouched));
    if is_h2 {
        drive(h2().serve_connection(io, service), quiet, &shared.stop).await
    } else {
        drive(h1().serve_connection(io, service), quiet, &shared.stop).await
    }
}

fn peer(tls: &TlsStream<TcpStream>, address: SocketAddr) -> Peer {
    let chain = tls.get_ref().1.peer_certificates().unwrap_or_default();
    Peer { address, chain: chain.iter().map(|certificate| certificate.clone().into_owned()).collect() }
}

fn answer(
    router: Router,
    peer: Peer,
    answering: Answering,
    mut request: http::Request<Incoming>,
) -> BoxFuture<'static, Result<http::Response<Body>, std::convert::Infallible>> {
    request.extensions_mut().insert(peer);
    Box::pin(async move {
        let answer = router.oneshot(request.map(Body::new)).await;
        drop(answering);
        answer
    })
}

fn h1() -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEADERS).max_headers(MAX_HEADER_LINES);
    builder.max_buf_size(MAX_HEADERS as usize);
    builder
}

fn h2() -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEADERS)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_PATIENCE);
    builder
}

/// Runs a connection to its end: its own, the drain's, or that of our patience with a quiet one.
async fn drive<C>(
    connection: C,
    quiet: impl Future<Output = ()>,
    stop: &CancellationToken,
) -> Result<(), ConnectionError>
where
    C: GracefulConnection<Error = hyper::Error>,
{
    let mut connection = std::pin::pin!(connection);
    let was_quiet = tokio::select! {
        ended = connection.as_mut() => return Ok(ended?),
        () = stop.cancelled() => false,
        () = quiet => true,
    };
    Pin::as_mut(&mut connection).graceful_shutdown();
    if was_quiet {
        let _ = timeout(LINGER, connection).await;
        return Err(ConnectionError::Quiet);
    }
    Ok(connection.await?)
}
