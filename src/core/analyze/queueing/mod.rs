//! The queueing-model analyzer: how many requests/s one replica carries within its latency targets, and so how many replicas the load needs.
//! [`analyze`] is the entry point; the parts are public for comparison with upstream. Derived from WVA 526ce85 (2026-06),
//! `internal/engines/analyzers/queueingmodel`. `docs/decisions/queueing-model.md` says what differs.

mod birth_death;
pub(crate) mod capacity;
mod fit;
mod input;
pub(crate) mod learn;
pub(crate) mod matrix;
pub(crate) mod model;
pub(crate) mod sizing;
pub(crate) mod tuner;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use smol_str::SmolStr;

pub(crate) use input::{LatencyObservation, QueueingSettings, VariantLoad};

use self::capacity::{VariantSizing, batch, means};
use self::learn::Parameters;
use self::model::RequestLengths;
use self::sizing::{Means, Targets, fallback, inferred, larger};
use self::tuner::Environment;
use super::finding::{Finding, Totals, VariantCapacity};
use crate::model::Analyzer;
use crate::units::{Requests, to_f32};

/// The model has no targets: none given, no parameters learned, and no latencies measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no targets of latency: none are given, none can be inferred, and no latency is seen")]
pub(crate) struct NoTargets;

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct QueueingAnalysis {
    /// What is known of the variants, for the next cycle.
    pub learned: LearnedParameters,
    /// The variants of which an observation was accepted in this cycle.
    pub confirmed: BTreeSet<SmolStr>,
    pub targets: Option<Targets>,
    pub finding: Result<Finding, NoTargets>,
}

/// By variant name.
pub(crate) type LearnedParameters = BTreeMap<SmolStr, Parameters>;

/// Analyzes one model: learns, chooses targets, and sizes each variant. `queued` are the requests in the scheduler's queue.
pub(crate) fn analyze(
    loads: &[VariantLoad],
    queued: Requests,
    known: &LearnedParameters,
    settings: &QueueingSettings,
) -> QueueingAnalysis {
    run_cycle(loads, known, settings, learn::learn, means, |learned, model_means, targets| {
        let capacity = |load: &VariantLoad| {
            let service = learned.get(&load.name).map(|known| known.service);
            // A variant without requests of its own is sized for the mean request of the model, which it would get.
            let lengths = means(&load.observations).or(model_means).and_then(|means| means.lengths());
            variant_capacity(load, capacity::size(load, service, lengths, targets))
        };
        finding(loads, loads.iter().map(capacity).collect(), queued, settings)
    })
}

/// One cycle of either arithmetic: learns, takes the model's `means`, chooses targets, and lets `find` size the variants.
pub(crate) fn run_cycle(
    loads: &[VariantLoad],
    known: &LearnedParameters,
    settings: &QueueingSettings,
    learn: fn(Option<&Parameters>, &[Environment]) -> Option<Parameters>,
    means: fn(&[LatencyObservation]) -> Option<Means>,
    find: impl FnOnce(&LearnedParameters, Option<Means>, Targets) -> Finding,
) -> QueueingAnalysis {
    let mut learned = BTreeMap::new();
    let mut confirmed = BTreeSet::new();
    for load in loads {
        let now = if settings.tuning { environments(&load.observations) } else { Vec::new() };
        if let Some(parameters) = learn(known.get(&load.name), &now) {
            if !now.is_empty() && parameters.rejections == 0 {
                confirmed.insert(load.name.clone());
            }
            learned.insert(load.name.clone(), parameters);
        }
    }
    let everywhere: Vec<LatencyObservation> =
        loads.iter().flat_map(|load| &load.observations).copied().collect();
    let means = means(&everywhere);
    let targets = choose_targets(settings, loads, &learned, means);
    let finding = targets.map(|targets| find(&learned, means, targets)).ok_or(NoTargets);
    QueueingAnalysis { learned, confirmed, targets, finding }
}

fn environments(observations: &[LatencyObservation]) -> Vec<Environment> {
    let batch = batch(observations);
    let environment = |observation: &LatencyObservation| {
        let lengths = RequestLengths::new(to_f32(observation.input), to_f32(observation.output)).ok()?;
        let environment = Environment {
            rate: to_f32(observation.rate() * 60.0),
            lengths,
            batch,
            ttft: to_f32(observation.ttft * 1000.0),
            itl: to_f32(observation.itl * 1000.0),
        };
        environment.validated()
    };
    observations.iter().filter_map(environment).collect()
}

/// The user's targets; else the largest that the variants' parameters give; else the measured latencies with headroom.
fn choose_targets(
    settings: &QueueingSettings,
    loads: &[VariantLoad],
    learned: &LearnedParameters,
    means: Option<Means>,
) -> Option<Targets> {
    if let Some(given) = settings.targets {
        return Some(given);
    }
    let means = means?;
    let services = loads.iter().filter_map(|load| Some(learned.get(&load.name)?.service));
    let targets = services.filter_map(|service| inferred(service, &means, settings.multiplier));
    targets.reduce(larger).or_else(|| fallback(&means))
}

pub(crate) fn variant_capacity(load: &VariantLoad, size: VariantSizing) -> VariantCapacity {
    VariantCapacity {
        name: load.name.clone(),
        role: load.role,
        accelerator: load.accelerator.clone(),
        cost: load.cost,
        replicas: load.ready,
        pending: load.pending,
        per_replica: size.per_replica,
        demand: size.demand,
        reason: SmolStr::new_static(size.reason),
    }
}

fn finding(
    loads: &[VariantLoad],
    variants: Vec<VariantCapacity>,
    queued: Requests,
    settings: &QueueingSettings,
) -> Finding {
    let drain = settings.drain.get();
    let queue_rate = if drain > 0.0 { queued.get() / drain } else { 0.0 };
    let (total, roles) = Totals::by_role(&variants, |role| {
        let known = variants.iter().filter(|variant| variant.per_replica > 0.0 && variant.is_of(role));
        let totals = totals(known, queue_rate).apply_thresholds(settings.up, settings.down);
        // The demand of a partly measured variant is a lower bound: nothing is spare.
        let is_partial =
            loads.iter().any(|load| role.is_none_or(|role| load.role == role) && load.is_partial());
        if is_partial { Totals { spare: 0.0, ..totals } } else { totals }
    });
    let live = variants.iter().any(|variant| variant.per_replica > 0.0);
    Finding { analyzer: Analyzer::QueueingModel, score: settings.score, live, total, roles, variants }
}

/// The sums over variants of known capacity, with the queue. Zero if no capacity is known: then nobody can say how many
/// replicas the queue needs.
fn totals<'a>(known: impl Iterator<Item = &'a VariantCapacity>, queue_rate: f64) -> Totals {
    let add = |totals: Option<Totals>, variant: &VariantCapacity| {
        let mut totals = totals.unwrap_or(Totals { demand: queue_rate, ..Totals::default() });
        totals.add_capacity(variant);
        totals.demand += variant.demand;
        Some(totals)
    };
    known.fold(None, add).unwrap_or_default()
}
