//! What a number has to go through when an analyzer has wanted it: stability before limits, minimum and maximum after.

use super::member::{Draft, Member, Scene};
use super::words;
use crate::bound::stability::{From, swallowed};
use crate::decision::Reason;
use crate::model::Stability;
use crate::report::{Stage, Step};

/// Puts what analyzers have just wanted under the model's rules of stability.
pub(super) fn settle(scene: Scene<'_>, members: &mut [Member<'_>], drafts: &mut [Draft]) -> Vec<Step> {
    let stability = &scene.model.stability;
    if *stability == Stability::default() {
        return Vec::new();
    }
    let mut steps = Vec::new();
    for (member, draft) in members.iter_mut().zip(drafts) {
        let Some(wanted) = draft.number.filter(|_| draft.look.is_some()) else { continue };
        let from = From { published: member.committed(), running: member.scale.base() };
        let settled = member.memory.to_mut().wanted.settle(scene.now, wanted, from, stability);
        let Some(binding) = settled.binding else { continue };
        let message = words::settled(member, wanted, settled.number, &binding, &draft.message);
        let step = Step::new(Stage::Bound, Some(member.name()), message.clone());
        steps.push(Step { binding: Some(binding), ..step });
        *draft = Draft { number: Some(settled.number), reason: Reason::Bounded, message, ..draft.clone() };
    }
    steps
}

/// Minimum and maximum: after every analyzer, in transitions and on holds too.
pub(super) fn clamp(members: &[Member<'_>], drafts: &mut [Draft]) -> Vec<Step> {
    let mut steps = Vec::new();
    for (member, draft) in members.iter().zip(drafts) {
        let Some(wanted) = draft.number else { continue };
        let bounded = member.state.variant.bounds.clamp(wanted);
        if bounded != wanted {
            let message = words::bounded(member, wanted, bounded, &draft.message);
            let step = Step::new(Stage::Bound, Some(member.name()), message.clone());
            steps.push(Step { binding: Some(words::bounds(member)), ..step });
            *draft = Draft { number: Some(bounded), reason: Reason::Bounded, message, ..draft.clone() };
        }
    }
    steps
}

/// Says of which numbers an HPA will take no notice. An analyzer that steps past the tolerance leaves none.
pub(super) fn tell_swallowed(scene: Scene<'_>, members: &[Member<'_>], drafts: &mut [Draft]) -> Vec<Step> {
    let tolerance = scene.model.stability.tolerance;
    let mut steps = Vec::new();
    for (member, draft) in members.iter().zip(drafts) {
        let base = member.scale.base();
        let Some(number) = draft.number.filter(|number| swallowed(*number, base, tolerance)) else {
            continue;
        };
        let message = words::swallowed(member, number, tolerance);
        steps.push(Step::new(Stage::Bound, Some(member.name()), message));
        draft.message = words::with_swallowed(&draft.message, tolerance);
    }
    steps
}
