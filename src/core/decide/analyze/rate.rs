//! Runs the rate policy for a decision. It decides at every evaluation, because it has cooldowns of its own.

use std::cmp::Ordering;

use smol_str::SmolStr;

use super::input::{RoleInput, blocker, queue_lost, removes_nothing};
use crate::analyze::rate::{
    Constraint, EngineModel, RateFinding, RateInput, RateMemory, RatePlan, RateVariant, ReplicaCapacity,
    RequestSize, analyze, turns, values,
};
use crate::decide::context::{ModelContext, VariantContext, newest_sample};
use crate::decide::holds;
use crate::decide::proposal::{Analyzed, Proposal};
use crate::decide::removal_guard::RemovalGuard;
use crate::decision::Reason;
use crate::learn::{ModelKnowledge, RoleKnowledge, VariantKnowledge, start_up_times};
use crate::memory::Learned;
use crate::model::Role;
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
use crate::snapshot::{Phase, Signal, newest_confirmed};
use crate::units::{Replicas, Seconds, count, figure};

/// Arrivals older than this, seconds, say nothing of what may be removed: two scrapes of the slowest usual interval, a minute.
const ARRIVALS_MAX_AGE: f64 = 120.0;

/// A variant that a limit has denied replicas is chosen again after this time, seconds.
const DENIED_WINDOW: f64 = 60.0;

/// What the policy decides about `variants`, all of one role of which at least one is measured; `None` while demand or the capacity
/// of a replica is not known.
pub(crate) fn propose(
    input: &RoleInput<'_, '_>,
    learned: &mut Learned,
    steps: &mut Vec<Step>,
) -> Option<Vec<Proposal>> {
    let RoleInput { context, variants, .. } = *input;
    let removal = RemovalGuard::new(context, variants);
    let (answer, analysis) = analyze_role(input, &removal, learned, steps)?;
    let analysis = Analysis { removal_limit: removal.refused(), ..analysis };
    let decided = variants.iter().zip(&answer.targets);
    let proposals: Vec<Proposal> =
        decided.map(|(variant, target)| proposal(input, &answer, &analysis, variant, *target)).collect();
    let of_variants = variants.iter().zip(&proposals);
    steps.extend(
        of_variants.map(|(variant, proposal)| Step::target(variant.name(), proposal.explanation.clone())),
    );
    Some(proposals)
}

