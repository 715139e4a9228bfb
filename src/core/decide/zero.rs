//! To zero, at zero and back: the only part that may take the last replica away, and the one that gives the first back.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::context::{ModelContext, Proposal, VariantContext};
use super::messages;
use crate::analyze::scale_from_zero::WakeCandidate;
use crate::arithmetic;
use crate::bound::enforcer::{Action, Enforced, enforce};
use crate::decision::Reason;
use crate::memory::{GroupMemory, Learned};
use crate::model::{Analyzer, Role};
use crate::observe::{Activity, activity, scheduler_queue};
use crate::quality::CoverageState;
use crate::report::{Stage, Step, Value};
use crate::snapshot::{SourceHealth, VariantState};
use crate::units::{Replicas, Seconds};

/// A role of which nothing runs and nothing is asked to: it sleeps until the scheduler holds a request for the model.
pub(super) fn at_zero(
    context: ModelContext<'_>,
    variants: &[VariantContext<'_>],
    learned: &Learned,
    steps: &mut Vec<Step>,
) -> Vec<Proposal> {
    let mut proposals: Vec<Proposal> = variants.iter().map(|variant| asleep(context, variant)).collect();
    let Some(queue) = scheduler_queue(context.now, &context.group.scheduler) else {
        if nothing_else_wakes(context, variants) {
            let sleeping = variants.iter().zip(&mut proposals);
            sleeping
                .filter(|(_, proposal)| !proposal.blind && proposal.number == Some(Replicas::ZERO))
                .for_each(|(variant, proposal)| unwakeable(context, variant, proposal));
        }
        return proposals;
    };
    if queue.value <= 0.0 {
        return proposals;
    }
    let candidates: Vec<WakeCandidate> =
        variants.iter().map(|variant| sleeper(context, variant, learned)).collect();
    for chosen in arithmetic::woken(&candidates, context.compat) {
        let variant = &variants[chosen];
        let message = messages::from_zero(variant, queue.value);
        let carried =
            candidates[chosen].per_replica.map(|carried| Value::new("tokens a replica carries", carried));
        let values =
            [Value::new("cost of a replica", variant.state.variant.cost.get())].into_iter().chain(carried);
        let step = Step::new(Stage::Target, Some(variant.name()), message.clone());
        steps.push(Step { values: values.collect(), ..step });
        let number = proposals[chosen].number.unwrap_or(Replicas::ZERO).max(Replicas::ONE);
        proposals[chosen] = Proposal {
            number: Some(number),
            reason: Reason::ScaleFromZero,
            message,
            evidence: queue.at,
            blind: false,
            // Waking is an addition like any other, and is asked of the limits.
            look: Some(CoverageState::Aging.allowed_moves()),
        };
    }
    proposals
}

/// What it takes to wake `variant`, and what that carries: as V2 has learned of its replicas, when that is in charge.
fn sleeper(context: ModelContext<'_>, variant: &VariantContext<'_>, learned: &Learned) -> WakeCandidate {
    let spec = &variant.state.variant;
    let by_tokens = context.policy.analyzer == Analyzer::Saturation;
    WakeCandidate {
        name: spec.id.name.clone(),
        role: spec.role,
        replicas: variant.scale.spec,
        cost: spec.cost,
        per_replica: by_tokens.then(|| learned.tokens.carried_by(&spec.id.name)).flatten(),
        bounds: spec.bounds,
    }
}

/// Neither a minimum nor scaling to zero being off gives one of `variants` a replica.
fn nothing_else_wakes(context: ModelContext<'_>, variants: &[VariantContext<'_>]) -> bool {
    let sleeps = |one: &VariantState| one.variant.bounds.min == Replicas::ZERO;
    let one_is_kept = !context.scale_to_zero.enabled && context.group.variants.iter().all(sleeps);
    !one_is_kept && variants.iter().all(|variant| sleeps(variant.state))
}

/// At zero and no request can be seen waiting: the number stays, but nothing renews what it rests on.
fn unwakeable(context: ModelContext<'_>, variant: &VariantContext<'_>, proposal: &mut Proposal) {
    let (evidence, message) = (variant.old_evidence(context.now), messages::unwakeable(variant));
    *proposal =
        Proposal { reason: Reason::MetricsMissing, message, evidence, blind: true, ..proposal.clone() };
}

/// A variant of which nobody asks for a replica. When the source answers completely, that is a measured zero.
pub(super) fn asleep(context: ModelContext<'_>, variant: &VariantContext<'_>) -> Proposal {
    if !matches!(context.group.source, SourceHealth::Complete) {
        return variant.hold(Reason::Partial, messages::asleep_unsure(variant), context.now);
    }
    let on_its_way =
        variant.memory.target.filter(|target| *target > Replicas::ZERO && variant.patient(context.now));
    let (number, reason, message) = match on_its_way {
        Some(target) => (target, Reason::Transition, messages::awaited(variant, target)),
        None => (Replicas::ZERO, Reason::Steady, messages::asleep(variant)),
    };
    Proposal { number: Some(number), reason, message, evidence: context.now, blind: false, look: None }
}

