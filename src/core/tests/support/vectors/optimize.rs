//! Replica counts from findings: `optimizer.*`, `rescale.*`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};
use smol_str::SmolStr;
use wva_core::analyze::finding::{Finding, Totals, VariantCapacity};
use wva_core::limit::FreeGpus;
use wva_core::model::{Analyzer, Bounds, GroupId, Role};
use wva_core::optimize::by_score::SharingRound;
use wva_core::optimize::rescale::Rescale;
use wva_core::optimize::water_fill::{Share, demand_gpus, split, water_fill};
use wva_core::optimize::{Candidate, Plan, Request};
use wva_core::units::Replicas;
use wva_core::upstream::by_score::share_free_gpus;
use wva_core::upstream::{self, Tree};

use super::UNKNOWN;
use super::read::{cost, float, integer, list, object, or_zero, text_of};

pub(super) fn compute(group: &str, inputs: &Value) -> Result<Value, String> {
    match group {
        "optimizer.cost_aware" => cost_aware(inputs),
        "optimizer.greedy_by_score" => greedy_by_score(inputs),
        "rescale.optimize" => rescale_optimize(inputs),
        "rescale.water_fill" => fill(inputs),
        "rescale.split" => split_roles(inputs),
        "rescale.demand_gpus" => {
            let gpus = if inputs["gpus"].is_null() { 1 } else { whole(&inputs["gpus"])?.max(1) };
            Ok(json!(demand_gpus(float(&inputs["demand"])?, float(&inputs["prc"])?, gpus)))
        }
        _ => Err(UNKNOWN.into()),
    }
}

fn cost_aware(inputs: &Value) -> Result<Value, String> {
    let live = inputs["liveness"] == json!(true);
    let requests = requests(inputs)?;
    let tree = if live { Tree::August } else { Tree::June };
    let mut models = Map::new();
    for request in &requests {
        let plan = upstream::cost_aware::optimize(request, tree);
        models.insert(plan.id.model.to_string(), Value::Object(targets(&[plan])));
    }
    Ok(Value::Object(models))
}

/// Without free GPUs at all the vectors are of 2026-06; a quota of a namespace exists since 2026-08 only.
fn greedy_by_score(inputs: &Value) -> Result<Value, String> {
    let live = inputs["liveness"] == json!(true) || inputs["namespace_available"].is_object();
    let requests = requests(inputs)?;
    let (free, tree) = (free(inputs)?, if live { Tree::August } else { Tree::June });
    let shared = share_free_gpus(&requests, free, &Rescale::default(), tree);
    let round = |round: &SharingRound| json!({ "model": round.id.model, "rem": round.remaining, "mean": round.mean, "target": round.target });
    let trace: Vec<Value> = shared.rounds.iter().map(round).collect();
    Ok(json!({ "targets": targets(&shared.plans), "trace": trace }))
}

fn rescale_optimize(inputs: &Value) -> Result<Value, String> {
    let flags = &inputs["flags"];
    let on = |name: &&String| flags["namespaces"][name.as_str()] == json!(true);
    let names = flags["namespaces"].as_object().into_iter().flat_map(Map::keys);
    let rescale = Rescale {
        cluster: flags["cluster"] == json!(true),
        namespaces: names.filter(on).map(SmolStr::from).collect(),
    };
    let shared = share_free_gpus(&requests(inputs)?, free(inputs)?, &rescale, Tree::August);
    Ok(Value::Object(targets(&shared.plans)))
}

fn targets(plans: &[Plan]) -> Map<String, Value> {
    let all = plans.iter().flat_map(|plan| &plan.targets);
    all.map(|one| (one.name.to_string(), json!(one.target))).collect()
}

fn free(inputs: &Value) -> Result<FreeGpus, String> {
    let mut free = FreeGpus { cluster: counts(&inputs["available"])?, namespaces: BTreeMap::new() };
    for (namespace, types) in inputs["namespace_available"].as_object().into_iter().flatten() {
        free.namespaces.insert(namespace.into(), counts(types)?);
    }
    Ok(free)
}

/// Upstream decides only about models with a saturation result.
fn requests(inputs: &Value) -> Result<Vec<Request>, String> {
    let all: Result<Vec<_>, String> = list(&inputs["requests"])?.iter().map(request).collect();
    Ok(all?.into_iter().flatten().collect())
}

fn request(one: &Value) -> Result<Option<Request>, String> {
    let mut findings = Vec::new();
    for entry in list(&one["analyzers"])? {
        findings.push(finding(entry)?);
    }
    let Some(anchor) = findings.iter().position(|one| one.analyzer == Analyzer::Saturation) else {
        return Ok(None);
    };
    findings.swap(0, anchor);
    let states = list(&one["states"])?;
    let mut candidates = Vec::new();
    for known in &findings[0].variants {
        let state = states.iter().find(|state| state["name"] == json!(known.name));
        candidates.push(candidate(known, state.unwrap_or(&Value::Null))?);
    }
    for state in states {
        let name = text_of(&state["name"])?;
        if !candidates.iter().any(|one| one.name == name) {
            candidates.push(candidate(&capacity(&json!({ "name": name, "cost": 0, "prc": 0 }))?, state)?);
        }
    }
    let id = GroupId::new(text_of(&one["namespace"])?, text_of(&one["model"])?);
    let priority = one["priority"].as_f64().unwrap_or_default();
    Ok(Some(Request { id, priority, candidates, findings }))
}

