//! Verdicts on autoscalers that are wrong on purpose.

use serde_json::json;
use wva_core::model::{Analyzer, Bounds, Variant};
use wva_core::units::Replicas;

use super::*;
use crate::lint::NO_AUTOSCALER;

fn view() -> ClusterView {
    let variant = Variant {
        bounds: Bounds { min: Replicas::ONE, max: Some(Replicas::new(8)) },
        ..Variant::new(VariantId::new("llm", "chat"), "m", TargetRef::deployment("chat"))
    };
    let state = VariantState::new(variant, Vec::new());
    ClusterView { variants: vec![state], ..ClusterView::default() }
}

fn scaler(name: &str, change: impl FnOnce(&mut Value)) -> (SmolStr, Arc<Scaler>) {
    let mut spec = json!({
        "scaleTargetRef": { "kind": "Deployment", "name": "chat" }, "maxReplicas": 8,
        "behavior": { "scaleDown": { "stabilizationWindowSeconds": 0 } },
        "metrics": [{ "type": "External", "external": {
            "metric": { "name": "wva_desired_replicas", "selector": { "matchLabels": { "variant_name": "chat" } } },
            "target": { "type": "AverageValue", "averageValue": "1" }
        } }]
    });
    change(&mut spec);
    let metadata =
        ObjectMeta { namespace: Some("llm".into()), name: Some(name.into()), ..ObjectMeta::default() };
    let kind = VariantKind::HorizontalPodAutoscaler;
    let scaler = Scaler::new(kind, &metadata, TargetRef::deployment("chat"), &spec).unwrap();
    ("llm".into(), Arc::new(scaler))
}

fn verdict(scalers: Vec<(SmolStr, Arc<Scaler>)>) -> Option<AutoscalerVerdict> {
    verdict_of(KnownScalers { scalers, ..KnownScalers::default() }, Analyzer::Rate, None)
}

fn verdict_of(
    known: KnownScalers,
    analyzer: Analyzer,
    external: Option<&ExternalMetrics>,
) -> Option<AutoscalerVerdict> {
    let mut policy = Policy::default();
    policy.global.default.analyzer = analyzer;
    let (id, context) = (VariantId::new("llm", "chat"), VerdictContext { policy: &policy, external });
    Autoscalers::from(known).verdict((&id, VariantKind::VariantAutoscaling), &view(), context)
}

/// A change that makes an HPA follow the use of CPU alone.
fn by_cpu(spec: &mut Value) {
    let target = json!({ "type": "Utilization", "averageUtilization": 80 });
    spec["metrics"] = json!([{ "type": "Resource", "resource": { "name": "cpu", "target": target } }]);
}

#[test]
fn an_hpa_by_cpu_beside_the_one_that_follows_the_number_was_seen_by_a_check_alone() {
    let two = verdict(vec![scaler("chat", |_| ()), scaler("cpu", by_cpu)]).unwrap();
    assert_eq!((two.follows, two.reason), (false, "SeveralAutoscalers"));
    assert!(two.message.contains("is also scaled by HorizontalPodAutoscaler llm/cpu"), "{}", two.message);
    assert!(!two.message.contains("NumberNotRead"), "the other one reads it: {}", two.message);
    assert_eq!(verdict(vec![scaler("cpu", by_cpu)]), None, "one that is not known may read it");
    let alone =
        KnownScalers { scalers: vec![scaler("cpu", by_cpu)], are_all: true, ..KnownScalers::default() };
    let alone = verdict_of(alone, Analyzer::Rate, None).unwrap();
    assert_eq!((alone.follows, alone.reason), (false, "NumberNotRead"));
}

