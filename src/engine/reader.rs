//! How a read gets its number: from the published result while that is young, else from one evaluation that all
//! readers of the moment share. N readers never cause N queries. And the loop that evaluates when nobody reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use moka::future::Cache;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::error;
use wva_core::units::Seconds;

use super::board::{Origin, Published};
use super::evaluate::Engine;
use super::ports::{Clock, ClusterView};

/// Evaluations that may be remembered: the running one and the few before it.
const SHARED_EVALUATIONS: u64 = 8;
/// An evaluation that died is not started again for the same result before this has passed.
const FAILURE_PAUSE: Duration = Duration::from_secs(1);

/// How old an answer may be and how long a reader waits for a younger one.
#[derive(Debug, Clone, Copy)]
pub struct ReadSettings {
    /// A published result younger than this is the answer; an older one too, while evaluations may not start.
    pub max_age: Duration,
    /// A reader waits this long at most, then gets the last good number with its true age.
    pub read_wait: Duration,
}

impl Default for ReadSettings {
    fn default() -> Self {
        Self { max_age: Duration::from_secs(2), read_wait: Duration::from_secs(1) }
    }
}

/// Reads published results and has them refreshed when they are old. Cheap to clone.
#[derive(Clone)]
pub struct Reader {
    engine: Arc<Engine>,
    settings: ReadSettings,
    /// Keyed by the sequence of the result that is too old: whoever saw the same one joins the same evaluation.
    shared: Cache<u64, Arc<Published>>,
    /// An evaluation that nobody waits for is under way.
    begun: Arc<AtomicBool>,
}

impl Reader {
    /// A reader over `engine`.
    #[must_use]
    pub fn new(engine: Arc<Engine>, settings: ReadSettings) -> Self {
        let shared = Cache::builder().max_capacity(SHARED_EVALUATIONS).time_to_live(FAILURE_PAUSE).build();
        Self { engine, settings, shared, begun: Arc::default() }
    }

    /// The newest published result, whatever its age.
    #[must_use]
    pub fn newest(&self) -> Arc<Published> {
        self.engine.parts().board.newest()
    }

    /// The newest view of the cluster. Every instance has one of its own, whoever decides.
    #[must_use]
    pub fn view(&self) -> Arc<ClusterView> {
        self.engine.parts().cluster.view()
    }

    /// Every result from now on.
    #[must_use]
    pub fn published(&self) -> watch::Receiver<Arc<Published>> {
        self.engine.parts().board.subscribe()
    }

    /// True while this instance may answer with `published`: it is of the term that goes on, or of another instance.
    #[must_use]
    pub fn may_answer(&self, published: &Published) -> bool {
        self.engine.may_answer(published)
    }

    /// The current moment of the engine's clock.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.engine.parts().clock.now()
    }

    /// The clock itself.
    #[must_use]
    pub fn clock(&self) -> Arc<dyn Clock> {
        self.engine.parts().clock.clone()
    }

    /// Evidence older than this is no evidence.
    #[must_use]
    pub fn max_stale(&self) -> Seconds {
        self.engine.policy().max_stale
    }

    /// A result young enough to answer with; after `read_wait` the last one there is. Where evaluations take longer than
    /// that, at once: waiting would be in vain, and the next one goes on behind it.
    pub async fn current(&self) -> Arc<Published> {
        let newest = self.newest();
        if self.is_young(&newest) {
            return newest;
        }
        if newest.origin == Origin::Computed && newest.took > self.settings.read_wait {
            self.begin();
            return newest;
        }
        tokio::time::timeout(self.settings.read_wait, self.refresh()).await.unwrap_or_else(|_| self.newest())
    }

    /// Starts an evaluation that nobody waits for, unless one is under way or may not start.
    fn begin(&self) {
        if self.engine.duty().is_resting() || self.begun.swap(true, Ordering::AcqRel) {
            return;
        }
        let this = self.clone();
        #[expect(
            clippy::disallowed_methods,
            reason = "as short as the evaluation it waits for, which is bounded"
        )]
        tokio::spawn(async move {
            this.refresh().await;
            this.begun.store(false, Ordering::Release);
        });
    }

    /// How long it is until the newest result is `age` old; `None` when it is, or is not of this instance.
    fn young_for(&self, age: Duration) -> Option<Duration> {
        let newest = self.newest();
        let real = self.now().duration_since(newest.at).unsigned_abs();
        age.checked_sub(real).filter(|left| !left.is_zero() && newest.origin == Origin::Computed)
    }

    fn is_young(&self, published: &Published) -> bool {
        let age = self.now().duration_since(published.at);
        published.origin == Origin::Computed && age.unsigned_abs() <= self.settings.max_age
    }

    /// Starts or joins the evaluation that replaces the newest result. An instance that may not decide, or that has
    /// evaluated too lately for its duration, gets the newest result as it is.
    ///
    /// Runs in a task of its own: a reader that goes away must neither take the evaluation with it nor leave its
    /// place in the cache to the next one, who would start a second evaluation beside the first.
    pub async fn refresh(&self) -> Arc<Published> {
        if !self.engine.can_evaluate() {
            return self.newest();
        }
        if self.engine.duty().is_resting() {
            self.engine.parts().metrics.postponed();
            return self.newest();
        }
        let (shared, engine, stale) = (self.shared.clone(), self.engine.clone(), self.newest().sequence);
        #[expect(
            clippy::disallowed_methods,
            reason = "as short as the evaluation it waits for, which is bounded"
        )]
        let joined = tokio::spawn(async move { shared.get_with(stale, engine.evaluate()).await });
        joined.await.unwrap_or_else(|failure| {
            error!(failure = failure.to_string().as_str(), "evaluation died");
            self.newest()
        })
    }
}

/// Keeps results at most `interval` old, as far as evaluations may start, until `stop`; at most `max_age`, where evaluations
/// take so long that reads do not wait for them. What a read has evaluated meanwhile is not evaluated again.
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
