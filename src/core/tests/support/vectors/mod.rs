//! Runs test vectors `{"vectors": [{"group", "id", "inputs", "expected", "rel_tol"}]}` against the core. What the
//! inputs of a group mean is written in the file of its family and nowhere else.

mod bound;
mod coordinator;
mod hpa;
mod inferno;
mod limit;
mod optimize;
mod queueing;
mod read;
mod saturation_percent;
mod saturation_token;
mod seed;
mod throughput;
mod wake;

use serde_json::Value;

use read::text_of;

/// What a run found.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Vectors that agree.
    pub(crate) passed: usize,
    /// `group/id: why`, one for each that does not.
    pub(crate) failures: Vec<String>,
}

/// Runs the vectors of `text` whose group is one of `groups` or below it; of all groups when that is empty.
pub(crate) fn run(text: &str, groups: &[String], tally: &mut Tally) -> Result<(), String> {
    let file: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    for vector in file["vectors"].as_array().ok_or("the file has no list \"vectors\"")? {
        let (group, id) = (text_of(&vector["group"])?, text_of(&vector["id"])?);
        let below = |wanted: &String| group == *wanted || group.starts_with(&format!("{wanted}."));
        if !groups.is_empty() && !groups.iter().any(below) {
            continue;
        }
        let tolerance = vector["rel_tol"].as_f64().unwrap_or(1e-9);
        let outcome = compute(&group, &vector["inputs"]).and_then(|got| {
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
    match group.split('.').next().unwrap_or_default() {
        "v1" => saturation_percent::compute(group, inputs),
        "inputs" | "v2" => saturation_token::compute(group, inputs),
        "enforcer" => bound::compute(group, inputs),
        "hpa" => hpa::compute(group, inputs),
        "throughput" => throughput::compute(group, inputs),
        "seed" => seed::compute(group, inputs),
        "coordinator" => coordinator::compute(group, inputs),
        "scale_from_zero" => wake::compute(group, inputs),
        "optimizer" | "rescale" => optimize::compute(group, inputs),
        "limiter" | "quota" => limit::compute(group, inputs),
        "qm" => queueing::compute(group, inputs),
        "inferno" => inferno::compute(group, inputs),
        _ => Err(UNKNOWN.into()),
    }
}

/// What a vector fails with whose group nobody implements.
const UNKNOWN: &str = "unknown group";

/// Equal in structure; numbers by relative tolerance, whole numbers exactly.
fn agree(expected: &Value, got: &Value, tolerance: f64) -> Result<(), String> {
    match (expected, got) {
        (Value::Object(wanted), Value::Object(found)) => {
            let names = wanted.keys().chain(found.keys());
            names.into_iter().try_for_each(|name| {
                let (wanted, found) = (wanted.get(name), found.get(name));
                let (Some(wanted), Some(found)) = (wanted, found) else {
                    return Err(format!("{name} is on one side only"));
                };
                agree(wanted, found, tolerance).map_err(|why| format!("{name}: {why}"))
            })
        }
        (Value::Array(wanted), Value::Array(found)) if wanted.len() == found.len() => {
            wanted.iter().zip(found).try_for_each(|(wanted, found)| agree(wanted, found, tolerance))
        }
        (Value::Number(wanted), Value::Number(found)) => {
            let whole = wanted.is_i64() && found.is_i64();
            let (a, b) = (wanted.as_f64().unwrap_or(f64::NAN), found.as_f64().unwrap_or(f64::NAN));
            let near = (a - b).abs() <= tolerance * a.abs().max(b.abs()).max(1.0);
            let same = if whole { wanted.as_i64() == found.as_i64() } else { near };
            if same { Ok(()) } else { Err(format!("expected {wanted}, got {found}")) }
        }
        _ if expected == got => Ok(()),
        _ => Err(format!("expected {expected}, got {got}")),
    }
}
