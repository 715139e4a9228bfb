//! Why a decision is what it is, as data: what went into each step, what came out, what bound it, and what would change it.

mod adjustment;
mod binding_constraint;
mod capacity_constraint;
mod capacity_figures;
mod explanation;
mod finding;
mod optimizer;
mod quantity;
mod render;
mod scorecard;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize, Serializer};
use smol_str::{SmolStr, ToSmolStr};

pub(crate) use self::adjustment::{Adjustment, AdjustmentReason, Saturation, SaturationCause};
pub use self::binding_constraint::{BindingConstraint, ConstraintKind};
pub use self::capacity_constraint::CapacityConstraint;
pub use self::capacity_figures::{CapacityFigures, CapacityUnit};
pub(crate) use self::explanation::{Basis, Blocker, Caveat, Hindrance, Withheld};
pub use self::explanation::{Explanation, Reasoning};
pub(crate) use self::finding::*;
pub use self::optimizer::{Addition, OptimizerStep, Vote};
pub(crate) use self::quantity::{CapacitySource, Quantity, Side};
pub use self::quantity::{Direction, Threshold, Value};
pub use self::scorecard::{Prediction, PredictionError, Scorecard};
pub use crate::isolate::Failed;
use crate::limit::Binding;
use crate::model::{GroupId, Role, VariantId};
use crate::quality::{CoverageState, Shortfall};
use crate::units::Replicas;

/// The explanation of a decision as data: one entry a model group, one part a step.
#[must_use]
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Report {
    /// By model group.
    pub groups: BTreeMap<GroupId, GroupReport>,
    /// What of the memory could not be used, one sentence each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub dropped: Vec<SmolStr>,
    /// What the checker refused; those numbers are held.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub violations: Vec<Violation>,
    /// Models that broke, in this decision or before and not tried since; their numbers are held.
    #[serde(skip_serializing_if = "Vec::is_empty")]
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

/// A decision that broke a rule, and was withheld.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Violation {
    /// Whose decision.
    pub variant: VariantId,
    /// Which rule.
    pub rule: Rule,
    pub(crate) detail: Breach,
}

/// How a decision broke a rule, with its numbers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub(crate) enum Breach {
    NoDecision,
    NotInSnapshot,
    OutOfBounds {
        decided: u32,
        nearest: u32,
    },
    BlindDecrease {
        decided: u32,
        promised: u32,
    },
    UnearnedZero {
        min: Replicas,
        running: Replicas,
    },
    /// `moved` are all variants of the role that move in this cycle.
    Steps {
        decided: u32,
        promised: Option<u32>,
        running: u32,
        moved: Vec<SmolStr>,
    },
    /// The running requests do not fit into what remains.
    Overfull {
        limit: Shortfall,
    },
    /// KV caches of unknown size were filled so many times.
    OverfullCaches {
        used: f64,
        remaining: f64,
    },
    /// As versions before this one recorded it.
    #[serde(untagged)]
    Recorded(SmolStr),
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
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct GroupReport {
    /// Each step in words and numbers.
    pub steps: Vec<Step>,
    /// By variant name: the limit on GPUs that the policy asks for is not in force, and why. What is added goes through.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
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

/// One step of a decision.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// The variant it is about; `None` when about the whole group.
    pub variant: Option<SmolStr>,
    pub(crate) detail: Detail,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Detail {
    Coverage(CoverageStep),
    Analysis(AnalysisStep),
    Optimization(OptimizerStep),
    /// The number of a variant before limits and bounds.
    Target(TargetStep),
    Adjustment(AdjustmentStep),
    /// The number of a variant that goes to zero, or may not.
    Replacement(#[serde(serialize_with = "data_only")] Explanation),
    LimitNotEnforced(LimitGap),
    TargetNotFound(SmolStr),
    TargetUnknown(SmolStr),
    /// Orders whose evidence is contradicted were withdrawn.
    OrdersWithdrawn(OrdersWithdrawn),
    DecisionFailed(Failed),
    RuleBroken(Violation),
}

/// What the observations of a role are worth: counts of pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CoverageStep {
    pub(crate) role: Role,
    pub(crate) state: CoverageState,
    pub(crate) ready: u32,
    pub(crate) fresh: u32,
    /// Ready, with samples that do not reach back far enough yet.
    pub(crate) aging: u32,
    pub(crate) stale: u32,
    pub(crate) absent: u32,
    /// Ready, without a series that the analyzer needs.
    pub(crate) lacking: u32,
    pub(crate) starting: u32,
    /// Of these, without a node.
    pub(crate) unschedulable: u32,
    pub(crate) asleep: u32,
}

/// What an analyzer found, with its inputs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct AnalysisStep {
    pub(crate) analysis: Analysis,
    /// Inputs and formula values, in the order of the formula.
    pub(crate) values: Vec<Value>,
    pub(crate) thresholds: Vec<Threshold>,
}

