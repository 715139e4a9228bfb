//! The token saturation analyzer ("V2"): tokens resident in KV caches, and those of waiting requests, against the tokens that fit before
//! memory or compute runs out. Derived from WVA v0.9, `internal/engines/analyzers/saturation_v2`. `docs/decisions/saturation-token.md` says
//! what differs, and why.

pub(crate) mod history;
mod input;
pub(crate) mod knowledge;
pub(crate) mod queue;
pub(crate) mod replica;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use jiff::Timestamp;
use smol_str::SmolStr;

pub(crate) use input::EngineInput;
#[cfg(test)]
pub(crate) use input::tokens_in_use;
pub(crate) use input::{SchedulerQueue, TokenInput, TokenObservation, TokenPolicy, TokenVariant};
pub(crate) use knowledge::Knowledge;
pub(crate) use replica::{Source, TokenCapacity};

use self::queue::{QueueDemand, Workload};
use super::finding::{Finding, Totals, VariantCapacity};
use crate::model::{Analyzer, Role};
use crate::units::{Cost, Replicas, Tokens, count};

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TokenAnalysis<'a> {
    /// The whole model, with what is required and spare.
    pub total: Totals,
    /// By role; empty if no variant has a role other than [`Role::Both`].
    pub roles: BTreeMap<Role, Totals>,
    /// By variant, in input order.
    pub variants: Vec<VariantCapacity>,
    /// By engine, in input order, without engines of unknown capacity.
    pub replicas: Vec<TokenCapacity<'a>>,
}

/// Why the capacity of a variant is unknown.
pub(crate) const NO_DATA: &str = "no-data";

/// Analyzes one model, and learns from what its engines show. The order of engines does not matter. A second call with the same input
/// at the same moment gives the same result and leaves the same knowledge.
#[must_use]
pub(crate) fn analyze<'a>(
    input: &TokenInput<'a>,
    knowledge: &mut Knowledge,
    policy: &TokenPolicy,
    now: Timestamp,
) -> TokenAnalysis<'a> {
    let now = whole_seconds(now);
    knowledge.forget(now);
    knowledge.limit(input.variants);
    input.variants.iter().for_each(|variant| knowledge.read_arguments(variant, now));
    // Engines of other variants are left out.
    let engine = |observation: &TokenObservation<'a>| {
        let index = input.variants.iter().position(|variant| variant.name == observation.variant)?;
        Some(EngineInput::new(observation, Some(index), input.variants.get(index)))
    };
    let engines: Vec<EngineInput<'a>> = input.replicas.iter().filter_map(engine).collect();
    let capacities = replica::capacities(&engines, knowledge, policy, now);
    let workload = Workload::mean(input.replicas);
    let sums = VariantSums::collect(input.variants.len(), &engines, &capacities);
    let variants = input.variants.iter().zip(sums);
    let variants =
        variants.map(|(variant, sums)| variant_capacity(variant, sums, knowledge, workload, policy));
    TokenAnalysis::new(input, variants.collect(), workload, capacities, policy)
}

/// `now` without its fraction of a second, which is short to store; lifetimes are hours.
pub(crate) fn whole_seconds(now: Timestamp) -> Timestamp {
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}

#[derive(Debug, Clone, Default)]
pub(crate) struct VariantSums<'a> {
    /// The first engine's.
    pub(crate) accelerator: Option<&'a str>,
    /// The first engine's.
    pub(crate) cost: Option<Cost>,
    /// The capacity of each engine.
    pub(crate) effective: Vec<(Tokens, Source)>,
    /// Tokens.
    pub(crate) demand: f64,
}

