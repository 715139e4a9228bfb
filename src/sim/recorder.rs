//! What a run or a live fleet is told about the fate of its requests.

use crate::gaps::TokenGaps;
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
