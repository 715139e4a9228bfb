//! What comes out: one decision a variant, the report that explains it, and the next memory.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use crate::memory::Memory;
use crate::model::VariantId;
use crate::report::Report;
use crate::units::Replicas;

/// The result of one decision over a whole snapshot.
#[must_use]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Exactly one for every variant of the snapshot, the invalid ones included.
    pub decisions: BTreeMap<VariantId, Decision>,
    /// Why.
    pub report: Report,
    /// What the next decision gets.
    pub memory: Memory,
}

/// What every output says of one variant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// `spec.modelID`; empty for an invalid variant.
    pub model: SmolStr,
    /// The accelerator's name, when one is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accelerator: Option<SmolStr>,
    /// The scale target's current replicas, when it exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current: Option<Replicas>,
    /// The number, or why there is none.
    pub verdict: Verdict,
}

/// The number, or why there is none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Verdict {
    /// The committed target.
    Target(Target),
    /// No number: every output says so, none says 0.
    Unknown(Unknown),
}

/// A number and what it rests on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Target {
    /// Desired replicas.
    pub desired: Replicas,
    /// Why this number.
    pub reason: Reason,
    /// One sentence for people, without the number's age.
    pub message: SmolStr,
    /// The newest fresh sample the number rests on. The number is as old as this.
    pub evidence: Timestamp,
}

/// Why a number is what it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub enum Reason {
    /// Spare capacity is below a trigger.
    ScaleUp,
    /// The others can carry the load of one.
    ScaleDown,
    /// Neither up nor down.
    Steady,
    /// The last change is still on its way.
    Transition,
    /// Moved into the variant's bounds.
    Bounded,
    /// Idle for the retention period.
    ScaleToZero,
    /// Requests wait for a model without replicas.
    ScaleFromZero,
    /// Held: pods exist, none is ready.
    Starting,
    /// Held: ready pods without any series.
    MetricsMissing,
    /// Held or raised: some ready pods without fresh series, or a partial answer.
    Partial,
    /// Held or raised: the newest samples are old.
    Stale,
    /// Held: the metric source does not answer.
    SourceDown,
    /// Held: the checker refused the new number.
    CheckFailed,
}

impl Reason {
    /// The name that metrics and logs show. Part of the product's surface: dashboards select on it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ScaleUp => "ScaleUp",
            Self::ScaleDown => "ScaleDown",
            Self::Steady => "Steady",
            Self::Transition => "Transition",
            Self::Bounded => "Bounded",
            Self::ScaleToZero => "ScaleToZero",
            Self::ScaleFromZero => "ScaleFromZero",
            Self::Starting => "Starting",
            Self::MetricsMissing => "MetricsMissing",
            Self::Partial => "Partial",
            Self::Stale => "Stale",
            Self::SourceDown => "SourceDown",
            Self::CheckFailed => "CheckFailed",
        }
    }
}

/// Why there is no number.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Unknown {
    /// What kind of not knowing.
    pub cause: Cause,
    /// One sentence for people: which variant, why, and the next step.
    pub message: SmolStr,
    /// Since when.
    pub since: Timestamp,
}

/// What kind of not knowing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub enum Cause {
    /// Nothing has been measured yet and nothing is remembered.
    NothingKnown,
    /// The evidence is older than `max-stale`.
    TooOld,
    /// The object itself cannot be used.
    InvalidVariant,
    /// The scale target does not exist.
    TargetNotFound,
}