#[test]
fn that_nothing_scales_a_variant_is_said_once_all_autoscalers_are_known() {
    let of = |known: KnownScalers| verdict_of(known, Analyzer::Rate, None);
    let none = of(KnownScalers { are_all: true, ..KnownScalers::default() }).unwrap();
    assert_eq!((none.follows, none.reason), (true, NO_AUTOSCALER));
    assert_eq!(of(KnownScalers::default()), None);
    let endless = |spec: &mut Value| spec["padding"] = json!("x".repeat(MAX_SPEC_BYTES));
    let unread =
        KnownScalers { scalers: vec![scaler("chat", endless)], are_all: true, ..KnownScalers::default() };
    assert_eq!(of(unread), None, "one of them cannot be judged");
}

#[test]
fn a_variant_has_a_verdict_where_something_reads_its_number() {
    let right = verdict(vec![scaler("chat", |_| ())]).unwrap();
    assert_eq!((right.follows, right.reason, right.message.as_str()), (true, "AsExpected", FOLLOWED));
    // A note: the number stops at the variant's maximum.
    let higher = verdict(vec![scaler("chat", |spec| spec["maxReplicas"] = json!(9))]).unwrap();
    assert_eq!((higher.follows, higher.reason), (true, "AsExpected"));
    let said = "; worth knowing: HorizontalPodAutoscaler llm/chat: maxReplicas is 9";
    assert!(higher.message.contains(said), "{}", higher.message);
    let value = json!({ "type": "Value", "value": "1" });
    let wrong =
        verdict(vec![scaler("chat", |spec| spec["metrics"][0]["external"]["target"] = value)]).unwrap();
    assert_eq!((wrong.follows, wrong.reason), (false, "TargetTypeMultiplies"));
    assert!(wrong.message.starts_with("HorizontalPodAutoscaler llm/chat: the target"), "{}", wrong.message);
    let mended = r#"what mends it: {"spec":{"metrics":[{"external":{"target":{"averageValue":"1","type":"AverageValue"}}}]}}"#;
    assert!(wrong.message.ends_with(mended), "{}", wrong.message);
    let two = verdict(vec![scaler("a", |_| ()), scaler("b", |spec| spec["maxReplicas"] = json!(4))]).unwrap();
    assert_eq!(two.reason, "SeveralAutoscalers");
    assert!(
        two.message.ends_with("; `wva check` has more: MaximumBelowVariants, SeveralAutoscalers"),
        "{}",
        two.message
    );
}

#[test]
fn what_costs_money_is_said_of_an_autoscaler_that_follows_the_number() {
    let delayed = || {
        let scalers = vec![scaler("chat", |spec| spec["behavior"] = Value::Null)];
        KnownScalers { scalers, ..KnownScalers::default() }
    };
    let found = |known, analyzer| {
        let verdict = verdict_of(known, analyzer, None).unwrap();
        (verdict.follows, verdict.reason)
    };
    assert_eq!(found(delayed(), Analyzer::Rate), (true, "RemovalsDelayed"), "by the default policy");
    assert_eq!(found(delayed(), Analyzer::Saturation), (true, "AsExpected"), "which does not steady itself");
    let object = json!({ "metadata": { "namespace": "llm", "name": "vpa" }, "spec": {} });
    let vertical = WatchedVertical {
        target: TargetRef::deployment("chat"),
        object: Arc::new(serde_json::from_value(object).unwrap()),
    };
    let steady = || KnownScalers { scalers: vec![scaler("chat", |_| ())], ..KnownScalers::default() };
    let sized = KnownScalers { verticals: vec![("llm".into(), vertical.clone())], ..steady() };
    assert_eq!(found(sized, Analyzer::Rate), (true, "VerticalAutoscalerRestarts"));
    let elsewhere = KnownScalers { verticals: vec![("other".into(), vertical)], ..steady() };
    assert_eq!(found(elsewhere, Analyzer::Rate), (true, "AsExpected"));
    let termination = |spec: Value| {
        let termination = Termination::of(&serde_json::from_value(spec).unwrap()).unwrap();
        let terminations = [(VariantId::new("llm", "chat"), Arc::new(termination))].into();
        KnownScalers { terminations, ..steady() }
    };
    let cut_off = termination(json!({ "containers": [{ "name": "vllm" }] }));
    let verdict = verdict_of(cut_off, Analyzer::Rate, None).unwrap();
    assert_eq!((verdict.follows, verdict.reason), (true, "GracePeriodTooShort"));
    assert!(verdict.message.starts_with("Deployment llm/chat: "), "{}", verdict.message);
    assert!(verdict.message.ends_with("; `wva check` has more: NoPreStop"), "{}", verdict.message);
}

