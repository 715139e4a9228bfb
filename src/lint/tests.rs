//! Set-ups that are wrong on purpose, each with what is found in it.

mod keda;
mod setup;

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};
use wva_core::VariantId;
use wva_core::model::{Analyzer, Bounds, TargetRef};
use wva_core::units::Replicas;

use self::setup::{
    Setup, assert_found, candidate, external, hpa, parsed, scaled_object, wrong_hpa, wrong_keda,
};
use super::*;

#[test]
fn a_right_setup_has_no_findings() {
    assert_eq!(Setup::new().found(), Vec::<String>::new());
    assert_eq!(Setup::keda().found(), Vec::<String>::new());
}

#[test]
fn a_number_that_is_multiplied_divided_or_another_one() {
    let value = json!({ "type": "Value", "value": "1" });
    wrong_hpa(|spec| external(spec)["target"] = value, &["error TargetTypeMultiplies"]);
    let two = json!({ "type": "AverageValue", "averageValue": "2" });
    wrong_hpa(|spec| external(spec)["target"] = two, &["error NumberDivided"]);
    let milli = json!({ "type": "AverageValue", "averageValue": "1000m" });
    wrong_hpa(|spec| external(spec)["target"] = milli, &[]);
    // The controller looks at the value, not at the type.
    let utilization = json!({ "type": "Utilization", "averageValue": "1" });
    wrong_hpa(|spec| external(spec)["target"] = utilization, &[]);
    let typo = json!("wva_desired_replica");
    wrong_hpa(|spec| external(spec)["metric"]["name"] = typo, &["error MetricUnknown"]);
    // Somebody else's metric is another number, and not one that is missing here.
    let others = json!("kube_hpa_status_desired_replicas");
    wrong_hpa(|spec| external(spec)["metric"]["name"] = others, &["warning NumberNotRead"]);
    for name in ["WVA_Desired_Replicas", "inferno_desired_replicas"] {
        wrong_hpa(|spec| external(spec)["metric"]["name"] = json!(name), &[]);
    }
    for name in ["wva_current_replicas", "wva_desired_ratio"] {
        wrong_hpa(|spec| external(spec)["metric"]["name"] = json!(name), &["error MetricNotDesired"]);
    }
    let pods = json!([{ "type": "Pods", "pods": {
        "metric": { "name": "wva_desired_replicas" }, "target": { "type": "AverageValue", "averageValue": "1" }
    } }]);
    wrong_hpa(|spec| spec["metrics"] = pods, &["error MetricTypeWrong"]);
    let resource = json!({ "type": "Resource", "resource": {
        "name": "cpu", "target": { "type": "Utilization", "averageUtilization": 80 }
    } });
    wrong_hpa(
        |spec| spec["metrics"].as_array_mut().unwrap().push(resource.clone()),
        &["warning OtherMetricsDecideToo"],
    );
    wrong_hpa(|spec| spec["metrics"] = json!([resource]), &["error NumberNotRead"]);
}

#[test]
fn the_ratio_is_right_with_the_type_value() {
    wrong_hpa(
        |spec| {
            external(spec)["metric"]["name"] = json!("wva_desired_ratio");
            external(spec)["target"] = json!({ "type": "Value", "value": "1" });
        },
        &[],
    );
}

