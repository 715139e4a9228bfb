//! The kinds of the API server, read again from time to time. While it cannot be reached, those that were known stay.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout};
use tracing::{info, warn};

use super::kinds::{KindTable, ObjectKind};
use super::ports::ObjectApi;

/// How often kinds are read while all that rules and reads name are known.
const REFRESH_INTERVAL: Duration = Duration::from_mins(10);
/// How often, while one is not.
const MISSING_INTERVAL: Duration = Duration::from_secs(30);
/// Longest wait for the API server.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The kinds that were read last.
pub(super) struct KindCache {
    objects: Arc<dyn ObjectApi>,
    kinds: Vec<ObjectKind>,
    pub(super) table: Arc<KindTable>,
    /// Why they could not be read the last time.
    failure: Option<String>,
    attempted: Option<Instant>,
}

impl KindCache {
    pub(super) fn new(objects: Arc<dyn ObjectApi>) -> Self {
        Self { objects, kinds: Vec::new(), table: Arc::default(), failure: None, attempted: None }
    }

    /// Reads the kinds if it is time, which is sooner while `is_missing` one; true if they have changed.
    pub(super) async fn refresh(&mut self, is_missing: bool) -> bool {
        let interval = if self.kinds.is_empty() {
            Duration::ZERO
        } else if is_missing || self.failure.is_some() {
            MISSING_INTERVAL
        } else {
            REFRESH_INTERVAL
        };
        if self.attempted.is_some_and(|at| at.elapsed() < interval) {
            return false;
        }
        self.attempted = Some(Instant::now());
        let kinds = timeout(TIMEOUT, self.objects.kinds()).await;
        match kinds.unwrap_or_else(|_| Err(format!("no answer within {} s", TIMEOUT.as_secs()))) {
            Ok(kinds) => {
                if self.failure.take().is_some() {
                    info!("the kinds of the API server can be read again");
                }
                if kinds == self.kinds {
                    return false;
                }
                self.table = Arc::new(KindTable::new(kinds.clone()));
                self.kinds = kinds;
                true
            }
            Err(cause) => {
                if self.failure.is_none() {
                    warn!(cause, "the kinds of the API server cannot be read; those of before stay");
                }
                self.failure = Some(cause);
                false
            }
        }
    }

    /// Why no kind is known yet.
    pub(super) fn unread(&self) -> Option<String> {
        let cause = self.failure.as_deref().unwrap_or("that takes a moment");
        self.table.is_empty().then(|| format!("the kinds of the API server are not read yet: {cause}"))
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::super::kinds::tests::kind;
    use super::super::ports::tests::FakeKinds;
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn kinds_are_read_when_one_is_missing_and_stay_while_the_api_server_is_away() {
        let pods = vec![kind("", "Pod", "pods", true)];
        let answers = Arc::new(Mutex::new(vec![Ok(pods.clone()), Err("refused".to_owned())]));
        let next = Arc::clone(&answers);
        let api = FakeKinds(move || next.lock().pop().expect("it was not time"));
        let mut cache = KindCache::new(Arc::new(api));
        assert!(!cache.refresh(false).await);
        assert!(cache.unread().unwrap().ends_with("refused"));
        assert!(cache.refresh(false).await, "at once, while nothing is known");
        assert!(!cache.refresh(true).await, "not within 30 s");
        tokio::time::advance(MISSING_INTERVAL).await;
        assert!(!cache.refresh(false).await, "nothing is missing");
        answers.lock().push(Err("refused".to_owned()));
        assert!(!cache.refresh(true).await);
        assert!(cache.unread().is_none() && cache.table.find("", "pod").is_some());
        tokio::time::advance(MISSING_INTERVAL).await;
        let more = pods.into_iter().chain([kind("", "Node", "nodes", false)]).collect();
        answers.lock().push(Ok(more));
        assert!(cache.refresh(false).await);
    }
}
