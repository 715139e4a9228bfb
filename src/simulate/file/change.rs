//! A change of a scenario: the fields that differ in a variation.

use schemars::JsonSchema;
use serde::Deserialize;

use super::super::values::{Capacity, Count, Late, Pods, Share, Span, Times, TokensPerStep};
use super::{ArrivalsFile, HpaFile, RoughFile, ScrapeFile, Tokens, VictimsFile};

/// A change of a scenario. Fields that are left out stay as they are.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Change {
    /// Its name in tables, after the scenario's.
    pub name: String,
    /// Multiplies the load.
    #[serde(default)]
    pub load: Option<Times>,
    /// How requests follow each other.
    #[serde(default)]
    pub arrivals: Option<ArrivalsFile>,
    /// How sizes are distributed; the means stay.
    #[serde(default)]
    pub sizes: Option<SpreadFile>,
    /// Tokens of all requests.
    #[serde(default)]
    pub tokens: Option<Tokens>,
    /// Share of every prompt that is found in the prefix cache.
    #[serde(default)]
    pub prefix_hits: Option<Share>,
    /// Time from a pod's creation until it is ready.
    #[serde(default)]
    pub start_up: Option<Span>,
    /// Every step takes this many times as long.
    #[serde(default)]
    pub slower: Option<Times>,
    /// Multiplies the size of the KV cache.
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
    /// How step times deviate from the physics.
    #[serde(default)]
    pub rough: Option<RoughFile>,
    /// Every step of the first pod of a variant takes this many times as long.
    #[serde(default)]
    pub first_pod_slower: Option<Times>,
    /// Replicas of every variant that are ready at the start.
    #[serde(default)]
    pub replicas: Option<Pods>,
    /// Pods of each variant that fit on nodes.
    #[serde(default)]
    pub schedulable: Option<Pods>,
    /// How wva scrapes pods.
    #[serde(default)]
    pub scrape: ScrapeFile,
    /// The HPA.
    #[serde(default)]
    pub hpa: HpaFile,
    /// How long a terminating pod may take to finish its requests.
    #[serde(default)]
    pub grace: Option<Late>,
    /// The gateway holds requests while every ready pod has this many waiting.
    #[serde(default)]
    pub hold_at: Option<Count>,
    /// Which pods are deleted first.
    #[serde(default)]
    pub victims: Option<VictimsFile>,
}

/// How sizes are distributed around their means: one of these.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum SpreadFile {
    /// Uniform in the mean ± this share.
    Spread(Share),
    /// Log-normal, with this coefficient of variation.
    Cv(super::Variation),
    /// Some requests are much larger.
    Large(super::LargeRequests),
}