#[test]
fn a_selector_that_finds_none_several_or_another_variant() {
    let selector =
        |labels: Value| move |spec: &mut Value| external(spec)["metric"]["selector"]["matchLabels"] = labels;
    wrong_hpa(selector(json!({ "variant_name": "lama" })), &["error SelectsNoVariant"]);
    let job = json!({ "variant_name": "llama", "job": "wva" });
    wrong_hpa(selector(job), &["error SelectsNoVariant"]);
    let other = json!({ "variant_name": "llama", "exported_namespace": "prod" });
    wrong_hpa(selector(other), &["error SelectsNoVariant"]);
    wrong_hpa(selector(json!({})), &["note SelectorNamesNoVariant"]);
    let with = |labels: Value, expected: &[&str]| {
        let change = |setup: &mut Setup| {
            setup.others = vec![("llm", "mixtral"), ("prod", "llama")];
            selector(labels)(&mut setup.hpas[0]["spec"]);
        };
        assert_found(Setup::new(), change, expected);
    };
    with(json!({ "accelerator_type": "H100" }), &["error SelectsSeveralVariants"]);
    with(json!({ "variant_name": "mixtral" }), &["error FollowsAnotherVariant"]);
    with(json!({ "variant_name": "llama" }), &[]);
    // The installation may have any controller instance.
    with(json!({ "controller_instance": "blue" }), &[]);
    with(
        json!({ "variant_name": "mixtral", "controller_instance": "blue" }),
        &["error FollowsAnotherVariant"],
    );
    let object = |kind: &str, name: &str| {
        json!([{ "type": "Object", "object": {
            "describedObject": { "kind": kind, "name": name }, "metric": { "name": "wva_desired_replicas" },
            "target": { "type": "AverageValue", "averageValue": "1" }
        } }])
    };
    wrong_hpa(|spec| spec["metrics"] = object("Deployment", "llama"), &[]);
    wrong_hpa(|spec| spec["metrics"] = object("VariantAutoscaling", "llama"), &[]);
    wrong_hpa(|spec| spec["metrics"] = object("Service", "llama"), &["error ObjectWithoutNumber"]);
}

#[test]
fn bounds_that_keep_the_number_out() {
    wrong_hpa(|spec| spec["maxReplicas"] = json!(4), &["error MaximumBelowVariants"]);
    wrong_hpa(|spec| spec["maxReplicas"] = json!(9), &["note MaximumAboveVariants"]);
    wrong_hpa(|spec| spec["minReplicas"] = json!(3), &["warning MinimumAboveVariants"]);
    let unbounded = |setup: &mut Setup| setup.variant.bounds.max = None;
    assert_found(Setup::new(), unbounded, &["warning VariantWithoutMaximum"]);
    let idle = |may_be_zero| {
        move |setup: &mut Setup| {
            setup.variant.bounds.min = Replicas::ZERO;
            setup.variant.may_be_zero = may_be_zero;
        }
    };
    assert_found(Setup::new(), idle(true), &["warning MinimumForbidsZero"]);
    assert_found(Setup::new(), idle(false), &[]);
    wrong_keda(|object| object["spec"]["maxReplicaCount"] = json!(4), &["error MaximumBelowVariants"]);
}

#[test]
fn rules_that_undo_the_decision() {
    let behavior = |behavior: Value| move |spec: &mut Value| spec["behavior"] = behavior;
    wrong_hpa(behavior(Value::Null), &["warning RemovalsDelayed"]);
    let upstream = json!({
        "scaleUp": { "stabilizationWindowSeconds": 240, "policies": [{ "type": "Pods", "value": 10, "periodSeconds": 150 }] },
        "scaleDown": { "stabilizationWindowSeconds": 240, "policies": [{ "type": "Pods", "value": 10, "periodSeconds": 150 }] }
    });
    wrong_hpa(behavior(upstream), &["warning AdditionsDelayed", "warning RemovalsDelayed"]);
    let with = |direction: &str, rules: Value| {
        let mut behavior = json!({ "scaleDown": { "stabilizationWindowSeconds": 0 } });
        behavior[direction] = rules;
        move |spec: &mut Value| spec["behavior"] = behavior
    };
    let pod_a_minute = json!([{ "type": "Pods", "value": 1, "periodSeconds": 60 }]);
    wrong_hpa(with("scaleUp", json!({ "policies": pod_a_minute })), &["warning AdditionsSlow"]);
    let one_in_ten = json!([{ "type": "Pods", "value": 1, "periodSeconds": 600 }]);
    let slow = json!({ "stabilizationWindowSeconds": 0, "policies": one_in_ten });
    wrong_hpa(with("scaleDown", slow), &["warning RemovalsSlow"]);
    wrong_hpa(with("scaleUp", json!({ "selectPolicy": "Disabled" })), &["error AdditionsDisabled"]);
    let disabled = json!({ "stabilizationWindowSeconds": 0, "selectPolicy": "Disabled" });
    wrong_hpa(with("scaleDown", disabled), &["error RemovalsDisabled"]);
    wrong_hpa(with("scaleDown", json!({ "stabilizationWindowSeconds": 30 })), &[]);
    let percent = |setup: &mut Setup| {
        setup.variant.bounds.min = Replicas::ZERO;
        setup.hpas[0]["spec"]["minReplicas"] = json!(0);
        let doubled = json!({ "policies": [{ "type": "Percent", "value": 100, "periodSeconds": 15 }] });
        setup.hpas[0]["spec"]["behavior"]["scaleUp"] = doubled;
    };
    assert_found(Setup::new(), percent, &["error CannotLeaveZero"]);
    let smaller = |setup: &mut Setup| {
        percent(setup);
        let pods = json!({ "type": "Pods", "value": 8, "periodSeconds": 15 });
        let rules = &mut setup.hpas[0]["spec"]["behavior"]["scaleUp"];
        rules["policies"].as_array_mut().unwrap().push(pods);
        rules["selectPolicy"] = json!("Min");
    };
    assert_found(Setup::new(), smaller, &["error CannotLeaveZero"]);
    let unsteady = |setup: &mut Setup| setup.variant.analyzer = Analyzer::SaturationPercent;
    assert_found(Setup::new(), unsteady, &["note RemovalsUnsteady"]);
}