/// The number of a variant before limits and bounds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct TargetStep {
    #[serde(serialize_with = "data_only")]
    pub(crate) explanation: Explanation,
    /// The limit that held the optimizer back, if one did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) binding: Option<Binding>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) values: Vec<Value>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct AdjustmentStep {
    pub(crate) adjustment: Adjustment,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) values: Vec<Value>,
    /// What the safety net makes of it, where the fleet is saturated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) relief: Option<Relief>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct OrdersWithdrawn {
    pub(crate) ordered: Replicas,
    pub(crate) restored: Replicas,
}

fn data_only<S: Serializer>(explanation: &Explanation, serializer: S) -> Result<S::Ok, S::Error> {
    Reasoning::serialize(explanation, serializer)
}

impl Step {
    pub(crate) fn of_variant(variant: &SmolStr, detail: Detail) -> Self {
        Self { variant: Some(variant.clone()), detail }
    }

    pub(crate) const fn of_group(detail: Detail) -> Self {
        Self { variant: None, detail }
    }

    /// The number of a variant before limits and bounds.
    #[must_use]
    pub fn target(variant: &SmolStr, explanation: Explanation) -> Self {
        Self::of_variant(
            variant,
            Detail::Target(TargetStep { explanation, binding: None, values: Vec::new() }),
        )
    }

    /// A number that replaces that of all stages before.
    #[must_use]
    pub fn bound(variant: &SmolStr, explanation: Explanation) -> Self {
        Self::of_variant(variant, Detail::Replacement(explanation))
    }

    pub(crate) fn adjustment(variant: &SmolStr, adjustment: Adjustment) -> Self {
        Self::of_variant(
            variant,
            Detail::Adjustment(AdjustmentStep { adjustment, values: Vec::new(), relief: None }),
        )
    }

    #[must_use]
    pub(crate) fn with_values(mut self, inputs: Vec<Value>) -> Self {
        match &mut self.detail {
            Detail::Analysis(AnalysisStep { values, .. })
            | Detail::Target(TargetStep { values, .. })
            | Detail::Adjustment(AdjustmentStep { values, .. }) => *values = inputs,
            _ => {}
        }
        self
    }

    /// Which stage.
    #[must_use]
    pub const fn stage(&self) -> Stage {
        match &self.detail {
            Detail::Coverage(_)
            | Detail::TargetNotFound(_)
            | Detail::TargetUnknown(_)
            | Detail::OrdersWithdrawn(_) => Stage::Quality,
            Detail::Analysis(_) => Stage::Analyze,
            Detail::Optimization(_) => Stage::Optimize,
            Detail::Target(_) => Stage::Target,
            Detail::Adjustment(step) => step.adjustment.stage,
            Detail::Replacement(_) => Stage::Bound,
            Detail::LimitNotEnforced(_) => Stage::Limit,
            Detail::DecisionFailed(_) | Detail::RuleBroken(_) => Stage::Check,
        }
    }

    /// Inputs and formula values, in the order of the formula.
    #[must_use]
    pub fn values(&self) -> &[Value] {
        match &self.detail {
            Detail::Analysis(step) => &step.values,
            Detail::Target(step) => &step.values,
            Detail::Adjustment(step) => &step.values,
            _ => &[],
        }
    }

    /// It says of a target what `explanation` says.
    #[must_use]
    pub fn is_target_of(&self, explanation: &Explanation) -> bool {
        let Detail::Target(TargetStep { explanation: own, .. }) = &self.detail else { return false };
        // What holds replicas back is added when the number is published.
        let mut own = own.clone();
        own.to_mut().hindrance = explanation.hindrance.clone();
        own == *explanation
    }

    /// What would change the answer.
    #[must_use]
    pub fn thresholds(&self) -> &[Threshold] {
        match &self.detail {
            Detail::Analysis(step) => &step.thresholds,
            _ => &[],
        }
    }

    /// What the safety net makes of a saturated fleet; `None` where the fleet is not saturated.
    #[must_use]
    pub const fn relief(&self) -> Option<Relief> {
        match &self.detail {
            Detail::Adjustment(AdjustmentStep { adjustment, relief, .. }) => match &adjustment.why {
                AdjustmentReason::Saturated { state } => Some(state.relief),
                _ => *relief,
            },
            _ => None,
        }
    }
}

/// A step as it is written: with its text, for people, and its data.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WrittenStep<'a> {
    stage: Stage,
    #[serde(skip_serializing_if = "Option::is_none")]
    variant: Option<&'a SmolStr>,
    finding: SmolStr,
    #[serde(skip_serializing_if = "slice_is_empty")]
    values: &'a [Value],
    #[serde(skip_serializing_if = "Option::is_none")]
    binding: Option<SmolStr>,
    #[serde(rename = "turns", skip_serializing_if = "slice_is_empty")]
    thresholds: &'a [Threshold],
    #[serde(rename = "saturated", skip_serializing_if = "Option::is_none")]
    relief: Option<Relief>,
    detail: &'a Detail,
}

fn slice_is_empty<T>(slice: &&[T]) -> bool {
    slice.is_empty()
}

impl Serialize for Step {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let written = WrittenStep {
            stage: self.stage(),
            variant: self.variant.as_ref(),
            finding: self.to_smolstr(),
            values: self.values(),
            binding: self.binding(),
            thresholds: self.thresholds(),
            relief: self.relief(),
            detail: &self.detail,
        };
        written.serialize(serializer)
    }
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
