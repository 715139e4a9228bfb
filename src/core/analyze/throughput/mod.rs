//! The throughput analyzer: the demand in generated tokens/s against what the replicas can generate. Derived from WVA v0.9,
//! `internal/engines/analyzers/throughput`. `docs/decisions/throughput.md` explains the arithmetic on one page, and what differs from
//! upstream.
//!
//! What a full replica can generate follows from a line of latency over KV-cache usage, which is learned: each call of [`analyze`] adds
//! samples, so it is called once a cycle.

pub(crate) mod calibration;
mod input;
mod latency_line;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use smol_str::SmolStr;

pub(crate) use calibration::{Calibration, DEFAULT_INTERCEPT, ThroughputMemory};
pub(crate) use input::{
    RequestShape, ThroughputInput, ThroughputObservation, ThroughputSettings, ThroughputVariant,
};
pub(crate) use latency_line::{FULL, LatencyLine};

use self::calibration::Tier;
use super::finding::{Finding, Totals, VariantCapacity};
use crate::model::{Analyzer, Role};
use crate::units::{Replicas, Requests, count, to_f64};

/// The queue should drain within the time in which a request generates this many answers (upstream's constant).
const DRAIN_GENERATIONS: f64 = 2.0;
/// With shorter answers, in tokens, the demand of a variant is not estimated from its running requests (upstream's constant).
const MIN_LOCAL_GENERATION: f64 = 20.0;

/// What was found of one model, in generated tokens a second.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ThroughputAnalysis {
    /// Supply, demand, what is missing and what is spare.
    pub finding: Finding,
    pub lines: BTreeMap<SmolStr, LatencyLine>,
}

pub(crate) struct Resolved {
    pub(crate) capacity: VariantCapacity,
    line: LatencyLine,
    /// Its mean generation, tokens.
    generated: f64,
}

/// Analyzes one model: learns from what its engines show, then compares supply and demand.
#[must_use]
pub(crate) fn analyze(input: &ThroughputInput, memory: &mut ThroughputMemory) -> ThroughputAnalysis {
    memory.forget(input.now);
    let mut resolved = Vec::new();
    let mut is_supply_known = true;
    for variant in &input.variants {
        let found = resolve(input.now, variant, memory, Calibration::observe, Calibration::line);
        let serving = found.as_ref().map_or(Replicas::ZERO, |found| found.capacity.replicas);
        is_supply_known &= variant.role == Role::Prefill || serving >= variant.ready;
        resolved.extend(found);
    }
    // If replicas work although nothing arrives, arrivals are not measured; the demand is not zero.
    let is_demand_known = arrival(input).is_some_and(|rate| rate > 0.0 || !is_busy(input));
    if !resolved.is_empty() && is_demand_known {
        memory.informative = Some(input.now);
    }
    // If the supply of some ready replica is unknown, the sum is a lower bound: what seems missing may be there. If arrivals are unknown, the
    // demand is a lower bound: what seems spare may be needed.
    ThroughputAnalysis::new(input, resolved, memory, |totals| Totals {
        required: if is_supply_known { totals.required } else { 0.0 },
        spare: if is_demand_known { totals.spare } else { 0.0 },
        ..totals
    })
}

fn is_busy(input: &ThroughputInput) -> bool {
    let mut engines = input.variants.iter().flat_map(|variant| &variant.engines);
    input.queue > Requests::ZERO || engines.any(ThroughputObservation::is_busy)
}

/// Requests a second; `None` if they were not measured.
fn arrival(input: &ThroughputInput) -> Option<f64> {
    input.arrival.filter(|rate| rate.is_finite() && *rate >= 0.0)
}

/// Chooses a line by what was learned and by what the healthy engines show.
pub(crate) type ChooseLine =
    fn(&mut Calibration, Timestamp, &[&ThroughputObservation]) -> Option<(LatencyLine, Tier)>;

/// The capacity of one variant; `None` if it is not known. `observe` adds what the healthy engines show, and `line` chooses a line.
pub(crate) fn resolve(
    now: Timestamp,
    variant: &ThroughputVariant,
    memory: &mut ThroughputMemory,
    observe: fn(&mut Calibration, Timestamp, &[&ThroughputObservation]),
    line: ChooseLine,
) -> Option<Resolved> {
    if variant.engines.is_empty() {
        return None;
    }
    let calibration = memory.calibration(&variant.name, now);
    let healthy: Vec<&ThroughputObservation> =
        variant.engines.iter().filter(|engine| engine.is_healthy()).collect();
    observe(calibration, now, &healthy);
    let shape = calibration.shape()?;
    let (line, tier) = line(calibration, now, &healthy)?;
    let resolved = Resolved::new(variant, line, tier, shape)?;
    calibration.verify(line, shape, &healthy);
    Some(resolved)
}

