//! The safety net above every analyzer: a saturated fleet (one role of a model) is never shrunk, and grows by half, whatever
//! the analyzer says or cannot say. It only raises: where an analyzer wants more, that stands. It comes before limits and
//! bounds, like every addition, and says what keeps a fleet from growing: ordered replicas that start, a limit, the maximum,
//! no node.

use super::context::{ModelContext, VariantContext, newest_sample};
use super::model::{ModelDecision, SaturatedBy};
use super::proposal::Proposal;
use crate::decision::Reason;
use crate::hpa::past_tolerance;
use crate::learn::{LEAD, StartUpTimes, start_up_times};
use crate::memory::Learned;
use crate::model::Role;
use crate::observe::scheduler_queue;
use crate::quality::{CoverageState, SATURATED_WINDOW, SaturatedPods, is_queue_never_empty, saturated_pods};
use crate::report::{
    Adjustment, AdjustmentReason, Basis, Relief, Saturation, SaturationCause, Stage, Step, Value,
};
use crate::snapshot::{Phase, Pod, SourceHealth};
use crate::units::{Replicas, Seconds, truncated_u32};
use jiff::Timestamp;

/// Replicas that one growth orders at most, as the rate policy's decisions: no model has as many, and half of a number that
/// is wrong orders no more.
const MAX_GROWTH: u32 = 1000;

/// Pods of an order are Ready within this many start-up times; later ones have only become Ready again.
const MAX_STARTS: f64 = 3.0;

/// A variant that a limit has denied replicas is asked again after this time, if there is another one to ask.
const DENIED_WINDOW: Seconds = Seconds::whole(60);

impl SaturatedBy {
    /// How long replicas that have become Ready have to show what they relieve. Who sees no queue does not see how long it has
    /// become meanwhile: twice the time.
    const fn window(self) -> Seconds {
        match self {
            Self::Pods(SaturatedPods { inferred: true, .. }) => INFERRED_WINDOW,
            Self::Pods(_) | Self::Queue => SATURATED_WINDOW,
        }
    }
}

/// See [`SaturatedBy::window`].
const INFERRED_WINDOW: Seconds = Seconds::whole(120);

/// The roles of `variants` (sorted by role) that are saturated. The scheduler's queue is the whole model's: it counts where no
/// role's pods are saturated, and then for all roles that serve. When the source does not answer, nothing is saturated.
pub(super) fn find(context: ModelContext<'_>, variants: &[VariantContext<'_>]) -> Vec<(Role, SaturatedBy)> {
    if matches!(context.group.source, SourceHealth::Down { .. }) {
        return Vec::new();
    }
    let role = |variant: &VariantContext<'_>| variant.state.variant.role;
    let roles = || variants.chunk_by(move |left, right| role(left) == role(right));
    let by_pods = |variants: &[VariantContext<'_>]| {
        Some((role(variants.first()?), SaturatedBy::Pods(pods(context, variants)?)))
    };
    let by_pods: Vec<_> = roles().filter_map(by_pods).collect();
    if !by_pods.is_empty() || !is_queue_never_empty(&context.group.scheduler, context.now) {
        return by_pods;
    }
    let serves = |variants: &&[VariantContext<'_>]| variants.iter().any(|variant| variant.coverage.ready > 0);
    roles()
        .filter(serves)
        .filter_map(|variants| Some((role(variants.first()?), SaturatedBy::Queue)))
        .collect()
}

fn pods(context: ModelContext<'_>, variants: &[VariantContext<'_>]) -> Option<SaturatedPods> {
    let ready = variants.iter().map(|variant| variant.scale.ready.get()).fold(0, u32::saturating_add);
    let doubted = variants.iter().flat_map(|variant| &variant.coverage.queue_distrusted);
    let doubted: Vec<_> = doubted.collect();
    let instead = |replica: &Pod| doubted.iter().find(|(pod, _)| *pod == replica.name).map(|(_, full)| *full);
    saturated_pods(variants.iter().flat_map(|variant| &variant.state.pods), ready, instead, context.now)
}

