//! How long a connection has been quiet, or an answer has not been taken: what tells a client that works from one that
//! only keeps a place.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

use super::stall::STALLED;

/// A connection without a request for this long is closed: one that has never asked anything (clients open spare ones),
/// and one of a peer that the cluster does not depend on. Prometheus scrapes once a minute, if nobody says otherwise;
/// and half a minute more, so that the next scrape still finds its connection.
pub(crate) const QUIET: Duration = Duration::from_secs(90);

/// What one connection does; shared by its requests.
#[derive(Debug, Clone)]
pub(crate) struct Activity(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    /// Requests being answered.
    answering: usize,
    /// It has asked something.
    has_asked: bool,
    /// When the last request came or was answered.
    last: Instant,
    /// Requests begun so far.
    begun: u64,
    /// The answers under way, by the number of their request: when the peer last took a part of each. A few hundred at most,
    /// and nearly always one, which a list holds without a new allocation for each.
    sending: Vec<(u64, Instant)>,
}

/// A request being answered, until the answer is sent; also one that its client gave up.
pub(crate) struct Answering {
    activity: Activity,
    number: u64,
}

impl Activity {
    pub(crate) fn new() -> Self {
        let (last, sending) = (Instant::now(), Vec::new());
        Self(Arc::new(Mutex::new(State { answering: 0, has_asked: false, last, begun: 0, sending })))
    }

    /// Counts a request until the value is dropped.
    pub(crate) fn begin(&self) -> Answering {
        let mut state = self.0.lock();
        state.answering += 1;
        state.has_asked = true;
        state.begun += 1;
        Answering { activity: self.clone(), number: state.begun }
    }

    /// How many requests have begun.
    pub(super) fn begun(&self) -> u64 {
        self.0.lock().begun
    }

    /// True while a request is answered.
    pub(super) fn is_answering(&self) -> bool {
        self.0.lock().answering > 0
    }

    /// Ends when the connection has been quiet for too long. A peer of the cluster's own has only to ask once: API
    /// servers keep their connections, and are asked little in a quiet cluster.
    pub(crate) async fn quiet(&self, for_the_cluster: bool) {
        loop {
            let (idle_since, has_asked) = {
                let state = self.0.lock();
                (if state.answering > 0 { Instant::now() } else { state.last }, state.has_asked)
            };
            if for_the_cluster && has_asked {
                return futures::future::pending().await;
            }
            if idle_since.elapsed() >= QUIET {
                return;
            }
            sleep_until(idle_since + QUIET).await;
        }
    }

    /// Ends when the peer has taken nothing of an answer for too long.
    pub(crate) async fn stalled(&self) {
        loop {
            let oldest = self.0.lock().sending.iter().map(|(_, last)| *last).min();
            let until = oldest.unwrap_or_else(Instant::now) + STALLED;
            if until <= Instant::now() {
                return;
            }
            sleep_until(until).await;
        }
    }
}

impl Answering {
    /// A part of the answer is there to be taken, or was.
    pub(crate) fn progress(&self) {
        let (mut state, now) = (self.activity.0.lock(), Instant::now());
        match state.sending.iter_mut().find(|(number, _)| *number == self.number) {
            Some((_, last)) => *last = now,
            None => state.sending.push((self.number, now)),
        }
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        let mut state = self.activity.0.lock();
        state.sending.retain(|(number, _)| *number != self.number);
        state.answering -= 1;
        state.last = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{advance, timeout};

    use super::*;

    async fn ends_within(activity: &Activity, for_the_cluster: bool, seconds: u64) -> bool {
        timeout(Duration::from_secs(seconds), activity.quiet(for_the_cluster)).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_answer_is_not_quiet_and_the_time_counts_from_its_end() {
        let activity = Activity::new();
        let answering = activity.begin();
        assert!(!ends_within(&activity, false, 300).await);
        drop(answering);
        assert!(!ends_within(&activity, false, 89).await);
        drop(activity.begin());
        assert!(!ends_within(&activity, false, 89).await, "every request begins the time anew");
        assert!(ends_within(&activity, false, 2).await);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_of_which_nothing_is_taken_is_stalled_and_one_in_the_making_is_not() {
        let activity = Activity::new();
        let stalls = async |seconds| timeout(Duration::from_secs(seconds), activity.stalled()).await.is_ok();
        let (answering, other) = (activity.begin(), activity.begin());
        assert!(!stalls(300).await, "they are in the making");
        answering.progress();
        assert!(!stalls(29).await);
        answering.progress();
        other.progress();
        assert!(!stalls(29).await);
        other.progress();
        assert!(stalls(2).await, "the other one goes on, this one does not");
        drop(answering);
        assert!(!stalls(27).await);
        drop(other);
        assert!(!stalls(300).await);
    }

    #[tokio::test(start_paused = true)]
    async fn an_api_server_may_be_quiet_once_it_has_asked() {
        let activity = Activity::new();
        assert!(ends_within(&activity, true, 91).await, "a spare connection");
        drop(activity.begin());
        advance(Duration::from_secs(3600)).await;
        assert!(!ends_within(&activity, true, 3600).await);
    }
}
