//! One connection: TCP to TLS to HTTP/2 or 1.1, as ALPN says, and its end: its own, the drain's, or that of our
//! patience.

use std::convert::Infallible;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use futures::StreamExt as _;
use futures::future::BoxFuture;
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

use super::accept::Shared;
use super::activity::{Activity, QUIET};
use super::heads::Heads;
use super::ledger::{Loss, handshake_loss};
use super::peer::{Peer, Vouched};
use super::sending::sending;
use super::shares::Place;
use super::stall::{Impatient, STALLED};
use crate::serve::auth::Chain;

/// A TLS handshake is two round trips.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// From one answer of HTTP/1.1 to the end of the next request's head: hyper knows no time-out for the head alone, which
/// `heads` has. A peer may be quiet for so long, and with less a scraper would need a new connection for each scrape.
const HEADERS: Duration = QUIET;

/// What a connection may still finish after its close for being quiet or not taking an answer, outside a drain.
const LINGER: Duration = Duration::from_secs(5);

/// What an old connection may still finish, and one of the cluster's own on which an answer stalls: as long as the
/// aggregator waits for an answer.
const FAREWELL: Duration = Duration::from_secs(60);

/// Requests at once on one HTTP/2 connection; the aggregator sends all of its on one.
const MAX_STREAMS: u32 = 250;

/// Requests that were taken back before we looked at them (CVE-2023-44487, rapid reset): more at a time end the
/// connection. A client that gives up a handful at once is in trouble, not at fault.
const MAX_RESETS: usize = 20;

/// Streams that we had to reset for breaking the protocol: more end the connection. An honest client has none.
const MAX_ERRORS: usize = 64;

/// Bytes of a request's body that are on their way at most; no body is ever read. The protocol's own least for a
/// connection.
const WINDOW: u32 = 65_535;

/// Bytes of request headers: a user may be in thousands of groups. A header block in more CONTINUATION frames than
/// these bytes need ends the connection.
const MAX_HEADERS: u32 = 256 * 1024;

/// Header lines of an HTTP/1.1 request: one for each of those groups.
const MAX_HEADER_LINES: usize = 4_096;

/// HTTP/2 pings find peers that are gone.
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_PATIENCE: Duration = Duration::from_secs(15);

/// An age is meant give or take a tenth, so that connections that began together don't end together.
const JITTER: f64 = 0.1;

/// Why a connection ended badly.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectionError {
    #[error("no certificate to show yet")]
    NoCertificate,
    #[error("no TLS handshake within {} s", HANDSHAKE.as_secs())]
    Late,
    #[error("TLS: {0}")]
    Tls(io::Error),
    #[error("HTTP: {0}")]
    Http(#[from] hyper::Error),
    #[error("no request within {} s", QUIET.as_secs())]
    Quiet,
    #[error("an answer of which nothing was taken for {} s", STALLED.as_secs())]
    Stalled,
    #[error("its handshake gave way to a newer one: every place for handshakes is taken")]
    Displaced,
    #[error("it gave way to a newer one: its address has the most of the places, and all are taken")]
    Crowding,
    #[error("every place for users with a certificate is taken")]
    CrowdOfUsers,
    #[error("every place for peers without a certificate that is trusted here is taken")]
    CrowdOfStrangers,
}

impl ConnectionError {
    /// What it counts as; `None` for the end of a connection that was served.
    pub(super) fn loss(&self) -> Option<Loss> {
        Some(match self {
            Self::NoCertificate => Loss::Handshake("no_certificate"),
            Self::Late => Loss::Handshake("timeout"),
            Self::Tls(error) => handshake_loss(error),
            Self::Displaced => Loss::Refused("handshake"),
            Self::Crowding => Loss::Refused("crowding"),
            Self::CrowdOfUsers => Loss::Refused("users"),
            Self::CrowdOfStrangers => Loss::Refused("strangers"),
            Self::Http(_) | Self::Quiet | Self::Stalled => return None,
        })
    }
}

pub(super) async fn run(tcp: TcpStream, address: SocketAddr, shared: &Shared) -> Result<(), ConnectionError> {
    tcp.set_nodelay(true).map_err(ConnectionError::Tls)?;
    let config = shared.service.certificates.config().ok_or(ConnectionError::NoCertificate)?;
    let handshake = shared.handshakes.push(address.ip());
    let tls =
        handshake.unless_displaced(timeout(HANDSHAKE, TlsAcceptor::from(config).accept(Impatient::new(tcp))));
    let Some(tls) = shared.stop.run_until_cancelled(tls).await else { return Ok(()) };
    let tls = tls.ok_or(ConnectionError::Displaced)?.map_err(|_| ConnectionError::Late)?;
    let tls = tls.map_err(ConnectionError::Tls)?;
    let is_h2 = tls.get_ref().1.alpn_protocol() == Some(b"h2");
    let peer = peer(&tls, address);
    let vouched = shared.service.vouching.vouched(&peer).await;
    let place = shared.place(vouched, address.ip())?;
    drop(handshake);
    let old_at = shared.service.age.map(|age| Instant::now() + jittered(age, random()));
    let (router, leaving, activity) =
        (shared.service.router.clone(), shared.service.leaving.clone(), Activity::new());
    let (requests, closing) = (activity.clone(), CancellationToken::new());
    let closed_by_answer = closing.clone();
    let service = hyper::service::service_fn(move |request| {
        let is_last = leaving.is_cancelled() || old_at.is_some_and(|at| Instant::now() >= at);
        let (answering, closing) = (requests.begin(), closing.clone());
        let answer = answer(router.clone(), peer.clone(), is_last, request);
        async move {
            let mut answer = answer.await?;
            if is_h2 && answer.headers_mut().remove(CONNECTION).is_some() {
                closing.cancel();
            }
            Ok::<_, Infallible>(sending(answer, answering))
        }
    });
    let heads = activity.clone();
    let ends = Ends {
        // An HTTP/1.1 peer is told with an answer: closed while it is idle, it may just be sending the next request.
        old_at: old_at.filter(|_| is_h2),
        closed_by_answer,
        activity,
        for_the_cluster: vouched == Vouched::ForTheCluster,
        place,
        stop: &shared.stop,
    };
    if is_h2 {
        drive(h2().serve_connection(TokioIo::new(Heads::of_frames(tls)), service), &ends).await
    } else {
        drive(h1().serve_connection(TokioIo::new(Heads::of_lines(tls, heads)), service), &ends).await
    }
}

