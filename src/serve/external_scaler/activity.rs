//! Whether a variant is to run at all, told as it changes.

use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, Stream};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tonic::Status;

use super::messages::{IsActiveResponse, ScaledObjectRef};
use super::number::{Caller, Numbers, is_denied};
use crate::engine::{Leadership, Published};
use crate::serve::tls::AnswerPermit;

/// How often an instance that is not the leader asks the leader.
const ASK_INTERVAL: Duration = Duration::from_millis(500);
/// The shortest pause between two reads of one stream: a read may publish a result, which is news for the stream.
const MIN_PAUSE: Duration = Duration::from_millis(50);
/// The pause after an error.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// How often what has not changed is said again, so that KEDA tries again what has failed there. Each time costs it a few requests.
const REPEAT_INTERVAL: Duration = Duration::from_secs(60);

/// A stream of one ScaledObject.
struct Activity {
    numbers: Arc<Numbers>,
    caller: Caller,
    scaled: ScaledObjectRef,
    published: watch::Receiver<Arc<Published>>,
    leadership: watch::Receiver<Leadership>,
    _permit: AnswerPermit,
    /// What was said last, and when.
    said: Option<(bool, Instant)>,
}

/// Says whether the variant has a number above 0, at once and whenever that changes. What is not known is not said. Ends with an error that
/// asking again does not mend, and without one when its connection is about to be closed or the server to stop: KEDA then opens another one.
pub(super) fn activity(
    numbers: Arc<Numbers>,
    caller: Caller,
    scaled: ScaledObjectRef,
    permit: AnswerPermit,
) -> impl Stream<Item = Result<IsActiveResponse, Status>> + Send + 'static {
    let (published, leadership) = (numbers.published.clone(), numbers.leadership.clone());
    let state = Activity { numbers, caller, scaled, published, leadership, _permit: permit, said: None };
    stream::try_unfold(state, |mut state| async move {
        loop {
            if state.numbers.stopping.is_cancelled() || state.caller.is_closed() {
                return Ok(None);
            }
            state.published.mark_unchanged();
            state.leadership.mark_unchanged();
            let read = {
                let _permit = state.numbers.stream_reads.acquire().await;
                state.numbers.read(&state.caller, &state.scaled).await
            };
            match read {
                Ok(number) if state.is_news(number > 0) => {
                    let result = number > 0;
                    state.said = Some((result, Instant::now()));
                    return Ok(Some((IsActiveResponse { result }, state)));
                }
                Ok(_) => state.wait(REPEAT_INTERVAL).await,
                Err(error) if is_denied(error.code()) => return Err(error),
                Err(_) => state.wait(RETRY_INTERVAL).await,
            }
        }
    })
}

impl Activity {
    fn is_news(&self, is_active: bool) -> bool {
        self.said.is_none_or(|(said, at)| said != is_active || at.elapsed() >= REPEAT_INTERVAL)
    }

    /// Waits until there may be news, on the leader for at most `longest`.
    async fn wait(&mut self, longest: Duration) {
        let is_leader = self.leadership.borrow().is_mine();
        // Streams that began together do not ask together.
        let pause = if is_leader { longest } else { ASK_INTERVAL.mul_f64(0.8 + 0.4 * fastrand::f64()) };
        sleep(MIN_PAUSE).await;
        tokio::select! {
            changed = self.published.changed() => if changed.is_err() { sleep(ASK_INTERVAL).await },
            changed = self.leadership.changed() => if changed.is_err() { sleep(ASK_INTERVAL).await },
            () = sleep(pause) => {}
            () = self.numbers.stopped() => {}
            () = self.caller.closed() => {}
        }
    }
}
