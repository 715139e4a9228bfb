//! What makes a server fast or slow, as numbers and closed forms. No state: that is in `batching` and `linear`.

use super::invalid::{Field, Invalid};
use super::load::TokenShape;

/// How a server behaves.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Physics {
    /// Continuous batching, request by request.
    Batching(Batching),
    /// A fluid with a fixed rate: the emulated server of the published comparison.
    Linear(Linear),
}

impl Physics {
    /// The requests a second that one replica can carry for long.
    #[must_use]
    pub fn capacity_rps(&self, tokens: TokenShape) -> f64 {
        match self {
            Self::Batching(batching) => batching.capacity_rps(tokens),
            Self::Linear(linear) => linear.rps,
        }
    }
}

/// Continuous batching: a step takes `base + per_prompt_token·P + per_sequence·n + per_kv_token·K` seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Batching {
    /// Seconds of an empty step: reading the weights once, and overhead.
    pub base_s: f64,
    /// Seconds for each prompt token computed in the step.
    pub per_prompt_token_s: f64,
    /// Seconds for each running sequence: sampling and scheduling.
    pub per_sequence_s: f64,
    /// Seconds for each token held in the KV cache: it is read in every step.
    pub per_kv_token_s: f64,
    /// Tokens that the KV cache holds.
    pub kv_tokens: u32,
    /// Tokens of one KV block.
    pub block_size: u32,
    /// Sequences that may run at once.
    pub max_sequences: u32,
    /// Tokens a step may compute: those of each decoding sequence, the rest for prompts.
    pub token_budget: u32,
    /// Tokens that a decoding sequence gains in a step: 1, more with speculative decoding.
    pub tokens_per_step: f64,
}

/// Where a server is not as simple as [`Batching`]'s step. All zero by default.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Rough {
    /// Prompts get dearer with length: a step with P prompt tokens pays `1 + this·P` times their price. 0 to 1.
    pub per_prompt_token: f64,
    /// A full cache is read more slowly: its price is `1 + this·share` times. 0 to 100.
    pub per_kv_share: f64,
    /// Every step takes uniformly so much more or less, as a share of it. 0 to 1.
    pub noise: f64,
    /// Share of steps that stall. 0 to 1.
    pub stalls: f64,
    /// Seconds that a stall lasts. 0 to 3600.
    pub stall_s: f64,
}

impl Rough {
    pub(super) fn check(&self, field: &Field<'_>) -> Result<(), Invalid> {
        field.at("per_prompt_token").number(self.per_prompt_token, 0.0, 1.0)?;
        field.at("per_kv_share").number(self.per_kv_share, 0.0, 100.0)?;
        field.at("noise").number(self.noise, 0.0, 1.0)?;
        field.at("stalls").number(self.stalls, 0.0, 1.0)?;
        field.at("stall_s").number(self.stall_s, 0.0, 3600.0)
    }

    /// Steps differ by chance.
    pub(super) fn by_chance(&self) -> bool {
        self.noise > 0.0 || self.stalls > 0.0
    }
}

impl Batching {
    pub(super) fn check(&self, field: &Field<'_>) -> Result<(), Invalid> {
        let seconds = [
            ("base_s", self.base_s),
            ("per_prompt_token_s", self.per_prompt_token_s),
            ("per_sequence_s", self.per_sequence_s),
            ("per_kv_token_s", self.per_kv_token_s),
        ];
        seconds.into_iter().try_for_each(|(name, value)| field.at(name).number(value, 0.0, 60.0))?;
        field.at("base_s").number(self.base_s, 1e-6, 60.0)?;
        let counts = [
            ("kv_tokens", self.kv_tokens),
            ("block_size", self.block_size),
            ("max_sequences", self.max_sequences),
            ("token_budget", self.token_budget),
        ];
        counts.into_iter().try_for_each(|(name, value)| {
            field.at(name).number(f64::from(value), 1.0, f64::from(u32::MAX))
        })?;
        field.at("tokens_per_step").number(self.tokens_per_step, 1.0, 64.0)
    }

    /// Every step takes `factor` times as long, and so does a request: slower hardware.
    #[must_use]
    pub fn slower(self, factor: f64) -> Self {
        Self {
            base_s: self.base_s * factor,
            per_prompt_token_s: self.per_prompt_token_s * factor,
            per_sequence_s: self.per_sequence_s * factor,
            per_kv_token_s: self.per_kv_token_s * factor,
            ..self
        }
    }

    /// Share of the KV cache that long-running load can use; above it, growing sequences preempt each other.
    const USABLE_KV: f64 = 0.9;

    /// Sequences that run at once under full load.
    #[must_use]
    pub fn full_concurrency(&self, tokens: TokenShape) -> f64 {
        let by_memory = Self::USABLE_KV * f64::from(self.kv_tokens) / Self::held(tokens);
        by_memory.min(f64::from(self.max_sequences)).max(1.0)
    }

    /// The requests a second that one replica can carry for long: its throughput at full concurrency.
    #[must_use]
    pub fn capacity_rps(&self, tokens: TokenShape) -> f64 {
        self.throughput_rps(self.full_concurrency(tokens), tokens)
    }

