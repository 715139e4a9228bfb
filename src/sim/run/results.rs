//! What one simulation gave.

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

/// The figures of one run.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Run {
    /// The scenario's name.
    pub scenario: SmolStr,
    /// The controller's name.
    pub policy: SmolStr,
    /// The seed.
    pub seed: u64,
    /// Replica-seconds asked for (`spec.replicas`) by the variant's cost, over the duration.
    pub cost_avg: f64,
    /// Replica-seconds asked for, over the duration.
    pub replicas_avg: f64,
    /// Time to first token, seconds from a request's arrival at the gateway: median. Within 0.25 %, like all
    /// quantiles; 0 without requests. A request without a first token counts with the time it waited.
    pub ttft_p50_s: f64,
    /// The 95th percentile.
    pub ttft_p95_s: f64,
    /// The 99th percentile.
    pub ttft_p99_s: f64,
    /// The 99th percentile of all single gaps between two tokens of a request, seconds.
    pub itl_p99_s: f64,
    /// Requests refused (larger than the memory, a full queue) or cut off when their pod was killed.
    pub errors: u64,
    /// Writes of the HPAs that changed a number.
    pub changes: u32,
    /// Of these, the ones in the other direction than the variant's last.
    pub flips: u32,
    /// Share of the requests that were served well, 0 to 1; 1 without requests.
    pub slo_attainment: f64,
    /// Accelerator-hours of all pods that had a node: starting, serving or draining, within the duration.
    pub gpu_hours: f64,
    /// Requests that came.
    pub requests: u64,
    /// Of these, the ones answered to their last token.
    pub finished: u64,
    /// Of these, the ones neither finished nor in error when the run was ended: [`crate::PATIENCE`] after the duration.
    pub unfinished: u64,
    /// Changes by variant, with the moment: at most [`Run::MOST_WRITES`].
    pub writes: Vec<Write>,
    /// The run over time, for plots: at most [`Run::MOST_POINTS`].
    pub series: Vec<Point>,
    /// What the HPAs could read, where it changed: at most [`Run::MOST_WRITES`]. Of a program's own core only, and not
    /// written down.
    #[serde(skip)]
    pub answers: Vec<Answer>,
    /// Decisions at which something that an engine showed was not believed. Not written down either.
    #[serde(skip)]
    pub doubted: u32,
}

impl Run {
    /// The most points of a series.
    pub const MOST_POINTS: usize = 2000;
    /// The most writes that are kept one by one.
    pub const MOST_WRITES: usize = 10_000;
}

/// One change of a variant's number.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Write {
    /// Seconds after the start.
    pub at_s: f64,
    /// The variant's place in the scenario.
    pub variant: usize,
    /// Replicas before.
    pub from: u32,
    /// Replicas after.
    pub to: u32,
}

/// What the HPAs can read from a moment on.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// Seconds after the start.
    pub at_s: f64,
    /// Replicas by variant; `None` is no answer.
    pub numbers: Vec<Option<u32>>,
}

/// One stretch of a run: means over it, unless said otherwise.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Point {
    /// Its end, seconds after the start.
    pub at_s: f64,
    /// Requests a second that came.
    pub rps: f64,
    /// Replicas asked for at its end, by variant.
    pub asked: Vec<u32>,
    /// Ready pods at its end.
    pub ready: u32,
    /// Pods on their way at its end.
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
