//! Activity of a connection: how long it has been idle, and how long an answer has not been taken. Tells a client that works
//! from one that only occupies a connection.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
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
    /// Answers under way. There are a few hundred at most and nearly always one, which a list stores without an allocation for
    /// each request.
    sending: Vec<Sending>,
}

/// An answer under way.
#[derive(Debug)]
struct Sending {
    /// The number of its request.
    request: u64,
    /// When the peer last took a part.
    progress: Instant,
    /// Parts that have become available and are not taken.
    outstanding: usize,
    /// There is nothing more of it for now.
    waits: bool,
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
        let is_held = |sending: &&Sending| sending.outstanding > 0 || !sending.waits;
        loop {
            let oldest = self.0.lock().sending.iter().filter(is_held).map(|sending| sending.progress).min();
            let deadline = oldest.unwrap_or_else(Instant::now) + WRITE_TIMEOUT;
            if deadline <= Instant::now() {
                return;
            }
            sleep_until(deadline).await;
        }
    }
}

impl InFlight {
    /// Notes that a part of the answer became available.
    pub(crate) fn begin_part(&self) {
        self.update(|sending| {
            sending.outstanding += 1;
            sending.waits = false;
        });
    }

    /// Notes that a part was taken.
    pub(crate) fn end_part(&self) {
        self.update(|sending| sending.outstanding = sending.outstanding.saturating_sub(1));
    }

    /// Notes that there is nothing more of the answer for now, as of a stream without news.
    pub(crate) fn wait(&self) {
        self.update(|sending| sending.waits = true);
    }

    fn update(&self, change: impl FnOnce(&mut Sending)) {
        let progress = Instant::now();
        let mut state = self.activity.0.lock();
        let sending = state.sending.iter().position(|sending| sending.request == self.number);
        let index = sending.unwrap_or_else(|| {
            state.sending.push(Sending { request: self.number, progress, outstanding: 0, waits: false });
            state.sending.len() - 1
        });
        if let Some(sending) = state.sending.get_mut(index) {
            sending.progress = progress;
            change(sending);
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut state = self.activity.0.lock();
        state.sending.retain(|sending| sending.request != self.number);
        state.in_flight -= 1;
        state.last_change = Instant::now();
    }
}

#[cfg(test)]
mod tests {
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
        answering.begin_part();
        assert!(!stalls(29).await);
        answering.begin_part();
        second.begin_part();
        assert!(!stalls(29).await);
        second.begin_part();
        assert!(stalls(2).await, "the second goes on, the first does not");
        drop(answering);
        assert!(!stalls(27).await);
        drop(second);
        assert!(!stalls(300).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_without_news_was_taken_for_a_stalled_answer_once_its_last_part_was_taken() {
        let activity = Activity::new();
        let stalls = async |seconds| timeout(Duration::from_secs(seconds), activity.stalled()).await.is_ok();
        let stream = activity.begin_request();
        stream.begin_part();
        stream.wait();
        assert!(stalls(31).await, "its part is not taken");
        stream.end_part();
        assert!(!stalls(300).await);
        stream.begin_part();
        stream.end_part();
        assert!(stalls(31).await, "the end of the answer is not taken");
    }

    #[tokio::test(start_paused = true)]
    async fn an_api_server_may_be_idle_after_its_first_request() {
        let activity = Activity::new();
        assert!(ends_within(&activity, true, 91).await, "a spare connection");
        drop(activity.begin_request());
        advance(Duration::from_secs(3600)).await;
        assert!(!ends_within(&activity, true, 3600).await);
    }
}