fn peer(tls: &TlsStream<Impatient<TcpStream>>, address: SocketAddr) -> Peer {
    let chain = tls.get_ref().1.peer_certificates().unwrap_or_default();
    let chain = chain.iter().map(|certificate| certificate.clone().into_owned()).collect();
    Peer { address, chain: Arc::new(Chain::new(chain)) }
}

fn random() -> f64 {
    let bits = RandomState::new().build_hasher().finish();
    f64::from((bits >> 32) as u32) / f64::from(u32::MAX)
}

/// `age` give or take [`JITTER`], as `random` between 0 and 1 says.
fn jittered(age: Duration, random: f64) -> Duration {
    age.mul_f64(JITTER.mul_add(2.0 * random - 1.0, 1.0))
}

/// The body is let go of unread: no request that is answered here has one, and none may cost memory or hold up the end
/// of its connection.
fn answer(
    router: Router,
    peer: Peer,
    is_last: bool,
    request: Request<Incoming>,
) -> BoxFuture<'static, Result<Response<Body>, Infallible>> {
    let mut request = request.map(|_| Body::empty());
    request.extensions_mut().insert(peer);
    let says_so = is_last && request.version() < Version::HTTP_2;
    Box::pin(async move {
        let mut answer = router.oneshot(request).await?;
        if answer.status() == StatusCode::NOT_MODIFIED {
            // The router gives every answer the length of its body; of this one it would have to be the body's that is
            // not sent.
            answer.headers_mut().remove(CONTENT_LENGTH);
        }
        if says_so {
            answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        Ok(answer)
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
        .max_pending_accept_reset_streams(MAX_RESETS)
        .max_local_error_reset_streams(MAX_ERRORS)
        .max_header_list_size(MAX_HEADERS)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_PATIENCE);
    builder
}

/// What may end a connection besides itself.
struct Ends<'a> {
    old_at: Option<Instant>,
    /// Cancelled by an answer with `Connection: close`, which HTTP/2 has no header for: it becomes GOAWAY, as in Go servers.
    closed_by_answer: CancellationToken,
    activity: Activity,
    for_the_cluster: bool,
    place: Option<Place<'a>>,
    stop: &'a CancellationToken,
}

impl Ends<'_> {
    /// The first of them: how long the peer may still take and what the end counts as; an error that cuts the connection.
    async fn first(&self) -> Result<(Duration, Result<(), ConnectionError>), ConnectionError> {
        let patience = if self.for_the_cluster { FAREWELL } else { LINGER };
        tokio::select! {
            // The drain has a deadline of its own.
            () = self.stop.cancelled() => Ok((Duration::MAX, Ok(()))),
            () = self.old() => Ok((FAREWELL, Ok(()))),
            () = self.closed_by_answer.cancelled() => Ok((FAREWELL, Ok(()))),
            () = self.activity.quiet(self.for_the_cluster) => Ok((LINGER, Err(ConnectionError::Quiet))),
            () = self.activity.stalled() => Ok((patience, Err(ConnectionError::Stalled))),
            () = self.displaced() => Err(ConnectionError::Crowding),
        }
    }

    async fn old(&self) {
        match self.old_at {
            Some(at) => sleep_until(at).await,
            None => std::future::pending().await,
        }
    }

    async fn displaced(&self) {
        match &self.place {
            Some(place) => place.displaced().await,
            None => std::future::pending().await,
        }
    }
}

/// Runs a connection to its end. An HTTP/2 peer is asked to leave with GOAWAY: what it has sent until it heard of it is
/// answered. So is one that takes nothing of an answer, since hyper asks a body that waits for the peer's window for
/// nothing, not even for an error: a single stream cannot be ended from here.
async fn drive<C>(connection: C, ends: &Ends<'_>) -> Result<(), ConnectionError>
where
    C: GracefulConnection<Error = hyper::Error>,
{
    let mut connection = std::pin::pin!(connection);
    // In a set, which asks only who has woken: every request wakes the connection, and none of them an end.
    let mut end = FuturesUnordered::from_iter([ends.first()]);
    let (patience, outcome) = tokio::select! {
        ended = connection.as_mut() => return Ok(ended?),
        Some(end) = end.next() => end?,
    };
    Pin::as_mut(&mut connection).graceful_shutdown();
    let ended = timeout(patience, connection).await;
    outcome.and_then(|()| Ok(ended.unwrap_or(Ok(()))?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_that_begin_together_end_within_a_fifth_of_their_age() {
        let age = Duration::from_secs(600);
        assert_eq!([0.0, 0.5, 1.0].map(|random| jittered(age, random).as_secs()), [540, 600, 660]);
        let (one, two) = (random(), random());
        assert!((0.0..=1.0).contains(&one) && one.to_bits() != two.to_bits());
    }
}
