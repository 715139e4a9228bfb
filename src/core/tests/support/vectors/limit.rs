//! What limits hold back: `limiter.*`, `quota.*`.

use serde_json::{Value, json};
use smol_str::SmolStr;
use wva_core::limit::{GrantRequest, Quota};
use wva_core::model::{Bounds, VariantId};
use wva_core::units::Replicas;
use wva_core::upstream::limiter::grant_by_spare;

use super::UNKNOWN;
use super::optimize::{counts, gpus, names, whole};
use super::read::{cost, float, list, or_zero, text_of};

pub(super) fn compute(group: &str, inputs: &Value) -> Result<Value, String> {
    match group {
        "limiter.greedy_by_spare" => by_spare(inputs),
        "quota.grant" => grant(inputs),
        _ => Err(UNKNOWN.into()),
    }
}

fn by_spare(inputs: &Value) -> Result<Value, String> {
    let mut wants = Vec::new();
    for one in list(&inputs["decisions"])? {
        let max = or_zero(&one["max"])?;
        wants.push(GrantRequest {
            id: VariantId::new(one["namespace"].as_str().unwrap_or("default"), text_of(&one["name"])?),
            current: or_zero(&one["current"])?,
            proposed: or_zero(&one["target"])?,
            bounds: Bounds { min: or_zero(&one["min"])?, max: (max > Replicas::ZERO).then_some(max) },
            priority: 1.0,
            spare: float(&one["spare"])?,
            cost: cost(&one["cost"])?,
            accelerator: accelerator(&one["accel"]),
            gpus: gpus(&one["gpus"])?,
            watts: None,
        });
    }
    let mut pools = counts(&inputs["pools"])?;
    let granted = grant_by_spare(&wants, &mut pools);
    let decision = |one: &wva_core::limit::Grant| json!({ "name": one.id.name, "target": one.granted, "limited": one.is_limited, "granted_gpus": one.gpus });
    Ok(json!({ "decisions": granted.iter().map(decision).collect::<Vec<_>>(), "pools": pools }))
}

fn accelerator(value: &Value) -> Option<SmolStr> {
    value.as_str().filter(|name| !name.is_empty() && *name != "unresolved").map(SmolStr::from)
}

fn grant(inputs: &Value) -> Result<Value, String> {
    let cfg = &inputs["cfg"];
    let by_namespace = cfg["scope"] == json!("namespace");
    let quota = if by_namespace {
        let listed = cfg["namespace_quotas"].as_object().into_iter().flatten();
        let listed: Result<_, String> =
            listed.map(|(name, types)| Ok((name.into(), counts(types)?))).collect();
        Quota::namespaces(listed?, names(&cfg["exclude"])?)
    } else {
        Quota::cluster(counts(&cfg["quotas"])?)
    };
    let quota = quota.map_err(|error| error.to_string())?;
    let namespace = text_of(&inputs["namespace"])?;
    let accelerator = accelerator(&inputs["accel"]);
    let used = if by_namespace { &inputs["used"][&namespace] } else { &inputs["used"] };
    let used = accelerator.as_ref().and_then(|name| used[name.as_str()].as_i64()).unwrap_or(0);
    Ok(json!(quota.grant(&namespace, accelerator.as_deref(), used, whole(&inputs["want"])?)))
}
