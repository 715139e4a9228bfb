//! The queueing model and its tuner: `qm.*`.

use serde_json::{Value, json};
use wva_core::analyze::queueing::model::{
    Limits, Model, Performance, RequestLengths, Service, ServiceTimes, Unsolvable,
};
use wva_core::analyze::queueing::sizing::{Means, Targets, fallback, inferred};
use wva_core::analyze::queueing::tuner::{Environment, Filter, Start, guess};
use wva_core::analyze::queueing::{LatencyObservation, VariantLoad};
use wva_core::model::Role;
use wva_core::units::Cost;
use wva_core::upstream::queueing as upstream;

use super::read::{
    all, float, float_or, float_or_zero, integer, integer_or, integer_or_zero, list, replicas_or_zero,
    single, single_or_zero, text,
};

pub(super) fn service_time(inputs: &Value) -> Value {
    let (times, n) = (ServiceTimes::new(service(inputs), lengths(inputs)), single(&inputs["n"]));
    json!({ "titer": times.iteration(n), "prefill": times.prefill(n), "decode": times.decode(n) })
}

pub(super) fn first_guess(inputs: &Value) -> Value {
    let [ttft, itl, input, output] = ["ttft", "itl", "i", "o"].map(|name| float(&inputs[name]));
    json!(guess(ttft, itl, input, output))
}

fn service(inputs: &Value) -> Service {
    service_of(["alpha", "beta", "gamma"].map(|name| &inputs[name]))
}

fn service_of(parameters: [&Value; 3]) -> Service {
    let [alpha, beta, gamma] = parameters.map(single);
    Service::new(alpha, beta, gamma).unwrap()
}

fn lengths(inputs: &Value) -> RequestLengths {
    RequestLengths::new(single(&inputs["i"]), single(&inputs["o"])).unwrap()
}

fn model(inputs: &Value) -> Result<Model, Unsolvable> {
    let usual = Limits::sizing(Limits::DEFAULT_BATCH);
    let limits =
        Limits { batch: integer_or(&inputs["n"], usual.batch), queue: integer_or(&inputs["q"], usual.queue) };
    upstream::model(service(inputs), lengths(inputs), limits)
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
        error => error.to_string(),
    }
}

pub(super) fn analyze(inputs: &Value) -> Value {
    let mut model = match model(inputs) {
        Ok(model) => model,
        Err(error) => return json!({ "error": reason(&error) }),
    };
    match model.analyze(single(&inputs["rate"])) {
        Ok(at) => metrics(&at),
        Err(error) => json!({ "error": reason(&error), "max_rate": model.max_rate() }),
    }
}

pub(super) fn size(inputs: &Value) -> Value {
    let [ttft, itl, tps] = ["ttft", "itl", "tps"].map(|name| single_or_zero(&inputs[name]));
    match model(inputs).and_then(|mut model| model.size(Targets { ttft, itl, tps })) {
        Ok(size) => json!({
            "rate_ttft": size.rate_ttft, "rate_itl": size.rate_itl, "rate_tps": size.rate_tps,
            "metrics": metrics(&size.at),
        }),
        Err(error) => json!({ "error": reason(&error) }),
    }
}

pub(super) fn slo(inputs: &Value) -> Value {
    let targets = if inputs["alpha"].is_null() {
        let (ttft, itl) = (float_or_zero(&inputs["ttft_s"]), float_or_zero(&inputs["itl_s"]));
        fallback(&Means { ttft, itl, ..Means::default() })
    } else {
        let means = Means { input: float(&inputs["i"]), output: float(&inputs["o"]), ..Means::default() };
        inferred(service(inputs), &means, float_or(&inputs["k"], 3.0))
    };
    targets.map_or(Value::Null, |targets| json!({ "ttft": targets.ttft, "itl": targets.itl }))
}

