//! The throughput analyzer: generated tokens a second that are asked for, against those the replicas can give.
//!
//! What a full replica can give follows from a line of latency over KV-cache usage that is learned by watching, so one
//! call of [`analyze`] a control cycle is expected: each call adds to what is learned. Source: algorithm reference §4.
//! The arithmetic in one page, and what differs from upstream: `docs/decisions/throughput.md`.

mod line;
mod memory;
mod shape;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

pub use line::{Line, fit, fit_from};
pub use memory::{Calibration, Memory, Point};
pub use shape::Shape;

use super::finding::{Capacity, Finding, Totals};
use crate::model::{Analyzer, Compat, Role};
use crate::units::{Cost, Replicas, Requests, Seconds, count, float};
use smol_str::SmolStr;

/// The KV-cache usage at which a replica is full. Source: algorithm reference §4.1, as the two below.
pub const FULL: f64 = 0.85;
/// Seconds between two tokens of an empty server, before one was fitted.
pub const DEFAULT_INTERCEPT: f64 = 0.006;
/// What the scheduler holds is to be worked off in this many times the generation of one request.
const DRAIN: f64 = 2.0;
/// Shorter generations, in tokens, say nothing of a replica's own demand.
const SHORTEST_FOR_LOCAL: f64 = 20.0;

/// What was seen of one serving process. What was not measured is 0.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Observation {
    /// Too old to learn from.
    pub stale: bool,
    /// KV-cache usage at the instant, 0 to 1.
    pub kv: f64,
    /// Size of the KV cache, tokens.
    pub capacity: i64,
    /// Seconds between two tokens.
    pub latency: f64,
    /// Mean prompt, tokens.
    pub prompt: f64,
    /// Mean generation, tokens.
    pub generated: f64,
    /// Share of the prompt found in the prefix cache, 0 to 1.
    pub hits: f64,
    /// Requests a second the scheduler gives it.
    pub arriving: f64,
    /// Requests a second it finishes.
    pub finished: f64,
    /// Tokens a second it generates.
    pub generating: f64,
}

impl Observation {
    fn has_lengths(&self) -> bool {
        Shape::is_length(self.prompt) && Shape::is_length(self.generated)
    }

    /// Good enough to learn from. Source: algorithm reference §4.2.
    fn healthy(&self) -> bool {
        let measured = self.capacity > 0 && self.latency > 0.0 && self.latency.is_finite();
        !self.stale && measured && (0.0..=1.0).contains(&self.kv) && self.has_lengths()
    }

    /// Requests that run on it, by what they hold, over the time each of their tokens takes: tokens a second.
    fn generating_at(&self, line: Line, shape: Shape) -> f64 {
        let latency = line.at(self.kv);
        if latency > 0.0 { self.kv * float(self.capacity) / shape.resident() / latency } else { 0.0 }
    }

    fn busy(&self) -> bool {
        self.kv > 0.0 || self.finished > 0.0 || self.generating > 0.0
    }
}

/// One variant and what was seen of its serving processes.
#[derive(Debug, Clone, PartialEq)]
pub struct Observed {
    /// Its name.
    pub name: SmolStr,
    /// Its role.
    pub role: Role,
    /// The accelerator's name, when one is known.
    pub accelerator: Option<SmolStr>,
    /// What a replica costs.
    pub cost: Cost,
    /// Replicas that are still starting.
    pub pending: Replicas,
    /// Replicas that are ready, seen or not.
    pub ready: Replicas,
    /// Its serving processes.
    pub replicas: Vec<Observation>,
}

/// All that one look at a model sees.
#[derive(Debug, Clone, PartialEq)]
pub struct Look {
    /// The moment.
    pub now: Timestamp,
    /// The model's variants.
    pub variants: Vec<Observed>,
    /// Requests a second that arrive for the model; `None` when that was not measured.
    pub arrival: Option<f64>,
    /// Requests the scheduler holds.
    pub queue: Requests,
    /// How to judge it.
    pub rules: Rules,
}

/// How a look is judged.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rules {
    /// Utilisation above which replicas are missing.
    pub up: f64,
    /// Utilisation below which some are spare.
    pub down: f64,
    /// The analyzer's weight.
    pub score: f64,
    /// Time between two looks.
    pub period: Seconds,
}

/// What one look found.
#[derive(Debug, Clone, PartialEq)]
pub struct Analysis {
    /// Supply, demand, what is missing and what is spare, in generated tokens a second.
    pub finding: Finding,
    /// The line behind each variant's capacity, by variant name.
    pub lines: BTreeMap<SmolStr, Line>,
}

/// How a line was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tier {
    Fitted,
    Pinned,
    Default,
}

impl Tier {
    const fn label(self) -> &'static str {
        match self {
            Self::Fitted => "T1-ols",
            Self::Pinned => "T2-pinned",
            Self::Default => "T2-default",
        }
    }
}

/// A variant whose capacity is known.
struct Resolved {
    capacity: Capacity,
    line: Line,
    /// Its mean generation, tokens.
    generated: f64,
}

