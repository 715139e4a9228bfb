//! `/debug/snapshots`: the last evaluations of this instance, as lines that `wva replay`, `decide` and `explain` read.

use std::io::{self, BufWriter, Write};
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Uri};
use jiff::Timestamp;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, spawn_blocking};

use crate::engine::Evaluation;
use crate::record::{Recent, write_line};
use crate::serve::internal_error;
use crate::serve::state::AppState;
use crate::serve::status::{Reason, Status};
use crate::serve::tls::UntilSent;

/// What there is; with `?at=` the evaluation of that moment.
pub(crate) const LIST: &str = "/debug/snapshots";
/// The newest evaluation.
pub(crate) const LATEST: &str = "/debug/snapshots/latest";
/// All of them, the oldest first.
pub(crate) const ALL: &str = "/debug/snapshots/all";

const JSON_LINES: HeaderValue = HeaderValue::from_static("application/jsonl");

/// Bytes that are handed to the connection at once, and how many of these may wait for it: what a slow reader costs.
const CHUNK: usize = 64 * 1024;
const WAITING: usize = 2;

/// `/debug/snapshots`
pub(crate) async fn list(
    State(state): State<AppState>,
    Extension(place): Extension<UntilSent>,
    uri: Uri,
) -> Response {
    let asked = uri.query().and_then(|query| query.split('&').find_map(|part| part.strip_prefix("at=")));
    let Some(asked) = asked else { return listed(state.recent().clone(), place).await };
    let text = percent_encoding::percent_decode_str(asked).decode_utf8_lossy();
    let Ok(at) = text.parse::<Timestamp>() else {
        let message =
            format!("at={text} is not a time: write it as {LIST} does, such as 2026-11-21T12:00:00Z");
        return Status::new(Reason::BadRequest, message).into_response();
    };
    match state.recent().at(at) {
        Some(evaluation) => lines(vec![evaluation], place),
        None if state.recent().latest().is_none() => none(&state).into_response(),
        None => {
            let message = format!("the evaluation of {at} is not kept; {LIST} says which are");
            Status::new(Reason::NotFound, message).into_response()
        }
    }
}

/// `/debug/snapshots/latest`
pub(crate) async fn latest(
    State(state): State<AppState>,
    Extension(place): Extension<UntilSent>,
) -> Response {
    let newest = state.recent().latest();
    newest.map_or_else(|| none(&state).into_response(), |newest| lines(vec![newest], place))
}

/// `/debug/snapshots/all`
pub(crate) async fn all(State(state): State<AppState>, Extension(place): Extension<UntilSent>) -> Response {
    let all = state.recent().all();
    if all.is_empty() { none(&state).into_response() } else { lines(all, place) }
}

async fn listed(recent: Arc<Recent>, place: UntilSent) -> Response {
    match in_place(place, move || recent.list()).await {
        Ok(list) => Json(list).into_response(),
        Err(failure) => internal_error(&failure).into_response(),
    }
}

/// Why there is nothing to show, and where there is.
fn none(state: &AppState) -> Status {
    let why = match (state.recent().reason_for_none(), state.other_holder()) {
        (Some(why), _) => why,
        (None, Some(holder)) => {
            format!("instance {holder} decides, and only its evaluations are kept: ask it")
        }
        (None, None) => "nothing has been evaluated yet; ask again in a few seconds".into(),
    };
    Status::new(Reason::NotFound, format!("no evaluation is kept here: {why}"))
}

/// Written while it is sent: the lines of a large fleet are never in memory as a whole.
fn lines(evaluations: Vec<Arc<Evaluation>>, place: UntilSent) -> Response {
    let (sender, mut receiver) = mpsc::channel(WAITING);
    in_place(place, move || {
        let mut out = BufWriter::with_capacity(CHUNK, Pipe(sender));
        let written = evaluations.iter().try_for_each(|evaluation| write_line(evaluation, &mut out));
        if let Err(error) = written.and_then(|()| out.flush()) {
            tracing::debug!(%error, "whoever read snapshots went away");
        }
    });
    let parts = futures::stream::poll_fn(move |context| receiver.poll_recv(context));
    ([(CONTENT_TYPE, JSON_LINES)], Body::from_stream(parts)).into_response()
}

/// Does `work` away from the threads that answer. It keeps its place until it is done: whoever resets his request and asks
/// again would otherwise have any number of them at work.
fn in_place<T: Send + 'static>(place: UntilSent, work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    spawn_blocking(move || {
        let made = work();
        drop(place);
        made
    })
}

/// Writes into an answer; fails when nobody reads it any more.
struct Pipe(mpsc::Sender<io::Result<Bytes>>);

impl Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let part = Ok(Bytes::copy_from_slice(bytes));
        self.0.blocking_send(part).map_err(|_| io::ErrorKind::BrokenPipe)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::Semaphore;
    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn work_that_nobody_waits_for_any_more_keeps_its_place_until_it_is_done() {
        let places = Arc::new(Semaphore::new(1));
        let (go_on, wait) = std::sync::mpsc::channel::<()>();
        let place = UntilSent::new(places.clone().try_acquire_owned().unwrap());
        let answer = place.clone();
        drop(in_place(place, move || wait.recv()));
        drop(answer);
        assert_eq!(places.available_permits(), 0, "the client is gone, its work is not");
        go_on.send(()).unwrap();
        drop(timeout(Duration::from_secs(5), places.acquire()).await.unwrap().unwrap());
    }
}
