//! What one replica of a variant carries within the targets, and upstream's sums of it (algorithm reference §5.7).

use super::model::{Limits, Model};
use super::objectives::Means;
use super::service_time::{Service, Shape};
use super::size::Targets;
use super::{Load, Observation};
use crate::analyze::finding::Totals;
use crate::model::Compat;
use crate::units::Replicas;

/// The capacity of one variant, requests/s.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sizing {
    /// μ*: what one replica carries; 0 is not known.
    pub per_replica: f64,
    /// What arrives; 0 where the capacity is not known, so that neither counts.
    pub demand: f64,
    /// How it was found, or why not.
    pub reason: &'static str,
}

impl Sizing {
    pub(super) const fn unknown(reason: &'static str) -> Self {
        Self { per_replica: 0.0, demand: 0.0, reason }
    }

    /// The replicas upstream wants, at least 1; `None` without a capacity.
    #[must_use]
    pub fn wanted(&self) -> Option<Replicas> {
        let wanted = Replicas::ceil(self.demand / self.per_replica).max(Replicas::ONE);
        (self.per_replica > 0.0).then_some(wanted)
    }

    /// Upstream's capacity: that of the wanted replicas, not of those there are.
    #[must_use]
    pub fn wanted_capacity(&self) -> f64 {
        self.wanted().map_or(0.0, |wanted| f64::from(wanted.get()) * self.per_replica)
    }

    /// Demand by upstream's capacity.
    #[must_use]
    pub fn wanted_utilisation(&self) -> f64 {
        self.wanted().map_or(0.0, |wanted| self.demand / f64::from(wanted.get()) / self.per_replica)
    }
}

/// Upstream's sums over the model: no role, nothing anticipated, no thresholds.
#[must_use]
pub fn upstream_totals(sizes: &[Sizing]) -> Totals {
    let supply = sizes.iter().fold(0.0, |sum, size| sum + size.wanted_capacity());
    let demand = sizes.iter().fold(0.0, |sum, size| sum + size.demand);
    let required = (demand - supply).max(0.0);
    Totals { supply, demand, required, spare: (supply - demand).max(0.0), anticipated: 0.0 }
}

/// The capacity of `load`'s variant for requests like `shape`.
#[must_use]
pub fn size(
    load: &Load,
    service: Option<Service>,
    shape: Option<Shape>,
    targets: Targets,
    compat: Compat,
) -> Sizing {
    let demand = load.observations.iter().fold(0.0, |sum, seen| sum + seen.rate());
    if compat.is_upstream() && demand <= 0.0 {
        return Sizing::unknown("no-load");
    }
    let Some(service) = service else { return Sizing::unknown("no-parameters") };
    let Some(shape) = shape else { return Sizing::unknown("no-load") };
    let limits = Limits::sizing(batch(&load.observations));
    let sized = Model::new(service, shape, limits, compat).and_then(|mut model| model.size(targets));
    match sized {
        Ok(size) if size.at.throughput > 0.0 => {
            Sizing { per_replica: f64::from(size.at.throughput), demand, reason: "sized" }
        }
        _ => Sizing::unknown("target-unreachable"),
    }
}

/// N: the first that a replica tells, else the default.
pub(super) fn batch(observations: &[Observation]) -> u32 {
    let told = observations.iter().map(|seen| seen.batch).find(|batch| *batch > 0);
    told.unwrap_or(Limits::DEFAULT_BATCH)
}

/// Means weighted by arrivals over the replicas that have any. Ours leaves out a replica that tells no length of its
/// answers, and without any load takes those that still tell one, unweighted. `None` without either.
#[must_use]
pub fn means(observations: &[Observation], compat: Compat) -> Option<Means> {
    let loads = observations.iter().map(|seen| (seen, seen.rate()));
    if compat.is_upstream() {
        return weighted(loads);
    }
    let tells = |seen: &Observation| seen.output.is_finite() && seen.output >= 1.0 && seen.input.is_finite();
    weighted(loads.filter(|(seen, _)| tells(seen)))
        .or_else(|| weighted(observations.iter().filter(|seen| tells(seen)).map(|seen| (seen, 1.0))))
}

fn weighted<'a>(all: impl Iterator<Item = (&'a Observation, f64)> + Clone) -> Option<Means> {
    let seen = all.filter(|(_, weight)| *weight > 0.0);
    let weights: f64 = seen.clone().map(|(_, weight)| weight).sum();
    let mean = |of: fn(&Observation) -> f64| {
        seen.clone().map(|(seen, weight)| weight * of(seen)).sum::<f64>() / weights
    };
    (weights > 0.0).then(|| Means {
        input: mean(|seen| seen.input),
        output: mean(|seen| seen.output),
        ttft: mean(|seen| seen.ttft),
        itl: mean(|seen| seen.itl),
    })
}
