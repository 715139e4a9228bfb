//! What limits a number, and what wakes a variant: `enforcer`, `limiter.*`, `quota.*`, `coordinator.*`, `scale_from_zero`.

use serde_json::{Map, Value, json};
use smol_str::SmolStr;
use wva_core::analyze::scale_from_zero::WakeCandidate;
use wva_core::bound::enforcer::{Action, Enforced, enforce};
use wva_core::limit::{Grant, GrantRequest, Quota};
use wva_core::model::{Bounds, VariantId};
use wva_core::units::{Replicas, truncated_u32};
use wva_core::upstream::Tree;
use wva_core::upstream::limiter::grant_by_spare;
use wva_core::upstream::rebalance::{PoolEntry, rebalance};
use wva_core::upstream::scale_from_zero::{QueueSample, is_pending, woken};

use super::read::{
    all, bounds, cost, counts, float, float_or_zero, integer_or, list, names, optional_replicas, replicas,
    replicas_or_zero, requests, role, text, text_or_empty, tree, whole,
};

pub(super) fn enforcer(inputs: &Value) -> Value {
    let decision = |given: &Value| Enforced {
        name: text(&given["name"]).into(),
        target: replicas(&given["target"]),
        cost: cost(&given["cost"]),
    };
    let mut decisions: Vec<_> = all(&inputs["decisions"], decision);
    let action = enforce(&mut decisions, inputs["enabled"] == true, inputs["requests"].as_f64());
    let targets: Map<String, Value> =
        decisions.into_iter().map(|decision| (decision.name.into(), json!(decision.target))).collect();
    json!({ "targets": targets, "to_zero": action == Action::ToZero })
}

pub(super) fn by_spare(inputs: &Value) -> Value {
    let request = |given: &Value| GrantRequest {
        id: VariantId::new(given["namespace"].as_str().unwrap_or("default"), text(&given["name"])),
        current: replicas_or_zero(&given["current"]),
        proposed: replicas_or_zero(&given["target"]),
        bounds: bounds(given),
        priority: 1.0,
        spare: float(&given["spare"]),
        cost: cost(&given["cost"]),
        accelerator: accelerator(&given["accel"]),
        gpus: Some(integer_or(&given["gpus"], 0)),
        watts: None,
    };
    let requests: Vec<_> = all(&inputs["decisions"], request);
    let mut pools = counts(&inputs["pools"]);
    let granted = grant_by_spare(&requests, &mut pools);
    let decision = |grant: &Grant| json!({ "name": grant.id.name, "target": grant.granted, "limited": grant.is_limited, "granted_gpus": grant.gpus });
    json!({ "decisions": granted.iter().map(decision).collect::<Vec<_>>(), "pools": pools })
}

fn accelerator(value: &Value) -> Option<SmolStr> {
    value.as_str().filter(|name| !name.is_empty() && *name != "unresolved").map(SmolStr::from)
}

pub(super) fn quota(inputs: &Value) -> Value {
    let cfg = &inputs["cfg"];
    let is_by_namespace = cfg["scope"] == "namespace";
    let quota = if is_by_namespace {
        let lists = cfg["namespace_quotas"].as_object().into_iter().flatten();
        let lists = lists.map(|(name, types)| (name.into(), counts(types))).collect();
        Quota::namespaces(lists, names(&cfg["exclude"]))
    } else {
        Quota::cluster(counts(&cfg["quotas"]))
    };
    let namespace = text(&inputs["namespace"]);
    let accelerator = accelerator(&inputs["accel"]);
    let used = if is_by_namespace { &inputs["used"][namespace] } else { &inputs["used"] };
    let used = accelerator.as_ref().and_then(|name| used[name.as_str()].as_i64()).unwrap_or(0);
    json!(quota.unwrap().grant(namespace, accelerator.as_deref(), used, whole(&inputs["want"])))
}

pub(super) fn coordinator(inputs: &Value) -> Value {
    let entry = |given: &Value| PoolEntry {
        queue: requests(float_or_zero(&given["queue"])),
        min: replicas_or_zero(&given["min"]),
    };
    let entries: Vec<_> = all(&inputs["entries"], entry);
    let tree = tree(inputs).unwrap_or(Tree::August);
    json!(rebalance(truncated_u32(float(&inputs["quota"])), &entries, tree))
}

pub(super) fn scale_from_zero(inputs: &Value) -> Value {
    let model = text(&inputs["model"]);
    let sample = |given: &Value| QueueSample {
        model: text_or_empty(&given["model_name"]).to_owned(),
        target_model: text_or_empty(&given["target_model_name"]).to_owned(),
        value: float_or_zero(&given["value"]),
    };
    let held: Vec<_> = all(&inputs["samples"], sample);
    if !is_pending(model, &held) {
        return json!([]);
    }
    let candidate = |given: &Value| WakeCandidate {
        name: text(&given["name"]).into(),
        role: role(&given["role"]),
        // An absent number of replicas is 1 to Kubernetes.
        replicas: optional_replicas(&given["spec_replicas"]).unwrap_or(Replicas::ONE),
        cost: cost(&given["cost"]),
        per_replica: given["prc"].as_f64(),
        bounds: Bounds { min: Replicas::ZERO, max: None },
    };
    let variants = list(&inputs["variants"]).iter().filter(|given| given["model"] == model);
    let candidates: Vec<_> = variants.map(candidate).collect();
    json!(woken(&candidates).into_iter().map(|at| &candidates[at].name).collect::<Vec<_>>())
}
