//! From a snapshot, what is remembered and what is wanted to one decision a variant. The order of the groups is
//! irrelevant: each is decided from its own variants only. What is refused by [`crate::check`] is held.

mod ahead;
mod analyze;
mod bound;
mod classify;
mod context;
mod failed_model;
mod limits;
mod messages;
mod model_group;
mod model_pass;
mod removal_guard;
mod safety_net;
mod shared;
#[cfg(test)]
mod tests;
mod withdrawn_orders;
mod zero;

use std::collections::{BTreeMap, BTreeSet, btree_map};
use std::iter::Peekable;

use jiff::Timestamp;
use smol_str::{SmolStr, ToSmolStr};

use self::ahead::Ahead;
use self::context::ModelContext;
use self::limits::Limits;
use self::model_group::PendingModel;
use self::model_pass::{All, ModelPass};
use crate::check::one_decision_each;
use crate::decision::{Cause, Decision, Reason, Target, Unknown, Verdict};
use crate::isolate::{guarded, guarded_together};
use crate::memory::{GroupMemory, Memory};
use crate::model::{GroupId, InvalidVariant, Policy, VariantId};
use crate::normalize::{cleaned, is_clean, not_after};
use crate::outcome::Outcome;
use crate::progress::Progress;
use crate::report::{Report, Stage, Step, Violation};
use crate::snapshot::{Snapshot, VariantState};
use crate::units::Seconds;

/// How long a change may be on its way before the analyzer decides anew: HPA's default downscale window, so that an
/// HPA that is merely waiting is never hurried. Upstream waits for ever, and so stops at a target that an HPA never
/// reaches (its maximum is lower, its 10 % tolerance swallows a step of one, a pod fits on no node).
pub const TRANSITION_TIMEOUT: Seconds = Seconds::whole(300);

/// How long pods may take to start before their not being ready stops counting as evidence. Weights of the largest
/// models load within 10 to 15 min; twice that. Younger pods keep the number alive although nothing can be measured.
pub const START_UP_ALLOWANCE: Seconds = Seconds::whole(1800);

/// Decides about everything in `snapshot`.
pub fn decide(snapshot: &Snapshot, memory: &Memory, policy: &Policy) -> Outcome {
    decide_watched(snapshot, memory, policy, &())
}

/// The same, and `progress` is told of each model.
pub fn decide_watched(
    snapshot: &Snapshot,
    memory: &Memory,
    policy: &Policy,
    progress: &dyn Progress,
) -> Outcome {
    let memory = &*memory.understood();
    let outcome = match decide_as_it_is(snapshot, memory, policy, progress) {
        (outcome, Clean(true)) => outcome,
        (_, Clean(false)) => decide_as_it_is(&cleaned(snapshot), memory, policy, progress).0,
    };
    progress.begins(None);
    outcome
}

/// The snapshot is such that the decision may be used. Found on the way, since to look first is a second way through all
/// that was measured.
struct Clean(bool);

fn decide_as_it_is(
    snapshot: &Snapshot,
    memory: &Memory,
    policy: &Policy,
    progress: &dyn Progress,
) -> (Outcome, Clean) {
    let mut clean = true;
    let invalid: BTreeSet<&VariantId> = snapshot.invalid.iter().map(|one| &one.id).collect();
    let mut remembered = MemoryCursor { left: memory.groups.iter().peekable(), gone: Vec::new() };
    let limits = guarded_together([], || Limits::new(snapshot, policy.compat, &policy.limits));
    let limits = limits.unwrap_or_else(|_| Limits::denying(policy.compat));
    let mut deciding = ModelPass::new(snapshot, (policy, &limits), &invalid);
    let (mut sharing, mut held) = (Vec::new(), Vec::new());
    let mut ahead = Ahead::new(snapshot, memory);
    for (id, group) in &snapshot.groups {
        ahead.next();
        let before = remembered.of(id);
        let mut rest = || {
            if !limits.is_empty() {
                held.push(shared::at_rest(id, group, before, policy));
            }
        };
        if let Some(failed) = before.and_then(|before| before.failed.as_ref())
            && failed.waits(snapshot.now)
        {
            rest();
            deciding.hold(id, group, before.cloned().unwrap_or_default());
            continue;
        }
        progress.begins(Some(id));
        let pending = guarded(id, || {
            clean &= is_clean(group, snapshot.now);
            let mut pending = PendingModel::new(
                ModelContext::new(snapshot.now, id, group, before, (policy, &limits)),
                before,
            );
            if limits.is_empty() {
                shared::by_itself(&mut pending);
            }
            pending
        });
        match pending {
            Ok(pending) if limits.is_empty() => deciding.finish(pending),
            Ok(pending) => sharing.push(pending),
            Err(cause) => {
                rest();
                deciding.broke(id, group, before, cause);
            }
        }
    }
    deciding.share(sharing, held, progress);
    let outcome = outcome(snapshot, memory, deciding.decided, remembered.gone(), invalid);
    (outcome, Clean(clean))
}

