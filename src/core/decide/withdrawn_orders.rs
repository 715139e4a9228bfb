//! Withdraws orders that were made just before their evidence was found to be contradicted, and undoes what was learned meanwhile. Only such
//! orders are withdrawn, and no replica that served before them is.

use jiff::Timestamp;

use super::context::{ModelContext, VariantContext};
use super::model::ModelDecision;
use crate::bound::stability::ProposalHistory;
use crate::decision::Reason;
use crate::memory::{Learned, VariantMemory};
use crate::model::{Analyzer, Role};
use crate::quality::{CONTRADICTION_DELAY, SignalHistory, judged_engines};
use crate::report::{AdjustmentReason, Detail, OrdersWithdrawn, Stage, Step};
use crate::snapshot::{Phase, Signal, SignalSet, SourceHealth};
use crate::units::{Replicas, Seconds};

/// After a withdrawal nothing is ordered again for this long, because further signals of the same engines may turn out to be contradicted.
const REORDER_WINDOW: Seconds = Seconds::whole(60);

/// While the load stays the same, the requests in the pods grow by at most this factor and [`REQUESTS_SLACK`], and the shares of the KV
/// caches that they hold by at most this factor and [`KV_USAGE_SLACK`].
const MAX_LOAD_RATIO: f64 = 1.2;
const REQUESTS_SLACK: f64 = 5.0;
const KV_USAGE_SLACK: f64 = 0.1;

/// At least one in this many engines must be contradicted. Fewer change a number by little, and may be contradicted while the load really
/// grows.
const MAX_ENGINES_PER_CONTRADICTED: u32 = 3;

/// Withdraws the last orders of `variants`, which are all that a model has, if signals that its analyzer reads are contradicted now and were not
/// before, while the pods hold about as many requests as when the orders were made. A step of one replica stays, and so do the orders of
/// roles that are `saturated` by other evidence.
pub(super) fn withdraw(
    context: ModelContext<'_>,
    saturated: &[Role],
    variants: &mut [VariantContext<'_>],
    learned: &mut Learned,
) -> Vec<Step> {
    let analyzer = context.analyzer;
    // The other analyzers move by small steps, of which one is not worth a withdrawal.
    let may_order_many =
        analyzer == Analyzer::Rate || analyzer == Analyzer::Inferno || analyzer.is_of_capacity();
    let reads = |variant: &VariantContext<'_>| -> SignalSet { context.declared(variant.role()).all() };
    let recent = variants.iter().filter_map(|variant| recent_orders(&variant.memory, context));
    let first_order = recent.map(|(at, _)| at).min();
    let has_new_contradiction = |variant: &VariantContext<'_>| {
        SignalHistory::has_new_contradiction(
            context.signal_history,
            variant.state,
            &variant.coverage,
            reads(variant),
            first_order,
            context.now,
        )
    };
    // Pods that are not listed may carry any load.
    let is_listed = |variant: &VariantContext<'_>| variant.scale.ready.get() <= variant.coverage.ready;
    let is_complete = context.group.source == SourceHealth::Complete && variants.iter().all(is_listed);
    if !may_order_many || !is_complete || !variants.iter().any(has_new_contradiction) {
        return Vec::new();
    }
    let contradicted =
        variants.iter().map(|variant| variant.coverage.distrusted_engines(reads(variant), context.now));
    let contradicted: u32 = contradicted.sum();
    let engines = variants
        .iter()
        .map(|variant| variant.coverage.ready.saturating_mul(variant.coverage.engines_per_pod))
        .fold(0, u32::saturating_add);
    let are_many = contradicted.saturating_mul(MAX_ENGINES_PER_CONTRADICTED) >= engines;
    if !are_many || contradicted < engines.min(2) {
        return Vec::new();
    }
    learned.roll_back();
    if first_order.is_none_or(|first| may_have_grown(context, variants, first)) {
        return Vec::new();
    }
    let is_withdrawable = |variant: &&mut VariantContext<'_>| !saturated.contains(&variant.role());
    variants
        .iter_mut()
        .filter(is_withdrawable)
        .filter_map(|variant| withdraw_from(context, variant, learned))
        .collect()
}

