//! The token saturation analyzer (upstream's V2): tokens resident in KV caches, and those of waiting requests, against the
//! tokens that fit before memory or computation runs out. Source: algorithm reference §3; what differs from upstream, and
//! why: `docs/decisions/saturation-token.md`.

pub mod history;
pub mod knowledge;
mod policy;
#[cfg(test)]
mod properties;
pub mod queue;
mod replica;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use jiff::Timestamp;
use smol_str::SmolStr;

pub use knowledge::Knowledge;
pub use policy::TokenPolicy;
pub use queue::SchedulerQueue;
pub use replica::{Observation, ReplicaCapacity, Source, tokens_in_use};

use self::queue::{QueueDemand, Workload};
use self::replica::{Look, Seen};
use super::finding::{Capacity, Finding, Totals};
use crate::model::{Analyzer, Compat, Role};
use crate::snapshot::EngineParameters;
use crate::units::{Cost, Replicas, Tokens, count};

/// One variant of the model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct VariantInput<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its role.
    pub role: Role,
    /// The accelerator's name; empty when not known.
    pub accelerator: &'a str,
    /// What a replica costs.
    pub cost: Cost,
    /// Accelerators of a replica.
    pub gpus: u32,
    /// Replicas of the scale target.
    pub current: Replicas,
    /// Those that are not ready, or not ready for long enough to have been seen.
    pub pending: Replicas,
    /// The engine's settings by its arguments, when these could be read.
    pub parameters: Option<&'a EngineParameters>,
}

/// All that is looked at of one model in one namespace.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Inputs<'a> {
    /// Its variants.
    pub variants: &'a [VariantInput<'a>],
    /// Their replicas. Those of other variants count for the workload only; upstream learns from them too.
    pub replicas: &'a [Observation<'a>],
    /// What the scheduler holds, when that is known.
    pub queue: Option<SchedulerQueue>,
}

/// What was found of one model.
#[derive(Debug, Clone, PartialEq)]
pub struct Analysis<'a> {
    /// The whole model, with what is required and spare.
    pub total: Totals,
    /// By role; empty when no variant has a role other than [`Role::Both`].
    pub roles: BTreeMap<Role, Totals>,
    /// By variant, in input order.
    pub variants: Vec<Capacity>,
    /// By replica, in input order, without those of which nothing is known.
    pub replicas: Vec<ReplicaCapacity<'a>>,
}

/// Why the capacity of a variant is not known.
const NO_DATA: &str = "no-data";

/// Looks at one model and learns from what it sees. Under [`Compat::Corrected`] the order of replicas does not matter, and
/// a second look with the same input at the same moment gives the same result and leaves the same knowledge.
#[must_use]
pub fn analyze<'a>(
    inputs: &Inputs<'a>,
    knowledge: &mut Knowledge,
    policy: &TokenPolicy,
    compat: Compat,
    now: Timestamp,
) -> Analysis<'a> {
    // Whole seconds are short to write down, and lifetimes are hours.
    let look = Look { policy, compat, now: Timestamp::from_second(now.as_second()).unwrap_or(now) };
    knowledge.forget(inputs.variants, &look);
    inputs.variants.iter().for_each(|variant| knowledge.read_arguments(variant, &look));
    let seen = |one: &Observation<'a>| {
        let place = inputs.variants.iter().position(|variant| variant.name == one.variant);
        let variant = place.and_then(|place| inputs.variants.get(place));
        (variant.is_some() || compat.is_upstream()).then(|| Seen::new(one, place, variant, compat))
    };
    let seen: Vec<Seen<'a>> = inputs.replicas.iter().filter_map(seen).collect();
    let found = look.replicas(&seen, knowledge);
    let workload = Workload::of(inputs.replicas);
    let mut sums = vec![Sums::default(); inputs.variants.len()];
    for (one, found) in seen.iter().zip(&found) {
        if let Some(sums) = one.place.and_then(|place| sums.get_mut(place)) {
            sums.add(one, found.as_ref());
        }
    }
    let variants: Vec<Capacity> = inputs
        .variants
        .iter()
        .zip(sums)
        .map(|(variant, sums)| capacity(variant, sums, knowledge, workload, &look))
        .collect();
    let queue = inputs.queue.map_or(QueueDemand::default(), |queue| QueueDemand::of(queue, workload));
    let judged = |totals: Totals| totals.judged(policy.scale_up_threshold, policy.scale_down_boundary);
    let (total, roles) = totals(&variants, queue);
    let roles = roles.into_iter().map(|(role, totals)| (role, judged(totals))).collect();
    Analysis { total: judged(total), roles, variants, replicas: found.into_iter().flatten().collect() }
}

/// What the replicas of one variant add up to.
#[derive(Debug, Clone, Default)]
struct Sums<'a> {
    /// The first replica's.
    accelerator: Option<&'a str>,
    cost: Option<Cost>,
    /// What each replica can carry.
    effective: Vec<(Tokens, Source)>,
    demand: f64,
}

