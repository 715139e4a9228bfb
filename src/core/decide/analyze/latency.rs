//! Runs the latency analyzers for a decision: the queueing model, and the legacy solver with its parameters.

use smol_str::SmolStr;

use super::observation::{AnalyzerInput, VariantObservation, queued};
use super::sequences::max_sequences;
use crate::analyze::finding::Finding;
use crate::analyze::inferno::{ServerProposal, System, data};
use crate::analyze::queueing::model::{Limits, Service};
use crate::analyze::queueing::sizing::{Means, Targets};
use crate::analyze::queueing::{
    LatencyObservation, LearnedParameters, QueueingAnalysis, QueueingSettings, VariantLoad,
};
use crate::arithmetic;
use crate::decide::context::ModelContext;
use crate::memory::Learned;
use crate::model::{LatencyTargets, ServiceClass};
use crate::quality;
use crate::quality::analyzer_signals::Latencies;
use crate::units::{Replicas, Requests, count, to_f32, truncated_u32};

/// The finding of the queueing model; `None` while its latency targets are not known.
pub(crate) fn queueing(input: AnalyzerInput<'_, '_, '_>, learned: &mut Learned) -> Option<Finding> {
    let AnalyzerInput { context, score, utilisation, observations } = input;
    let loads: Vec<VariantLoad> = observations.iter().map(|observation| load(context, observation)).collect();
    let policy = &context.policy.queueing;
    let targets =
        policy.targets.and_then(|given| Targets::latency(to_f32(given.ttft_ms), to_f32(given.itl_ms)).ok());
    let settings = QueueingSettings {
        targets,
        multiplier: policy.slo_multiplier,
        tuning: policy.tuning,
        up: utilisation.up,
        down: utilisation.down,
        score,
        ..QueueingSettings::default()
    };
    let analysis =
        arithmetic::analyze_queueing(&loads, queued(context), &learned.queueing, &settings, context.compat);
    let finding = analysis.finding.clone().ok();
    learned.queueing = stamped(context, analysis);
    // With learning switched off, learned parameters count however old they are.
    if !policy.tuning {
        return finding;
    }
    // A variant that does not run does not limit the spare capacity of the others.
    let runs = |name: &SmolStr| {
        observations
            .iter()
            .any(|observation| observation.variant.is_active() && observation.variant.name() == name)
    };
    let finding = finding?;
    Some(finding.without_spare_of(|name| runs(name) && !is_recent(context, learned, name)))
}

/// The learned parameters; those that this cycle confirmed get the time.
fn stamped(context: ModelContext<'_>, analysis: QueueingAnalysis) -> LearnedParameters {
    let QueueingAnalysis { mut learned, confirmed, .. } = analysis;
    for (name, parameters) in &mut learned {
        if confirmed.contains(name) {
            parameters.learned_at = Some(context.now);
        }
    }
    learned
}

/// The capacity of a variant's replicas was learned recently enough to lower a number.
fn is_recent(context: ModelContext<'_>, learned: &Learned, variant: &SmolStr) -> bool {
    learned
        .queueing
        .get(variant)
        .is_none_or(|known| (context.inputs.may_lower)(known.learned_at, context.now))
}

fn load(context: ModelContext<'_>, observation: &VariantObservation<'_, '_>) -> VariantLoad {
    let variant = &observation.variant.state.variant;
    let batch = max_sequences(context, observation.variant);
    let observed = |load: quality::EngineLoad<'_, Latencies>| LatencyObservation {
        arrival: (context.inputs.arrivals)(load.arriving(), &|| load.starting()),
        input: load.prompt().unwrap_or(0.0),
        output: load.generated().unwrap_or(0.0),
        ttft: load.first_token().unwrap_or(0.0),
        itl: load.between_tokens().unwrap_or(0.0),
        batch,
    };
    VariantLoad {
        name: variant.id.name.clone(),
        role: variant.role,
        accelerator: variant.accelerator.clone(),
        cost: variant.cost,
        ready: observation.engines(observation.counted.saturating_sub(observation.pending)),
        pending: observation.engines(observation.pending),
        observations: observation.loads().map(observed).collect(),
    }
}

/// The legacy solver's number for each variant, in their order; `None` for a variant without an answer. A number falls only as far as it
/// would with the `busiest` estimate, in which unmeasured pods are as loaded as the busiest measured one.
pub(crate) fn inferno(
    context: ModelContext<'_>,
    observations: &[VariantObservation<'_, '_>],
    busiest: Option<&[VariantObservation<'_, '_>]>,
    learned: &mut Learned,
) -> Option<Vec<Option<Replicas>>> {
    let Some(busiest) = busiest else { return solve(context, observations, learned) };
    let cautious = solve(context, busiest, &mut learned.clone())?;
    let proposed = solve(context, observations, learned)?;
    let numbers = observations.iter().zip(proposed).zip(cautious);
    let numbers = numbers.map(|((observation, proposed), cautious)| {
        let base = observation.variant.scale.base();
        proposed.map(|proposed| proposed.max(cautious.unwrap_or(base).min(base)))
    });
    Some(numbers.collect())
}

