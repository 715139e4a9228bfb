//! What objects of every version mean, and what their owners are told.

use serde_json::json;

use super::*;

fn object(spec: Value) -> VariantAutoscaling {
    let labels = json!({ ACCELERATOR_LABEL: "H100" });
    let metadata = json!({ "namespace": "llm", "name": "chat", "labels": labels });
    serde_json::from_value(json!({
        "apiVersion": "llmd.ai/v1alpha1", "kind": "VariantAutoscaling", "metadata": metadata, "spec": spec
    }))
    .unwrap()
}

fn spec(extra: Value) -> Value {
    let mut spec = json!({ "scaleTargetRef": { "kind": "Deployment", "name": "chat" }, "modelID": "org/m" });
    for (key, value) in extra.as_object().unwrap() {
        spec[key] = value.clone();
    }
    spec
}

fn problem(extra: Value) -> String {
    Variant::try_from(&object(spec(extra))).unwrap_err().problem
}

#[test]
fn absent_fields_get_the_documented_defaults() {
    let variant = Variant::try_from(&object(spec(json!({})))).unwrap();
    assert_eq!(variant.cost, Cost::new(10.0).unwrap());
    assert_eq!(variant.bounds, Bounds { min: Replicas::ONE, max: None });
    assert_eq!(variant.accelerator.as_deref(), Some("H100"));
}

#[test]
fn an_invalid_field_is_named() {
    assert!(problem(json!({ "variantCost": "cheap" })).contains("spec.variantCost \"cheap\""));
    assert!(problem(json!({ "variantCost": "9".repeat(400) })).contains("spec.variantCost"));
    assert!(problem(json!({ "minReplicas": -1 })).contains("spec.minReplicas -1"));
    assert!(problem(json!({ "maxReplicas": 0 })).contains("spec.maxReplicas 0"));
    assert!(problem(json!({ "modelID": "a\n" })).contains("spec.modelID"));
}

#[test]
fn an_object_without_a_model_is_valid_and_names_none() {
    let mut unset = spec(json!({}));
    unset.as_object_mut().unwrap().remove("modelID");
    for spec in [unset, spec(json!({ "modelID": "" })), spec(json!({ "modelID": null }))] {
        let object = object(spec);
        assert!(!Variant::try_from(&object).unwrap().names_model(), "{:?}", object.spec);
        assert_eq!(readable_model(&object), None);
    }
}

#[test]
fn a_deployment_that_was_scaled_whatever_its_api_version_said_still_is() {
    for version in ["v1", "extensions/v1beta1", "Apps/v1", "a/b/c", "apps", "/", "apps/v1\n"] {
        let reference = json!({ "apiVersion": version, "kind": "Deployment", "name": "x" });
        let variant = Variant::try_from(&object(spec(json!({ "scaleTargetRef": reference }))));
        assert_eq!(variant.unwrap().target, TargetRef::deployment("x"), "{version}");
    }
    let reference = json!({ "apiVersion": "example.com/v1", "kind": "Deployment", "name": "x" });
    let honoured = Variant::try_from(&object(spec(json!({ "scaleTargetRef": reference })))).unwrap();
    assert_eq!(honoured.target.group, "example.com", "a kind of that name in another group");
}

