//! What analyzers found, with its numbers.

use serde::{Deserialize, Serialize};

use crate::model::{Analyzer, Role};

/// What the analyzers found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Analysis {
    /// The finding.
    pub finding: Finding,
    /// Another analyzer decides than the model's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stand_in: Option<StandIn>,
    /// Why no more replicas are removed, if that was it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removal_limit: Option<RemovalLimit>,
}

impl From<Finding> for Analysis {
    fn from(finding: Finding) -> Self {
        Self { finding, stand_in: None, removal_limit: None }
    }
}

/// The analyzer that decides about additions while the model's own cannot be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StandIn {
    /// The model's own.
    pub own: Analyzer,
    /// The one that decides.
    pub analyzer: Analyzer,
}

/// What an analyzer found, with its numbers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Finding {
    /// The rate policy.
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
        /// Replicas below saturation.
        non_saturated: u32,
        /// Replicas that are measured.
        total: u32,
    },
    /// The mean score of a variant's engines.
    Score {
        /// The mean.
        mean: f64,
        /// Engines that have a score.
        engines: u32,
    },
    /// Demand against capacity, by each analyzer that was asked.
    Capacity {
        /// In the order of the policy.
        analyzers: Vec<CapacityFinding>,
    },
    /// The legacy solver's cheapest allocation that keeps the latencies of its service class.
    Allocation,
}

/// What the rate policy found of one role.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RateExplanation {
    /// The role.
    pub role: Role,
    /// Requests/s now.
    pub demand: f64,
    /// Requests/s when a pod ordered now serves, where demand grows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forecast: Option<Forecast>,
    /// Requests/s that the replicas carry.
    pub capacity: f64,
    /// The replicas that carry it.
    pub replicas: f64,
    /// What supports the least.
    pub constraint: RateConstraint,
    /// Requests/s that it supports.
    pub supports: f64,
    /// Seconds until a replica can be removed, where the load allows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removal_in: Option<f64>,
}

/// A demand to come.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Forecast {
    /// Requests/s.
    pub rate: f64,
    /// In how many seconds.
    pub seconds: f64,
}

/// What limits the load that the replicas support.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum RateConstraint {
    /// The highest utilisation that keeps the objectives.
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
    /// The backlog that is worked off.
    Backlog {
        /// Requests.
        requests: f64,
        /// In how many seconds.
        seconds: f64,
    },
}

/// What one analyzer of capacity found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CapacityFinding {
    /// Which analyzer: its unit is that of the totals.
    pub analyzer: Analyzer,
    /// Of the whole model, or of each role where it tells them apart.
    pub totals: Vec<CapacityTotals>,
}

/// Demand and capacity of a model or a role, in the analyzer's unit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CapacityTotals {
    /// The role; `None` is the whole model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    /// What is asked.
    pub demand: f64,
    /// What the serving replicas carry.
    pub supply: f64,
    /// The same with those that start.
    pub anticipated: f64,
    /// What is missing, at least 0.
    pub required: f64,
    /// What could go, at least 0.
    pub spare: f64,
}

/// What leaves too little room for a removal.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum RemovalLimit {
    /// Requests: running and waiting at their peaks, and the sequences that would remain.
    Sequences {
        /// Requests at their peaks.
        used: f64,
        /// Sequences that would remain.
        remaining: f64,
    },
    /// KV cache.
    KvCache {
        /// Tokens at their peaks.
        used: f64,
        /// Tokens that would remain.
        remaining: f64,
    },
}
