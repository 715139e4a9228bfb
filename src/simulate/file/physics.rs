//! The physics of a replica in a scenario file: a preset by name, parameters, or both. The presets are a data file that names its
//! sources.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use wva_core::units::truncated_u32;
use wva_sim::{Physics, TP1};

use super::super::values::{
    BaseSeconds, Factor, PositiveCount, Share, StallSeconds, StepSeconds, Surcharge, TokenCapacity,
    TokensPerStep,
};

/// How fast a replica is: a step takes stepSeconds + promptTokenSeconds × prompt tokens computed in it + sequenceSeconds ×
/// running requests + kvTokenSeconds × tokens held in the KV cache.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PhysicsFile {
    /// A preset (`wva simulate physics` lists them). Other fields replace its values.
    pub preset: Option<String>,
    /// Seconds of an empty step: reading the weights once, and overhead.
    pub step_seconds: Option<BaseSeconds>,
    /// Seconds for each prompt token computed in a step.
    pub prompt_token_seconds: Option<StepSeconds>,
    /// Seconds for each running request.
    pub sequence_seconds: Option<StepSeconds>,
    /// Seconds for each token held in the KV cache.
    pub kv_token_seconds: Option<StepSeconds>,
    /// Tokens that the KV cache holds: vLLM logs "GPU KV cache size" at its start.
    pub kv_tokens: Option<TokenCapacity>,
    /// Requests that may run at once: --max-num-seqs. 256 by default.
    pub max_sequences: Option<PositiveCount>,
    /// Tokens that a step may compute: --max-num-batched-tokens. 8192 by default.
    pub token_budget: Option<TokenCapacity>,
    /// Tokens of one KV block. 16 by default.
    pub block_size: Option<PositiveCount>,
    /// Tokens that a request gains in a step, with speculative decoding. 1 by default.
    pub tokens_per_step: Option<TokensPerStep>,
    /// Every step takes this many times as long.
    pub slower: Option<Factor>,
}

/// How step times deviate from that formula.
#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DeviationsFile {
    /// Long prompts cost more per token: P prompt tokens in a step take 1 + this × P times as long.
    pub prompt_token: Option<Share>,
    /// A full KV cache is read more slowly: 1 + this × its share in use.
    pub kv_share: Option<Surcharge>,
    /// Every step takes up to this share more or less, uniformly distributed.
    pub noise: Option<Share>,
    /// Share of steps that stall.
    pub stalls: Option<Share>,
    /// How long a stall lasts.
    pub stall_seconds: Option<StallSeconds>,
    /// Seconds to read all experts of a mixture-of-experts model. A step reads those that its tokens are routed to.
    pub expert_seconds: Option<StepSeconds>,
    /// Share of the experts that a token is routed to.
    pub expert_share: Option<Share>,
}

/// A preset.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PhysicsEntry {
    /// The model, for people.
    pub model: String,
    /// The accelerator, for people.
    pub accelerator: String,
    /// Where the numbers come from.
    pub source: String,
    /// As [`PhysicsFile`]'s.
    pub step_seconds: f64,
    /// As [`PhysicsFile`]'s.
    pub prompt_token_seconds: f64,
    /// As [`PhysicsFile`]'s.
    pub sequence_seconds: f64,
    /// As [`PhysicsFile`]'s.
    pub kv_token_seconds: f64,
    /// As [`PhysicsFile`]'s.
    pub kv_tokens: u32,
}

/// The data file.
const PRESETS: &str = include_str!("../physics.yaml");

/// Every preset by its name. Empty if the data file were invalid, which a test excludes.
pub fn known_physics() -> &'static BTreeMap<String, PhysicsEntry> {
    static KNOWN: LazyLock<BTreeMap<String, PhysicsEntry>> =
        LazyLock::new(|| serde_saphyr::from_str(PRESETS).unwrap_or_default());
    &KNOWN
}

