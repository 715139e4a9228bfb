//! The queueing-model analyzer: how many requests a second one replica carries within its objectives of latency, and
//! so how many replicas the load takes. [`analyze`] is the whole of it; the parts are public for comparison with
//! upstream. What is ours and what is upstream's: `docs/decisions/queueing-model.md`.

mod birth_death;
pub mod capacity;
mod fit;
pub mod learn;
mod matrix;
pub mod model;
pub mod objectives;
pub mod service_time;
pub mod size;
pub mod tuner;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use self::capacity::{Sizing, batch, means, upstream_totals};
use self::learn::Parameters;
use self::objectives::{DEFAULT_MULTIPLIER, Means, fallback, inferred, larger};
use self::service_time::Shape;
use self::size::Targets;
use self::tuner::Environment;
use super::finding::{Capacity, Finding, Totals};
use crate::model::{Analyzer, Compat, Role};
use crate::units::{Cost, Replicas, Requests, Seconds, count};
use smol_str::SmolStr;

/// What one serving process shows; 0 is not known, except for the arrivals.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Observation {
    /// Requests/s that the scheduler sends it; `None` is not known, which upstream takes for 0.
    pub arrival: Option<f64>,
    /// Mean tokens of a prompt.
    pub input: f64,
    /// Mean generated tokens of a request.
    pub output: f64,
    /// Mean time to first token, s.
    pub ttft: f64,
    /// Mean time between tokens, s.
    pub itl: f64,
    /// Most requests in its batch.
    pub batch: u32,
}

impl Observation {
    /// Its arrivals; 0 for what is no rate.
    pub(super) fn rate(&self) -> f64 {
        self.arrival.filter(|rate| rate.is_finite() && *rate > 0.0).unwrap_or(0.0)
    }
}

/// One variant and what its replicas show.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Its name.
    pub name: SmolStr,
    /// Its role.
    pub role: Role,
    /// Its accelerator, when one is known.
    pub accelerator: Option<SmolStr>,
    /// What a replica costs.
    pub cost: Cost,
    /// Replicas that serve.
    pub ready: Replicas,
    /// Those still starting.
    pub pending: Replicas,
    /// One for each serving process, in order.
    pub observations: Vec<Observation>,
}

impl Load {
    /// Some of its replicas show no arrivals: what they carry is not known to be nothing.
    fn is_partial(&self) -> bool {
        let seen = self.observations.iter().filter(|seen| seen.arrival.is_some());
        count(seen.count()) < self.ready.get().max(count(self.observations.len()))
    }
}

/// How a model is analyzed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// The user's targets for this model, TTFT and ITL; `None` infers them.
    pub targets: Option<Targets>,
    /// m: how much longer an iteration may be than an empty replica's; not above 1 is the default.
    pub multiplier: f64,
    /// Learn from this cycle's observations.
    pub tuning: bool,
    /// Utilisation to scale up at; 0 or less never does.
    pub up: f64,
    /// Utilisation to scale down below; 0 or less never does.
    pub down: f64,
    /// The weight among the analyzers.
    pub score: f64,
    /// What waits in the scheduler is to be served within this time, beside what arrives; 0 leaves it out. The default is
    /// two of the HPA's periods: a backlog that stays asks for replicas, a burst that is gone by the next look does not.
    pub drain: Seconds,
}

impl Default for Settings {
    fn default() -> Self {
        let (up, down) = (0.85, 0.70);
        let drain = Seconds::whole(30);
        Self { targets: None, multiplier: DEFAULT_MULTIPLIER, tuning: true, up, down, score: 1.0, drain }
    }
}

/// The model has no targets: none given, no parameters and no latencies seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no targets of latency: none are given, none can be inferred, and no latency is seen")]
pub struct NoTargets;

/// What came of one cycle.
#[derive(Debug, Clone, PartialEq)]
pub struct Analysis {
    /// The parameters of the variants, to be given to the next cycle.
    pub learned: BTreeMap<SmolStr, Parameters>,
    /// The variants of which an observation was accepted in this cycle.
    pub confirmed: BTreeSet<SmolStr>,
    /// The targets that held.
    pub targets: Option<Targets>,
    /// What is missing and what is spare, in requests/s.
    pub finding: Result<Finding, NoTargets>,
}

