//! `wva check` as people and CI run it: the real binary against an API server and a Prometheus on sockets, and on files.

mod cluster;
mod installation;
mod rules;

use std::time::Duration;

use cluster::{
    ALL_SERIES, Cluster, DEFINITION, DEPLOYMENTS, HPAS, VARIANTS, api_service, deployment, hpa, reasons,
    variant,
};
use serde_json::{Value, json};
use tokio::time::Instant;
use wva::cluster::pki::apiservice;

use crate::api_server::SERVICES;
use crate::record::material::{wva, wva_with};

#[tokio::test]
async fn an_installation_without_a_fault_has_no_findings() {
    let cluster = Cluster::start("sound").await;
    let said = cluster.check(&[]).await;
    assert!(said.out.ends_with("0 errors, 0 warnings, 1 note\n"), "{}", said.out);
    assert_eq!(cluster.found(&[]).await, (vec![], 0));
    let writes: Vec<_> = cluster.objects.writes("");
    assert!(writes.is_empty(), "a check writes nothing: {writes:?}");
}

#[tokio::test]
async fn wrong_autoscalers_are_found_by_object_with_errors_first() {
    let cluster = Cluster::start("hpas").await;
    cluster.objects.put_in(VARIANTS, variant("mixtral"));
    cluster.objects.put_in(DEPLOYMENTS, deployment("mixtral"));
    let mut slow = hpa("mixtral");
    slow["spec"]["behavior"] = Value::Null;
    cluster.objects.put_in(HPAS, slow);
    let multiply = |hpa: &mut Value| {
        hpa["spec"]["metrics"][0]["external"]["target"] = json!({ "type": "Value", "value": "1" });
    };
    cluster.objects.change("/apis/autoscaling/v2/namespaces/llm/horizontalpodautoscalers/llama", multiply);
    let expected = ["error TargetTypeMultiplies", "warning RemovalsDelayed"].map(String::from).to_vec();
    assert_eq!(cluster.found(&[]).await, (expected, 1));
    let said = cluster.check(&[]).await;
    let (first, second) = (
        said.out.find("HorizontalPodAutoscaler llm/llama\n"),
        said.out.find("HorizontalPodAutoscaler llm/mixtral\n"),
    );
    assert!(first.is_some() && first < second, "{}", said.out);
    assert!(said.out.contains("    fix:  spec:\n            metrics:\n"), "{}", said.out);
    assert!(said.out.ends_with("1 error, 1 warning, 1 note\n"), "{}", said.out);
    // A warning alone fails only with --strict.
    cluster.objects.delete("/apis/autoscaling/v2/namespaces/llm/horizontalpodautoscalers/llama");
    let (found, code) = cluster.found(&[]).await;
    assert_eq!(
        (found, code),
        (["warning NoAutoscaler", "warning RemovalsDelayed"].map(String::from).to_vec(), 0)
    );
    assert_eq!(cluster.found(&["--strict"]).await.1, 1);
    assert_eq!(cluster.found(&["-n", "elsewhere"]).await, (vec![], 0));
}

/// As KServe writes it: annotations make the HPA a variant, which it reads with the type `Value`.
#[tokio::test]
async fn kserves_own_hpa_is_a_variant_and_multiplies() {
    let cluster = Cluster::start("kserve").await;
    cluster.objects.put_in(DEPLOYMENTS, deployment("served"));
    let mut served = hpa("served");
    served["metadata"]["annotations"] =
        json!({ "llm-d.ai/managed": "true", "llm-d.ai/model-id": "org/served" });
    served["spec"]["metrics"][0]["external"]["target"] = json!({ "type": "Value", "value": "1" });
    cluster.objects.put_in(HPAS, served);
    let said = cluster.check(&["-o", "json"]).await;
    assert_eq!((reasons(&said), said.code), (vec!["error TargetTypeMultiplies".into()], 1), "{}", said.out);
    assert!(said.out.contains("2 replicas become 2, 4, 8;"), "{}", said.out);
}

#[tokio::test]
async fn hpas_of_another_installation_are_not_wrong() {
    let cluster = Cluster::start("instances").await;
    assert_eq!(cluster.found(&["--controller-instance", "blue"]).await, (vec![], 0));
}

