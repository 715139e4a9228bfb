//! The whole program with changing ConfigMaps: the policy in force, and how errors are reported.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::process::Process;
use super::reviewing_api_server::{FORBIDDEN, GOOD};
use crate::api_server::object_path;

const CONFIG_MAPS: &str = "/api/v1/configmaps";
const SATURATION: &str = "wva-saturation-scaling-config";
const TIMEOUT: Duration = Duration::from_secs(20);

fn config_map(namespace: &str, data: Value) -> Value {
    named_config_map(namespace, SATURATION, data)
}

fn named_config_map(namespace: &str, name: &str, data: Value) -> Value {
    let metadata = json!({ "namespace": namespace, "name": name, "uid": format!("cm-{namespace}") });
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data })
}

fn variant(namespace: &str) -> Value {
    let metadata = json!({ "namespace": namespace, "name": "chat", "uid": "u" });
    let spec = json!({ "scaleTargetRef": { "kind": "Deployment", "name": "chat" }, "modelID": "m" });
    json!({ "apiVersion": "llmd.ai/v1alpha1", "kind": "VariantAutoscaling", "metadata": metadata, "spec": spec })
}

fn node(name: &str) -> Value {
    let labels = json!({ "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3" });
    json!({
        "apiVersion": "v1", "kind": "Node", "metadata": { "name": name, "labels": labels },
        "status": { "allocatable": { "nvidia.com/gpu": "8" }, "conditions": [{ "type": "Ready", "status": "True" }] }
    })
}

async fn until(process: &Process, what: &str, holds: impl AsyncFn() -> bool) {
    let began = Instant::now();
    while !holds().await {
        assert!(began.elapsed() < TIMEOUT, "{what}:\n{}", process.log());
        sleep(Duration::from_millis(50)).await;
    }
}

async fn logged(process: &Process, line: &str) {
    until(process, line, async || process.log().contains(line)).await;
}

async fn metrics(process: &Process) -> String {
    let token = format!("Authorization: Bearer {GOOD}token");
    process.get("/metrics", &[&token]).await.expect("an answer").body
}

/// A cluster with a variant in `llm`, a ConfigMap of the release, and one of the namespace.
async fn started(name: &str) -> Process {
    let home = config_map("wva", json!({ "default": "kvCacheThreshold: 0.6\n" }));
    let local = config_map("llm", json!({ "default": "priority: 5\n" }));
    let objects = [
        (CONFIG_MAPS, home),
        (CONFIG_MAPS, local),
        ("/apis/llmd.ai/v1alpha1/variantautoscalings", variant("llm")),
        ("/api/v1/nodes", node("a")),
    ];
    Process::start_with_objects(name, &[], &objects).await
}

#[tokio::test]
async fn the_program_follows_its_configmaps() {
    let process = started("policy").await;
    let log = process.log();
    assert!(
        log.contains("global.default.saturation.kvCacheThreshold: 0.8 → 0.6"),
        "before it was ready:\n{log}"
    );
    assert!(log.contains("namespaces: none → "), "that of the namespace counts there:\n{log}");
    let tuned = config_map("wva", json!({ "default": "kvCacheThreshold: 0.7\n" }));
    process.api.objects.put_in(CONFIG_MAPS, tuned.clone());
    logged(&process, "global.default.saturation.kvCacheThreshold: 0.6 → 0.7").await;
    process.api.objects.delete(&object_path(CONFIG_MAPS, &tuned));
    logged(&process, "global.default.saturation.kvCacheThreshold: 0.7 → 0.8").await;
    logged(&process, "ConfigMap deleted: its entries no longer count; defaults are in force").await;
}

#[tokio::test]
async fn an_invalid_entry_is_reported_and_its_last_good_text_stays() {
    let process = started("wrong-policy").await;
    let wrong = config_map("wva", json!({ "default": "kvCacheThreshold: 6\n" }));
    process.api.objects.put_in(CONFIG_MAPS, wrong);
    let problem = "ConfigMap wva/wva-saturation-scaling-config, entry default: kvCacheThreshold 6 is out of range: must be \
                   0 to 1; its last good text stays in force";
    logged(&process, problem).await;
    let labels = "configmap=\"wva-saturation-scaling-config\",namespace=\"wva\",key=\"default\"";
    let series = format!("wva_config_invalid{{{labels}}} 1");
    assert!(metrics(&process).await.contains(&series));
    until(&process, "no event", async || {
        let mut events = process.api.objects.writes("/apis/events.k8s.io/").into_iter();
        events.any(|event| event.body["note"] == problem && event.body["regarding"]["uid"] == "cm-wva")
    })
    .await;
    let right = config_map("wva", json!({ "default": "kvCacheThreshold: 0.75\n" }));
    process.api.objects.put_in(CONFIG_MAPS, right);
    logged(&process, "kvCacheThreshold: 0.6 → 0.75").await;
    logged(&process, "every entry of the ConfigMaps is valid again").await;
    assert!(!metrics(&process).await.contains("wva_config_invalid{"));
}

