//! V1 percent saturation: `v1.*`.

use serde_json::{Value, json};
use wva_core::analyze::saturation_percent::analyze;
use wva_core::model::SaturationPolicy;
use wva_core::quality::EnginePeaks;
use wva_core::upstream::Tree;
use wva_core::upstream::saturation_percent::{StepCandidate, targets};

use super::UNKNOWN;
use super::read::{bounds, cost, float, integer, list, object, or_zero, text_of};

pub(super) fn compute(group: &str, inputs: &Value) -> Result<Value, String> {
    match group {
        "v1.analyze" => v1_analyze(inputs),
        "v1.targets" => v1_targets(inputs),
        _ => Err(UNKNOWN.into()),
    }
}

fn v1_analyze<'v>(inputs: &'v Value) -> Result<Value, String> {
    let cfg = &inputs["cfg"];
    let policy = SaturationPolicy {
        kv_cache_threshold: float(&cfg["kv"])?,
        queue_length_threshold: float(&cfg["queue"])?,
        kv_spare_trigger: float(&cfg["kv_spare"])?,
        queue_spare_trigger: float(&cfg["queue_spare"])?,
    };
    let text = |value: &'v Value| value.as_str().ok_or_else(|| format!("{value} is no text"));
    let observation = |one: &'v Value| -> Result<EnginePeaks<'v>, String> {
        Ok(EnginePeaks {
            replica: text(&one["pod"])?,
            engine: None,
            variant: text(&one["variant"])?,
            cost: cost(&one["cost"])?,
            kv: float(&one["kv"])?,
            queue: integer(&one["queue"])?,
        })
    };
    let observations: Result<Vec<_>, _> = list(&inputs["replicas"])?.iter().map(observation).collect();
    serde_json::to_value(analyze(&observations?, &policy)).map_err(|error| error.to_string())
}

fn v1_targets(inputs: &Value) -> Result<Value, String> {
    let tree = match text_of(&inputs["tree"])?.as_str() {
        "526ce85" => Tree::June,
        "late" => Tree::August,
        other => return Err(format!("unknown tree {other}")),
    };
    let analysis = &inputs["analysis"];
    let states = list(&inputs["states"])?;
    let mut candidates = Vec::new();
    for (name, found) in object(&analysis["variants"])? {
        let state = states.iter().find(|state| state["name"] == json!(name)).unwrap_or(&Value::Null);
        candidates.push(StepCandidate {
            name: name.into(),
            cost: cost(&found["cost"])?,
            observations: integer(&found["count"])?,
            current: or_zero(&state["current"])?,
            desired: or_zero(&state["desired"])?,
            pending: or_zero(&state["pending"])?,
            bounds: bounds(state)?,
        });
    }
    let (up, down) = (analysis["scale_up"] == json!(true), analysis["scale_down_safe"] == json!(true));
    Ok(json!(targets(tree, up, down, &candidates)))
}