/// What all models came to, with the objects that cannot be decided about; what the checker refuses is held.
fn outcome(
    snapshot: &Snapshot,
    memory: &Memory,
    mut decided: All,
    gone: Vec<(&GroupId, &GroupMemory)>,
    invalid: BTreeSet<&VariantId>,
) -> Outcome {
    decided.groups.extend(absent(snapshot, gone, &invalid));
    let since = |id| memory.invalid.get(id).map_or(snapshot.now, |since| snapshot.now.min(*since));
    let without = snapshot.invalid.iter().map(|one| (one.id.clone(), without_object(one, since(&one.id))));
    decided.decisions.extend(without);
    let mut outcome = Outcome {
        decisions: decided.decisions.into_iter().collect(),
        report: Report {
            groups: decided.reports.into_iter().collect(),
            dropped: memory.dropped.clone(),
            violations: Vec::new(),
            failed: decided.failed,
        },
        memory: Memory {
            groups: decided.groups.into_iter().collect(),
            invalid: invalid.into_iter().map(|id| (id.clone(), since(id))).collect(),
            ..Memory::default()
        },
    };
    let mut broken = one_decision_each(snapshot, &outcome.decisions);
    broken.extend(decided.broken);
    if !broken.is_empty() {
        let states = by_id(snapshot);
        broken.into_iter().for_each(|violation| refuse(&states, memory, &mut outcome, violation));
    }
    outcome
}

/// What is remembered, beside the groups of a snapshot: both are in the order of their names, so one walk finds all.
struct MemoryCursor<'a> {
    left: Peekable<btree_map::Iter<'a, GroupId, GroupMemory>>,
    /// Of groups that the snapshot does not have.
    gone: Vec<(&'a GroupId, &'a GroupMemory)>,
}

impl<'a> MemoryCursor<'a> {
    /// Of `id`, which comes after all that were asked for before.
    fn of(&mut self, id: &GroupId) -> Option<&'a GroupMemory> {
        loop {
            // Nearly always it is the next one, and to be equal is cheaper to see than to be less.
            if let Some((_, group)) = self.left.next_if(|(own, _)| *own == id) {
                return Some(group);
            }
            self.gone.push(self.left.next_if(|(own, _)| *own < id)?);
        }
    }

    fn gone(mut self) -> Vec<(&'a GroupId, &'a GroupMemory)> {
        self.gone.extend(self.left);
        self.gone
    }
}

/// What stays remembered of groups that are not in the snapshot: the objects that cannot be decided about just now. The
/// rest goes, so that the memory stays as small as the fleet.
fn absent(
    snapshot: &Snapshot,
    gone: Vec<(&GroupId, &GroupMemory)>,
    invalid: &BTreeSet<&VariantId>,
) -> Vec<(GroupId, GroupMemory)> {
    let kept = gone.into_iter().map(|(id, group)| {
        let mut group = group.clone();
        group
            .variants
            .retain(|name, _| invalid.contains(&VariantId::new(id.namespace.clone(), name.clone())));
        not_after(&mut group, snapshot.now);
        (id.clone(), group)
    });
    kept.filter(|(_, group)| !group.variants.is_empty()).collect()
}

fn without_object(invalid: &InvalidVariant, since: Timestamp) -> Decision {
    let message = messages::invalid(&invalid.id, &invalid.problem);
    let verdict = Verdict::Unknown(Unknown { cause: Cause::InvalidVariant, message, since });
    Decision { model: SmolStr::default(), accelerator: None, current: None, verdict, gap: None }
}

/// Replaces a refused number by the one before it.
fn refuse(states: &States<'_>, memory: &Memory, outcome: &mut Outcome, violation: Violation) {
    let id = violation.variant.clone();
    if let Some((group_id, state)) = states.get(&id).copied() {
        let before = memory.groups.get(group_id).and_then(|group| group.variants.get(&id.name));
        let previous =
            before.and_then(|before| before.target).or(state.last_status.filter(|last| last.get() > 0));
        if let Some(decision) = outcome.decisions.get_mut(&id) {
            let message = messages::refused(&id, &violation, previous);
            let evidence = match &decision.verdict {
                Verdict::Target(target) => target.evidence,
                Verdict::Unknown(unknown) => unknown.since,
            };
            decision.verdict = match previous {
                Some(desired) => {
                    Verdict::Target(Target { desired, reason: Reason::CheckFailed, message, evidence })
                }
                None => Verdict::Unknown(Unknown { cause: Cause::NothingKnown, message, since: evidence }),
            };
        }
        if let Some(group) = outcome.memory.groups.get_mut(group_id) {
            let restored = before.cloned().unwrap_or_default();
            group.variants.insert(id.name.clone(), restored);
        }
        let step = Step::new(Stage::Check, Some(&id.name), violation.to_smolstr());
        outcome.report.groups.entry(group_id.clone()).or_default().steps.push(step);
    }
    outcome.report.violations.push(violation);
}

/// The variants of a snapshot, and the model of each.
type States<'a> = BTreeMap<&'a VariantId, (&'a GroupId, &'a VariantState)>;

fn by_id(snapshot: &Snapshot) -> States<'_> {
    let all =
        snapshot.groups.iter().flat_map(|(group, model)| model.variants.iter().map(move |one| (group, one)));
    all.map(|(group, one)| (&one.variant.id, (group, one))).collect()
}
