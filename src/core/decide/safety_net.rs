//! The safety net above every analyzer: a saturated fleet (one role of a model) never shrinks, and grows by half, whatever its analyzer
//! finds. It only raises numbers, so a larger number of the analyzer stands. Like every addition, its own are subject to limits and bounds,
//! which come later. It reports what keeps a fleet from growing: replicas that are still starting, a limit, the maximum, or missing nodes.

use jiff::Timestamp;

use super::context::{DENIED_WINDOW, ModelContext, VariantContext, by_role, expected_start, newest_sample};
use super::model::{ModelDecision, SaturatedBy};
use super::proposal::Proposal;
use crate::decision::Reason;
use crate::hpa::past_tolerance;
use crate::learn::LEAD;
use crate::memory::Learned;
use crate::model::Role;
use crate::observe::scheduler_queue;
use crate::quality::{CoverageState, SATURATED_WINDOW, SaturatedPods, is_queue_never_empty, saturated_pods};
use crate::report::{
    Adjustment, AdjustmentReason, Basis, Quantity, Relief, Saturation, SaturationCause, Stage, Step, Value,
};
use crate::snapshot::{Phase, Pod, SourceHealth};
use crate::units::{Replicas, Seconds, truncated_u32};

/// Replicas that are added at once at most, as by the rate policy. No model has as many, and half of a wrong number adds no more.
const MAX_ADDED: u32 = 1000;

/// Pods of an order become Ready within this many start-up times; pods that do so later have become Ready again.
const MAX_STARTS: f64 = 3.0;

/// [`SATURATED_WINDOW`] where saturation is inferred without a queue: twice as long, because the length of the queue is not known.
const INFERRED_WINDOW: Seconds = Seconds::whole(120);

impl SaturatedBy {
    /// How long replicas that have become Ready have to relieve the fleet before more are ordered.
    const fn relief_window(self) -> Seconds {
        match self {
            Self::Pods(SaturatedPods { inferred: true, .. }) => INFERRED_WINDOW,
            Self::Pods(_) | Self::Queue => SATURATED_WINDOW,
        }
    }
}

/// The saturated roles of `variants`, which are sorted by role. The scheduler's queue is that of the whole model: it counts if no role's pods
/// are saturated, and then for all roles that serve. If the source does not answer, no role is.
pub(super) fn find(context: ModelContext<'_>, variants: &[VariantContext<'_>]) -> Vec<(Role, SaturatedBy)> {
    if matches!(context.group.source, SourceHealth::Down { .. }) {
        return Vec::new();
    }
    let by_pods = by_role(variants).filter_map(|(role, variants)| {
        let pods = find_saturated_pods(context, variants)?;
        Some((role, SaturatedBy::Pods(pods)))
    });
    let by_pods: Vec<_> = by_pods.collect();
    if !by_pods.is_empty() || !is_queue_never_empty(&context.group.scheduler, context.now) {
        return by_pods;
    }
    let serves = |variants: &[VariantContext<'_>]| variants.iter().any(|variant| variant.coverage.ready > 0);
    let serving = by_role(variants).filter(|(_, variants)| serves(variants));
    serving.map(|(role, _)| (role, SaturatedBy::Queue)).collect()
}

fn find_saturated_pods(context: ModelContext<'_>, variants: &[VariantContext<'_>]) -> Option<SaturatedPods> {
    let ready = variants.iter().map(|variant| variant.scale.ready.get()).fold(0, u32::saturating_add);
    let distrusted: Vec<_> = variants.iter().flat_map(|variant| &variant.coverage.queue_distrusted).collect();
    let without_queue =
        |pod: &Pod| distrusted.iter().find(|(name, _)| *name == pod.name).map(|(_, is_full)| *is_full);
    let pods = variants.iter().flat_map(|variant| &variant.state.pods);
    saturated_pods(pods, ready, without_queue, context.now)
}