#[tokio::test]
async fn a_missing_right_of_the_program_is_named_with_its_rule() {
    let cluster = Cluster::start("rights").await;
    cluster.behavior.lock().denied.extend(["pods", "leases"]);
    let said = cluster.check(&["--output", "json"]).await;
    assert_eq!(said.code, 1);
    let findings = said.json()["findings"].clone();
    let pods =
        findings.as_array().unwrap().iter().find(|finding| finding["set"].as_str().unwrap().contains("pods"));
    let pods = pods.unwrap();
    assert_eq!(pods["object"], "ServiceAccount wva-system/wva");
    assert_eq!(pods["set"], "it may not list, watch pods in all namespaces");
    assert!(pods["fix"].as_str().unwrap().contains("resources: [pods]\n    verbs: [list, watch]"), "{pods}");
    let leases = findings
        .as_array()
        .unwrap()
        .iter()
        .filter(|finding| finding["set"].as_str().unwrap().contains("leases"));
    assert_eq!(leases.count(), 2);
}

#[tokio::test]
async fn rights_that_the_chart_leaves_out_are_no_errors() {
    let cluster = Cluster::start("optional-rights").await;
    cluster.behavior.lock().denied.extend(["horizontalpodautoscalers", "scaledobjects"]);
    assert_eq!(cluster.found(&[]).await, (vec!["error RightMissing".into(); 2], 1));
    assert_eq!(cluster.found(&["--annotated-autoscalers=false"]).await, (vec![], 0));
    let of_cluster = [
        "apiservices",
        "tokenreviews",
        "subjectaccessreviews",
        "namespaces",
        "extension-apiserver-authentication",
    ];
    let denied = &cluster.behavior;
    denied.lock().denied = of_cluster.into();
    assert_eq!(cluster.found(&["-n", "llm"]).await, (vec!["note NoClusterRights".into()], 0));
    denied.lock().denied.remove("tokenreviews");
    assert!(cluster.found(&["-n", "llm"]).await.0.contains(&"error RightMissing".to_owned()));
}

#[tokio::test]
async fn a_list_that_is_refused_is_a_finding_and_an_essential_one_an_exit_code() {
    let cluster = Cluster::start("refused").await;
    cluster.behavior.lock().refused.insert("nodes");
    assert_eq!(cluster.found(&[]).await, (vec!["note NotChecked".into()], 0));
    cluster.behavior.lock().refused.insert("horizontalpodautoscalers");
    let (found, code) = cluster.found(&[]).await;
    // Whether an autoscaler is missing is not known.
    assert_eq!((found, code), (vec!["warning NotChecked".into(), "note NotChecked".into()], 2));
    let said = cluster.check(&[]).await;
    assert!(said.out.contains("could not list horizontalpodautoscalers: Forbidden (403)"), "{}", said.out);
    let nowhere = wva(&["check", "--kubeconfig", "/nonexistent"]);
    assert_eq!(nowhere.code, 2);
    assert!(
        nowhere.err.contains("give --kubeconfig or --context, or files with --config"),
        "{}",
        nowhere.err
    );
}

#[tokio::test]
async fn the_apiservice_of_another_one_that_is_down_and_a_definition_of_before() {
    let cluster = Cluster::start("apis").await;
    let path = format!("{SERVICES}/{}", apiservice::NAME);
    cluster.objects.put(&path, api_service("wva", "False"));
    let said = cluster.check(&["-o", "json"]).await;
    assert_eq!((reasons(&said), said.code), (vec!["error ApiServiceUnavailable".into()], 1));
    assert!(said.out.contains("FailedDiscoveryCheck: no route to host"), "{}", said.out);
    cluster.objects.put(&path, api_service("keda-metrics", "True"));
    let said = cluster.check(&["-o", "json"]).await;
    assert_eq!(reasons(&said), ["error ApiServiceOfAnother"]);
    assert!(said.out.contains("Service wva-system/keda-metrics"), "{}", said.out);
    cluster.objects.delete(&path);
    assert_eq!(cluster.found(&[]).await.0, ["error ApiServiceMissing"]);
    cluster.objects.put(&path, api_service("wva", "True"));
    cluster.objects.change(DEFINITION, |definition| {
        let spec = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties";
        definition.pointer_mut(spec).and_then(Value::as_object_mut).unwrap().remove("maxReplicas");
    });
    assert_eq!(cluster.found(&[]).await.0, ["warning DefinitionOutdated"]);
    cluster.objects.delete(DEFINITION);
    assert_eq!(cluster.found(&[]).await.0, ["error DefinitionMissing"]);
}