/// Waits for a Warning event with this reason about the ConfigMap with this uid, and returns its note.
async fn warning(process: &Process, reason: &str, uid: &str) -> String {
    let note = || {
        let events = process.api.objects.writes("/apis/events.k8s.io/").into_iter();
        let mut events = events.map(|event| event.body);
        events.find(|event| event["reason"] == reason && event["regarding"]["uid"] == uid)
    };
    until(process, reason, async || note().is_some()).await;
    let event = note().unwrap();
    assert_eq!(event["type"], "Warning");
    event["note"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_leftover_configmap_of_wvas_chart_does_not_decide_silently_after_an_upgrade() {
    let leftover = "prod-wva-saturation-scaling-config";
    let map = named_config_map("wva", leftover, json!({ "default": "kvCacheThreshold: 0.6\n" }));
    let process = Process::start_with_objects("adopted", &[], &[(CONFIG_MAPS, map.clone())]).await;
    let note = format!(
        "it decides about thresholds, analyzers and limits, because WVA names it so and there is no {SATURATION}: set \
         --saturation-config-map={leftover} to confirm that, or delete it. It changes "
    );
    let log = process.log();
    let warned = format!("ConfigMap wva/{leftover}: {note}");
    let line = log
        .lines()
        .find(|line| line.contains(&warned))
        .unwrap_or_else(|| panic!("before it was ready:\n{log}"));
    assert!(line.contains("WARN") && line.contains("kvCacheThreshold: 0.8 → 0.6"), "{line}");
    let event = warning(&process, "ConfigMapAdopted", "cm-wva").await;
    assert!(event.starts_with(&note) && event.contains("kvCacheThreshold: 0.8 → 0.6"), "{event}");
    let series = format!("wva_config_adopted{{configmap=\"{leftover}\",namespace=\"wva\"}} 1");
    assert!(metrics(&process).await.contains(&series));
    process.api.objects.delete(&object_path(CONFIG_MAPS, &map));
    logged(&process, "kvCacheThreshold: 0.6 → 0.8").await;
    assert!(!metrics(&process).await.contains("wva_config_adopted{"));
}

#[tokio::test]
async fn a_second_configmap_with_wvas_ending_changes_nothing_until_ours_appears() {
    let (prefixed, second) = ("prod-wva-saturation-scaling-config", "aaa-capacity-scaling-config");
    let first = named_config_map("wva", prefixed, json!({ "default": "kvCacheThreshold: 0.6\n" }));
    let process = Process::start_with_objects("found", &[], &[(CONFIG_MAPS, first)]).await;
    let second_map = named_config_map("wva", second, json!({ "default": "kvCacheThreshold: 0.5\n" }));
    process.api.objects.put_in(CONFIG_MAPS, second_map);
    let problem = format!(
        "ConfigMap wva/{prefixed}: by its name it decides about thresholds, analyzers and limits, and so does ConfigMap {second}: \
         set the name of the right one with --saturation-config-map, or delete the others; what was last in force stays in force"
    );
    logged(&process, &problem).await;
    let labels = format!("configmap=\"{prefixed}\",namespace=\"wva\",key=\"\"");
    assert!(metrics(&process).await.contains(&format!("wva_config_invalid{{{labels}}} 1")));
    let ours = config_map("wva", json!({ "default": "kvCacheThreshold: 0.7\n" }));
    process.api.objects.put_in(CONFIG_MAPS, ours);
    logged(&process, "kvCacheThreshold: 0.6 → 0.7").await;
    logged(&process, "every entry of the ConfigMaps is valid again").await;
}

#[tokio::test]
async fn two_configmaps_with_wvas_ending_at_the_start_are_shown_everywhere_and_the_defaults_count() {
    let (first, second) = ("a-saturation-scaling-config", "b-saturation-scaling-config");
    let map = |name: &str| named_config_map("wva", name, json!({ "default": "kvCacheThreshold: 0.6\n" }));
    let objects = [(CONFIG_MAPS, map(first)), (CONFIG_MAPS, map(second))];
    let process = Process::start_with_objects("ambiguous", &[], &objects).await;
    let problem = format!(
        "ConfigMap wva/{first}: by its name it decides about thresholds, analyzers and limits, and so does ConfigMap {second}: \
         set the name of the right one with --saturation-config-map, or delete the others; none of its entries is in force"
    );
    assert!(process.log().contains(&problem), "before it was ready:\n{}", process.log());
    assert!(!process.log().contains("kvCacheThreshold: 0.8 →"));
    let labels = format!("configmap=\"{first}\",namespace=\"wva\",key=\"\"");
    assert!(metrics(&process).await.contains(&format!("wva_config_invalid{{{labels}}} 1")));
    assert_eq!(warning(&process, "InvalidConfiguration", "cm-wva").await, problem);
}

#[tokio::test]
async fn a_forbidden_list_delays_the_start_for_at_most_ten_seconds() {
    let local = config_map("llm", json!({ "default": "priority: 5\n" }));
    let objects = [(CONFIG_MAPS, local), ("/apis/llmd.ai/v1alpha1/variantautoscalings", variant("llm"))];
    let began = Instant::now();
    let process =
        Process::start_with_objects("forbidden", &["--queueing-model-config-map", FORBIDDEN], &objects).await;
    assert!(began.elapsed() >= Duration::from_secs(10), "ready too early");
    logged(
        &process,
        "cannot watch ConfigMaps: check that the service account may list and watch them by name",
    )
    .await;
    logged(&process, "namespaces: none → ").await;
}

#[tokio::test]
async fn nodes_are_watched_for_as_long_as_they_are_a_limit() {
    let process = started("inventory").await;
    assert!(!process.log().contains("/api/v1/nodes"), "no limit needs them");
    let limited = config_map("wva", json!({ "default": "enableLimiter: true\n" }));
    process.api.objects.put_in(CONFIG_MAPS, limited);
    logged(&process, "limits.inventory: false → true").await;
    logged(&process, "/api/v1/nodes").await;
}

#[tokio::test]
async fn an_excluded_namespace_is_ignored_with_its_configmaps() {
    let process = started("excluded").await;
    logged(&process, "namespaces: none → ").await;
    let annotate = |exclude: &str| {
        let metadata = json!({ "name": "llm", "annotations": { "wva.llmd.ai/exclude": exclude } });
        let namespace =
            json!({ "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": metadata });
        process.api.objects.put_in("/api/v1/namespaces", namespace);
    };
    annotate("yes");
    annotate("true");
    logged(&process, r#"namespaces=["llm"]"#).await;
    logged(&process, " → none").await;
    let exclusions = || process.log().matches("with the annotation wva.llmd.ai/exclude are ignored").count();
    assert_eq!(exclusions(), 1, "only the value true counts: {}", process.log());
    annotate("false");
    logged(&process, "namespaces=[]").await;
}

#[tokio::test]
async fn a_variant_tunes_its_own_model_and_a_bad_value_is_an_event_on_it() {
    const VARIANTS: &str = "/apis/llmd.ai/v1alpha1/variantautoscalings";
    let with = |settings: Value| {
        let mut variant = variant("llm");
        for (field, value) in settings.as_object().unwrap() {
            variant["spec"][field] = value.clone();
        }
        variant
    };
    let tuned = with(json!({ "saturationThreshold": 0.7, "sloTtft": "fast\u{202e}\nFORGED" }));
    let process = Process::start_with_objects("variant-settings", &[], &[(VARIANTS, tuned)]).await;
    let log = process.log();
    assert!(log.contains("global.models: none → ") && log.contains("llm/m"), "before it was ready:\n{log}");
    let problem = "spec.sloTtft \"fast";
    assert!(log.contains(&format!("VariantAutoscaling llm/chat: {problem}")), "{log}");
    assert!(!log.contains("\nFORGED") && !log.contains('\u{202e}'), "{log}");
    let event = warning(&process, "InvalidConfiguration", "u").await;
    assert!(event.starts_with(problem) && event.contains("is not a number"), "{event}");
    let in_effect = "spec.saturationThreshold had no effect in earlier versions, and count now: analyzer saturation-percent";
    assert!(log.contains(in_effect), "{log}");
    process.api.objects.put_in(VARIANTS, with(json!({ "saturationThreshold": 0.6 })));
    logged(&process, "kvCacheThreshold: 0.7 → 0.6").await;
    process.api.objects.put_in(VARIANTS, variant("llm"));
    logged(&process, "global.models: {").await;
}
