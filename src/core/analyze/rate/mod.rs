//! The rate policy: requests a second that are asked for, against those that replicas carry, with a reserve for what arrives while a
//! pod starts. Cheap while nothing happens, early when something does, and slow to remove.
//!
//! [`crate::learn`] learns from samples; here that becomes numbers. [`analyze`] is pure: a second call at the same moment changes
//! nothing. In one page, with an example: `docs/decisions/rate.md`.

mod capacity;
mod demand;
mod explain;
mod fleet;
mod input;
mod memory;
mod plan;
#[cfg(test)]
mod tests;

pub use capacity::{EngineModel, ReplicaCapacity, RequestSize};
pub use demand::{Demand, PodCapacity, requests_at_horizon};
pub use explain::{turns, values};
pub use fleet::{CapacityTest, Constraint, FleetCapacity, chance_reserve, surge_reserve};
pub use input::{RateInput, RateVariant};
pub use memory::{Cooldown, RateMemory};
pub use plan::{RateFinding, RatePlan, analyze};
