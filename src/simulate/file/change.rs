//! A change of a scenario: what is otherwise in one of its variations. All that is left out stays.

use schemars::JsonSchema;
use serde::Deserialize;

use super::super::values::{Capacity, Count, Late, Pods, Share, Span, Times, TokensPerStep};
use super::{ArrivalsFile, HpaFile, RoughFile, ScrapeFile, Tokens, VictimsFile};

/// A change of a scenario. All that is left out stays.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Change {
    /// What it is called in tables, behind the scenario's name.
    pub name: String,
    /// As much of the load.
    #[serde(default)]
    pub load: Option<Times>,
    /// How requests follow each other.
    #[serde(default)]
    pub arrivals: Option<ArrivalsFile>,
    /// How sizes are spread; the means stay.
    #[serde(default)]
    pub sizes: Option<SpreadFile>,
    /// All requests have these tokens.
    #[serde(default)]
    pub tokens: Option<Tokens>,
    /// Share of every prompt that is found in the prefix cache.
    #[serde(default)]
    pub prefix_hits: Option<Share>,
    /// From a pod's creation to its being ready.
    #[serde(default)]
    pub start_up: Option<Span>,
    /// Every step takes this many times as long.
    #[serde(default)]
    pub slower: Option<Times>,
    /// The KV cache holds this many times as much.
    #[serde(default)]
    pub kv: Option<Times>,
    /// Sequences that may run at once.
    #[serde(default)]
    pub max_sequences: Option<Count>,
    /// Tokens that a step may compute.
    #[serde(default)]
    pub token_budget: Option<Capacity>,
    /// Tokens that a sequence gains in a step: speculative decoding.
    #[serde(default)]
    pub tokens_per_step: Option<TokensPerStep>,
    /// Where replicas are not as simple as that.
    #[serde(default)]
    pub rough: Option<RoughFile>,
    /// Every step of the first pod of a variant takes this many times as long.
    #[serde(default)]
    pub first_pod_slower: Option<Times>,
    /// Replicas of every variant that are ready at the beginning.
    #[serde(default)]
    pub replicas: Option<Pods>,
    /// Pods of each variant that nodes have room for.
    #[serde(default)]
    pub schedulable: Option<Pods>,
    /// How pods are looked at.
    #[serde(default)]
    pub scrape: ScrapeFile,
    /// The HPA.
    #[serde(default)]
    pub hpa: HpaFile,
    /// How long a terminating pod may finish what it has.
    #[serde(default)]
    pub grace: Option<Late>,
    /// The gateway holds requests while every ready pod has this many waiting.
    #[serde(default)]
    pub hold_at: Option<Count>,
    /// Which pods go first.
    #[serde(default)]
    pub victims: Option<VictimsFile>,
}

/// How sizes are spread around their means: one of these.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum SpreadFile {
    /// Uniform, within the mean ± this share.
    Spread(Share),
    /// Log-normal, with this coefficient of variation.
    Cv(super::Variation),
    /// Some requests are much larger.
    Large(super::Large),
}
