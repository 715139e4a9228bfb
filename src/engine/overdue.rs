//! Decisions that do not end. A thread cannot be ended from outside, so one that takes too long is left behind; the model that
//! keeps it is held like one that broke, and the next evaluation decides about all others.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use wva_core::{GroupId, Progress};

use super::board::Published;

/// Threads that are left behind at most: each may keep a processor busy for ever. One decision more that does not end is waited
/// for, and readers get the last numbers, until they are too old.
const MAX_ABANDONED: usize = 4;
/// A model is taken for what keeps a decision when it has been worked on for this part of the time that a decision has: one that
/// is merely the last of thousands on a slow machine is not.
const KEEPS_FROM: u32 = 4;

/// What a decision is working on.
pub(super) struct Current {
    model: Mutex<Option<(GroupId, Instant)>>,
    /// Who wants to know too.
    observer: Option<Arc<dyn Progress + Send + Sync>>,
}

impl Current {
    pub(super) fn new(observer: Option<Arc<dyn Progress + Send + Sync>>) -> Self {
        Self { model: Mutex::default(), observer }
    }

    /// The model that keeps a decision which has not ended after `timeout`, when it is a single one.
    pub(super) fn keeper(&self, timeout: Duration) -> Option<GroupId> {
        let model = self.model.lock();
        let (id, since) = model.as_ref()?;
        (since.elapsed() >= timeout / KEEPS_FROM).then(|| id.clone())
    }
}

impl Progress for Current {
    fn begins(&self, model: Option<&GroupId>) {
        *self.model.lock() = model.map(|id| (id.clone(), Instant::now()));
        if let Some(observer) = &self.observer {
            observer.begins(model);
        }
    }
}

/// A decision whose thread is left behind.
struct Left {
    thread: JoinHandle<Arc<Published>>,
    keeper: Option<GroupId>,
}

/// The decisions that were given up.
#[derive(Default)]
pub(super) struct Abandoned(Mutex<Vec<Left>>);

impl Abandoned {
    /// Leaves `thread` behind; gives it back when there are too many already.
    pub(super) fn leave(
        &self,
        thread: JoinHandle<Arc<Published>>,
        keeper: Option<GroupId>,
    ) -> Result<(), JoinHandle<Arc<Published>>> {
        let mut all = self.0.lock();
        all.retain(|left| !left.thread.is_finished());
        if all.len() >= MAX_ABANDONED {
            return Err(thread);
        }
        all.push(Left { thread, keeper });
        Ok(())
    }

    /// The models that keep a thread still: to decide about one again would keep another.
    pub(super) fn keepers(&self) -> Vec<GroupId> {
        let mut all = self.0.lock();
        all.retain(|left| !left.thread.is_finished());
        all.iter().filter_map(|left| left.keeper.clone()).collect()
    }
}
