//! One model server, whatever its physics, and what can be read from it: the counters and gauges that vLLM has.

use super::Moment;
use super::batching::BatchingServer;
use super::linear::LinearServer;
use super::load::Request;
use super::physics::Physics;
use super::stats::{Histogram, Stats};

/// Upper bounds of the time-to-first-token histogram, seconds.
const FIRST_TOKEN_BOUNDS: &[f64] = &[0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0];
/// Upper bounds of the inter-token-latency histogram, seconds.
const INTER_TOKEN_BOUNDS: &[f64] = &[0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.5, 1.0];
/// Upper bounds of the token-count histograms.
const TOKEN_BOUNDS: &[f64] =
    &[50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10_000.0, 20_000.0, 50_000.0];

/// What a model server tells of itself. Counters only grow; counts are f64 because the fluid physics serves parts.
#[derive(Debug, Clone, PartialEq)]
pub struct Readings {
    /// Tokens that the KV cache holds: blocks × block size.
    pub kv_tokens: u64,
    /// Tokens of one block.
    pub block_size: u32,
    /// Share of the KV cache in use, 0 to 1.
    pub kv_usage: f64,
    /// Requests waiting.
    pub waiting: f64,
    /// Requests running.
    pub running: f64,
    /// Prompt tokens computed for the first time (counted with the first token, as vLLM does).
    pub prompt_tokens: f64,
    /// Tokens generated.
    pub generation_tokens: f64,
    /// Prompt tokens that were found in the prefix cache.
    pub prefix_hits: f64,
    /// Prompt tokens that were looked for there.
    pub prefix_queries: f64,
    /// Steps done: vLLM's `iteration_tokens_total_count`.
    pub steps: f64,
    /// Sequences that had to give up their memory and start again.
    pub preemptions: f64,
    /// Seconds from arrival to the first token.
    pub first_token: Histogram,
    /// Seconds from one token of a request to its next.
    pub inter_token: Histogram,
    /// Prompt tokens of finished requests.
    pub request_prompt: Histogram,
    /// Generated tokens of finished requests.
    pub request_generation: Histogram,
}

impl Readings {
    pub(super) fn new(kv_tokens: u64, block_size: u32) -> Self {
        Self {
            kv_tokens,
            block_size,
            kv_usage: 0.0,
            waiting: 0.0,
            running: 0.0,
            prompt_tokens: 0.0,
            generation_tokens: 0.0,
            prefix_hits: 0.0,
            prefix_queries: 0.0,
            steps: 0.0,
            preemptions: 0.0,
            first_token: Histogram::new(FIRST_TOKEN_BOUNDS),
            inter_token: Histogram::new(INTER_TOKEN_BOUNDS),
            request_prompt: Histogram::new(TOKEN_BOUNDS),
            request_generation: Histogram::new(TOKEN_BOUNDS),
        }
    }

    /// Requests finished: vLLM's `request_success`.
    #[must_use]
    pub const fn finished(&self) -> f64 {
        self.request_generation.count()
    }
}

/// One replica of a model server.
#[derive(Debug, Clone, PartialEq)]
pub enum Server {
    /// See [`Physics::Batching`].
    Batching(Box<BatchingServer>),
    /// See [`Physics::Linear`].
    Linear(Box<LinearServer>),
}

impl Server {
    /// An empty server that starts at `now`.
    #[must_use]
    pub fn new(physics: Physics, now: Moment) -> Self {
        match physics {
            Physics::Batching(batching) => {
                Self::Batching(Box::new(BatchingServer::new(batching, now.as_secs_f64())))
            }
            Physics::Linear(linear) => Self::Linear(Box::new(LinearServer::new(linear, now))),
        }
    }

    /// What can be read from it now.
    #[must_use]
    pub const fn readings(&self) -> &Readings {
        match self {
            Self::Batching(server) => server.readings(),
            Self::Linear(server) => server.readings(),
        }
    }

    /// Requests in it: waiting and running.
    #[must_use]
    pub fn in_flight(&self) -> f64 {
        match self {
            Self::Batching(server) => server.in_flight() as f64,
            Self::Linear(server) => server.in_flight(),
        }
    }

    /// How long the longest-waiting request has waited until `now`, or would wait if it came now (fluid).
    #[must_use]
    pub fn oldest_wait_s(&self, now: Moment) -> f64 {
        match self {
            Self::Batching(server) => server.oldest_wait_s(now.as_secs_f64()),
            Self::Linear(server) => server.wait_s(),
        }
    }

    /// Lets it work until `to`.
    pub(super) fn advance(&mut self, to: Moment, stats: &mut Stats) {
        match self {
            Self::Batching(server) => server.advance(to.as_secs_f64(), stats),
            Self::Linear(server) => server.advance(to, stats),
        }
    }

    /// Gives it a request at `now`, which it has worked until; `Err` when it refuses it (a full queue, or more tokens than its memory holds).
    pub(super) fn submit(&mut self, request: Request, now: Moment) -> Result<(), Request> {
        match self {
            Self::Batching(server) => server.submit(request, now.as_secs_f64()),
            Self::Linear(_) => Err(request),
        }
    }

    /// Sets the rate that flows into a fluid server.
    pub(super) fn offer(&mut self, rps: f64) {
        if let Self::Linear(server) = self {
            server.offer(rps);
        }
    }

    /// Pours requests that waited elsewhere into a fluid server.
    pub(super) fn pour(&mut self, requests: f64) {
        if let Self::Linear(server) = self {
            server.pour(requests);
        }
    }

    /// How full it is for the router: lower is better. Queue- and memory-aware, like the scorers of the llm-d
    /// endpoint picker: 0.2 a queued request, memory's share including queued prompts, half of the share of slots.
    pub(super) fn pressure(&self, now: Moment) -> f64 {
        match self {
            Self::Batching(server) => server.pressure(now.as_secs_f64()),
            Self::Linear(server) => server.in_flight(),
        }
    }
}
