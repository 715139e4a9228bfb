//! Runs test vectors `{"vectors": [{"group", "id", "inputs", "expected", "rel_tol"}]}` against the core. What each
//! group's inputs mean is written here and nowhere else.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value, json};
use wva_core::analyze::saturation_percent::{Candidate, Observation, Tree, analyze, targets};
use wva_core::bound::enforcer::{Action, Enforced, enforce};
use wva_core::hpa::{
    AtZero, Behavior, Counts, Hpa, Kind, MetricTarget, PolicyKind, Rules, ScalingPolicy, Select, Settings,
    Tolerance, combine, milli, propose,
};
use wva_core::model::{Bounds, SaturationPolicy, Variant};
use wva_core::units::{Cost, Replicas, Seconds};

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
    match group {
        "v1.analyze" => v1_analyze(inputs),
        "v1.targets" => v1_targets(inputs),
        "enforcer" => enforcer(inputs),
        "hpa.metric" => hpa_metric(inputs),
        "hpa.combine" => {
            let all: Result<Vec<_>, _> = list(&inputs["proposals"])?.iter().map(optional_replicas).collect();
            Ok(json!(combine(&all?, replicas(&inputs["spec"])?)))
        }
        "hpa.sequence" => hpa_sequence(inputs),
        _ => Err("unknown group".into()),
    }
}

fn v1_analyze(inputs: &Value) -> Result<Value, String> {
    let cfg = &inputs["cfg"];
    let policy = SaturationPolicy {
        kv_cache_threshold: float(&cfg["kv"])?,
        queue_length_threshold: float(&cfg["queue"])?,
        kv_spare_trigger: float(&cfg["kv_spare"])?,
        queue_spare_trigger: float(&cfg["queue_spare"])?,
    };
    let observation = |one: &Value| -> Result<Observation, String> {
        Ok(Observation {
            replica: text_of(&one["pod"])?,
            variant: text_of(&one["variant"])?,
            cost: cost(&one["cost"])?,
            kv: float(&one["kv"])?,
            queue: integer(&one["queue"])?,
        })
    };
    let observations: Result<Vec<_>, _> = list(&inputs["replicas"])?.iter().map(observation).collect();
    serde_json::to_value(analyze(&observations?, &policy)).map_err(|error| error.to_string())
}

fn v1_targets(inputs: &Value) -> Result<Value, String> {
    let tree = match text_of(&inputs["tree"])?.as_str() {
        "526ce85" => Tree::June,
        "late" => Tree::August,
        other => return Err(format!("unknown tree {other}")),
    };
    let analysis = &inputs["analysis"];
    let states = list(&inputs["states"])?;
    let mut candidates = Vec::new();
    for (name, found) in object(&analysis["variants"])? {
        let state = states.iter().find(|state| state["name"] == json!(name)).unwrap_or(&Value::Null);
        let max = or_zero(&state["max"])?;
        candidates.push(Candidate {
            name: name.clone(),
            cost: cost(&found["cost"])?,
            observations: integer(&found["count"])?,
            current: or_zero(&state["current"])?,
            desired: or_zero(&state["desired"])?,
            pending: or_zero(&state["pending"])?,
            bounds: Bounds { min: or_zero(&state["min"])?, max: (max > Replicas::ZERO).then_some(max) },
        });
    }
    let (up, down) = (analysis["scale_up"] == json!(true), analysis["scale_down_safe"] == json!(true));
    Ok(json!(targets(tree, up, down, &candidates)))
}

fn enforcer(inputs: &Value) -> Result<Value, String> {
    let mut decisions = Vec::new();
    for one in list(&inputs["decisions"])? {
        let (name, target) = (text_of(&one["name"])?, replicas(&one["target"])?);
        decisions.push(Enforced { name, target, cost: cost(&one["cost"])? });
    }
    let enabled = inputs["enabled"] == json!(true);
    let action = enforce(&mut decisions, enabled, inputs["requests"].as_f64());
    let targets: Map<String, Value> =
        decisions.into_iter().map(|one| (one.name, json!(one.target))).collect();
    Ok(json!({ "targets": targets, "to_zero": action == Action::ToZero }))
}

