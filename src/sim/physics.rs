//! What makes a model server fast or slow: numbers, closed forms, and known servers with the sources of their numbers. No
//! state: that is in `server`.

use super::sizes::RequestSizes;

/// A server with continuous batching. A step with P prompt tokens, n running sequences and K tokens in the KV cache takes
/// `base + per_prompt_token·P + per_sequence·n + per_kv_token·K` seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Physics {
    /// Seconds of an empty step: reading the weights once, plus overhead.
    pub base_s: f64,
    /// Seconds per prompt token computed in the step.
    pub per_prompt_token_s: f64,
    /// Seconds per running sequence: sampling and scheduling.
    pub per_sequence_s: f64,
    /// Seconds per token held in the KV cache, which is read in every step.
    pub per_kv_token_s: f64,
    /// Tokens that the KV cache holds.
    pub kv_tokens: u32,
    /// Tokens of one KV block.
    pub block_size: u32,
    /// Sequences that may run at once.
    pub max_sequences: u32,
    /// Requests that it holds at most, waiting or running: it refuses further ones. vLLM has such a limit with `--max-num-queued-reqs`,
    /// and none by default.
    pub max_in_flight: u32,
    /// Tokens a step may compute: first those of the decoding sequences, the rest for prompts.
    pub token_budget: u32,
    /// Tokens that a decoding sequence gains in a step: 1, or more with speculative decoding.
    pub tokens_per_step: f64,
}

/// How the time of a step deviates from the formula of [`Physics`]. All zero by default.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Deviations {
    /// Long prompts cost more per token: the prompt term of a step with P prompt tokens is multiplied by `1 + this·P`.
    /// 0 to 1.
    pub per_prompt_token: f64,
    /// A full cache is read more slowly: the KV term is multiplied by `1 + this·share in use`. 0 to 100.
    pub per_kv_share: f64,
    /// Every step takes up to this share more or less, uniformly distributed. 0 to 1.
    pub noise: f64,
    /// Share of steps that stall. 0 to 1.
    pub stalls: f64,
    /// Duration of a stall, seconds. 0 to 3600.
    pub stall_s: f64,
    /// Seconds to read all experts of a mixture-of-experts model. A step reads those that its tokens are routed to, so this part
    /// of its time is concave in the tokens.
    pub experts_s: f64,
    /// Share of the experts that a token is routed to. 0 to 1.
    pub expert_share: f64,
}

impl Deviations {
    /// No two steps of a server take the same time, even while the same requests run.
    pub(super) fn differs_by_step(&self) -> bool {
        self.noise > 0.0 || self.per_kv_share > 0.0
    }

    /// Seconds of reading the experts of `tokens`.
    pub(super) fn experts_s(&self, tokens: f64) -> f64 {
        if self.experts_s > 0.0 {
            self.experts_s * (1.0 - (1.0 - self.expert_share).powf(tokens))
        } else {
            0.0
        }
    }
}

impl Physics {
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

    /// Share of the KV cache that sustained load can use; above it, growing sequences preempt each other.
    const USABLE_KV_SHARE: f64 = 0.9;

    /// Sequences that run at once under full load.
    #[must_use]
    pub fn full_concurrency(&self, tokens: RequestSizes) -> f64 {
        let fitting = Self::USABLE_KV_SHARE * f64::from(self.kv_tokens) / Self::held_tokens(tokens);
        fitting.min(f64::from(self.max_sequences)).max(1.0)
    }

    /// The requests a second that one replica can sustain: its throughput at full concurrency.
    #[must_use]
    pub fn capacity_rps(&self, tokens: RequestSizes) -> f64 {
        self.throughput_rps(self.full_concurrency(tokens), tokens)
    }

    /// Requests a second with `n` sequences running: a replica makes 1/T steps a second, each step gives every sequence
    /// one of its output tokens, and every request costs its prompt once.
    #[must_use]
    pub fn throughput_rps(&self, n: f64, tokens: RequestSizes) -> f64 {
        let residence = self.residence(tokens);
        n / (residence.alone_s + n * residence.per_request_s)
    }

    /// Sequences that run in steady state at `rps`, below capacity; the inverse of [`Self::throughput_rps`].
    #[must_use]
    pub fn concurrency(&self, rps: f64, tokens: RequestSizes) -> f64 {
        let residence = self.residence(tokens);
        residence.alone_s * rps / (1.0 - residence.per_request_s * rps)
    }

    /// KV tokens that a request holds on average over its life: all of its prompt, half of its output.
    fn held_tokens(tokens: RequestSizes) -> f64 {
        tokens.prompt + tokens.output / 2.0
    }

    fn residence(&self, tokens: RequestSizes) -> Residence {
        let steps = tokens.output / self.tokens_per_step;
        let per_step_s = self.per_sequence_s + self.per_kv_token_s * Self::held_tokens(tokens);
        Residence {
            alone_s: steps * self.base_s,
            per_request_s: self.per_prompt_token_s * tokens.prompt + steps * per_step_s,
        }
    }
}

