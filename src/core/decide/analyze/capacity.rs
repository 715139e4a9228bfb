//! The capacity analyzers: the finding of each about a model, as input of the optimizer.

use super::input::{analysis, queue_lost};
use super::observation::{AnalyzerInput, Estimate, VariantObservation, observe, queued};
use super::{fallback, latency, sequences};
use crate::analyze::finding::{Finding, LIVE_CYCLES, Totals};
use crate::analyze::saturation_token::{
    SchedulerQueue, TokenInput, TokenObservation, TokenPolicy, TokenVariant,
};
use crate::analyze::throughput;
use crate::arithmetic;
use crate::decide::context::{ModelContext, VariantContext, newest_sample};
use crate::decide::model::OptimizerInput;
use crate::memory::Learned;
use crate::model::{Analyzer, Bounds, Role, SecondaryAnalyzer, Utilisation};
use crate::name_map::NameIndex;
use crate::observe::scheduler_queue;
use crate::optimize::{Candidate, Request};
use crate::quality::analyzer_signals as reads;
use crate::quality::{CoverageState, EngineLoad, is_distrusted_on_most_engines, used_tokens};
use crate::report::{
    self, AnalysisStep, CapacityFinding, CapacitySource, CapacityTotals, Detail, Direction, Quantity, Side,
    Step, Threshold, Value,
};
use crate::snapshot::{EngineParameters, Signal, VariantState};
use crate::units::{Replicas, Seconds, Tokens, figure, truncated_u32};

