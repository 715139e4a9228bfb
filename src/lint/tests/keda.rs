//! ScaledObjects that are wrong on purpose.

use serde_json::{Value, json};
use wva_core::units::Replicas;

use super::super::*;
use super::setup::{Setup, assert_found, parsed, scaled_object, wrong_keda};

#[test]
fn a_trigger_that_changes_what_the_number_means() {
    let trigger =
        |change: fn(&mut Value)| move |object: &mut Value| change(&mut object["spec"]["triggers"][0]);
    wrong_keda(trigger(|it| it["metricType"] = json!("Value")), &["error TargetTypeMultiplies"]);
    wrong_keda(trigger(|it| it["metadata"]["metricType"] = json!("Value")), &["note MetricTypeIgnored"]);
    wrong_keda(trigger(|it| it["metadata"]["threshold"] = json!("5")), &["error NumberDivided"]);
    wrong_keda(
        trigger(|it| it["metadata"]["ignoreNullValues"] = Value::Null),
        &["error MissingSeriesIsZero"],
    );
    // With a minimum of 1, KEDA does not ask whether a trigger is active.
    let active = |object: &mut Value| {
        object["spec"]["triggers"][0]["metadata"]["activationThreshold"] = json!("1");
    };
    wrong_keda(active, &[]);
    let at_zero = |object: &mut Value| object["spec"]["minReplicaCount"] = json!(0);
    wrong_keda(
        |object| {
            active(object);
            at_zero(object);
        },
        &["error ActivationHidesNumber", "warning KedaMayGoToZero"],
    );
    // Without a series there is an error, which KEDA 2.21 takes for inactivity now and then.
    wrong_keda(at_zero, &["warning KedaMayGoToZero"]);
    wrong_keda(trigger(|it| it["metadata"]["ignoreNullValues"] = json!("False")), &[]);
}

#[test]
fn a_trigger_of_the_external_scaler_reads_the_number() {
    let trigger = |type_: &'static str, metadata: Value| {
        move |object: &mut Value| {
            object["spec"]["triggers"][0] = json!({ "type": type_, "metadata": metadata });
        }
    };
    let ours = json!({ "scalerAddress": "scalers.example:9443", "variantName": "llama" });
    wrong_keda(trigger("external-push", ours.clone()), &[]);
    wrong_keda(trigger("external", json!({ "scalerAddress": "wva.wva-system.svc:9443" })), &[]);
    let multiplied = move |object: &mut Value| {
        trigger("external-push", ours)(object);
        object["spec"]["triggers"][0]["metricType"] = json!("Value");
    };
    wrong_keda(multiplied, &["error TargetTypeMultiplies"]);
}

#[test]
fn a_query_that_reads_another_number_or_several() {
    let or_zero = "wva_desired_replicas{variant_name=\"llama\",exported_namespace=\"llm\"} or vector(0)";
    let query = |query: &'static str| {
        move |object: &mut Value| object["spec"]["triggers"][0]["metadata"]["query"] = json!(query)
    };
    wrong_keda(query(or_zero), &["error MissingSeriesIsZero"]);
    wrong_keda(query("wva_desired_replicas{variant_name=\"lama\"}"), &["error QueryFindsNoVariant"]);
    wrong_keda(query("vllm:num_requests_waiting"), &["warning NumberNotRead"]);
    let ratio = "wva_desired_ratio{variant_name=\"llama\",exported_namespace=\"llm\"}";
    wrong_keda(query(ratio), &["error MetricNotDesired"]);
    wrong_keda(
        |object| {
            query(ratio)(object);
            object["spec"]["triggers"][0]["metricType"] = json!("Value");
        },
        &[],
    );
    let elsewhere = |setup: &mut Setup| {
        setup.others.push(("prod", "llama"));
        let query = json!("wva_desired_replicas{variant_name=\"llama\"}");
        setup.scaled_objects[0]["spec"]["triggers"][0]["metadata"]["query"] = query;
    };
    assert_found(Setup::keda(), elsewhere, &["error QueryFindsSeveralVariants"]);
    for unread in [
        "wva_desired_replicas{variant_name=`llama`,exported_namespace=`llm`}",
        "{__name__=\"wva_desired_replicas\",variant_name=\"llama\"}",
        "ns:wva_desired_replicas:max{variant_name=\"llama\"}",
        "wva_desired_replicas and on(variant_name) x{variant_name=\"llama\"}",
    ] {
        let several = |setup: &mut Setup| {
            setup.others.push(("prod", "llama"));
            setup.scaled_objects[0]["spec"]["triggers"][0]["metadata"]["query"] = json!(unread);
        };
        assert_found(Setup::keda(), several, &[]);
    }
    // The namespace of the scrape target, unless Prometheus honours labels: which variants it means is not known.
    let scraped = |setup: &mut Setup| {
        setup.others.push(("prod", "llama"));
        let query = json!("wva_desired_replicas{variant_name=\"llama\",namespace=\"wva-system\"}");
        setup.scaled_objects[0]["spec"]["triggers"][0]["metadata"]["query"] = query;
    };
    assert_found(Setup::keda(), scraped, &[]);
    let of_api = |setup: &mut Setup| {
        setup.others.push(("prod", "llama"));
        let value = json!("wva_desired_replicas{variant_name=\"llama\",namespace=\"prod\"}");
        setup.scaled_objects[0]["spec"]["triggers"][0] =
            json!({ "type": "metrics-api", "metadata": { "valueLocation": value, "targetValue": "1" } });
    };
    assert_found(Setup::keda(), of_api, &["error FollowsAnotherVariant"]);
}