    /// Requests a second with `n` sequences running: one replica makes 1/T steps a second, each gives every sequence
    /// one of its output tokens, and every request costs its prompt once.
    #[must_use]
    pub fn throughput_rps(&self, n: f64, tokens: TokenShape) -> f64 {
        let (fixed, each) = self.costs(tokens);
        n / (fixed + n * each)
    }

    /// Sequences that run in steady state at `rps`, below capacity; the inverse of [`Self::throughput_rps`].
    #[must_use]
    pub fn concurrency(&self, rps: f64, tokens: TokenShape) -> f64 {
        let (fixed, each) = self.costs(tokens);
        fixed * rps / (1.0 - each * rps)
    }

    /// KV tokens that a request holds on average over its life: all of its prompt, half of its output.
    fn held(tokens: TokenShape) -> f64 {
        f64::from(tokens.prompt) + f64::from(tokens.output) / 2.0
    }

    /// Seconds of a request's whole output alone, and seconds that each concurrent request adds to it.
    fn costs(&self, tokens: TokenShape) -> (f64, f64) {
        let output = f64::from(tokens.output) / self.tokens_per_step;
        let each_step = self.per_sequence_s + self.per_kv_token_s * Self::held(tokens);
        (output * self.base_s, self.per_prompt_token_s * f64::from(tokens.prompt) + output * each_step)
    }
}

/// A fluid server: it serves `rps`, no more; what comes above waits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Linear {
    /// Requests a second that it serves.
    pub rps: f64,
    /// KV-cache use at exactly that load; proportional below, at most 1 above.
    pub kv_at_capacity: f64,
    /// Seconds a request runs: `running` is this times the rate served.
    pub residence_s: f64,
    /// Seconds to the first token when nothing waits.
    pub first_token_s: f64,
    /// Tokens of every request.
    pub tokens: TokenShape,
    /// Tokens of one KV block.
    pub block_size: u32,
}

impl Linear {
    /// KV-cache size that fits the rest: at capacity, the running requests hold `kv_at_capacity` of it.
    #[must_use]
    pub fn kv_tokens(&self) -> f64 {
        self.rps * self.residence_s * Batching::held(self.tokens) / self.kv_at_capacity
    }

    /// Seconds between two tokens of one request.
    #[must_use]
    pub fn inter_token_s(&self) -> f64 {
        self.residence_s / f64::from(self.tokens.output.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::super::presets::{A100_TP2, LINEAR4, TP1, TP2};
    use super::*;

    /// The check values of the policy's specification (decision.md §2.4), to their printed digits.
    #[test]
    fn capacity_matches_the_published_check_values() {
        for (prompt, output, n_max, expected) in
            [(4000, 1000, 96.0, 2.991), (1000, 250, 256.0, 23.497), (100, 1000, 256.0, 17.642)]
        {
            let tokens = TokenShape::fixed(prompt, output);
            assert!((TP1.full_concurrency(tokens) - n_max).abs() < 1e-9, "{prompt}/{output}");
            let x = TP1.capacity_rps(tokens);
            assert!((x - expected).abs() < 6e-4, "{prompt}/{output}: {x}");
        }
        assert!((TP2.capacity_rps(TokenShape::fixed(4000, 1000)) - 5.7).abs() < 0.1);
    }

    /// The measured file's own rows: (prompt tokens computed, sequences, KV tokens) and the seconds they took.
    #[test]
    fn the_measured_preset_gives_the_measured_times() {
        let rows = [
            (0.0, 1.0, 576.0, 8.51e-3),
            (0.0, 8.0, 4608.0, 10.21e-3),
            (0.0, 32.0, 18_432.0, 16.06e-3),
            (0.0, 1.0, 4160.0, 8.78e-3),
            (4096.0, 1.0, 4096.0, 0.234),
        ];
        for (prompt, sequences, kv, measured) in rows {
            let step = A100_TP2.base_s
                + A100_TP2.per_prompt_token_s * prompt
                + A100_TP2.per_sequence_s * sequences
                + A100_TP2.per_kv_token_s * kv;
            assert!((step / measured - 1.0).abs() < 0.03, "{prompt} {sequences} {kv}: {step} vs {measured}");
        }
    }

    #[test]
    fn concurrency_is_the_inverse_of_throughput() {
        let tokens = TokenShape::fixed(1000, 250);
        let n = TP1.concurrency(15.0, tokens);
        assert!((TP1.throughput_rps(n, tokens) - 15.0).abs() < 1e-9);
    }

    #[test]
    fn the_fluid_server_is_the_one_of_the_published_comparison() {
        assert!(
            (LINEAR4.rps - 4.0).abs() < f64::EPSILON && (LINEAR4.kv_at_capacity - 0.9).abs() < f64::EPSILON
        );
        assert!((LINEAR4.kv_tokens() - 20_000.0).abs() < 1e-6);
        assert!((LINEAR4.inter_token_s() - 0.016).abs() < 1e-12);
    }
}
