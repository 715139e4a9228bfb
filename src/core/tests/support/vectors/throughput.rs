//! The throughput analyzer: `throughput.*`.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use wva_core::analyze::finding::{Totals, VariantCapacity};
use wva_core::analyze::throughput::{
    LatencyLine, RequestShape, ThroughputAnalysis, ThroughputInput, ThroughputMemory, ThroughputObservation,
    ThroughputSettings, ThroughputVariant,
};
use wva_core::units::{Cost, Requests, Seconds, truncated_i64};
use wva_core::upstream::throughput::analyze;

use super::UNKNOWN;
use super::read::{float, list, number, or_zero, role, text_of};

pub(super) fn compute(group: &str, inputs: &Value) -> Result<Value, String> {
    match group {
        "throughput.analyze" => throughput_analyze(inputs),
        "throughput.fit" => {
            let point = |one: &Value| Ok::<_, String>((float(&one[0])?, float(&one[1])?));
            let points: Vec<_> = list(&inputs["points"])?.iter().map(point).collect::<Result<_, _>>()?;
            Ok(LatencyLine::fit(points).map_or(Value::Null, |line| json!([line.slope, line.intercept])))
        }
        "throughput.avg_shape" => {
            let replicas: Vec<_> =
                list(&inputs["replicas"])?.iter().map(observation).collect::<Result<_, _>>()?;
            let none = RequestShape { prompt: 0.0, generated: 0.0, hits: 0.0 };
            let shape = RequestShape::mean(&replicas).unwrap_or(none);
            Ok(json!([shape.prompt, shape.generated, shape.hits]))
        }
        "throughput.local_demand" => {
            let finding = run(inputs)?.finding;
            let variants: f64 = finding.variants.iter().map(|one| one.demand).sum();
            Ok(json!({ "variant_demand": variants, "model_demand": finding.total.demand }))
        }
        _ => Err(UNKNOWN.into()),
    }
}

fn throughput_analyze(inputs: &Value) -> Result<Value, String> {
    let ThroughputAnalysis { finding, lines } = run(inputs)?;
    let variant = |one: &VariantCapacity| {
        let line = &lines[&one.name];
        json!({
            "name": one.name, "role": state(inputs, &one.name)["role"].as_str().unwrap_or_default(),
            "replicas": one.replicas, "pending": one.pending,
            "prc": one.per_replica, "capacity": one.total(), "demand": one.demand, "reason": one.reason,
            "a": line.slope, "b": line.intercept,
        })
    };
    let total = finding.total;
    let utilisation = if total.supply > 0.0 { total.demand / total.supply } else { 0.0 };
    let of_role =
        |one: &Totals| json!({ "supply": one.supply, "anticipated": one.anticipated, "demand": one.demand });
    let roles: BTreeMap<_, _> = finding.roles.iter().map(|(role, one)| (role, of_role(one))).collect();
    Ok(json!({
        "variants": finding.variants.iter().map(variant).collect::<Vec<_>>(),
        "supply": total.supply, "anticipated": total.anticipated, "demand": total.demand,
        "util": utilisation, "roles": if roles.is_empty() { Value::Null } else { json!(roles) },
    }))
}

fn state<'v>(inputs: &'v Value, name: &str) -> &'v Value {
    let all = inputs["states"].as_array().map(Vec::as_slice).unwrap_or_default();
    all.iter().find(|one| one["name"] == name).unwrap_or(&Value::Null)
}

/// Each warm-up entry is one look at one replica; then comes the look that counts.
fn run(inputs: &Value) -> Result<ThroughputAnalysis, String> {
    let mut memory = ThroughputMemory::default();
    let mut now = Timestamp::UNIX_EPOCH;
    for one in inputs["warmup"].as_array().map(Vec::as_slice).unwrap_or_default() {
        let _ = analyze(&look(inputs, now, std::slice::from_ref(one))?, &mut memory);
        now += SignedDuration::from_secs(15);
    }
    Ok(analyze(&look(inputs, now, list(&inputs["replicas"])?)?, &mut memory))
}

fn look(inputs: &Value, now: Timestamp, replicas: &[Value]) -> Result<ThroughputInput, String> {
    let mut variants: Vec<ThroughputVariant> = Vec::new();
    for one in replicas {
        let name = text_of(&one["variant"])?;
        let seen = observation(one)?;
        if let Some(known) = variants.iter_mut().find(|known| known.name == name) {
            known.replicas.push(seen);
            continue;
        }
        let state = state(inputs, &name);
        variants.push(ThroughputVariant {
            role: role(&state["role"])?,
            accelerator: None,
            cost: Cost::ZERO,
            pending: or_zero(&state["pending"])?,
            ready: or_zero(&state["current"])?.saturating_sub(or_zero(&state["pending"])?),
            replicas: vec![seen],
            name: name.into(),
        });
    }
    let settings = ThroughputSettings { up: 0.85, down: 0.70, score: 1.0, period: Seconds::whole(15) };
    let queue = Requests::new(number(&inputs["queue_size"])?.max(0.0)).map_err(|error| error.to_string())?;
    Ok(ThroughputInput { now, variants, arrival: inputs["arrival"].as_f64(), queue, settings })
}

fn observation(one: &Value) -> Result<ThroughputObservation, String> {
    Ok(ThroughputObservation {
        stale: one["stale"] == json!(true),
        kv: number(&one["k"])?,
        capacity: one["total"].as_i64().or_else(|| one["total"].as_f64().map(truncated_i64)).unwrap_or(0),
        latency: number(&one["itl"])?,
        prompt: number(&one["in"])?,
        generated: number(&one["out"])?,
        hits: number(&one["hit"])?,
        arriving: number(&one["arrival"])?,
        finished: number(&one["req_rate"])?,
        generating: number(&one["gen_rate"])?,
    })
}
