//! Known servers, each with the source of its numbers. Values only.

use super::physics::Physics;
use super::sizes::RequestSizes;

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