/// The pods of `variants` and the scheduler may hold more requests than at `since`; or the KV caches may be fuller, if the counts of requests
/// are distrusted. True also if neither is known.
fn may_have_grown(context: ModelContext<'_>, variants: &[VariantContext<'_>], since: Timestamp) -> bool {
    let requests: &[Signal] = &[Signal::Running, Signal::Waiting];
    let is_trusted = |gauges: &[Signal]| {
        let gauges = SignalSet::new(gauges);
        variants.iter().all(|variant| variant.coverage.distrusted_engines(gauges, context.now) == 0)
    };
    let choices = [(requests, REQUESTS_SLACK), (&[Signal::KvUsage], KV_USAGE_SLACK)];
    let Some((gauges, slack)) = choices.into_iter().find(|(gauges, _)| is_trusted(gauges)) else {
        return true;
    };
    let sums = sum_gauges(context, variants, gauges, since);
    sums.is_none_or(|[before, now]| now > MAX_LOAD_RATIO * before + slack)
}

/// The sums of `gauges` over the engines of `variants`, at `since` and now. If waiting requests are among them, those in the scheduler's queue
/// are added. A pod that was not Ready at `since` held nothing then. `None` if a gauge was not measured.
fn sum_gauges(
    context: ModelContext<'_>,
    variants: &[VariantContext<'_>],
    gauges: &[Signal],
    since: Timestamp,
) -> Option<[f64; 2]> {
    let pods = variants.iter().flat_map(|variant| &variant.state.pods);
    let (mut before, mut now) = (0.0, 0.0);
    for pod in pods.filter(|pod| pod.phase == Phase::Ready) {
        let is_new = pod.ready_since.is_some_and(|ready| ready >= since);
        for (_, engine) in judged_engines(pod) {
            for series in gauges.iter().map(|gauge| engine.get(*gauge)) {
                let then = series.iter().rev().find(|sample| sample.at <= since);
                now += series.last()?.value;
                before += if is_new { 0.0 } else { then?.value };
            }
        }
    }
    if gauges.contains(&Signal::Waiting) {
        let queue = context.group.scheduler.get(Signal::SchedulerQueueSize);
        now += queue.last().map_or(0.0, |sample| sample.value);
        before += queue.iter().rev().find(|sample| sample.at <= since).map_or(0.0, |sample| sample.value);
    }
    Some([before, now])
}

fn withdraw_from(
    context: ModelContext<'_>,
    variant: &mut VariantContext<'_>,
    learned: &mut Learned,
) -> Option<Step> {
    let (at, from) = recent_orders(&variant.memory, context)?;
    // Replicas that serve stay, and a variant that was woken from zero stays awake.
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
    memory.proposals = ProposalHistory::default();
    if let Some(rate) = &mut learned.rate {
        // A mistaken order does not start a cooldown.
        rate.cooldowns.entry(variant.role()).or_default().added_at = None;
    }
    let withdrawn = OrdersWithdrawn { ordered: target, restored: from };
    Some(Step::of_variant(variant.name(), Detail::OrdersWithdrawn(withdrawn)))
}

/// Holds numbers that are ordered again within [`REORDER_WINDOW`]. The safety net of a saturated fleet comes after this.
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

/// When the first order of the last 90 s was made, and the number before it. Older orders rest on other evidence than the signals that are
/// found to be contradicted now.
fn recent_orders(memory: &VariantMemory, context: ModelContext<'_>) -> Option<(Timestamp, Replicas)> {
    memory.ordered_from.filter(|(at, _)| Seconds::between(*at, context.now) <= CONTRADICTION_DELAY)
}

/// The same after `desired` is published.
pub(super) fn ordered_from(
    memory: &VariantMemory,
    desired: Replicas,
    context: ModelContext<'_>,
) -> Option<(Timestamp, Replicas)> {
    let before = memory.target.filter(|before| *before < desired);
    let first = || before.map(|before| (context.now, before));
    recent_orders(memory, context).filter(|(_, from)| *from < desired).or_else(first)
}
