//! What shared limits leave of the numbers. Limits hold back additions only.

use super::context::VariantContext;
use super::model::ModelDecision;
use super::proposal::Proposal;
use super::safety_net;
use super::zero::may_be_zero;
use crate::decision::Reason;
use crate::limit::{Grant, GrantRequest};
use crate::model::{Role, VariantId};
use crate::optimize::{Candidate, Request};
use crate::report::{AdjustmentReason, Detail, Quantity, Relief, Stage, Value};
use crate::units::Replicas;

/// The requests of a model's variants to the limits.
pub(super) fn grant_requests(model: &ModelDecision<'_>) -> Vec<GrantRequest> {
    let proposed = model.variants.iter().zip(&model.proposals);
    proposed.map(|(variant, proposal)| grant_request(model, variant, proposal)).collect()
}

/// A published number was granted before, so that only an analyzer with complete coverage may give it back. A requested replica counts as
/// used, whether its pod exists yet or not and even if it is not needed: whether the model may go to zero is only known when every model
/// has its number.
fn grant_request(
    model: &ModelDecision<'_>,
    variant: &VariantContext<'_>,
    proposal: &Proposal,
) -> GrantRequest {
    let (state, running) = (variant.state, variant.scale.base());
    let proposed = state.variant.bounds.clamp(proposal.number.unwrap_or(running));
    let requested = Replicas::new(u32::from(variant.is_active() && variant.allows(Replicas::ONE)));
    let current = match proposal.analyzed {
        Some(allowed_moves) if allowed_moves.down => running,
        Some(_) => variant.committed().map_or(running, |committed| committed.min(proposed).max(running)),
        None => proposed.max(running),
    };
    GrantRequest {
        id: variant.id().clone(),
        current: current.max(requested),
        proposed,
        bounds: state.variant.bounds,
        // What is needed comes before what is only cheaper.
        priority: if proposal.explanation.is_exchange() {
            f64::NEG_INFINITY
        } else {
            model.context.policy.priority
        },
        spare: 0.0,
        cost: state.variant.cost,
        accelerator: state.variant.accelerator.clone(),
        gpus: state.template.gpus,
        watts: None,
    }
}

/// The requests of a model that is not decided about now: for what it uses.
pub(super) fn grant_requests_at_rest(request: Request) -> Vec<GrantRequest> {
    let Request { id, priority, candidates, .. } = request;
    let request = |candidate: Candidate| GrantRequest {
        id: VariantId::new(id.namespace.clone(), candidate.name),
        current: candidate.current,
        proposed: candidate.current,
        bounds: candidate.bounds,
        priority,
        spare: 0.0,
        cost: candidate.cost,
        accelerator: candidate.accelerator,
        gpus: candidate.gpus,
        watts: candidate.watts,
    };
    candidates.into_iter().map(request).collect()
}

/// Lowers the numbers of a model to what was granted.
pub(super) fn apply_grants(model: &mut ModelDecision<'_>, grants: &[Grant]) {
    for (index, granted) in grants.iter().enumerate() {
        let is_less = model.proposals[index].number.is_some_and(|number| granted.granted < number);
        if is_less && granted.is_limited {
            deny(model, index, granted);
        }
    }
    for (role, counterpart) in [(Role::Prefill, Role::Decode), (Role::Decode, Role::Prefill)] {
        deny_counterpart(model, (role, counterpart), grants);
    }
}

/// Each request needs both roles: where a limit leaves no room for what was woken of `role`, the variants of `counterpart` that were woken with
/// it serve nobody. A limit takes back no number that was published, and a model that keeps a replica in any case gets it by the bounds.
fn deny_counterpart(model: &mut ModelDecision<'_>, (role, counterpart): (Role, Role), grants: &[Grant]) {
    if !model.context.scale_to_zero.enabled || !may_be_zero(model.context) {
        return;
    }
    let of = |role: Role| {
        let variants = model.variants.iter().enumerate();
        variants.filter(move |(_, variant)| variant.role() == role).map(|(index, _)| index)
    };
    let number = |index: usize| model.proposals[index].number.unwrap_or(Replicas::ZERO);
    let sleeps = |index: &usize| !model.variants[*index].is_active() && number(*index) == Replicas::ZERO;
    let is_denied = |index: &usize| grants.get(*index).is_some_and(|granted| granted.is_limited);
    let Some(denied) =
        of(role).filter(sleeps).find(is_denied).filter(|_| of(role).all(|index| sleeps(&index)))
    else {
        return;
    };
    if of(counterpart).any(|index| model.variants[index].is_active()) {
        return;
    }
    let published = |index: usize| model.variants[index].committed().unwrap_or(Replicas::ZERO);
    let woken = of(counterpart).map(|index| (index, published(index)));
    let woken: Vec<_> = woken.filter(|(index, published)| number(*index) > *published).collect();
    for (index, granted) in woken {
        let granted = Grant { granted, ..grants[denied].clone() };
        deny(model, index, &granted);
    }
}

/// Lowers the number of the variant at `index` to what a limit grants, and notes it, so that the rate policy and the safety net choose another
/// variant next time. What was to replace dearer replicas is not missed.
fn deny(model: &mut ModelDecision<'_>, index: usize, granted: &Grant) {
    let now = model.context.now;
    let role = model.variants[index].state.variant.role;
    let relief = model.is_saturated(role).then_some(Relief::AtLimit);
    let ModelDecision { variants, proposals, steps, memory, .. } = model;
    let (variant, proposal) = (&mut variants[index], &mut proposals[index]);
    if proposal.explanation.is_exchange() {
        // A part of them would replace nothing.
        let held = variant.committed().unwrap_or(variant.scale.base()).min(granted.granted);
        let why = AdjustmentReason::NoRoomToExchange { binding: granted.binding.clone() };
        steps.push(proposal.set(variant, Stage::Limit, held, Reason::Steady, why));
        return;
    }
    let rate = memory.learned.as_mut().and_then(|learned| learned.rate.as_mut());
    if let Some(rate) = rate {
        rate.knowledge.variants.or_default(variant.name()).denied = Some(now.into());
    }
    safety_net::note_denied(variant, granted.granted, now);
    let why = AdjustmentReason::Limit { binding: granted.binding.clone() };
    let mut step = proposal.set(variant, Stage::Limit, granted.granted, Reason::Bounded, why);
    if let Detail::Adjustment(adjustment) = &mut step.detail {
        adjustment.relief = relief;
        adjustment.values = values(granted);
    }
    steps.push(step);
}

fn values(granted: &Grant) -> Vec<Value> {
    let Some(binding) = &granted.binding else { return Vec::new() };
    let elsewhere = Some(binding.elsewhere).filter(|elsewhere| *elsewhere > 0.0);
    let values = [
        Value::new(Quantity::Proposed, f64::from(granted.proposed.get())),
        Value::new(Quantity::Budget, binding.budget),
        Value::new(Quantity::Used, binding.used),
        Value::new(Quantity::Free, binding.free),
    ];
    values
        .into_iter()
        .chain(elsewhere.map(|elsewhere| Value::new(Quantity::UsedByOthers, elsewhere)))
        .collect()
}