#[test]
fn settings_by_which_keda_follows_something_else() {
    let spec = |field: &'static str, value: Value| move |object: &mut Value| object["spec"][field] = value;
    for (behavior, expected) in
        [(Value::Null, vec!["note FallbackRaises"]), (json!("currentReplicasIfLower"), vec![])]
    {
        let fallback = json!({ "failureThreshold": 3, "replicas": 8, "behavior": behavior });
        wrong_keda(spec("fallback", fallback), &expected);
    }
    wrong_keda(
        spec("fallback", json!({ "failureThreshold": 3, "replicas": 2 })),
        &["error FallbackHidesErrors"],
    );
    let higher = json!({ "failureThreshold": 3, "replicas": 2, "behavior": "currentReplicasIfHigher" });
    wrong_keda(spec("fallback", higher), &["note FallbackRaises"]);
    let kept = json!({ "failureThreshold": 3, "replicas": 2, "behavior": "currentReplicas" });
    wrong_keda(spec("fallback", kept), &[]);
    wrong_keda(spec("idleReplicaCount", json!(0)), &[]);
    let lost = |object: &mut Value| {
        object["spec"]["idleReplicaCount"] = json!(0);
        object["spec"]["triggers"][0]["metadata"]["ignoreNullValues"] = Value::Null;
    };
    wrong_keda(lost, &["error MissingSeriesIsZero", "warning IdleReplicas"]);
    // On an error, KEDA protects the replicas only without a fallback, or with one above 0.
    let to_zero = |object: &mut Value| {
        object["spec"]["minReplicaCount"] = json!(0);
        object["spec"]["fallback"] =
            json!({ "failureThreshold": 3, "replicas": 0, "behavior": "currentReplicas" });
    };
    wrong_keda(to_zero, &["warning FallbackHidesErrors", "warning KedaMayGoToZero"]);
    let beyond = |object: &mut Value| {
        object["spec"]["maxReplicaCount"] = json!(10);
        object["spec"]["fallback"] = json!({ "failureThreshold": 3, "replicas": 8 });
    };
    wrong_keda(beyond, &["note FallbackRaises", "note MaximumAboveVariants"]);
    let paused = json!({ "autoscaling.keda.sh/paused": "true" });
    wrong_keda(|object| object["metadata"]["annotations"] = paused, &["warning Paused"]);
    let formula = json!({ "scalingModifiers": { "formula": "a*2" },
        "horizontalPodAutoscalerConfig": { "behavior": { "scaleDown": { "stabilizationWindowSeconds": 0 } } } });
    wrong_keda(spec("advanced", formula), &["warning FormulaReplacesNumber"]);
    wrong_keda(spec("advanced", json!({})), &["warning RemovalsDelayed"]);
    let cron = json!({ "type": "cron", "metadata": {} });
    let push = |object: &mut Value| object["spec"]["triggers"].as_array_mut().unwrap().push(cron);
    wrong_keda(push, &["warning OtherMetricsDecideToo"]);
    let sleepy = |seconds: u32| {
        move |setup: &mut Setup| {
            setup.variant.bounds.min = Replicas::ZERO;
            setup.variant.may_be_zero = true;
            setup.scaled_objects[0]["spec"]["minReplicaCount"] = json!(0);
            setup.scaled_objects[0]["spec"]["cooldownPeriod"] = json!(seconds);
        }
    };
    assert_found(Setup::keda(), sleepy(900), &["warning CooldownDelaysZero"]);
    assert_found(Setup::keda(), sleepy(300), &["note CooldownDelaysZero"]);
    assert_found(Setup::keda(), sleepy(0), &[]);
    // Idle replicas go to zero too.
    let idle = |setup: &mut Setup| {
        sleepy(0)(setup);
        setup.scaled_objects[0]["spec"]["minReplicaCount"] = json!(1);
        setup.scaled_objects[0]["spec"]["idleReplicaCount"] = json!(0);
    };
    assert_found(Setup::keda(), idle, &[]);
}

#[test]
fn fields_of_a_scaled_object_without_a_value_have_their_defaults() {
    let mut object = scaled_object();
    object["spec"]["fallback"] = json!({ "replicas": null });
    for field in ["advanced", "triggers", "cooldownPeriod"] {
        object["spec"][field] = Value::Null;
    }
    let parsed: ScaledObject = parsed(&object);
    assert!(!parsed.reads_a_number());
    for field in ["horizontalPodAutoscalerConfig", "scalingModifiers"] {
        object["spec"]["advanced"] = json!({ field: null });
        assert!(serde_json::from_value::<ScaledObject>(object.clone()).is_ok(), "{field}");
    }
    object["spec"]["triggers"] = json!([{ "type": "cron", "metadata": null }]);
    assert!(serde_json::from_value::<ScaledObject>(object).is_ok());
}
