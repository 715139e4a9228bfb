//! The queueing model and its tuner: `qm.*`.

use serde_json::{Map, Value, json};
use wva_core::analyze::queueing::model::{
    Limits, Model, Performance, RequestLengths, Service, ServiceTimes, Unsolvable,
};
use wva_core::analyze::queueing::sizing::{Means, Targets, fallback, inferred};
use wva_core::analyze::queueing::tuner::{Environment, Filter, Start, guess};
use wva_core::analyze::queueing::{LatencyObservation, VariantLoad};
use wva_core::model::Role;
use wva_core::units::Cost;
use wva_core::upstream::queueing as upstream;

use super::UNKNOWN;
use super::read::{float, float_or, integer, list, or_zero, single, text_of};

pub(super) fn compute(group: &str, inputs: &Value) -> Result<Value, String> {
    match group {
        "qm.service_time" => {
            let times = ServiceTimes::new(service(inputs)?, lengths(inputs)?);
            let n = single(&inputs["n"])?;
            Ok(json!({ "titer": times.iteration(n), "prefill": times.prefill(n), "decode": times.decode(n) }))
        }
        "qm.analyze" => analyze(inputs),
        "qm.size" => size(inputs),
        "qm.slo" => slo(inputs),
        "qm.capacity" => capacity(inputs),
        "qm.guess" => {
            let [ttft, itl, input, output] = ["ttft", "itl", "i", "o"].map(|name| float(&inputs[name]));
            Ok(json!(guess(ttft?, itl?, input?, output?)))
        }
        "qm.ekf" => filter(inputs),
        _ => Err(UNKNOWN.into()),
    }
}

fn service(inputs: &Value) -> Result<Service, String> {
    let [alpha, beta, gamma] = ["alpha", "beta", "gamma"].map(|name| single(&inputs[name]));
    Service::new(alpha?, beta?, gamma?).map_err(|error| error.to_string())
}

fn lengths(inputs: &Value) -> Result<RequestLengths, String> {
    RequestLengths::new(single(&inputs["i"])?, single(&inputs["o"])?).map_err(|error| error.to_string())
}

fn model(inputs: &Value) -> Result<Result<Model, Unsolvable>, String> {
    let usual = Limits::sizing(Limits::DEFAULT_BATCH);
    let given =
        |name: &str, usual: u32| if inputs[name].is_null() { Ok(usual) } else { integer(&inputs[name]) };
    let limits = Limits { batch: given("n", usual.batch)?, queue: given("q", usual.queue)? };
    Ok(upstream::model(service(inputs)?, lengths(inputs)?, limits))
}

fn metrics(at: &Performance) -> Value {
    json!({
        "throughput": at.throughput, "resp": at.response, "wait": at.wait, "in_service": at.in_service,
        "prefill": at.prefill, "itl": at.itl, "ttft": at.ttft, "rho": at.rho, "max_rate": at.max_rate,
    })
}

/// Why there is no answer, in the vectors' words.
fn reason(error: &Unsolvable) -> String {
    match error {
        Unsolvable::AboveMaximum { .. } => "rate above maximum".into(),
        Unsolvable::Unreachable(_) => "target below the reachable range".into(),
        other => other.to_string(),
    }
}

fn analyze(inputs: &Value) -> Result<Value, String> {
    let rate = single(&inputs["rate"])?;
    let mut model = match model(inputs)? {
        Ok(model) => model,
        Err(error) => return Ok(json!({ "error": reason(&error) })),
    };
    Ok(match model.analyze(rate) {
        Ok(at) => metrics(&at),
        Err(error) => json!({ "error": reason(&error), "max_rate": model.max_rate() }),
    })
}

fn size(inputs: &Value) -> Result<Value, String> {
    let target = |name: &str| float_or(&inputs[name], 0.0).map(|value| value as f32);
    let targets = Targets { ttft: target("ttft")?, itl: target("itl")?, tps: target("tps")? };
    Ok(match model(inputs)?.and_then(|mut model| model.size(targets)) {
        Ok(size) => json!({
            "rate_ttft": size.rate_ttft, "rate_itl": size.rate_itl, "rate_tps": size.rate_tps,
            "metrics": metrics(&size.at),
        }),
        Err(error) => json!({ "error": reason(&error) }),
    })
}

fn slo(inputs: &Value) -> Result<Value, String> {
    let targets = if inputs["alpha"].is_null() {
        let (ttft, itl) = (float_or(&inputs["ttft_s"], 0.0)?, float_or(&inputs["itl_s"], 0.0)?);
        fallback(&Means { ttft, itl, ..Means::default() })
    } else {
        let means = Means { input: float(&inputs["i"])?, output: float(&inputs["o"])?, ..Means::default() };
        inferred(service(inputs)?, &means, float_or(&inputs["k"], 3.0)?)
    };
    Ok(targets.map_or(Value::Null, |targets| json!({ "ttft": targets.ttft, "itl": targets.itl })))
}