fn hpa_metric(inputs: &Value) -> Result<Value, String> {
    let kind = match text_of(&inputs["kind"])?.as_str() {
        "AverageValue" => Kind::AverageValue,
        "Value" => Kind::Value,
        other => return Err(format!("unknown kind {other}")),
    };
    let items: Result<Vec<f64>, _> = list(&inputs["items"])?.iter().map(float).collect();
    let items: Vec<i64> = items?.into_iter().map(milli).collect();
    let target = MetricTarget { kind, milli: milli(float(&inputs["target"])?) };
    let counts = Counts {
        spec: replicas(&inputs["spec"])?,
        status: replicas(&inputs["status"])?,
        ready: replicas(&inputs["ready"])?,
    };
    let usual = Tolerance::default();
    let down = inputs["tdown"].as_f64().unwrap_or(usual.down);
    let up = inputs["tup"].as_f64().unwrap_or(usual.up);
    Ok(json!(propose(&items, target, counts, Tolerance { down, up })))
}

fn hpa_sequence(inputs: &Value) -> Result<Value, String> {
    let behavior = match &inputs["behavior"] {
        Value::Null => None,
        given => {
            let usual = Behavior::default();
            Some(Behavior { up: rules(&given["up"], usual.up)?, down: rules(&given["down"], usual.down)? })
        }
    };
    let (min, max) = (replicas(&inputs["min"])?, replicas(&inputs["max"])?);
    let mut hpa = Hpa::new(Settings { min, max, behavior, at_zero: AtZero::Reads });
    let mut spec = replicas(&inputs["start"])?;
    let period = SignedDuration::from_secs(i64::from(integer(&inputs["period"])?));
    let (mut now, mut got) = (Timestamp::UNIX_EPOCH, Vec::new());
    for proposal in list(&inputs["proposals"])? {
        spec = hpa.step(now, spec, optional_replicas(proposal)?);
        got.push(spec);
        now += period;
    }
    Ok(json!({ "replicas": got }))
}

fn rules(given: &Value, usual: Rules) -> Result<Rules, String> {
    let select = match given["select"].as_str() {
        None => usual.select,
        Some("Max") => Select::Max,
        Some("Min") => Select::Min,
        Some("Disabled") => Select::Disabled,
        Some(other) => return Err(format!("unknown select {other}")),
    };
    let policy = |one: &Value| -> Result<ScalingPolicy, String> {
        let kind = if one["type"] == json!("Pods") { PolicyKind::Pods } else { PolicyKind::Percent };
        Ok(ScalingPolicy {
            kind,
            value: integer(&one["value"])?,
            period: Seconds::whole(integer(&one["period"])?),
        })
    };
    let policies = match &given["policies"] {
        Value::Null => usual.policies,
        given => list(given)?.iter().map(policy).collect::<Result<_, _>>()?,
    };
    let window =
        if given["window"].is_null() { usual.window } else { Seconds::whole(integer(&given["window"])?) };
    Ok(Rules { window, select, policies })
}

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

fn text_of(value: &Value) -> Result<String, String> {
    value.as_str().map(str::to_owned).ok_or_else(|| format!("{value} is not a text"))
}

fn list(value: &Value) -> Result<&Vec<Value>, String> {
    value.as_array().ok_or_else(|| format!("{value} is not a list"))
}

fn object(value: &Value) -> Result<&Map<String, Value>, String> {
    value.as_object().ok_or_else(|| format!("{value} is not an object"))
}

fn float(value: &Value) -> Result<f64, String> {
    value.as_f64().ok_or_else(|| format!("{value} is not a number"))
}

fn integer(value: &Value) -> Result<u32, String> {
    let whole = value.as_u64().and_then(|whole| u32::try_from(whole).ok());
    // A queue may come as 3.0; it counts without its fraction.
    let found = whole.or_else(|| value.as_f64().filter(|value| *value >= 0.0).map(wva_core::units::whole));
    found.ok_or_else(|| format!("{value} is not a count"))
}

fn replicas(value: &Value) -> Result<Replicas, String> {
    integer(value).map(Replicas::new)
}

fn optional_replicas(value: &Value) -> Result<Option<Replicas>, String> {
    if value.is_null() { Ok(None) } else { replicas(value).map(Some) }
}

fn or_zero(value: &Value) -> Result<Replicas, String> {
    // Upstream reads a maximum of 0 or less as none.
    if value.is_null() || value.as_i64().is_some_and(|value| value < 0) {
        Ok(Replicas::ZERO)
    } else {
        replicas(value)
    }
}

fn cost(value: &Value) -> Result<Cost, String> {
    let given = if value.is_null() { Variant::DEFAULT_COST } else { float(value)? };
    Cost::new(given).map_err(|error| error.to_string())
}
