//! Turns a snapshot, the memory and a policy into one decision for each variant.
//!
//! A model passes these stages, one file each:
//!
//! 1. `classify`: what its observations are worth, and which analyzer decides;
//! 2. `analyze`: what the analyzers find and propose;
//! 3. `optimize`: findings become numbers;
//! 4. `stabilise`: what keeps numbers from moving too fast, and the safety net;
//! 5. `limit`: what all models share;
//! 6. `bound`: minimum and maximum;
//! 7. `zero`: to zero, at zero and back;
//! 8. `publish`: the decision, and what is remembered.
//!
//! Stabilise comes before limit, so that limits share out what will be asked for, and what the safety net adds is limited, too. Bound comes
//! before zero, because only zero may remove the last replica that bounds leave.
//!
//! Models that share limits pass optimize, stabilise and limit together (`shared_models`). All others are independent of each other, so their
//! order does not matter. A number that [`crate::check`] refuses is not published, and the one before it stays.

mod analyze;
mod bound;
mod classify;
mod context;
mod failed_model;
mod holds;
mod limit;
mod model;
mod optimize;
mod proposal;
mod publish;
mod read_ahead;
mod removal_guard;
mod results;
mod safety_net;
mod shared_limits;
mod shared_models;
mod stabilise;
#[cfg(test)]
mod tests;
mod withdrawn_orders;
mod zero;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, btree_map};
use std::iter::Peekable;

use jiff::Timestamp;
use smol_str::{SmolStr, ToSmolStr};

use self::context::ModelContext;
use self::read_ahead::ReadAhead;
use self::results::Results;
use self::shared_limits::Limits;
use self::shared_models::SharedModels;
use crate::check::one_decision_each;
use crate::decision::{Cause, Decision, Reason, Target, Unknown, Verdict};
use crate::isolate::{guarded, guarded_together};
use crate::memory::{GroupMemory, Memory};
use crate::model::{GroupId, InvalidVariant, Policy, VariantId};
use crate::normalize::{is_normal, normalize, not_after};
use crate::outcome::Outcome;
use crate::progress::Progress;
use crate::report::{Basis, Detail, Explanation, Reasoning, Report, Step, Violation};
use crate::snapshot::{Snapshot, VariantState};

/// Decides about everything in `snapshot`.
pub fn decide(snapshot: &Snapshot, memory: &Memory, policy: &Policy) -> Outcome {
    decide_watched(snapshot, memory, policy, &())
}

/// The same, reporting each model to `progress`.
pub fn decide_watched(
    snapshot: &Snapshot,
    memory: &Memory,
    policy: &Policy,
    progress: &dyn Progress,
) -> Outcome {
    let memory = &*memory.understood();
    let mut snapshot = Cow::Borrowed(snapshot);
    if !snapshot.groups.values().all(|group| is_normal(group, snapshot.now)) {
        normalize(snapshot.to_mut());
    }
    let outcome = decide_normalized(&snapshot, memory, policy, progress);
    progress.begins(None);
    outcome
}

fn decide_normalized(
    snapshot: &Snapshot,
    memory: &Memory,
    policy: &Policy,
    progress: &dyn Progress,
) -> Outcome {
    let invalid: BTreeSet<&VariantId> = snapshot.invalid.iter().map(|invalid| &invalid.id).collect();
    let mut memories = MemoryCursor { left: memory.groups.iter().peekable(), unmatched: Vec::new() };
    let limits = guarded_together([], || {
        let limits = Limits::new(snapshot, policy.compat, &policy.limits);
        let is_held = !limits.is_empty();
        (
            limits,
            if is_held { optimize::requests_of_undecided(&snapshot.undecided, policy) } else { Vec::new() },
        )
    });
    let (limits, mut held) = limits.unwrap_or_else(|cause| (Limits::denying(&cause), Vec::new()));
    let mut results = Results::new(snapshot, policy, &limits, &invalid);
    let mut sharing = Vec::new();
    let mut read_ahead = ReadAhead::new(snapshot, memory);
    for (id, group) in &snapshot.groups {
        read_ahead.next_model();
        let before = memories.advance_to(id);
        let is_limited = limits.concern(group);
        if is_limited {
            held.extend(optimize::request_of_unknown_targets(id, group, before, policy));
        }
        let mut hold = || {
            if is_limited {
                held.push(optimize::request_at_rest(id, group, before, policy));
            }
        };
        let failed = before.and_then(|before| before.failed.as_ref());
        if failed.is_some_and(|failed| failed.waits(snapshot.now)) {
            hold();
            results.hold(id, group, before.cloned().unwrap_or_default());
            continue;
        }
        progress.begins(Some(id));
        let model = guarded(id, || {
            let context = ModelContext::new(snapshot.now, id, group, before, policy, is_limited);
            let mut model = classify::classify(context, before);
            analyze::analyze(&mut model);
            if !is_limited {
                optimize::optimize_alone(&mut model);
                stabilise::stabilise(&mut model);
            }
            model
        });
        match model {
            Ok(model) if !is_limited => results.finish(model),
            Ok(model) => sharing.push(model),
            Err(cause) => {
                hold();
                results.fail(id, group, before, cause);
            }
        }
    }
    if !sharing.is_empty() {
        let causes = SharedModels::new(&mut sharing, &limits, policy, progress).decide(held);
        for (model, cause) in sharing.into_iter().zip(causes) {
            progress.begins(Some(model.context.id));
            match cause {
                None => results.finish(model),
                Some(cause) => results.fail(model.context.id, model.context.group, model.before, cause),
            }
        }
    }
    outcome(snapshot, memory, results, memories.unmatched(), &invalid)
}

