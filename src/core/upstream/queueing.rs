//! The queueing-model analyzer. Source: WVA 526ce85 (2026-06), `internal/engines/analyzers/queueingmodel/analyzer.go`.
//!
//! Defects: one filter processes all observations and keeps its last state, rejected or not; the supply is that of the desired replicas, not of the
//! existing ones; starting replicas, roles and thresholds do not count.

use std::collections::BTreeMap;

use crate::analyze::finding::{Finding, Totals, VariantCapacity};
use crate::analyze::queueing::capacity::{self, VariantSizing, arrivals, weighted_means};
use crate::analyze::queueing::learn::{Parameters, parameters};
#[cfg(test)]
use crate::analyze::queueing::model::{Limits, Model, Unsolvable};
use crate::analyze::queueing::model::{RequestLengths, Service};
use crate::analyze::queueing::sizing::{Means, Targets};
use crate::analyze::queueing::tuner::{Environment, Filter, Start, guess};
use crate::analyze::queueing::{
    LatencyObservation, LearnedParameters, QueueingAnalysis, QueueingSettings, VariantLoad, run_cycle,
    variant_capacity,
};
use crate::model::Analyzer;
use crate::units::{Cost, Replicas};

pub(crate) fn analyze(
    loads: &[VariantLoad],
    known: &LearnedParameters,
    settings: &QueueingSettings,
) -> QueueingAnalysis {
    run_cycle(loads, known, settings, learn, means, |learned, _, targets| {
        let size = |load: &VariantLoad| {
            let service = learned.get(&load.name).map(|known| known.service);
            let lengths = means(&load.observations).and_then(|means| means.lengths());
            size(load, service, lengths, targets)
        };
        let sizes: Vec<VariantSizing> = loads.iter().map(size).collect();
        let variants = loads.iter().zip(&sizes).map(|(load, size)| capacity_of(load, *size)).collect();
        Finding {
            analyzer: Analyzer::Saturation,
            score: 1.0,
            live: true,
            total: totals(&sizes),
            roles: BTreeMap::new(),
            variants,
        }
    })
}

/// Cost and accelerator come from an observation, so that a variant without any has none.
fn capacity_of(load: &VariantLoad, size: VariantSizing) -> VariantCapacity {
    let capacity = variant_capacity(load, size);
    if load.observations.is_empty() {
        VariantCapacity { accelerator: None, cost: Cost::ZERO, ..capacity }
    } else {
        capacity
    }
}

/// The parameters after the observations of one cycle. Without any, or if no filter can be built, they stay.
pub(crate) fn learn(stored: Option<&Parameters>, now: &[Environment]) -> Option<Parameters> {
    let learned = now.first().and_then(|first| {
        let mut filter = Filter::new(&start(stored, first), first).ok()?;
        let mut nis = None;
        for observed in now {
            nis = filter.step(observed).nis;
        }
        parameters(&filter, nis)
    });
    learned.or_else(|| stored.cloned())
}

fn start(stored: Option<&Parameters>, first: &Environment) -> Start {
    if let Some(Parameters { service, covariance, .. }) = stored {
        return Start::stored(*service, Some(*covariance));
    }
    let [ttft, itl] = first.latencies();
    let input = f64::from(first.lengths.input);
    let output = f64::from(first.lengths.output);
    guess(ttft, itl, input, output).map_or_else(Start::unknown, Start::guessed)
}

/// A model of one replica. Defect: its own test (1 − p₀ of the solution before, 1 at first, against K) rejects a model with room for a
/// single request.
#[cfg(test)]
pub(crate) fn model(service: Service, lengths: RequestLengths, limits: Limits) -> Result<Model, Unsolvable> {
    let is_single = limits.batch.saturating_add(limits.queue) == 1;
    if is_single && lengths.output >= 1.0 {
        return Err(Unsolvable::SingleState);
    }
    Model::new(service, lengths, limits)
}

/// The capacity of `load`'s variant; unknown without arrivals.
pub(crate) fn size(
    load: &VariantLoad,
    service: Option<Service>,
    lengths: Option<RequestLengths>,
    targets: Targets,
) -> VariantSizing {
    if arrivals(load) <= 0.0 {
        return VariantSizing::unknown("no-load");
    }
    capacity::size(load, service, lengths, targets)
}

/// Means weighted by arrivals; `None` without any.
pub(crate) fn means(observations: &[LatencyObservation]) -> Option<Means> {
    weighted_means(observations.iter().map(|observation| (observation, observation.rate())))
}

/// The replicas that the demand needs, at least 1; `None` without a capacity.
pub(crate) fn desired(size: &VariantSizing) -> Option<Replicas> {
    let desired = Replicas::ceil(size.demand / size.per_replica).max(Replicas::ONE);
    (size.per_replica > 0.0).then_some(desired)
}

pub(crate) fn desired_capacity(size: &VariantSizing) -> f64 {
    desired(size).map_or(0.0, |desired| f64::from(desired.get()) * size.per_replica)
}

#[cfg(test)]
pub(crate) fn desired_utilisation(size: &VariantSizing) -> f64 {
    desired(size).map_or(0.0, |desired| size.demand / f64::from(desired.get()) / size.per_replica)
}

pub(crate) fn totals(sizes: &[VariantSizing]) -> Totals {
    let supply = sizes.iter().fold(0.0, |sum, size| sum + desired_capacity(size));
    let demand = sizes.iter().fold(0.0, |sum, size| sum + size.demand);
    let required = (demand - supply).max(0.0);
    Totals { supply, demand, required, spare: (supply - demand).max(0.0), anticipated: 0.0 }
}
