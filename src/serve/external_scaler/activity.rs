//! Whether a variant is to run at all, told as it changes.

use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, Stream};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tonic::{Code, Status};

use super::messages::{IsActiveResponse, ScaledObjectRef};
use super::number::{Caller, Numbers};
use crate::engine::{Leadership, Published};
use crate::serve::tls::AnswerPermit;

/// How often an instance that is not the leader asks it.
const ASK_INTERVAL: Duration = Duration::from_millis(500);
/// How often what has not changed is said again, so that KEDA notices a connection that has died.
const REPEAT_INTERVAL: Duration = Duration::from_secs(20);

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
/// asking again does not mend, and when the server is about to stop.
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
            if state.numbers.stopping.is_cancelled() {
                return Ok(None);
            }
            state.published.mark_unchanged();
            state.leadership.mark_unchanged();
            match state.numbers.read(&state.caller, &state.scaled).await {
                Ok(number) if state.is_news(number > 0) => {
                    let result = number > 0;
                    state.said = Some((result, Instant::now()));
                    return Ok(Some((IsActiveResponse { result }, state)));
                }
                Err(error) if !is_passing(error.code()) => return Err(error),
                Ok(_) | Err(_) => state.wait().await,
            }
        }
    })
}

impl Activity {
    fn is_news(&self, is_active: bool) -> bool {
        self.said.is_none_or(|(said, at)| said != is_active || at.elapsed() >= REPEAT_INTERVAL)
    }

    /// Waits until there may be news.
    async fn wait(&mut self) {
        let is_leader = self.leadership.borrow().is_mine();
        let pause = if is_leader { REPEAT_INTERVAL } else { ASK_INTERVAL };
        tokio::select! {
            changed = self.published.changed() => if changed.is_err() { sleep(ASK_INTERVAL).await },
            changed = self.leadership.changed() => if changed.is_err() { sleep(ASK_INTERVAL).await },
            () = sleep(pause) => {}
            () = self.numbers.stopped() => {}
        }
    }
}

/// Whether an error may go away without anybody changing something.
const fn is_passing(code: Code) -> bool {
    matches!(code, Code::Unavailable | Code::ResourceExhausted | Code::Internal)
}
