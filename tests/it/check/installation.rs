//! Findings about the installation: versions, certificates, rights of options, endpoint pickers, series and nodes.

use serde_json::{Value, json};
use wva::cluster::pki::apiservice;

use super::cluster::{
    ALL_SERIES, Cluster, DEPLOYMENTS, HPAS, VARIANTS, api_service, deployment, hpa, reasons, variant,
};
use crate::api_server::SERVICES;

const POOLS: &str = "/apis/inference.networking.k8s.io/v1/inferencepools";

fn none() -> Vec<String> {
    Vec::new()
}

#[tokio::test]
async fn an_api_server_older_than_the_chart_accepts() {
    let cluster = Cluster::start("version").await;
    cluster.behavior.lock().minor = "26+".into();
    assert_eq!(cluster.found(&[]).await, (vec!["error KubernetesTooOld".into()], 1));
    cluster.behavior.lock().minor = "27+".into();
    assert_eq!(cluster.found(&[]).await, (none(), 0));
}

#[tokio::test]
async fn the_certificate_as_the_api_server_sees_it() {
    let cluster = Cluster::start("certificate").await;
    let path = format!("{SERVICES}/{}", apiservice::NAME);
    let found = async |change: fn(&mut Value)| {
        let mut service = api_service("wva", "True");
        change(&mut service);
        cluster.objects.put(&path, service);
        cluster.found(&[]).await.0
    };
    let skipped = found(|service| service["spec"]["insecureSkipTLSVerify"] = json!(true)).await;
    assert_eq!(skipped, ["warning CertificateNotVerified"]);
    let missing = found(|service| {
        service["spec"]["caBundle"] = Value::Null;
        service["status"]["conditions"][1]["status"] = json!("Unknown");
    });
    assert_eq!(missing.await, ["error CABundleMissing"]);
    let invalid = found(|service| service["status"]["conditions"][1]["status"] = json!("False")).await;
    assert_eq!(invalid, ["error CABundleInvalid"]);
}

#[tokio::test]
async fn the_rights_of_writers_that_have_to_be_asked_for() {
    let cluster = Cluster::start("options").await;
    cluster.behavior.lock().denied.insert("patch pods");
    cluster.behavior.lock().denied.insert("deployments/scale");
    assert_eq!(cluster.found(&[]).await, (none(), 0), "neither is in use");
    let said = cluster.check(&["--wake-directly", "--pod-deletion-cost", "-o", "json"]).await;
    assert_eq!((reasons(&said), said.code), (vec!["error RightMissing".into(); 2], 1));
    for missing in ["it may not get, patch deployments/scale.apps in", "it may not patch pods in"] {
        assert!(said.out.contains(missing), "{}", said.out);
    }
}

/// A variant that may be at zero, with its workload and HPA.
fn put_sleeper(cluster: &Cluster, name: &str) {
    let mut sleeper = variant(name);
    sleeper["spec"]["minReplicas"] = json!(0);
    sleeper["spec"]["modelID"] = json!(format!("org/{name}"));
    cluster.objects.put_in(VARIANTS, sleeper);
    let mut scaled = hpa(name);
    scaled["spec"]["minReplicas"] = json!(0);
    cluster.objects.put_in(HPAS, scaled);
    let mut pods = deployment(name);
    pods["spec"]["template"]["metadata"]["labels"] = json!({ "app": name });
    cluster.objects.put_in(DEPLOYMENTS, pods);
}

fn epp(ready: u32) -> Value {
    let mut epp = deployment("epp");
    epp["spec"]["template"]["metadata"]["labels"] = json!({ "app": "epp" });
    epp["status"]["readyReplicas"] = json!(ready);
    epp
}

