//! The results of a simulation.

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;
use wva_core::units::Replicas;

/// The figures of one run.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Run {
    /// The scenario's name.
    pub scenario: SmolStr,
    /// The controller's name.
    pub policy: SmolStr,
    /// The seed.
    pub seed: u64,
    /// Mean of `spec.replicas` times the variant's cost over the duration: cost an hour.
    pub cost_avg: f64,
    /// Mean of `spec.replicas` over the duration.
    pub replicas_avg: f64,
    /// Median time to first token, seconds from a request's arrival at the gateway. Within 0.25 %, like all quantiles; 0
    /// without requests. A request without a first token counts with the time it waited.
    pub ttft_p50_s: f64,
    /// The 95th percentile.
    pub ttft_p95_s: f64,
    /// The 99th percentile.
    pub ttft_p99_s: f64,
    /// The 99th percentile of the gaps between two tokens of a request, seconds.
    pub itl_p99_s: f64,
    /// Requests refused (larger than the memory, a full queue) or cut off when their pod was killed.
    pub errors: u64,
    /// Changes of a number by an HPA.
    pub changes: u32,
    /// Of these, reversals: changes in the other direction than the variant's last one.
    pub flips: u32,
    /// Share of requests within the objectives, 0 to 1; 1 without requests.
    pub slo_attainment: f64,
    /// Accelerator-hours of all pods that had a node: starting, serving or draining, within the duration.
    pub gpu_hours: f64,
    /// Requests that arrived.
    pub requests: u64,
    /// Of these, the requests answered to their last token.
    pub finished: u64,
    /// Of these, the requests neither finished nor in error [`crate::DRAIN_TIMEOUT`] after the duration.
    pub unfinished: u64,
    /// The changes of numbers in the order of time, at most [`Run::MAX_CHANGES`].
    pub writes: Vec<ReplicaChange>,
    /// The run over time, for plots: at most [`Run::MAX_POINTS`].
    pub series: Vec<Point>,
    /// The numbers that HPAs could read, each time they changed: at most [`Run::MAX_CHANGES`]. Only of the program's own
    /// core; not serialized.
    #[serde(skip)]
    pub published: Vec<ReplicaNumbers>,
    /// Requests within the objectives that have at least two output tokens: what the arena counts. Not serialized.
    #[serde(skip)]
    pub good: u64,
    /// Decisions at which some signal of an engine was contradicted by another. Not serialized.
    #[serde(skip)]
    pub contradicted_decisions: u32,
}

impl Run {
    /// The most points of a series.
    pub const MAX_POINTS: usize = 2000;
    /// The most changes that are kept.
    pub const MAX_CHANGES: usize = 10_000;
}

/// One change of a variant's number.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ReplicaChange {
    /// Seconds after the start.
    pub at_s: f64,
    /// The variant's index in the scenario.
    pub variant: usize,
    /// Replicas before.
    pub from: u32,
    /// Replicas after.
    pub to: u32,
}

/// The numbers that HPAs can read from a time on.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplicaNumbers {
    /// Seconds after the start.
    pub at_s: f64,
    /// Replicas by variant; `None` where there is no answer.
    pub numbers: Vec<Option<Replicas>>,
}

/// One interval of a run: means over it unless stated otherwise.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Point {
    /// Its end, seconds after the start.
    pub at_s: f64,
    /// Requests a second that arrived.
    pub rps: f64,
    /// `spec.replicas` at its end, by variant.
    pub spec_replicas: Vec<u32>,
    /// Ready pods at its end.
    pub ready: u32,
    /// Pods that are not ready yet at its end.
    pub starting: u32,
    /// Requests waiting at its end, the gateway's included.
    pub waiting: f64,
    /// Requests running at its end.
    pub running: f64,
    /// KV-cache use of the ready pods at its end, 0 to 1.
    pub kv_usage: f64,
    /// Median time to first token of the first tokens in it, seconds; `None` without any.
    pub ttft_p50_s: Option<f64>,
    /// The 95th percentile of the same.
    pub ttft_p95_s: Option<f64>,
    /// Mean time between two tokens, seconds; `None` without any.
    pub itl_s: Option<f64>,
    /// Requests in error.
    pub errors: u64,
}