impl<'a> Sums<'a> {
    fn add(&mut self, one: &Seen<'a>, found: Option<&ReplicaCapacity<'_>>) {
        self.accelerator.get_or_insert(one.observed.accelerator);
        self.cost.get_or_insert(one.observed.cost);
        if let Some(found) = found {
            self.effective.push((found.effective, found.source));
            self.demand += found.demand.float();
        }
    }
}

/// What a replica of a variant can carry, and how many there are (algorithm reference §3.4).
fn capacity(
    variant: &VariantInput<'_>,
    mut sums: Sums<'_>,
    knowledge: &Knowledge,
    workload: Workload,
    look: &Look<'_>,
) -> Capacity {
    let upstream = look.compat.is_upstream();
    let ready = variant.current.above(variant.pending);
    let engines = count(sums.effective.len());
    let seen_accelerator = sums.accelerator.unwrap_or_default();
    let (per_replica, reason, replicas, pending) = match median(&mut sums.effective, look.compat) {
        Some((capacity, source)) => {
            let (replicas, pending) = counted(engines, ready, variant.pending, look.compat);
            (capacity, source.label(), replicas, pending)
        }
        None => {
            let stored = knowledge.stored_capacity(variant, seen_accelerator, workload, look);
            let reason = stored.map_or(NO_DATA, |_| Source::Stored.label());
            // Nobody knows what ready replicas do that were not seen: they may not make others look spare.
            let (replicas, pending) = if upstream {
                (ready, variant.pending)
            } else {
                (Replicas::ZERO, variant.current.max(variant.pending))
            };
            (stored.unwrap_or_default(), reason, replicas, pending)
        }
    };
    // Upstream knows both from observations only: without any, a variant looks free and of no accelerator.
    let known = !upstream && !variant.accelerator.is_empty();
    let accelerator = if known { variant.accelerator } else { seen_accelerator };
    Capacity {
        name: variant.name.into(),
        role: variant.role,
        accelerator: (!accelerator.is_empty()).then(|| accelerator.into()),
        cost: if upstream { sums.cost.unwrap_or_default() } else { variant.cost },
        replicas,
        pending,
        per_replica: per_replica.float(),
        demand: sums.demand,
        reason: SmolStr::new_static(reason),
    }
}

/// The median of what replicas can carry, and the source of the lower one of two; `None` without replicas.
fn median(effective: &mut [(Tokens, Source)], compat: Compat) -> Option<(Tokens, Source)> {
    // By source as well, and the order of equal replicas does not matter.
    effective.sort_by_key(|(tokens, source)| (*tokens, (!compat.is_upstream()).then_some(*source)));
    let lower = effective.get(effective.len().checked_sub(1)? / 2)?;
    let upper = effective.get(effective.len() / 2)?;
    Some((lower.0.midway(upper.0), lower.1))
}

/// How many serve and how many start. June counts pods, later trees the engines that were seen, and those that start with
/// as many engines a pod.
fn counted(engines: u32, ready: Replicas, pending: Replicas, compat: Compat) -> (Replicas, Replicas) {
    if compat == Compat::UpstreamJune {
        return (ready, pending);
    }
    let a_pod = engines.checked_div(ready.get()).unwrap_or(1).max(1);
    (Replicas::new(engines), Replicas::new(pending.get().saturating_mul(a_pod)))
}

/// The sums over the model, and over each role if roles are told apart (algorithm reference §3.6). The scheduler's queue
/// counts once for the model and for every role, as upstream: the roles do not add up to the model.
fn totals(variants: &[Capacity], queue: QueueDemand) -> (Totals, BTreeMap<Role, Totals>) {
    let add = |to: &mut Totals, one: &Capacity| {
        to.supply += one.total();
        to.anticipated += f64::from(one.replicas.get().saturating_add(one.pending.get())) * one.per_replica;
        to.demand += one.demand;
    };
    let (mut total, mut roles) = (Totals::default(), BTreeMap::new());
    let apart = variants.iter().any(|one| one.role != Role::Both);
    for one in variants {
        add(&mut total, one);
        if apart {
            add(roles.entry(one.role).or_default(), one);
        }
    }
    total.demand += queue.total();
    for (role, sum) in &mut roles {
        sum.demand += queue.of_role(*role);
    }
    (total, roles)
}

impl Analysis<'_> {
    /// Something is known of at least one variant.
    #[must_use]
    pub fn informative(&self) -> bool {
        self.variants.iter().any(|one| one.reason != NO_DATA)
    }

    /// As the findings of other analyzers. `live` is for the caller to say, who knows of the cycles before.
    #[must_use]
    pub fn into_finding(self, score: f64, live: bool) -> Finding {
        let Self { total, roles, variants, .. } = self;
        Finding { analyzer: Analyzer::Saturation, score, live, total, roles, variants }
    }
}