/// The results of all models, with those of invalid objects. Numbers that the checker refuses are held.
fn outcome(
    snapshot: &Snapshot,
    memory: &Memory,
    mut results: Results<'_>,
    gone: Vec<(&GroupId, &GroupMemory)>,
    invalid: &BTreeSet<&VariantId>,
) -> Outcome {
    results.groups.extend(absent(snapshot, gone, invalid));
    let since = |id| memory.invalid.get(id).map_or(snapshot.now, |since| snapshot.now.min(*since));
    let without = snapshot
        .invalid
        .iter()
        .map(|invalid| (invalid.id.clone(), without_object(invalid, since(&invalid.id))));
    results.decisions.extend(without);
    let mut outcome = Outcome {
        decisions: results.decisions.into_iter().collect(),
        report: Report {
            groups: results.reports.into_iter().collect(),
            dropped: memory.dropped.clone(),
            violations: Vec::new(),
            failed: results.failed,
        },
        memory: Memory {
            groups: results.groups.into_iter().collect(),
            invalid: invalid.iter().map(|id| ((*id).clone(), since(id))).collect(),
            ..Memory::default()
        },
    };
    let mut violations = one_decision_each(snapshot, &outcome.decisions);
    violations.extend(results.violations);
    if !violations.is_empty() {
        let states = by_id(snapshot);
        violations.into_iter().for_each(|violation| refuse(&states, memory, &mut outcome, violation));
    }
    outcome
}

/// Walks over the remembered groups beside the groups of a snapshot; both are in the order of their names.
struct MemoryCursor<'a> {
    left: Peekable<btree_map::Iter<'a, GroupId, GroupMemory>>,
    /// The groups that the snapshot does not have.
    unmatched: Vec<(&'a GroupId, &'a GroupMemory)>,
}

impl<'a> MemoryCursor<'a> {
    /// The memory of `id`, which is greater than every earlier one.
    fn advance_to(&mut self, id: &GroupId) -> Option<&'a GroupMemory> {
        loop {
            // Nearly always it is the next one, and equality is cheaper to test than order.
            if let Some((_, group)) = self.left.next_if(|(own, _)| *own == id) {
                return Some(group);
            }
            self.unmatched.push(self.left.next_if(|(own, _)| *own < id)?);
        }
    }

    fn unmatched(mut self) -> Vec<(&'a GroupId, &'a GroupMemory)> {
        self.unmatched.extend(self.left);
        self.unmatched
    }
}

/// The memory of groups that are not in the snapshot. Only invalid objects stay remembered, so that the memory stays as small as the fleet.
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
    let problem = invalid.problem.to_smolstr();
    let (cause, basis) = if invalid.is_model_unknown {
        (Cause::ModelUnknown, Basis::ModelUnknown { cause: problem })
    } else {
        (Cause::InvalidVariant, Basis::InvalidVariant { problem })
    };
    let explanation = Explanation::without_number(basis);
    let verdict = Verdict::Unknown(Unknown { cause, explanation, since });
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
            let evidence = match &decision.verdict {
                Verdict::Target(target) => target.evidence,
                Verdict::Unknown(unknown) => unknown.since,
            };
            let basis = Basis::RuleBroken { rule: violation.rule, detail: violation.detail.clone() };
            let reasoning = Reasoning::clone(&Explanation::without_number(basis));
            let running = state.scale.map(|scale| scale.base());
            let explanation = Reasoning { running, number: previous, ..reasoning }.into();
            decision.verdict = match previous {
                Some(desired) => {
                    Verdict::Target(Target { desired, reason: Reason::CheckFailed, explanation, evidence })
                }
                None => {
                    let cause = Cause::NothingKnown;
                    Verdict::Unknown(Unknown { cause, explanation, since: evidence })
                }
            };
        }
        if let Some(group) = outcome.memory.groups.get_mut(group_id) {
            let restored = before.cloned().unwrap_or_default();
            group.variants.insert(id.name.clone(), restored);
        }
        let step = Step::of_variant(&id.name, Detail::RuleBroken(violation.clone()));
        outcome.report.groups.entry(group_id.clone()).or_default().steps.push(step);
    }
    outcome.report.violations.push(violation);
}

/// The variants of a snapshot, and the model of each.
type States<'a> = BTreeMap<&'a VariantId, (&'a GroupId, &'a VariantState)>;

fn by_id(snapshot: &Snapshot) -> States<'_> {
    let states = snapshot
        .groups
        .iter()
        .flat_map(|(group, model)| model.variants.iter().map(move |state| (group, state)));
    states.map(|(group, state)| (&state.variant.id, (group, state))).collect()
}
