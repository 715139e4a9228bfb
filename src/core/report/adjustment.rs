//! What later stages changed of a number, and why.

use std::mem::discriminant;

use serde::{Deserialize, Serialize};

use super::{Relief, Stage};
use crate::bound::stability::StabilityRule;
use crate::limit::Binding;
use crate::quality::Shortfall;
use crate::units::Replicas;

/// A later stage's change of a number.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Adjustment {
    pub(crate) stage: Stage,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) from: Option<Replicas>,
    pub(crate) to: Replicas,
    pub(crate) why: AdjustmentReason,
}

/// Why a later stage changed a number, or what binds it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub(crate) enum AdjustmentReason {
    Stability {
        rule: StabilityRule,
    },
    /// The variant's minimum and maximum.
    Bounds {
        min: Replicas,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        max: Option<Replicas>,
    },
    Limit {
        /// Which; `None` are the GPUs of upstream's pools.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        binding: Option<Binding>,
    },
    /// A limit has no room for replicas that were to replace dearer ones. Nothing that is needed is held back.
    NoRoomToExchange {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        binding: Option<Binding>,
    },
    /// An order was withdrawn lately.
    OrderWithdrawn {
        /// Seconds in which it is not ordered again.
        window: f64,
    },
    /// What runs must fit into what remains.
    MustFit {
        limit: Shortfall,
    },
    /// The safety net of a saturated fleet.
    Saturated {
        state: Saturation,
    },
    /// An HPA takes the change for none.
    HpaTolerance {
        /// Its tolerance, 0 to 1.
        tolerance: f64,
    },
}

impl AdjustmentReason {
    /// Whether `other` differs from it in figures only: the same limit, rule or state.
    pub(super) fn differs_in_figures_only(&self, other: &Self) -> bool {
        let limit = |binding: &Option<Binding>| {
            binding.as_ref().map(|binding| (binding.limit.clone(), binding.key.clone()))
        };
        match (self, other) {
            (Self::Limit { binding }, Self::Limit { binding: other })
            | (Self::NoRoomToExchange { binding }, Self::NoRoomToExchange { binding: other }) => {
                limit(binding) == limit(other)
            }
            (Self::Stability { rule }, Self::Stability { rule: other }) => {
                discriminant(rule) == discriminant(other)
            }
            (Self::MustFit { limit }, Self::MustFit { limit: other }) => {
                discriminant(limit) == discriminant(other)
            }
            (Self::Saturated { state }, Self::Saturated { state: other }) => state.relief == other.relief,
            _ => discriminant(self) == discriminant(other),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Saturation {
    #[serde(rename = "evidence")]
    pub saturated_by: SaturationCause,
    pub relief: Relief,
    /// Replicas that run, within the maximum.
    pub running: Replicas,
    /// Replicas that were ordered before.
    pub ordered: Replicas,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<Replicas>,
    /// Replicas ordered that are within their start-up time.
    pub starting: u32,
    pub unschedulable: u32,
    pub(crate) not_ready: u32,
    /// How long a pod takes to start, whole seconds.
    pub start_up: u32,
}

/// How it is known that a fleet is saturated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub(crate) enum SaturationCause {
    /// Its pods have been saturated in every scrape of the last minute.
    Pods { saturated: u32, ready: u32 },
    /// The scheduler's queue has not been empty for a minute.
    Queue,
}
