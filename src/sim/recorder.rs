//! How a run or a live fleet records what becomes of its requests.

use crate::load::Request;

/// Records what becomes of requests. Whatever a recorder has no use for, it ignores.
pub(crate) trait Recorder {
    /// A request arrived at the gateway.
    fn arrived(&mut self);
    /// A request began to run after `wait_s` seconds in queues.
    fn started(&mut self, _wait_s: f64) {}
    /// A request got its first token at `at_s`, `ttft_s` seconds after it arrived.
    fn first_token(&mut self, at_s: f64, ttft_s: f64);
    /// Requests in one server got further tokens.
    fn token_gaps(&mut self, _gaps: TokenGaps) {}
    /// A request was answered to its last token.
    fn finished(&mut self, served: ServedRequest);
    /// `requests` were refused, or cut off when their pod was killed.
    fn failed(&mut self, requests: usize);
    /// A request will never get a first token: it waited in vain until `at_s`.
    fn unanswered(&mut self, _request: Request, _at_s: f64) {}
}

/// A request that was answered.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ServedRequest {
    pub(crate) request: Request,
    /// When it got its first token, seconds after the start.
    pub(crate) first_token_s: f64,
    /// When it got its last token, seconds after the start.
    pub(crate) finished_s: f64,
}

/// Gaps between tokens over consecutive steps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct TokenGaps {
    /// Seconds of the first step.
    pub(crate) first_s: f64,
    /// By how many seconds each step is longer than the one before, at least 0.
    pub(crate) growth_s: f64,
    /// Number of steps, at least 1.
    pub(crate) steps: u64,
    /// Requests that got a token in each step.
    pub(crate) requests: f64,
}

impl TokenGaps {
    /// The gap of the last step, seconds.
    pub(crate) fn last_s(self) -> f64 {
        self.first_s + self.growth_s * (self.steps - 1) as f64
    }

    /// The sum over all requests and steps, seconds.
    pub(crate) fn sum_s(self) -> f64 {
        self.requests * self.steps as f64 * (self.first_s + self.last_s()) / 2.0
    }

    /// Number of gaps.
    pub(crate) fn count(self) -> f64 {
        self.requests * self.steps as f64
    }
}
