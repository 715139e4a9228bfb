//! Analyzers that compare a share with a threshold: V1 percent saturation, `v1.*`, the weighted score and the threshold, `seed.*`.

use serde_json::{Value, json};
use wva_core::analyze::saturation_percent::analyze;
use wva_core::analyze::threshold::{ThresholdObservation, ThresholdSettings};
use wva_core::analyze::weighted::{self, QUEUE_LIMIT, WeightedObservation};
use wva_core::model::{SaturationPolicy, Steps};
use wva_core::quality::EnginePeaks;
use wva_core::units::Replicas;
use wva_core::upstream::saturation_percent::{StepCandidate, targets};

use super::read::{
    all, bounds, cost, float, float_or, float_or_zero, integer, integer_or, list, named, object,
    optional_replicas, replicas, replicas_or_zero, text, tree,
};

pub(super) fn percent(inputs: &Value) -> Value {
    let cfg = &inputs["cfg"];
    let policy = SaturationPolicy {
        kv_cache_threshold: float(&cfg["kv"]),
        queue_length_threshold: float(&cfg["queue"]),
        kv_spare_trigger: float(&cfg["kv_spare"]),
        queue_spare_trigger: float(&cfg["queue_spare"]),
    };
    fn peaks(given: &Value) -> EnginePeaks<'_> {
        EnginePeaks {
            pod: text(&given["pod"]),
            engine: None,
            variant: text(&given["variant"]),
            cost: cost(&given["cost"]),
            kv: float(&given["kv"]),
            queue: integer(&given["queue"]),
        }
    }
    let observations: Vec<_> = all(&inputs["replicas"], peaks);
    json!(analyze(&observations, &policy))
}

pub(super) fn percent_targets(inputs: &Value) -> Value {
    let (analysis, states) = (&inputs["analysis"], list(&inputs["states"]));
    let candidate = |(name, found): (&String, &Value)| {
        let state = named(states, name);
        StepCandidate {
            name: name.into(),
            cost: cost(&found["cost"]),
            observations: integer(&found["count"]),
            current: replicas_or_zero(&state["current"]),
            desired: replicas_or_zero(&state["desired"]),
            pending: replicas_or_zero(&state["pending"]),
            bounds: bounds(state),
        }
    };
    let candidates: Vec<_> = object(&analysis["variants"]).iter().map(candidate).collect();
    let (up, down) = (analysis["scale_up"] == true, analysis["scale_down_safe"] == true);
    json!(targets(tree(inputs).unwrap(), up, down, &candidates))
}

pub(super) fn weighted(inputs: &Value) -> Value {
    let observation = |given: &Value| WeightedObservation {
        kv: float_or_zero(&given["kv"]),
        queue: integer_or(&given["queue"], 0),
        // Without a rate the latency is the way to a speed.
        speed: weighted::speed(
            given["rate"].as_f64(),
            float_or_zero(&given["running"]),
            float_or_zero(&given["itl"]),
        ),
        best: float_or_zero(&given["best"]),
    };
    let observations: Vec<_> = all(&inputs["replicas"], observation);
    let (current, limit) = (replicas(&inputs["current"]), float_or(&inputs["qmax"], QUEUE_LIMIT));
    let scored = weighted::analyze(&observations, current, bounds(inputs), Steps::default(), limit);
    json!({ "score": scored.mean, "desired": scored.proposed })
}

pub(super) fn degradation(inputs: &Value) -> Value {
    let (rate, running) = (float_or_zero(&inputs["rate"]), float_or_zero(&inputs["running"]));
    json!(weighted::degradation(weighted::speed(Some(rate), running, 0.0), float_or_zero(&inputs["best"])))
}

pub(super) fn threshold(inputs: &Value) -> Value {
    let observation = |given: &Value| ThresholdObservation {
        kv: float_or_zero(&given["kv"]),
        queue: integer_or(&given["queue"], 0),
    };
    let observations: Vec<_> = all(&inputs["replicas"], observation);
    let usual = ThresholdSettings::default();
    let by = |name: &str, usual: Replicas| optional_replicas(&inputs[name]).unwrap_or(usual);
    let settings = ThresholdSettings {
        steps: Steps {
            up: float_or(&inputs["up"], usual.steps.up),
            down: float_or(&inputs["down"], usual.steps.down),
            more: by("inc_up", usual.steps.more),
            fewer: by("inc_down", usual.steps.fewer),
        },
        queue_limit: float_or(&inputs["qmax"], usual.queue_limit),
    };
    let (current, bounds) = (replicas(&inputs["current"]), bounds(inputs));
    let scored = wva_core::analyze::threshold::analyze(&observations, current, bounds, &settings);
    json!({ "avg": scored.mean, "desired": scored.proposed })
}