/// Analyzes one model: learns, chooses targets, sizes each variant. `queued` are the requests that wait in the
/// scheduler.
#[must_use]
pub fn analyze(
    loads: &[Load],
    queued: Requests,
    known: &BTreeMap<SmolStr, Parameters>,
    settings: &Settings,
    compat: Compat,
) -> Analysis {
    let (mut learned, mut confirmed) = (BTreeMap::new(), BTreeSet::new());
    for load in loads {
        let stored = known.get(&load.name);
        let now = if settings.tuning { environments(&load.observations) } else { Vec::new() };
        if let Some(parameters) = learn::learn(stored, &now, compat) {
            if !now.is_empty() && parameters.refused == 0 {
                confirmed.insert(load.name.clone());
            }
            learned.insert(load.name.clone(), parameters);
        }
    }
    let everywhere: Vec<Observation> = loads.iter().flat_map(|load| &load.observations).copied().collect();
    let model_means = means(&everywhere, compat);
    let Some(targets) = targets(settings, loads, &learned, model_means) else {
        return Analysis { learned, confirmed, targets: None, finding: Err(NoTargets) };
    };
    let sizes: Vec<Sizing> = loads
        .iter()
        .map(|load| {
            let service = learned.get(&load.name).map(|known| known.service);
            capacity::size(load, service, shape(load, model_means, compat), targets, compat)
        })
        .collect();
    let finding = finding(loads, &sizes, queued, settings, compat);
    Analysis { learned, confirmed, targets: Some(targets), finding: Ok(finding) }
}

/// What a filter can learn from.
fn environments(observations: &[Observation]) -> Vec<Environment> {
    let batch = batch(observations);
    let environment = |seen: &Observation| {
        let shape = Shape::new(seen.input as f32, seen.output as f32).ok()?;
        let (ttft, itl) = ((seen.ttft * 1000.0) as f32, (seen.itl * 1000.0) as f32);
        Environment { rate: (seen.rate() * 60.0) as f32, shape, batch, ttft, itl }.valid()
    };
    observations.iter().filter_map(environment).collect()
}

/// The requests a variant is sized for: its own; ours lets a variant without any stand for the model's, since these
/// are what it would get.
fn shape(load: &Load, model: Option<Means>, compat: Compat) -> Option<Shape> {
    let own = means(&load.observations, compat);
    own.or(if compat.is_upstream() { None } else { model })?.shape()
}

fn targets(
    settings: &Settings,
    loads: &[Load],
    learned: &BTreeMap<SmolStr, Parameters>,
    means: Option<Means>,
) -> Option<Targets> {
    if let Some(given) = settings.targets {
        return Some(given);
    }
    let means = means?;
    let services = loads.iter().filter_map(|load| Some(learned.get(&load.name)?.service));
    let found = services.filter_map(|service| inferred(service, &means, settings.multiplier)).reduce(larger);
    found.or_else(|| fallback(&means))
}

fn finding(
    loads: &[Load],
    sizes: &[Sizing],
    queued: Requests,
    settings: &Settings,
    compat: Compat,
) -> Finding {
    let capacity = |(load, size): (&Load, &Sizing)| {
        // Upstream takes cost and accelerator from an observation, and has none without.
        let named = !compat.is_upstream() || !load.observations.is_empty();
        Capacity {
            name: load.name.clone(),
            role: load.role,
            accelerator: if named { load.accelerator.clone() } else { None },
            cost: if named { load.cost } else { Cost::ZERO },
            replicas: load.ready,
            pending: load.pending,
            per_replica: size.per_replica,
            demand: size.demand,
            reason: SmolStr::new_static(size.reason),
        }
    };
    let variants: Vec<Capacity> = loads.iter().zip(sizes).map(capacity).collect();
    if compat.is_upstream() {
        let (analyzer, total) = (Analyzer::Saturation, upstream_totals(sizes));
        return Finding { analyzer, score: 1.0, live: true, total, roles: BTreeMap::new(), variants };
    }
    let drain = settings.drain.get();
    let waiting = if drain > 0.0 { queued.get() / drain } else { 0.0 };
    let sums = |role: Option<Role>| {
        let within = |of: Role| role.is_none_or(|role| of == role);
        let known = variants.iter().filter(|one| one.per_replica > 0.0 && within(one.role));
        let sums = totals(known, waiting).judged(settings.up, settings.down);
        let partial = loads.iter().any(|load| within(load.role) && load.is_partial());
        if partial { Totals { spare: 0.0, ..sums } } else { sums }
    };
    let mut roles: BTreeMap<Role, Totals> = BTreeMap::new();
    if variants.iter().any(|one| one.role != Role::Both) {
        roles.extend(variants.iter().map(|one| (one.role, sums(Some(one.role)))));
    }
    let live = variants.iter().any(|one| one.per_replica > 0.0);
    let (analyzer, score, total) = (Analyzer::QueueingModel, settings.score, sums(None));
    Finding { analyzer, score, live, total, roles, variants }
}

/// The sums over variants of known capacity, with what waits for them. Nothing without any: there would be no telling
/// what the queue takes.
fn totals<'a>(known: impl Iterator<Item = &'a Capacity>, waiting: f64) -> Totals {
    let add = |sums: Option<Totals>, one: &Capacity| {
        let sums = sums.unwrap_or(Totals { demand: waiting, ..Totals::default() });
        let all = one.replicas.get().saturating_add(one.pending.get());
        Some(Totals {
            supply: sums.supply + one.total(),
            anticipated: sums.anticipated + f64::from(all) * one.per_replica,
            demand: sums.demand + one.demand,
            ..sums
        })
    };
    known.fold(None, add).unwrap_or_default()
}
