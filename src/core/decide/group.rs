//! One model group: its variants by role, bounds, zero, and what is published and remembered.

use std::collections::BTreeMap;

use jiff::Timestamp;
use smol_str::SmolStr;

use super::member::{Draft, Member, Scene};
use super::{role, words, zero};
use crate::decision::{Cause, Decision, Reason, Target, Unknown, Verdict};
use crate::memory::{GroupMemory, VariantMemory};
use crate::model::{GroupId, Policy, Role, VariantId};
use crate::quality::look_at;
use crate::report::{GroupReport, Stage, Step};
use crate::snapshot::{ModelGroup, VariantState};
use crate::units::Seconds;

/// What one group's decision leaves.
pub(super) struct Decided {
    pub(super) decisions: BTreeMap<VariantId, Decision>,
    pub(super) report: GroupReport,
    pub(super) memory: GroupMemory,
}

/// Decides about one group. Of what is remembered `before`, a variant that is not in it keeps its place if `keep` says so.
pub(super) fn decide(
    now: Timestamp,
    id: &GroupId,
    group: &ModelGroup,
    mut before: GroupMemory,
    policy: &Policy,
    keep: impl Fn(&SmolStr) -> bool,
) -> Decided {
    // A look in the future was taken before the clock was set back.
    let due = before.cycle_at.is_none_or(|at| at > now || Seconds::between(at, now) >= policy.cycle);
    let scene = Scene { now, model: policy.of(id), scale_to_zero: policy.scale_to_zero(id), group, due };
    let mut known = std::mem::take(&mut before.variants);
    let mut decided = Decided { decisions: BTreeMap::new(), report: GroupReport::default(), memory: before };
    let (members, mut drafts) = draft_all(scene, &mut known, &mut decided);
    decided.report.steps.extend(bound(&members, &mut drafts));
    decided.report.steps.extend(zero::settle(scene, &decided.memory, &members, &mut drafts));
    for (member, draft) in members.iter().zip(drafts) {
        let (verdict, memory) = finish(now, policy, member, draft);
        decided.decisions.insert(member.id().clone(), decision(member.state, verdict));
        decided.memory.variants.insert(member.name().clone(), memory);
    }
    for lost in group.variants.iter().filter(|variant| variant.scale.is_none()) {
        let memory = known.remove(&lost.variant.id.name).unwrap_or_default();
        without_target(now, lost, memory, &mut decided);
    }
    decided.memory.variants.extend(known.into_iter().filter(|(name, _)| keep(name)));
    decided
}

/// The members of every role and their drafts, role by role: each is analysed, blocked and stepped on its own.
fn draft_all<'a>(
    scene: Scene<'a>,
    known: &mut BTreeMap<SmolStr, VariantMemory>,
    decided: &mut Decided,
) -> (Vec<Member<'a>>, Vec<Draft>) {
    let (mut members, mut drafts) = (Vec::new(), Vec::new());
    let mut roles: BTreeMap<Role, Vec<Member<'a>>> = BTreeMap::new();
    for state in &scene.group.variants {
        let Some(scale) = state.scale else { continue };
        let memory = known.remove(&state.variant.id.name).unwrap_or_default();
        let member = Member { state, scale, memory, seen: look_at(state, scene.now) };
        roles.entry(state.variant.role).or_default().push(member);
    }
    for (role, of_role) in roles {
        let outcome = role::decide(scene, role, &of_role);
        decided.report.steps.extend(outcome.steps);
        if outcome.looked {
            decided.memory.cycle_at = Some(scene.now);
        }
        members.extend(of_role);
        drafts.extend(outcome.drafts);
    }
    (members, drafts)
}

/// Minimum and maximum: after every analyzer, in transitions and on holds too.
fn bound(members: &[Member<'_>], drafts: &mut [Draft]) -> Vec<Step> {
    let mut steps = Vec::new();
    for (member, draft) in members.iter().zip(drafts) {
        let Some(wanted) = draft.number else { continue };
        let bounded = member.state.variant.bounds.clamp(wanted);
        if bounded != wanted {
            let message = words::bounded(member, wanted, bounded, &draft.message);
            steps.push(Step::new(Stage::Bound, Some(member.name()), message.clone()));
            *draft = Draft { number: Some(bounded), reason: Reason::Bounded, message, ..draft.clone() };
        }
    }
    steps
}

fn decision(state: &VariantState, verdict: Verdict) -> Decision {
    Decision {
        model: state.variant.model.clone(),
        accelerator: state.variant.accelerator.clone(),
        current: state.scale.map(|scale| scale.current),
        verdict,
    }
}

/// The verdict, and what is remembered of it. A number whose evidence is too old is not published but remembered, so
/// that it can go on when evidence returns.
fn finish(now: Timestamp, policy: &Policy, member: &Member<'_>, draft: Draft) -> (Verdict, VariantMemory) {
    let before = &member.memory;
    let blind_since = draft.blind.then(|| before.blind_since.unwrap_or(now));
    let Some(desired) = draft.number else {
        let since = before.blind_since.unwrap_or(now);
        let message = words::nothing_known(member, &draft.message);
        let memory = VariantMemory { blind_since: Some(since), ..before.clone() };
        return (Verdict::Unknown(Unknown { cause: Cause::NothingKnown, message, since }), memory);
    };
    let moved = before.target != Some(desired);
    let evidence = draft.evidence.min(now);
    let sampled = (!draft.blind).then_some(evidence);
    let memory = VariantMemory {
        target: Some(desired),
        target_since: if moved { Some(now) } else { before.target_since.or(Some(now)) },
        evidence: before.evidence.max(sampled),
        reason: if draft.blind { before.reason } else { Some(draft.reason) },
        message: if draft.blind { before.message.clone() } else { Some(draft.message.clone()) },
        blind_since,
    };
    let age = Seconds::between(evidence, now);
    if age > policy.max_stale {
        let message = words::too_old(member, age, policy.max_stale, &draft.message);
        return (Verdict::Unknown(Unknown { cause: Cause::TooOld, message, since: evidence }), memory);
    }
    let target = Target { desired, reason: draft.reason, message: draft.message, evidence };
    (Verdict::Target(target), memory)
}

/// A variant whose scale target does not exist: no number, but its memory stays for when it comes back.
fn without_target(now: Timestamp, state: &VariantState, mut memory: VariantMemory, decided: &mut Decided) {
    let since = *memory.blind_since.get_or_insert(now);
    let message = words::target_not_found(state);
    let verdict = Verdict::Unknown(Unknown { cause: Cause::TargetNotFound, message, since });
    decided.decisions.insert(state.variant.id.clone(), decision(state, verdict));
    decided.memory.variants.insert(state.variant.id.name.clone(), memory);
    let finding = format!("{} does not exist", state.variant.target);
    decided.report.steps.push(Step::new(Stage::Quality, Some(&state.variant.id.name), finding));
}
