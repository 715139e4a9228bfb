//! Activity of a connection: how long it has been idle, and how long an answer has not been taken. Tells a client that works
//! from one that only occupies a connection.
//!
//! An answer holds its permit and its part in the activity until the last byte is written or given up, not only until the head
//! is: the permit bounds the memory of bodies, and the activity tells a slow download from an idle connection.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes};
use http::Response;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until};

use super::write_timeout::WRITE_TIMEOUT;

/// A connection without a request for this long is closed, if it has never had one (clients open spare connections) or the
/// cluster does not depend on its peer. Prometheus scrapes once a minute by default; half a minute more lets the next
/// scrape reuse its connection.
pub(crate) const IDLE_TIMEOUT: Duration = Duration::from_secs(90);

/// The activity of one connection; shared by its requests.
#[derive(Debug, Clone)]
pub(crate) struct Activity(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    /// Requests whose answer is not sent completely.
    in_flight: usize,
    /// Requests begun so far.
    begun: u64,
    /// When the last request began or ended.
    last_change: Instant,
    /// Answers under way: the number of their request and when the peer last took a part. There are a few hundred at most and
    /// nearly always one, which a list stores without an allocation for each request.
    sending: Vec<(u64, Instant)>,
}

/// A request until its answer is sent or given up.
pub(crate) struct InFlight {
    activity: Activity,
    number: u64,
}

impl Activity {
    pub(crate) fn new() -> Self {
        let state = State { in_flight: 0, begun: 0, last_change: Instant::now(), sending: Vec::new() };
        Self(Arc::new(Mutex::new(state)))
    }

    /// Counts a request until the value is dropped.
    pub(crate) fn begin_request(&self) -> InFlight {
        let mut state = self.0.lock();
        state.in_flight += 1;
        state.begun += 1;
        InFlight { activity: self.clone(), number: state.begun }
    }

    /// The number of requests that have begun.
    pub(super) fn begun(&self) -> u64 {
        self.0.lock().begun
    }

    /// True while a request is being answered.
    pub(super) fn is_answering(&self) -> bool {
        self.0.lock().in_flight > 0
    }

    /// Waits until the connection has been idle for [`IDLE_TIMEOUT`]. Infrastructure must only have sent one request: API
    /// servers keep their connections, and a quiet cluster has few requests.
    pub(crate) async fn idle(&self, is_infrastructure: bool) {
        loop {
            let (idle_since, has_begun) = {
                let state = self.0.lock();
                (if state.in_flight > 0 { Instant::now() } else { state.last_change }, state.begun > 0)
            };
            if is_infrastructure && has_begun {
                return futures::future::pending().await;
            }
            if idle_since.elapsed() >= IDLE_TIMEOUT {
                return;
            }
            sleep_until(idle_since + IDLE_TIMEOUT).await;
        }
    }

    /// Waits until the peer has taken nothing of some answer for [`WRITE_TIMEOUT`].
    pub(crate) async fn stalled(&self) {
        loop {
            let oldest = self.0.lock().sending.iter().map(|(_, progress)| *progress).min();
            let deadline = oldest.unwrap_or_else(Instant::now) + WRITE_TIMEOUT;
            if deadline <= Instant::now() {
                return;
            }
            sleep_until(deadline).await;
        }
    }
}

impl InFlight {
    /// Notes that a part of the answer became available or was taken.
    pub(crate) fn progress(&self) {
        let now = Instant::now();
        let mut state = self.activity.0.lock();
        match state.sending.iter_mut().find(|(number, _)| *number == self.number) {
            Some((_, progress)) => *progress = now,
            None => state.sending.push((self.number, now)),
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut state = self.activity.0.lock();
        state.sending.retain(|(number, _)| *number != self.number);
        state.in_flight -= 1;
        state.last_change = Instant::now();
    }
}

/// A body is sent in chunks of this many bytes, one DATA frame of HTTP/2 each. A peer that takes one within the write
/// timeout, half a KiB per second, is not stalled.
const CHUNK_BYTES: usize = 16 * 1024;

/// A permit that an answer holds until it is sent; in the extensions of the answer.
#[derive(Debug, Clone)]
pub(crate) struct UntilSent {
    _permit: Arc<OwnedSemaphorePermit>,
}

/// A limit of concurrent requests of one kind.
pub(crate) struct Permits(Arc<Semaphore>);

impl Permits {
    pub(crate) fn new(limit: usize) -> Self {
        Self(Arc::new(Semaphore::new(limit)))
    }

