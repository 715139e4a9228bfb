//! What analyzers found, with its numbers.

use serde::{Deserialize, Serialize};

use crate::model::{Analyzer, Role};
use crate::quality::Shortfall;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Analysis {
    pub(crate) finding: Finding,
    /// Another analyzer decides than the model's own.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "standIn")]
    pub(crate) fallback: Option<Fallback>,
    /// Why no more replicas are removed, if that was it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) removal_limit: Option<Shortfall>,
}

impl From<Finding> for Analysis {
    fn from(finding: Finding) -> Self {
        Self { finding, fallback: None, removal_limit: None }
    }
}

/// The analyzer that decides about additions while the model's own cannot be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Fallback {
    pub(crate) own: Analyzer,
    pub(crate) analyzer: Analyzer,
}

/// What an analyzer found, with its numbers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub(crate) enum Finding {
    Rate(RateExplanation),
    /// V1: mean spare KV cache and queue of the replicas below saturation.
    SaturationPercent {
        /// Mean spare KV cache, 0 to 1.
        spare_kv: f64,
        /// Below this replicas are added.
        kv_trigger: f64,
        /// Mean spare queue, requests.
        spare_queue: f64,
        /// Below this replicas are added.
        queue_trigger: f64,
        non_saturated: u32,
        total: u32,
    },
    /// The mean score of a variant's engines.
    Score {
        mean: f64,
        /// Engines that have a score.
        engines: u32,
    },
    /// Demand against capacity, by each analyzer that was asked.
    Capacity {
        analyzers: Vec<CapacityFinding>,
    },
    /// The legacy solver's cheapest allocation that keeps the latencies of its service class.
    Allocation,
}

/// What the rate policy found of one role, in requests/s.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RateExplanation {
    pub(crate) role: Role,
    pub(crate) demand: f64,
    /// The part of the demand that the model servers refuse, where they do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) refused: Option<f64>,
    /// When a pod ordered now serves, where demand grows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) forecast: Option<Forecast>,
    pub(crate) capacity: f64,
    pub(crate) replicas: f64,
    pub(crate) constraint: RateConstraint,
    pub(crate) supports: f64,
    /// Seconds until a replica can be removed, where the load allows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) removal_in: Option<f64>,
}

/// A demand, requests/s, in so many seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Forecast {
    pub(crate) rate: f64,
    pub(crate) seconds: f64,
}

/// What limits the load that the replicas support.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub(crate) enum RateConstraint {
    Utilisation,
    /// The reserve for chance.
    ChanceReserve {
        /// Square roots of (demand × capacity of a replica).
        roots: f64,
    },
    /// The reserve for growth as this model has shown it.
    SurgeReserve {
        /// Share of the demand, 0 to 1.
        share: f64,
    },
    /// A backlog of requests that is worked off in so many seconds.
    Backlog {
        requests: f64,
        seconds: f64,
    },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct CapacityFinding {
    /// Which analyzer: its unit is that of the totals.
    pub(crate) analyzer: Analyzer,
    /// Of the whole model, or of each role where it tells them apart.
    pub(crate) totals: Vec<CapacityTotals>,
}

/// Demand and capacity of a model or a role, in the analyzer's unit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct CapacityTotals {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) role: Option<Role>,
    pub(crate) demand: f64,
    /// What the serving replicas carry.
    pub(crate) supply: f64,
    /// The same with those that start.
    pub(crate) anticipated: f64,
    /// What is missing, at least 0.
    pub(crate) required: f64,
    /// What could go, at least 0.
    pub(crate) spare: f64,
}
