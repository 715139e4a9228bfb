//! Input of the legacy solver beside the models: service classes and accelerators.

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use super::LatencyTargets;
use crate::units::Cost;

/// A class of users, and the latencies it is promised.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ServiceClass {
    /// Its name.
    pub name: SmolStr,
    /// 1 is the highest, 100 the lowest.
    pub priority: u32,
    /// What it is promised, by model.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<ClassTarget>,
}

impl ServiceClass {
    /// The name of a class that has none.
    pub const UNNAMED: &str = "Free";
    /// The lowest priority, and that of a class without one.
    pub const LOWEST: u32 = 100;
}

/// What a class is promised for one model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClassTarget {
    /// The model.
    pub model: SmolStr,
    /// The latencies.
    pub latency: LatencyTargets,
}

/// A type of accelerator with its cost, for the legacy solver.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct UnitCost {
    /// The full name of the device, for display only.
    #[serde(default, skip_serializing_if = "SmolStr::is_empty")]
    pub device: SmolStr,
    /// What a unit costs, cents an hour.
    pub cost: Cost,
}
