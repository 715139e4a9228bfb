//! The capacity of a replica within the latency targets.

use super::input::{LatencyObservation, VariantLoad};
use super::model::{Limits, Model, RequestLengths, Service};
use super::sizing::{Means, Targets};

/// The capacity of one variant, requests/s.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct VariantSizing {
    /// μ*: what one replica carries; 0 is unknown.
    pub per_replica: f64,
    /// What arrives; 0 if the capacity is unknown, so that neither counts.
    pub demand: f64,
    pub reason: &'static str,
}

impl VariantSizing {
    pub(crate) const fn unknown(reason: &'static str) -> Self {
        Self { per_replica: 0.0, demand: 0.0, reason }
    }
}

pub(crate) fn arrivals(load: &VariantLoad) -> f64 {
    load.observations.iter().fold(0.0, |sum, observation| sum + observation.rate())
}

pub(crate) fn size(
    load: &VariantLoad,
    service: Option<Service>,
    lengths: Option<RequestLengths>,
    targets: Targets,
) -> VariantSizing {
    let Some(service) = service else { return VariantSizing::unknown("no-parameters") };
    let Some(lengths) = lengths else { return VariantSizing::unknown("no-load") };
    let limits = Limits::sizing(batch(&load.observations));
    match Model::new(service, lengths, limits).and_then(|mut model| model.size(targets)) {
        Ok(size) if size.at.throughput > 0.0 => VariantSizing {
            per_replica: f64::from(size.at.throughput),
            demand: arrivals(load),
            reason: "sized",
        },
        _ => VariantSizing::unknown("target-unreachable"),
    }
}

/// N: the first that an engine shows, or else the default.
pub(crate) fn batch(observations: &[LatencyObservation]) -> u32 {
    let batch = observations.iter().map(|observation| observation.batch).find(|batch| *batch > 0);
    batch.unwrap_or(Limits::DEFAULT_BATCH)
}

/// Means weighted by arrivals, over the engines that show the length of their answers; without arrivals their plain means. `None` if no
/// engine shows it.
pub(crate) fn means(observations: &[LatencyObservation]) -> Option<Means> {
    let has_lengths = |observation: &&LatencyObservation| {
        observation.output.is_finite() && observation.output >= 1.0 && observation.input.is_finite()
    };
    let engines = || observations.iter().filter(has_lengths);
    weighted_means(engines().map(|observation| (observation, observation.rate())))
        .or_else(|| weighted_means(engines().map(|observation| (observation, 1.0))))
}

/// `None` if no weight is above 0.
pub(crate) fn weighted_means<'a>(
    observations: impl Iterator<Item = (&'a LatencyObservation, f64)> + Clone,
) -> Option<Means> {
    let weighted = observations.filter(|(_, weight)| *weight > 0.0);
    let weights: f64 = weighted.clone().map(|(_, weight)| weight).sum();
    let mean = |value: fn(&LatencyObservation) -> f64| {
        weighted.clone().map(|(observation, weight)| weight * value(observation)).sum::<f64>() / weights
    };
    (weights > 0.0).then(|| Means {
        input: mean(|observation| observation.input),
        output: mean(|observation| observation.output),
        ttft: mean(|observation| observation.ttft),
        itl: mean(|observation| observation.itl),
    })
}
