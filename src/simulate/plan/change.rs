//! Applies a change to a scenario: one of its variations.

use std::sync::Arc;
use std::time::Duration;

use wva_core::units::{Replicas, truncated_u32};
use wva_sim::{Arrivals, Scenario, SimVariant, SizeSpread, TimedSizes};

use super::super::file::{Change, Problem, SpreadFile};
use super::super::values::Factor;
use super::build;
use super::traced::{TracedRequests, scaled};

/// Changes a scenario with the requests of its trace, if it has one.
pub(super) fn apply(
    change: &Change,
    scenario: &mut Scenario,
    traced: &mut Option<Arc<TracedRequests>>,
) -> Result<(), Problem> {
    set_load(scenario, traced, change)?;
    for variant in &mut scenario.variants {
        if let Some(physics) = &change.physics {
            variant.physics = physics.physics().map_err(|cause| Problem::new("physics", cause))?;
        }
        set_variant(variant, change);
    }
    scenario.prefix_cache = change.prefix_cache.map_or(scenario.prefix_cache, build::prefix_cache);
    scenario.clients = change.clients.map(build::clients).or(scenario.clients);
    build::set_scrape(&mut scenario.scrape, &change.scrape);
    build::set_hpa(&mut scenario.hpa, &change.hpa).map_err(|problem| problem.inside("hpa"))?;
    scenario.grace_period = change.grace.map_or(scenario.grace_period, |value| value.get());
    scenario.max_waiting_per_pod =
        change.hold_at.map(|value| truncated_u32(value.get())).or(scenario.max_waiting_per_pod);
    scenario.deletion_order = change.victims.map_or(scenario.deletion_order, build::deletion_order);
    Ok(())
}

fn set_load(
    scenario: &mut Scenario,
    traced: &mut Option<Arc<TracedRequests>>,
    change: &Change,
) -> Result<(), Problem> {
    let has_rate_fields = change.arrivals.is_some() || change.sizes.is_some() || change.tokens.is_some();
    if traced.is_some() && (has_rate_fields || change.prefix_hits.is_some()) {
        return Err(Problem::new("", "a trace of requests brings its own times and tokens"));
    }
    if let Some(factor) = change.load.map(Factor::get) {
        match traced {
            Some(traced) => *traced = Arc::new(traced.scaled(factor)),
            None => scenario.arrivals = scaled(&scenario.arrivals, factor),
        }
    }
    if let (Some(arrivals), Arrivals::Rate { pattern, .. }) = (change.arrivals, &mut scenario.arrivals) {
        *pattern = build::pattern(arrivals);
    }
    if let Some(tokens) = &change.tokens {
        let sizes = build::sizes(tokens).map_err(|problem| problem.inside("tokens"))?;
        scenario.sizes = vec![TimedSizes { from: Duration::ZERO, sizes }];
    }
    if let Some(spread) = change.sizes {
        let spread = match spread {
            SpreadFile::Spread(share) => SizeSpread::Uniform(share.get()),
            SpreadFile::Cv(cv) => SizeSpread::LogNormal(cv.get()),
            SpreadFile::Large(large) => {
                build::two_sizes(large).map_err(|problem| problem.inside("sizes.large"))?
            }
        };
        scenario.sizes.iter_mut().for_each(|timed| timed.sizes.spread = spread);
    }
    if change.prefix_hits.is_some() {
        scenario.prefix_hits = build::ratio(change.prefix_hits);
    }
    Ok(())
}

fn set_variant(variant: &mut SimVariant, change: &Change) {
    variant.start_up.mean = change.start_up.map_or(variant.start_up.mean, |value| value.get());
    let physics = &mut variant.physics;
    *physics = change.slower.map_or(*physics, |factor| physics.slower(factor.get()));
    if let Some(factor) = change.kv {
        physics.kv_tokens = truncated_u32((f64::from(physics.kv_tokens) * factor.get()).max(1.0));
    }
    physics.max_sequences =
        change.max_sequences.map_or(physics.max_sequences, |value| truncated_u32(value.get()));
    physics.token_budget =
        change.token_budget.map_or(physics.token_budget, |value| truncated_u32(value.get()));
    physics.tokens_per_step = change.tokens_per_step.map_or(physics.tokens_per_step, |value| value.get());
    variant.deviations = change.rough.as_ref().map_or(variant.deviations, build::deviations);
    variant.first_pod_slowdown =
        change.first_pod_slower.map_or(variant.first_pod_slowdown, |value| value.get());
    if let Some(replicas) = change.replicas.map(|value| Replicas::new(truncated_u32(value.get()))) {
        variant.replicas = variant.bounds.max.map_or(replicas, |max| replicas.min(max));
    }
    variant.max_scheduled_pods =
        change.schedulable.map(|value| truncated_u32(value.get())).or(variant.max_scheduled_pods);
    if let Some(faults) = &change.faults {
        variant.pod_faults = faults.iter().map(build::pod_fault).collect();
    }
}
