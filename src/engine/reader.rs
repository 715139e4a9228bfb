//! Reads get the published result while it is young, and otherwise share one evaluation: N readers never cause N queries. Also
//! the loop that evaluates when nobody reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use moka::future::Cache;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::error;
use wva_core::Memory;
use wva_core::units::Seconds;

use super::board::{Origin, Published};
use super::evaluate::Engine;
use super::ports::{Clock, ClusterView};

/// Most evaluations in the cache: the running one and a few before it.
const MAX_SHARED_EVALUATIONS: u64 = 8;
/// The wait before an evaluation that panicked is repeated for the same result.
const FAILURE_BACKOFF: Duration = Duration::from_secs(1);

/// How old an answer may be and how long a reader waits for a younger one.
#[derive(Debug, Clone, Copy)]
pub struct ReadSettings {
    /// A published result up to this age is the answer; an older one too, while no evaluation may start.
    pub max_age: Duration,
    /// Longest wait of a reader, which then gets the last good number with its true age.
    pub read_wait: Duration,
}

impl Default for ReadSettings {
    fn default() -> Self {
        Self { max_age: Duration::from_secs(2), read_wait: Duration::from_secs(1) }
    }
}

/// Reads published results, and has old ones refreshed. Cheap to clone.
#[derive(Clone)]
pub struct Reader {
    engine: Arc<Engine>,
    settings: ReadSettings,
    /// By the sequence of the result that is too old: readers that found the same one share an evaluation.
    shared: Cache<u64, Arc<Published>>,
    /// An evaluation that nobody waits for is running.
    is_refreshing: Arc<AtomicBool>,
}

impl Reader {
    /// A reader over `engine`.
    #[must_use]
    pub fn new(engine: Arc<Engine>, settings: ReadSettings) -> Self {
        let shared =
            Cache::builder().max_capacity(MAX_SHARED_EVALUATIONS).time_to_live(FAILURE_BACKOFF).build();
        Self { engine, settings, shared, is_refreshing: Arc::default() }
    }

    /// The newest published result, whatever its age.
    #[must_use]
    pub fn newest(&self) -> Arc<Published> {
        self.engine.parts().board.newest()
    }

    /// The newest view of the cluster: every instance has its own, whoever is the leader.
    #[must_use]
    pub fn view(&self) -> Arc<ClusterView> {
        self.engine.parts().cluster.view()
    }

    /// What was remembered after the last decision.
    #[must_use]
    pub fn memory(&self) -> Arc<Memory> {
        self.engine.memory().borrow().clone()
    }

    /// Every result from now on.
    #[must_use]
    pub fn published(&self) -> watch::Receiver<Arc<Published>> {
        self.engine.parts().board.subscribe()
    }

    /// See [`Engine::may_answer`].
    #[must_use]
    pub fn may_answer(&self, published: &Published) -> bool {
        self.engine.may_answer(published)
    }

    /// The time by the engine's clock.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.engine.parts().clock.now()
    }

    /// The clock.
    #[must_use]
    pub fn clock(&self) -> Arc<dyn Clock> {
        self.engine.parts().clock.clone()
    }

    /// The age at which evidence is refused.
    #[must_use]
    pub fn max_stale(&self) -> Seconds {
        self.engine.policy().max_stale
    }

    /// A young result; after `read_wait`, the newest one. Where evaluations take longer than `read_wait`, the newest one at once,
    /// and the next evaluation runs in the background.
    pub async fn current(&self) -> Arc<Published> {
        let newest = self.newest();
        if self.is_young(&newest) {
            return newest;
        }
        if newest.origin == Origin::Computed && newest.took > self.settings.read_wait {
            self.refresh_in_background();
            return newest;
        }
        tokio::time::timeout(self.settings.read_wait, self.refresh()).await.unwrap_or_else(|_| self.newest())
    }

    /// Starts an evaluation that nobody waits for, unless one is running or none may start.
    fn refresh_in_background(&self) {
        if self.engine.duty().is_resting() || self.is_refreshing.swap(true, Ordering::AcqRel) {
            return;
        }
        let this = self.clone();
        #[expect(
            clippy::disallowed_methods,
            reason = "as short as the evaluation it waits for, which is bounded"
        )]
        tokio::spawn(async move {
            this.refresh().await;
            this.is_refreshing.store(false, Ordering::Release);
        });
    }

    /// The time until the newest result is `age` old; `None` when it is already, or was not computed by this instance.
    fn young_for(&self, age: Duration) -> Option<Duration> {
        let newest = self.newest();
        let real = self.now().duration_since(newest.at).unsigned_abs();
        age.checked_sub(real).filter(|left| !left.is_zero() && newest.origin == Origin::Computed)
    }

    fn is_young(&self, published: &Published) -> bool {
        let age = self.now().duration_since(published.at);
        published.origin == Origin::Computed && age.unsigned_abs() <= self.settings.max_age
    }

    /// Starts or joins the evaluation that replaces the newest result. An instance that may not decide, or that must rest after
    /// its last evaluation, gets the newest result as it is.
    ///
    /// Runs in its own task: a reader that disconnects must not cancel the evaluation, nor let the next reader start a second one
    /// beside it.
    pub async fn refresh(&self) -> Arc<Published> {
        if !self.engine.can_evaluate() {
            return self.newest();
        }
        if self.engine.duty().is_resting() {
            self.engine.parts().metrics.postponed();
            return self.newest();
        }
        let shared = self.shared.clone();
        let engine = self.engine.clone();
        let stale = self.newest().sequence;
        #[expect(
            clippy::disallowed_methods,
            reason = "as short as the evaluation it waits for, which is bounded"
        )]
        let joined = tokio::spawn(async move { shared.get_with(stale, engine.evaluate()).await });
        joined.await.unwrap_or_else(|failure| {
            error!(failure = failure.to_string().as_str(), "an evaluation panicked");
            self.newest()
        })
    }
}

/// Evaluates until `stop`, so that results are at most `interval` old as far as the duty cycle allows; at most `max_age`, where
/// evaluations take so long that reads do not wait for them. A result that a read has caused meanwhile counts.
pub async fn run(reader: Reader, interval: Duration, stop: CancellationToken) {
    let clock = reader.clock();
    let evaluating = async {
        loop {
            let slow = reader.refresh().await.took > reader.settings.read_wait;
            let age = if slow { reader.settings.max_age.min(interval) } else { interval };
            clock.sleep(age).await;
            while let Some(young_for) = reader.young_for(age) {
                clock.sleep(young_for).await;
            }
            reader.engine.duty().rested().await;
        }
    };
    stop.run_until_cancelled(evaluating).await;
}