/// Runs every capacity analyzer of the model's policy over `variants`, of which those of the roles in `states` are measured.
pub(crate) fn analyze(
    context: ModelContext<'_>,
    variants: &[VariantContext<'_>],
    states: Vec<(Role, CoverageState)>,
    learned: &mut Learned,
    steps: &mut Vec<Step>,
) -> Option<OptimizerInput> {
    let observe_all = |estimate| -> Vec<VariantObservation<'_, '_>> {
        variants.iter().map(|variant| observe(context, variant, estimate)).collect()
    };
    let observations = observe_all(Estimate::Mean);
    // For a removal, pods that are not measured count as loaded like the busiest measured one.
    let is_estimated = states.iter().any(|(_, state)| *state == CoverageState::Estimated);
    let busiest = is_estimated.then(|| observe_all(Estimate::Busiest));
    let optimizer_input = |candidates, findings, finding, settled| OptimizerInput {
        request: Request { id: context.id.clone(), priority: context.policy.priority, candidates, findings },
        states,
        analysis: analysis(context, finding),
        evidence: newest_sample(variants, context.now),
        settled,
        queue_lost: queue_lost(context),
    };
    if context.analyzer == Analyzer::Inferno {
        let numbers = latency::inferno(context, &observations, busiest.as_deref(), learned)?;
        let candidates = variants.iter().map(|variant| candidate(variant.state, variant.scale.base()));
        let candidates = candidates.collect();
        return Some(optimizer_input(candidates, Vec::new(), report::Finding::Allocation, Some(numbers)));
    }
    let own =
        SecondaryAnalyzer { analyzer: context.analyzer, score: context.policy.score, utilisation: None };
    let secondary: &[SecondaryAnalyzer] = if context.is_fallback() { &[] } else { &context.policy.secondary };
    let mut findings = Vec::with_capacity(1 + secondary.len());
    let mut explained = Vec::with_capacity(1 + secondary.len());
    for analyzer in std::iter::once(&own).chain(secondary) {
        let utilisation = analyzer.utilisation.unwrap_or(context.policy.utilisation);
        let input =
            AnalyzerInput { context, score: analyzer.score, utilisation, observations: &observations };
        let Some(finding) = find(input, busiest.as_deref(), analyzer.analyzer, learned) else { continue };
        let explanation = capacity_finding(&finding);
        steps.push(analysis_step(utilisation, &finding, explanation.clone()));
        explained.push(explanation);
        findings.push(finding);
    }
    if findings.is_empty() {
        return None;
    }
    let candidates = variants.iter().map(|variant| growing_candidate(context, variant)).collect();
    Some(optimizer_input(candidates, findings, report::Finding::Capacity { analyzers: explained }, None))
}

/// Returns the finding of `analyzer`, counted in pods. Spare capacity counts only if the `busiest` estimate has it too.
fn find(
    input: AnalyzerInput<'_, '_, '_>,
    busiest: Option<&[VariantObservation<'_, '_>]>,
    analyzer: Analyzer,
    learned: &mut Learned,
) -> Option<Finding> {
    let AnalyzerInput { context, utilisation, observations, .. } = input;
    let find_alone: fn(AnalyzerInput<'_, '_, '_>, &mut Learned) -> Option<Finding> = match analyzer {
        Analyzer::Saturation => tokens,
        Analyzer::Throughput => throughput,
        Analyzer::QueueingModel => latency::queueing,
        _ => return None,
    };
    let cautious = busiest.and_then(|busiest| {
        find_alone(AnalyzerInput { observations: busiest, ..input }, &mut learned.clone())
    });
    let finding = find_alone(input, learned)?;
    let finding = match cautious {
        Some(cautious) => finding.with_spare_of(&cautious),
        None => finding,
    };
    let finding = in_pods(finding, observations);
    Some(if context.is_fallback() { fallback::scale_demand(finding, utilisation, learned) } else { finding })
}

/// A finding as explanations keep it.
fn capacity_finding(finding: &Finding) -> CapacityFinding {
    let totals = |role, totals: &Totals| CapacityTotals {
        role,
        demand: figure(totals.demand),
        supply: figure(totals.supply),
        anticipated: figure(totals.anticipated),
        required: figure(totals.required),
        spare: figure(totals.spare),
    };
    let of_roles: Vec<_> = finding.roles.iter().map(|(role, of_role)| totals(Some(*role), of_role)).collect();
    let totals = if of_roles.is_empty() { vec![totals(None, &finding.total)] } else { of_roles };
    CapacityFinding { analyzer: finding.analyzer, totals }
}

/// A candidate of the optimizers. If further pods of `variant` would not become Ready either, its number does not grow.
fn growing_candidate(context: ModelContext<'_>, variant: &VariantContext<'_>) -> Candidate {
    let candidate = candidate(variant.state, variant.scale.base());
    if (context.inputs.may_grow)(&|| variant.is_growth_futile(context.now)) {
        return candidate;
    }
    let max = candidate.bounds.max.map_or(candidate.current, |max| max.min(candidate.current));
    Candidate { bounds: Bounds { max: Some(max), ..candidate.bounds }, ..candidate }
}

pub(crate) fn candidate(state: &VariantState, current: Replicas) -> Candidate {
    let variant = &state.variant;
    Candidate {
        name: variant.id.name.clone(),
        role: variant.role,
        cost: variant.cost,
        accelerator: variant.accelerator.clone(),
        gpus: state.template.gpus,
        watts: None,
        current,
        bounds: variant.bounds,
    }
}

/// Analyzers count engines, but pods are scaled: with data parallelism a pod has several engines.
fn in_pods(mut finding: Finding, observations: &[VariantObservation<'_, '_>]) -> Finding {
    let by_name = NameIndex::new(observations, |observation| observation.variant.name());
    for (at, capacity) in finding.variants.iter_mut().enumerate() {
        let of_variant = by_name.find(at, &capacity.name);
        let engines = of_variant.map_or(1, |observation| observation.engines_per_pod);
        capacity.per_replica *= f64::from(engines);
        capacity.replicas = Replicas::new(capacity.replicas.get().div_ceil(engines));
        capacity.pending = Replicas::new(capacity.pending.get().div_ceil(engines));
    }
    finding
}

fn tokens(input: AnalyzerInput<'_, '_, '_>, learned: &mut Learned) -> Option<Finding> {
    let AnalyzerInput { context, score, utilisation, observations } = input;
    let parameters: Vec<_> =
        observations.iter().map(|observation| sequences::parameters(context, observation.variant)).collect();
    let variants: Vec<_> = observations
        .iter()
        .zip(&parameters)
        .map(|(observation, own)| variant_input(observation, own.as_deref()))
        .collect();
    let mut replicas = Vec::new();
    for (observation, variant) in observations.iter().zip(&variants) {
        replicas.extend(observation.loads().filter_map(|load| token_observation(variant, &load)));
    }
    let policy = TokenPolicy {
        kv_cache_threshold: context.policy.saturation.kv_cache_threshold,
        queue_length_threshold: context.policy.saturation.queue_length_threshold,
        scale_up_threshold: utilisation.up,
        scale_down_boundary: utilisation.down,
    };
    let inputs = TokenInput { variants: &variants, replicas: &replicas, queue: queue_in_tokens(context) };
    let analysis =
        arithmetic::analyze_tokens(&inputs, &mut learned.tokens, &policy, context.compat, context.now);
    if analysis.is_informative() {
        learned.informative = Some(context.now);
    }
    let age = learned.informative.map(|at| Seconds::between(at, context.now).get());
    let live = age.is_some_and(|age| age <= LIVE_CYCLES * context.cycle.get());
    Some(analysis.into_finding(score, live))
}

fn variant_input<'v>(
    observation: &'v VariantObservation<'_, '_>,
    parameters: Option<&'v EngineParameters>,
) -> TokenVariant<'v> {
    let state = observation.variant.state;
    TokenVariant {
        name: &state.variant.id.name,
        role: state.variant.role,
        accelerator: state.variant.accelerator.as_deref().unwrap_or_default(),
        cost: state.variant.cost,
        // A replica of unknown size is like no other.
        gpus: state.template.gpus.unwrap_or_default(),
        current: observation.counted,
        pending: observation.pending,
        parameters,
    }
}

