//! Counts changes of the published targets. A variant that is gone loses its counts.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;
use wva_core::VariantId;
use wva_core::decision::Verdict;

use crate::engine::{Leadership, Published};

/// One kind of change of one variant's target.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ReplicaChange {
    pub(crate) variant: VariantId,
    pub(crate) direction: &'static str,
    pub(crate) reason: &'static str,
}

/// How often each kind of change has occurred.
#[derive(Debug, Default)]
pub(crate) struct ReplicaChanges {
    counts: Mutex<BTreeMap<ReplicaChange, u64>>,
}

impl ReplicaChanges {
    /// A copy of the counts.
    pub(crate) fn counts(&self) -> BTreeMap<ReplicaChange, u64> {
        self.counts.lock().clone()
    }

    /// Counts every change from one published result to the next while this instance holds the lease, for ever.
    pub(crate) async fn follow(
        &self,
        mut published: watch::Receiver<Arc<Published>>,
        leadership: watch::Receiver<Leadership>,
    ) {
        let mut previous = published.borrow_and_update().clone();
        while published.changed().await.is_ok() {
            let newest = published.borrow_and_update().clone();
            if leadership.borrow().is_mine() {
                self.count(&previous, &newest);
            }
            previous = newest;
        }
        futures::future::pending().await
    }

    fn count(&self, previous: &Published, newest: &Published) {
        let mut counts = self.counts.lock();
        counts.retain(|change, _| newest.decisions.contains_key(&change.variant));
        for (id, decision) in &newest.decisions {
            let Verdict::Target(new) = &decision.verdict else { continue };
            let Some(Verdict::Target(old)) = previous.decisions.get(id).map(|old| &old.verdict) else {
                continue;
            };
            if new.desired != old.desired {
                let direction = if new.desired > old.desired { "up" } else { "down" };
                let change = ReplicaChange { variant: id.clone(), direction, reason: new.reason.as_str() };
                *counts.entry(change).or_default() += 1;
            }
        }
    }
}
