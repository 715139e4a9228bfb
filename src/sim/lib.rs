//! A closed-loop simulator of LLM serving fleets: requests arrive, replicas serve them with continuous batching, a
//! controller reads signals and decides, HPAs write, pods start and drain.
//!
//! [`simulate`] plays a [`Scenario`] under a [`Controller`] from its first second to its last and returns the figures.
//! [`Fleet`] is the same cluster of pods driven live: time, load and replicas come from outside. Pure and deterministic:
//! time is passed in, randomness comes from a seed, and the same input gives the same bytes.

mod arena;
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
mod load;
mod oracle;
mod peer;
mod physics;
mod program;
mod quantiles;
mod recorder;
mod rng;
mod run;
mod scenario;
mod server;
mod sizes;

pub use arena::{
    Arena, GOLDEN, PROFILES, Published, Score, Sources, WORKLOADS, arena_sources, published, reference_rate,
};
pub use cluster::Pod;
pub use controller::{Algorithm, Controller, MODEL, MetricPath, NAMESPACE, ScheduleEntry};
pub use fault::{Fault, FaultKind, FaultShare, FaultSignals};
pub use fleet::{Fleet, Summary};
pub use load::{LoadShape, Pattern, Request, Segment};
pub use oracle::{ORACLE, allowed_outside, oracle, outside};
pub use peer::Peer;
pub use physics::{A100_TP2, Deviations, EMULATED_4RPS, EMULATED_4RPS_SIZES, Physics, TP1, TP2};
pub use program::{PROGRAM_DEFAULTS, ProgramDefaults};
pub use rng::Rng;
pub use run::{DRAIN_TIMEOUT, Point, ReplicaChange, ReplicaNumbers, Run, simulate, simulate_figures};
pub use scenario::{
    Arrival, Arrivals, ClientPatience, DeletionOrder, HpaSetup, PinnedReplicas, PodFault, PrefixCache,
    Routing, Scenario, Scrape, SimVariant, Slo, StartUp, TimedSizes,
};
pub use server::{Histogram, Readings};
pub use sizes::{RequestSizes, SizeSpread};
