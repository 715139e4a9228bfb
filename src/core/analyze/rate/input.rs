//! The input of the policy about one role.

use smol_str::SmolStr;

use super::capacity::ReplicaCapacity;
use crate::model::{Bounds, RatePolicy, Role};
use crate::moment::Moment;
use crate::units::{Cost, Replicas, Seconds};

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RateVariant {
    pub name: SmolStr,
    pub cost: Cost,
    pub bounds: Bounds,
    /// The number that was last published.
    pub committed: Replicas,
    /// Replicas that the scale target requests now.
    pub requested: Replicas,
    /// Replicas of `committed` that do not count: no node has room for them, they should have started long ago, or they were Ready and have
    /// failed.
    pub unavailable: Replicas,
    /// It gets no more replicas for now: no node has room, or ordered replicas were never created.
    pub is_full: bool,
    /// For each pod that serves or is expected to: in how many seconds it does.
    pub ready_in: Vec<Seconds>,
    /// Pods of these that do not serve yet.
    pub starting: Replicas,
    pub start_up: Seconds,
    pub capacity: Option<ReplicaCapacity>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RateInput<'a> {
    pub now: Moment,
    pub role: Role,
    /// Its variants, by name.
    pub variants: Vec<RateVariant>,
    /// Requests that wait, at the gateway or in pods.
    pub waiting: f64,
    pub running: f64,
    /// Everything was measured, so that something may be removed.
    pub can_remove: bool,
    /// The factor, at least 1, by which arrivals may exceed the estimate: unmeasured pods may be the busiest.
    pub unmeasured_factor: f64,
    /// Relative differences up to this do not move an HPA.
    pub tolerance: f64,
    pub policy: &'a RatePolicy,
}

/// Every variant's capacity. A variant that was never seen working gets that of the variant with the nearest cost, scaled by cost. `None` if
/// none was.
pub(super) fn resolve_capacities(variants: &[RateVariant]) -> Option<Vec<ReplicaCapacity>> {
    let known = || variants.iter().filter_map(|variant| Some((variant.cost.get(), variant.capacity?)));
    known().next()?;
    let guess = |cost: f64| {
        let distance = |known_cost: f64| (known_cost - cost).abs();
        let nearest = known().min_by(|(left, _), (right, _)| distance(*left).total_cmp(&distance(*right)));
        nearest.map(|(known_cost, capacity)| {
            let ratio = cost / known_cost;
            capacity.scaled_to_cost(if ratio.is_finite() && ratio > 0.0 { ratio } else { 1.0 })
        })
    };
    variants.iter().map(|variant| variant.capacity.or_else(|| guess(variant.cost.get()))).collect()
}
