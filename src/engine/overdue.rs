//! Decisions that do not end. A thread cannot be ended from outside, so one that takes too long is abandoned; the model it is
//! stuck at is held like one that failed, and the next evaluation decides about all others.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use wva_core::{GroupId, Progress};

/// Most abandoned threads: each may keep a processor busy for ever. A further decision that does not end is waited for, and
/// readers get the last numbers until they are too old.
const MAX_ABANDONED: usize = 4;
/// A decision is stuck at a model that has taken a quarter of the decision's time limit. One that is merely the last of
/// thousands on a slow machine has not.
const STUCK_DIVISOR: u32 = 4;

/// The model that a decision is working on.
pub(super) struct CurrentModel {
    model: Mutex<Option<(GroupId, Instant)>>,
    observer: Option<Arc<dyn Progress + Send + Sync>>,
}

impl CurrentModel {
    pub(super) fn new(observer: Option<Arc<dyn Progress + Send + Sync>>) -> Self {
        Self { model: Mutex::default(), observer }
    }

    /// The model at which a decision is stuck that has not ended after `timeout`.
    pub(super) fn stuck_model(&self, timeout: Duration) -> Option<GroupId> {
        let model = self.model.lock();
        let (id, since) = model.as_ref()?;
        (since.elapsed() >= timeout / STUCK_DIVISOR).then(|| id.clone())
    }
}

impl Progress for CurrentModel {
    fn begins(&self, model: Option<&GroupId>) {
        *self.model.lock() = model.map(|id| (id.clone(), Instant::now()));
        if let Some(observer) = &self.observer {
            observer.begins(model);
        }
    }
}

/// A decision whose thread still runs.
struct AbandonedDecision {
    thread: AbortHandle,
    stuck: Option<GroupId>,
}

/// The decisions that were abandoned.
#[derive(Default)]
pub(super) struct AbandonedDecisions(Mutex<Vec<AbandonedDecision>>);

impl AbandonedDecisions {
    /// Adds the thread of a decision and the model it is stuck at; false when there are too many already.
    #[must_use]
    pub(super) fn add(&self, thread: AbortHandle, stuck: Option<GroupId>) -> bool {
        let mut all = self.0.lock();
        all.retain(|decision| !decision.thread.is_finished());
        if all.len() >= MAX_ABANDONED {
            return false;
        }
        all.push(AbandonedDecision { thread, stuck });
        true
    }

    /// The models at which threads are still stuck: deciding about them again would take another thread.
    pub(super) fn stuck_models(&self) -> Vec<GroupId> {
        let mut all = self.0.lock();
        all.retain(|decision| !decision.thread.is_finished());
        all.iter().filter_map(|decision| decision.stuck.clone()).collect()
    }
}
