//! The decision about one model: the published number of each variant, and the memory.

use smol_str::SmolStr;

use super::analyze::fallback;
use super::classify::variant_memory;
use super::context::{DENIED_WINDOW, ModelContext, VariantContext};
use super::model::ModelDecision;
use super::proposal::Proposal;
use super::withdrawn_orders;
use super::zero::missing_wake_up;
use crate::decision::{Cause, Decision, Target, Unknown, Verdict};
use crate::memory::{GroupMemory, VariantMemory};
use crate::model::VariantId;
use crate::moment::Moment;
use crate::normalize::remembered;
use crate::report::{Basis, Detail, Explanation, GroupReport, Hindrance, Step, Withheld};
use crate::snapshot::VariantState;
use crate::units::{Seconds, figure};

pub(super) struct ModelOutcome {
    pub(super) decisions: Vec<(VariantId, Decision)>,
    pub(super) report: GroupReport,
    pub(super) memory: GroupMemory,
}

/// The outcome of `model`. A variant that is remembered and not in the group is forgotten, unless `keep` says otherwise.
pub(super) fn publish(model: ModelDecision<'_>, keep: impl Fn(&SmolStr) -> bool) -> ModelOutcome {
    let gap =
        |variant| fallback::find_gap(&model, variant).or_else(|| missing_wake_up(model.context, variant));
    let gaps: Vec<_> = model.variants.iter().map(gap).collect();
    let ModelDecision { context, variants, proposals, steps, memory, before, .. } = model;
    let mut outcome = ModelOutcome {
        decisions: Vec::with_capacity(variants.len()),
        report: GroupReport { steps, ..GroupReport::default() },
        memory,
    };
    for ((variant, proposal), gap) in variants.into_iter().zip(proposals).zip(gaps) {
        let (mut verdict, memory) = verdict(context, &variant, proposal);
        if let (Verdict::Target(target), Some(hindrance)) =
            (&mut verdict, hindrance(context, &variant, &outcome.memory))
        {
            target.explanation.to_mut().hindrance = Some(hindrance);
        }
        let decision = Decision { gap, ..decision(variant.state, verdict) };
        outcome.decisions.push((variant.id().clone(), decision));
        outcome.memory.variants.insert(variant.name().clone(), memory);
    }
    for state in context.group.variants.iter().filter(|state| state.scale.is_none()) {
        let memory = variant_memory(context, before, &state.variant.id.name).into_owned();
        publish_without_target(context, state, memory, &mut outcome);
    }
    for (name, memory) in before.into_iter().flat_map(|before| before.variants.iter()) {
        if outcome.memory.variants.get(name).is_none() && keep(name) {
            outcome.memory.variants.insert(name.clone(), remembered(memory, context.now).into_owned());
        }
    }
    outcome.report.steps.shrink_to_fit(); // kept until the next evaluation, and half empty
    outcome
}

pub(super) fn decision(state: &VariantState, verdict: Verdict) -> Decision {
    Decision {
        model: state.variant.model.clone(),
        accelerator: state.variant.accelerator.clone(),
        current: state.scale.map(|scale| scale.current),
        verdict,
        gap: None,
    }
}

