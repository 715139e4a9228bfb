//! Limits of concurrent requests. An answer holds its permit and its part in the activity of its connection until the last byte
//! is written or given up, not only until the head is: the permit bounds the memory of bodies, and the activity tells a slow
//! download from an idle connection.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::{Body, Bytes};
use http::Response;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::activity::InFlight;

/// A body is sent in chunks of this many bytes, one DATA frame of HTTP/2 each. A peer that takes one within the write
/// timeout, half a KiB per second, is not stalled.
const CHUNK_BYTES: usize = 16 * 1024;

/// A permit that an answer holds until it is sent; in the extensions of the answer.
#[derive(Debug, Clone)]
pub(crate) struct AnswerPermit {
    _permit: Arc<OwnedSemaphorePermit>,
}

/// A limit of concurrent requests of one kind.
pub(crate) struct Permits(Arc<Semaphore>);

impl Permits {
    pub(crate) fn new(limit: usize) -> Self {
        Self(Arc::new(Semaphore::new(limit)))
    }

    /// `None` when all permits are in use.
    pub(crate) fn acquire(&self) -> Option<AnswerPermit> {
        let permit = self.0.clone().try_acquire_owned().ok()?;
        Some(AnswerPermit { _permit: Arc::new(permit) })
    }

    /// Whether some of its permits are in use.
    pub(crate) fn is_used(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}

/// Makes the body of `answer` hold its permit and `in_flight` until it is sent.
pub(super) fn track_until_sent(answer: Response<Body>, in_flight: InFlight) -> Response<Body> {
    let (mut head, body) = answer.into_parts();
    let permit = head.extensions.remove::<AnswerPermit>();
    if body.is_end_stream() {
        return Response::from_parts(head, body);
    }
    let held = Arc::new(Held { in_flight, _permit: permit });
    Response::from_parts(head, Body::new(TrackedBody { body, rest: Bytes::new(), held }))
}

/// What an answer holds. Its chunks share it: those that HTTP has accepted but not written are still in memory.
struct Held {
    in_flight: InFlight,
    _permit: Option<AnswerPermit>,
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
            let next = Pin::new(&mut self.body).poll_frame(cx);
            if next.is_pending() {
                self.held.in_flight.wait();
            }
            match ready!(next) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.rest = data,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                end => return Poll::Ready(end),
            }
        }
        self.held.in_flight.begin_part();
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
        self.held.in_flight.end_part();
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;
    use crate::serve::tls::activity::Activity;

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