#[test]
fn the_fixes_of_slow_rules_are_fast_enough_for_a_large_fleet() {
    for direction in ["scaleUp", "scaleDown"] {
        let slow = |setup: &mut Setup| {
            setup.variant.bounds.max = Some(Replicas::new(200));
            setup.hpas[0]["spec"]["maxReplicas"] = json!(200);
            let policies = json!([{ "type": "Pods", "value": 1, "periodSeconds": 60 }]);
            let mut behavior = json!({ "scaleUp": { "tolerance": "0" }, "scaleDown": { "stabilizationWindowSeconds": 0, "tolerance": "0" } });
            behavior[direction]["policies"] = policies;
            setup.hpas[0]["spec"]["behavior"] = behavior;
        };
        let found = if direction == "scaleUp" { "warning AdditionsSlow" } else { "warning RemovalsSlow" };
        assert_found(Setup::new(), slow, &[found]);
    }
}

#[test]
fn a_tolerance_that_hides_a_change_by_one() {
    let of = |most: u32, analyzer: Analyzer, tolerance: Option<&str>| {
        let mut setup = Setup::new();
        setup.variant.bounds.max = Some(Replicas::new(most));
        setup.variant.analyzer = analyzer;
        setup.hpas[0]["spec"]["maxReplicas"] = json!(most);
        let rules = |window: u32| json!({ "stabilizationWindowSeconds": window, "tolerance": tolerance });
        setup.hpas[0]["spec"]["behavior"] = json!({ "scaleUp": rules(0), "scaleDown": rules(30) });
        setup.found()
    };
    assert_eq!(of(9, Analyzer::Rate, None), Vec::<String>::new());
    assert_eq!(of(10, Analyzer::Rate, None), ["note ToleranceHidesOne"]);
    assert_eq!(of(10, Analyzer::Rate, Some("0.2")), ["warning ToleranceHidesChanges"]);
    assert_eq!(of(10, Analyzer::Saturation, None), ["warning ToleranceHidesChanges"]);
    assert_eq!(of(1000, Analyzer::Saturation, Some("0")), Vec::<String>::new());
    assert_eq!(of(19, Analyzer::Saturation, Some("50m")), Vec::<String>::new());
}

