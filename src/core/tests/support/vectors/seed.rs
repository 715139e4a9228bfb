//! The threshold and the weighted score: `seed.*`.

use serde_json::{Value, json};
use wva_core::analyze::score::Scored;
use wva_core::analyze::{threshold, weighted};
use wva_core::model::Steps;
use wva_core::units::Replicas;

use super::UNKNOWN;
use super::read::{bounds, float_or, integer, list, number, replicas};

pub(super) fn compute(group: &str, inputs: &Value) -> Result<Value, String> {
    match group {
        "seed.000" => {
            let scored = seed_000(inputs)?;
            Ok(json!({ "score": scored.mean, "desired": scored.wanted }))
        }
        "seed.000.degradation" => {
            let speed = weighted::speed(Some(number(&inputs["rate"])?), number(&inputs["running"])?, 0.0);
            Ok(json!(weighted::degradation(speed, number(&inputs["best"])?)))
        }
        "seed.004" => {
            let scored = seed_004(inputs)?;
            Ok(json!({ "avg": scored.mean, "desired": scored.wanted }))
        }
        _ => Err(UNKNOWN.into()),
    }
}

fn seed_000(inputs: &Value) -> Result<Scored, String> {
    let observation = |one: &Value| -> Result<weighted::WeightedObservation, String> {
        // Without a rate the latency is the way to a speed.
        let speed = weighted::speed(one["rate"].as_f64(), number(&one["running"])?, number(&one["itl"])?);
        let (kv, queue) = (number(&one["kv"])?, count(&one["queue"])?);
        Ok(weighted::WeightedObservation { kv, queue, speed, best: number(&one["best"])? })
    };
    let seen: Result<Vec<_>, _> = list(&inputs["replicas"])?.iter().map(observation).collect();
    let limit = float_or(&inputs["qmax"], weighted::QUEUE_LIMIT)?;
    Ok(weighted::analyze(&seen?, replicas(&inputs["current"])?, bounds(inputs)?, Steps::default(), limit))
}

fn seed_004(inputs: &Value) -> Result<Scored, String> {
    let observation = |one: &Value| -> Result<threshold::ThresholdObservation, String> {
        Ok(threshold::ThresholdObservation { kv: number(&one["kv"])?, queue: count(&one["queue"])? })
    };
    let seen: Result<Vec<_>, _> = list(&inputs["replicas"])?.iter().map(observation).collect();
    let usual = threshold::ThresholdSettings::default();
    let by =
        |value: &Value, usual| if value.is_null() { Ok(usual) } else { integer(value).map(Replicas::new) };
    let settings = threshold::ThresholdSettings {
        steps: Steps {
            up: float_or(&inputs["up"], usual.steps.up)?,
            down: float_or(&inputs["down"], usual.steps.down)?,
            more: by(&inputs["inc_up"], usual.steps.more)?,
            fewer: by(&inputs["inc_down"], usual.steps.fewer)?,
        },
        queue_limit: float_or(&inputs["qmax"], usual.queue_limit)?,
    };
    Ok(threshold::analyze(&seen?, replicas(&inputs["current"])?, bounds(inputs)?, &settings))
}

fn count(value: &Value) -> Result<u32, String> {
    if value.is_null() { Ok(0) } else { integer(value) }
}
