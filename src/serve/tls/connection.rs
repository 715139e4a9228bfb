//! One connection: TCP, TLS, then HTTP/2 or HTTP/1.1 as ALPN chose, and everything that may end it.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use futures::StreamExt as _;
use futures::future::{BoxFuture, OptionFuture};
use futures::stream::FuturesUnordered;
use http::header::{CONNECTION, CONTENT_LENGTH};
use http::{HeaderValue, Request, Response, StatusCode, Version};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulConnection;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use super::activity::{Activity, IDLE_TIMEOUT};
use super::answer_permit::track_until_sent;
use super::certificates::Certificates;
use super::connection_errors::{ConnectionErrors, Failure, handshake_failure};
use super::connection_quota::{ConnectionQuota, QuotaPermit};
use super::head_timeout::HeadTimeout;
use super::peer::{PeerChain, PeerTrust, PeerVerifier};
use super::write_timeout::{WRITE_TIMEOUT, WriteTimeout};

/// Open connections. Each API server needs a few. A connection holds at most 64 KiB of certificates, the longest handshake
/// message, and 256 KiB of a request's head. Anybody in the network can use the quarter for handshakes and the quarter
/// for untrusted peers: 256 × 64 KiB + 256 × 320 KiB is 96 MiB at worst.
pub(crate) const MAX_CONNECTIONS: usize = 1_024;

/// One in this many connections may be in its handshake, when the peer may be anybody; as many may belong to users with a
/// certificate, and as many to untrusted peers. The remaining quarter is always free for API servers and other instances.
const QUOTAS: usize = 4;

/// A TLS handshake takes two round trips.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// From one HTTP/1.1 answer to the end of the next request's head. hyper has no timeout for the head alone, which
/// `head_timeout` provides. An idle peer may wait this long; with less, a scraper would need a new connection for each scrape.
const HTTP1_HEAD_TIMEOUT: Duration = IDLE_TIMEOUT;

/// Time to finish requests after a connection was closed for being idle or for not taking an answer, outside a drain.
const LINGER_TIMEOUT: Duration = Duration::from_secs(5);

/// Time to finish requests on an old connection, and on one of the cluster's own whose answer stalls: as long as the
/// aggregator waits for an answer.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(60);

/// Cancelled before the connection of a request is closed: an answer without an end then ends. Whoever cancels it closes the connection.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionEnd(pub(crate) CancellationToken);

/// What the requests of a port are like.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Traffic {
    /// Concurrent requests on one HTTP/2 connection.
    max_streams: u32,
    /// Bytes of a request's head.
    max_head_bytes: u32,
    /// Whether requests have bodies that count, and answers may be streams without an end. Other bodies are dropped unread: none
    /// may cost memory or delay the end of the connection.
    has_streams: bool,
}

impl Traffic {
    /// Reads; the aggregator sends all of its requests on one connection.
    pub(crate) const READS: Self =
        Self { max_streams: 250, max_head_bytes: MAX_HEADER_BYTES, has_streams: false };
    /// gRPC; KEDA keeps a stream for each ScaledObject, all on one connection.
    pub(crate) const GRPC: Self = Self { max_streams: 10_000, max_head_bytes: 16 << 10, has_streams: true };
}

/// Requests that the client reset before they were read (CVE-2023-44487, rapid reset). More at a time end the connection. A
/// client that gives up a few at once is in trouble, not at fault.
const MAX_PENDING_RESETS: usize = 20;

/// Streams that were reset here for breaking the protocol. More end the connection. A correct client has none.
const MAX_ERROR_RESETS: usize = 64;

/// Bytes of request bodies in flight, of which there are none or small ones: the smallest connection window that HTTP/2 allows.
const BODY_WINDOW: u32 = 65_535;

/// Bytes of request headers: a user may be in thousands of groups. A header block in more CONTINUATION frames than
/// these bytes need ends the connection.
const MAX_HEADER_BYTES: u32 = 256 * 1024;

/// Header lines of an HTTP/1.1 request: one for each of those groups.
const MAX_HEADER_LINES: usize = 4_096;

/// HTTP/2 pings detect peers that are gone.
const PING_INTERVAL: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(15);

