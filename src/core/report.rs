//! Why a decision is what it is, as data: what went into each step, what came out, what bound it, and what would change it.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

pub use crate::isolate::Failed;
use crate::model::{GroupId, VariantId};

/// The explanation of a decision as data: one entry a model group, one part a step.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Report {
    /// By model group.
    pub groups: BTreeMap<GroupId, GroupReport>,
    /// What of the memory could not be used, one sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dropped: Vec<SmolStr>,
    /// What the checker refused; those numbers are held.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub violations: Vec<Violation>,
    /// Models that broke, in this decision or before and not tried since; their numbers are held.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<ModelFailure>,
}

/// A model that broke.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelFailure {
    /// Which.
    pub group: GroupId,
    /// How, and when it is tried again.
    #[serde(flatten)]
    pub failed: Failed,
}

impl fmt::Display for ModelFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failed { count, retry_at, cause, .. } = &self.failed;
        let group = &self.group;
        write!(
            f,
            "{group}: its decision failed {count} times in a row ({cause:?}); tried again at {retry_at}"
        )
    }
}

/// A decision that broke a rule, and was withheld.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Violation {
    /// Whose decision.
    pub variant: VariantId,
    /// Which rule.
    pub rule: Rule,
    /// What was decided and what is allowed.
    pub detail: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:?}: {}", self.variant, self.rule, self.detail)
    }
}

/// What no decision may break.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub enum Rule {
    /// Exactly one decision for every variant, and for nothing else.
    OneDecision,
    /// Within its minimum and maximum.
    WithinBounds,
    /// Blindness never shrinks.
    NoBlindDecrease,
    /// Zero only with a minimum of 0, and when idle for the retention period or at zero already.
    ZeroOnlyWhenIdle,
    /// At most one step a role and look.
    OneStep,
    /// What runs fits into nine tenths of what a removal leaves.
    FitsRemaining,
}

/// The steps of one group's decision, in order.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct GroupReport {
    /// Each step in words and numbers.
    pub steps: Vec<Step>,
    /// By variant name: the limit on GPUs that the policy asks for is not in force, and why. What is added goes through.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub limit_gaps: BTreeMap<SmolStr, LimitGap>,
}

/// Why the inventory of GPUs, which the policy asks for as a limit, does not limit a variant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "gap")]
pub enum LimitGap {
    /// No GPU of any node is known: the nodes may not be listed, have not been yet, or do not name their accelerators.
    NoInventory,
    /// A node has GPUs of an accelerator that it does not name: any variant may run there.
    UnlabelledNode {
        /// The first such node, by name.
        node: SmolStr,
    },
    /// No node names this accelerator.
    NotInInventory {
        /// As the variant names it.
        accelerator: SmolStr,
    },
}

impl LimitGap {
    /// As conditions, events and metrics name it.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::NoInventory => "NoInventory",
            Self::UnlabelledNode { .. } => "UnlabelledNode",
            Self::NotInInventory { .. } => "NotInInventory",
        }
    }
}

impl fmt::Display for LimitGap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoInventory => f.write_str(
                "the limit on GPUs is not in force, because no GPU of any node is known: allow listing nodes (limits.inventory of the chart) and label them with their accelerator, or set failClosed to have nothing added then",
            ),
            Self::UnlabelledNode { node } => write!(
                f,
                "the limit on GPUs is not in force, because the node {node} has GPUs and does not name their accelerator: label it, or set failClosed to count the nodes that are labelled and no others"
            ),
            Self::NotInInventory { accelerator } => write!(
                f,
                "the limit on GPUs is not in force, because no node names the accelerator {accelerator}: label the nodes that have it, correct the variant's accelerator, or set failClosed to have nothing added then"
            ),
        }
    }
}

/// One step of a decision.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Step {
    /// Which step.
    pub stage: Stage,
    /// The variant it is about; `None` when about the whole group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<SmolStr>,
    /// What was concluded, for people.
    pub finding: SmolStr,
    /// Inputs and formula values, in the order of the formula.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<Value>,
    /// What kept the number from being another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binding: Option<SmolStr>,
    /// What would change the answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub turns: Vec<Turn>,
    /// What the safety net makes of a saturated fleet; `None` where the fleet is not saturated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saturated: Option<Relief>,
}

/// What becomes of a saturated fleet: whether it grows, and if not, what keeps it from growing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Relief {
    /// More replicas are ordered, and as many as that at least by the safety net.
    Growing,
    /// As many were ordered already, or are now by the analyzer.
    Ordered,
    /// Replicas that were ordered are within their start-up time.
    Starting,
    /// The maximum is reached.
    AtMaximum,
    /// A limit (GPUs, a quota, power, money) leaves no more.
    AtLimit,
    /// No node has room for pods that are there already.
    NoNode,
    /// What was ordered has not come in its time: an HPA with a lower maximum, a quota on pods, an image that does not start.
    NotComing,
}

impl Step {
    /// A step of which only words are known.
    pub fn new(stage: Stage, variant: Option<&SmolStr>, finding: impl Into<SmolStr>) -> Self {
        Self {
            stage,
            variant: variant.cloned(),
            finding: finding.into(),
            values: Vec::new(),
            binding: None,
            turns: Vec::new(),
            saturated: None,
        }
    }
}

/// The steps, in the order they are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Stage {
    /// What the observations are worth.
    Quality,
    /// What an analyzer finds.
    Analyze,
    /// How the findings become numbers.
    Optimize,
    /// The number of a variant.
    Target,
    /// What all models share.
    Limit,
    /// Minimum, maximum, stability, zero.
    Bound,
    /// The rules no decision may break.
    Check,
}

impl Stage {
    /// Its name, as reports show it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Quality => "quality",
            Self::Analyze => "analyze",
            Self::Optimize => "optimize",
            Self::Target => "target",
            Self::Limit => "limit",
            Self::Bound => "bound",
            Self::Check => "check",
        }
    }
}

/// A number with its name in the formula.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Value {
    /// What it is, with its unit where the name alone does not say it.
    pub name: SmolStr,
    /// The number.
    pub value: f64,
}

impl Value {
    /// A value of a name that is known when the program is built.
    #[must_use]
    pub const fn new(name: &'static str, value: f64) -> Self {
        Self { name: SmolStr::new_static(name), value }
    }
}

/// At which value of a quantity the answer would be another one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Turn {
    /// Which way the number would go.
    pub to: Direction,
    /// The quantity.
    pub when: SmolStr,
    /// Below or above the threshold.
    pub is: Side,
    /// The threshold.
    pub at: f64,
    /// What it is now.
    pub now: f64,
}

/// Which way a number goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Direction {
    /// More replicas.
    More,
    /// Fewer replicas.
    Fewer,
}

/// A side of a threshold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Side {
    /// Smaller than it.
    Below,
    /// Larger than it.
    Above,
}

impl fmt::Display for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let to = match self.to {
            Direction::More => "more",
            Direction::Fewer => "fewer",
        };
        let is = match self.is {
            Side::Below => "below",
            Side::Above => "above",
        };
        write!(f, "{to} when {} is {is} {:.4}, now {:.4}", self.when, self.at, self.now)
    }
}