fn capacity(inputs: &Value) -> Result<Value, String> {
    let batch = or_zero(&inputs["batch"])?.get();
    let observation = |one: &Value| -> Result<LatencyObservation, String> {
        Ok(LatencyObservation {
            arrival: one["arrival"].as_f64(),
            input: float_or(&one["in"], 0.0)?,
            output: float_or(&one["out"], 0.0)?,
            ttft: float_or(&one["ttft"], 0.0)?,
            itl: float_or(&one["itl"], 0.0)?,
            batch: one["batch"].as_u64().and_then(|own| u32::try_from(own).ok()).unwrap_or(batch),
        })
    };
    let observations: Vec<_> =
        list(&inputs["replicas"])?.iter().map(observation).collect::<Result<_, _>>()?;
    let (state, pending) = (&inputs["state"], or_zero(&inputs["state"]["pending"])?);
    let load = VariantLoad {
        name: text_of(&state["name"])?.into(),
        role: Role::Both,
        accelerator: None,
        cost: Cost::ZERO,
        ready: or_zero(&state["current"])?.saturating_sub(pending),
        pending,
        observations,
    };
    let service = match inputs["params"].as_array().map(Vec::as_slice) {
        Some([alpha, beta, gamma]) => {
            Some(service(&json!({ "alpha": alpha, "beta": beta, "gamma": gamma }))?)
        }
        _ => None,
    };
    let slo = &inputs["slo"];
    let targets = Targets { ttft: single(&slo["ttft"])?, itl: single(&slo["itl"])?, tps: 0.0 };
    let lengths = upstream::means(&load.observations).and_then(|means| means.lengths());
    let sized = upstream::size(&load, service, lengths, targets);
    let totals = upstream::totals(&[sized]);
    let mut found = json!({
        "name": load.name, "replicas": load.ready, "pending": pending, "prc": sized.per_replica,
        "capacity": upstream::desired_capacity(&sized), "demand": sized.demand, "util": upstream::desired_utilisation(&sized),
        "rc": totals.required, "sc": totals.spare,
    });
    if let (Some(desired), Some(fields)) = (upstream::desired(&sized), found.as_object_mut()) {
        fields.insert("desired".into(), json!(desired));
    }
    Ok(found)
}

fn filter(inputs: &Value) -> Result<Value, String> {
    let environment = |one: &Value| -> Result<Option<Environment>, String> {
        let (rate, batch) = (single(&one["lam"])?, integer(&one["n"])?);
        let (ttft, itl) = (single(&one["ttft"])?, single(&one["itl"])?);
        Ok(Environment { rate, lengths: lengths(one)?, batch, ttft, itl }.validated())
    };
    let environments: Vec<_> = list(&inputs["envs"])?.iter().map(environment).collect::<Result<_, _>>()?;
    let environments: Vec<_> = environments.into_iter().flatten().collect();
    let Some(first) = environments.first() else { return Ok(Value::Null) };
    let start = start(&inputs["stored"], first)?;
    let mut filter = match Filter::new(&start, first) {
        Ok(filter) => filter,
        Err(Unsolvable::AboveMaximum { rate, max_rate }) => {
            return Ok(json!({
                "x0": start.state, "max_rate": max_rate, "rate": rate, "error": "rate above maximum"
            }));
        }
        Err(error) => return Ok(json!({ "x0": start.state, "error": reason(&error) })),
    };
    let diagonal = |[[a, ..], [_, b, _], [.., c]]: [[f64; 3]; 3]| [a, b, c];
    let (q_diag, r_diag) = (diagonal(filter.process), filter.noise);
    let mut steps = Vec::new();
    for seen in &environments {
        let step = filter.step(seen);
        let mut fields = Map::new();
        fields.insert("x".into(), json!(step.state));
        fields.insert("predicted".into(), json!(step.predicted));
        fields.insert("innovation".into(), json!(step.innovation));
        fields.insert("nis".into(), json!(step.nis));
        fields.insert("accepted".into(), json!(step.accepted));
        fields.insert("p_diag".into(), json!(diagonal(filter.covariance)));
        steps.push(fields);
    }
    Ok(json!({
        "x0": start.state, "lo": start.low, "hi": start.high, "q_diag": q_diag, "r_diag": r_diag,
        "steps": steps, "P": filter.covariance,
    }))
}

fn start(stored: &Value, first: &Environment) -> Result<Start, String> {
    if stored.is_null() {
        let [ttft, itl, input, output] =
            [first.ttft, first.itl, first.lengths.input, first.lengths.output].map(f64::from);
        return Ok(guess(ttft, itl, input, output).map_or_else(Start::unknown, Start::guessed));
    }
    let [alpha, beta, gamma] = [0, 1, 2].map(|index| &stored["x"][index]);
    let service = service(&json!({ "alpha": alpha, "beta": beta, "gamma": gamma }))?;
    let covariance: Option<[[f64; 3]; 3]> =
        serde_json::from_value(stored["P"].clone()).map_err(|error| error.to_string())?;
    Ok(Start::stored(service, covariance))
}