/// Holds the numbers of the saturated roles of `model`, and raises them where nothing keeps them from growing.
pub(super) fn relieve(model: &mut ModelDecision<'_>) {
    let ModelDecision { context, saturated, variants, proposals, steps, memory, .. } = model;
    let (context, learned) = (*context, &mut memory.learned);
    for (role, saturated_by) in saturated {
        let of_role = |variant: &&VariantContext<'_>| variant.state.variant.role == *role;
        let first = variants.iter().take_while(|variant| !of_role(variant)).count();
        let end = first + variants[first..].iter().take_while(of_role).count();
        let (variants, proposals) = (&mut variants[first..end], &mut proposals[first..end]);
        let proposed = variants.iter().zip(proposals.iter());
        let mut fleet_variants: Vec<FleetVariant> = proposed
            .map(|(variant, proposal)| {
                FleetVariant::new(context, learned.as_deref(), *saturated_by, variant, proposal)
            })
            .collect();
        let relief = grow(context, variants, &mut fleet_variants);
        if relief == Relief::Growing {
            let rate = learned.as_mut().and_then(|learned| learned.rate.as_mut());
            rate.into_iter()
                .for_each(|rate| rate.cooldowns.entry(*role).or_default().note_addition(context.now.into()));
        }
        let at = newest_evidence(context, *saturated_by, variants);
        let fleet = Fleet { context, saturated_by: *saturated_by, at, relief };
        for ((variant, proposal), fleet_variant) in variants.iter_mut().zip(proposals).zip(&fleet_variants) {
            steps.extend(fleet.relieve(variant, proposal, fleet_variant));
        }
    }
}

