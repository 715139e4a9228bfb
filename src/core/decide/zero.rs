//! Scaling to zero, staying there and coming back. Only this stage removes the last replica, or adds the first.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::context::{ModelContext, VariantContext};
use super::holds;
use super::model::ModelDecision;
use super::proposal::Proposal;
use super::safety_net::was_denied;
use crate::analyze::scale_from_zero::WakeCandidate;
use crate::arithmetic;
use crate::bound::enforcer::{Action, Enforced, enforce};
use crate::decision::{GapCause, Reason, SignalGap};
use crate::memory::{GroupMemory, Learned};
use crate::model::{Analyzer, Compat, Role};
use crate::observe::{Activity, activity, can_be_woken, scheduler_queue};
use crate::quality::CoverageState;
use crate::report::{Basis, Quantity, Step, Value};
use crate::snapshot::{Sample, Signal, SourceHealth, VariantState};
use crate::units::{Replicas, Seconds, figure};

/// Proposals for a role at zero: it stays there until the scheduler holds a request for the model, or the role that each of its requests
/// needs too runs.
pub(super) fn wake_up(
    context: ModelContext<'_>,
    variants: &[VariantContext<'_>],
    learned: &Learned,
    steps: &mut Vec<Step>,
) -> Vec<Proposal> {
    let mut proposals: Vec<Proposal> =
        variants.iter().map(|variant| holds::at_zero(context, variant)).collect();
    let queue = scheduler_queue(context.now, &context.group.scheduler);
    let role = SleepingRole { context, variants, learned };
    let all: Vec<usize> = (0..variants.len()).collect();
    if let Some(queue) = queue.filter(|queue| queue.value > 0.0) {
        role.wake_cheapest(&all, requests_waiting(queue), &mut proposals, steps);
    } else if context.counterpart_runs {
        role.wake_cheapest(&all, (Basis::CounterpartRuns, context.now), &mut proposals, steps);
    } else if !can_be_woken(context.now, context.group) && nothing_else_wakes(context, variants) {
        let at_zero = variants.iter().zip(&mut proposals);
        at_zero
            .filter(|(_, proposal)| !proposal.is_blind && proposal.number == Some(Replicas::ZERO))
            .for_each(|(variant, proposal)| hold_without_wake_up(context, variant, proposal));
    }
    proposals
}

/// Where all that runs of a role has no node, and requests wait at the scheduler, the cheapest of its other variants is woken too.
pub(super) fn wake_beside_unschedulable(
    context: ModelContext<'_>,
    variants: &[VariantContext<'_>],
    learned: &Learned,
    proposals: &mut [Proposal],
    steps: &mut Vec<Step>,
) {
    let has_no_node = |variant: &VariantContext<'_>| {
        let coverage = &variant.coverage;
        coverage.unschedulable > 0
            && coverage.unschedulable == coverage.starting
            && coverage.ready + coverage.asleep == 0
    };
    let queue = scheduler_queue(context.now, &context.group.scheduler).filter(|queue| queue.value > 0.0);
    let Some(queue) = queue else { return };
    let is_asleep = |index: &usize| !variants[*index].is_active();
    let asleep: Vec<usize> = (0..variants.len()).filter(is_asleep).collect();
    let is_ordered = |index: &usize| proposals[*index].number.is_some_and(|number| number > Replicas::ZERO);
    if asleep.iter().any(is_ordered)
        || !variants.iter().filter(|variant| variant.is_active()).all(has_no_node)
    {
        return;
    }
    let role = SleepingRole { context, variants, learned };
    role.wake_cheapest(&asleep, requests_waiting(queue), proposals, steps);
}

/// The reason to wake a variant, and its evidence.
fn requests_waiting(queue: Sample) -> (Basis, Timestamp) {
    (Basis::RequestsWaiting { requests: figure(queue.value) }, queue.at)
}

/// A role of which variants sleep.
struct SleepingRole<'a, 'v> {
    context: ModelContext<'a>,
    variants: &'a [VariantContext<'v>],
    learned: &'a Learned,
}