pub(super) fn capacity(inputs: &Value) -> Value {
    let batch = integer_or_zero(&inputs["batch"]);
    let observation = |given: &Value| LatencyObservation {
        arrival: given["arrival"].as_f64(),
        input: float_or_zero(&given["in"]),
        output: float_or_zero(&given["out"]),
        ttft: float_or_zero(&given["ttft"]),
        itl: float_or_zero(&given["itl"]),
        batch: given["batch"].as_u64().and_then(|own| u32::try_from(own).ok()).unwrap_or(batch),
    };
    let (state, slo) = (&inputs["state"], &inputs["slo"]);
    let pending = replicas_or_zero(&state["pending"]);
    let load = VariantLoad {
        name: text(&state["name"]).into(),
        role: Role::Both,
        accelerator: None,
        cost: Cost::ZERO,
        ready: replicas_or_zero(&state["current"]).saturating_sub(pending),
        pending,
        observations: all(&inputs["replicas"], observation),
    };
    let service = match inputs["params"].as_array().map(Vec::as_slice) {
        Some([alpha, beta, gamma]) => Some(service_of([alpha, beta, gamma])),
        _ => None,
    };
    let targets = Targets { ttft: single(&slo["ttft"]), itl: single(&slo["itl"]), tps: 0.0 };
    let lengths = upstream::means(&load.observations).and_then(|means| means.lengths());
    let sized = upstream::size(&load, service, lengths, targets);
    let totals = upstream::totals(&[sized]);
    let mut found = json!({
        "name": load.name, "replicas": load.ready, "pending": pending, "prc": sized.per_replica,
        "capacity": upstream::desired_capacity(&sized), "demand": sized.demand, "util": upstream::desired_utilisation(&sized),
        "rc": totals.required, "sc": totals.spare,
    });
    if let Some(desired) = upstream::desired(&sized) {
        found["desired"] = json!(desired);
    }
    found
}

pub(super) fn filter(inputs: &Value) -> Value {
    let environment = |given: &Value| {
        let environment = Environment {
            rate: single(&given["lam"]),
            lengths: lengths(given),
            batch: integer(&given["n"]),
            ttft: single(&given["ttft"]),
            itl: single(&given["itl"]),
        };
        environment.validated()
    };
    let environments: Vec<_> = list(&inputs["envs"]).iter().filter_map(environment).collect();
    let Some(first) = environments.first() else { return Value::Null };
    let start = start(&inputs["stored"], first);
    let mut filter = match Filter::new(&start, first) {
        Ok(filter) => filter,
        Err(error) => {
            let mut failed = json!({ "x0": start.state, "error": reason(&error) });
            if let Unsolvable::AboveMaximum { rate, max_rate } = error {
                (failed["rate"], failed["max_rate"]) = (json!(rate), json!(max_rate));
            }
            return failed;
        }
    };
    let diagonal = |[[a, ..], [_, b, _], [.., c]]: [[f64; 3]; 3]| [a, b, c];
    let (q_diag, r_diag) = (diagonal(filter.process), filter.noise);
    let mut steps = Vec::new();
    for environment in &environments {
        let step = filter.step(environment);
        steps.push(json!({
            "x": step.state, "predicted": step.predicted, "innovation": step.innovation, "nis": step.nis,
            "accepted": step.accepted, "p_diag": diagonal(filter.covariance),
        }));
    }
    json!({
        "x0": start.state, "lo": start.low, "hi": start.high, "q_diag": q_diag, "r_diag": r_diag,
        "steps": steps, "P": filter.covariance,
    })
}

fn start(stored: &Value, first: &Environment) -> Start {
    if stored.is_null() {
        let [ttft, itl, input, output] =
            [first.ttft, first.itl, first.lengths.input, first.lengths.output].map(f64::from);
        return guess(ttft, itl, input, output).map_or_else(Start::unknown, Start::guessed);
    }
    let service = service_of([0, 1, 2].map(|index| &stored["x"][index]));
    let covariance: Option<[[f64; 3]; 3]> = serde_json::from_value(stored["P"].clone()).unwrap();
    Start::stored(service, covariance)
}