/// Connection ages vary by this share in both directions, so that connections that began together do not end together.
const AGE_JITTER: f64 = 0.1;

/// What is served on the connections, and under which limits.
pub(crate) struct Service {
    pub(crate) certificates: Arc<Certificates>,
    pub(crate) router: Router,
    pub(crate) traffic: Traffic,
    pub(crate) peer_verifier: Arc<dyn PeerVerifier>,
    pub(crate) errors: Arc<ConnectionErrors>,
    pub(crate) max_connections: usize,
    /// Closes a connection that is about this old, between two requests; `None`: never.
    pub(crate) max_age: Option<Duration>,
    /// Cancelled when the process is about to stop accepting: HTTP/1.1 peers are then told to close the connection.
    pub(crate) stopping: CancellationToken,
}

/// What all connections share.
pub(super) struct Shared {
    pub(super) service: Service,
    handshakes: ConnectionQuota,
    users: ConnectionQuota,
    untrusted: ConnectionQuota,
    stop: CancellationToken,
}

impl Shared {
    pub(super) fn new(service: Service, stop: CancellationToken) -> Self {
        let quota = || ConnectionQuota::new(service.max_connections / QUOTAS);
        Self { handshakes: quota(), users: quota(), untrusted: quota(), service, stop }
    }

    /// A permit for the life of the connection; infrastructure needs none.
    fn acquire(&self, trust: PeerTrust, from: IpAddr) -> Result<Option<QuotaPermit<'_>>, ConnectionError> {
        match trust {
            PeerTrust::Infrastructure => Ok(None),
            PeerTrust::User => self.users.acquire(from).map(Some).ok_or(ConnectionError::TooManyUsers),
            PeerTrust::Untrusted => {
                self.untrusted.acquire(from).map(Some).ok_or(ConnectionError::TooManyUntrusted)
            }
        }
    }
}

/// Why a connection ended badly.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectionError {
    #[error("there is no serving certificate yet")]
    NoCertificate,
    #[error("no TLS handshake within {} s", HANDSHAKE_TIMEOUT.as_secs())]
    HandshakeTimeout,
    #[error("TLS: {0}")]
    Tls(io::Error),
    #[error("HTTP: {0}")]
    Http(#[from] hyper::Error),
    #[error("no request within {} s", IDLE_TIMEOUT.as_secs())]
    Idle,
    #[error("the client took no byte of an answer for {} s", WRITE_TIMEOUT.as_secs())]
    Stalled,
    #[error("displaced by a newer handshake: the limit for handshakes is reached")]
    DisplacedHandshake,
    #[error(
        "displaced by a newer connection: the limit is reached, and its address has the most connections"
    )]
    Displaced,
    #[error("the limit for users with a certificate is reached")]
    TooManyUsers,
    #[error("the limit for peers without a trusted certificate is reached")]
    TooManyUntrusted,
}

impl ConnectionError {
    /// How it is counted; `None` for the end of a connection that was served.
    pub(super) fn failure(&self) -> Option<Failure> {
        Some(match self {
            Self::NoCertificate => Failure::Handshake("no_certificate"),
            Self::HandshakeTimeout => Failure::Handshake("timeout"),
            Self::Tls(error) => handshake_failure(error),
            Self::DisplacedHandshake => Failure::Refused("handshake"),
            Self::Displaced => Failure::Refused("crowding"),
            Self::TooManyUsers => Failure::Refused("users"),
            Self::TooManyUntrusted => Failure::Refused("strangers"),
            Self::Http(_) | Self::Idle | Self::Stalled => return None,
        })
    }
}

