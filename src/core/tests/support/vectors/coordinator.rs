//! The GPU rebalance: `coordinator.rebalance`.

use serde_json::{Value, json};
use wva_core::units::{Requests, truncated_u32};
use wva_core::upstream::Tree;
use wva_core::upstream::rebalance::{PoolEntry, rebalance};

use super::UNKNOWN;
use super::read::{float, list, number, or_zero};

pub(super) fn compute(group: &str, inputs: &Value) -> Result<Value, String> {
    if group != "coordinator.rebalance" {
        return Err(UNKNOWN.into());
    }
    let tree = match inputs["tree"].as_str() {
        Some("526ce85") => Tree::June,
        Some("late") | None => Tree::August,
        Some(other) => return Err(format!("unknown tree {other}")),
    };
    let entry = |one: &Value| -> Result<PoolEntry, String> {
        let queue = Requests::new(number(&one["queue"])?).map_err(|error| error.to_string())?;
        Ok(PoolEntry { queue, min: or_zero(&one["min"])?, gpus: 1 })
    };
    let entries: Vec<PoolEntry> = list(&inputs["entries"])?.iter().map(entry).collect::<Result<_, _>>()?;
    Ok(json!(rebalance(truncated_u32(float(&inputs["quota"])?), &entries, tree)))
}
