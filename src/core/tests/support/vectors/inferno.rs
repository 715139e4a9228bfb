//! The legacy solver: `inferno.*`.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use smol_str::SmolStr;
use wva_core::analyze::inferno::allocation::{
    Allocation, AllocationChoice, AllocationRequest, allocate, penalty,
};
use wva_core::analyze::inferno::data::{
    Accelerator, Current, PerformanceProfile, PowerProfile, Server, ServerLoad,
};
use wva_core::analyze::queueing::model::Service;
use wva_core::analyze::queueing::sizing::Targets;
use wva_core::upstream::inferno_greedy::{BestEffort, solve};

use super::UNKNOWN;
use super::read::{float_or, integer, list, object, or_zero, replicas, single, text_of};

pub(super) fn compute(group: &str, inputs: &Value) -> Result<Value, String> {
    match group {
        "inferno.allocation" => allocation(inputs),
        "inferno.penalty" => {
            let to = current(&inputs["to"])?;
            let (accelerator, replicas, cost) = (to.accelerator, to.replicas, to.cost);
            let to = Allocation { accelerator, replicas, cost, ..Allocation::default() };
            Ok(json!(penalty(&current(&inputs["from"])?, &to)))
        }
        "inferno.greedy" => greedy(inputs),
        _ => Err(UNKNOWN.into()),
    }
}

fn current(given: &Value) -> Result<Current, String> {
    let (replicas, cost) = (or_zero(&given["replicas"])?, float_or(&given["cost"], 0.0)? as f32);
    Ok(Current { accelerator: given["acc"].as_str().unwrap_or_default().into(), replicas, cost })
}

fn allocation(inputs: &Value) -> Result<Value, String> {
    let (given, acc, perf, target) = (&inputs["server"], &inputs["acc"], &inputs["perf"], &inputs["target"]);
    let load = &given["load"];
    let has = ["current", "cur"].into_iter().find(|name| given[*name].is_object());
    let server = Server {
        name: "server".into(),
        class: SmolStr::default(),
        model: "model".into(),
        load: ServerLoad {
            arrival: single(&load["arrival"])?,
            input: or_zero(&load["in"])?.get(),
            output: or_zero(&load["out"])?.get(),
        },
        min: or_zero(&given["min"])?,
        max_batch: or_zero(&given["max_batch"])?.get(),
        keep_accelerator: false,
        current: has.map(|name| current(&given[name])).transpose()?,
    };
    let name: SmolStr = text_of(&acc["name"])?.into();
    let accelerator = Accelerator {
        name: name.clone(),
        kind: name.clone(),
        multiplicity: 1,
        cost: single(&acc["cost"])?,
        power: PowerProfile::default(),
    };
    let service = Service::new(single(&perf["alpha"])?, single(&perf["beta"])?, single(&perf["gamma"])?);
    let performance = PerformanceProfile {
        model: "model".into(),
        accelerator: name,
        units: or_zero(&perf["acc_count"])?.get(),
        max_batch: or_zero(&perf["max_batch"])?.get(),
        at_tokens: or_zero(&perf["at_tokens"])?.get(),
        service: service.map_err(|error| error.to_string())?,
    };
    let goal = |name: &str| float_or(&target[name], 0.0).map(|value| value as f32);
    let targets = Targets { ttft: goal("ttft")?, itl: goal("itl")?, tps: goal("tps")? };
    let found = allocate(&server, &accelerator, &performance, targets);
    Ok(found.map_or(Value::Null, |one| {
        json!({
            "acc": one.accelerator, "replicas": one.replicas, "cost": one.cost, "value": one.value,
            "itl": one.itl, "ttft": one.ttft, "rho": one.rho, "batch": one.batch, "max_rate": one.max_rate,
        })
    }))
}

fn greedy(inputs: &Value) -> Result<Value, String> {
    let choice = |one: &Value| -> Result<AllocationChoice, String> {
        let accelerator: SmolStr = one["acc"].as_str().unwrap_or_default().into();
        let kind = one["type"].as_str().filter(|kind| !kind.is_empty() && !accelerator.is_empty());
        let (units, replicas) = (u64::from(or_zero(&one["units"])?.get()), replicas(&one["replicas"])?);
        let (cost, value) = (single(&one["cost"])?, single(&one["value"])?);
        let kind = kind.map(SmolStr::from);
        let allocation = Allocation { accelerator, replicas, cost, value, ..Allocation::default() };
        Ok(AllocationChoice { allocation, kind, units })
    };
    let request = |one: &Value| -> Result<AllocationRequest, String> {
        Ok(AllocationRequest {
            server: text_of(&one["name"])?.into(),
            priority: integer(&one["priority"])?,
            choices: list(&one["allocs"])?.iter().map(choice).collect::<Result<_, _>>()?,
        })
    };
    let requests: Vec<_> = list(&inputs["servers"])?.iter().map(request).collect::<Result<_, _>>()?;
    let available: BTreeMap<SmolStr, u64> = object(&inputs["capacity"])?
        .iter()
        .map(|(kind, count)| Ok((kind.into(), u64::from(integer(count)?))))
        .collect::<Result<_, String>>()?;
    let policy = BestEffort::from_name(inputs["policy"].as_str().unwrap_or_default());
    let granted = solve(&requests, &available, policy, inputs["delayed"] == json!(true));
    let alloc: Map<String, Value> = granted
        .allocations
        .into_iter()
        .map(|(server, one)| {
            (server.into(), json!({ "acc": one.accelerator, "replicas": one.replicas, "cost": one.cost }))
        })
        .collect();
    Ok(json!({ "alloc": alloc, "left": granted.left }))
}
