//! Whether a variant is to run at all, told as it changes.

use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, Stream};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tonic::Status;

use super::leader_activity::{Activity, LeaderActivity};
use super::messages::{IsActiveResponse, ScaledObjectRef};
use super::number::{Caller, Numbers, is_denied};
use crate::engine::{Leadership, Published};
use crate::serve::tls::AnswerPermit;

/// The shortest pause between two reads of one stream: a read may publish a result, which is news for the stream.
const MIN_PAUSE: Duration = Duration::from_millis(50);
/// The pause after an error.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// The pause after an error where nobody knows a number.
const UNKNOWN_INTERVAL: Duration = Duration::from_secs(10);
/// How often the number of another installation's variant is read, of which the leader knows none.
const FOREIGN_INTERVAL: Duration = Duration::from_secs(1);
/// How often what has not changed is said again, so that KEDA tries again what has failed there. Each time costs it a few requests.
const REPEAT_INTERVAL: Duration = Duration::from_secs(60);

/// A stream of one ScaledObject.
struct ActivityStream {
    numbers: Arc<Numbers>,
    caller: Caller,
    scaled: ScaledObjectRef,
    published: watch::Receiver<Arc<Published>>,
    leadership: watch::Receiver<Leadership>,
    /// What the leader has decided, on another instance.
    leader: watch::Receiver<Option<Arc<LeaderActivity>>>,
    _permit: AnswerPermit,
    /// What was said last, and when.
    said: Option<(bool, Instant)>,
}

/// Says whether the variant has a number above 0, at once and whenever that changes. What is not known is not said. Ends with an error that
/// asking again does not mend, and without one when its connection is about to be closed or the server to stop: KEDA then opens another one.
///
/// What is decided tells when a read may have news; only the read, which is authorised, is passed on.
pub(super) fn activity(
    numbers: Arc<Numbers>,
    caller: Caller,
    scaled: ScaledObjectRef,
    permit: AnswerPermit,
) -> impl Stream<Item = Result<IsActiveResponse, Status>> + Send + 'static {
    let (published, leadership) = (numbers.published.clone(), numbers.leadership.clone());
    let leader = numbers.leader.subscribe();
    let state = ActivityStream {
        numbers,
        caller,
        scaled,
        published,
        leadership,
        leader,
        _permit: permit,
        said: None,
    };
    stream::try_unfold(state, |mut state| async move {
        loop {
            if state.numbers.stopping.is_cancelled() || state.caller.is_closed() {
                return Ok(None);
            }
            state.published.mark_unchanged();
            state.leadership.mark_unchanged();
            state.leader.mark_unchanged();
            let read = {
                let _permit = state.numbers.stream_reads.acquire().await;
                state.numbers.read(&state.caller, &state.scaled).await
            };
            match read {
                Ok(number) if state.is_news(number.value > 0) => {
                    let result = number.value > 0;
                    state.said = Some((result, Instant::now()));
                    return Ok(Some((IsActiveResponse { result }, state)));
                }
                Ok(_) => state.wait(MIN_PAUSE, FOREIGN_INTERVAL).await,
                Err(error) if is_denied(error.code()) => return Err(error),
                Err(_) => state.wait(RETRY_INTERVAL, UNKNOWN_INTERVAL).await,
            }
        }
    })
}

impl ActivityStream {
    fn is_news(&self, is_active: bool) -> bool {
        self.said.is_none_or(|(said, at)| said != is_active || at.elapsed() >= REPEAT_INTERVAL)
    }

    /// Waits until there may be news: at least `pause`, and at most until it is time to say the same again, or for `unknown` while the
    /// variant has no decision.
    async fn wait(&mut self, pause: Duration, unknown: Duration) {
        // Streams that began together do not ask together.
        let now = Instant::now();
        let jitter = 0.5 + 0.5 * fastrand::f64();
        self.until(now + pause.mul_f64(jitter)).await;
        let repeat_at =
            self.said.map_or(now, |(_, at)| at) + REPEAT_INTERVAL.mul_f64(1.0 + 0.1 * fastrand::f64());
        let unknown_at = now + unknown.mul_f64(jitter);
        loop {
            let due = match self.decided() {
                Activity::Decided(active) if self.said.is_none_or(|(said, _)| said != active) => return,
                Activity::Decided(_) | Activity::Unread => repeat_at,
                Activity::Undecided => unknown_at.min(repeat_at),
            };
            if Instant::now() >= due || self.numbers.stopping.is_cancelled() || self.caller.is_closed() {
                return;
            }
            tokio::select! {
                Ok(()) = self.published.changed() => {}
                Ok(()) = self.leader.changed() => {}
                Ok(()) = self.leadership.changed() => {}
                () = sleep_until(due) => {}
                () = self.numbers.stopped() => {}
                () = self.caller.closed() => {}
            }
        }
    }

    /// Waits until `at`, or until the stream is to end.
    async fn until(&self, at: Instant) {
        tokio::select! {
            () = sleep_until(at) => {}
            () = self.numbers.stopped() => {}
            () = self.caller.closed() => {}
        }
    }

    /// What is decided about the variant, as far as this instance knows.
    fn decided(&self) -> Activity {
        let Ok(Ok(id)) = self.numbers.variant_id(&self.scaled) else { return Activity::Undecided };
        if self.leadership.borrow().is_mine() {
            return Activity::of(&self.published.borrow(), &id);
        }
        self.leader.borrow().as_ref().map_or(Activity::Unread, |leader| leader.of(&id))
    }
}