#[tokio::test]
async fn a_model_that_may_go_to_zero_and_whose_requests_nobody_would_see() {
    let cluster = Cluster::start("pickers").await;
    put_sleeper(&cluster, "sleeper");
    let flags = ["--scale-to-zero"];
    assert_eq!(cluster.found(&[]).await, (none(), 0), "no model goes to zero");
    let said = cluster.check(&["--scale-to-zero", "-o", "json"]).await;
    assert_eq!(reasons(&said), ["warning NoEndpointPicker"]);
    assert!(said.out.contains("model org/sleeper in namespace llm"), "{}", said.out);
    assert!(said.out.contains("unless Prometheus has the queue"), "{}", said.out);
    let scraping = cluster.check(&["--scale-to-zero", "--source=scrape", "-o", "json"]).await;
    assert!(scraping.out.contains("the model is never put to sleep, and at zero nothing wakes it"));
    assert!(scraping.out.contains("the program reads its pods itself, which a check does not do"));
    let metadata = json!({ "namespace": "llm", "name": "pool" });
    let selector = json!({ "matchLabels": { "app": "sleeper" } });
    let pool = |picker: Value| {
        json!({ "apiVersion": "inference.networking.k8s.io/v1", "kind": "InferencePool", "metadata": metadata,
        "spec": { "selector": selector, "endpointPickerRef": picker } })
    };
    cluster.objects.put_in(POOLS, pool(Value::Null));
    assert_eq!(cluster.found(&flags).await.0, ["warning NoEndpointPicker"]);
    cluster.objects.put_in(POOLS, pool(json!({ "name": "epp" })));
    let said = cluster.check(&["--scale-to-zero", "-o", "json"]).await;
    assert_eq!(reasons(&said), ["warning EndpointPickerNotFound"]);
    assert!(said.out.contains("Service epp, which does not exist"), "{}", said.out);
    cluster.objects.put_in(
        "/api/v1/services",
        json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "namespace": "llm", "name": "epp" },
            "spec": { "selector": { "app": "epp" } } }),
    );
    assert_eq!(cluster.found(&flags).await.0, ["note EndpointPickerNotSeen"]);
    cluster.objects.put_in(DEPLOYMENTS, epp(0));
    assert_eq!(cluster.found(&flags).await.0, ["warning EndpointPickerNotReady"]);
    cluster.objects.put_in(DEPLOYMENTS, epp(1));
    assert_eq!(cluster.found(&flags).await, (none(), 0));
    // Something else wakes the second model.
    put_sleeper(&cluster, "woken");
    assert_eq!(cluster.found(&flags).await.0, ["warning NoEndpointPicker"]);
    let annotate = |object: &mut Value| {
        object["metadata"]["annotations"] = json!({ "wva.llmd.ai/woken-by": "KEDA's HTTP add-on" });
    };
    cluster.objects.change("/apis/llmd.ai/v1alpha1/namespaces/llm/variantautoscalings/woken", annotate);
    assert_eq!(cluster.found(&flags).await, (none(), 0));
    // What may not be listed says nothing.
    put_sleeper(&cluster, "third");
    cluster.behavior.lock().refused.insert("services");
    assert_eq!(cluster.found(&flags).await, (vec!["note NotChecked".into()], 0));
}

#[tokio::test]
async fn with_served_value_targets_only_those_that_are_divided_are_right() {
    let cluster = Cluster::start("value-targets").await;
    cluster.objects.put_in(VARIANTS, variant("mixed"));
    cluster.objects.put_in(DEPLOYMENTS, deployment("mixed"));
    let multiplying = |name: &str, reads: &str| {
        let mut hpa = hpa(name);
        let external = &mut hpa["spec"]["metrics"][0]["external"];
        external["target"] = json!({ "type": "Value", "value": "1" });
        external["metric"]["selector"]["matchLabels"]["variant_name"] = json!(reads);
        hpa
    };
    cluster.objects.put_in(HPAS, multiplying("llama", "llama"));
    cluster.objects.put_in(HPAS, multiplying("mixed", "mixed"));
    assert_eq!(cluster.found(&[]).await.0, ["error TargetTypeMultiplies"; 2]);
    let flags = ["--serve-value-targets"];
    assert_eq!(cluster.found(&flags).await, (none(), 0));
    // Another workload's HPA reads the same number by its average: it is served whole, and the first one multiplies it.
    let mut second = hpa("average");
    second["spec"]["metrics"][0]["external"]["metric"]["selector"]["matchLabels"]["variant_name"] =
        json!("mixed");
    cluster.objects.put_in(HPAS, second);
    let found = cluster.found(&flags).await.0;
    assert!(found.contains(&"error TargetTypeMultiplies".to_owned()), "{found:?}");
    assert_eq!(found.iter().filter(|reason| reason.ends_with("Multiplies")).count(), 1, "{found:?}");
}

