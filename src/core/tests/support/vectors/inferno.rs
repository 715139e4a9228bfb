//! The legacy solver: `inferno.*`.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use smol_str::SmolStr;
use wva_core::analyze::inferno::allocation::{
    Allocation, AllocationChoice, AllocationRequest, allocate, penalty,
};
use wva_core::analyze::inferno::data::{Accelerator, Current, PerformanceProfile, Server, ServerLoad};
use wva_core::analyze::queueing::model::Service;
use wva_core::analyze::queueing::sizing::Targets;
use wva_core::upstream::greedy::{BestEffort, solve};

use super::read::{
    all, integer, integer_or_zero, object, replicas, replicas_or_zero, single, single_or_zero, text,
    text_or_empty,
};

fn current(given: &Value) -> Current {
    let (replicas, cost) = (replicas_or_zero(&given["replicas"]), single_or_zero(&given["cost"]));
    Current { accelerator: text_or_empty(&given["acc"]).into(), replicas, cost }
}

pub(super) fn transition_penalty(inputs: &Value) -> Value {
    let Current { accelerator, replicas, cost } = current(&inputs["to"]);
    let to = Allocation { accelerator, replicas, cost, ..Allocation::default() };
    json!(penalty(&current(&inputs["from"]), &to))
}

pub(super) fn allocation(inputs: &Value) -> Value {
    let (given, acc, perf, target) = (&inputs["server"], &inputs["acc"], &inputs["perf"], &inputs["target"]);
    let load = &given["load"];
    let server = Server {
        name: "server".into(),
        class: SmolStr::default(),
        model: "model".into(),
        load: ServerLoad {
            arrival: single(&load["arrival"]),
            input: integer_or_zero(&load["in"]),
            output: integer_or_zero(&load["out"]),
        },
        min: replicas_or_zero(&given["min"]),
        max_batch: integer_or_zero(&given["max_batch"]),
        keep_accelerator: false,
        current: ["current", "cur"]
            .map(|name| &given[name])
            .into_iter()
            .find(|at| at.is_object())
            .map(current),
    };
    let name: SmolStr = text(&acc["name"]).into();
    let accelerator =
        Accelerator { name: name.clone(), kind: name.clone(), multiplicity: 1, cost: single(&acc["cost"]) };
    let [alpha, beta, gamma] = ["alpha", "beta", "gamma"].map(|name| single(&perf[name]));
    let performance = PerformanceProfile {
        model: "model".into(),
        accelerator: name,
        units: integer_or_zero(&perf["acc_count"]),
        max_batch: integer_or_zero(&perf["max_batch"]),
        at_tokens: integer_or_zero(&perf["at_tokens"]),
        service: Service::new(alpha, beta, gamma).unwrap(),
    };
    let [ttft, itl, tps] = ["ttft", "itl", "tps"].map(|name| single_or_zero(&target[name]));
    let found = allocate(&server, &accelerator, &performance, Targets { ttft, itl, tps });
    found.map_or(Value::Null, |found| {
        json!({
            "acc": found.accelerator, "replicas": found.replicas, "cost": found.cost, "value": found.value, "itl": found.itl,
            "ttft": found.ttft, "rho": found.rho, "batch": found.batch, "max_rate": found.max_rate,
        })
    })
}

pub(super) fn greedy(inputs: &Value) -> Value {
    let choice = |given: &Value| {
        let accelerator: SmolStr = text_or_empty(&given["acc"]).into();
        let kind = given["type"].as_str().filter(|kind| !kind.is_empty() && !accelerator.is_empty());
        let (kind, units) = (kind.map(SmolStr::from), u64::from(integer_or_zero(&given["units"])));
        let (cost, value) = (single(&given["cost"]), single(&given["value"]));
        let replicas = replicas(&given["replicas"]);
        let allocation = Allocation { accelerator, replicas, cost, value, ..Allocation::default() };
        AllocationChoice { allocation, kind, units }
    };
    let request = |given: &Value| AllocationRequest {
        server: text(&given["name"]).into(),
        priority: integer(&given["priority"]),
        choices: all(&given["allocs"], choice),
    };
    let requests: Vec<_> = all(&inputs["servers"], request);
    let capacity = object(&inputs["capacity"]).iter();
    let available: BTreeMap<SmolStr, u64> =
        capacity.map(|(kind, count)| (kind.into(), u64::from(integer(count)))).collect();
    let policy = BestEffort::from_name(text_or_empty(&inputs["policy"]));
    let solved = solve(&requests, &available, policy, inputs["delayed"] == true);
    let row = |(server, allocation): (SmolStr, Allocation)| {
        (
            server.into(),
            json!({ "acc": allocation.accelerator, "replicas": allocation.replicas, "cost": allocation.cost }),
        )
    };
    let alloc: Map<String, Value> = solved.allocations.into_iter().map(row).collect();
    json!({ "alloc": alloc, "left": solved.left })
}
