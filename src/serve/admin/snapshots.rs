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

use super::state::AdminState;
use crate::engine::Evaluation;
use crate::record::write_line;
use crate::serve::encoding::{Reason, Status, internal_error};
use crate::serve::paths::SNAPSHOTS;
use crate::serve::tls::AnswerPermit;

const JSON_LINES: HeaderValue = HeaderValue::from_static("application/jsonl");

/// Bytes handed to the connection at once, and how many such chunks may wait for it: the cost of a slow reader.
const CHUNK_BYTES: usize = 64 * 1024;
const MAX_WAITING_CHUNKS: usize = 2;

/// `/debug/snapshots`
pub(crate) async fn list(
    State(admin): State<Arc<AdminState>>,
    Extension(permit): Extension<AnswerPermit>,
    uri: Uri,
) -> Response {
    let query = form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes());
    let Some((_, text)) = query.into_iter().find(|(key, _)| key == "at") else {
        let recent = admin.recent.clone();
        return match spawn_with_permit(permit, move || recent.list()).await {
            Ok(list) => Json(list).into_response(),
            Err(error) => internal_error(&error).into_response(),
        };
    };
    let Ok(at) = text.parse::<Timestamp>() else {
        let message =
            format!("at={text} is not a time: write it as {SNAPSHOTS} does, such as 2026-11-21T12:00:00Z");
        return Status::new(Reason::BadRequest, message).into_response();
    };
    match admin.recent.at(at) {
        Some(evaluation) => lines(vec![evaluation], permit),
        None if admin.recent.latest().is_none() => no_evaluation(&admin).into_response(),
        None => {
            let message = format!("the evaluation of {at} is not kept; {SNAPSHOTS} lists those that are");
            Status::new(Reason::NotFound, message).into_response()
        }
    }
}

/// `/debug/snapshots/latest`
pub(crate) async fn latest(
    State(admin): State<Arc<AdminState>>,
    Extension(permit): Extension<AnswerPermit>,
) -> Response {
    match admin.recent.latest() {
        Some(evaluation) => lines(vec![evaluation], permit),
        None => no_evaluation(&admin).into_response(),
    }
}

/// `/debug/snapshots/all`
pub(crate) async fn all(
    State(admin): State<Arc<AdminState>>,
    Extension(permit): Extension<AnswerPermit>,
) -> Response {
    let evaluations = admin.recent.all();
    if evaluations.is_empty() {
        return no_evaluation(&admin).into_response();
    }
    lines(evaluations, permit)
}

/// Why no evaluation is kept here, and where one is.
fn no_evaluation(admin: &AdminState) -> Status {
    let cause = match (admin.recent.reason_for_none(), admin.reads.other_leader()) {
        (Some(cause), _) => cause,
        (None, Some(leader)) => {
            format!("instance {leader} holds the lease and keeps the evaluations: ask that instance")
        }
        (None, None) => "nothing has been evaluated yet; retry in a few seconds".into(),
    };
    Status::new(Reason::NotFound, format!("no evaluation is kept here: {cause}"))
}

/// Serializes while it sends: the lines of a large fleet are never in memory as a whole.
fn lines(evaluations: Vec<Arc<Evaluation>>, permit: AnswerPermit) -> Response {
    let (sender, mut receiver) = mpsc::channel(MAX_WAITING_CHUNKS);
    spawn_with_permit(permit, move || {
        let mut out = BufWriter::with_capacity(CHUNK_BYTES, ChunkWriter(sender));
        let written = evaluations.iter().try_for_each(|evaluation| write_line(evaluation, &mut out));
        if let Err(error) = written.and_then(|()| out.flush()) {
            tracing::debug!(%error, "the reader of snapshots closed the connection");
        }
    });
    let chunks = futures::stream::poll_fn(move |context| receiver.poll_recv(context));
    ([(CONTENT_TYPE, JSON_LINES)], Body::from_stream(chunks)).into_response()
}

/// Runs `work` on a blocking thread, which holds the permit until it is done: otherwise a client that resets its request and
/// repeats it could occupy any number of threads.
fn spawn_with_permit<T: Send + 'static>(
    permit: AnswerPermit,
    work: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    spawn_blocking(move || {
        let result = work();
        drop(permit);
        result
    })
}

/// Writes into an answer; fails once nobody reads it any more.
struct ChunkWriter(mpsc::Sender<io::Result<Bytes>>);

impl Write for ChunkWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let chunk = Ok(Bytes::copy_from_slice(bytes));
        self.0.blocking_send(chunk).map_err(|_| io::ErrorKind::BrokenPipe)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::sleep;

    use super::*;
    use crate::serve::tls::Permits;

    #[tokio::test]
    async fn work_holds_its_permit_until_it_is_done_even_after_the_client_is_gone() {
        let permits = Permits::new(1);
        let (go_on, wait) = std::sync::mpsc::channel::<()>();
        let permit = permits.acquire().unwrap();
        let answer = permit.clone();
        drop(spawn_with_permit(permit, move || wait.recv()));
        drop(answer);
        assert!(permits.acquire().is_none(), "the client is gone, the work is not");
        go_on.send(()).unwrap();
        while permits.acquire().is_none() {
            sleep(Duration::from_millis(1)).await;
        }
    }
}
