//! Everything remembered between decisions: versioned, serialisable, small.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use crate::analyze::queueing::learn::Parameters;
use crate::analyze::saturation_token::Knowledge;
use crate::analyze::throughput;
use crate::analyze::weighted::Bests;
use crate::bound::stability::Wanted;
use crate::by_name::ByName;
use crate::decision::Reason;
use crate::model::{GroupId, VariantId};
use crate::units::Replicas;

/// What one decision leaves for the next.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    /// The layout's version; another one is not read.
    pub version: u32,
    /// By model group.
    pub groups: BTreeMap<GroupId, GroupMemory>,
    /// Since when an object cannot be decided about.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub invalid: BTreeMap<VariantId, Timestamp>,
}

impl Memory {
    /// The layout this build writes.
    pub const VERSION: u32 = 1;
}

impl Default for Memory {
    fn default() -> Self {
        Self { version: Self::VERSION, groups: BTreeMap::new(), invalid: BTreeMap::new() }
    }
}

/// What is remembered of one model group.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct GroupMemory {
    /// When the analyzer last took its one look a cycle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cycle_at: Option<Timestamp>,
    /// Since when no request has been seen, when measured and not merely unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_since: Option<Timestamp>,
    /// When the group was last observed, idle or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_at: Option<Timestamp>,
    /// What analyzers have learned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub learned: Option<Box<Learned>>,
    /// By variant name.
    pub variants: ByName<VariantMemory>,
}

/// What the analyzers have learned of one model: a budget of 2 KiB a variant.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Learned {
    /// The token saturation analyzer's.
    #[serde(skip_serializing_if = "is_default")]
    pub tokens: Knowledge,
    /// When it last had something to say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub informative: Option<Timestamp>,
    /// The throughput analyzer's.
    #[serde(skip_serializing_if = "is_default")]
    pub throughput: throughput::Memory,
    /// The queueing model's, by variant.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub queueing: BTreeMap<SmolStr, Parameters>,
    /// The weighted score's.
    #[serde(skip_serializing_if = "is_default")]
    pub bests: Bests,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// What is remembered of one variant.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct VariantMemory {
    /// The committed target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<Replicas>,
    /// When the target last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_since: Option<Timestamp>,
    /// The newest fresh sample a decision of this variant rested on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence: Option<Timestamp>,
    /// Why the target is what it is: repeated until the next look of the analyzer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// The sentence that goes with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<SmolStr>,
    /// Since when nothing could be concluded, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blind_since: Option<Timestamp>,
    /// What was wanted lately, where the policy asks for stability.
    #[serde(default, skip_serializing_if = "Wanted::is_empty")]
    pub wanted: Wanted,
}
