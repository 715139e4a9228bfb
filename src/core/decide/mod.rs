//! From a snapshot, what is remembered and what is wanted to one decision a variant. The order of the groups is
//! irrelevant: each is decided from its own variants only. What is refused by [`crate::check`] is held.

mod group;
mod member;
mod role;
mod step;
#[cfg(test)]
mod tests;
mod words;
mod zero;

use crate::check::check;
use crate::decision::{Cause, Decision, Outcome, Reason, Report, Step, Target, Unknown, Verdict, Violation};
use crate::future::{not_after, without_future};
use crate::memory::Memory;
use crate::model::{GroupId, Policy, VariantId};
use crate::snapshot::{Snapshot, VariantState};
use crate::units::Seconds;

/// How long a change may be on its way before the analyzer decides anew: HPA's default downscale window, so that an
/// HPA that is merely waiting is never hurried. Upstream waits for ever, and so stops at a target that an HPA never
/// reaches (its maximum is lower, its 10 % tolerance swallows a step of one, a pod fits on no node).
pub const TRANSITION_PATIENCE: Seconds = Seconds::whole(300);

/// How long pods may take to start before their not being ready stops counting as evidence. Weights of the largest
/// models load within 10 to 15 min; twice that. Younger pods keep the number alive although nothing can be measured.
pub const START_ALLOWANCE: Seconds = Seconds::whole(1800);

/// Decides about everything in `snapshot`.
pub fn decide(snapshot: &Snapshot, memory: &Memory, policy: &Policy) -> Outcome {
    let snapshot = &*without_future(snapshot);
    let mut outcome = Outcome {
        decisions: std::collections::BTreeMap::new(),
        report: Report::default(),
        memory: kept(snapshot, memory),
    };
    for (id, group) in &snapshot.groups {
        let before = outcome.memory.groups.get(id).cloned().unwrap_or_default();
        let decided = group::decide(snapshot.now, group, &before, policy);
        outcome.decisions.extend(decided.decisions);
        outcome.report.groups.insert(id.clone(), decided.report);
        outcome.memory.groups.insert(id.clone(), decided.memory);
    }
    for invalid in &snapshot.invalid {
        let since = *outcome.memory.invalid.entry(invalid.id.clone()).or_insert(snapshot.now);
        let message = words::invalid(&invalid.id, &invalid.problem);
        let verdict = Verdict::Unknown(Unknown { cause: Cause::InvalidVariant, message, since });
        let decision = Decision { model: String::new(), accelerator: None, current: None, verdict };
        outcome.decisions.insert(invalid.id.clone(), decision);
    }
    for violation in check(snapshot, memory, policy, &outcome.decisions) {
        refuse(snapshot, memory, &mut outcome, violation);
    }
    outcome
}

/// The memory without what has left the snapshot, so that it stays as small as the fleet. An object that cannot be
/// decided about just now keeps its place.
fn kept(snapshot: &Snapshot, memory: &Memory) -> Memory {
    let mut kept = memory.clone();
    let invalid = |id: &VariantId| snapshot.invalid.iter().any(|one| one.id == *id);
    kept.groups.retain(|id, group| {
        let present = snapshot.groups.get(id).map_or(&[][..], |group| &group.variants);
        group.variants.retain(|name, _| {
            let is_there = present.iter().any(|one| one.variant.id.name == *name);
            is_there || invalid(&VariantId::new(&id.namespace, name))
        });
        snapshot.groups.contains_key(id) || !group.variants.is_empty()
    });
    kept.invalid.retain(|id, _| invalid(id));
    not_after(&mut kept, snapshot.now);
    kept
}

/// Replaces a refused number by the one before it.
fn refuse(snapshot: &Snapshot, memory: &Memory, outcome: &mut Outcome, violation: Violation) {
    let id = violation.variant.clone();
    if let Some((group_id, state)) = find(snapshot, &id) {
        let before = memory.groups.get(group_id).and_then(|group| group.variants.get(&id.name));
        let previous =
            before.and_then(|before| before.target).or(state.last_status.filter(|last| last.get() > 0));
        if let Some(decision) = outcome.decisions.get_mut(&id) {
            let message = words::refused(&id, &violation, previous);
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
        let step =
            Step { step: "check".into(), variant: Some(id.name.clone()), finding: violation.to_string() };
        outcome.report.groups.entry(group_id.clone()).or_default().steps.push(step);
    }
    outcome.report.violations.push(violation);
}

fn find<'a>(snapshot: &'a Snapshot, id: &VariantId) -> Option<(&'a GroupId, &'a VariantState)> {
    let all =
        snapshot.groups.iter().flat_map(|(group, model)| model.variants.iter().map(move |one| (group, one)));
    all.into_iter().find(|(_, one)| one.variant.id == *id)
}
