//! An answer on its way out: what it holds (its place among the reads, its part in what the connection does), it holds
//! until its last byte is written or given up, not only until its head is. The memory of a body is bounded by the one,
//! and a slow download is told from a quiet connection by the other.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::{Body, Bytes};
use http::Response;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::sync::OwnedSemaphorePermit;

use super::activity::Answering;

/// A body is sent in parts of this size, one DATA frame of HTTP/2 each: a peer that takes one within the time that an
/// answer may stall, half a KiB a second, goes on.
const PART: usize = 16 * 1024;

/// A place that an answer keeps until it is sent; among the extensions of the answer.
#[derive(Debug, Clone)]
pub(crate) struct UntilSent {
    _place: Arc<OwnedSemaphorePermit>,
}

impl UntilSent {
    pub(crate) fn new(place: OwnedSemaphorePermit) -> Self {
        Self { _place: Arc::new(place) }
    }
}

/// The same answer; what it holds is let go of when it has been sent.
pub(super) fn sending(answer: Response<Body>, answering: Answering) -> Response<Body> {
    let (mut head, body) = answer.into_parts();
    let place = head.extensions.remove::<UntilSent>();
    if body.is_end_stream() {
        return Response::from_parts(head, body);
    }
    let held = Arc::new(Held { answering, _place: place });
    Response::from_parts(head, Body::new(Sending { body, rest: Bytes::new(), held }))
}

/// What an answer holds. Shared with its parts: those that HTTP has taken over but not written are still in memory.
struct Held {
    answering: Answering,
    _place: Option<UntilSent>,
}

/// The body.
struct Sending {
    body: Body,
    /// What was taken out of `body` and not yet sent.
    rest: Bytes,
    held: Arc<Held>,
}

impl HttpBody for Sending {
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
                    Err(other) => return Poll::Ready(Some(Ok(other))),
                },
                end => return Poll::Ready(end),
            }
        }
        self.held.answering.progress();
        let size = self.rest.len().min(PART);
        let part = Part { bytes: self.rest.split_to(size), held: self.held.clone() };
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_owner(part)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (rest, body) = (self.rest.len() as u64, self.body.size_hint());
        let mut hint = SizeHint::new();
        hint.set_lower(rest + body.lower());
        if let Some(upper) = body.upper() {
            hint.set_upper(rest + upper);
        }
        hint
    }
}

/// A part of the body, in memory until it is written.
struct Part {
    bytes: Bytes,
    held: Arc<Held>,
}

impl AsRef<[u8]> for Part {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.held.answering.progress();
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use tokio::sync::Semaphore;

    use super::super::activity::Activity;
    use super::*;

    fn answer(size: usize, places: &Arc<Semaphore>) -> Response<Body> {
        let mut answer = Response::new(Body::from(vec![7; size]));
        let place = places.clone().try_acquire_owned().unwrap();
        answer.extensions_mut().insert(UntilSent::new(place));
        sending(answer, Activity::new().begin())
    }

    #[tokio::test]
    async fn a_place_comes_back_with_the_last_part_of_the_body_whoever_has_it() {
        let places = Arc::new(Semaphore::new(1));
        let mut answer = answer(PART + 1, &places);
        assert_eq!(answer.body().size_hint().exact(), Some(PART as u64 + 1));
        let mut parts = Vec::new();
        while !answer.body().is_end_stream() {
            parts.push(answer.body_mut().frame().await.unwrap().unwrap().into_data().unwrap());
        }
        assert_eq!(parts.iter().map(Bytes::len).collect::<Vec<_>>(), [PART, 1]);
        drop(answer);
        parts.remove(0);
        assert_eq!(places.available_permits(), 0, "a byte is not written yet");
        parts.clear();
        assert_eq!(places.available_permits(), 1);
    }

    #[test]
    fn an_answer_without_a_body_and_one_that_is_given_up_hold_nothing() {
        let places = Arc::new(Semaphore::new(1));
        let empty = answer(0, &places);
        assert_eq!(places.available_permits(), 1);
        drop(answer(PART, &places));
        assert_eq!(places.available_permits(), 1);
        drop(empty);
    }
}