/// While nothing serves, the requests that the gateway holds may need more than `proposals` have.
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
    let Some((answer, analysis)) = analyze_role(input, &removal, learned, steps) else { return };
    for ((variant, proposal), target) in variants.iter().zip(proposals).zip(answer.targets) {
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

fn analyze_role(
    input: &RoleInput<'_, '_>,
    removal: &RemovalGuard<'_, '_>,
    learned: &mut Learned,
    steps: &mut Vec<Step>,
) -> Option<(RatePlan, Analysis)> {
    let RoleInput { context, role, state, variants } = *input;
    let memory = learned.rate.get_or_insert_with(|| {
        let mut memory = RateMemory::default();
        memory.observe(context.group, context.signal_history, context.now);
        Box::new(memory)
    });
    let RateMemory { knowledge, cooldowns, .. } = &mut **memory;
    let recent = is_recent(context.now.into(), variants, knowledge, role);
    let known = knowledge.roles.entry(role).or_default();
    let inputs = variants.iter().map(|variant| {
        let own = knowledge.variants.or_default(variant.name());
        rate_variant(context, role, variant, (known, own))
    });
    let mut inputs: Vec<RateVariant> = inputs.collect();
    pass_on(context, &mut inputs, |name| knowledge.variants.get(name).and_then(|own| own.denied));
    let held = scheduler_queue(context.now, &context.group.scheduler).map_or(0.0, |queue| queue.value);
    let in_pods = |signal| variants.iter().map(|variant| in_pods(variant, signal)).sum::<f64>();
    let rate_input = RateInput {
        now: Moment::from(context.now),
        role,
        variants: inputs,
        waiting: held + in_pods(Signal::Waiting),
        running: in_pods(Signal::Running),
        can_remove: state.allowed_moves().down && !queue_lost(context) && !context.saturated && recent,
        unmeasured_factor: hidden_load(variants),
        tolerance: context.policy.stability.tolerance,
        policy: &context.policy.rate,
    };
    let cooldown = cooldowns.entry(role).or_default();
    let answer = analyze(&rate_input, known, cooldown, &|targets| removal.fits(targets))?;
    let analysis = Analysis::from(Finding::Rate(finding(role, &answer.found)));
    steps.push(Step::of_group(Detail::Analysis(AnalysisStep {
        analysis: analysis.clone(),
        values: values(&rate_input, &answer.found),
        thresholds: turns(&answer.found),
    })));
    Some((answer, analysis))
}

/// The finding of the policy, as explanations keep it.
fn finding(role: Role, found: &RateFinding) -> RateExplanation {
    let demand = &found.demand;
    let forecast = Forecast { rate: figure(demand.forecast), seconds: figure(demand.horizon) };
    let is_enough = found.removable_below.is_some_and(|below| demand.forecast <= below);
    let (bound, supports) = found.binding;
    RateExplanation {
        role,
        demand: figure(demand.level.rate),
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

/// Arrivals are known until lately, and what replicas carry was learned not too long ago: what is older may raise a number
/// and not lower it.
fn is_recent(now: Moment, variants: &[VariantContext<'_>], knowledge: &ModelKnowledge, role: Role) -> bool {
    let Some(known) = knowledge.roles.get(&role) else { return false };
    let bins = known.arrivals.bins();
    if bins.last().is_none_or(|newest| newest.end.until(now) > ARRIVALS_MAX_AGE) {
        return false;
    }
    let learned = |variant: &VariantContext<'_>| {
        knowledge.variants.get(variant.name()).is_none_or(|own| own.may_lower(role, now))
    };
    // Where nothing arrives, any replica carries it.
    let idle = bins.iter().all(|bin| bin.count().arrivals <= 0.0);
    idle || (known.shape.may_lower(now) && variants.iter().filter(|variant| variant.is_active()).all(learned))
}

/// How much more than is estimated may arrive, as a factor of at least 1: each pod that is not measured may be as loaded as the
/// busiest that is, where the estimate takes it for the mean.
fn hidden_load(variants: &[VariantContext<'_>]) -> f64 {
    let active = || variants.iter().filter(|variant| variant.is_active());
    let unmeasured = f64::from(active().map(|variant| variant.coverage.unmeasured()).sum::<u32>());
    if unmeasured <= 0.0 {
        return 1.0;
    }
    let loads =
        active().flat_map(|variant| &variant.coverage.loads).map(|load| load.for_analyzer::<reads::Rate>());
    // Of whose requests nothing is known, nothing is compared.
    let requests = |load: EngineLoad<'_, reads::Rate>| Some(load.running()? + load.queue()?);
    let requests: Vec<f64> = loads.filter_map(requests).collect();
    let (sum, count) = (requests.iter().sum::<f64>(), f64::from(count(requests.len())));
    let busiest = requests.iter().copied().fold(0.0, f64::max);
    if sum <= 0.0 {
        return 1.0;
    }
    let ratio = busiest * count / sum;
    (count + unmeasured * ratio) / (count + unmeasured)
}

/// Replicas that a limit has lately denied one variant are ordered of another, if there is one that can grow.
fn pass_on(
    context: ModelContext<'_>,
    variants: &mut [RateVariant],
    denied: impl Fn(&SmolStr) -> Option<Moment>,
) {
    let lately = |variant: &RateVariant| {
        denied(&variant.name).is_some_and(|at| at.until(context.now.into()) < DENIED_WINDOW)
    };
    let able = |variant: &RateVariant| {
        !variant.is_full && variant.bounds.max.is_none_or(|max| variant.committed < max)
    };
    if variants.iter().any(|variant| able(variant) && !lately(variant)) {
        variants.iter_mut().for_each(|variant| variant.is_full |= lately(variant));
    }
}

/// The newest values of a gauge of requests, of all processes that serve.
fn in_pods(variant: &VariantContext<'_>, signal: Signal) -> f64 {
    let serving = variant.state.pods.iter().filter(|replica| replica.phase == Phase::Ready);
    let newest =
        serving.flat_map(judged_engines).filter_map(|(_, engine)| newest_confirmed(engine.get(signal)));
    newest.map(|sample| sample.value).sum()
}

fn rate_variant(
    context: ModelContext<'_>,
    role: Role,
    variant: &VariantContext<'_>,
    (known, own): (&RoleKnowledge, &mut VariantKnowledge),
) -> RateVariant {
    let (state, scale) = (variant.state, variant.scale);
    let policy = &context.policy.rate;
    // Starts that were seen while another analyzer decided count until the policy has seen one itself.
    let learned = own.starts.longest().or_else(|| variant.memory.starts.longest());
    let start = learned.unwrap_or_else(|| own.starts.expected(policy.start_up.get(), &start_up_times(state)));
    let by_argument = state.template.sequences().map(f64::from);
    let request = known.shape.prompt().map(|prompt| RequestSize { prompt, output: known.shape.output() });
    // It learns what limits an engine, of whatever kind, and begins with what vLLM would run.
    let default = f64::from(default_for_device(state.variant.accelerator.as_deref()));
    let process = EngineModel::from_knowledge(role, own, by_argument, default, context.now.into());
    let replica = process
        .zip(request)
        .and_then(|(process, request)| ReplicaCapacity::new(role, &process, request, policy));
    let processes = own.engines_per_pod.unwrap_or(1.0);
    let overdue = |since| Seconds::between(since, context.now).get() > OVERDUE_FACTOR * start;
    let [whole_start, patience] =
        [start, OVERDUE_FACTOR * start].map(|seconds| Seconds::new(seconds).unwrap_or_default());
    let (mut pods, mut failing, mut never) = (Vec::new(), 0, 0);
    for replica in &state.pods {
        match PodOutlook::assess(replica, patience, context.now) {
            PodOutlook::Ready => pods.push(Seconds::ZERO),
            PodOutlook::Starting => {
                let left = start - Seconds::between(replica.created, context.now).get();
                pods.push(Seconds::new(left.max(0.0)).unwrap_or_default());
            }
            PodOutlook::Failing => failing += 1,
            PodOutlook::Broken | PodOutlook::Unschedulable | PodOutlook::Asleep => never += 1,
            PodOutlook::Terminating => {}
        }
    }
    let first = || variant.state.last_status.unwrap_or_default().max(scale.spec);
    let target = variant.memory.target.unwrap_or_else(first);
    // An HPA with a lower maximum, or a quota on pods: the ordered replicas never existed.
    let ordered = variant.memory.target_since.is_some_and(overdue);
    let unmade = if ordered { target.saturating_sub(scale.base()) } else { Replicas::ZERO };
    let replaced = own.replaced.update(failing, start, context.now.into());
    let lost = Replicas::new(unmade.get().saturating_add(never).saturating_add(replaced));
    // A rolling update has pods beside the requested ones, so a missing pod of it is not a missing replica.
    let served = Replicas::new(count(pods.len()).saturating_add(failing - replaced));
    RateVariant {
        name: variant.name().clone(),
        cost: state.variant.cost,
        bounds: state.variant.bounds,
        committed: target,
        requested: scale.base(),
        unavailable: lost.min(target.saturating_sub(served)),
        is_full: unmade > Replicas::ZERO || is_growth_futile(state, whole_start, patience, context.now),
        ready_in: pods,
        start_up: whole_start,
        capacity: replica.map(|replica| replica.times(processes)),
    }
}

/// The proposal for one variant.
fn proposal(
    input: &RoleInput<'_, '_>,
    answer: &RatePlan,
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
            (Reason::Partial, Some(removes_nothing(&context.group.source)))
        }
        Ordering::Greater => (Reason::ScaleUp, None),
        Ordering::Less => (Reason::ScaleDown, None),
        Ordering::Equal if answer.found.is_short => {
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

/// Demand or the capacity of a replica is not known yet: the published number stands.
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
