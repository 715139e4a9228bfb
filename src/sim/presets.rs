//! Known servers, each with where its numbers come from. Values only.

use super::load::TokenShape;
use super::physics::{Batching, Linear};

/// One H100 with an 8B-class model, calibrated against published latencies and backlogs (decision.md §3.1):
/// weights 16 GB at 3.35 TB/s and overhead = 5.5 ms; KV 131 kB a token at 3.35 TB/s = 38 ns; 24 µs a prompt token
/// puts the median first token of a 4000-token prompt at the published 139 ms; sampling costs about 10 µs a sequence.
pub const TP1: Batching = Batching {
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

/// The same model on two such accelerators (decision.md §3.1): set so that the published cost of the mixed fleet comes
/// out; measured hardware of this kind prefills 4096 tokens in 234 ms on two A100.
pub const TP2: Batching = Batching {
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
pub const A100_TP2: Batching = Batching {
    base_s: 8.23e-3,
    per_prompt_token_s: 55e-6,
    per_sequence_s: 194e-6,
    per_kv_token_s: 86e-9,
    kv_tokens: 976_000,
    ..TP1
};

/// The emulated server that the chain of WVA, Prometheus and prometheus-adapter was measured with:
/// 4 requests/s, KV use 0.9 there, four running for each request/s served, 1000 prompt and 250 output tokens.
pub const LINEAR4: Linear = Linear {
    rps: 4.0,
    kv_at_capacity: 0.9,
    residence_s: 4.0,
    first_token_s: 0.1,
    tokens: TokenShape::fixed(1000, 250),
    block_size: 16,
};
