//! The autoscaling/v2 controller's arithmetic: `hpa.*`.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use wva_core::hpa::{
    AtZero, Behavior, Counts, Hpa, Kind, MetricTarget, PolicyKind, Rules, ScalingPolicy, Select, Settings,
    Tolerance, combine, milli, propose,
};
use wva_core::units::Seconds;

use super::read::{all, float, float_or, integer, list, optional_replicas, replicas, text};

pub(super) fn metric(inputs: &Value) -> Value {
    let kind = match text(&inputs["kind"]) {
        "AverageValue" => Kind::AverageValue,
        "Value" => Kind::Value,
        unknown => panic!("unknown kind {unknown}"),
    };
    let items: Vec<i64> = all(&inputs["items"], |item| milli(float(item)));
    let target = MetricTarget { kind, milli: milli(float(&inputs["target"])) };
    let [spec, status, ready] = ["spec", "status", "ready"].map(|name| replicas(&inputs[name]));
    let usual = Tolerance::default();
    let tolerance =
        Tolerance { down: float_or(&inputs["tdown"], usual.down), up: float_or(&inputs["tup"], usual.up) };
    json!(propose(&items, target, Counts { spec, status, ready }, tolerance))
}

pub(super) fn combine_proposals(inputs: &Value) -> Value {
    let proposals: Vec<_> = all(&inputs["proposals"], optional_replicas);
    json!(combine(&proposals, replicas(&inputs["spec"])))
}

pub(super) fn sequence(inputs: &Value) -> Value {
    let behavior = (!inputs["behavior"].is_null()).then(|| {
        let (given, usual) = (&inputs["behavior"], Behavior::default());
        Behavior { up: rules(&given["up"], usual.up), down: rules(&given["down"], usual.down) }
    });
    let [min, max, mut spec] = ["min", "max", "start"].map(|name| replicas(&inputs[name]));
    let mut hpa = Hpa::new(Settings { min, max, behavior, at_zero: AtZero::Reads });
    let period = SignedDuration::from_secs(i64::from(integer(&inputs["period"])));
    let mut now = Timestamp::UNIX_EPOCH;
    let step = |proposal: &Value| {
        spec = hpa.step(now, spec, optional_replicas(proposal));
        now += period;
        spec
    };
    json!({ "replicas": list(&inputs["proposals"]).iter().map(step).collect::<Vec<_>>() })
}

fn rules(given: &Value, usual: Rules) -> Rules {
    let policy = |given: &Value| ScalingPolicy {
        kind: if given["type"] == "Pods" { PolicyKind::Pods } else { PolicyKind::Percent },
        value: integer(&given["value"]),
        period: Seconds::whole(integer(&given["period"])),
    };
    Rules {
        window: if given["window"].is_null() {
            usual.window
        } else {
            Seconds::whole(integer(&given["window"]))
        },
        select: match given["select"].as_str() {
            None => usual.select,
            Some("Max") => Select::Max,
            Some("Min") => Select::Min,
            Some("Disabled") => Select::Disabled,
            Some(unknown) => panic!("unknown select {unknown}"),
        },
        policies: if given["policies"].is_null() { usual.policies } else { all(&given["policies"], policy) },
    }
}
