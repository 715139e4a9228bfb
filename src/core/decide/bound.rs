//! What a number has to go through when an analyzer has wanted it: stability before limits, minimum and maximum after.

use super::context::{ModelContext, Proposal, VariantContext};
use super::messages;
use crate::bound::stability::{From, swallowed};
use crate::decision::Reason;
use crate::model::Stability;
use crate::report::{Stage, Step};

/// Puts what analyzers have just wanted under the model's rules of stability.
pub(super) fn settle(
    context: ModelContext<'_>,
    variants: &mut [VariantContext<'_>],
    proposals: &mut [Proposal],
) -> Vec<Step> {
    let stability = &context.policy.stability;
    if *stability == Stability::default() {
        return Vec::new();
    }
    let mut steps = Vec::new();
    for (variant, proposal) in variants.iter_mut().zip(proposals) {
        let Some(wanted) = proposal.number.filter(|_| proposal.look.is_some()) else { continue };
        let from = From { published: variant.committed(), running: variant.scale.base() };
        let settled = variant.memory.to_mut().wanted.settle(context.now, wanted, from, stability);
        let Some(binding) = settled.binding else { continue };
        let message = messages::settled(variant, wanted, settled.number, &binding, &proposal.message);
        let step = Step::new(Stage::Bound, Some(variant.name()), message.clone());
        steps.push(Step { binding: Some(binding), ..step });
        *proposal =
            Proposal { number: Some(settled.number), reason: Reason::Bounded, message, ..proposal.clone() };
    }
    steps
}

/// Minimum and maximum: after every analyzer, in transitions and on holds too.
pub(super) fn clamp(variants: &[VariantContext<'_>], proposals: &mut [Proposal]) -> Vec<Step> {
    let mut steps = Vec::new();
    for (variant, proposal) in variants.iter().zip(proposals) {
        let Some(wanted) = proposal.number else { continue };
        let bounded = variant.state.variant.bounds.clamp(wanted);
        if bounded != wanted {
            let message = messages::bounded(variant, wanted, bounded, &proposal.message);
            let step = Step::new(Stage::Bound, Some(variant.name()), message.clone());
            steps.push(Step { binding: Some(messages::bounds(variant)), ..step });
            *proposal =
                Proposal { number: Some(bounded), reason: Reason::Bounded, message, ..proposal.clone() };
        }
    }
    steps
}

/// Says of which numbers an HPA will take no notice. An analyzer that steps past the tolerance leaves none.
pub(super) fn tell_swallowed(
    context: ModelContext<'_>,
    variants: &[VariantContext<'_>],
    proposals: &mut [Proposal],
) -> Vec<Step> {
    let tolerance = context.policy.stability.tolerance;
    let mut steps = Vec::new();
    for (variant, proposal) in variants.iter().zip(proposals) {
        let base = variant.scale.base();
        let Some(number) = proposal.number.filter(|number| swallowed(*number, base, tolerance)) else {
            continue;
        };
        let message = messages::swallowed(variant, number, tolerance);
        steps.push(Step::new(Stage::Bound, Some(variant.name()), message));
        proposal.message = messages::with_swallowed(&proposal.message, tolerance);
    }
    steps
}
