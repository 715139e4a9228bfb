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
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use super::certificates::Certificates;
use super::peer::Peer;

/// Connections open at once. Each API server needs a few; 1,024 × ~100 KiB of buffers is 100 MiB at worst.
const MAX_CONNECTIONS: usize = 1_024;

/// A TLS handshake is two round trips.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// The head of an HTTP/1.1 request, the wait for it included; as Go servers have it.
const HEADERS: Duration = Duration::from_secs(32);

/// A connection that has asked nothing after this long is closed. Clients open spare ones.
const FIRST_REQUEST: Duration = Duration::from_secs(60);

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

/// What every connection needs.
struct Shared {
    certificates: Arc<Certificates>,
    router: Router,
    stop: CancellationToken,
}

/// Accepts until `stop`; then lets connections finish for `drain`, and cuts what is left. A peer may ignore every
/// request to leave (hyper#4170), so the end does not depend on it.
pub(crate) async fn serve(
    listener: TcpListener,
    certificates: Arc<Certificates>,
    router: Router,
    stop: CancellationToken,
    drain: Duration,
) {
    let shared = Arc::new(Shared { certificates, router, stop: stop.clone() });
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
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut back_off = BACK_OFF;
    loop {
        while connections.try_join_next().is_some() {}
        let Ok(permit) = room.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((tcp, address)) => {
                back_off = BACK_OFF;
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
    #[error("no request within {} s", FIRST_REQUEST.as_secs())]
    Silent,
}

async fn connection(tcp: TcpStream, address: SocketAddr, shared: &Shared) -> Result<(), ConnectionError> {
    tcp.set_nodelay(true)?;
    let config = shared.certificates.config().ok_or(ConnectionError::NoCertificate)?;
    let handshake = timeout(HANDSHAKE, TlsAcceptor::from(config).accept(tcp));
    let Some(tls) = shared.stop.run_until_cancelled(handshake).await else { return Ok(()) };
    let tls = tls.map_err(|_| ConnectionError::Late)??;
    let is_h2 = tls.get_ref().1.alpn_protocol() == Some(b"h2");
    let first = Arc::new(Notify::new());
    let peer = peer(&tls, address);
    let (router, seen) = (shared.router.clone(), first.clone());
    let service = hyper::service::service_fn(move |request| {
        seen.notify_one();
        answer(router.clone(), peer.clone(), request)
    });
    let io = TokioIo::new(tls);
    if is_h2 {
        drive(h2().serve_connection(io, service), &first, &shared.stop).await
    } else {
        drive(h1().serve_connection(io, service), &first, &shared.stop).await
    }
}

fn peer(tls: &TlsStream<TcpStream>, address: SocketAddr) -> Peer {
    let chain = tls.get_ref().1.peer_certificates().unwrap_or_default();
    Peer { address, chain: chain.iter().map(|certificate| certificate.clone().into_owned()).collect() }
}

fn answer(
    router: Router,
    peer: Peer,
    mut request: http::Request<Incoming>,
) -> BoxFuture<'static, Result<http::Response<Body>, std::convert::Infallible>> {
    request.extensions_mut().insert(peer);
    Box::pin(router.oneshot(request.map(Body::new)))
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

/// Runs a connection to its end: its own, the drain's, or that of our patience with a silent one.
async fn drive<C>(connection: C, first: &Notify, stop: &CancellationToken) -> Result<(), ConnectionError>
where
    C: GracefulConnection<Error = hyper::Error>,
{
    let mut connection = std::pin::pin!(connection);
    let silent = tokio::select! {
        ended = connection.as_mut() => return Ok(ended?),
        () = stop.cancelled() => false,
        () = silence(first) => true,
    };
    Pin::as_mut(&mut connection).graceful_shutdown();
    if silent {
        let _ = timeout(LINGER, connection).await;
        return Err(ConnectionError::Silent);
    }
    Ok(connection.await?)
}

/// Ends when no request came in time; never when one came.
async fn silence(first: &Notify) {
    if timeout(FIRST_REQUEST, first.notified()).await.is_ok() {
        futures::future::pending::<()>().await;
    }
}