/// Holds the numbers of the saturated roles of `model`, and raises them where nothing keeps them from growing.
pub(super) fn relieve(model: &mut ModelDecision<'_>) {
    let ModelDecision { context, saturated, variants, proposals, steps, memory, .. } = model;
    let (context, learned) = (*context, &mut memory.learned);
    for (role, saturated_by) in saturated {
        let of_role = |variant: &&VariantContext<'_>| variant.role() == *role;
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

/// One variant of a saturated fleet.
#[derive(Debug, Clone, Copy)]
struct FleetVariant {
    /// Replicas that run, within the maximum.
    running: u32,
    /// Its number does not fall below this: what was published or runs, within the bounds; at zero replicas only a late order.
    floor: u32,
    /// Its number so far, or what runs if no analyzer has one.
    number: u32,
    max: u32,
    /// Ordered replicas that are within their start-up time.
    starting: u32,
    /// Something that was ordered has not had the time yet to relieve the fleet.
    is_waiting: bool,
    start: Seconds,
    /// What keeps it from growing.
    blocked_by: Option<Relief>,
    is_raised: bool,
}

/// The last order of a variant.
#[derive(Debug, Clone, Copy)]
struct LastOrder {
    replicas: u32,
    at: Option<Timestamp>,
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
        let start = expected_start(known.map(|own| &own.starts), variant, context.policy.rate.start_up);
        let start = Seconds::new(start).unwrap_or_default();
        let age = |at: Timestamp| Seconds::between(at, context.now).get();
        let bounds = variant.bounds();
        let max = bounds.max.map_or(u32::MAX, |max| max.max(bounds.min).get());
        let running = variant.scale.base().get().min(max);
        // What a lowered maximum takes from a published number will not come, so it is not waited for.
        let replicas = variant.committed().map_or(0, Replicas::get).min(max);
        let order = LastOrder { replicas, at: variant.memory.target_since.filter(|_| replicas > 0) };
        let is_late = replicas > running && order.at.is_some() && variant.is_order_late(start, context.now);
        let floor = if variant.is_active() {
            bounds.clamp(Replicas::new(replicas.max(running))).get()
        } else if is_late {
            // An order that no HPA followed. If it did not count, the next evaluation would order the same again.
            replicas
        } else {
            0
        };
        let starting = count_starting(context, variant, start, order);
        let net = variant.memory.safety_net;
        let has_grown = net.grew.is_some_and(|at| age(at) < start.get());
        let is_denied = was_denied(variant, context.now);
        let number = proposal.number.map_or(running, |number| bounds.clamp(number).get().max(floor));
        let blocked_by = if variant.coverage.unschedulable > 0 {
            Some(Relief::NoNode)
        } else if number >= max {
            Some(Relief::AtMaximum)
        } else if is_late || variant.is_growth_futile(context.now) {
            Some(Relief::NotComing)
        } else if is_denied {
            Some(Relief::AtLimit)
        } else {
            None
        };
        // A second evaluation at the time of an order changes nothing.
        let is_waiting = starting > 0
            || has_grown
            || order.at == Some(context.now)
            || has_new_pod(context, variant, start, order, saturated_by.relief_window());
        Self { running, floor, number, max, starting, is_waiting, start, blocked_by, is_raised: false }
    }

    /// The part of its number that is expected to serve. Replicas of an old order that never came do not count.
    fn expected(&self) -> u32 {
        if self.blocked_by == Some(Relief::NotComing) && self.number <= self.floor {
            self.running
        } else {
            self.number
        }
    }
}

/// How many replicas of the last order are starting: pods that are not Ready and within their start-up time, and replicas without a pod
/// while an HPA may not have acted yet.
fn count_starting(
    context: ModelContext<'_>,
    variant: &VariantContext<'_>,
    start: Seconds,
    order: LastOrder,
) -> u32 {
    let age = |at: Timestamp| Seconds::between(at, context.now).get();
    let (mut existing, mut young) = (0_u32, 0_u32);
    for pod in variant.state.pods.iter().filter(|pod| pod.phase != Phase::Terminating) {
        existing += 1;
        young += u32::from(pod.phase.is_starting() && age(pod.created) < start.get());
    }
    let is_recent = order.at.is_some_and(|at| age(at) < start.get() + LEAD);
    let without_pod = if is_recent { order.replicas.saturating_sub(existing) } else { 0 };
    let missing = order.replicas.max(variant.scale.base().get()).saturating_sub(variant.coverage.ready);
    missing.min(young.saturating_add(without_pod))
}

/// A pod of the last order became Ready within `window`: its effect shows in the next scrapes.
fn has_new_pod(
    context: ModelContext<'_>,
    variant: &VariantContext<'_>,
    start: Seconds,
    order: LastOrder,
    window: Seconds,
) -> bool {
    let age = |at: Timestamp| Seconds::between(at, context.now).get();
    let longest = MAX_STARTS * start.get() + LEAD + window.get();
    let Some(ordered_at) = order.at.filter(|at| age(*at) < longest) else { return false };
    let ready = variant.state.pods.iter().filter(|pod| pod.phase == Phase::Ready);
    let mut ready_since = ready.filter(|pod| pod.created >= ordered_at).filter_map(|pod| pod.ready_since);
    ready_since.any(|since| age(since) < window.get())
}

/// Raises the numbers of a saturated fleet to half more than runs, unless something that was ordered is still coming. Variants that run come
/// before those at zero, then the cheapest; what exceeds the maximum of one goes to the next.
fn grow(context: ModelContext<'_>, variants: &[VariantContext<'_>], fleet: &mut [FleetVariant]) -> Relief {
    let sum = |part: fn(&FleetVariant) -> u32| fleet.iter().map(part).fold(0, u32::saturating_add);
    let running = sum(|fleet_variant| fleet_variant.running);
    let enough = running.saturating_add(running.div_ceil(2).clamp(1, MAX_ADDED));
    let mut left = enough.saturating_sub(sum(FleetVariant::expected));
    if fleet.iter().any(|fleet_variant| fleet_variant.is_waiting) {
        return Relief::Starting;
    }
    if running == 0 {
        // The maximum is 0, or the pods are no longer requested.
        return Relief::AtMaximum;
    }
    if left == 0 {
        return Relief::Ordered;
    }
    let mut order: Vec<usize> = (0..variants.len()).collect();
    order.sort_by(|left, right| {
        let (left, right) = (&variants[*left], &variants[*right]);
        right.is_active().cmp(&left.is_active()).then_with(|| left.by_cost(right))
    });
    // A variant to which a limit has denied replicas is chosen again only if no other one can grow.
    let is_free = |fleet_variant: &FleetVariant| fleet_variant.blocked_by.is_none();
    let allowed = if fleet.iter().any(is_free) { None } else { Some(Relief::AtLimit) };
    for index in order {
        let fleet_variant = &mut fleet[index];
        if fleet_variant.blocked_by != allowed {
            continue;
        }
        let added = left.min(fleet_variant.max.saturating_sub(fleet_variant.number));
        if added == 0 {
            continue;
        }
        left -= added;
        let (target, tolerance) = (fleet_variant.number + added, context.policy.stability.tolerance);
        fleet_variant.number =
            past_tolerance(fleet_variant.running, target, 0..=fleet_variant.max, tolerance, |_| false);
        fleet_variant.is_raised = true;
    }
    if fleet.iter().any(|fleet_variant| fleet_variant.is_raised) {
        return Relief::Growing;
    }
    fleet.iter().find_map(|fleet_variant| fleet_variant.blocked_by).unwrap_or(Relief::AtMaximum)
}

