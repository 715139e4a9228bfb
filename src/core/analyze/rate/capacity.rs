//! The capacity of one replica, from its step times and the sizes of requests.
//!
//! A replica makes 1/T steps a second, and each gives every one of n sequences a token: n/T tokens a second. A request needs O of them,
//! and its prompt of I tokens is computed once, so that each step computes P = λ·I·T prompt tokens. Put into
//! `T = a + b·P + c·n + d·u`, the load that it carries with n sequences is
//!
//! ```text
//! X(n) = n / (A + n·g)     A = O·a     g = b·I + O·(c + d·k)     k: share of the KV cache that a sequence holds
//! ```
//!
//! and conversely a load λ keeps `n(λ) = A·λ / (1 − g·λ)` sequences running. An engine that only computes prompts makes one step for
//! each; one that only decodes has no b·I.

use crate::learn::{StepTime, StepTimeError, VariantKnowledge};
use crate::model::{RatePolicy, Role};
use crate::moment::Moment;

/// The share of the KV cache that may be planned with: above it, running sequences have no room to grow and preempt each other.
const MAX_CACHE_SHARE: f64 = 0.9;
/// The measured share of a sequence is used if it exceeds the one computed from mean sizes by this factor: large requests stay longer, so that
/// more of the running ones are large.
const MIN_SHARE_EXCESS: f64 = 1.1;
/// Tokens that a request generates, as long as none has finished: corrected within the time that one request takes.
const DEFAULT_OUTPUT: f64 = 200.0;
/// The capacity of a variant that never ran is estimated from its cost, times this factor, because it may be slower.
const UNSEEN_DISCOUNT: f64 = 0.8;
/// 95 of 100 waits with an exponential tail are shorter than this many means: ln 20 = 3.0.
const TAIL_MEANS: f64 = 3.0;
/// Halvings that find a load: a share of 10⁻⁹.
const LOAD_HALVINGS: u32 = 30;

/// The mean request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct RequestSize {
    /// Prompt tokens that are computed.
    pub prompt: f64,
    /// Tokens generated; `None` while no request has finished.
    pub output: Option<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ReplicaCapacity {
    /// Sequences that it runs at most.
    pub max_sequences: f64,
    /// A: seconds that a request takes alone, without `seconds_per_request`.
    pub fixed_seconds: f64,
    /// g: seconds of the replica that each request takes.
    pub seconds_per_request: f64,
    /// Requests a second that may be planned with: its share of utilisation, or what keeps the time to first token.
    pub usable_rate: f64,
    /// The relative standard error of the requests a second, as far as it comes from step times.
    pub relative_error: f64,
}

/// The properties of an engine that its capacity depends on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct EngineModel {
    pub step_time: StepTime,
    pub step_time_error: StepTimeError,
    /// Tokens that its KV cache holds, if that is known.
    pub kv_capacity: Option<f64>,
    /// The measured share of it that a running sequence holds.
    pub sequence_share: Option<f64>,
    /// Tokens that a step gives a sequence, at least 1.
    pub tokens_per_step: f64,
    /// Sequences that it runs at most.
    pub max_sequences: f64,
}

impl EngineModel {
    /// What is known about an engine of `role`; `None` before it was seen working. `argument` is the maximum of sequences that its arguments set,
    /// which nothing learned overrides. `default` is that of its device, which counts without an argument and before a limit was seen. What
    /// was learned too long before `now` counts only if a replica carries less with it.
    pub(crate) fn from_knowledge(
        role: Role,
        known: &VariantKnowledge,
        argument: Option<f64>,
        default: f64,
        now: Moment,
    ) -> Option<Self> {
        // An engine that only computes prompts has no gaps between tokens.
        let by_prompts =
            || known.first_token.filter(|_| role == Role::Prefill).map(StepTime::from_prompt_token);
        let first_token = known.recent_first_token(now);
        Some(Self {
            step_time: known.fit.solve(first_token).or_else(by_prompts)?,
            step_time_error: known.fit.error(first_token).unwrap_or_default(),
            kv_capacity: known.capacity,
            sequence_share: known.occupancy.share(),
            tokens_per_step: known.steps.per_step(),
            max_sequences: argument.unwrap_or_else(|| known.max_sequences(default, now)),
        })
    }
}

struct RequestWork {
    fixed_seconds: f64,
    seconds_per_request: f64,
    /// Share of the KV cache that it holds.
    cache_share: f64,
    /// Seconds of its prompt, computed alone.
    prompt_seconds: f64,
    /// Prompt tokens that it computes.
    prompt_tokens: f64,
    steps: f64,
}