fn candidate(known: &VariantCapacity, state: &Value) -> Result<Candidate, String> {
    let max = or_zero(&state["max"])?;
    Ok(Candidate {
        name: known.name.clone(),
        role: known.role,
        cost: known.cost,
        accelerator: known.accelerator.clone(),
        gpus: or_zero(&state["gpus"])?.get(),
        watts: None,
        current: or_zero(&state["current"])?,
        bounds: Bounds { min: or_zero(&state["min"])?, max: (max > Replicas::ZERO).then_some(max) },
    })
}

fn finding(entry: &Value) -> Result<Finding, String> {
    let number = |name: &str| entry[name].as_f64().unwrap_or_default();
    let variants: Result<Vec<_>, _> = list(&entry["variants"])?.iter().map(capacity).collect();
    let mut roles = BTreeMap::new();
    for (name, totals) in entry["roles"].as_object().into_iter().flatten() {
        let number = |name: &str| totals[name].as_f64();
        let demand = number("demand").or_else(|| number("total_demand")).unwrap_or_default();
        let (required, spare) = (number("rc").unwrap_or_default(), number("sc").unwrap_or_default());
        roles.insert(role(name)?, Totals { required, spare, demand, ..Totals::default() });
    }
    Ok(Finding {
        analyzer: if entry["name"] == json!("saturation") {
            Analyzer::Saturation
        } else {
            Analyzer::Throughput
        },
        score: number("score"),
        live: entry["live"] != json!(false),
        total: Totals {
            required: number("rc"),
            spare: number("sc"),
            demand: number("total_demand"),
            ..Totals::default()
        },
        roles,
        variants: variants?,
    })
}

fn capacity(one: &Value) -> Result<VariantCapacity, String> {
    Ok(VariantCapacity {
        name: text_of(&one["name"])?.into(),
        role: role(one["role"].as_str().unwrap_or_default())?,
        accelerator: one["accel"].as_str().filter(|name| !name.is_empty()).map(SmolStr::from),
        cost: cost(&one["cost"])?,
        replicas: or_zero(&one["replicas"])?,
        pending: Replicas::ZERO,
        per_replica: float(&one["prc"])?,
        demand: 0.0,
        reason: SmolStr::default(),
    })
}

fn role(name: &str) -> Result<Role, String> {
    match name {
        "" | "both" => Ok(Role::Both),
        "prefill" => Ok(Role::Prefill),
        "decode" => Ok(Role::Decode),
        other => Err(format!("unknown role {other}")),
    }
}

fn fill(inputs: &Value) -> Result<Value, String> {
    let mut shares = Vec::new();
    for one in list(&inputs["models"])? {
        let (id, priority, demand) = (text_of(&one["id"])?, float(&one["priority"])?, float(&one["demand"])?);
        shares.push(Share {
            id: id.into(),
            priority,
            demand,
            floor: whole(&one["floor"])?,
            cap: whole(&one["cap"])?,
        });
    }
    let filled = water_fill(&shares, whole(&inputs["budget"])?);
    Ok(json!({ "targets": filled.targets, "over": filled.is_over_budget }))
}

fn split_roles(inputs: &Value) -> Result<Value, String> {
    let roles: Result<Vec<_>, _> =
        list(&inputs["roles"])?.iter().map(|role| text_of(role).map(SmolStr::from)).collect();
    let map = |name: &str| counts(&inputs[name]);
    let (weight, fallback, floor) = (map("weight")?, map("fallback")?, map("floor")?);
    Ok(json!(split(whole(&inputs["total"])?, &roles?, &weight, &fallback, &floor)))
}

pub(super) fn counts(value: &Value) -> Result<BTreeMap<SmolStr, i64>, String> {
    if value.is_null() {
        return Ok(BTreeMap::new());
    }
    object(value)?.iter().map(|(name, count)| Ok((name.into(), whole(count)?))).collect()
}

pub(super) fn whole(value: &Value) -> Result<i64, String> {
    let float = || value.as_f64().map(wva_core::units::truncated_i64);
    value.as_i64().or_else(float).ok_or_else(|| format!("{value} is not a whole number"))
}

/// The names of a list.
pub(super) fn names(value: &Value) -> Result<BTreeSet<SmolStr>, String> {
    value.as_array().into_iter().flatten().map(|name| text_of(name).map(SmolStr::from)).collect()
}

/// GPUs of a replica.
pub(super) fn gpus(value: &Value) -> Result<u32, String> {
    if value.is_null() { Ok(0) } else { integer(value) }
}