#[tokio::test]
async fn a_scale_target_that_does_not_exist_and_nodes_without_room() {
    let cluster = Cluster::start("room").await;
    let node = |name: &str, gpus: &str| {
        json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": { "name": name, "labels": { "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3" } },
            "spec": {}, "status": {
                "allocatable": { "nvidia.com/gpu": gpus }, "conditions": [{ "type": "Ready", "status": "True" }]
            }
        })
    };
    let room = async |text: &str| {
        let said = cluster.check(&["-o", "json"]).await;
        assert_eq!(reasons(&said), ["warning NoRoomForMaximum", "note MaximaExceedNodes"]);
        assert!(said.out.contains(text), "{}", said.out);
    };
    cluster.objects.put_in("/api/v1/nodes", node("a", "8"));
    assert_eq!(cluster.found(&[]).await.0, Vec::<String>::new());
    cluster.objects.put_in("/api/v1/nodes", node("a", "4"));
    room("maxReplicas 8 with 1 GPU each need 8 H100").await;
    room("there is room for 4 replicas on the 1 node with H100: further pods stay Pending").await;
    let deployment = "/apis/apps/v1/namespaces/llm/deployments/llama";
    let ask = |gpus: u32| {
        cluster.objects.change(deployment, |deployment| {
            deployment["spec"]["template"]["spec"]["containers"][0]["resources"] =
                json!({ "limits": { "nvidia.com/gpu": gpus } });
        });
    };
    ask(3);
    cluster.objects.put_in("/api/v1/nodes", node("b", "5"));
    room("there is room for 2 replicas on the 2 nodes with H100").await;
    ask(6);
    room("a replica with 6 GPUs does not fit on the 2 nodes that it may run on, of which the largest has 5: its pods stay Pending").await;
    cluster.objects.change(deployment, |deployment| {
        deployment["spec"]["template"]["spec"]["nodeSelector"]["zone"] = json!("none");
    });
    room("node selector and required affinity allow none of the 2 nodes with H100: its pods stay Pending")
        .await;
    cluster.objects.delete("/apis/apps/v1/namespaces/llm/deployments/llama");
    assert_eq!(cluster.found(&[]).await.0, ["error TargetNotFound"]);
}

#[tokio::test]
async fn prometheus_its_clock_and_the_series_of_each_model() {
    let cluster = Cluster::start("prometheus").await;
    let url = format!("http://{}", cluster.address);
    let flags = ["--prometheus-url", &url];
    assert_eq!(cluster.found(&flags).await, (vec!["error NoSeries".into()], 1));
    cluster.behavior.lock().series = ALL_SERIES.map(|name| (name, 5.0)).to_vec();
    assert_eq!(cluster.found(&flags).await, (vec![], 0));
    cluster.behavior.lock().skew = 100.0;
    assert!(cluster.found(&flags).await.0.contains(&"error ClockSkew".to_owned()));
    cluster.behavior.lock().skew = 0.0;
    cluster.behavior.lock().series.retain(|(name, _)| !name.contains("generation_tokens"));
    let said = cluster.check(&["-o", "json", "--prometheus-url", &url]).await;
    assert_eq!(reasons(&said), ["warning SeriesMissing"], "{}", said.out);
    cluster.behavior.lock().series = ALL_SERIES.map(|name| (name, 70.0)).to_vec();
    assert_eq!(cluster.found(&flags).await.0, ["warning SeriesStale"]);
    let unreachable = cluster.found(&["--prometheus-url", "http://127.0.0.1:1"]).await;
    assert_eq!(unreachable, (vec!["error PrometheusUnreachable".into()], 1));
}

