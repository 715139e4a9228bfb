//! The rate policy: requests a second that are asked for, against those that replicas carry, with a reserve for what comes
//! while a pod starts. Cheap where nothing happens, early where something does, and slow to take away.
//!
//! What is learned from samples is in `learn`; here it becomes numbers. [`analyze`] is pure and may be asked as often as one
//! likes: twice at one moment is the same as once. In one page, with an example: `docs/decisions/rate.md`.

mod backlog;
mod capacity;
mod control;
mod demand;
mod fleet;
mod look;
mod memory;
mod plan;
mod tell;
#[cfg(test)]
mod tests;

pub use backlog::{Coming, at_horizon};
pub use capacity::{Process, Replica, Request};
pub use control::Control;
pub use demand::Demand;
pub use fleet::{Bound, Sum, Test, reserve, share};
pub use look::{Look, Variant};
pub use memory::Memory;
pub use plan::{Answer, Found, analyze, past_tolerance};
pub use tell::{binding, finding, turns, values};