#[test]
fn keda_that_takes_external_metrics_over_is_told_to_the_variants_of_hpas() {
    let known = KnownScalers { scalers: vec![scaler("chat", |_| ())], ..KnownScalers::default() };
    let keda = ExternalMetrics::Another("Service keda/keda-operator-metrics-apiserver".into());
    let verdict = verdict_of(known, Analyzer::Rate, Some(&keda)).unwrap();
    // It may have the number from `/metrics`, as an adapter does.
    assert_eq!((verdict.follows, verdict.reason), (true, "ApiServiceOfAnother"));
    assert!(verdict.message.contains("points at Service keda/keda-operator-metrics-apiserver"));
}

#[test]
fn autoscalers_that_a_tenant_writes_by_the_thousand_are_not_all_judged() {
    let scalers = (0..2000).map(|index| scaler(&format!("hpa-{index:04}"), |_| ()));
    let many = verdict(scalers.collect()).unwrap();
    assert_eq!(many.reason, "SeveralAutoscalers");
    let named = "hpa-0001, HorizontalPodAutoscaler llm/hpa-0002, HorizontalPodAutoscaler llm/hpa-0003, \
                 HorizontalPodAutoscaler llm/hpa-0004 and 11 more";
    assert!(many.message.contains(named), "{}", many.message);
    let mended = "what mends it: keep one autoscaler of Deployment chat, and delete the others";
    assert!(many.message.contains(mended), "{}", many.message);
}