/// How long a request stays in a server.
struct Residence {
    /// Seconds of all its steps when nothing else runs.
    alone_s: f64,
    /// Seconds that each running request, itself included, adds to that.
    per_request_s: f64,
}

/// One H100 with an 8B-class model, calibrated against the latencies and backlogs of llm-d's published runs. Reading 16 GB
/// of weights at 3.35 TB/s plus overhead takes 5.5 ms; 131 kB of KV cache a token at 3.35 TB/s take 38 ns; with 24 µs a
/// prompt token, the median first token of a 4000-token prompt comes after the published 139 ms; sampling takes about
/// 10 µs a sequence.
pub const TP1: Physics = Physics {
    base_s: 5.5e-3,
    per_prompt_token_s: 24e-6,
    per_sequence_s: 10e-6,
    per_kv_token_s: 38e-9,
    kv_tokens: 480_000,
    block_size: 16,
    max_sequences: 256,
    max_in_flight: u32::MAX,
    token_budget: 8192,
    tokens_per_step: 1.0,
};

/// The same model on two such accelerators, set so that the simulated cost of the mixed fleet of llm-d's published runs
/// equals the published one. Measured hardware of this kind prefills 4096 tokens in 234 ms on two A100.
pub const TP2: Physics = Physics {
    base_s: 5.2e-3,
    per_prompt_token_s: 13.2e-6,
    per_sequence_s: 8.5e-6,
    per_kv_token_s: 19.8e-9,
    kv_tokens: 1_100_000,
    ..TP1
};

/// Llama-3.1-8B on two A100, as measured (SageServe, `data/Llama-3.1-8B-tp-2.csv`, MIT): decode steps of 8.5 ms at batch
/// 1 and 16.1 ms at batch 32 with 576 tokens each, 8.8 ms with one sequence of 4,160; 4096 tokens prefilled in 234 ms.
/// Real prefill grows faster than its length (8192 tokens: 542 ms, here 460). KV: 90 % of 160 GB without 16 GB of
/// weights, at 131 kB a token.
pub const A100_TP2: Physics = Physics {
    base_s: 8.23e-3,
    per_prompt_token_s: 55e-6,
    per_sequence_s: 194e-6,
    per_kv_token_s: 86e-9,
    kv_tokens: 976_000,
    ..TP1
};

/// The emulated server that the chain of WVA, Prometheus and prometheus-adapter was measured with: 16 requests run for 4 s
/// each and fill nine tenths of the KV cache, so that it serves 4 requests/s of [`EMULATED_4RPS_SIZES`].
pub const EMULATED_4RPS: Physics = Physics {
    base_s: 0.016,
    per_prompt_token_s: 0.0,
    per_sequence_s: 0.0,
    per_kv_token_s: 0.0,
    kv_tokens: 20_000,
    max_sequences: 16,
    ..TP1
};

/// The requests of [`EMULATED_4RPS`]: 250 steps of 16 ms.
pub const EMULATED_4RPS_SIZES: RequestSizes = RequestSizes::fixed(1000.0, 250.0);

#[cfg(test)]
mod tests {
    use super::*;

    /// Check values computed from the same closed form by hand, to their printed digits.
    #[test]
    fn capacity_matches_the_published_check_values() {
        for (prompt, output, n_max, expected) in
            [(4000.0, 1000.0, 96.0, 2.991), (1000.0, 250.0, 256.0, 23.497), (100.0, 1000.0, 256.0, 17.642)]
        {
            let tokens = RequestSizes::fixed(prompt, output);
            assert!((TP1.full_concurrency(tokens) - n_max).abs() < 1e-9, "{prompt}/{output}");
            let x = TP1.capacity_rps(tokens);
            assert!((x - expected).abs() < 6e-4, "{prompt}/{output}: {x}");
        }
        assert!((TP2.capacity_rps(RequestSizes::fixed(4000.0, 1000.0)) - 5.7).abs() < 0.1);
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
        let tokens = RequestSizes::fixed(1000.0, 250.0);
        let n = TP1.concurrency(15.0, tokens);
        assert!((TP1.throughput_rps(n, tokens) - 15.0).abs() < 1e-9);
    }

    #[test]
    fn the_emulated_server_is_the_one_of_the_published_comparison() {
        let capacity_rps = EMULATED_4RPS.capacity_rps(EMULATED_4RPS_SIZES);
        assert!((capacity_rps - 4.0).abs() < 1e-9, "{capacity_rps}");
        let kv_tokens =
            EMULATED_4RPS.full_concurrency(EMULATED_4RPS_SIZES) * Physics::held_tokens(EMULATED_4RPS_SIZES);
        assert!((kv_tokens / f64::from(EMULATED_4RPS.kv_tokens) - 0.9).abs() < 1e-9);
        assert_eq!(EMULATED_4RPS.kv_tokens, 20_000);
        assert!((EMULATED_4RPS.base_s - 0.016).abs() < 1e-12, "seconds between two tokens");
    }
}
