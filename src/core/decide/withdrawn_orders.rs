//! Orders that were made just before their evidence was found to be contradicted: they are withdrawn, and what was learned
//! meanwhile is forgotten. Only such an order goes, and nothing that served before it.

use jiff::Timestamp;

use super::context::{ModelContext, VariantContext};
use super::model::ModelDecision;
use crate::bound::stability::ProposalHistory;
use crate::decision::Reason;
use crate::memory::{Learned, VariantMemory};
use crate::model::Analyzer;
use crate::model::Role;
use crate::quality::{SignalHistory, judged_engines};
use crate::report::{AdjustmentReason, Detail, OrdersWithdrawn, Stage, Step};
use crate::snapshot::{Phase, Signal, SignalSet, SourceHealth};
use crate::units::{Replicas, Seconds};

/// A contradiction shows within a minute and two scrapes of 15 s: orders that are older rest on other evidence.
const DETECTION_WINDOW: Seconds = Seconds::whole(90);

/// More contradictions of the same engines may show: for this long nothing is ordered again by their signals.
const REORDER_WINDOW: Seconds = Seconds::whole(60);

/// While the load stays, the requests in the pods grow by less than this factor and [`SOME_REQUESTS`], and the shares of the KV
/// caches that they hold by less than it and [`SOME_CACHE`].
const MAX_GROWTH: f64 = 1.2;
const SOME_REQUESTS: f64 = 5.0;
const SOME_CACHE: f64 = 0.1;

/// At least one in this many engines must be contradicted. Fewer move a number by little, and may break while the load really grows.
const ONE_OF: u32 = 3;

/// Withdraws the last orders of `variants`, all that a model has, if signals that their analyzer reads are now found to be
/// contradicted and were not before, while the pods hold about as many requests as when the orders were made. A step of one
/// replica is not worth it, and the roles that are `saturated` by evidence of their own need what was ordered.
pub(super) fn withdraw(
    context: ModelContext<'_>,
    saturated: &[Role],
    variants: &mut [VariantContext<'_>],
    learned: &mut Learned,
) -> Vec<Step> {
    let analyzer = context.analyzer;
    let by_numbers = analyzer == Analyzer::Rate || analyzer == Analyzer::Inferno || analyzer.is_of_capacity();
    let reads =
        |variant: &VariantContext<'_>| -> SignalSet { context.declared(variant.state.variant.role).all() };
    let first =
        variants.iter().filter_map(|variant| recent_orders(&variant.memory, context)).map(|(at, _)| at).min();
    let anew = |variant: &VariantContext<'_>| {
        SignalHistory::has_new_contradiction(
            context.signal_history,
            variant.state,
            &variant.coverage,
            reads(variant),
            first,
            context.now,
        )
    };
    // Pods that are not listed may carry any load.
    let listed = |variant: &VariantContext<'_>| variant.scale.ready.get() <= variant.coverage.ready;
    let whole = context.group.source == SourceHealth::Complete && variants.iter().all(listed);
    if !by_numbers || !whole || !variants.iter().any(anew) {
        return Vec::new();
    }
    let doubted =
        variants.iter().map(|variant| variant.coverage.distrusted_engines(reads(variant), context.now));
    let engines = variants
        .iter()
        .map(|variant| variant.coverage.ready.saturating_mul(variant.coverage.engines_per_pod));
    let (doubted, engines) = (doubted.sum::<u32>(), engines.fold(0, u32::saturating_add));
    if doubted.saturating_mul(ONE_OF) < engines || doubted < engines.min(2) {
        return Vec::new();
    }
    learned.roll_back();
    if first.is_none_or(|first| may_have_grown(context, variants, first)) {
        return Vec::new();
    }
    let calm = |variant: &&mut VariantContext<'_>| !saturated.contains(&variant.state.variant.role);
    variants.iter_mut().filter(calm).filter_map(|variant| withdraw_of(context, variant, learned)).collect()
}

/// The pods of `variants` and the gateway hold more requests than at `since`, or fuller caches where requests are distrusted. True also
/// where neither is known.
fn may_have_grown(context: ModelContext<'_>, variants: &[VariantContext<'_>], since: Timestamp) -> bool {
    let requests: &[Signal] = &[Signal::Running, Signal::Waiting];
    let believed =
        [(requests, SOME_REQUESTS), (&[Signal::KvUsage], SOME_CACHE)].into_iter().find(|(signals, _)| {
            let doubted = |variant: &VariantContext<'_>| {
                variant.coverage.distrusted_engines(SignalSet::new(signals), context.now)
            };
            variants.iter().all(|variant| doubted(variant) == 0)
        });
    let sums = believed.and_then(|(signals, some)| Some((sums(context, variants, signals, since)?, some)));
    sums.is_none_or(|([before, now], some)| now > MAX_GROWTH * before + some)
}