/// Looks at a model: learns from what is seen, then weighs supply against demand.
#[must_use]
pub fn analyze(look: &Look, memory: &mut Memory, compat: Compat) -> Analysis {
    memory.forget(look.now);
    let (mut resolved, mut all_known) = (Vec::new(), true);
    for variant in &look.variants {
        let found = resolve(look.now, variant, memory, compat);
        let serving = found.as_ref().map_or(Replicas::ZERO, |one| one.capacity.replicas);
        all_known &= variant.role == Role::Prefill || serving >= variant.ready;
        resolved.extend(found);
    }
    let arrival = look.arrival.filter(|rate| rate.is_finite() && *rate >= 0.0);
    let busy = look.queue > Requests::ZERO
        || look.variants.iter().flat_map(|variant| &variant.replicas).any(Observation::busy);
    // Nothing arriving at replicas that work is a missing measurement and not a demand of zero.
    let measured = arrival.is_some_and(|rate| rate > 0.0 || !busy);
    let can_tell =
        Certainty { missing: compat.is_upstream() || all_known, spare: compat.is_upstream() || measured };
    if !resolved.is_empty() && can_tell.spare {
        memory.informative = Some(look.now);
    }
    let demand = demand(&resolved, arrival.unwrap_or(0.0), look.queue);
    let lines = resolved.iter().map(|one| (one.capacity.name.clone(), one.line)).collect();
    let variants: Vec<Capacity> = resolved.into_iter().map(|one| one.capacity).collect();
    let judge = |totals: Totals| can_tell.limit(totals.judged(look.rules.up, look.rules.down));
    let finding = Finding {
        analyzer: Analyzer::Throughput,
        score: look.rules.score,
        live: memory.live(look.now, look.rules.period),
        total: judge(totals(&variants, demand)),
        roles: role_totals(&variants, demand).map(|(role, totals)| (role, judge(totals))).collect(),
        variants,
    };
    Analysis { finding, lines }
}

/// What this look can tell. Upstream takes what it does not know for zero.
#[derive(Clone, Copy)]
struct Certainty {
    /// Every ready replica's supply is known. Otherwise the supply is a lower bound: enough to tell what is spare.
    missing: bool,
    /// The demand is known. Otherwise it is a lower bound: enough to tell what is missing.
    spare: bool,
}

impl Certainty {
    fn limit(self, totals: Totals) -> Totals {
        let required = if self.missing { totals.required } else { 0.0 };
        let spare = if self.spare { totals.spare } else { 0.0 };
        Totals { required, spare, ..totals }
    }
}

/// The capacity of one variant; `None` when it cannot be told. Source: algorithm reference §4.4.
fn resolve(now: Timestamp, variant: &Observed, memory: &mut Memory, compat: Compat) -> Option<Resolved> {
    if variant.replicas.is_empty() {
        return None;
    }
    let calibration = memory.of(&variant.name, now);
    let healthy: Vec<&Observation> = variant.replicas.iter().filter(|one| one.healthy()).collect();
    calibration.observe(now, &healthy, compat);
    let shape = calibration.shape()?;
    let (line, tier) = calibration.line(now, &healthy, compat)?;
    let full = |one: &Observation| FULL * float(one.capacity) / shape.resident() / line.at(FULL);
    let capable: Vec<f64> = variant.replicas.iter().filter(|one| one.capacity > 0).map(full).collect();
    let serving = count(capable.len());
    let per_replica = capable.iter().sum::<f64>() / f64::from(serving);
    if !per_replica.is_finite() || per_replica <= 0.0 {
        return None;
    }
    calibration.verify(line, shape, &healthy);
    let capacity = Capacity {
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
    Some(Resolved { capacity, line, generated: shape.generated })
}

/// What is asked of one variant, for the report only: by what it is given, else by what it finishes, else by what runs
/// on it. Source: algorithm reference §4.4.
fn variant_demand(variant: &Observed, line: Line, shape: Shape) -> f64 {
    let tokens = |rate: fn(&Observation) -> f64| -> f64 {
        let of_one = |one: &Observation| rate(one).max(0.0) * one.generated.max(0.0);
        variant.replicas.iter().map(of_one).sum()
    };
    let (arriving, finished) = (tokens(|one| one.arriving), tokens(|one| one.finished));
    if arriving > 0.0 {
        return arriving;
    }
    if finished > 0.0 {
        return finished;
    }
    if shape.generated <= SHORTEST_FOR_LOCAL {
        return 0.0;
    }
    let running = variant.replicas.iter().filter(|one| one.kv > 0.0 && one.kv <= 1.0 && one.capacity > 0);
    running.map(|one| one.generating_at(line, shape)).sum()
}

/// What is asked of the model: what arrives, and what the scheduler holds. Source: algorithm reference §4.4.
fn demand(resolved: &[Resolved], arrival: f64, queue: Requests) -> f64 {
    let (mut variants, mut replicas, mut tokens, mut latency) = (0.0, 0.0, 0.0, 0.0);
    for one in resolved.iter().filter(|one| one.capacity.role != Role::Prefill) {
        let serving = f64::from(one.capacity.replicas.get());
        variants += 1.0;
        replicas += serving;
        tokens += serving * one.generated;
        latency += one.line.at(FULL);
    }
    if variants > 0.0 {
        arrival * (tokens / replicas) + queue.get() / (DRAIN * (latency / variants))
    } else {
        0.0
    }
}

fn totals<'c>(variants: impl IntoIterator<Item = &'c Capacity>, demand: f64) -> Totals {
    let mut totals = Totals { demand, ..Totals::default() };
    for one in variants {
        totals.supply += one.total();
        totals.anticipated +=
            f64::from(one.replicas.get().saturating_add(one.pending.get())) * one.per_replica;
    }
    totals
}

/// Each role's share of the demand: an even one of the roles that generate, none for prefill. Empty for a model without
/// roles.
fn role_totals(variants: &[Capacity], demand: f64) -> impl Iterator<Item = (Role, Totals)> {
    let roles: BTreeSet<Role> = variants.iter().map(|one| one.role).collect();
    let plain = roles.iter().all(|role| *role == Role::Both);
    let generating = f64::from(count(roles.iter().filter(|role| **role != Role::Prefill).count()));
    roles.into_iter().filter(move |_| !plain).map(move |role| {
        let share = if role == Role::Prefill { 0.0 } else { demand / generating };
        (role, totals(variants.iter().filter(|one| one.role == role), share))
    })
}