/// What one engine shows; `None` if its KV usage or its queue is not known. A size of 0 means that no request has finished.
fn token_observation<'a>(
    variant: &TokenVariant<'a>,
    load: &EngineLoad<'_, reads::Tokens>,
) -> Option<TokenObservation<'a>> {
    let (kv, queue, capacity) = (load.kv()?, load.queue()?, load.capacity());
    Some(TokenObservation {
        replica: "",
        variant: variant.name,
        accelerator: variant.accelerator,
        cost: variant.cost,
        kv,
        in_use: Tokens::new(used_tokens(kv, capacity)),
        capacity: Tokens::new(capacity),
        queue: truncated_u32(queue),
        prompt: load.prompt().unwrap_or(0.0),
        output: load.generated().unwrap_or(0.0),
        prefix_hits: load.hits().unwrap_or(0.0),
    })
}

/// The requests that the scheduler holds for the model and the bytes of their prompts, if known.
fn queue_in_tokens(context: ModelContext<'_>) -> Option<SchedulerQueue> {
    let scheduler = &context.group.scheduler;
    let requests = u64::from(truncated_u32(scheduler_queue(context.now, scheduler)?.value));
    let bytes = scheduler.newest(Signal::SchedulerQueueBytes);
    let bytes =
        bytes.and_then(|sample| u64::try_from(Tokens::truncated(sample.value).get()).ok()).unwrap_or(0);
    Some(SchedulerQueue { requests, bytes })
}

fn throughput(input: AnalyzerInput<'_, '_, '_>, learned: &mut Learned) -> Option<Finding> {
    let AnalyzerInput { context, score, utilisation, observations } = input;
    // An engine whose KV usage is not known is left out. Any other unknown value is 0, from which the analyzer learns nothing.
    let observed = |load: EngineLoad<'_, reads::Throughput>| {
        Some(throughput::ThroughputObservation {
            stale: false,
            kv: load.kv_now()?,
            capacity: load.capacity(),
            latency: load.between_tokens().unwrap_or(0.0),
            prompt: load.prompt().unwrap_or(0.0),
            generated: load.generated().unwrap_or(0.0),
            hits: load.hits().unwrap_or(0.0),
            arriving: load.arriving().unwrap_or(0.0),
            finished: load.finished().unwrap_or(0.0),
            generating: load.finishing().unwrap_or(0.0),
        })
    };
    let variant = |observation: &VariantObservation<'_, '_>| throughput::ThroughputVariant {
        name: observation.variant.name().clone(),
        role: observation.variant.role(),
        accelerator: observation.variant.state.variant.accelerator.clone(),
        cost: observation.variant.state.variant.cost,
        pending: observation.engines(observation.pending),
        ready: observation.engines(observation.counted.saturating_sub(observation.pending)),
        engines: observation.loads().filter_map(observed).collect(),
    };
    let input = throughput::ThroughputInput {
        now: context.now,
        variants: observations.iter().map(variant).collect(),
        arrival: arrival(context, observations),
        queue: queued(context),
        settings: throughput::ThroughputSettings {
            up: utilisation.up,
            down: utilisation.down,
            score,
            period: context.cycle,
        },
    };
    Some(arithmetic::analyze_throughput(&input, &mut learned.throughput, context.compat).finding)
}

