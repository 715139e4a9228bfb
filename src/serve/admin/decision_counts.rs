//! Counts of what was decided, from one published result to the next while this instance holds the lease.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use smol_str::SmolStr;
use tokio::sync::watch;
use wva_core::decision::{Reason, Target, Verdict};
use wva_core::units::Replicas;
use wva_core::{Decision, VariantId};

use crate::engine::{Leadership, Origin, Published};

/// Longest name of a limit that a label shows: enough to find it in a ConfigMap.
const MAX_LIMIT_NAME_BYTES: usize = 64;

/// One kind of change of one variant's target.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ReplicaChange {
    pub(crate) variant: VariantId,
    pub(crate) direction: &'static str,
    pub(crate) reason: &'static str,
}

/// A limit that held a variant back.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Limited {
    pub(crate) variant: VariantId,
    pub(crate) limit: SmolStr,
}

/// How often each has occurred.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counts {
    /// Changes of the target.
    pub(crate) changes: BTreeMap<ReplicaChange, u64>,
    /// Evaluations in which a limit granted less than was proposed.
    pub(crate) limited: BTreeMap<Limited, u64>,
    /// Numbers that a rule has set, by rule, in each evaluation.
    pub(crate) enforced: BTreeMap<&'static str, u64>,
}

/// Follows what is published, and counts.
#[derive(Debug, Default)]
pub(crate) struct DecisionCounts {
    counts: Mutex<Counts>,
}

impl DecisionCounts {
    /// A copy of the counts.
    pub(crate) fn counts(&self) -> Counts {
        self.counts.lock().clone()
    }

    /// Counts every published result while this instance holds the lease, for ever.
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
        // The series of a variant go with it.
        counts.changes.retain(|change, _| newest.decisions.contains_key(&change.variant));
        counts.limited.retain(|limited, _| newest.decisions.contains_key(&limited.variant));
        for (id, decision) in &newest.decisions {
            let Verdict::Target(new) = &decision.verdict else { continue };
            if let Some(Verdict::Target(old)) = previous.decisions.get(id).map(|old| &old.verdict) {
                counts.count_change(id, old, new);
            }
            if newest.origin == Origin::Computed {
                counts.count_decision(id, decision, new);
            }
        }
    }
}

impl Counts {
    fn count_change(&mut self, id: &VariantId, old: &Target, new: &Target) {
        if new.desired != old.desired {
            let direction = if new.desired > old.desired { "up" } else { "down" };
            let change = ReplicaChange { variant: id.clone(), direction, reason: new.reason.as_str() };
            *self.changes.entry(change).or_default() += 1;
        }
    }

    fn count_decision(&mut self, id: &VariantId, decision: &Decision, target: &Target) {
        if let Some(limit) = target.explanation.limit() {
            let limit = limit[..limit.floor_char_boundary(MAX_LIMIT_NAME_BYTES)].into();
            *self.limited.entry(Limited { variant: id.clone(), limit }).or_default() += 1;
        }
        let runs = decision.current.is_some_and(|current| current > Replicas::ZERO);
        let rule = if target.reason == Reason::ScaleToZero && target.desired == Replicas::ZERO && runs {
            Some("scale_to_zero")
        } else {
            target.explanation.is_raised_to_minimum().then_some("minimum_replicas")
        };
        if let Some(rule) = rule {
            *self.enforced.entry(rule).or_default() += 1;
        }
    }
}