/// The verdict, and what is remembered of it. A number whose evidence is too old is remembered and not published, so that it is there when
/// evidence returns.
fn verdict(
    context: ModelContext<'_>,
    variant: &VariantContext<'_>,
    proposal: Proposal,
) -> (Verdict, VariantMemory) {
    let (now, before) = (context.now, &variant.memory);
    let blind_since = proposal.is_blind.then(|| before.blind_since.unwrap_or(now));
    let unlisted_since = (variant.unlisted() > 0).then(|| before.unlisted_since.unwrap_or(now));
    let Some(desired) = proposal.number else {
        let since = before.blind_since.unwrap_or(now);
        let memory =
            VariantMemory { blind_since: Some(since), unlisted_since, ..VariantMemory::clone(before) };
        let explanation = withheld(proposal.explanation, Withheld::NothingKnown);
        return (Verdict::Unknown(Unknown { cause: Cause::NothingKnown, explanation, since }), memory);
    };
    let is_moved = before.target != Some(desired);
    // An order from zero that no autoscaler followed has expired. If an analyzer repeats it, its time begins again.
    let is_renewed = proposal.analyzed.is_some() && !variant.is_active() && !variant.is_waiting(now);
    let evidence = proposal.evidence.min(now);
    let sampled = (!proposal.is_blind).then_some(evidence);
    let own = || (Some(proposal.reason), Some(proposal.explanation.clone()));
    let (reason, explanation) =
        if proposal.is_blind { (before.reason, before.explanation.clone()) } else { own() };
    let memory = VariantMemory {
        target: Some(desired),
        target_since: if is_moved || is_renewed { Some(now) } else { before.target_since.or(Some(now)) },
        evidence: before.evidence.max(sampled),
        reason,
        explanation,
        blind_since,
        unlisted_since,
        proposals: before.proposals.clone(),
        safety_net: before.safety_net,
        starts: before.starts.clone(),
        ordered_from: withdrawn_orders::ordered_from(before, desired, context),
        withdrawn_at: before.withdrawn_at,
        most_running: before.most_running,
    };
    let age = Seconds::between(evidence, now);
    if age > context.max_stale {
        let (age, limit) = (figure(age.get()), figure(context.max_stale.get()));
        let explanation = withheld(proposal.explanation, Withheld::EvidenceTooOld { age, limit });
        return (Verdict::Unknown(Unknown { cause: Cause::TooOld, explanation, since: evidence }), memory);
    }
    let Proposal { reason, explanation, .. } = proposal;
    (Verdict::Target(Target { desired, reason, explanation, evidence }), memory)
}

/// What holds replicas of `variant` back, whether this evaluation asked for them or not.
fn hindrance(
    context: ModelContext<'_>,
    variant: &VariantContext<'_>,
    memory: &GroupMemory,
) -> Option<Hindrance> {
    let pods = variant.coverage.unschedulable;
    if pods > 0 {
        return Some(Hindrance::NoNode { pods, message: variant.state.unschedulable.clone() });
    }
    let rate = memory.learned.as_ref().and_then(|learned| learned.rate.as_ref());
    let known = rate.and_then(|rate| rate.knowledge.variants.get(variant.name()));
    let by_rate = known.and_then(|known| known.denied);
    let by_safety_net = variant.memory.safety_net.denied.map(Moment::from);
    let is_recent = |at: Moment| at.until(context.now.into()) < DENIED_WINDOW.get();
    by_rate.into_iter().chain(by_safety_net).any(is_recent).then_some(Hindrance::Denied)
}

fn withheld(mut explanation: Explanation, why: Withheld) -> Explanation {
    explanation.to_mut().withheld = Some(why);
    explanation
}

/// A variant whose scale target does not exist, or may not, gets no number. Its memory stays, in case the target is seen
/// again.
fn publish_without_target(
    context: ModelContext<'_>,
    state: &VariantState,
    mut memory: VariantMemory,
    outcome: &mut ModelOutcome,
) {
    let since = *memory.blind_since.get_or_insert(context.now);
    let verdict = without_target(state, since);
    outcome.decisions.push((state.variant.id.clone(), decision(state, verdict)));
    outcome.memory.variants.insert(state.variant.id.name.clone(), memory);
    let target = state.variant.target.to_string().into();
    let is_known = state.target_problem.is_none();
    let detail = if is_known { Detail::TargetNotFound(target) } else { Detail::TargetUnknown(target) };
    outcome.report.steps.push(Step::of_variant(&state.variant.id.name, detail));
}

/// The verdict about a variant whose scale target does not exist, or is not known to.
pub(super) fn without_target(state: &VariantState, since: jiff::Timestamp) -> Verdict {
    let target = state.variant.target.to_string().into();
    let namespace = state.variant.id.namespace.clone();
    let (cause, basis) = match &state.target_problem {
        Some(problem) => (Cause::TargetUnknown, Basis::TargetUnknown { target, cause: problem.clone() }),
        None => (Cause::TargetNotFound, Basis::TargetNotFound { target, namespace }),
    };
    Verdict::Unknown(Unknown { cause, explanation: Explanation::without_number(basis), since })
}
