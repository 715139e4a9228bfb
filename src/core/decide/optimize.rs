//! Turns findings into numbers: an optimizer chooses how many replicas each variant has.

use std::cmp::Ordering;

use super::analyze::candidate;
use super::analyze::input::blocker;
use super::context::VariantContext;
use super::model::{ModelDecision, OptimizerInput};
use super::proposal::{Analyzed, Proposal};
use crate::arithmetic;
use crate::decision::Reason;
use crate::memory::GroupMemory;
use crate::model::{GroupId, Policy};
use crate::optimize::{Plan, Request};
use crate::quality::CoverageState;
use crate::report::{AdjustmentReason, Caveat, Detail, Stage, Step, TargetStep};
use crate::snapshot::{ModelGroup, VariantState};
use crate::units::Replicas;

/// Optimizes a model that shares no limit with others.
pub(super) fn optimize_alone(model: &mut ModelDecision<'_>) {
    if let Some(input) = &model.optimizer_input {
        let plan = arithmetic::optimize_alone(&input.request, model.context.compat);
        apply_plan(model, &plan);
    }
}

/// The request of a model to the shared optimizer. A model without findings uses what runs or was published, whichever is more.
pub(super) fn request(model: &ModelDecision<'_>) -> Request {
    if let Some(input) = &model.optimizer_input {
        return input.request.clone();
    }
    let used =
        |variant: &VariantContext<'_>| variant.committed().unwrap_or_default().max(variant.scale.base());
    Request {
        id: model.context.id.clone(),
        priority: model.context.policy.priority,
        candidates: model.variants.iter().map(|variant| candidate(variant.state, used(variant))).collect(),
        findings: Vec::new(),
    }
}

/// The request of a model that is not decided about now: it uses what runs or was published, whichever is more.
pub(super) fn request_at_rest(
    id: &GroupId,
    group: &ModelGroup,
    before: Option<&GroupMemory>,
    policy: &Policy,
) -> Request {
    let candidates = group.variants.iter().filter_map(|state| {
        let running = state.scale?.base();
        let published = before.and_then(|before| before.variants.get(&state.variant.id.name)?.target);
        let published = published.or(state.last_status).unwrap_or_default();
        Some(candidate(state, state.variant.bounds.clamp(published).max(running)))
    });
    let candidates = candidates.collect();
    Request { id: id.clone(), priority: policy.of(id).priority, candidates, findings: Vec::new() }
}

/// The request of the variants of `group` whose scale target is not known: nobody decides about them, and their pods may run, so
/// they use what was published last. `None` if there are none.
pub(super) fn request_of_unknown_targets(
    id: &GroupId,
    group: &ModelGroup,
    before: Option<&GroupMemory>,
    policy: &Policy,
) -> Option<Request> {
    let unknown =
        group.variants.iter().filter(|state| state.scale.is_none() && state.target_problem.is_some());
    let candidates = unknown.filter_map(|state| {
        let published = before.and_then(|before| before.variants.get(&state.variant.id.name)?.target);
        Some(candidate(state, published.or(state.last_status)?))
    });
    let candidates: Vec<_> = candidates.collect();
    let priority = policy.of(id).priority;
    (!candidates.is_empty()).then(|| Request { id: id.clone(), priority, candidates, findings: Vec::new() })
}

/// The requests of variants about which nothing is decided, one for each namespace: they use what runs.
pub(super) fn requests_of_undecided(states: &[VariantState], policy: &Policy) -> Vec<Request> {
    let by_namespace = states.chunk_by(|left, right| left.variant.id.namespace == right.variant.id.namespace);
    let request = |states: &[VariantState]| {
        let id = states.first()?.variant.group();
        let candidates = states.iter().filter_map(|state| Some(candidate(state, state.scale?.base())));
        let (priority, candidates) = (policy.of(&id).priority, candidates.collect());
        Some(Request { id, priority, candidates, findings: Vec::new() })
    };
    by_namespace.filter_map(request).collect()
}

/// Proposes the numbers of `plan` for the variants that are measured.
pub(super) fn apply_plan(model: &mut ModelDecision<'_>, plan: &Plan) {
    let Some(input) = model.optimizer_input.take() else { return };
    let ModelDecision { variants, proposals, steps, .. } = model;
    steps.extend(plan.steps.iter().map(|step| Step::of_group(Detail::Optimization(step.clone()))));
    let grows = plan.targets.iter().any(|planned| planned.target > planned.current);
    let places = variants.iter().zip(proposals).zip(&plan.targets).enumerate();
    for (index, ((variant, proposal), planned)) in places {
        let (target, binding) = match &input.settled {
            None => (planned.target, planned.binding.clone()),
            Some(settled) => match settled.get(index).copied().flatten() {
                Some(number) => (number, None),
                None => continue,
            },
        };
        let role = variant.role();
        let Some((_, state)) = input.states.iter().find(|(of, _)| *of == role) else { continue };
        if !variant.is_active() && target == Replicas::ZERO {
            continue;
        }
        *proposal = propose(&input, variant, *state, target);
        let is_short = input.request.findings.iter().any(|finding| finding.total.required > 0.0);
        if !grows && proposal.reason == Reason::Steady && is_short && is_full(&input, index) {
            proposal.explanation.set_caveat(Caveat::Blocked { by: blocker(variant) });
            proposal.reason = Reason::Bounded;
        }
        if let Some(binding) = &binding {
            let reason = if proposal.reason == Reason::Steady { Reason::Bounded } else { proposal.reason };
            let number = proposal.number.unwrap_or(target);
            let why = AdjustmentReason::Limit { binding: Some(binding.clone()) };
            let _: Step = proposal.set(variant, Stage::Optimize, number, reason, why);
        }
        let explanation = proposal.explanation.clone();
        let step = TargetStep { explanation, binding, values: Vec::new() };
        steps.push(Step::of_variant(variant.name(), Detail::Target(step)));
    }
}

/// The candidate at `index` has reached its maximum.
fn is_full(input: &OptimizerInput, index: usize) -> bool {
    let candidate = input.request.candidates.get(index);
    candidate.is_some_and(|candidate| candidate.bounds.max.is_some_and(|max| max <= candidate.current))
}

fn propose(
    input: &OptimizerInput,
    variant: &VariantContext<'_>,
    state: CoverageState,
    target: Replicas,
) -> Proposal {
    let base = variant.scale.base();
    let held = variant.committed().unwrap_or(base);
    let allowed_moves = state.allowed_moves();
    // Without complete coverage no number falls.
    let is_denied = (!allowed_moves.down || input.queue_lost) && target < held;
    let is_held = is_denied || (target == base && variant.is_withdrawn() && state.is_incomplete());
    let number = if is_held { held } else { target };
    let reason = match number.cmp(&base) {
        _ if is_denied || state == CoverageState::Partial => Reason::Partial,
        Ordering::Greater => Reason::ScaleUp,
        Ordering::Equal => Reason::Steady,
        Ordering::Less => Reason::ScaleDown,
    };
    let (evidence, analysis) = (input.evidence, &input.analysis);
    Proposal::analyzed(variant, Analyzed { number, reason, evidence, allowed_moves, analysis, caveat: None })
}