#[test]
fn several_autoscalers_or_none() {
    let second = |setup: &mut Setup| {
        setup.hpas.push(hpa());
        setup.hpas[1]["metadata"]["name"] = json!("llama-2");
    };
    assert_found(Setup::new(), second, &["error SeveralAutoscalers"; 2]);
    let mixed = |setup: &mut Setup| setup.scaled_objects.push(scaled_object());
    assert_found(Setup::new(), mixed, &["error SeveralAutoscalers"; 2]);
    let migrating = |setup: &mut Setup| {
        mixed(setup);
        setup.scaled_objects[0]["metadata"]["annotations"] = json!({ "autoscaling.keda.sh/paused": "true" });
    };
    assert_found(Setup::new(), migrating, &[]);
    let taken_over = |setup: &mut Setup| {
        mixed(setup);
        let scaled = &mut setup.scaled_objects[0];
        scaled["metadata"]["annotations"] = json!({ "scaledobject.keda.sh/transfer-hpa-ownership": "true" });
        scaled["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["name"] = json!("llama");
    };
    assert_found(Setup::new(), taken_over, &[]);
    let made_by_keda = |setup: &mut Setup| {
        setup.scaled_objects.push(scaled_object());
        setup.hpas[0]["metadata"]["ownerReferences"] = json!([{ "apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "name": "llama", "uid": "u" }]);
    };
    assert_found(Setup::new(), made_by_keda, &[]);
    assert_found(Setup::new(), |setup| setup.hpas.clear(), &["warning NoAutoscaler"]);
    let vertical = |mode: Value| {
        move |setup: &mut Setup| {
            let spec = json!({ "targetRef": { "name": "llama" }, "updatePolicy": { "updateMode": mode } });
            setup.vertical.push(json!({ "metadata": { "namespace": "llm", "name": "vpa" }, "spec": spec }));
        }
    };
    assert_found(Setup::new(), vertical(json!("Recreate")), &["warning VerticalAutoscalerRestarts"]);
    assert_found(Setup::new(), vertical(Value::Null), &["warning VerticalAutoscalerRestarts"]);
    assert_found(Setup::new(), vertical(json!("Off")), &[]);
}

#[test]
fn an_hpa_that_asks_another_program_for_the_number() {
    let served_by = |owner: ExternalMetrics| move |setup: &mut Setup| setup.external = Some(owner);
    assert_found(Setup::new(), served_by(ExternalMetrics::Nobody), &["error ApiServiceMissing"]);
    let keda = || ExternalMetrics::Another("Service keda/keda-metrics-apiserver".into());
    assert_found(Setup::new(), served_by(keda()), &["warning ApiServiceOfAnother"]);
    // KEDA's own triggers do not read it.
    assert_found(Setup::keda(), served_by(keda()), &[]);
}

#[test]
fn pods_that_cut_answers_off() {
    let container = |lifecycle: Value| json!({ "name": "vllm", "lifecycle": lifecycle });
    let with = |grace: Value, container: Value| {
        move |setup: &mut Setup| {
            setup.template =
                Some(json!({ "terminationGracePeriodSeconds": grace, "containers": [container] }));
        }
    };
    let hook = |seconds: u32| json!({ "preStop": { "sleep": { "seconds": seconds } } });
    assert_found(Setup::new(), with(json!(120), container(hook(15))), &[]);
    assert_found(Setup::new(), with(json!(120), container(Value::Null)), &["warning NoPreStop"]);
    assert_found(Setup::new(), with(Value::Null, container(hook(15))), &["warning GracePeriodTooShort"]);
    let exec = json!({ "preStop": { "exec": { "command": ["/bin/sh", "-c", "sleep 150"] } } });
    assert_found(Setup::new(), with(json!(120), container(exec)), &["warning PreStopTooLong"]);
    // A hook of a sidecar does not keep the server from being stopped.
    let beside = |setup: &mut Setup| {
        let server = json!({ "name": "vllm", "resources": { "limits": { "nvidia.com/gpu": "1" } } });
        let proxy = json!({ "name": "proxy", "lifecycle": hook(15) });
        setup.template = Some(json!({ "terminationGracePeriodSeconds": 120, "containers": [proxy, server] }));
    };
    assert_found(Setup::new(), beside, &["warning NoPreStop"]);
}

#[test]
fn kserve_multiplies_as_the_controller_would() {
    let mut setup = Setup::new();
    external(&mut setup.hpas[0]["spec"])["target"] = json!({ "type": "Value", "value": "1" });
    let advice = setup.advice().remove(0);
    assert!(advice.effect.contains("2 replicas become 2, 4, 8;"), "{advice:#?}");
    assert!(advice.fix.contains("{type: AverageValue, averageValue: \"1\"}"), "{advice:#?}");
}

#[test]
fn a_target_that_multiplies_is_right_where_the_number_is_served_divided() {
    let mut setup = Setup::new();
    setup.variant.serves_value_targets = true;
    external(&mut setup.hpas[0]["spec"])["target"] = json!({ "type": "Value", "value": "1" });
    assert_eq!(setup.found(), Vec::<String>::new());
}

#[test]
fn names_that_tenants_choose_stay_on_one_line() {
    let mut setup = Setup::new();
    setup.template = Some(json!({ "containers": [{ "name": "a\n\u{1b}[2K" }] }));
    let forged = format!("wva_\n{}", "x".repeat(10_000));
    external(&mut setup.hpas[0]["spec"])["metric"]["name"] = json!(forged);
    for advice in setup.advice() {
        let lines = [&advice.set, &advice.effect];
        assert!(
            lines.iter().all(|line| !line.contains(['\n', '\u{1b}']) && line.len() < 1001),
            "{advice:#?}"
        );
        assert!(serde_saphyr::from_str::<Value>(&advice.fix).is_ok(), "{advice:#?}");
    }
}

/// The objects of a YAML text.
fn documents(text: &str) -> Vec<Value> {
    text.split("\n---").map(|document| serde_saphyr::from_str(document).unwrap()).collect()
}

/// What is found above a note in these objects: a VariantAutoscaling and an HPA.
fn above_note(objects: &[Value]) -> Vec<String> {
    let of = |kind: &str| objects.iter().find(|object| object["kind"] == kind).unwrap();
    let (variant, hpa) = (of("VariantAutoscaling"), of("HorizontalPodAutoscaler"));
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let (namespace, name) = (text(&variant["metadata"]["namespace"]), text(&variant["metadata"]["name"]));
    let target = TargetRef::deployment(text(&variant["spec"]["scaleTargetRef"]["name"]));
    assert_eq!(hpa["spec"]["scaleTargetRef"]["name"], json!(target.name));
    let bound = |field: &str| Replicas::new(u32::try_from(variant["spec"][field].as_u64().unwrap()).unwrap());
    let facts = VariantFacts {
        id: VariantId::new(namespace.as_str(), name.as_str()),
        bounds: Bounds { min: bound("minReplicas"), max: Some(bound("maxReplicas")) },
        ..Setup::new().variant
    };
    let candidates = [candidate(&namespace, &name, &target.name)].into_iter().collect();
    let hpa = parsed(hpa);
    let workload = Workload {
        namespace: &namespace,
        target: &target,
        variant: Some(&facts),
        hpas: vec![&hpa],
        scaled_objects: Vec::new(),
        vertical: Vec::new(),
        is_incomplete: false,
        knows_variants: true,
        termination: None,
        external: None,
        candidates: &candidates,
    };
    let advice = lint(&workload).iter().map(Finding::advice).collect::<Vec<_>>();
    let bad = advice.into_iter().filter(|advice| advice.severity < Severity::Note);
    bad.map(|advice| format!("{advice:?}")).collect()
}

#[test]
fn what_the_readme_and_the_samples_say_has_nothing_above_a_note() {
    let read = |path: &str| fs::read_to_string(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap();
    let readme = read("README.md");
    let yaml = readme.split("```yaml").nth(1).unwrap().split("```").next().unwrap();
    assert_eq!(above_note(&documents(yaml)), Vec::<String>::new());
    let variant = documents(&read("manifests/samples/variantautoscaling.yaml"));
    for sample in ["hpa.yaml", "hpa-object.yaml"] {
        let mut objects = documents(&read(&format!("manifests/samples/{sample}")));
        objects.extend(variant.clone());
        assert_eq!(above_note(&objects), Vec::<String>::new(), "{sample}");
    }
}
