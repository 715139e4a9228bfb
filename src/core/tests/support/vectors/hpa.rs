//! The autoscaling/v2 controller's arithmetic: `hpa.*`.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use wva_core::hpa::{
    AtZero, Behavior, Counts, Hpa, Kind, MetricTarget, PolicyKind, Rules, ScalingPolicy, Select, Settings,
    Tolerance, combine, milli, propose,
};
use wva_core::units::Seconds;

use super::UNKNOWN;
use super::read::{float, integer, list, optional_replicas, replicas, text_of};

pub(super) fn compute(group: &str, inputs: &Value) -> Result<Value, String> {
    match group {
        "hpa.metric" => hpa_metric(inputs),
        "hpa.combine" => {
            let all: Result<Vec<_>, _> = list(&inputs["proposals"])?.iter().map(optional_replicas).collect();
            Ok(json!(combine(&all?, replicas(&inputs["spec"])?)))
        }
        "hpa.sequence" => hpa_sequence(inputs),
        _ => Err(UNKNOWN.into()),
    }
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
