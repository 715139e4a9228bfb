//! A closed-loop simulator of LLM serving fleets: requests arrive, replicas serve them with continuous batching, a
//! controller reads signals and decides, HPAs write, pods start and drain.
//!
//! [`simulate`] plays a [`Scenario`] under a [`Controller`] from its first second to its last and returns the figures.
//! [`Fleet`] is the same cluster of pods driven live: time, load and replicas come from outside. Pure and deterministic:
//! time is passed in, randomness comes from a seed, and the same input gives the same bytes.

mod arrivals;
#[cfg(test)]
#[allow(dead_code, reason = "shared with the tests of the core")]
#[path = "../core/tests/support/cases.rs"]
mod cases;
mod cluster;
mod controller;
mod fault;
mod fleet;
#[cfg(test)]
mod fleet_tests;
mod invalid;
mod load;
mod physics;
mod presets;
mod quantiles;
mod recorder;
mod rng;
mod run;
mod scenario;
mod server;
mod sizes;

use std::time::Duration;

pub use controller::{Algorithm, Controller, MODEL, MetricPath, NAMESPACE};
pub use fault::{Fault, FaultKind, FaultShare, FaultSignals};
pub use fleet::{Fleet, PodView, Summary};
pub use invalid::Invalid;
pub use load::{LoadShape, Pattern, Request, Segment};
pub use physics::{Deviations, Physics};
pub use presets::{A100_TP2, EMULATED_4RPS, EMULATED_4RPS_SIZES, TP1, TP2};
pub use rng::Rng;
pub use run::{Point, ReplicaChange, ReplicaNumbers, Run, simulate};
pub use scenario::{
    Arrival, Arrivals, DeletionOrder, HpaSetup, PinnedReplicas, PodFault, Scenario, Scrape, SimVariant, Slo,
    StartUp,
};
pub use server::{Histogram, Readings};
pub use sizes::{RequestSizes, SizeSpread};

/// How long after a scenario's end the simulation still follows the requests that arrived, with the fleet as it is then:
/// four times the longest residence that a client would wait for.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(900);

/// The longest scenario: a year.
const MAX_DURATION: Duration = Duration::from_secs(366 * 24 * 3600);

/// The longest span the simulator computes with: 30 years, so that sums never overflow. Seconds.
const MAX_SPAN_S: f64 = 1e9;

/// `seconds` as a span. Negative values and NaN become zero, everything longer than [`MAX_SPAN_S`] becomes that.
fn span(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.min(MAX_SPAN_S)).unwrap_or(Duration::ZERO)
}
