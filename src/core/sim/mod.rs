//! A small simulator of a serving fleet: replicas with continuous batching, a router, Poisson arrivals, start-up and
//! drain. Pure and deterministic: time is passed in, chance comes from a seed, same input gives the same bytes.
//!
//! It knows nothing of Kubernetes, of metric names or of any decision: those who drive it (the demo, the end-to-end
//! fleet) bring these.

mod batching;
mod deployment;
mod fleet;
mod linear;
mod load;
mod physics;
mod presets;
mod rng;
mod server;
mod stats;
#[cfg(test)]
mod tests;

use std::time::Duration;

pub use deployment::{Deployment, StartUp};
pub use fleet::{Fleet, FleetError, PodPhase, PodSpec, PodView, Summary};
pub use load::{LoadShape, Request, Segment, TokenShape};
pub use physics::{Batching, Linear, Physics};
pub use presets::{A100_TP2, LINEAR4, TP1, TP2};
pub use rng::Rng;
pub use server::{Readings, Server};
pub use stats::{Histogram, Stats};

/// A point in simulated time: how long after the simulation's start.
pub type Moment = Duration;

/// The longest span the simulator computes with: 30 years, so that sums never overflow.
const LONGEST_S: f64 = 1e9;

/// `seconds` as a span; nonsense (negative, NaN) is zero and everything longer than [`LONGEST_S`] is that.
fn span(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.min(LONGEST_S)).unwrap_or(Duration::ZERO)
}