#[tokio::test]
async fn a_queue_that_is_missing_answers_with_gaps_and_an_accelerator_without_nodes() {
    let cluster = Cluster::start("series").await;
    let url = format!("http://{}", cluster.address);
    for kind in [VARIANTS, HPAS] {
        let (api, plural) = kind.rsplit_once('/').unwrap();
        let path = format!("{api}/namespaces/llm/{plural}/llama");
        cluster.objects.change(&path, |object| object["spec"]["minReplicas"] = json!(0));
    }
    cluster.behavior.lock().series = ALL_SERIES.map(|name| (name, 5.0)).to_vec();
    let found = cluster.found(&["--prometheus-url", &url, "--scale-to-zero"]).await.0;
    assert_eq!(found, ["warning NoEndpointPicker", "warning SchedulerQueueMissing"]);
    cluster.behavior.lock().warning = Some("a store did not answer");
    let said = cluster.check(&["--prometheus-url", &url, "-o", "json"]).await;
    assert!(reasons(&said).contains(&"warning SeriesIncomplete".to_owned()), "{}", said.out);
    assert!(said.out.contains("a store did not answer"), "{}", said.out);
    let node = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": { "name": "n", "labels": { "nvidia.com/gpu.product": "NVIDIA-L40S" } },
        "status": { "allocatable": { "nvidia.com/gpu": "8" }, "conditions": [{ "type": "Ready", "status": "True" }] }
    });
    cluster.objects.put_in("/api/v1/nodes", node);
    assert_eq!(cluster.found(&[]).await.0, ["warning AcceleratorNotFound"]);
}

#[tokio::test]
async fn a_server_that_metrics_are_passed_on_to_was_not_checked_before_its_apiservice_was_taken_over() {
    let cluster = Cluster::start("fallback").await;
    let path = format!("{SERVICES}/{}", apiservice::NAME);
    let of_keda = |annotations: Value| {
        let mut object = api_service("keda", "True");
        object["metadata"]["annotations"] = annotations;
        object["status"]["conditions"].as_array_mut().unwrap().truncate(1);
        object
    };
    cluster.objects.put(&path, of_keda(json!({})));
    let flags = ["--fallback-apiservice=wva-system/keda", "--fallback-ca=/ca.crt", "--fallback-take-over"];
    let said = cluster.check(&[&flags[..], &["--output=json"]].concat()).await;
    let expected = ["error ApiServiceOfAnother", "error FallbackServiceMissing", "note NotChecked"];
    assert_eq!(reasons(&said), expected, "{}", said.out);
    assert!(said.out.contains("-- /wva check"), "how it is checked whether it answers: {}", said.out);
    let service = |port: u16| {
        json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "namespace": "wva-system", "name": "keda" },
            "spec": { "ports": [{ "port": port }] } })
    };
    cluster.objects.put_in("/api/v1/services", service(6443));
    let said = cluster.check(&[&flags[..], &["--output=json"]].concat()).await;
    assert!(said.out.contains("it has no port 443, but 6443"), "{}", said.out);
    cluster.objects.put_in("/api/v1/services", service(443));
    let found = async |flags: &[&str]| cluster.found(flags).await.0;
    assert_eq!(found(&flags).await, ["error ApiServiceOfAnother", "note NotChecked"]);
    // What the leader says, and what would be refused.
    let mut waiting = of_keda(json!({}));
    let condition = json!({
        "type": "TakenOver", "status": "False", "reason": "FallbackUnavailable", "message": "it did not answer"
    });
    waiting["status"]["conditions"].as_array_mut().unwrap().push(condition);
    cluster.objects.put(&path, waiting.clone());
    let expected = ["error ApiServiceOfAnother", "warning TakeOverWaits", "note NotChecked"];
    assert_eq!(found(&flags).await, expected);
    let own = waiting["status"]["conditions"].as_array_mut().unwrap().last_mut().unwrap();
    (own["status"], own["reason"]) = (json!("True"), json!("TakenFromAnother"));
    cluster.objects.put(&path, waiting);
    let expected = ["error ApiServiceOfAnother", "warning TakenFromAnother", "note NotChecked"];
    assert_eq!(found(&flags).await, expected);
    cluster.objects.put(&path, of_keda(json!({ "cert-manager.io/inject-ca-from": "keda/ca" })));
    let expected = ["error ApiServiceOfAnother", "error TakeOverRefused", "note NotChecked"];
    assert_eq!(found(&flags).await, expected);
    let expected = ["error ApiServiceOfAnother", "warning TakeOverRefused", "note NotChecked"];
    assert_eq!(found(&flags[..2]).await, expected, "not asked for yet");
    cluster.objects.put(&path, of_keda(json!({})));
    cluster.behavior.lock().denied.insert("get *");
    let said = cluster.check(&[&flags[..], &["--output=json"]].concat()).await;
    assert!(said.out.contains("it may not get *.external.metrics.k8s.io in the cluster"), "{}", said.out);
}