/// The last word on zero, for all roles of a model together: an idle model loses its replicas, a running one that is
/// not known to be idle keeps at least one of each variant, and where scaling to zero is off the cheapest keeps one.
pub(super) fn settle(
    context: ModelContext<'_>,
    before: &GroupMemory,
    variants: &[VariantContext<'_>],
    proposals: &mut [Proposal],
) -> Vec<Step> {
    let mut steps = Vec::new();
    let may_sleep = context.group.variants.iter().all(|one| one.variant.bounds.min == Replicas::ZERO);
    let enabled = context.scale_to_zero.enabled;
    let idle = may_sleep && enabled && idle_for_long(context, before);
    let covered = covered(context, variants, proposals);
    for (variant, proposal) in variants.iter().zip(proposals.iter_mut()) {
        let last = variant.active() && proposal.number == Some(Replicas::ZERO);
        let seen = proposal.look.is_some_and(|allowed_moves| allowed_moves.zero);
        let settled = seen || variant.committed() == Some(Replicas::ZERO);
        let covered = settled && covered.contains(&variant.state.variant.role);
        if !idle && last && !covered && variant.allows(Replicas::ONE) {
            stay_awake(variant, proposal, &mut steps);
        }
    }
    if !may_sleep || proposals.iter().any(|proposal| proposal.number.is_none()) {
        return steps;
    }
    let mut numbers: Vec<Enforced> = variants.iter().zip(proposals.iter()).map(enforced).collect();
    match enforce(&mut numbers, enabled, idle.then_some(0.0)) {
        Action::Unchanged => {}
        Action::ToZero => fall_asleep(context.now, before, variants, proposals, &mut steps),
        Action::KeptOne(kept) if variants[kept].allows(Replicas::ONE) => {
            let message = messages::kept_one(&variants[kept]);
            steps.push(Step::new(Stage::Bound, Some(variants[kept].name()), message.clone()));
            proposals[kept] = Proposal {
                number: Some(Replicas::ONE),
                reason: Reason::Bounded,
                message,
                ..proposals[kept].clone()
            };
        }
        Action::KeptOne(_) => {}
    }
    steps
}

/// Roles of which an optimizer may take one variant's last replica, since another keeps some.
fn covered(
    context: ModelContext<'_>,
    variants: &[VariantContext<'_>],
    proposals: &[Proposal],
) -> BTreeSet<Role> {
    let optimized = context.policy.analyzer.is_of_capacity();
    let kept = |proposal: &Proposal| proposal.number.is_some_and(|number| number > Replicas::ZERO);
    // What has never served keeps nobody's requests.
    let serves = |variant: &VariantContext<'_>| !variant.coverage.observations.is_empty();
    let keeping = variants.iter().zip(proposals);
    let keeping = keeping.filter(|(variant, proposal)| optimized && kept(proposal) && serves(variant));
    keeping.map(|(variant, _)| variant.state.variant.role).collect()
}

fn enforced((variant, proposal): (&VariantContext<'_>, &Proposal)) -> Enforced {
    let target = proposal.number.unwrap_or(Replicas::ZERO);
    Enforced { name: variant.name().clone(), target, cost: variant.state.variant.cost }
}

/// A zero that was right when it was decided is not any more: a request came, or idleness cannot be measured now.
fn stay_awake(variant: &VariantContext<'_>, proposal: &mut Proposal, steps: &mut Vec<Step>) {
    // An analyzer that has just measured a zero means as few as may be; what was decided earlier may have changed.
    let as_few = proposal.look.is_some_and(|allowed_moves| allowed_moves.down);
    let measured = !variant.coverage.observations.is_empty() && !as_few;
    let number = if measured { variant.scale.base().max(Replicas::ONE) } else { Replicas::ONE };
    let number = variant.state.variant.bounds.clamp(number);
    let message = messages::not_idle(variant, number);
    steps.push(Step::new(Stage::Bound, Some(variant.name()), message.clone()));
    let reason = if proposal.blind { proposal.reason } else { Reason::ScaleUp };
    *proposal = Proposal { number: Some(number), reason, message, ..proposal.clone() };
}

fn fall_asleep(
    now: Timestamp,
    before: &GroupMemory,
    variants: &[VariantContext<'_>],
    proposals: &mut [Proposal],
    steps: &mut Vec<Step>,
) {
    let idle = before.idle_since.map_or(Seconds::ZERO, |since| Seconds::between(since, now));
    for (variant, proposal) in variants.iter().zip(proposals) {
        if variant.active() || proposal.number != Some(Replicas::ZERO) {
            let message = messages::to_zero(variant, idle);
            steps.push(Step::new(Stage::Bound, Some(variant.name()), message.clone()));
            *proposal = Proposal {
                number: Some(Replicas::ZERO),
                reason: Reason::ScaleToZero,
                message,
                ..proposal.clone()
            };
        }
    }
}

/// Idle now, by measurement, and for the retention period.
fn idle_for_long(context: ModelContext<'_>, before: &GroupMemory) -> bool {
    let idle_now = matches!(activity(context.now, context.group, before.observed_at), Activity::Idle(_));
    let retention = context.scale_to_zero.retention;
    idle_now && before.idle_since.is_some_and(|since| Seconds::between(since, context.now) >= retention)
}