/// Serves one connection to its end.
pub(super) async fn run(tcp: TcpStream, address: SocketAddr, shared: &Shared) -> Result<(), ConnectionError> {
    tcp.set_nodelay(true).map_err(ConnectionError::Tls)?;
    let config = shared.service.certificates.config().ok_or(ConnectionError::NoCertificate)?;
    let handshake = shared.handshakes.acquire_displacing(address.ip());
    let accepted = TlsAcceptor::from(config).accept(WriteTimeout::new(tcp));
    let accepted = handshake.unless_displaced(timeout(HANDSHAKE_TIMEOUT, accepted));
    let Some(accepted) = shared.stop.run_until_cancelled(accepted).await else { return Ok(()) };
    let accepted = accepted.ok_or(ConnectionError::DisplacedHandshake)?;
    let tls = accepted.map_err(|_| ConnectionError::HandshakeTimeout)?.map_err(ConnectionError::Tls)?;
    let certificates = tls.get_ref().1.peer_certificates().unwrap_or_default();
    let certificates = certificates.iter().map(|certificate| certificate.clone().into_owned());
    let chain = PeerChain::new(certificates.collect());
    let trust = shared.service.peer_verifier.verify(&chain).await;
    let permit = shared.acquire(trust, address.ip())?;
    drop(handshake);
    serve_http(tls, chain, Admission { trust, permit }, shared).await
}

/// What a connection was admitted with.
struct Admission<'a> {
    trust: PeerTrust,
    permit: Option<QuotaPermit<'a>>,
}

async fn serve_http(
    tls: TlsStream<WriteTimeout<TcpStream>>,
    chain: PeerChain,
    admission: Admission<'_>,
    shared: &Shared,
) -> Result<(), ConnectionError> {
    let is_h2 = tls.get_ref().1.alpn_protocol() == Some(b"h2");
    let expires_at = shared.service.max_age.map(|age| Instant::now() + jittered(age, fastrand::f64()));
    let activity = Activity::new();
    let closing = CancellationToken::new();
    let traffic = shared.service.traffic;
    let service = {
        let router = shared.service.router.clone();
        let stopping = shared.service.stopping.clone();
        let activity = activity.clone();
        let closing = closing.clone();
        hyper::service::service_fn(move |request: Request<Incoming>| {
            let is_last = stopping.is_cancelled() || expires_at.is_some_and(|at| Instant::now() >= at);
            let in_flight = activity.begin_request();
            let closing = closing.clone();
            let request = if traffic.has_streams {
                let mut request = request.map(Body::new);
                request.extensions_mut().insert(ConnectionEnd(closing.clone()));
                request
            } else {
                request.map(|_| Body::empty())
            };
            let answer = answer(router.clone(), chain.clone(), is_last, request);
            async move {
                let mut answer = answer.await?;
                if is_h2 && answer.headers_mut().remove(CONNECTION).is_some() {
                    closing.cancel();
                }
                Ok::<_, Infallible>(track_until_sent(answer, in_flight))
            }
        })
    };
    let conditions = CloseConditions {
        // An HTTP/1.1 peer is told by an answer: an idle one that is closed may just be sending its next request.
        expires_at: expires_at.filter(|_| is_h2),
        closing,
        stopping: traffic.has_streams.then(|| shared.service.stopping.clone()),
        activity: activity.clone(),
        is_infrastructure: admission.trust == PeerTrust::Infrastructure,
        permit: admission.permit,
        stop: &shared.stop,
    };
    if is_h2 {
        drive(h2(traffic).serve_connection(TokioIo::new(HeadTimeout::http2(tls)), service), &conditions).await
    } else {
        drive(h1().serve_connection(TokioIo::new(HeadTimeout::http1(tls, activity)), service), &conditions)
            .await
    }
}

/// `age` plus or minus [`AGE_JITTER`]; `random` is between 0 and 1.
fn jittered(age: Duration, random: f64) -> Duration {
    age.mul_f64(AGE_JITTER.mul_add(2.0 * random - 1.0, 1.0))
}

/// Routes a request.
fn answer(
    router: Router,
    chain: PeerChain,
    is_last: bool,
    mut request: Request<Body>,
) -> BoxFuture<'static, Result<Response<Body>, Infallible>> {
    request.extensions_mut().insert(chain);
    let closes = is_last && request.version() < Version::HTTP_2;
    Box::pin(async move {
        let mut answer = router.oneshot(request).await?;
        if answer.status() == StatusCode::NOT_MODIFIED {
            // The router sets the length of the empty body. In a 304 it would have to be the length of the body that
            // is not sent.
            answer.headers_mut().remove(CONTENT_LENGTH);
        }
        if closes {
            answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        Ok(answer)
    })
}

