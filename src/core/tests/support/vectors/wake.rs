//! Who is woken from zero: `scale_from_zero`.

use serde_json::{Value, json};
use wva_core::analyze::scale_from_zero::WakeCandidate;
use wva_core::model::Bounds;
use wva_core::units::Replicas;
use wva_core::upstream::scale_from_zero::{QueueSample, is_pending, woken};

use super::UNKNOWN;
use super::read::{cost, list, number, replicas, role, text_of};

pub(super) fn compute(group: &str, inputs: &Value) -> Result<Value, String> {
    if group != "scale_from_zero" {
        return Err(UNKNOWN.into());
    }
    let model = text_of(&inputs["model"])?;
    let label = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut held = Vec::new();
    for one in list(&inputs["samples"])? {
        held.push(QueueSample {
            model: label(&one["model_name"]),
            target_model: label(&one["target_model_name"]),
            value: number(&one["value"])?,
        });
    }
    if !is_pending(&model, &held) {
        return Ok(json!([]));
    }
    let mut candidates = Vec::new();
    for one in list(&inputs["variants"])?.iter().filter(|one| one["model"] == json!(model)) {
        let spec = &one["spec_replicas"];
        candidates.push(WakeCandidate {
            name: text_of(&one["name"])?.into(),
            role: role(&one["role"])?,
            // An absent number of replicas is 1 to Kubernetes.
            replicas: if spec.is_null() { Replicas::ONE } else { replicas(spec)? },
            cost: cost(&one["cost"])?,
            per_replica: one["prc"].as_f64(),
            bounds: Bounds { min: Replicas::ZERO, max: None },
        });
    }
    let names = woken(&candidates).into_iter().map(|at| candidates[at].name.clone());
    Ok(json!(names.collect::<Vec<_>>()))
}