/// Requests/s that arrive for the model: those that the scheduler dispatches, or else the first tokens of all engines. If most engines
/// contradict the scheduler's counter, its sum is not trusted either.
fn arrival(context: ModelContext<'_>, observations: &[VariantObservation<'_, '_>]) -> Option<f64> {
    let is_distrusted = || {
        is_distrusted_on_most_engines(
            observations.iter().map(|variant| &variant.variant.coverage),
            Signal::SchedulerAttempts,
            context.now,
        )
    };
    let dispatched = EngineLoad::<reads::Scheduler>::read(&context.group.scheduler, context.now).arriving();
    let dispatched = dispatched.filter(|_| (context.inputs.trusts_dispatched)(&is_distrusted));
    let started = || {
        let loads = observations.iter().flat_map(VariantObservation::loads::<reads::Throughput>);
        loads.filter_map(|load| load.starting()).reduce(|sum, rate| sum + rate)
    };
    (context.inputs.arrivals)(dispatched, &started)
}

fn analysis_step(utilisation: Utilisation, finding: &Finding, explanation: CapacityFinding) -> Step {
    let total = finding.total;
    let capacities = finding.variants.iter().map(|capacity| {
        let (variant, source) = (capacity.name.clone(), capacity.reason.clone());
        let source = Box::new(CapacitySource { variant, source });
        Value::new(Quantity::ReplicaCapacity(source), capacity.per_replica)
    });
    let sums = [
        Value::new(Quantity::Demand(None), total.demand),
        Value::new(Quantity::Supply, total.supply),
        Value::new(Quantity::AnticipatedSupply, total.anticipated),
        Value::new(Quantity::Missing(None), total.required),
        Value::new(Quantity::Spare(None), total.spare),
    ];
    let of_roles = finding.roles.iter().flat_map(|(role, totals)| {
        let missing = Value::new(Quantity::Missing(Some(*role)), totals.required);
        [missing, Value::new(Quantity::Spare(Some(*role)), totals.spare)]
    });
    // If the variants have roles, each role is decided by its own sums.
    let thresholds = if finding.roles.is_empty() {
        thresholds(utilisation, finding, None)
    } else {
        finding.roles.keys().flat_map(|role| thresholds(utilisation, finding, Some(*role))).collect()
    };
    Step::of_group(Detail::Analysis(AnalysisStep {
        analysis: report::Finding::Capacity { analyzers: vec![explanation] }.into(),
        values: sums.into_iter().chain(of_roles).chain(capacities).collect(),
        thresholds,
    }))
}

/// The demand of `role`, or of the model, at which the finding would call for more or fewer replicas.
fn thresholds(utilisation: Utilisation, finding: &Finding, role: Option<Role>) -> Vec<Threshold> {
    let now = role.and_then(|role| finding.roles.get(&role)).unwrap_or(&finding.total).demand;
    let turning = finding.turning_points(role, utilisation.up, utilisation.down);
    let threshold = |to, is, at| Threshold { to, quantity: Quantity::Demand(role), is, at, now };
    let more = turning.required_above.filter(|at| now <= *at);
    let more = more.map(|at| threshold(Direction::More, Side::Above, at));
    let fewer = turning.spare_below.filter(|at| now >= *at);
    let fewer = fewer.map(|at| threshold(Direction::Fewer, Side::Below, at));
    more.into_iter().chain(fewer).collect()
}