fn newest_evidence(
    context: ModelContext<'_>,
    saturated_by: SaturatedBy,
    variants: &[VariantContext<'_>],
) -> Timestamp {
    let queue =
        scheduler_queue(context.now, &context.group.scheduler).filter(|_| saturated_by == SaturatedBy::Queue);
    queue.map_or_else(|| newest_sample(variants, context.now), |queue| queue.at)
}

#[derive(Debug, Clone, Copy)]
struct FleetVariant {
    /// Replicas that run and may: without those that a lowered maximum takes away.
    running: u32,
    /// Minimum of its number: what was published or runs, within the bounds; at zero replicas, only an order that is late.
    floor: u32,
    /// Its number so far, or what runs if no analyzer has one.
    number: u32,
    max: u32,
    /// Of the replicas ordered, those that are within their start-up time.
    coming: u32,
    /// Something that was ordered has not had its time yet to show what it relieves.
    waits: bool,
    start: Seconds,
    block: Option<Relief>,
    raised: bool,
}

impl FleetVariant {
    fn new(
        context: ModelContext<'_>,
        learned: Option<&Learned>,
        saturated_by: SaturatedBy,
        variant: &VariantContext<'_>,
        proposal: &Proposal,
    ) -> Self {
        let known = learned.and_then(|learned| learned.rate.as_ref());
        let known = known.and_then(|rate| rate.knowledge.variants.get(variant.name()));
        let by_rate = known.and_then(|own| own.starts.longest());
        let expected = || {
            let (pods, prior) = (start_up_times(variant.state), context.policy.rate.start_up.get());
            StartUpTimes::default().expected(prior, &pods)
        };
        let start = by_rate.or_else(|| variant.memory.starts.longest()).unwrap_or_else(expected);
        let start = Seconds::new(start).unwrap_or_default();
        let age = |at: Timestamp| Seconds::between(at, context.now).get();
        let bounds = variant.state.variant.bounds;
        let max = bounds.max.map_or(u32::MAX, |max| max.max(bounds.min).get());
        let running = variant.scale.base().get().min(max);
        // What a lowered maximum takes from a published number will not come, so it is not waited for.
        let promised = variant.committed().map_or(0, Replicas::get).min(max);
        let ordered = variant.memory.target_since.filter(|_| promised > 0);
        let late = promised > running && ordered.is_some() && variant.is_order_late(start, context.now);
        let floor = if variant.is_active() {
            bounds.clamp(Replicas::new(promised.max(running))).get()
        } else if late {
            // An order that no HPA followed: if it were forgotten here, the next evaluation would give it again.
            promised
        } else {
            0
        };
        let coming = coming(context, variant, start, (promised, ordered));
        let net = variant.memory.safety_net;
        let grew = net.grew.is_some_and(|at| age(at) < start.get());
        let denied = net.denied.is_some_and(|at| at < context.now && age(at) < DENIED_WINDOW.get());
        let number = proposal.number.map_or(running, |number| bounds.clamp(number).get().max(floor));
        let block = if variant.coverage.unschedulable > 0 {
            Some(Relief::NoNode)
        } else if number >= max {
            Some(Relief::AtMaximum)
        } else if late || variant.is_growth_futile(context.now) {
            Some(Relief::NotComing)
        } else if denied {
            Some(Relief::AtLimit)
        } else {
            None
        };
        // A second evaluation at the time of an order moves nothing.
        let waits = coming > 0
            || grew
            || ordered == Some(context.now)
            || relieves(context, variant, start, ordered, saturated_by.window());
        Self { running, floor, number, max, coming, waits, start, block, raised: false }
    }

    /// The part of its number that counts: an old order that did not come relieves nothing.
    fn counts(&self) -> u32 {
        if self.block == Some(Relief::NotComing) && self.number <= self.floor {
            self.running
        } else {
            self.number
        }
    }
}

/// Of the replicas `promised`, which were ordered at `ordered`, those that are not Ready and within their start-up: pods that
/// are young, and those that do not exist yet while an HPA may not have followed.
fn coming(
    context: ModelContext<'_>,
    variant: &VariantContext<'_>,
    start: Seconds,
    (promised, ordered): (u32, Option<Timestamp>),
) -> u32 {
    let age = |at: Timestamp| Seconds::between(at, context.now).get();
    let (mut there, mut young) = (0_u32, 0_u32);
    for replica in variant.state.pods.iter().filter(|replica| replica.phase != Phase::Terminating) {
        there += 1;
        young += u32::from(replica.phase.is_starting() && age(replica.created) < start.get());
    }
    let recent = ordered.is_some_and(|at| age(at) < start.get() + LEAD);
    let unordered = if recent { promised.saturating_sub(there) } else { 0 };
    let missing = promised.max(variant.scale.base().get()).saturating_sub(variant.coverage.ready);
    missing.min(young.saturating_add(unordered))
}

/// A pod of the last order has become Ready within `window`: what it relieves shows in the next scrapes.
fn relieves(
    context: ModelContext<'_>,
    variant: &VariantContext<'_>,
    start: Seconds,
    ordered: Option<Timestamp>,
    window: Seconds,
) -> bool {
    let age = |at: Timestamp| Seconds::between(at, context.now).get();
    let longest = MAX_STARTS * start.get() + LEAD + window.get();
    let Some(ordered) = ordered.filter(|at| age(*at) < longest) else { return false };
    let ready = variant.state.pods.iter().filter(|replica| replica.phase == Phase::Ready);
    let mut ready =
        ready.filter(|replica| replica.created >= ordered).filter_map(|replica| replica.ready_since);
    ready.any(|since| age(since) < window.get())
}

/// Raises the numbers of a saturated fleet to half more than runs, if nothing that was ordered is on its way: of the cheapest
/// variant that can grow, those that run before those that sleep, and what is beyond its maximum of the next one.
fn grow(context: ModelContext<'_>, variants: &[VariantContext<'_>], fleet: &mut [FleetVariant]) -> Relief {
    let sum = |part: &dyn Fn(&FleetVariant) -> u32| fleet.iter().map(part).fold(0, u32::saturating_add);
    let running = sum(&|fleet_variant| fleet_variant.running);
    let enough = running.saturating_add(running.div_ceil(2).clamp(1, MAX_GROWTH));
    let mut left = enough.saturating_sub(sum(&FleetVariant::counts));
    if fleet.iter().any(|fleet_variant| fleet_variant.waits) {
        return Relief::Starting;
    }
    if running == 0 {
        // A maximum of 0, or pods that are no longer requested.
        return Relief::AtMaximum;
    }
    if left == 0 {
        return Relief::Ordered;
    }
    let mut order: Vec<usize> = (0..variants.len()).collect();
    order.sort_by(|left, right| {
        let left = &variants[*left];
        let right = &variants[*right];
        right.is_active().cmp(&left.is_active()).then_with(|| left.by_cost(right))
    });
    // A variant that a limit has denied replicas is chosen again only if there is no other one.
    let able = |fleet_variant: &FleetVariant| fleet_variant.block.is_none();
    let denied = |fleet_variant: &FleetVariant| fleet_variant.block == Some(Relief::AtLimit);
    let asked: &dyn Fn(&FleetVariant) -> bool = if fleet.iter().any(able) { &able } else { &denied };
    let asked: Vec<usize> = order.into_iter().filter(|at| asked(&fleet[*at])).collect();
    for at in asked {
        let fleet_variant = &mut fleet[at];
        let given = left.min(fleet_variant.max.saturating_sub(fleet_variant.number));
        if given == 0 {
            continue;
        }
        left -= given;
        let (wanted, tolerance) = (fleet_variant.number + given, context.policy.stability.tolerance);
        fleet_variant.number =
            past_tolerance(fleet_variant.running, wanted, 0..=fleet_variant.max, tolerance, |_| false);
        fleet_variant.raised = true;
    }
    let blocked = || fleet.iter().find_map(|fleet_variant| fleet_variant.block).unwrap_or(Relief::AtMaximum);
    if fleet.iter().any(|fleet_variant| fleet_variant.raised) { Relief::Growing } else { blocked() }
}

