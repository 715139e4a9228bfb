//! A server or a metric that does not answer is asked by one read at a time, and less and less often, so that the few workers of an HPA
//! controller do not all wait for it. A metric that hangs is told from a server that does: fast answers to other reads say nothing about it.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Failures in a row after which it is known that the server, or one read, is not answered. A single slow answer is no outage.
const MAX_FAILURES: u32 = 3;
/// How long others fail at once while one tries, at first. It doubles with each failure.
const MIN_RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// The longest such time.
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(60);
/// Reads of which failures are remembered. Those that failed first are forgotten.
const MAX_READS: usize = 1024;

/// Whether the server answers, and which reads it leaves without an answer.
#[derive(Debug, Default)]
pub(super) struct Outage {
    state: Mutex<State>,
    hasher: RandomState,
}

#[derive(Debug, Default)]
struct State {
    server: Failures,
    /// When the server last answered any read.
    answered: Option<Instant>,
    /// By a hash of the path and the query: KEDA tells metrics of one name by their selectors.
    reads: HashMap<u64, Failures>,
}

/// Failures in a row.
#[derive(Debug, Default, Clone)]
struct Failures {
    count: u32,
    cause: String,
    next_try: Option<Instant>,
}

impl Failures {
    /// Whether a request may be sent.
    fn may_try(&self) -> bool {
        self.count < MAX_FAILURES || self.next_try.is_none_or(|at| at <= Instant::now())
    }

    /// Lets others fail at once while one tries.
    fn postpone(&mut self) {
        let doubled = 2_u32.pow(self.count.saturating_sub(MAX_FAILURES).min(16));
        let wait = MIN_RETRY_INTERVAL.saturating_mul(doubled).min(MAX_RETRY_INTERVAL);
        self.next_try = Some(Instant::now() + wait);
    }

    fn add(&mut self, cause: &str) {
        self.count = self.count.saturating_add(1);
        cause.clone_into(&mut self.cause);
        self.postpone();
    }
}

impl Outage {
    /// Admits a read of `path`, with its query.
    ///
    /// # Errors
    /// While the server does not answer, or not to this read, unless it is time to try again: why the last request failed.
    pub(super) fn admit(&self, path: &str) -> Result<(), String> {
        let mut state = self.state.lock();
        let State { server, reads, .. } = &mut *state;
        let mut both = [Some(server), reads.get_mut(&self.hasher.hash_one(path))];
        if let Some(failures) = both.iter().flatten().find(|failures| !failures.may_try()) {
            return Err(failures.cause.clone());
        }
        both.iter_mut().flatten().for_each(|failures| failures.postpone());
        Ok(())
    }

    /// The server has answered to `path`, whatever it was. True after a failure of the server.
    pub(super) fn end(&self, path: &str) -> bool {
        let mut state = self.state.lock();
        state.reads.remove(&self.hasher.hash_one(path));
        state.answered = Some(Instant::now());
        std::mem::take(&mut state.server).count > 0
    }

    /// The server has not answered to `path`, which was sent at `sent`. That it has answered another read since shows that only this one
    /// hangs. True for the first failure of the server since it answered.
    pub(super) fn fail(&self, path: &str, sent: Instant, cause: &str) -> bool {
        let mut state = self.state.lock();
        let key = self.hasher.hash_one(path);
        if state.reads.len() >= MAX_READS && !state.reads.contains_key(&key) {
            let oldest = state.reads.iter().min_by_key(|(_, failures)| failures.next_try);
            let oldest = oldest.map(|(key, _)| *key);
            oldest.and_then(|key| state.reads.remove(&key));
        }
        state.reads.entry(key).or_default().add(cause);
        if state.answered.is_some_and(|at| at > sent) {
            return false;
        }
        state.server.add(cause);
        state.server.count == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_dead_server_is_asked_by_one_read_at_a_time() {
        let outage = Outage::default();
        for failure in 0..MAX_FAILURES {
            let path = failure.to_string();
            assert_eq!(outage.admit(&path), Ok(()));
            assert_eq!(outage.fail(&path, Instant::now(), "it is gone"), failure == 0);
        }
        assert_eq!(outage.admit("any"), Err("it is gone".to_owned()));
        tokio::time::advance(MIN_RETRY_INTERVAL).await;
        assert_eq!(outage.admit("any"), Ok(()), "the one that tries");
        assert!(outage.admit("another").is_err());
        assert!(outage.end("any") && !outage.end("any"));
        assert_eq!(outage.admit("another"), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_metric_that_hangs_cost_five_seconds_each_time_while_others_were_answered() {
        let outage = Outage::default();
        let mut waits = 0;
        // An HPA reads a metric that hangs every 15 s for 10 minutes, and one that is answered.
        for _ in 0..40 {
            if outage.admit("jobs?labelSelector=slow").is_ok() {
                waits += 1;
                outage.fail("jobs?labelSelector=slow", Instant::now(), "it did not answer");
            }
            assert_eq!(outage.admit("jobs?labelSelector=fast"), Ok(()));
            outage.end("jobs?labelSelector=fast");
            tokio::time::advance(Duration::from_secs(15)).await;
        }
        assert!((5..=15).contains(&waits), "{waits} of 40 waited");
        outage.end("jobs?labelSelector=slow");
        assert_eq!(outage.admit("jobs?labelSelector=slow"), Ok(()), "it is back");
    }

    #[tokio::test(start_paused = true)]
    async fn metrics_that_hung_at_once_shut_the_server_for_all_others() {
        let outage = Outage::default();
        let sent = Instant::now();
        let hanging: Vec<_> = (0..2 * MAX_FAILURES).map(|number| number.to_string()).collect();
        for path in &hanging {
            assert_eq!(outage.admit(path), Ok(()));
        }
        tokio::time::advance(Duration::from_secs(1)).await;
        outage.end("answered");
        tokio::time::advance(Duration::from_secs(4)).await;
        for path in &hanging {
            assert!(!outage.fail(path, sent, "it did not answer"));
        }
        assert_eq!(outage.admit("answered"), Ok(()));
        // It has answered none since: what is sent now counts.
        let sent = Instant::now();
        for (number, path) in hanging.iter().enumerate() {
            assert_eq!(outage.fail(path, sent, "it did not answer"), number == 0);
        }
        assert!(outage.admit("answered").is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn the_failures_of_a_stranger_who_reads_many_names_take_bounded_memory() {
        let outage = Outage::default();
        for name in 0..2 * MAX_READS {
            outage.fail(&name.to_string(), Instant::now(), "it did not answer");
        }
        assert_eq!(outage.state.lock().reads.len(), MAX_READS);
        outage.end("any");
        assert_eq!(outage.admit("0"), Ok(()));
    }
}