/// This many variants, each with a model, a workload and an HPA of its own.
fn put_variants(cluster: &Cluster, count: usize) {
    for index in 0..count {
        let name = format!("v{index:04}");
        let mut variant = variant(&name);
        variant["spec"]["modelID"] = json!(format!("org/{name}"));
        cluster.objects.put_in(VARIANTS, variant);
        cluster.objects.put_in(HPAS, hpa(&name));
        cluster.objects.put_in(DEPLOYMENTS, deployment(&name));
    }
}

#[tokio::test]
async fn models_beyond_the_fiftieth_were_not_judged() {
    let cluster = Cluster::start("fifty").await;
    put_variants(&cluster, 59);
    // The first one by name has its series.
    cluster.behavior.lock().series = ALL_SERIES.map(|name| (name, 5.0)).to_vec();
    let said =
        cluster.check(&["--prometheus-url", &format!("http://{}", cluster.address), "-o", "json"]).await;
    assert_eq!((reasons(&said), said.code), (vec!["error NoSeries".to_owned(); 51], 1));
    assert!(said.out.contains("9 further models lack series"), "{}", said.out);
}

#[tokio::test]
async fn a_thousand_variants_take_few_requests() {
    let cluster = Cluster::start("many").await;
    put_variants(&cluster, 1000);
    let began = Instant::now();
    assert_eq!(cluster.found(&[]).await, (vec![], 0));
    // Unoptimised, on a machine with other work; `tests/perf/scale` has the bound.
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    let requests = std::mem::take(&mut cluster.behavior.lock().requests);
    let lists = requests.iter().filter(|request| request.ends_with("/variantautoscalings")).count();
    assert_eq!(lists, 3, "1001 objects in pages of 500");
    assert!(requests.len() < 100, "{}: {requests:#?}", requests.len());
}

/// What is found in files with this text.
fn found_in(text: &str) -> (Vec<String>, i32) {
    let said = wva_with(&["check", "--config", "-", "--output", "json"], text);
    (reasons(&said), said.code)
}

#[test]
fn files_are_checked_before_they_are_applied() {
    let manifest =
        |objects: &[Value]| objects.iter().map(|object| format!("---\n{object}\n")).collect::<String>();
    assert_eq!(found_in(&manifest(&[variant("llama"), hpa("llama")])), (vec![], 0));
    // The HPA of another namespace reads a variant that may be in another file.
    let mut elsewhere = hpa("mixtral");
    elsewhere["metadata"]["namespace"] = json!("prod");
    assert_eq!(found_in(&manifest(&[variant("llama"), hpa("llama"), elsewhere])), (vec![], 0));
    // The variant may be in another file.
    assert_eq!(found_in(&manifest(&[hpa("llama")])), (vec![], 0));
    let mut divided = hpa("llama");
    divided["spec"]["metrics"][0]["external"]["target"]["averageValue"] = json!(2);
    assert_eq!(found_in(&manifest(&[divided])), (vec!["error NumberDivided".into()], 1));
    let config_map = |entry: &str| {
        let metadata = json!({ "name": "wva-saturation-scaling-config", "namespace": "wva-system" });
        json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": { "default": entry } })
    };
    assert_eq!(found_in(&manifest(&[config_map("kvSpareTrigger: 0.2")])), (vec![], 0));
    let (found, code) = found_in(&manifest(&[config_map("kvSpareTrigger: 3")]));
    assert_eq!((found, code), (vec!["error InvalidConfiguration".into()], 1));
    assert_eq!(found_in("global: {default: {analyzer: rate}}\n"), (vec![], 0));
    assert_eq!(found_in("global: {default: {analyser: rate}}\n"), (vec!["error InvalidPolicy".into()], 1));
    assert_eq!(found_in("a: [\n").1, 1);
    assert_eq!(
        found_in("apiVersion: v1\nkind: Secret\nmetadata: {name: x}\n"),
        (vec!["warning NotChecked".into()], 2)
    );
    let twice = manifest(&[variant("llama"), hpa("llama"), hpa("llama")]);
    assert_eq!(found_in(&twice), (vec![], 0), "an object that is applied twice is one");
    // Two of them are for one HPA, to be applied in each other's place.
    let samples = wva(&["check", "--config", concat!(env!("CARGO_MANIFEST_DIR"), "/manifests/samples")]);
    assert!(samples.code == 0 && samples.out.ends_with("0 errors, 0 warnings, 1 note\n"), "{}", samples.out);
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().display().to_string();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let empty = wva(&["check", "--config", &directory]);
    assert!(empty.code == 2 && empty.out.contains("it has nothing that is checked"), "{}", empty.out);
    // Files of others in a directory are not this program's policies.
    write("values.yaml", "global: {}\nlimits: {inventory: false}\nimage: {tag: v1}\n");
    write("template.yaml", "{{ if .Values.x }}\na: {{ .Values.y }}\n{{ end }}\n");
    let pipe = folder.path().join("pipe.yaml");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    write("service.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: x}\n");
    write("hpa.json", &hpa("llama").to_string());
    let mixed = wva(&["check", "--config", &directory]);
    assert!(mixed.code == 0 && mixed.out.ends_with("0 errors, 0 warnings, 0 notes\n"), "{}", mixed.out);
    write("policy.yaml", "global: {default: {analyser: rate}}\n");
    let policy = wva(&["check", "--config", &directory]);
    assert!(policy.code == 1 && policy.out.contains("InvalidPolicy"), "{}", policy.out);
    let missing = wva(&["check", "--config", "/nonexistent.yaml"]);
    assert!(missing.code == 2 && missing.out.contains("file /nonexistent.yaml"), "{}", missing.out);
}

