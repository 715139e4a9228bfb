//! Runs the rate policy for a decision. It decides at every evaluation, because it has cooldowns of its own.

use std::cmp::Ordering;

use jiff::Timestamp;
use smol_str::SmolStr;

use super::input::{RoleInput, blocker, no_removal_caveat, queue_lost};
use crate::analyze::rate::{
    Constraint, EngineModel, Exchange, MAX_ARRIVALS_AGE, RateFinding, RateInput, RateMemory, RatePlan,
    RateVariant, ReplicaCapacity, RequestSize, analyze, thresholds, values,
};
use crate::decide::context::{DENIED_WINDOW, ModelContext, VariantContext, expected_start, newest_sample};
use crate::decide::holds;
use crate::decide::proposal::{Analyzed, Proposal};
use crate::decide::removal_guard::RemovalGuard;
use crate::decision::Reason;
use crate::learn::{ModelKnowledge, RoleKnowledge, VariantKnowledge};
use crate::memory::Learned;
use crate::model::{RatePolicy, Role};
use crate::moment::Moment;
use crate::observe::scheduler_queue;
use crate::quality::analyzer_signals as reads;
use crate::quality::{
    CoverageState, EngineLoad, OVERDUE_FACTOR, PodOutlook, is_growth_futile, judged_engines,
};
use crate::report::{
    Analysis, AnalysisStep, Basis, Caveat, Detail, Finding, Forecast, RateConstraint, RateExplanation, Step,
};
use crate::sequence_limit::default_for_device;
use crate::snapshot::{Phase, Pod, Signal, newest_confirmed};
use crate::units::{Replicas, Seconds, count, figure};

/// Proposes numbers for the variants of one role, of which at least one is measured; `None` while the demand or the capacity of a replica
/// is not known.
pub(crate) fn propose(
    input: &RoleInput<'_, '_>,
    learned: &mut Learned,
    steps: &mut Vec<Step>,
) -> Option<Vec<Proposal>> {
    let RoleInput { context, variants, .. } = *input;
    let removal = RemovalGuard::new(context, variants);
    let (plan, analysis) = analyze_role(input, &removal, learned, steps)?;
    let analysis = Analysis { removal_limit: removal.refused(), ..analysis };
    let decided = variants.iter().zip(&plan.targets);
    let mut proposals: Vec<Proposal> =
        decided.map(|(variant, target)| proposal(input, &plan, &analysis, variant, *target)).collect();
    if let Some(Exchange { from, to }) = plan.found.exchange {
        // Until it is requested: limits grant it after everything that is needed.
        proposals[to].explanation.set_caveat(Caveat::Exchange { from: variants[from].name().clone() });
    }
    let of_variants = variants.iter().zip(&proposals);
    steps.extend(
        of_variants.map(|(variant, proposal)| Step::target(variant.name(), proposal.explanation.clone())),
    );
    Some(proposals)
}

/// Raises `proposals` to what the requests in the scheduler's queue need, while no pod serves.
pub(crate) fn raise(
    input: &RoleInput<'_, '_>,
    learned: &mut Learned,
    proposals: &mut [Proposal],
    steps: &mut Vec<Step>,
) {
    let RoleInput { context, state, variants, .. } = *input;
    let held = scheduler_queue(context.now, &context.group.scheduler);
    let Some(queue) = held.filter(|queue| queue.value > 0.0) else { return };
    let removal = RemovalGuard::new(context, variants);
    let Some((plan, analysis)) = analyze_role(input, &removal, learned, steps) else { return };
    for ((variant, proposal), target) in variants.iter().zip(proposals).zip(plan.targets) {
        if proposal.number.is_some_and(|number| target > number) {
            let reason = if state == CoverageState::Zero { Reason::ScaleFromZero } else { Reason::ScaleUp };
            let allowed_moves = CoverageState::Aging.allowed_moves();
            let (number, evidence, analysis) = (target, queue.at, &analysis);
            let analyzed = Analyzed { number, reason, evidence, allowed_moves, analysis, caveat: None };
            *proposal = Proposal::analyzed(variant, analyzed);
            steps.push(Step::target(variant.name(), proposal.explanation.clone()));
        }
    }
}

/// What the policy remembers about the model: at first, what its samples show.
pub(super) fn remembered<'l>(context: ModelContext<'_>, learned: &'l mut Learned) -> &'l mut RateMemory {
    learned.rate.get_or_insert_with(|| {
        let mut memory = RateMemory::default();
        memory.observe(context.group, context.signal_history, context.now);
        Box::new(memory)
    })
}