impl SleepingRole<'_, '_> {
    /// Wakes the cheapest of the variants at the indices `asleep`, for a reason with its evidence. One that a limit has lately denied comes
    /// last.
    fn wake_cheapest(
        &self,
        asleep: &[usize],
        (basis, evidence): (Basis, Timestamp),
        proposals: &mut [Proposal],
        steps: &mut Vec<Step>,
    ) {
        let is_free = |index: &usize| {
            !(self.context.compat == Compat::Corrected
                && was_denied(&self.variants[*index], self.context.now))
        };
        let free: Vec<usize> = asleep.iter().copied().filter(is_free).collect();
        let asleep = if free.is_empty() { asleep } else { &free };
        let candidate = |index: &usize| wake_candidate(self.context, &self.variants[*index], self.learned);
        let candidates: Vec<WakeCandidate> = asleep.iter().map(candidate).collect();
        for candidate in arithmetic::woken(&candidates, self.context.compat) {
            let (index, capacity) = (asleep[candidate], candidates[candidate].per_replica);
            let variant = &self.variants[index];
            let number = proposals[index].number.unwrap_or(Replicas::ZERO).max(Replicas::ONE);
            let proposal =
                Proposal::standing(variant, Some(number), Reason::ScaleFromZero, basis.clone(), evidence);
            // Waking is an addition, and subject to the limits.
            proposals[index] = Proposal { analyzed: Some(CoverageState::Aging.allowed_moves()), ..proposal };
            let capacity = capacity.map(|tokens| Value::new(Quantity::ReplicaTokens, tokens));
            let cost = Value::new(Quantity::ReplicaCost, variant.state.variant.cost.get());
            let step = Step::target(variant.name(), proposals[index].explanation.clone());
            steps.push(step.with_values(std::iter::once(cost).chain(capacity).collect()));
        }
    }
}

/// For a model that is to be scaled to zero when it is idle, and stays because no request could start it again: the signal that is missing.
pub(super) fn missing_wake_up(context: ModelContext<'_>, variant: &VariantContext<'_>) -> Option<SignalGap> {
    let sleeps = context.scale_to_zero.enabled && may_be_zero(context);
    let is_missing = sleeps
        && matches!(context.group.source, SourceHealth::Complete)
        && !can_be_woken(context.now, context.group);
    is_missing.then(|| SignalGap {
        cause: GapCause::NoWakeUpSignal,
        pods: 0,
        serving: variant.coverage.ready,
        missing: vec![Signal::SchedulerQueueSize],
        contradicted: Vec::new(),
        fallback: None,
        warning: None,
    })
}

/// Every variant of the model has a minimum of zero.
pub(super) fn may_be_zero(context: ModelContext<'_>) -> bool {
    context.group.variants.iter().all(|state| state.variant.bounds.min == Replicas::ZERO)
}

/// The cost of waking `variant`, and the capacity of its replicas if V2 decides and has learned it.
fn wake_candidate(
    context: ModelContext<'_>,
    variant: &VariantContext<'_>,
    learned: &Learned,
) -> WakeCandidate {
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

/// None of `variants` gets a replica by its minimum, or because scaling to zero is off.
fn nothing_else_wakes(context: ModelContext<'_>, variants: &[VariantContext<'_>]) -> bool {
    let keeps_last = !context.scale_to_zero.enabled && may_be_zero(context);
    let has_no_minimum = |state: &VariantState| state.variant.bounds.min == Replicas::ZERO;
    !keeps_last && variants.iter().all(|variant| has_no_minimum(variant.state))
}

/// Holds a variant at zero without new evidence, because waiting requests cannot be seen.
fn hold_without_wake_up(context: ModelContext<'_>, variant: &VariantContext<'_>, proposal: &mut Proposal) {
    let (evidence, basis) = (variant.old_evidence(context.now), Basis::NoWakeUpSignal);
    let standing = Proposal::standing(variant, proposal.number, Reason::MetricsMissing, basis, evidence);
    *proposal = Proposal { is_blind: true, analyzed: proposal.analyzed, ..standing };
}

