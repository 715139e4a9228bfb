//! What limits a number: `enforcer`.

use serde_json::{Map, Value, json};
use wva_core::bound::enforcer::{Action, Enforced, enforce};

use super::UNKNOWN;
use super::read::{cost, list, replicas, text_of};

pub(super) fn compute(group: &str, inputs: &Value) -> Result<Value, String> {
    match group {
        "enforcer" => enforcer(inputs),
        _ => Err(UNKNOWN.into()),
    }
}

fn enforcer(inputs: &Value) -> Result<Value, String> {
    let mut decisions = Vec::new();
    for one in list(&inputs["decisions"])? {
        let (name, target) = (text_of(&one["name"])?.into(), replicas(&one["target"])?);
        decisions.push(Enforced { name, target, cost: cost(&one["cost"])? });
    }
    let enabled = inputs["enabled"] == json!(true);
    let action = enforce(&mut decisions, enabled, inputs["requests"].as_f64());
    let targets: Map<String, Value> =
        decisions.into_iter().map(|one| (one.name.into(), json!(one.target))).collect();
    Ok(json!({ "targets": targets, "to_zero": action == Action::ToZero }))
}
