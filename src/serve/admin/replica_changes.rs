//! Counts the changes of the published numbers. The only thing here that remembers; a variant that is gone is
//! forgotten with its counts.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;
use wva_core::VariantId;
use wva_core::decision::Verdict;

use crate::engine::{Leadership, Published};

/// One kind of change of one variant's number.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Step {
    pub(crate) variant: VariantId,
    pub(crate) direction: &'static str,
    pub(crate) reason: &'static str,
}

/// How often each number changed.
#[derive(Debug, Default)]
pub(crate) struct Scaling {
    counts: Mutex<BTreeMap<Step, u64>>,
}

impl Scaling {
    /// A copy of the counts.
    pub(crate) fn counts(&self) -> BTreeMap<Step, u64> {
        self.counts.lock().clone()
    }

    /// Counts every change from one published result to the next, for ever, while this instance decides.
    pub(crate) async fn follow(
        &self,
        mut published: watch::Receiver<Arc<Published>>,
        leadership: watch::Receiver<Leadership>,
    ) {
        let mut before = published.borrow_and_update().clone();
        while published.changed().await.is_ok() {
            let after = published.borrow_and_update().clone();
            if leadership.borrow().is_mine() {
                self.count(&before, &after);
            }
            before = after;
        }
        futures::future::pending().await
    }

    fn count(&self, before: &Published, after: &Published) {
        let mut counts = self.counts.lock();
        counts.retain(|step, _| after.decisions.contains_key(&step.variant));
        for (id, decision) in &after.decisions {
            let Verdict::Target(new) = &decision.verdict else { continue };
            let Some(Verdict::Target(old)) = before.decisions.get(id).map(|old| &old.verdict) else {
                continue;
            };
            if new.desired != old.desired {
                let direction = if new.desired > old.desired { "up" } else { "down" };
                let step = Step { variant: id.clone(), direction, reason: new.reason.as_str() };
                *counts.entry(step).or_default() += 1;
            }
        }
    }
}