impl Resolved {
    /// `None` if no engine shows the size of its KV cache.
    fn new(variant: &ThroughputVariant, line: LatencyLine, tier: Tier, shape: RequestShape) -> Option<Self> {
        let full_rate = |engine: &ThroughputObservation| {
            FULL * to_f64(engine.capacity) / shape.resident() / line.at(FULL)
        };
        let sized = variant.engines.iter().filter(|engine| engine.capacity > 0);
        let rates: Vec<f64> = sized.map(full_rate).collect();
        let serving = count(rates.len());
        let per_replica = rates.iter().sum::<f64>() / f64::from(serving);
        if !per_replica.is_finite() || per_replica <= 0.0 {
            return None;
        }
        let capacity = VariantCapacity {
            name: variant.name.clone(),
            role: variant.role,
            accelerator: variant.accelerator.clone(),
            cost: variant.cost,
            replicas: Replicas::new(serving),
            pending: variant.pending,
            per_replica,
            demand: variant_demand(variant, line, shape),
            reason: SmolStr::new_static(tier.label()),
        };
        Some(Self { capacity, line, generated: shape.generated })
    }
}

/// The demand of one variant, for the report only: by its arrivals, or else by the requests it finishes, or else by those that run.
fn variant_demand(variant: &ThroughputVariant, line: LatencyLine, shape: RequestShape) -> f64 {
    let tokens = |rate: fn(&ThroughputObservation) -> f64| -> f64 {
        let engines = variant.engines.iter();
        engines.map(|engine| rate(engine).max(0.0) * engine.generated.max(0.0)).sum()
    };
    let arriving = tokens(|engine| engine.arriving);
    if arriving > 0.0 {
        return arriving;
    }
    let finished = tokens(|engine| engine.finished);
    if finished > 0.0 {
        return finished;
    }
    if shape.generated <= MIN_LOCAL_GENERATION {
        return 0.0;
    }
    let is_running =
        |engine: &&ThroughputObservation| engine.kv > 0.0 && engine.kv <= 1.0 && engine.capacity > 0;
    let running = variant.engines.iter().filter(is_running);
    running.map(|engine| engine.predicted_rate(line, shape)).sum()
}

impl ThroughputAnalysis {
    /// Compares supply and demand. `limit` keeps the part of missing and spare capacity that is certain.
    pub(crate) fn new(
        input: &ThroughputInput,
        resolved: Vec<Resolved>,
        memory: &ThroughputMemory,
        limit: impl Fn(Totals) -> Totals,
    ) -> Self {
        let ThroughputSettings { up, down, score, period } = input.settings;
        let demand = demand(&resolved, arrival(input).unwrap_or(0.0), input.queue);
        let lines = resolved.iter().map(|variant| (variant.capacity.name.clone(), variant.line)).collect();
        let variants: Vec<VariantCapacity> = resolved.into_iter().map(|variant| variant.capacity).collect();
        let live = memory.is_live(input.now, period);
        let generating: BTreeSet<Role> =
            variants.iter().map(|variant| variant.role).filter(|role| *role != Role::Prefill).collect();
        let (total, roles) = Totals::by_role(&variants, |role| {
            // Each role that generates has an equal share of the demand, and prefill has none.
            let demand = match role {
                None => demand,
                Some(Role::Prefill) => 0.0,
                Some(_) => demand / f64::from(count(generating.len())),
            };
            let mut totals = Totals { demand, ..Totals::default() };
            let of_role = variants.iter().filter(|variant| variant.is_of(role));
            of_role.for_each(|variant| totals.add_capacity(variant));
            limit(totals.apply_thresholds(up, down))
        });
        let analyzer = Analyzer::Throughput;
        Self { finding: Finding { analyzer, score, live, total, roles, variants }, lines }
    }
}

/// The demand in tokens/s: of the arrivals, and to drain the queue. Prefill replicas generate nothing.
fn demand(resolved: &[Resolved], arrival: f64, queue: Requests) -> f64 {
    let mut variants = 0.0;
    let mut replicas = 0.0;
    let mut tokens = 0.0;
    let mut latency = 0.0;
    for variant in resolved.iter().filter(|variant| variant.capacity.role != Role::Prefill) {
        let serving = f64::from(variant.capacity.replicas.get());
        variants += 1.0;
        replicas += serving;
        tokens += serving * variant.generated;
        latency += variant.line.at(FULL);
    }
    if variants > 0.0 {
        arrival * (tokens / replicas) + queue.get() / (DRAIN_GENERATIONS * (latency / variants))
    } else {
        0.0
    }
}