/// Decides about zero for all roles of a model together: an idle model goes to zero; of a model that is not known to be idle, each variant
/// keeps a replica; and if scaling to zero is off, the cheapest variant keeps one.
pub(super) fn apply_zero(model: &mut ModelDecision<'_>) {
    let ModelDecision { context, variants, proposals, steps, memory, .. } = model;
    let context = *context;
    let may_be_zero = may_be_zero(context);
    let enabled = context.scale_to_zero.enabled;
    let is_idle = may_be_zero && enabled && idle_for_long(context, memory);
    let covered = covered(context, variants, proposals);
    for (variant, proposal) in variants.iter().zip(proposals.iter_mut()) {
        let is_last = variant.is_active() && proposal.number == Some(Replicas::ZERO);
        let is_measured = proposal.analyzed.is_some_and(|allowed_moves| allowed_moves.zero);
        let is_settled = is_measured || variant.committed() == Some(Replicas::ZERO);
        let is_covered = is_settled && covered.contains(&variant.role());
        if !is_idle && is_last && !is_covered && variant.allows(Replicas::ONE) {
            keep_awake(variant, proposal, steps);
        }
    }
    if !may_be_zero || proposals.iter().any(|proposal| proposal.number.is_none()) {
        return;
    }
    let mut numbers: Vec<Enforced> = variants.iter().zip(proposals.iter()).map(enforced).collect();
    match enforce(&mut numbers, enabled, is_idle.then_some(0.0)) {
        Action::Unchanged => {}
        Action::ToZero => scale_to_zero(context.now, memory, variants, proposals, steps),
        Action::KeptOne(kept) if variants[kept].allows(Replicas::ONE) => {
            let basis = Basis::LastReplicaKept;
            replace(&variants[kept], &mut proposals[kept], Replicas::ONE, Reason::Bounded, basis, steps);
        }
        Action::KeptOne(_) => {}
    }
}

/// Replaces a number and its explanation: the reasons of earlier stages do not matter at zero.
fn replace(
    variant: &VariantContext<'_>,
    proposal: &mut Proposal,
    number: Replicas,
    reason: Reason,
    basis: Basis,
    steps: &mut Vec<Step>,
) {
    proposal.replace(variant, number, reason, basis);
    steps.push(Step::bound(variant.name(), proposal.explanation.clone()));
}

/// Roles in which an optimizer may remove a variant's last replica, because another variant keeps some.
fn covered(
    context: ModelContext<'_>,
    variants: &[VariantContext<'_>],
    proposals: &[Proposal],
) -> BTreeSet<Role> {
    let optimized = context.policy.analyzer.is_of_capacity();
    let kept = |proposal: &Proposal| proposal.number.is_some_and(|number| number > Replicas::ZERO);
    // A variant that has not served yet may not take over requests.
    let serves = |variant: &VariantContext<'_>| !variant.coverage.observations.is_empty();
    let keeping = variants.iter().zip(proposals);
    let keeping = keeping.filter(|(variant, proposal)| optimized && kept(proposal) && serves(variant));
    keeping.map(|(variant, _)| variant.role()).collect()
}

fn enforced((variant, proposal): (&VariantContext<'_>, &Proposal)) -> Enforced {
    let target = proposal.number.unwrap_or(Replicas::ZERO);
    Enforced { name: variant.name().clone(), target, cost: variant.state.variant.cost }
}

/// Replaces a zero that no longer holds: a request has come, or idleness cannot be measured now.
fn keep_awake(variant: &VariantContext<'_>, proposal: &mut Proposal, steps: &mut Vec<Step>) {
    // If an analyzer has just found zero enough, one replica is. An older zero says nothing about the present load: what runs stays.
    let is_zero_new = proposal.analyzed.is_some_and(|allowed_moves| allowed_moves.down);
    let keeps_running = !variant.coverage.observations.is_empty() && !is_zero_new;
    let number = if keeps_running { variant.scale.base().max(Replicas::ONE) } else { Replicas::ONE };
    let number = variant.bounds().clamp(number);
    let reason = if proposal.is_blind { proposal.reason } else { Reason::ScaleUp };
    replace(variant, proposal, number, reason, Basis::NotIdle, steps);
}

fn scale_to_zero(
    now: Timestamp,
    memory: &GroupMemory,
    variants: &[VariantContext<'_>],
    proposals: &mut [Proposal],
    steps: &mut Vec<Step>,
) {
    let idle = memory.idle_since.map_or(Seconds::ZERO, |since| Seconds::between(since, now));
    for (variant, proposal) in variants.iter().zip(proposals) {
        if variant.is_active() || proposal.number != Some(Replicas::ZERO) {
            let basis = Basis::IdleFor { seconds: figure(idle.get()) };
            replace(variant, proposal, Replicas::ZERO, Reason::ScaleToZero, basis, steps);
        }
    }
}

/// Measured as idle now, and for the retention period, and a request would start it again.
pub(super) fn idle_for_long(context: ModelContext<'_>, before: &GroupMemory) -> bool {
    let idle_now = matches!(activity(context.now, context.group, before.observed_at), Activity::Idle(_));
    let retention = context.scale_to_zero.retention;
    let is_over = before.idle_since.is_some_and(|since| Seconds::between(since, context.now) >= retention);
    idle_now && is_over && can_be_woken(context.now, context.group)
}
