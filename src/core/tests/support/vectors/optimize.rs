//! Replica counts from findings: `optimizer.*`, `rescale.*`.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use smol_str::SmolStr;
use wva_core::analyze::finding::{Finding, Totals, VariantCapacity};
use wva_core::limit::FreeGpus;
use wva_core::model::{Analyzer, GroupId};
use wva_core::optimize::by_score::SharingRound;
use wva_core::optimize::rescale::Rescale;
use wva_core::optimize::water_fill::{Share, demand_gpus, split, water_fill};
use wva_core::optimize::{Candidate, Plan, Request};
use wva_core::units::Replicas;
use wva_core::upstream::by_score::share_free_gpus;
use wva_core::upstream::{self, Tree};

use super::read::{
    all, bounds, cost, counts, float, float_or_zero, integer_or_zero, list, named, replicas_or_zero, role,
    text, text_or_empty, whole,
};

/// The findings of these vectors are of August where they say whether a finding is live.
fn tree(is_of_august: bool) -> Tree {
    if is_of_august { Tree::August } else { Tree::June }
}

pub(super) fn cost_aware(inputs: &Value) -> Value {
    let tree = tree(inputs["liveness"] == true);
    let plans = requests(inputs).into_iter().map(|request| upstream::cost_aware::optimize(&request, tree));
    let models: Map<String, Value> =
        plans.map(|plan| (plan.id.model.to_string(), targets(&[plan]))).collect();
    Value::Object(models)
}

/// Without free GPUs at all the vectors are of 2026-06; a quota of a namespace exists since 2026-08 only.
pub(super) fn greedy_by_score(inputs: &Value) -> Value {
    let tree = tree(inputs["liveness"] == true || inputs["namespace_available"].is_object());
    let shared = share_free_gpus(&requests(inputs), free(inputs), &Rescale::default(), tree);
    let round = |round: &SharingRound| json!({ "model": round.id.model, "rem": round.remaining, "mean": round.mean, "target": round.target });
    let trace: Vec<Value> = shared.rounds.iter().map(round).collect();
    json!({ "targets": targets(&shared.plans), "trace": trace })
}

pub(super) fn rescale(inputs: &Value) -> Value {
    let flags = &inputs["flags"];
    let namespaces = flags["namespaces"].as_object().into_iter().flatten();
    let rescale = Rescale {
        cluster: flags["cluster"] == true,
        namespaces: namespaces.filter(|(_, is_on)| **is_on == true).map(|(name, _)| name.into()).collect(),
    };
    targets(&share_free_gpus(&requests(inputs), free(inputs), &rescale, Tree::August).plans)
}

fn targets(plans: &[Plan]) -> Value {
    let targets = plans.iter().flat_map(|plan| &plan.targets);
    json!(targets.map(|target| (target.name.clone(), target.target)).collect::<BTreeMap<_, _>>())
}

fn free(inputs: &Value) -> FreeGpus {
    let namespaces = inputs["namespace_available"].as_object().into_iter().flatten();
    FreeGpus {
        cluster: counts(&inputs["available"]),
        namespaces: namespaces.map(|(name, types)| (name.into(), counts(types))).collect(),
    }
}

/// Upstream decides only about models with a saturation result.
fn requests(inputs: &Value) -> Vec<Request> {
    list(&inputs["requests"]).iter().filter_map(request).collect()
}

fn request(given: &Value) -> Option<Request> {
    let mut findings: Vec<_> = all(&given["analyzers"], finding);
    let anchor = findings.iter().position(|finding| finding.analyzer == Analyzer::Saturation)?;
    findings.swap(0, anchor);
    let states = list(&given["states"]);
    let known = findings[0].variants.iter();
    let mut candidates: Vec<_> = known.map(|known| candidate(known, named(states, &known.name))).collect();
    for state in states {
        let name = text(&state["name"]);
        if !candidates.iter().any(|candidate| candidate.name == name) {
            candidates.push(candidate(&capacity(&json!({ "name": name, "cost": 0, "prc": 0 })), state));
        }
    }
    let id = GroupId::new(text(&given["namespace"]), text(&given["model"]));
    Some(Request { id, priority: float_or_zero(&given["priority"]), candidates, findings })
}

fn candidate(known: &VariantCapacity, state: &Value) -> Candidate {
    Candidate {
        name: known.name.clone(),
        role: known.role,
        cost: known.cost,
        accelerator: known.accelerator.clone(),
        gpus: Some(integer_or_zero(&state["gpus"])),
        watts: None,
        current: replicas_or_zero(&state["current"]),
        bounds: bounds(state),
    }
}

fn finding(given: &Value) -> Finding {
    let sums = |given: &Value, demand: f64| Totals {
        required: float_or_zero(&given["rc"]),
        spare: float_or_zero(&given["sc"]),
        demand,
        ..Totals::default()
    };
    let of_role = |(name, given): (&String, &Value)| {
        let demand = ["demand", "total_demand"].into_iter().find_map(|name| given[name].as_f64());
        (role(&json!(name)), sums(given, demand.unwrap_or_default()))
    };
    let is_saturation = given["name"] == "saturation";
    Finding {
        analyzer: if is_saturation { Analyzer::Saturation } else { Analyzer::Throughput },
        score: float_or_zero(&given["score"]),
        live: given["live"] != false,
        total: sums(given, float_or_zero(&given["total_demand"])),
        roles: given["roles"].as_object().into_iter().flatten().map(of_role).collect(),
        variants: all(&given["variants"], capacity),
    }
}

fn capacity(given: &Value) -> VariantCapacity {
    VariantCapacity {
        name: text(&given["name"]).into(),
        role: role(&given["role"]),
        accelerator: Some(text_or_empty(&given["accel"])).filter(|name| !name.is_empty()).map(SmolStr::from),
        cost: cost(&given["cost"]),
        replicas: replicas_or_zero(&given["replicas"]),
        pending: Replicas::ZERO,
        per_replica: float(&given["prc"]),
        demand: 0.0,
        reason: SmolStr::default(),
    }
}

pub(super) fn fill(inputs: &Value) -> Value {
    let share = |given: &Value| Share {
        id: text(&given["id"]).into(),
        priority: float(&given["priority"]),
        demand: float(&given["demand"]),
        floor: whole(&given["floor"]),
        cap: whole(&given["cap"]),
    };
    let shares: Vec<_> = all(&inputs["models"], share);
    let filled = water_fill(&shares, whole(&inputs["budget"]));
    json!({ "targets": filled.targets, "over": filled.is_over_budget })
}

pub(super) fn split_roles(inputs: &Value) -> Value {
    let roles: Vec<SmolStr> = all(&inputs["roles"], |role| text(role).into());
    let [weight, fallback, floor] = ["weight", "fallback", "floor"].map(|name| counts(&inputs[name]));
    json!(split(whole(&inputs["total"]), &roles, &weight, &fallback, &floor))
}

pub(super) fn gpus_of_demand(inputs: &Value) -> Value {
    let gpus = if inputs["gpus"].is_null() { 1 } else { whole(&inputs["gpus"]).max(1) };
    json!(demand_gpus(float(&inputs["demand"]), float(&inputs["prc"]), gpus))
}
