//! The load of a trace, whatever its format.

use std::time::Duration;

use wva_sim::Arrival;

/// The most requests that are kept: 240 MB.
pub(super) const MAX_REQUESTS: usize = 10_000_000;
/// The most intervals that are kept: 95 years of ServeGen, two years of recordings.
pub(super) const MAX_INTERVALS: usize = 5_000_000;

/// The load of a trace from its first request on.
#[derive(Debug, Clone, PartialEq)]
pub enum Trace {
    /// The requests in the order of time.
    Requests(Vec<Arrival>),
    /// The rates of consecutive intervals.
    Rates(Vec<RateInterval>),
}

/// A rate over an interval of time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RateInterval {
    /// When it ends, since the trace's start.
    pub until: Duration,
    /// Requests a second.
    pub rps: f64,
    /// Mean tokens of its requests, if the trace has them.
    pub tokens: Option<TokenMeans>,
}

/// Mean tokens of requests.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenMeans {
    /// Of prompts.
    pub prompt: f64,
    /// Generated.
    pub output: f64,
}

/// Sorts requests by time and shifts them so that the first arrives at 0. Some traces are only almost sorted.
pub(super) fn sort_requests(mut requests: Vec<Arrival>) -> Vec<Arrival> {
    requests.sort_by(|left, right| left.at_s.total_cmp(&right.at_s));
    let first = requests.first().map_or(0.0, |request| request.at_s);
    for request in &mut requests {
        request.at_s -= first;
    }
    requests
}
