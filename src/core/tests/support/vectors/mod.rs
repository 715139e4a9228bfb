//! Runs test vectors `{"vectors": [{"group", "id", "inputs", "expected", "rel_tol"}]}` against the core. What the inputs of a group
//! mean is written in the file of its family and nowhere else. An input that cannot be read is a panic, and a failure of its vector.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a vector that cannot be read fails like a test")]

mod hpa;
mod inferno;
mod limits;
mod optimize;
mod queueing;
mod read;
mod saturation_token;
mod scores;
mod throughput;

use std::panic::catch_unwind;

use serde_json::Value;

use read::text;

/// What a run found.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Vectors that agree.
    pub(crate) passed: usize,
    /// `group/id: why`, one for each that does not.
    pub(crate) failures: Vec<String>,
}

/// Runs the vectors of `file` whose group is one of `groups` or below it; of all groups when that is empty.
pub(crate) fn run(file: &str, groups: &[String], tally: &mut Tally) -> Result<(), String> {
    let file: Value = serde_json::from_str(file).map_err(|error| error.to_string())?;
    for vector in file["vectors"].as_array().ok_or("the file has no list \"vectors\"")? {
        let (group, id) = (text(&vector["group"]), text(&vector["id"]));
        let below = |wanted: &String| group == wanted || group.starts_with(&format!("{wanted}."));
        if !groups.is_empty() && !groups.iter().any(below) {
            continue;
        }
        let tolerance = vector["rel_tol"].as_f64().unwrap_or(1e-9);
        let outcome = compute(group, &vector["inputs"]).and_then(|got| {
            agree(&vector["expected"], &got, tolerance).map_err(|why| format!("{why}; got {got}"))
        });
        match outcome {
            Ok(()) => tally.passed += 1,
            Err(why) => tally.failures.push(format!("{group}/{id}: {why}")),
        }
    }
    Ok(())
}

fn compute(group: &str, inputs: &Value) -> Result<Value, String> {
    let function: fn(&Value) -> Value = match group {
        "v1.analyze" => scores::percent,
        "v1.targets" => scores::percent_targets,
        "seed.000" => scores::weighted,
        "seed.000.degradation" => scores::degradation,
        "seed.004" => scores::threshold,
        "inputs.kv_tokens" => saturation_token::kv_tokens,
        "v2.analyze" => saturation_token::analyze,
        "v2.defect" => saturation_token::defect,
        "v2.k2_estimate" => saturation_token::estimate,
        "v2.queue_demand" => saturation_token::queue_demand,
        "v2.threshold" => saturation_token::threshold,
        "v2.args" => saturation_token::arguments,
        "throughput.analyze" => throughput::analyze,
        "throughput.fit" => throughput::fit,
        "throughput.avg_shape" => throughput::mean_shape,
        "throughput.local_demand" => throughput::local_demand,
        "qm.service_time" => queueing::service_time,
        "qm.analyze" => queueing::analyze,
        "qm.size" => queueing::size,
        "qm.slo" => queueing::slo,
        "qm.capacity" => queueing::capacity,
        "qm.guess" => queueing::first_guess,
        "qm.ekf" => queueing::filter,
        "inferno.allocation" => inferno::allocation,
        "inferno.penalty" => inferno::transition_penalty,
        "inferno.greedy" => inferno::greedy,
        "optimizer.cost_aware" => optimize::cost_aware,
        "optimizer.greedy_by_score" => optimize::greedy_by_score,
        "rescale.optimize" => optimize::rescale,
        "rescale.water_fill" => optimize::fill,
        "rescale.split" => optimize::split_roles,
        "rescale.demand_gpus" => optimize::gpus_of_demand,
        "enforcer" => limits::enforcer,
        "limiter.greedy_by_spare" => limits::by_spare,
        "quota.grant" => limits::quota,
        "coordinator.rebalance" => limits::coordinator,
        "scale_from_zero" => limits::scale_from_zero,
        "hpa.metric" => hpa::metric,
        "hpa.combine" => hpa::combine_proposals,
        "hpa.sequence" => hpa::sequence,
        _ => return Err("unknown group".into()),
    };
    let message = |panic: Box<dyn std::any::Any + Send>| match panic.downcast::<String>() {
        Ok(message) => *message,
        Err(_) => "it panicked".into(),
    };
    catch_unwind(|| function(inputs)).map_err(message)
}

/// Equal in structure; numbers by relative tolerance, whole numbers exactly.
fn agree(expected: &Value, got: &Value, tolerance: f64) -> Result<(), String> {
    match (expected, got) {
        (Value::Object(expected), Value::Object(got)) => {
            expected.keys().chain(got.keys()).try_for_each(|name| {
                let (Some(expected), Some(got)) = (expected.get(name), got.get(name)) else {
                    return Err(format!("{name} is on one side only"));
                };
                agree(expected, got, tolerance).map_err(|why| format!("{name}: {why}"))
            })
        }
        (Value::Array(expected), Value::Array(got)) if expected.len() == got.len() => {
            expected.iter().zip(got).try_for_each(|(expected, got)| agree(expected, got, tolerance))
        }
        (Value::Number(a), Value::Number(b)) if !(a.is_i64() && b.is_i64()) => {
            let (a, b) = (a.as_f64().unwrap_or(f64::NAN), b.as_f64().unwrap_or(f64::NAN));
            let is_near = (a - b).abs() <= tolerance * a.abs().max(b.abs()).max(1.0);
            if is_near { Ok(()) } else { Err(format!("expected {expected}, got {got}")) }
        }
        _ if expected == got => Ok(()),
        _ => Err(format!("expected {expected}, got {got}")),
    }
}