#[test]
fn the_group_of_the_scale_target_must_fit_its_kind() {
    let reference = |version: &str, kind: &str| {
        let reference = json!({ "apiVersion": version, "kind": kind, "name": "x" });
        Variant::try_from(&object(spec(json!({ "scaleTargetRef": reference }))))
    };
    for (version, kind, group) in [
        ("", "", "apps"),
        ("", "StatefulSet", "apps"),
        ("apps/v1beta2", "Deployment", "apps"),
        ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "leaderworkerset.x-k8s.io"),
        ("argoproj.io/v1alpha1", "Rollout", "argoproj.io"),
        ("apps.kruise.io/v1beta1", "StatefulSet", "apps.kruise.io"),
        ("v1", "ReplicationController", ""),
    ] {
        let target = reference(version, kind).unwrap().target;
        assert_eq!(target.group, group, "{version} {kind}");
        assert_eq!(target.kind, if kind.is_empty() { "Deployment" } else { kind });
    }
    for (version, kind, says) in [
        (
            "",
            "LeaderWorkerSet",
            "is empty, which is apps/v1, and a LeaderWorkerSet is of leaderworkerset.x-k8s.io/v1: write that",
        ),
        ("", "Rollout", "has no Rollout with replicas: write the API version of the kind"),
        ("apps/v1", "DaemonSet", "has no DaemonSet with replicas"),
        ("a/b/c", "Rollout", "\"a/b/c\" is not an API version"),
        ("Apps/v1", "StatefulSet", "\"Apps/v1\" is not an API version"),
        ("v1", "pods/exec", "kind \"pods/exec\" is not the name of a kind"),
    ] {
        let problem = reference(version, kind).unwrap_err().problem;
        assert!(problem.contains(says), "{problem}");
    }
}

#[test]
fn an_object_of_v0_4_scales_the_deployment_of_its_own_name_and_is_told_what_has_no_effect() {
    let stored = object(json!({
        "modelID": "org/m", "variantCost": "40.0",
        "modelProfile": { "accelerators": [{ "acc": "A100", "accCount": 1, "perfParms": { "decodeParms": {} } }] },
        "sloClassRef": { "name": "premium", "key": "opt-125m" }, "somethingElse": [1, 2]
    }));
    let variant = Variant::try_from(&stored).unwrap();
    assert_eq!(variant.target, TargetRef::deployment("chat"));
    let notices_of_stored = notices(&stored.spec);
    let [by_name, unread] = &notices_of_stored[..] else { panic!("{notices_of_stored:?}") };
    assert_eq!(by_name.reason, "TargetByName");
    assert!(by_name.note.contains("the Deployment of this object's name is scaled"), "{}", by_name.note);
    assert_eq!(
        (unread.reason, unread.note.as_str()),
        ("FieldsWithoutEffect", "without effect, and kept: spec.modelProfile")
    );
    assert!(notices(&object(spec(json!({ "maxReplicas": 3 }))).spec).is_empty());
}

#[test]
fn what_is_accepted_and_not_meant_as_written_is_a_notice() {
    let notices_of = |extra: Value| -> Vec<_> {
        notices(&object(spec(extra)).spec).into_iter().map(|notice| (notice.reason, notice.note)).collect()
    };
    let of_bounds = notices_of(json!({ "minReplicas": 5, "maxReplicas": 3 }));
    let [(reason, note)] = &of_bounds[..] else { panic!("{of_bounds:?}") };
    assert_eq!(*reason, "MinimumAboveMaximum");
    assert!(note.contains("minReplicas 5 is above spec.maxReplicas 3: the minimum counts"), "{note}");
    let target = |version: &str, kind: &str| json!({ "scaleTargetRef": { "apiVersion": version, "kind": kind, "name": "chat" } });
    for (version, kind) in [("v1", "Deployment"), ("extensions/v1beta1", ""), ("\n", "Deployment")] {
        let notices = notices_of(target(version, kind));
        let [(reason, note)] = &notices[..] else { panic!("{version}: {notices:?}") };
        assert_eq!(*reason, "ApiVersionIgnored");
        assert!(note.contains("write apps/v1") && note.chars().all(is_plain), "{note}");
    }
    for (version, kind) in [("", "Deployment"), ("apps/v1", ""), ("apps/v1beta2", "Deployment"), ("v1", "X")]
    {
        assert!(notices_of(target(version, kind)).is_empty(), "{version} {kind}");
    }
    assert!(notices_of(target("example.com/v1", "Deployment")).is_empty(), "a kind of another group");
}

