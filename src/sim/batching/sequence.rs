//! Requests in a server, in the three states they can be in.

use crate::load::Request;

/// A request that waits for a place.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Waiting {
    pub(super) request: Request,
    /// What it had done before it was preempted.
    pub(super) before: Option<Before>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Before {
    pub(super) generated: u32,
    pub(super) first_token_s: f64,
    pub(super) last_token_s: f64,
}

impl Waiting {
    /// Tokens that have to be in memory before it decodes: its prompt, and what it had generated.
    pub(super) fn to_hold(self) -> u32 {
        self.request.prompt.saturating_add(self.before.map_or(0, |before| before.generated))
    }

    /// Of these, the tokens that have to be computed.
    pub(super) fn to_compute(self) -> u32 {
        self.to_hold().saturating_sub(self.request.cached).max(1)
    }
}

/// A request whose prompt is being computed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Prefilling {
    pub(super) waited: Waiting,
    /// Tokens still to be computed.
    pub(super) left: u32,
    /// Of these, in the step that is under way.
    pub(super) chunk: u32,
    /// Counts admissions.
    pub(super) ticket: u64,
}

/// A request that gains tokens in every step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Decoding {
    pub(super) request: Request,
    pub(super) first_token_s: f64,
    /// The step after which it began to decode, and the tokens it had then.
    pub(super) joined: u64,
    pub(super) generated: u32,
    /// The step that gives its last token.
    pub(super) finish: u64,
    /// Counts admissions.
    pub(super) ticket: u64,
}

impl Decoding {
    /// Tokens generated after `steps`; with several a step, the last step may give more than was asked for.
    pub(super) fn generated_at(&self, steps: u64, per_step: f64) -> f64 {
        f64::from(self.generated) + per_step * (steps - self.joined) as f64
    }

    /// KV tokens it holds after `steps`: its prompt, and what it generated.
    pub(super) fn held(&self, steps: u64, per_step: f64) -> f64 {
        f64::from(self.request.prompt) + self.generated_at(steps, per_step)
    }
}
