//! Keeps numbers from moving too fast or too far: the policy's stability rules, withdrawn orders, the removal guard, and above all of them
//! the safety net of a saturated fleet.

use super::model::ModelDecision;
use super::{removal_guard, safety_net, withdrawn_orders};
use crate::bound::stability::StabilityBase;
use crate::decision::Reason;
use crate::model::Stability;
use crate::report::{AdjustmentReason, Stage};

/// Applies the rules in this order: each may hold a number that the earlier ones let pass. The safety net comes last, because it only raises
/// numbers, and nothing may lower them again.
pub(super) fn stabilise(model: &mut ModelDecision<'_>) {
    apply_stability(model);
    withdrawn_orders::hold_reorders(model);
    removal_guard::hold(model);
    if !model.saturated.is_empty() {
        safety_net::relieve(model);
    }
}

fn apply_stability(model: &mut ModelDecision<'_>) {
    let ModelDecision { context, variants, proposals, steps, .. } = model;
    let stability = &context.policy.stability;
    if *stability == Stability::default() {
        return;
    }
    for (variant, proposal) in variants.iter_mut().zip(proposals) {
        let Some(number) = proposal.number.filter(|_| proposal.analyzed.is_some()) else { continue };
        let from = StabilityBase { published: variant.committed(), running: variant.scale.base() };
        let stabilised = variant.memory.to_mut().proposals.apply(context.now, number, from, stability);
        if let Some(rule) = stabilised.binding {
            let why = AdjustmentReason::Stability { rule };
            steps.push(proposal.set(variant, Stage::Bound, stabilised.number, Reason::Bounded, why));
        }
    }
}