/// The solver's answer to what is observed. Its service times are those that the queueing model learns, and a variant keeps its accelerator.
fn solve(
    context: ModelContext<'_>,
    observations: &[VariantObservation<'_, '_>],
    learned: &mut Learned,
) -> Option<Vec<Option<Replicas>>> {
    let (class, latency) = service_class(context)?;
    let loads: Vec<VariantLoad> = observations.iter().map(|observation| load(context, observation)).collect();
    let settings = QueueingSettings { targets: Some(latency), ..QueueingSettings::default() };
    let known = std::mem::take(&mut learned.queueing);
    let analysis = arithmetic::analyze_queueing(&loads, Requests::ZERO, &known, &settings, context.compat);
    learned.queueing = stamped(context, analysis);
    // Without learned service times or a known load there is nothing to solve for.
    let service = |load: &VariantLoad| {
        let parameters = learned.queueing.get(&load.name).filter(|_| (context.inputs.is_load_known)(load));
        parameters.map(|parameters| parameters.service)
    };
    // The scheduler's queue is the model's: each solvable variant drains an equal part of it.
    let solvable = count(loads.iter().filter(|load| service(load).is_some()).count().max(1));
    let queue_rate = queued(context).get() / settings.drain.get() / f64::from(solvable);
    let mut system = System { classes: vec![class], ..System::default() };
    for (observation, load) in observations.iter().zip(&loads) {
        if let Some(service) = service(load) {
            add_server(context, &mut system, observation, load, service, queue_rate);
        }
    }
    let allocations = system.solve();
    let proposals = arithmetic::server_proposals(&system, &allocations, context.compat);
    let number = |(observation, load): (&VariantObservation<'_, '_>, &VariantLoad)| {
        let Some(ServerProposal::Replicas(engines)) = proposals.get(&load.name) else { return None };
        let pods = Replicas::new(engines.get().div_ceil(observation.engines_per_pod));
        let has_arrivals =
            load.observations.iter().any(|engine| engine.arrival.is_some_and(|rate| rate > 0.0));
        // An outdated capacity may raise a number and not lower it. Without arrivals any capacity is enough.
        let is_outdated = has_arrivals && !is_recent(context, learned, &load.name);
        Some(if is_outdated { pods.max(observation.variant.scale.base()) } else { pods })
    };
    Some(observations.iter().zip(&loads).map(number).collect())
}

/// The service class that decides for the model, and its latencies. Of several classes it is the one of the highest priority, because its
/// users are the most demanding.
fn service_class(context: ModelContext<'_>) -> Option<(data::ServiceLevel, Targets)> {
    let model = &context.id.model;
    let target = |class: &ServiceClass| class.targets.iter().find(|target| target.model == *model).cloned();
    let class =
        context.classes.iter().filter(|class| target(class).is_some()).min_by_key(|class| class.priority)?;
    let LatencyTargets { ttft_ms, itl_ms } = target(class)?.latency;
    let latency = Targets::latency(to_f32(ttft_ms), to_f32(itl_ms)).ok()?;
    let targets = vec![(model.clone(), latency)];
    let level = data::ServiceLevel::new(&class.name, i64::from(class.priority), targets).ok()?;
    Some((level, latency))
}

/// Adds a variant as a server on an accelerator of its own, named after the variant, because two variants on the same type of accelerator
/// may have different service times. `queue_rate` is its part of the scheduler's queue, requests/s.
fn add_server(
    context: ModelContext<'_>,
    system: &mut System,
    observation: &VariantObservation<'_, '_>,
    load: &VariantLoad,
    service: Service,
    queue_rate: f64,
) {
    let (state, running) = (observation.variant.state, observation.variant.scale.base());
    let unit = load.accelerator.as_ref().and_then(|name| context.unit_costs.get(name));
    let cost = to_f32(unit.map_or(load.cost, |unit| unit.cost).get());
    let max_batch = match max_sequences(context, observation.variant) {
        0 => Limits::DEFAULT_BATCH,
        known => known,
    };
    let arrival: f64 = load.observations.iter().filter_map(|load| load.arrival).sum();
    let mean = arithmetic::mean_request(&load.observations, context.compat);
    let tokens = |of: fn(&Means) -> f64| mean.as_ref().map_or(0, |mean| truncated_u32(of(mean).round()));
    let (input, output) = (tokens(|mean| mean.input), tokens(|mean| mean.output));
    let name = load.name.clone();
    system.accelerators.push(data::Accelerator {
        name: name.clone(),
        kind: name.clone(),
        multiplicity: 1,
        cost,
    });
    // Pods that show a latency are on nodes, so that the number is known.
    let gpus = state.template.gpus.unwrap_or(1);
    system.performance.push(data::PerformanceProfile {
        model: context.id.model.clone(),
        accelerator: name.clone(),
        units: gpus,
        max_batch,
        at_tokens: output,
        service,
    });
    let replicas_cost = cost * to_f32(gpus.into()) * to_f32(running.get().into());
    system.servers.push(data::Server {
        name: name.clone(),
        class: system.classes.first().map(|class| class.name().clone()).unwrap_or_default(),
        model: context.id.model.clone(),
        load: data::ServerLoad { arrival: to_f32((arrival + queue_rate) * 60.0), input, output },
        min: state.variant.bounds.min,
        max_batch,
        keep_accelerator: true,
        current: Some(data::Current { accelerator: name, replicas: running, cost: replicas_cost }),
    });
}