/// The sums of `gauges` over the engines of `variants` at `since` and now; where requests that wait are among them, those in the
/// gateway's queue too. A pod that was not Ready at `since` held nothing then.
fn sums(
    context: ModelContext<'_>,
    variants: &[VariantContext<'_>],
    gauges: &[Signal],
    since: Timestamp,
) -> Option<[f64; 2]> {
    let replicas = variants.iter().flat_map(|variant| &variant.state.pods);
    let (mut before, mut now) = (0.0, 0.0);
    for replica in replicas.filter(|replica| replica.phase == Phase::Ready) {
        let young = replica.ready_since.is_some_and(|ready| ready >= since);
        for (_, engine) in judged_engines(replica) {
            for series in gauges.iter().map(|gauge| engine.get(*gauge)) {
                let then = series.iter().rev().find(|sample| sample.at <= since);
                now += series.last()?.value;
                before += if young { 0.0 } else { then?.value };
            }
        }
    }
    if gauges.contains(&Signal::Waiting) {
        let held = context.group.scheduler.get(Signal::SchedulerQueueSize);
        now += held.last().map_or(0.0, |held| held.value);
        before += held.iter().rev().find(|held| held.at <= since).map_or(0.0, |held| held.value);
    }
    Some([before, now])
}

fn withdraw_of(
    context: ModelContext<'_>,
    variant: &mut VariantContext<'_>,
    learned: &mut Learned,
) -> Option<Step> {
    let (at, from) = recent_orders(&variant.memory, context)?;
    // Serving replicas are not taken back, and a variant that was woken stays awake.
    let from = from.max(Replicas::new(variant.coverage.ready));
    let target = variant.memory.target.filter(|target| target.saturating_sub(from) > Replicas::ONE)?;
    if from == Replicas::ZERO {
        return None;
    }
    if variant.memory.safety_net.grew >= Some(at) {
        return None;
    }
    let memory = variant.memory.to_mut();
    (memory.target, memory.ordered_from, memory.target_since) = (Some(from), None, Some(context.now));
    memory.withdrawn_at = Some(context.now);
    memory.wanted = ProposalHistory::default();
    if let Some(rate) = &mut learned.rate {
        // A mistaken order does not start a cooldown.
        rate.cooldowns.entry(variant.state.variant.role).or_default().added_at = None;
    }
    let withdrawn = OrdersWithdrawn { ordered: target, restored: from };
    Some(Step::of_variant(variant.name(), Detail::OrdersWithdrawn(withdrawn)))
}

/// Holds numbers that are ordered again too soon. The safety net of a saturated fleet comes after this.
pub(super) fn hold_reorders(model: &mut ModelDecision<'_>) {
    let ModelDecision { context, variants, proposals, steps, .. } = model;
    for (variant, proposal) in variants.iter().zip(proposals) {
        let withdrawn_at =
            variant.memory.withdrawn_at.filter(|at| Seconds::between(*at, context.now) < REORDER_WINDOW);
        let Some(withdrawn_at) = withdrawn_at else { continue };
        if may_have_grown(*context, variants, withdrawn_at) {
            continue;
        }
        if let Some(held) = variant.memory.target.filter(|held| proposal.number > Some(*held)) {
            let why = AdjustmentReason::OrderWithdrawn { window: REORDER_WINDOW.get() };
            steps.push(proposal.set(variant, Stage::Bound, held, Reason::Bounded, why));
        }
    }
}

/// The number before the orders of the last 90 s, and when the first of them was made.
fn recent_orders(memory: &VariantMemory, context: ModelContext<'_>) -> Option<(Timestamp, Replicas)> {
    memory.ordered_from.filter(|(at, _)| Seconds::between(*at, context.now) <= DETECTION_WINDOW)
}

/// The same once `desired` is asked for.
pub(super) fn ordered_from(
    memory: &VariantMemory,
    desired: Replicas,
    context: ModelContext<'_>,
) -> Option<(Timestamp, Replicas)> {
    let before = memory.target.filter(|before| *before < desired);
    let first = || before.map(|before| (context.now, before));
    recent_orders(memory, context).filter(|(_, from)| *from < desired).or_else(first)
}
