//! Runs the latency analyzers for a decision: the queueing model, and the legacy solver with its parameters.

use smol_str::SmolStr;

use super::observation::{AnalyzerInput, VariantObservation, queued};
use super::sequences::max_sequences;
use crate::analyze::finding::Finding;
use crate::analyze::inferno::{ServerProposal, System, data};
use crate::analyze::queueing::model::Service;
use crate::analyze::queueing::sizing::{Means, Targets};
use crate::analyze::queueing::{
    LatencyObservation, LearnedParameters, QueueingAnalysis, QueueingSettings, VariantLoad,
};
use crate::arithmetic;
use crate::decide::context::ModelContext;
use crate::memory::Learned;
use crate::model::{LatencyTargets, ServiceClass};
use crate::moment::may_lower;
use crate::quality;
use crate::quality::analyzer_signals::Latencies;
use crate::units::{Replicas, Requests, count, to_f32, truncated_u32};

/// The finding of the queueing model; `None` while the latencies to keep are unknown.
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
    // With learning switched off, what was learned before counts, however old it is.
    if context.compat.is_upstream() || !policy.tuning {
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

/// The learned parameters, with their time.
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
    learned.queueing.get(variant).is_none_or(|known| may_lower(known.learned_at, context.now))
}

fn load(context: ModelContext<'_>, observation: &VariantObservation<'_, '_>) -> VariantLoad {
    let variant = &observation.variant.state.variant;
    let batch = max_sequences(context, observation.variant);
    // Without a scheduler (ours) first tokens stand for arrivals: they differ from them by what waits.
    let arrival = |load: &quality::EngineLoad<'_, Latencies>| {
        load.arriving().or_else(|| if context.compat.is_upstream() { None } else { load.starting() })
    };
    let observed = |load: quality::EngineLoad<'_, Latencies>| LatencyObservation {
        arrival: arrival(&load),
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
        ready: observation.engines(context, observation.counted.saturating_sub(observation.pending)),
        pending: observation.engines(context, observation.pending),
        observations: observation.loads().map(observed).collect(),
    }
}

/// What the legacy solver wants of each variant, in their order; `None` of one it has no answer for. Fewer replicas only
/// where that would do with what `busiest` sees, too: pods that are not measured as loaded as the busiest that is.
pub(crate) fn inferno(
    context: ModelContext<'_>,
    observations: &[VariantObservation<'_, '_>],
    busiest: Option<&[VariantObservation<'_, '_>]>,
    learned: &mut Learned,
) -> Option<Vec<Option<Replicas>>> {
    let Some(busiest) = busiest else { return solve(context, observations, learned) };
    let cautious = solve(context, busiest, &mut learned.clone())?;
    let wanted = solve(context, observations, learned)?;
    let numbers = observations.iter().zip(wanted).zip(cautious).map(|((observation, wanted), cautious)| {
        let base = observation.variant.scale.base();
        wanted.map(|wanted| wanted.max(cautious.unwrap_or(base).min(base)))
    });
    Some(numbers.collect())
}