/// A saturated fleet, and the response to it.
struct Fleet<'a> {
    context: ModelContext<'a>,
    saturated_by: SaturatedBy,
    at: Timestamp,
    relief: Relief,
}

impl Fleet<'_> {
    /// Puts the number of `fleet_variant` into the proposal, and says why.
    fn relieve(
        &self,
        variant: &mut VariantContext<'_>,
        proposal: &mut Proposal,
        fleet_variant: &FleetVariant,
    ) -> Option<Step> {
        let relief = match self.relief {
            _ if fleet_variant.raised => Relief::Growing,
            Relief::Starting | Relief::Ordered => self.relief,
            _ => fleet_variant.block.unwrap_or(Relief::Ordered),
        };
        let number = Replicas::new(fleet_variant.number);
        let is_held = proposal.number.is_some_and(|proposed| proposed < number) && !fleet_variant.raised;
        if relief == Relief::Ordered && !is_held {
            return None;
        }
        if fleet_variant.raised {
            variant.memory.to_mut().safety_net.grew = Some(self.context.now);
        }
        let reason = match relief {
            Relief::Growing => Reason::ScaleUp,
            Relief::Starting | Relief::Ordered => Reason::Transition,
            _ => Reason::Bounded,
        };
        // What is not measured at all says so itself, and an analyzer's own growth needs no other reason.
        let keeps_own = proposal.number.is_none()
            || proposal.is_blind
            || fleet_variant.number > fleet_variant.floor
            || !variant.is_active();
        let why = AdjustmentReason::Saturated { state: self.saturation(variant, fleet_variant, relief) };
        let step = if fleet_variant.raised || is_held || !keeps_own {
            if proposal.analyzed.is_none() {
                // Between two cycles the reasons are the last cycle's, and the safety net's among them.
                proposal.explanation =
                    Proposal::standing(variant, proposal.number, reason, Basis::SafetyNet, self.at)
                        .explanation;
            }
            if proposal.is_blind {
                // What the net raises or keeps rests on what it has seen: otherwise the next evaluation would find nothing but
                // what was too old before.
                proposal.evidence = self.at;
                proposal.is_blind = false;
            }
            // Its additions are subject to the limits.
            let allowed_moves = || fleet_variant.raised.then(|| CoverageState::Aging.allowed_moves());
            proposal.analyzed = proposal.analyzed.or_else(allowed_moves);
            proposal.set(variant, Stage::Target, number, reason, why)
        } else {
            let adjustment = Adjustment { stage: Stage::Target, from: proposal.number, to: number, why };
            Step::adjustment(variant.name(), adjustment)
        };
        Some(step.with_values(vec![
            Value::new("replicas that run", f64::from(fleet_variant.running)),
            Value::new("replicas that start", f64::from(fleet_variant.coming)),
            Value::new("start-up time in seconds", fleet_variant.start.get()),
        ]))
    }

    fn saturation(
        &self,
        variant: &VariantContext<'_>,
        fleet_variant: &FleetVariant,
        relief: Relief,
    ) -> Saturation {
        let saturated_by = match self.saturated_by {
            SaturatedBy::Pods(SaturatedPods { saturated, ready, .. }) => {
                SaturationCause::Pods { saturated, ready }
            }
            SaturatedBy::Queue => SaturationCause::Queue,
        };
        Saturation {
            saturated_by,
            relief,
            running: Replicas::new(fleet_variant.running),
            ordered: Replicas::new(fleet_variant.floor),
            max: Some(Replicas::new(fleet_variant.max)).filter(|max| max.get() < u32::MAX),
            starting: fleet_variant.coming,
            unschedulable: variant.coverage.unschedulable,
            not_ready: variant.coverage.starting,
            start_up: truncated_u32(fleet_variant.start.get().round()),
        }
    }
}

/// A limit grants `variant` no more than `granted` of what the safety net may have ordered at `now`.
pub(super) fn note_denied(variant: &mut VariantContext<'_>, granted: Replicas, now: Timestamp) {
    if variant.memory.safety_net.grew != Some(now) {
        return;
    }
    let nothing = granted <= variant.committed().unwrap_or_default().max(variant.scale.base());
    let net = &mut variant.memory.to_mut().safety_net;
    net.denied = Some(now);
    net.grew = net.grew.filter(|_| !nothing);
}
