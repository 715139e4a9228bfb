//! The type of files that describe random scenarios by their ranges.

use schemars::JsonSchema;
use serde::Deserialize;

use super::super::values::{Count, Length, MeanTokens, Share, SomePods, Span, Times};

/// A scenario that each seed draws: tokens, hardware, start-up and load.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RandomFile {
    /// A description for people.
    #[serde(default)]
    pub about: Option<String>,
    /// The ranges.
    pub random: RandomLoad,
}

/// The ranges of a random scenario. Values are drawn uniformly and independently; `slower` and `factor` uniformly in their
/// logarithm.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RandomLoad {
    /// The preset that hardware and KV cache are multiples of.
    pub preset: String,
    /// Mean tokens of prompts and outputs: one of these.
    pub tokens: Vec<Shape>,
    /// Sizes are uniform in the mean ± this share.
    pub spread: Share,
    /// Multiplies the time of steps.
    pub slower: Range,
    /// Multiplies the size of the KV cache.
    pub kv: Range,
    /// Time from a pod's creation until it is ready.
    pub start_up: TimeRange,
    /// Number of parts of the load.
    pub parts: Count,
    /// Duration of each part.
    pub part: Length,
    /// Load of the first part, in replicas at full load.
    pub first: Range,
    /// Load of each further part as a multiple of the part before it.
    pub factor: Range,
    /// The least and the most load of a part, in replicas at full load.
    pub within: Range,
    /// The variant's maxReplicas.
    pub max: SomePods,
}

/// Mean tokens.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Shape {
    /// Of a prompt.
    pub prompt: MeanTokens,
    /// Generated.
    pub output: MeanTokens,
}

/// A range of factors.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Range {
    /// At least.
    pub from: Times,
    /// At most.
    pub to: Times,
}

/// A range of durations.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TimeRange {
    /// At least.
    pub from: Span,
    /// At most.
    pub to: Span,
}