impl ReplicaCapacity {
    /// The capacity of an engine of `role` for such requests; `None` if it is not a positive number.
    pub(crate) fn new(
        role: Role,
        engine: &EngineModel,
        request: RequestSize,
        policy: &RatePolicy,
    ) -> Option<Self> {
        let work = RequestWork::new(role, engine, request);
        let by_cache =
            if work.cache_share > 0.0 { MAX_CACHE_SHARE / work.cache_share } else { f64::INFINITY };
        // The sequences with which a step is still short enough for the target of the time between tokens.
        let within_itl =
            |itl: f64| (work.steps * itl / 1000.0 - work.fixed_seconds) / work.seconds_per_request;
        let by_itl = policy.itl_ms.map_or(f64::INFINITY, within_itl);
        let mut capacity = Self {
            max_sequences: engine.max_sequences.min(by_cache).min(by_itl).max(1.0),
            fixed_seconds: work.fixed_seconds,
            seconds_per_request: work.seconds_per_request,
            usable_rate: 0.0,
            relative_error: 0.0,
        };
        let max_rate = capacity.max_rate();
        // Of the seconds of the replica that each request takes at that rate.
        let error = engine.step_time_error.of(work.terms(capacity.max_sequences));
        capacity.relative_error = error * max_rate;
        let by_utilisation = max_rate * policy.utilisation;
        let by_ttft = policy.ttft_ms.and_then(|ttft| capacity.rate_within_ttft(&work, ttft / 1000.0));
        capacity.usable_rate = by_ttft.map_or(by_utilisation, |rate| by_utilisation.min(rate));
        (max_rate > 0.0 && max_rate.is_finite()).then_some(capacity)
    }

    /// X: the requests a second that it carries for long.
    pub(crate) fn max_rate(&self) -> f64 {
        self.rate_at(self.max_sequences)
    }

    /// X(n): the requests a second that it finishes with `running` sequences.
    pub(crate) fn rate_at(&self, running: f64) -> f64 {
        let running = running.clamp(0.0, self.max_sequences);
        if running > 0.0 { running / (self.fixed_seconds + running * self.seconds_per_request) } else { 0.0 }
    }

    /// n(λ): the sequences that run at `load` requests a second, within the maximum.
    pub(crate) fn running_at(&self, load: f64) -> f64 {
        let idle_share = 1.0 - self.seconds_per_request * load;
        if idle_share > 0.0 {
            (self.fixed_seconds * load / idle_share).min(self.max_sequences)
        } else {
            self.max_sequences
        }
    }

    pub(crate) fn times(self, engines: f64) -> Self {
        Self {
            max_sequences: self.max_sequences * engines,
            seconds_per_request: self.seconds_per_request / engines,
            usable_rate: self.usable_rate * engines,
            ..self
        }
    }

    /// The lower end of the interval in which its capacity is, so many standard errors below what is likely.
    pub(crate) fn lower_end(self, errors: f64) -> Self {
        self.times(1.0 / (1.0 + errors * self.relative_error))
    }

    /// The capacity of a replica that never ran, from one that did and the ratio of their costs.
    pub(crate) fn scaled_to_cost(self, cost_ratio: f64) -> Self {
        self.times(UNSEEN_DISCOUNT * cost_ratio)
    }

    /// The load at which 95 of 100 first tokens come within `limit` seconds; `None` if they do not even without load.
    ///
    /// A prompt waits for the prompts before it, `ρ / (2 (1 − ρ))` on average (M/D/1) at ρ = λ·b·I, and for the step that is running. It is
    /// computed in the next step.
    fn rate_within_ttft(&self, work: &RequestWork, limit: f64) -> Option<f64> {
        let ttft = |load: f64| {
            let utilisation = (load * work.prompt_seconds).min(1.0 - 1e-9);
            let step = (self.fixed_seconds + self.running_at(load) * self.seconds_per_request) / work.steps;
            step + work.prompt_seconds * (1.0 + TAIL_MEANS * utilisation / (2.0 * (1.0 - utilisation)))
        };
        if ttft(0.0) > limit {
            return None;
        }
        let mut low = 0.0;
        let mut high = self.max_rate();
        for _ in 0..LOAD_HALVINGS {
            let middle = f64::midpoint(low, high);
            if ttft(middle) <= limit { low = middle } else { high = middle }
        }
        Some(low)
    }
}

impl RequestWork {
    fn new(role: Role, engine: &EngineModel, request: RequestSize) -> Self {
        let RequestSize { prompt, output } = request;
        let output = output.unwrap_or(DEFAULT_OUTPUT);
        // A sequence holds its prompt and, on average over its life, half of its answer.
        let mean_tokens = if role == Role::Prefill { prompt } else { prompt + output / 2.0 };
        let by_size = engine.kv_capacity.map_or(0.0, |cache| mean_tokens / cache);
        let measured = engine.sequence_share.filter(|share| *share > MIN_SHARE_EXCESS * by_size);
        let cache_share = measured.unwrap_or(by_size);
        let StepTime { base, prompt_token, sequence, full_cache } = engine.step_time;
        let steps = if role == Role::Prefill { 1.0 } else { output / engine.tokens_per_step };
        let prompt_tokens = if role == Role::Decode { 0.0 } else { prompt };
        let prompt_seconds = prompt_token * prompt_tokens;
        let seconds_per_request = prompt_seconds + steps * (sequence + full_cache * cache_share);
        let fixed_seconds = steps * base;
        Self { fixed_seconds, seconds_per_request, cache_share, prompt_seconds, prompt_tokens, steps }
    }

    /// How many of each term of a step time it takes with so many sequences.
    fn terms(&self, sequences: f64) -> [f64; 4] {
        [self.steps / sequences, self.prompt_tokens, self.steps, self.steps * self.cache_share]
    }
}
