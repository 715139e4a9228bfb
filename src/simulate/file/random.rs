//! A scenario that every seed draws anew, as a file says it: between what and what.

use schemars::JsonSchema;
use serde::Deserialize;

use super::super::values::{Count, Length, MeanTokens, Share, SomePods, Span, Times};

/// A scenario that every seed draws anew: token shape, hardware, start-up and load.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RandomFile {
    /// What it is about, for people.
    #[serde(default)]
    pub about: Option<String>,
    /// Between what and what.
    pub random: RandomLoad,
}

/// Between what and what a seed draws; each drawn evenly on its own, factors evenly in their logarithm.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RandomLoad {
    /// The preset that hardware and KV cache are times of.
    pub preset: String,
    /// Mean tokens of prompts and outputs: one of these.
    pub tokens: Vec<Shape>,
    /// Sizes are within the mean ± this share.
    pub spread: Share,
    /// Steps take so many times as long.
    pub slower: Between,
    /// The KV cache holds so many times as much.
    pub kv: Between,
    /// From a pod's creation to its being ready.
    pub start_up: TimeBetween,
    /// Parts of the load, one after the other.
    pub parts: Count,
    /// How long each is.
    pub part: Length,
    /// What the first part asks for, in replicas at full load.
    pub first: Between,
    /// What each part asks for, times the one before it…
    pub factor: Between,
    /// …but never less or more than so many replicas at full load.
    pub within: Between,
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

/// From a number to a larger one.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Between {
    /// At least.
    pub from: Times,
    /// At most.
    pub to: Times,
}

/// From a length of time to a longer one.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TimeBetween {
    /// At least.
    pub from: Span,
    /// At most.
    pub to: Span,
}
