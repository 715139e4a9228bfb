//! A server that does not answer is asked by one read at a time, so that the few workers of an HPA controller do not all wait for it.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Failures in a row after which it is known that the server does not answer. A single slow metric is no outage.
const MAX_FAILURES: u32 = 3;
/// How long others fail at once while one tries.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// Whether the server answers.
#[derive(Debug, Default)]
pub(super) struct Outage(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    failures: u32,
    cause: String,
    next_try: Option<Instant>,
}

impl Outage {
    /// Admits a request.
    ///
    /// # Errors
    /// While the server does not answer, unless it is time to try again: why the last request failed.
    pub(super) fn admit(&self) -> Result<(), String> {
        let mut state = self.0.lock();
        if state.failures < MAX_FAILURES {
            return Ok(());
        }
        let now = Instant::now();
        if state.next_try.is_some_and(|at| now < at) {
            return Err(state.cause.clone());
        }
        state.next_try = Some(now + RETRY_INTERVAL);
        Ok(())
    }

    /// The server has answered, whatever it was. True after a failure.
    pub(super) fn end(&self) -> bool {
        std::mem::take(&mut *self.0.lock()).failures > 0
    }

    /// The server has not answered. True for the first time since it did.
    pub(super) fn fail(&self, cause: &str) -> bool {
        let mut state = self.0.lock();
        state.failures = state.failures.saturating_add(1);
        cause.clone_into(&mut state.cause);
        state.next_try = Some(Instant::now() + RETRY_INTERVAL);
        state.failures == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_dead_server_is_asked_by_one_read_at_a_time() {
        let outage = Outage::default();
        for failure in 0..MAX_FAILURES {
            assert_eq!(outage.admit(), Ok(()));
            assert_eq!(outage.fail("it is gone"), failure == 0);
        }
        assert_eq!(outage.admit(), Err("it is gone".to_owned()));
        tokio::time::advance(RETRY_INTERVAL).await;
        assert_eq!(outage.admit(), Ok(()), "the one that tries");
        assert!(outage.admit().is_err());
        assert!(outage.end() && !outage.end());
        assert_eq!(outage.admit(), Ok(()));
    }
}