impl<'a> VariantSums<'a> {
    pub(crate) fn collect(
        variants: usize,
        engines: &[EngineInput<'a>],
        capacities: &[Option<TokenCapacity<'a>>],
    ) -> Vec<Self> {
        let mut sums = vec![Self::default(); variants];
        for (engine, capacity) in engines.iter().zip(capacities) {
            let Some(sum) = engine.variant.and_then(|variant| sums.get_mut(variant)) else { continue };
            sum.accelerator.get_or_insert(engine.observed.accelerator);
            sum.cost.get_or_insert(engine.observed.cost);
            if let Some(capacity) = capacity {
                sum.effective.push((capacity.effective, capacity.source));
                sum.demand += capacity.demand.to_f64();
            }
        }
        sums
    }
}

/// The capacity of a replica of a variant, and how many there are.
fn variant_capacity(
    variant: &TokenVariant<'_>,
    mut sums: VariantSums<'_>,
    knowledge: &Knowledge,
    workload: Workload,
    policy: &TokenPolicy,
) -> VariantCapacity {
    let ready = variant.current.saturating_sub(variant.pending);
    // Sorted by source too, so that the order of engines with the same capacity does not matter.
    sums.effective.sort_unstable();
    let (per_replica, reason, replicas, pending) = match median(&sums.effective) {
        Some((capacity, source)) => {
            let (replicas, pending) = engine_counts(count(sums.effective.len()), ready, variant.pending);
            (capacity, source.label(), replicas, pending)
        }
        None => {
            let stored = knowledge.stored_capacity(variant.name, workload, policy);
            let reason = stored.map_or(NO_DATA, |_| Source::Stored.label());
            // It is not known what Ready replicas carry that show nothing. As pending, they do not make others look spare.
            let pending = variant.current.max(variant.pending);
            (stored.unwrap_or_default(), reason, Replicas::ZERO, pending)
        }
    };
    let shown = sums.accelerator.unwrap_or_default();
    let accelerator = if variant.accelerator.is_empty() { shown } else { variant.accelerator };
    VariantCapacity {
        name: variant.name.into(),
        role: variant.role,
        accelerator: (!accelerator.is_empty()).then(|| accelerator.into()),
        cost: variant.cost,
        replicas,
        pending,
        per_replica: per_replica.to_f64(),
        demand: sums.demand,
        reason: SmolStr::new_static(reason),
    }
}

/// The median of sorted capacities. Between two, it has the source of the lower one. `None` without any.
pub(crate) fn median(sorted: &[(Tokens, Source)]) -> Option<(Tokens, Source)> {
    let lower = sorted.get(sorted.len().checked_sub(1)? / 2)?;
    let upper = sorted.get(sorted.len() / 2)?;
    Some((lower.0.midway(upper.0), lower.1))
}

/// How many engines serve and how many start: starting pods have as many engines as ready ones.
pub(crate) fn engine_counts(engines: u32, ready: Replicas, pending: Replicas) -> (Replicas, Replicas) {
    let per_pod = engines.checked_div(ready.get()).unwrap_or(1).max(1);
    (Replicas::new(engines), Replicas::new(pending.get().saturating_mul(per_pod)))
}

impl<'a> TokenAnalysis<'a> {
    /// The sums over the model, and over each role if variants have roles. The scheduler's queue counts once for the model and once for every
    /// role, so that the roles do not add up to the model (as upstream).
    pub(crate) fn new(
        input: &TokenInput<'_>,
        variants: Vec<VariantCapacity>,
        workload: Workload,
        capacities: Vec<Option<TokenCapacity<'a>>>,
        policy: &TokenPolicy,
    ) -> Self {
        let queue = input.queue.map_or(QueueDemand::default(), |queue| QueueDemand::new(queue, workload));
        let (total, roles) = Totals::by_role(&variants, |role| {
            let mut totals = Totals::default();
            for variant in variants.iter().filter(|variant| variant.is_of(role)) {
                totals.add_capacity(variant);
                totals.demand += variant.demand;
            }
            totals.demand += role.map_or(queue.total(), |role| queue.of_role(role));
            totals.apply_thresholds(policy.scale_up_threshold, policy.scale_down_boundary)
        });
        Self { total, roles, variants, replicas: capacities.into_iter().flatten().collect() }
    }

    pub(crate) fn is_informative(&self) -> bool {
        self.variants.iter().any(|variant| variant.reason != NO_DATA)
    }

    /// The result as a finding. `live` depends on earlier cycles, which the caller knows.
    pub(crate) fn into_finding(self, score: f64, live: bool) -> Finding {
        let Self { total, roles, variants, .. } = self;
        Finding { analyzer: Analyzer::Saturation, score, live, total, roles, variants }
    }
}
