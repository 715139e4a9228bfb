//! The throughput analyzer: `throughput.*`.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use wva_core::analyze::finding::{Totals, VariantCapacity};
use wva_core::analyze::throughput::{
    LatencyLine, RequestShape, ThroughputAnalysis, ThroughputInput, ThroughputMemory, ThroughputObservation,
    ThroughputSettings, ThroughputVariant,
};
use wva_core::units::{Cost, Seconds, truncated_i64};
use wva_core::upstream::throughput;

use super::read::{
    all, float, float_or_zero, list, list_or_empty, named, replicas_or_zero, requests, role, text,
    text_or_empty,
};

pub(super) fn fit(inputs: &Value) -> Value {
    let points: Vec<_> = all(&inputs["points"], |point| (float(&point[0]), float(&point[1])));
    LatencyLine::fit(points).map_or(Value::Null, |line| json!([line.slope, line.intercept]))
}

pub(super) fn mean_shape(inputs: &Value) -> Value {
    let engines: Vec<_> = all(&inputs["replicas"], observation);
    let none = RequestShape { prompt: 0.0, generated: 0.0, hits: 0.0 };
    let shape = RequestShape::mean(&engines).unwrap_or(none);
    json!([shape.prompt, shape.generated, shape.hits])
}

pub(super) fn local_demand(inputs: &Value) -> Value {
    let finding = run(inputs).finding;
    let variants: f64 = finding.variants.iter().map(|variant| variant.demand).sum();
    json!({ "variant_demand": variants, "model_demand": finding.total.demand })
}

pub(super) fn analyze(inputs: &Value) -> Value {
    let ThroughputAnalysis { finding, lines } = run(inputs);
    let states = list_or_empty(&inputs["states"]);
    let variant = |found: &VariantCapacity| {
        let line = &lines[&found.name];
        json!({
            "name": found.name, "role": text_or_empty(&named(states, &found.name)["role"]),
            "replicas": found.replicas, "pending": found.pending, "prc": found.per_replica,
            "capacity": found.total(), "demand": found.demand, "reason": found.reason,
            "a": line.slope, "b": line.intercept,
        })
    };
    let total = finding.total;
    let utilisation = if total.supply > 0.0 { total.demand / total.supply } else { 0.0 };
    let sums = |sums: &Totals| json!({ "supply": sums.supply, "anticipated": sums.anticipated, "demand": sums.demand });
    let roles: BTreeMap<_, _> = finding.roles.iter().map(|(role, found)| (role, sums(found))).collect();
    json!({
        "variants": finding.variants.iter().map(variant).collect::<Vec<_>>(),
        "supply": total.supply, "anticipated": total.anticipated, "demand": total.demand,
        "util": utilisation, "roles": if roles.is_empty() { Value::Null } else { json!(roles) },
    })
}

/// Each warm-up entry is a cycle with one replica; then comes the cycle that counts.
fn run(inputs: &Value) -> ThroughputAnalysis {
    let mut memory = ThroughputMemory::default();
    let mut now = Timestamp::UNIX_EPOCH;
    for engine in list_or_empty(&inputs["warmup"]) {
        let _ = throughput::analyze(&input(inputs, now, std::slice::from_ref(engine)), &mut memory);
        now += SignedDuration::from_secs(15);
    }
    throughput::analyze(&input(inputs, now, list(&inputs["replicas"])), &mut memory)
}

fn input(inputs: &Value, now: Timestamp, engines: &[Value]) -> ThroughputInput {
    let mut variants: Vec<ThroughputVariant> = Vec::new();
    for engine in engines {
        let (name, observation) = (text(&engine["variant"]), observation(engine));
        if let Some(known) = variants.iter_mut().find(|known| known.name == name) {
            known.engines.push(observation);
            continue;
        }
        let state = named(list_or_empty(&inputs["states"]), name);
        let pending = replicas_or_zero(&state["pending"]);
        variants.push(ThroughputVariant {
            role: role(&state["role"]),
            accelerator: None,
            cost: Cost::ZERO,
            pending,
            ready: replicas_or_zero(&state["current"]).saturating_sub(pending),
            engines: vec![observation],
            name: name.into(),
        });
    }
    let settings = ThroughputSettings { up: 0.85, down: 0.70, score: 1.0, period: Seconds::whole(15) };
    let queue = requests(float_or_zero(&inputs["queue_size"]).max(0.0));
    ThroughputInput { now, variants, arrival: inputs["arrival"].as_f64(), queue, settings }
}

fn observation(given: &Value) -> ThroughputObservation {
    let number = |name: &str| float_or_zero(&given[name]);
    ThroughputObservation {
        stale: given["stale"] == true,
        kv: number("k"),
        capacity: given["total"].as_i64().unwrap_or_else(|| truncated_i64(number("total"))),
        latency: number("itl"),
        prompt: number("in"),
        generated: number("out"),
        hits: number("hit"),
        arriving: number("arrival"),
        finished: number("req_rate"),
        generating: number("gen_rate"),
    }
}