    /// `None` when all permits are in use.
    pub(crate) fn acquire(&self) -> Option<UntilSent> {
        let permit = self.0.clone().try_acquire_owned().ok()?;
        Some(UntilSent { _permit: Arc::new(permit) })
    }
}

/// Makes the body of `answer` hold its permit and `in_flight` until it is sent.
pub(super) fn track_until_sent(answer: Response<Body>, in_flight: InFlight) -> Response<Body> {
    let (mut head, body) = answer.into_parts();
    let permit = head.extensions.remove::<UntilSent>();
    if body.is_end_stream() {
        return Response::from_parts(head, body);
    }
    let held = Arc::new(Held { in_flight, _permit: permit });
    Response::from_parts(head, Body::new(TrackedBody { body, rest: Bytes::new(), held }))
}

/// What an answer holds. Its chunks share it: those that HTTP has accepted but not written are still in memory.
struct Held {
    in_flight: InFlight,
    _permit: Option<UntilSent>,
}

struct TrackedBody {
    body: Body,
    /// Taken out of `body` and not yet sent.
    rest: Bytes,
    held: Arc<Held>,
}

impl HttpBody for TrackedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.rest.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.rest = data,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                end => return Poll::Ready(end),
            }
        }
        self.held.in_flight.progress();
        let size = self.rest.len().min(CHUNK_BYTES);
        let chunk = Chunk { bytes: self.rest.split_to(size), held: self.held.clone() };
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_owner(chunk)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.rest.len() as u64;
        let body = self.body.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(rest + body.lower());
        if let Some(upper) = body.upper() {
            hint.set_upper(rest + upper);
        }
        hint
    }
}

/// A chunk of the body, in memory until it is written.
struct Chunk {
    bytes: Bytes,
    held: Arc<Held>,
}

impl AsRef<[u8]> for Chunk {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        self.held.in_flight.progress();
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use tokio::time::{advance, timeout};

    use super::*;

    async fn ends_within(activity: &Activity, is_infrastructure: bool, seconds: u64) -> bool {
        timeout(Duration::from_secs(seconds), activity.idle(is_infrastructure)).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_answer_is_not_idle_and_the_timeout_counts_from_its_end() {
        let activity = Activity::new();
        let answering = activity.begin_request();
        assert!(!ends_within(&activity, false, 300).await);
        drop(answering);
        assert!(!ends_within(&activity, false, 89).await);
        drop(activity.begin_request());
        assert!(!ends_within(&activity, false, 89).await, "every request restarts the timeout");
        assert!(ends_within(&activity, false, 2).await);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_not_taken_stalls_and_one_that_is_being_computed_does_not() {
        let activity = Activity::new();
        let stalls = async |seconds| timeout(Duration::from_secs(seconds), activity.stalled()).await.is_ok();
        let answering = activity.begin_request();
        let second = activity.begin_request();
        assert!(!stalls(300).await, "they are being computed");
        answering.progress();
        assert!(!stalls(29).await);
        answering.progress();
        second.progress();
        assert!(!stalls(29).await);
        second.progress();
        assert!(stalls(2).await, "the second goes on, the first does not");
        drop(answering);
        assert!(!stalls(27).await);
        drop(second);
        assert!(!stalls(300).await);
    }

    #[tokio::test(start_paused = true)]
    async fn an_api_server_may_be_idle_after_its_first_request() {
        let activity = Activity::new();
        assert!(ends_within(&activity, true, 91).await, "a spare connection");
        drop(activity.begin_request());
        advance(Duration::from_secs(3600)).await;
        assert!(!ends_within(&activity, true, 3600).await);
    }

    fn answer(size: usize, permits: &Permits) -> Response<Body> {
        let mut answer = Response::new(Body::from(vec![7; size]));
        answer.extensions_mut().insert(permits.acquire().unwrap());
        track_until_sent(answer, Activity::new().begin_request())
    }

    #[tokio::test]
    async fn the_permit_is_released_with_the_last_chunk_of_the_body() {
        let permits = Permits::new(1);
        let mut answer = answer(CHUNK_BYTES + 1, &permits);
        assert_eq!(answer.body().size_hint().exact(), Some(CHUNK_BYTES as u64 + 1));
        let mut chunks = Vec::new();
        while !answer.body().is_end_stream() {
            chunks.push(answer.body_mut().frame().await.unwrap().unwrap().into_data().unwrap());
        }
        assert_eq!(chunks.iter().map(Bytes::len).collect::<Vec<_>>(), [CHUNK_BYTES, 1]);
        drop(answer);
        chunks.remove(0);
        assert_eq!(permits.0.available_permits(), 0, "a byte is not written yet");
        chunks.clear();
        assert_eq!(permits.0.available_permits(), 1);
    }

    #[test]
    fn an_answer_without_a_body_and_a_dropped_one_hold_no_permit() {
        let permits = Permits::new(1);
        let empty = answer(0, &permits);
        assert_eq!(permits.0.available_permits(), 1);
        drop(answer(CHUNK_BYTES, &permits));
        assert_eq!(permits.0.available_permits(), 1);
        drop(empty);
    }
}
