//! The GPU rebalance: `coordinator.rebalance`.

use serde_json::{Value, json};
use wva_core::model::Compat;
use wva_core::optimize::rebalance::{Entry, rebalance};
use wva_core::units::{Requests, whole};

use super::UNKNOWN;
use super::read::{float, list, number, or_zero};

pub(super) fn compute(group: &str, inputs: &Value) -> Result<Value, String> {
    if group != "coordinator.rebalance" {
        return Err(UNKNOWN.into());
    }
    let compat = match inputs["tree"].as_str() {
        Some("526ce85") => Compat::UpstreamJune,
        Some("late") | None => Compat::Upstream,
        Some(other) => return Err(format!("unknown tree {other}")),
    };
    let entry = |one: &Value| -> Result<Entry, String> {
        let queue = Requests::new(number(&one["queue"])?).map_err(|error| error.to_string())?;
        Ok(Entry { queue, min: or_zero(&one["min"])?, gpus: 1 })
    };
    let entries: Vec<Entry> = list(&inputs["entries"])?.iter().map(entry).collect::<Result<_, _>>()?;
    Ok(json!(rebalance(whole(float(&inputs["quota"])?), &entries, compat)))
}