#[test]
fn a_stored_maximum_of_two_is_respected_and_may_be_the_default_of_upstream() {
    let stored = object(spec(json!({ "maxReplicas": 2, "modelProfile": {} })));
    assert_eq!(Variant::try_from(&stored).unwrap().bounds.max, Some(Replicas::new(2)));
    let reasons: Vec<_> = notices(&stored.spec).into_iter().map(|notice| notice.reason).collect();
    assert_eq!(reasons, ["MaximumMayBeDefault", "FieldsWithoutEffect"]);
}

#[test]
fn an_unset_minimum_is_zero_where_the_variant_allows_zero() {
    let min = |extra: Value| Variant::try_from(&object(spec(extra))).unwrap().bounds.min;
    let zero = |enabled: Value| json!({ "scaleToZero": { "enabled": enabled, "idleTimeout": "300s" } });
    assert_eq!(min(zero(json!(true))), Replicas::ZERO);
    assert_eq!(min(zero(json!(false))), Replicas::ONE);
    assert_eq!(min(zero(json!("maybe"))), Replicas::ONE, "a bad value does not make the object invalid");
    assert_eq!(min(json!({ "minReplicas": 1, "scaleToZero": { "enabled": true } })), Replicas::ONE);
    assert!(model_settings(&object(spec(json!({})))).is_none());
}

#[test]
fn a_minimum_of_zero_is_kept() {
    let variant = Variant::try_from(&object(spec(json!({ "minReplicas": 0, "maxReplicas": 4 })))).unwrap();
    assert_eq!(variant.bounds, Bounds { min: Replicas::ZERO, max: Some(Replicas::new(4)) });
}

#[test]
fn bounds_above_the_maximum_of_replicas_are_invalid() {
    for (field, number) in [("minReplicas", 100_001), ("minReplicas", i32::MAX), ("maxReplicas", i32::MAX)] {
        let problem = problem(json!({ field: number }));
        assert_eq!(
            problem,
            format!("spec.{field} {number} is too large: a variant has at most 100000 replicas")
        );
    }
    let largest = json!({ "minReplicas": 100_000, "maxReplicas": 100_000 });
    assert!(Variant::try_from(&object(spec(largest))).is_ok());
}

#[test]
fn a_name_that_forges_a_log_line_is_invalid_and_reported_on_one_line() {
    let forged = "nothere\n2026-01-01T00:00:00Z  INFO wva: FORGED";
    let target = |name: &str| json!({ "scaleTargetRef": { "kind": "Deployment", "name": name } });
    let kind = json!({ "scaleTargetRef": { "kind": forged, "name": "chat" } });
    let long = "m".repeat(257);
    for extra in [
        target(forged),
        target("Chat"),
        target("chat."),
        target(&"c".repeat(254)),
        kind,
        json!({ "modelID": forged }),
        json!({ "modelID": long }),
        json!({ "variantCost": forged }),
        json!({ "variantCost": "1".repeat(1_000_000) }),
    ] {
        let problem = problem(extra);
        assert!(problem.chars().all(is_plain) && problem.len() < 400, "{problem}");
    }
    assert!(Variant::try_from(&object(spec(target("chat.v2-a")))).is_ok());
    assert!(Variant::try_from(&object(spec(json!({ "modelID": "ö".repeat(256) })))).is_ok());
}

#[test]
fn only_our_own_parts_of_a_stored_status_are_kept() {
    let condition = |type_: &str| {
        json!({
            "type": type_, "status": "True", "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"
        })
    };
    let status = |number: i32| {
        let alloc = json!({ "accelerator": "H100", "numReplicas": number });
        let conditions = json!([condition("MetricsAvailable"), condition("Somebody/Elses")]);
        let status = json!({ "desiredOptimizedAlloc": alloc, "conditions": conditions });
        own_status(serde_json::from_value(status).unwrap())
    };
    assert_eq!(status(3).conditions.len(), 1);
    for (number, is_valid) in [(100_000, true), (100_001, false), (i32::MAX, false), (-1, false)] {
        assert_eq!(status(number).desired_optimized_alloc.is_some(), is_valid, "{number}");
    }
}