/// What a ScaledObject will be once KEDA calls for it.
#[test]
fn scaled_objects_with_a_model_alone_are_variants() {
    let scaled = |name: &str, metadata: Value| {
        json!({
            "apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject",
            "metadata": { "namespace": "llm", "name": name, "uid": format!("s-{name}") },
            "spec": {
                "scaleTargetRef": { "name": name }, "minReplicaCount": 1, "maxReplicaCount": 8,
                "advanced": { "horizontalPodAutoscalerConfig": { "behavior": { "scaleDown": { "stabilizationWindowSeconds": 0 } } } },
                "triggers": [{ "type": "external-push", "metadata": metadata }]
            }
        })
    };
    let of = |objects: &[Value]| {
        found_in(&objects.iter().map(|object| format!("---\n{object}\n")).collect::<String>())
    };
    let ours = "wva.wva-system.svc:9443";
    let sound = scaled("chat", json!({ "scalerAddress": ours, "modelID": "org/m", "variantCost": "2.5" }));
    assert_eq!(of(std::slice::from_ref(&sound)), (vec![], 0));
    let costly = scaled("chat", json!({ "scalerAddress": ours, "modelID": "org/m", "variantCost": "much" }));
    assert_eq!(of(&[costly]), (vec!["error InvalidConfiguration".into()], 1));
    let fork = scaled("chat", json!({ "scalerAddress": "fork.fork-system.svc:9443", "modelID": "org/m" }));
    assert_eq!(of(&[fork]), (vec!["note ScalerOfAnother".into()], 0));
    let mut taken = variant("chat");
    taken["spec"]["scaleTargetRef"]["name"] = json!("other");
    assert!(of(&[sound.clone(), taken, hpa("other")]).0.contains(&"warning NameTaken".to_owned()));
    let mut decided = variant("llama");
    decided["spec"]["scaleTargetRef"]["name"] = json!("chat");
    assert_eq!(of(&[sound, decided]).0, ["warning TargetDecidedElsewhere"]);
}

/// The policy that a ConfigMap selects decides how an HPA is judged.
#[test]
fn an_hpa_is_judged_by_the_analyzer_that_its_config_map_selects() {
    let mut patient = hpa("llama");
    patient["spec"]["behavior"] = json!({ "scaleDown": { "stabilizationWindowSeconds": 300 } });
    let objects = [variant("llama"), patient];
    let text: String = objects.iter().map(|object| format!("---\n{object}\n")).collect();
    assert_eq!(found_in(&text).0, ["warning RemovalsDelayed"]);
    let metadata = json!({ "name": "wva-saturation-scaling-config", "namespace": "wva-system" });
    let data = json!({ "default": "analyzerName: saturation\n" });
    let selected = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data });
    assert_eq!(found_in(&format!("{text}---\n{selected}\n")).0, Vec::<String>::new());
}