/// A saturated fleet, and the response to it.
struct Fleet<'a> {
    context: ModelContext<'a>,
    saturated_by: SaturatedBy,
    at: Timestamp,
    relief: Relief,
}

impl Fleet<'_> {
    /// Sets the number of `fleet_variant` in the proposal, and returns the step that explains it.
    fn relieve(
        &self,
        variant: &mut VariantContext<'_>,
        proposal: &mut Proposal,
        fleet_variant: &FleetVariant,
    ) -> Option<Step> {
        let relief = match self.relief {
            _ if fleet_variant.is_raised => Relief::Growing,
            Relief::Starting | Relief::Ordered => self.relief,
            _ => fleet_variant.blocked_by.unwrap_or(Relief::Ordered),
        };
        let number = Replicas::new(fleet_variant.number);
        let is_held = proposal.number.is_some_and(|proposed| proposed < number) && !fleet_variant.is_raised;
        if relief == Relief::Ordered && !is_held {
            return None;
        }
        if fleet_variant.is_raised {
            variant.memory.to_mut().safety_net.grew = Some(self.context.now);
        }
        let reason = match relief {
            Relief::Growing => Reason::ScaleUp,
            Relief::Starting | Relief::Ordered => Reason::Transition,
            _ => Reason::Bounded,
        };
        // A variant that is not measured at all has its own reason, and so has one that its analyzer raises.
        let keeps_own = proposal.number.is_none()
            || proposal.is_blind
            || fleet_variant.number > fleet_variant.floor
            || !variant.is_active();
        let why = AdjustmentReason::Saturated { state: self.saturation(variant, fleet_variant, relief) };
        let step = if fleet_variant.is_raised || is_held || !keeps_own {
            if proposal.analyzed.is_none() {
                // Between two cycles the explanation is that of the last cycle, which may include the safety net's.
                proposal.explanation =
                    Proposal::standing(variant, proposal.number, reason, Basis::SafetyNet, self.at)
                        .explanation;
            }
            if proposal.is_blind {
                // The number rests on the evidence of saturation now. Otherwise the next evaluation would find only the old evidence.
                proposal.evidence = self.at;
                proposal.is_blind = false;
            }
            // Its additions are subject to the limits.
            let allowed_moves = || fleet_variant.is_raised.then(|| CoverageState::Aging.allowed_moves());
            proposal.analyzed = proposal.analyzed.or_else(allowed_moves);
            proposal.set(variant, Stage::Target, number, reason, why)
        } else {
            let adjustment = Adjustment { stage: Stage::Target, from: proposal.number, to: number, why };
            Step::adjustment(variant.name(), adjustment)
        };
        Some(step.with_values(vec![
            Value::new(Quantity::RunningReplicas, f64::from(fleet_variant.running)),
            Value::new(Quantity::StartingReplicas, f64::from(fleet_variant.starting)),
            Value::new(Quantity::StartUpSeconds, fleet_variant.start.get()),
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
            starting: fleet_variant.starting,
            unschedulable: variant.coverage.unschedulable,
            not_ready: variant.coverage.starting,
            start_up: truncated_u32(fleet_variant.start.get().round()),
        }
    }
}

/// Whether a limit has lately denied replicas to `variant`, so that another one is chosen first.
pub(super) fn was_denied(variant: &VariantContext<'_>, now: Timestamp) -> bool {
    let denied = variant.memory.safety_net.denied;
    denied.is_some_and(|at| at < now && Seconds::between(at, now) < DENIED_WINDOW)
}

/// Notes that a limit grants `variant` no more than `granted`, if the safety net has raised it in this evaluation, or it was to be woken.
pub(super) fn note_denied(variant: &mut VariantContext<'_>, granted: Replicas, now: Timestamp) {
    if !variant.is_active() {
        variant.memory.to_mut().safety_net.denied = Some(now);
        return;
    }
    if variant.memory.safety_net.grew != Some(now) {
        return;
    }
    let adds_nothing = granted <= variant.committed().unwrap_or_default().max(variant.scale.base());
    let net = &mut variant.memory.to_mut().safety_net;
    net.denied = Some(now);
    net.grew = net.grew.filter(|_| !adds_nothing);
}
