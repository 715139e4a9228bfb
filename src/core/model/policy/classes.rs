//! Latency objectives, and input of the legacy solver beside the models: service classes and accelerators.

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use crate::units::{Cost, OutOfRange};

/// Latency objectives.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LatencyTargets {
    /// Time to first token, milliseconds, above 0.
    pub ttft_ms: f64,
    /// Inter-token latency, milliseconds, above 0.
    pub itl_ms: f64,
}

impl LatencyTargets {
    pub(super) fn check(self) -> Result<(), OutOfRange> {
        let targets = [("targetTTFT", self.ttft_ms), ("targetITL", self.itl_ms)];
        match targets.into_iter().find(|(_, value)| !(value.is_finite() && *value > 0.0)) {
            None => Ok(()),
            Some((unit, value)) => Err(OutOfRange { unit, value, allowed: "above 0" }),
        }
    }
}

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