#[test]
fn an_hpa_of_keda_and_those_that_cannot_be_read_are_left_out() {
    let owner =
        json!({ "apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "name": "chat", "uid": "u" });
    let metadata: ObjectMeta =
        serde_json::from_value(json!({ "name": "x", "ownerReferences": [owner] })).unwrap();
    let of = |metadata, spec| {
        Scaler::new(VariantKind::HorizontalPodAutoscaler, metadata, TargetRef::deployment("chat"), spec)
    };
    let spec = json!({ "maxReplicas": 1, "scaleTargetRef": { "kind": "Deployment", "name": "chat" } });
    assert_eq!(of(&metadata, &spec), None);
    let own = ObjectMeta::default();
    assert!(of(&own, &spec).is_some());
    let unreadable = Arc::new(of(&own, &json!({ "maxReplicas": "many" })).unwrap());
    assert_eq!(verdict(vec![("llm".into(), unreadable)]), None);
}

/// A scaler with these annotations and owners, as its watch keeps it.
fn kept(kind: VariantKind, metadata: Value, spec: &Value) -> Option<(SmolStr, Arc<Scaler>)> {
    let metadata: ObjectMeta = serde_json::from_value(metadata).unwrap();
    let scaler = Scaler::new(kind, &metadata, TargetRef::deployment("chat"), spec)?;
    Some(("llm".into(), Arc::new(scaler)))
}

/// A ScaledObject that reads the number, with these annotations.
fn scaled_object(annotations: Value) -> (SmolStr, Arc<Scaler>) {
    let query = "wva_desired_replicas{variant_name=\"chat\",exported_namespace=\"llm\"}";
    let trigger = json!({ "type": "prometheus", "metadata": { "query": query, "threshold": "1", "ignoreNullValues": "false" } });
    let name = json!({ "name": "chat" });
    let behavior = json!({ "scaleDown": { "stabilizationWindowSeconds": 0 } });
    let spec = json!({
        "scaleTargetRef": { "name": "chat" }, "minReplicaCount": 1, "maxReplicaCount": 8, "triggers": [trigger],
        "advanced": { "horizontalPodAutoscalerConfig": { "name": "chat", "behavior": behavior } }
    });
    let mut metadata = name;
    metadata["annotations"] = annotations;
    kept(VariantKind::ScaledObject, metadata, &spec).unwrap()
}

#[test]
fn an_hpa_that_keda_is_told_to_take_over_was_a_second_autoscaler() {
    let transfer = json!({ "scaledobject.keda.sh/transfer-hpa-ownership": "true" });
    let taken = verdict(vec![scaler("chat", by_cpu), scaled_object(transfer)]).unwrap();
    assert_eq!((taken.follows, taken.reason), (true, "AsExpected"), "{}", taken.message);
    let two = verdict(vec![scaler("chat", by_cpu), scaled_object(json!({}))]).unwrap();
    assert_eq!(two.reason, "SeveralAutoscalers");
}

#[test]
fn a_scaled_object_that_an_hpa_replaces_is_paused_and_one_that_nothing_replaces_reads_nothing() {
    let paused = || scaled_object(json!({ "autoscaling.keda.sh/paused": "true" }));
    let migrated = verdict(vec![scaler("chat", |_| ()), paused()]).unwrap();
    assert_eq!((migrated.follows, migrated.reason), (true, "AsExpected"), "{}", migrated.message);
    let all = |scalers| KnownScalers { scalers, are_all: true, ..KnownScalers::default() };
    let unread = verdict_of(all(vec![scaler("cpu", by_cpu), paused()]), Analyzer::Rate, None).unwrap();
    assert_eq!((unread.follows, unread.reason), (false, "NumberNotRead"), "{}", unread.message);
}

#[test]
fn a_wrong_trigger_and_a_wrong_fallback_of_a_scaled_object_are_said_with_what_mends_them() {
    let verdict_of = |field: &str, value: Value| {
        let mut spec = json!({
            "scaleTargetRef": { "name": "chat" }, "minReplicaCount": 1, "maxReplicaCount": 8,
            "triggers": [{ "type": "external-push", "metadata": { "scalerAddress": "wva:9443", "variantName": "chat" } }],
            "advanced": { "horizontalPodAutoscalerConfig": { "behavior": { "scaleDown": { "stabilizationWindowSeconds": 0 } } } }
        });
        spec[field] = value;
        verdict(vec![kept(VariantKind::ScaledObject, json!({ "name": "chat" }), &spec).unwrap()]).unwrap()
    };
    let fallback = verdict_of("fallback", json!({ "failureThreshold": 3, "replicas": 2 }));
    assert_eq!((fallback.follows, fallback.reason), (false, "FallbackHidesErrors"));
    let mended = r#"what mends it: {"spec":{"fallback":{"behavior":"currentReplicas"}}}"#;
    assert!(fallback.message.ends_with(mended), "{}", fallback.message);
    let lost = json!([{ "type": "prometheus", "metadata": {
        "query": "wva_desired_replicas{variant_name=\"chat\",exported_namespace=\"llm\"}", "threshold": "1"
    } }]);
    let missing = verdict_of("triggers", lost);
    assert_eq!((missing.follows, missing.reason), (false, "MissingSeriesIsZero"));
    assert!(missing.message.contains(r#""ignoreNullValues":"false""#), "{}", missing.message);
    let right = verdict_of("maxReplicaCount", json!(8));
    assert_eq!((right.follows, right.reason), (true, "AsExpected"), "{}", right.message);
}

#[test]
fn an_autoscaler_that_is_being_deleted_scales_nothing() {
    let deleted = json!({ "name": "chat", "deletionTimestamp": "2026-11-28T00:00:00Z" });
    assert!(kept(VariantKind::HorizontalPodAutoscaler, deleted, &json!({})).is_none());
}
