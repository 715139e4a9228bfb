//! The removal guard: the running requests must fit into the replicas that a removal leaves. It applies to the numbers of every analyzer,
//! before limits and bounds. A removal of two replicas that leaves too little becomes a removal of one. [`crate::check`] derives the same
//! rule a second time.

use std::cell::{OnceCell, RefCell};

use super::context::{ModelContext, VariantContext, by_role};
use super::model::ModelDecision;
use super::proposal::Proposal;
use crate::decision::Reason;
use crate::quality::{RemainingCapacity, Shortfall};
use crate::report::{AdjustmentReason, Stage, Step};
use crate::units::Replicas;

/// The guard of one role. It counts the requests in the pods only when a removal is proposed.
pub(super) struct RemovalGuard<'m, 'a> {
    context: ModelContext<'m>,
    variants: &'m [VariantContext<'a>],
    remaining: OnceCell<RemainingCapacity>,
    /// What did not fit last, if anything.
    refused: RefCell<Option<Shortfall>>,
}

impl<'m, 'a> RemovalGuard<'m, 'a> {
    /// `variants` are all of one role.
    pub(super) fn new(context: ModelContext<'m>, variants: &'m [VariantContext<'a>]) -> Self {
        Self { context, variants, remaining: OnceCell::new(), refused: RefCell::new(None) }
    }

    /// The running requests fit into `targets`, or nothing is known about them.
    pub(super) fn fits(&self, targets: &[u32]) -> bool {
        let refused = self.find_shortfall(targets);
        self.refused.replace_with(|last| refused.or(*last));
        refused.is_none()
    }

    /// `targets` are fewer replicas than `from`, or fewer serving ones, and the running requests do not fit into them.
    fn is_refused(&self, from: &[u32], targets: &[u32]) -> bool {
        let sum = |numbers: &[u32]| numbers.iter().map(|number| u64::from(*number)).sum::<u64>();
        let is_removal = sum(targets) < sum(from) || self.remaining().removes_ready_pod(from, targets);
        is_removal && !self.fits(targets)
    }

    fn find_shortfall(&self, targets: &[u32]) -> Option<Shortfall> {
        self.remaining().find_shortfall(targets)
    }

    fn remaining(&self) -> &RemainingCapacity {
        let peak = |variant: &VariantContext<'a>| variant.memory.most_running.of(variant.state);
        let states = || self.variants.iter().map(|variant| (variant.state, peak(variant)));
        self.remaining.get_or_init(|| RemainingCapacity::new(states(), self.context.now))
    }

    /// What kept more replicas from being removed, if this guard did.
    pub(super) fn refused(&self) -> Option<Shortfall> {
        *self.refused.borrow()
    }
}

/// Takes back removals that would leave too little.
pub(super) fn hold(model: &mut ModelDecision<'_>) {
    let ModelDecision { context, variants, proposals, steps, .. } = model;
    let mut first = 0;
    for (_, of_role) in by_role(variants) {
        let end = first + of_role.len();
        hold_role(*context, of_role, &mut proposals[first..end], steps);
        first = end;
    }
}

/// The number that a removal is measured from: the published one, or else what runs.
fn before(variant: &VariantContext<'_>) -> u32 {
    variant.committed().unwrap_or(variant.scale.base()).get()
}

fn hold_role(
    context: ModelContext<'_>,
    variants: &[VariantContext<'_>],
    proposals: &mut [Proposal],
    steps: &mut Vec<Step>,
) {
    let bounded =
        |variant: &VariantContext<'_>, number: u32| variant.bounds().clamp(Replicas::new(number)).get();
    // A number that a lowered maximum takes away is the user's choice.
    let is_lower = |(variant, proposal): (&VariantContext<'_>, &Proposal)| {
        let number = proposal.number.map(|number| bounded(variant, number.get()));
        variant.is_active() && number.is_some_and(|number| number < bounded(variant, before(variant)))
    };
    // Nearly always nothing is removed, and the rest need not be computed.
    if !variants.iter().zip(proposals.iter()).any(is_lower) {
        return;
    }
    let from: Vec<u32> = variants.iter().map(|variant| bounded(variant, before(variant))).collect();
    let target = |(variant, proposal): (&VariantContext<'_>, &Proposal)| {
        proposal.number.map_or(before(variant), |number| bounded(variant, number.get()))
    };
    let mut targets: Vec<u32> = variants.iter().zip(proposals.iter()).map(target).collect();
    // A variant at zero holds no requests, and one without a number keeps its replicas, even outside its bounds. Neither makes up for a
    // removal elsewhere.
    let unmoved = variants.iter().zip(proposals.iter()).zip(&targets).map(|((variant, proposal), target)| {
        (!variant.is_active() || proposal.number.is_none()).then_some(*target)
    });
    let from: Vec<u32> = unmoved.zip(&from).map(|(number, from)| number.unwrap_or(*from)).collect();
    if context.limited {
        // A limit may still deny what is added, so it does not count.
        targets.iter_mut().zip(&from).for_each(|(target, from)| *target = (*target).min(*from));
    }
    let removal = RemovalGuard::new(context, variants);
    if !removal.is_refused(&from, &targets) {
        return;
    }
    let mut order: Vec<usize> = (0..variants.len()).filter(|index| targets[*index] < from[*index]).collect();
    order.sort_by(|left, right| variants[*left].by_cost(&variants[*right]));
    let Some(refused) = removal.find_shortfall(&targets) else { return };
    for index in order {
        // The fewest replicas that have to stay, found by halving: with more replicas the requests only fit better.
        let (mut least, mut most) = (targets[index], from[index]);
        while least < most {
            targets[index] = least + (most - least) / 2;
            if removal.is_refused(&from, &targets) {
                least = targets[index] + 1;
            } else {
                most = targets[index];
            }
        }
        targets[index] = most;
        raise(&variants[index], &mut proposals[index], most, refused, steps);
        if !removal.is_refused(&from, &targets) {
            return;
        }
    }
}

fn raise(
    variant: &VariantContext<'_>,
    proposal: &mut Proposal,
    number: u32,
    refused: Shortfall,
    steps: &mut Vec<Step>,
) {
    if proposal.number.unwrap_or_default().get() >= number {
        return;
    }
    let why = AdjustmentReason::MustFit { limit: refused };
    let step = proposal.set(variant, Stage::Target, Replicas::new(number), Reason::Bounded, why);
    steps.push(step);
}
