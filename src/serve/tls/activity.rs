//! How long a connection has been quiet: what tells a client that works from one that only keeps a place.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

/// A connection without a request for this long is closed: one that has never asked anything (clients open spare ones),
/// and one of a peer that the cluster does not depend on. Two of Prometheus' scrapes at 30 s.
pub(crate) const QUIET: Duration = Duration::from_secs(60);

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
}

/// A request being answered; also one that its client gave up.
pub(crate) struct Answering(Activity);

impl Activity {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(State { answering: 0, has_asked: false, last: Instant::now() })))
    }

    /// Counts a request until the value is dropped.
    pub(crate) fn begin(&self) -> Answering {
        let mut state = self.0.lock();
        state.answering += 1;
        state.has_asked = true;
        Answering(self.clone())
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
}

impl Drop for Answering {
    fn drop(&mut self) {
        let mut state = self.0.0.lock();
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
        assert!(!ends_within(&activity, false, 59).await);
        drop(activity.begin());
        assert!(!ends_within(&activity, false, 59).await, "every request begins the time anew");
        assert!(ends_within(&activity, false, 2).await);
    }

    #[tokio::test(start_paused = true)]
    async fn an_api_server_may_be_quiet_once_it_has_asked() {
        let activity = Activity::new();
        assert!(ends_within(&activity, true, 61).await, "a spare connection");
        drop(activity.begin());
        advance(Duration::from_secs(3600)).await;
        assert!(!ends_within(&activity, true, 3600).await);
    }
}