/// The solver's answer to what is observed. Service times are those the queueing model learns; a variant stays on its accelerator.
fn solve(
    context: ModelContext<'_>,
    observations: &[VariantObservation<'_, '_>],
    learned: &mut Learned,
) -> Option<Vec<Option<Replicas>>> {
    let targets = |class: &ServiceClass| {
        class.targets.iter().find(|targets| targets.model == context.id.model).cloned()
    };
    // Of several classes with this model the most demanding user decides: the one of the highest priority.
    let promised = context.classes.iter().filter(|class| targets(class).is_some());
    let class = promised.min_by_key(|class| class.priority)?;
    let LatencyTargets { ttft_ms, itl_ms } = targets(class)?.latency;
    let latency = Targets::latency(to_f32(ttft_ms), to_f32(itl_ms)).ok()?;
    let promise = vec![(context.id.model.clone(), latency)];
    let loads: Vec<VariantLoad> = observations.iter().map(|observation| load(context, observation)).collect();
    let settings = QueueingSettings { targets: Some(latency), ..QueueingSettings::default() };
    let known = std::mem::take(&mut learned.queueing);
    let analysis = arithmetic::analyze_queueing(&loads, Requests::ZERO, &known, &settings, context.compat);
    learned.queueing = stamped(context, analysis);
    let answers =
        |load: &&VariantLoad| learned.queueing.contains_key(&load.name) && has_known_load(context, load);
    let share = queued(context).get()
        / settings.drain.get()
        / f64::from(count(loads.iter().filter(answers).count().max(1)));
    let class = data::ServiceLevel::new(&class.name, i64::from(class.priority), promise).ok()?;
    let mut system = System { classes: vec![class], ..System::default() };
    for (observation, load) in observations.iter().zip(&loads) {
        if let Some(parameters) = learned.queueing.get(&load.name).filter(|_| has_known_load(context, load)) {
            add(context, &mut system, observation, load, parameters.service, share);
        }
    }
    let allocations = system.solve();
    let wanted = arithmetic::server_proposals(&system, &allocations, context.compat);
    let number =
        |(observation, load): (&VariantObservation<'_, '_>, &VariantLoad)| match wanted.get(&load.name) {
            Some(ServerProposal::Replicas(number)) if context.compat.is_upstream() => Some(*number),
            Some(ServerProposal::Replicas(number)) => {
                Some(Replicas::new(number.get().div_ceil(observation.engines_per_pod())))
            }
            Some(ServerProposal::Hold) | None => None,
        };
    let asked =
        |load: &VariantLoad| load.observations.iter().any(|load| load.arrival.is_some_and(|rate| rate > 0.0));
    let number = |(observation, load): (&VariantObservation<'_, '_>, &VariantLoad)| {
        let wanted = number((observation, load))?;
        let old = !context.compat.is_upstream() && asked(load) && !is_recent(context, learned, &load.name);
        Some(if old { wanted.max(observation.variant.scale.base()) } else { wanted })
    };
    Some(observations.iter().zip(&loads).map(number).collect())
}

/// Its load is known; an unknown load is not taken for none (ours).
fn has_known_load(context: ModelContext<'_>, load: &VariantLoad) -> bool {
    let arriving = load.observations.iter().map(|load| load.arrival);
    let known = !load.observations.is_empty() && arriving.clone().all(|rate| rate.is_some());
    let busy = arriving.flatten().any(|rate| rate > 0.0);
    let sized = load.observations.iter().any(|load| load.output >= 1.0);
    context.compat.is_upstream() || (known && (sized || !busy))
}

/// Adds one variant as a server on an accelerator of its own, which is named as the variant is: two variants on one type
/// may be served differently fast.
fn add(
    context: ModelContext<'_>,
    system: &mut System,
    observation: &VariantObservation<'_, '_>,
    load: &VariantLoad,
    service: Service,
    queued: f64,
) {
    let (state, running) = (observation.variant.state, observation.variant.scale.base());
    let unit = load.accelerator.as_ref().and_then(|name| context.unit_costs.get(name));
    let cost = to_f32(unit.map_or(load.cost, |unit| unit.cost).get());
    let max_batch = match max_sequences(context, observation.variant) {
        0 => DEFAULT_BATCH,
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
    system.performance.push(data::PerformanceProfile {
        model: context.id.model.clone(),
        accelerator: name.clone(),
        units: state.template.gpus,
        max_batch,
        at_tokens: output,
        service,
    });
    let replicas_cost = cost * to_f32(state.template.gpus.into()) * to_f32(running.get().into());
    system.servers.push(data::Server {
        name: name.clone(),
        class: system.classes.first().map(|class| class.name().clone()).unwrap_or_default(),
        model: context.id.model.clone(),
        load: data::ServerLoad { arrival: to_f32((arrival + queued) * 60.0), input, output },
        min: state.variant.bounds.min,
        max_batch,
        keep_accelerator: true,
        current: Some(data::Current { accelerator: name, replicas: running, cost: replicas_cost }),
    });
}

/// Requests that an engine runs at once when its arguments do not say: vLLM's own default.
const DEFAULT_BATCH: u32 = 256;