fn analyze_role(
    input: &RoleInput<'_, '_>,
    removal: &RemovalGuard<'_, '_>,
    learned: &mut Learned,
    steps: &mut Vec<Step>,
) -> Option<(RatePlan, Analysis)> {
    let RoleInput { context, role, state, variants } = *input;
    let RateMemory { knowledge, cooldowns, .. } = remembered(context, learned);
    let recent = is_recent(context.now.into(), variants, knowledge, role);
    let known = knowledge.roles.entry(role).or_default();
    let inputs = variants.iter().map(|variant| {
        let own = knowledge.variants.or_default(variant.name());
        rate_variant(context, role, variant, known, own)
    });
    let mut inputs: Vec<RateVariant> = inputs.collect();
    avoid_denied(context, &mut inputs, |name| knowledge.variants.get(name).and_then(|own| own.denied));
    let held = scheduler_queue(context.now, &context.group.scheduler).map_or(0.0, |queue| queue.value);
    let in_pods = |signal| variants.iter().map(|variant| sum_gauge(variant, signal)).sum::<f64>();
    let rate_input = RateInput {
        now: Moment::from(context.now),
        role,
        variants: inputs,
        waiting: held + in_pods(Signal::Waiting),
        running: in_pods(Signal::Running),
        can_remove: state.allowed_moves().down && !queue_lost(context) && !context.saturated && recent,
        unmeasured_factor: unmeasured_factor(variants),
        tolerance: context.policy.stability.tolerance,
        policy: &context.policy.rate,
    };
    let cooldown = cooldowns.entry(role).or_default();
    let plan = analyze(&rate_input, known, cooldown, &|targets| removal.fits(targets))?;
    let demand = &plan.found.demand;
    known.forecasts.hold(context.now.into(), demand.forecast, demand.horizon);
    let analysis = Analysis::from(Finding::Rate(explanation(role, &plan.found)));
    steps.push(Step::of_group(Detail::Analysis(AnalysisStep {
        analysis: analysis.clone(),
        values: values(&rate_input, &plan.found),
        thresholds: thresholds(&plan.found),
    })));
    Some((plan, analysis))
}

/// The finding of the policy, as explanations keep it.
fn explanation(role: Role, found: &RateFinding) -> RateExplanation {
    let demand = &found.demand;
    let forecast = Forecast { rate: figure(demand.forecast), seconds: figure(demand.horizon) };
    let is_enough = found.removable_below.is_some_and(|below| demand.forecast <= below);
    let (bound, supports) = found.binding;
    RateExplanation {
        role,
        demand: figure(demand.level.rate),
        refused: Some(figure(demand.refused())).filter(|refused| *refused > 0.0),
        forecast: (demand.level.slope > 0.0).then_some(forecast),
        capacity: figure(found.fleet.rate),
        replicas: figure(found.fleet.replicas),
        constraint: match bound {
            Constraint::Utilisation => RateConstraint::Utilisation,
            Constraint::Reserve => RateConstraint::ChanceReserve { roots: figure(found.test.reserve) },
            Constraint::Surge => RateConstraint::SurgeReserve { share: figure(found.test.surge) },
            Constraint::Backlog => {
                let (requests, seconds) = (figure(found.test.backlog), figure(found.test.drain));
                RateConstraint::Backlog { requests, seconds }
            }
        },
        supports: figure(supports.max(0.0)),
        removal_in: Some(figure(found.removable_in)).filter(|seconds| is_enough && *seconds > 0.0),
    }
}

/// Arrivals were counted recently, and capacities were learned recently enough: older knowledge may raise a number and not lower it.
fn is_recent(now: Moment, variants: &[VariantContext<'_>], knowledge: &ModelKnowledge, role: Role) -> bool {
    let Some(known) = knowledge.roles.get(&role) else { return false };
    let bins = known.arrivals.bins();
    if known.gauged_at.is_some() || bins.last().is_none_or(|newest| newest.end.until(now) > MAX_ARRIVALS_AGE)
    {
        return false;
    }
    let learned = |variant: &VariantContext<'_>| {
        knowledge.variants.get(variant.name()).is_none_or(|own| own.may_lower(role, now))
    };
    // Without arrivals any capacity is enough.
    let idle = bins.iter().all(|bin| bin.count().arrivals <= 0.0);
    idle || (known.shape.may_lower(now) && variants.iter().filter(|variant| variant.is_active()).all(learned))
}

