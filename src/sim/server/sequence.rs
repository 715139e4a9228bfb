//! The three states of a request in a server.

use crate::load::Request;

/// A request that waits to be admitted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Waiting {
    pub(super) request: Request,
    /// Its progress before it was preempted.
    pub(super) progress: Option<Progress>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Progress {
    pub(super) generated: u32,
    pub(super) first_token_s: f64,
    pub(super) last_token_s: f64,
}

impl Waiting {
    /// Tokens that must be in the KV cache before it decodes: its prompt and what it had generated.
    pub(super) fn tokens_to_hold(self) -> u32 {
        self.request.prompt.saturating_add(self.progress.map_or(0, |progress| progress.generated))
    }

    /// Of these, the tokens that must be computed: at least one, even when all are in the prefix cache.
    pub(super) fn tokens_to_compute(self) -> u32 {
        self.tokens_to_hold().saturating_sub(self.request.cached).max(1)
    }
}

/// A request whose prompt is being computed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Prefilling {
    pub(super) waited: Waiting,
    /// Tokens still to be computed.
    pub(super) remaining: u32,
    /// Of these, the tokens of the current step.
    pub(super) chunk: u32,
    /// Its number among all admissions: a higher one is younger.
    pub(super) admission: u64,
}

/// A request that gains tokens in every step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Decoding {
    pub(super) request: Request,
    pub(super) first_token_s: f64,
    /// Steps of the server when it began to decode.
    pub(super) start_step: u64,
    /// Tokens it had generated then.
    pub(super) generated: u32,
    /// The step that gives its last token.
    pub(super) last_step: u64,
    /// Its number among all admissions: a higher one is younger.
    pub(super) admission: u64,
}

impl Decoding {
    /// Tokens generated after `steps`. With several tokens a step, the last step may give more than the output has.
    pub(super) fn generated_at(&self, steps: u64, per_step: f64) -> f64 {
        f64::from(self.generated) + per_step * (steps - self.start_step) as f64
    }

    /// KV tokens it holds after `steps`: its prompt and what it generated.
    pub(super) fn kv_tokens(&self, steps: u64, per_step: f64) -> f64 {
        f64::from(self.request.prompt) + self.generated_at(steps, per_step)
    }
}
