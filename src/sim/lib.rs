//! A closed-loop simulator of LLM serving fleets: requests arrive, replicas serve them with continuous batching, a
//! controller reads signals and decides, HPAs write, pods start and drain.
//!
//! Pure and deterministic: time is passed in, randomness comes from a seed, and the same input gives the same bytes.

mod arrivals;
mod batching;
#[cfg(test)]
#[allow(dead_code, reason = "shared with the tests of the core")]
#[path = "../core/tests/support/cases.rs"]
mod cases;
mod controller;
mod deployment;
mod fault;
mod fleet;
mod invalid;
mod linear;
mod load;
mod physics;
mod presets;
mod quantiles;
mod rng;
mod run;
mod scenario;
mod server;
#[cfg(test)]
mod server_tests;
mod sizes;
mod stats;

use std::time::Duration;

pub use controller::{Brain, Controller, MODEL, NAMESPACE, Path};
pub use deployment::{Deployment, StartUp};
pub use fault::{Fault, FaultKind, FaultShare, FaultSignals};
pub use fleet::{Fleet, FleetError, PodPhase, PodSpec, PodView, Summary};
pub use invalid::Invalid;
pub use load::{LoadShape, Request, Segment, TokenShape};
pub use physics::{Batching, Linear, Physics, Rough};
pub use presets::{A100_TP2, LINEAR4, TP1, TP2};
pub use rng::Rng;
pub use run::{Answer, Point, Run, Write, simulate};
pub use scenario::{
    Arrival, Arrivals, Fixed, HpaSetup, Pattern, PodFault, Scenario, Scrape, SimVariant, Slo, Victims,
};
pub use server::{Readings, Server};
pub use sizes::{Sizes, Spread};
pub use stats::{Histogram, Stats};

/// A point in simulated time: how long after the simulation's start.
pub type Moment = Duration;

/// How long after a scenario's end requests are still followed, with the fleet as it is then: four times the longest
/// residence that anybody would wait for.
pub const PATIENCE: Duration = Duration::from_secs(900);

/// The longest span the simulator computes with: 30 years, so that sums never overflow.
const LONGEST_S: f64 = 1e9;

/// `seconds` as a span; nonsense (negative, NaN) is zero and everything longer than [`LONGEST_S`] is that.
fn span(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.min(LONGEST_S)).unwrap_or(Duration::ZERO)
}