/// The preset of that name, or the names there are.
pub(crate) fn preset(name: &str) -> Result<&'static PhysicsEntry, String> {
    let names = || known_physics().keys().map(String::as_str).collect::<Vec<_>>().join(", ");
    known_physics().get(name).ok_or_else(|| format!("no preset {name:?}: must be one of {}", names()))
}

impl PhysicsEntry {
    /// The physics with the defaults of vLLM.
    pub(crate) const fn physics(&self) -> Physics {
        Physics {
            base_s: self.step_seconds,
            per_prompt_token_s: self.prompt_token_seconds,
            per_sequence_s: self.sequence_seconds,
            per_kv_token_s: self.kv_token_seconds,
            kv_tokens: self.kv_tokens,
            ..TP1
        }
    }
}

impl PhysicsFile {
    /// The physics of the file, or what is missing.
    pub(crate) fn physics(&self) -> Result<Physics, String> {
        let needed = [
            ("kvTokens", self.kv_tokens.is_some()),
            ("stepSeconds", self.step_seconds.is_some()),
            ("promptTokenSeconds", self.prompt_token_seconds.is_some()),
            ("sequenceSeconds", self.sequence_seconds.is_some()),
            ("kvTokenSeconds", self.kv_token_seconds.is_some()),
        ];
        let mut physics = match (&self.preset, needed.iter().find(|(_, is_set)| !is_set)) {
            (Some(name), _) => preset(name)?.physics(),
            (None, Some((name, _))) => return Err(format!("without a preset, {name} is needed")),
            // All that differs from vLLM's defaults is replaced.
            (None, None) => TP1,
        };
        let seconds = |own: Option<StepSeconds>, of_preset| own.map_or(of_preset, StepSeconds::get);
        physics.base_s = self.step_seconds.map_or(physics.base_s, BaseSeconds::get);
        physics.per_prompt_token_s = seconds(self.prompt_token_seconds, physics.per_prompt_token_s);
        physics.per_sequence_s = seconds(self.sequence_seconds, physics.per_sequence_s);
        physics.per_kv_token_s = seconds(self.kv_token_seconds, physics.per_kv_token_s);
        let whole = |own: Option<f64>, of_preset: u32| own.map_or(of_preset, truncated_u32);
        physics.kv_tokens = whole(self.kv_tokens.map(TokenCapacity::get), physics.kv_tokens);
        physics.block_size = whole(self.block_size.map(PositiveCount::get), physics.block_size);
        physics.max_sequences = whole(self.max_sequences.map(PositiveCount::get), physics.max_sequences);
        physics.token_budget = whole(self.token_budget.map(TokenCapacity::get), physics.token_budget);
        physics.tokens_per_step = self.tokens_per_step.map_or(1.0, TokensPerStep::get);
        Ok(self.slower.map_or(physics, |factor| physics.slower(factor.get())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The simulator has the same servers as constants, because it reads no files.
    #[test]
    fn the_data_file_agrees_with_the_simulators_constants() {
        let known: BTreeMap<String, PhysicsEntry> = serde_saphyr::from_str(PRESETS).unwrap();
        assert!(known.values().all(|entry| entry.source.len() > 20));
        for (name, constant) in
            [("h100-8b-tp1", TP1), ("h100-8b-tp2", wva_sim::TP2), ("a100-llama31-8b-tp2", wva_sim::A100_TP2)]
        {
            assert_eq!(known[name].physics(), constant, "{name}");
        }
    }

    #[test]
    fn other_fields_replace_those_of_the_preset() {
        let read = |text: &str| serde_saphyr::from_str::<PhysicsFile>(text).unwrap().physics();
        let changed = read("{preset: h100-8b-tp1, kvTokens: 240000, slower: 2}").unwrap();
        assert_eq!(changed, Physics { kv_tokens: 240_000, ..TP1.slower(2.0) });
        assert!(read("{preset: h100}").unwrap_err().starts_with("no preset \"h100\": must be one of a100-"));
        assert_eq!(read("{kvTokens: 1}").unwrap_err(), "without a preset, stepSeconds is needed");
    }
}