fn h1() -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(HTTP1_HEAD_TIMEOUT)
        .max_headers(MAX_HEADER_LINES)
        .max_buf_size(MAX_HEADER_BYTES as usize);
    builder
}

fn h2(traffic: Traffic) -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(traffic.max_streams)
        .max_pending_accept_reset_streams(MAX_PENDING_RESETS)
        .max_local_error_reset_streams(MAX_ERROR_RESETS)
        .max_header_list_size(traffic.max_head_bytes)
        .initial_stream_window_size(BODY_WINDOW)
        .initial_connection_window_size(BODY_WINDOW)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT);
    builder
}

/// What may end a connection besides the connection itself.
struct CloseConditions<'a> {
    expires_at: Option<Instant>,
    /// Cancelled by an answer with `Connection: close`, and for all streams before the connection is closed. HTTP/2 has no such header:
    /// it becomes GOAWAY, as in Go servers.
    closing: CancellationToken,
    /// Cancelled when the process is about to stop; where a peer keeps streams, which it then opens at another instance.
    stopping: Option<CancellationToken>,
    activity: Activity,
    is_infrastructure: bool,
    permit: Option<QuotaPermit<'a>>,
    stop: &'a CancellationToken,
}

/// How a connection is closed gracefully.
struct Closing {
    /// Time for the peer to take what is under way.
    timeout: Duration,
    /// Why the connection ends badly, if it does.
    error: Option<ConnectionError>,
}

impl CloseConditions<'_> {
    /// Waits for the first condition that holds; an error cuts the connection at once.
    async fn first_met(&self) -> Result<Closing, ConnectionError> {
        let stalled_timeout = if self.is_infrastructure { CLOSE_TIMEOUT } else { LINGER_TIMEOUT };
        let close = |timeout, error| Ok(Closing { timeout, error });
        let expired = OptionFuture::from(self.expires_at.map(sleep_until));
        let stopping = OptionFuture::from(self.stopping.as_ref().map(CancellationToken::cancelled));
        let displaced = OptionFuture::from(self.permit.as_ref().map(QuotaPermit::displaced));
        tokio::select! {
            // The drain has a deadline of its own.
            () = self.stop.cancelled() => close(Duration::MAX, None),
            Some(()) = expired => close(CLOSE_TIMEOUT, None),
            Some(()) = stopping => close(CLOSE_TIMEOUT, None),
            () = self.closing.cancelled() => close(CLOSE_TIMEOUT, None),
            () = self.activity.idle(self.is_infrastructure) => close(LINGER_TIMEOUT, Some(ConnectionError::Idle)),
            () = self.activity.stalled() => close(stalled_timeout, Some(ConnectionError::Stalled)),
            Some(()) = displaced => Err(ConnectionError::Displaced),
        }
    }
}

/// Runs a connection to its end. An HTTP/2 peer is asked to leave with GOAWAY, and every request that it sent before it saw
/// that is answered. A peer that takes nothing of an answer is asked to leave too: hyper does not poll a body while it waits
/// for the peer's window, so a single stream cannot be ended from here.
async fn drive<C>(connection: C, conditions: &CloseConditions<'_>) -> Result<(), ConnectionError>
where
    C: GracefulConnection<Error = hyper::Error>,
{
    let mut connection = std::pin::pin!(connection);
    // The set polls only what was woken: every request wakes this task, and hardly ever one of the reasons to close.
    let mut end = FuturesUnordered::from_iter([conditions.first_met()]);
    let closing = tokio::select! {
        ended = connection.as_mut() => return Ok(ended?),
        Some(end) = end.next() => end?,
    };
    conditions.closing.cancel();
    Pin::as_mut(&mut connection).graceful_shutdown();
    let ended = timeout(closing.timeout, connection).await;
    match closing.error {
        Some(error) => Err(error),
        None => Ok(ended.unwrap_or(Ok(()))?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_that_begin_together_end_within_a_fifth_of_their_age() {
        let age = Duration::from_secs(600);
        assert_eq!([0.0, 0.5, 1.0].map(|random| jittered(age, random).as_secs()), [540, 600, 660]);
        let left = fastrand::f64();
        let right = fastrand::f64();
        assert!((0.0..=1.0).contains(&left) && left.to_bits() != right.to_bits());
    }
}