/// The factor, at least 1, by which arrivals may exceed the estimate. The estimate takes an unmeasured pod to be as loaded as the mean of
/// the measured ones, and it may be as loaded as the busiest.
fn unmeasured_factor(variants: &[VariantContext<'_>]) -> f64 {
    let active = || variants.iter().filter(|variant| variant.is_active());
    let unmeasured = f64::from(active().map(|variant| variant.coverage.unmeasured()).sum::<u32>());
    if unmeasured <= 0.0 {
        return 1.0;
    }
    let loads =
        active().flat_map(|variant| &variant.coverage.loads).map(|load| load.for_analyzer::<reads::Rate>());
    let requests = |load: EngineLoad<'_, reads::Rate>| Some(load.running()? + load.queue()?);
    let requests: Vec<f64> = loads.filter_map(requests).collect();
    let (sum, count) = (requests.iter().sum::<f64>(), f64::from(count(requests.len())));
    let busiest = requests.iter().copied().fold(0.0, f64::max);
    // Without requests no engine is busier than another.
    if sum <= 0.0 {
        return 1.0;
    }
    let busiest_by_mean = busiest * count / sum;
    (count + unmeasured * busiest_by_mean) / (count + unmeasured)
}

/// Marks variants to which a limit has recently denied replicas as full, if another variant can grow: then that one gets the replicas.
fn avoid_denied(
    context: ModelContext<'_>,
    variants: &mut [RateVariant],
    denied_at: impl Fn(&SmolStr) -> Option<Moment>,
) {
    let is_denied = |variant: &RateVariant| {
        denied_at(&variant.name).is_some_and(|at| at.until(context.now.into()) < DENIED_WINDOW.get())
    };
    let can_grow = |variant: &RateVariant| {
        !variant.is_full && variant.bounds.max.is_none_or(|max| variant.committed < max)
    };
    if variants.iter().any(|variant| can_grow(variant) && !is_denied(variant)) {
        variants.iter_mut().for_each(|variant| variant.is_full |= is_denied(variant));
    }
}

/// The sum of the newest values of a gauge of requests over all serving engines.
fn sum_gauge(variant: &VariantContext<'_>, signal: Signal) -> f64 {
    let serving = variant.state.pods.iter().filter(|pod| pod.phase == Phase::Ready);
    let newest =
        serving.flat_map(judged_engines).filter_map(|(_, engine)| newest_confirmed(engine.get(signal)));
    newest.map(|sample| sample.value).sum()
}

/// The pods of one variant, as far as they count for its capacity.
#[derive(Default)]
struct PodForecast {
    /// For each pod that serves or is expected to: in how many seconds it does.
    ready_in: Vec<Seconds>,
    /// Pods of these that do not serve yet.
    starting: u32,
    /// Pods that were Ready and are not.
    failing: u32,
    /// Pods that will not serve.
    lost: u32,
}

impl PodForecast {
    /// With starts that take `start` seconds, and `start_limit` at most.
    fn new(pods: &[Pod], start: f64, start_limit: Seconds, now: Timestamp) -> Self {
        let mut forecast = Self::default();
        for pod in pods {
            match PodOutlook::assess(pod, start_limit, now) {
                PodOutlook::Ready => forecast.ready_in.push(Seconds::ZERO),
                PodOutlook::Starting => {
                    let left = start - Seconds::between(pod.created, now).get();
                    forecast.ready_in.push(Seconds::new(left.max(0.0)).unwrap_or_default());
                    forecast.starting += 1;
                }
                PodOutlook::Failing => forecast.failing += 1,
                PodOutlook::Broken | PodOutlook::Unschedulable | PodOutlook::Asleep => forecast.lost += 1,
                PodOutlook::Terminating => {}
            }
        }
        forecast
    }
}

/// The input of the policy about one variant, with what is `known` of its role and of the variant (`own`).
fn rate_variant(
    context: ModelContext<'_>,
    role: Role,
    variant: &VariantContext<'_>,
    known: &RoleKnowledge,
    own: &mut VariantKnowledge,
) -> RateVariant {
    let (state, scale) = (variant.state, variant.scale);
    let start = expected_start(Some(&own.starts), variant, context.policy.rate.start_up);
    own.predictions.expect_start(start);
    let [start_up, start_limit] =
        [start, OVERDUE_FACTOR * start].map(|seconds| Seconds::new(seconds).unwrap_or_default());
    let PodForecast { ready_in, starting, failing, lost } =
        PodForecast::new(&state.pods, start, start_limit, context.now);
    let first = || state.last_status.unwrap_or_default().max(scale.spec);
    let committed = variant.memory.target.unwrap_or_else(first);
    // Replicas that were ordered long ago and do not exist: an HPA has a lower maximum, or a quota on pods denies them.
    let is_overdue = variant
        .memory
        .target_since
        .is_some_and(|since| Seconds::between(since, context.now).get() > OVERDUE_FACTOR * start);
    let never_made = if is_overdue { committed.saturating_sub(scale.base()) } else { Replicas::ZERO };
    let replaced = own.replaced.update(failing, start, context.now.into());
    let unavailable = Replicas::new(never_made.get().saturating_add(lost).saturating_add(replaced));
    // A rolling update has pods beside the requested ones, so that a missing pod is not always a missing replica.
    let served = Replicas::new(count(ready_in.len()).saturating_add(failing - replaced));
    RateVariant {
        name: variant.name().clone(),
        cost: state.variant.cost,
        bounds: variant.bounds(),
        committed,
        requested: scale.base(),
        unavailable: unavailable.min(committed.saturating_sub(served)),
        is_full: never_made > Replicas::ZERO || is_growth_futile(state, start_up, start_limit, context.now),
        ready_in,
        starting: Replicas::new(starting),
        start_up,
        capacity: replica_capacity(context, role, variant, known, own),
    }
}

/// The capacity of a replica of `variant`; `None` before an engine was seen working.
fn replica_capacity(
    context: ModelContext<'_>,
    role: Role,
    variant: &VariantContext<'_>,
    known: &RoleKnowledge,
    own: &mut VariantKnowledge,
) -> Option<ReplicaCapacity> {
    let policy = &context.policy.rate;
    let state = variant.state;
    let by_argument = state.template.sequences().map(f64::from);
    // Until an engine of whatever kind has shown its limit, it is taken to be that of vLLM.
    let default = f64::from(default_for_device(state.variant.accelerator.as_deref()));
    let engine = EngineModel::from_knowledge(role, own, by_argument, default, context.now.into())?;
    let request = RequestSize { prompt: known.shape.prompt()?, output: known.shape.output() };
    let capacity = ReplicaCapacity::new(role, &engine, request, policy)?;
    // A saturated engine runs as many sequences as it can, whatever the objective.
    let without_objective = RatePolicy { itl_ms: None, ttft_ms: None, ..*policy };
    if let Some(unlimited) = ReplicaCapacity::new(role, &engine, request, &without_objective) {
        let is_saturated = own.engines.values().any(|last| last.saturated_for > 0);
        own.predictions.claim(unlimited.max_rate(), is_saturated);
    }
    Some(capacity.times(own.engines_per_pod.unwrap_or(1.0)))
}

/// The proposal for one variant.
fn proposal(
    input: &RoleInput<'_, '_>,
    plan: &RatePlan,
    analysis: &Analysis,
    variant: &VariantContext<'_>,
    target: Replicas,
) -> Proposal {
    let RoleInput { context, state, variants, .. } = *input;
    if !variant.is_active() && target == Replicas::ZERO {
        return holds::at_zero(context, variant);
    }
    let held = variant.committed().unwrap_or(variant.scale.spec);
    let (reason, caveat) = match target.cmp(&held) {
        Ordering::Greater if state.is_incomplete() => (Reason::Partial, None),
        _ if state == CoverageState::Partial => {
            (Reason::Partial, Some(no_removal_caveat(&context.group.source)))
        }
        Ordering::Greater => (Reason::ScaleUp, None),
        Ordering::Less => (Reason::ScaleDown, None),
        Ordering::Equal if plan.found.is_short => {
            (Reason::Bounded, Some(Caveat::Blocked { by: blocker(variant) }))
        }
        Ordering::Equal if target != variant.scale.base() => {
            (Reason::Transition, Some(Caveat::AwaitingReplicas { desired: target }))
        }
        Ordering::Equal if state == CoverageState::Estimated => {
            (Reason::Partial, Some(Caveat::EstimatedPods))
        }
        Ordering::Equal => (Reason::Steady, None),
    };
    let (evidence, allowed_moves) = (newest_sample(variants, context.now), state.allowed_moves());
    let analyzed = Analyzed { number: target, reason, evidence, allowed_moves, analysis, caveat };
    Proposal::analyzed(variant, analyzed)
}

/// The published number, which stands while the demand or the capacity of a replica is not known.
pub(crate) fn unknown(input: &RoleInput<'_, '_>, variant: &VariantContext<'_>) -> Proposal {
    let RoleInput { context, state, .. } = *input;
    if !variant.is_active() {
        return holds::at_zero(context, variant);
    }
    let number = variant.committed().unwrap_or(variant.scale.spec);
    let evidence = variant.coverage.newest.unwrap_or(context.now);
    let reason = if state == CoverageState::Partial { Reason::Partial } else { Reason::Steady };
    let standing = Proposal::standing(variant, Some(number), reason, Basis::Learning, evidence);
    Proposal { analyzed: Some(state.allowed_moves()), ..standing }
}
