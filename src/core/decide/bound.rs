//! Minimum and maximum: after every analyzer, on holds too.

use super::model::ModelDecision;
use crate::decision::Reason;
use crate::hpa::is_ignored;
use crate::report::{AdjustmentReason, Stage};

pub(super) fn clamp(model: &mut ModelDecision<'_>) {
    let ModelDecision { variants, proposals, steps, .. } = model;
    for (variant, proposal) in variants.iter().zip(proposals) {
        let Some(number) = proposal.number else { continue };
        let bounds = variant.bounds();
        let bounded = bounds.clamp(number);
        if bounded != number {
            let why = AdjustmentReason::Bounds { min: bounds.min, max: bounds.max };
            steps.push(proposal.set(variant, Stage::Bound, bounded, Reason::Bounded, why));
        }
    }
}

/// Says which changes an HPA will not follow, because they are within its tolerance.
pub(super) fn explain_tolerance(model: &mut ModelDecision<'_>) {
    let ModelDecision { context, variants, proposals, steps, .. } = model;
    let tolerance = context.policy.stability.tolerance;
    for (variant, proposal) in variants.iter().zip(proposals) {
        let base = variant.scale.base();
        let Some(number) = proposal.number.filter(|number| is_ignored(*number, base, tolerance)) else {
            continue;
        };
        let why = AdjustmentReason::HpaTolerance { tolerance };
        steps.push(proposal.set(variant, Stage::Bound, number, proposal.reason, why));
    }
}
