//! The rate policy: demand in requests/s against the capacity of the replicas, with a reserve for what arrives while a pod starts. It needs few
//! replicas while demand is steady, adds early when it grows, and removes slowly.
//!
//! [`crate::learn`] learns from samples, and this module turns that into numbers. A second call of [`analyze`] at the same moment changes
//! nothing. `docs/decisions/rate.md` explains the policy on one page, with an example.

mod capacity;
mod demand;
mod explain;
mod fleet;
mod input;
mod memory;
mod plan;
#[cfg(test)]
mod tests;

pub(crate) use capacity::{EngineModel, ReplicaCapacity, RequestSize};
pub(crate) use explain::{thresholds, values};
pub(crate) use fleet::Constraint;
pub(crate) use input::{RateInput, RateVariant};
pub(crate) use memory::{MAX_ARRIVALS_AGE, RateMemory};
pub(crate) use plan::{Exchange, RateFinding, RatePlan, analyze};
#[cfg(test)]
pub(crate) use {
    fleet::{CapacityTest, FleetCapacity, chance_reserve, surge_reserve},
    memory::Cooldown,
};
