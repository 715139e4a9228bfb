//! `wva check` as people and CI run it: the real binary against an API server and a Prometheus on sockets, and on files.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use http::{Method, Request, Response};
use http_body_util::BodyExt;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use wva::cluster::crd::crd_yaml;
use wva::cluster::pki::apiservice;

use crate::api_server::{ApiServer, SERVICES, status};
use crate::record::material::{Said, wva, wva_with};

const VARIANTS: &str = "/apis/llmd.ai/v1alpha1/variantautoscalings";
const HPAS: &str = "/apis/autoscaling/v2/horizontalpodautoscalers";
const DEPLOYMENTS: &str = "/apis/apps/v1/deployments";
const DEFINITION: &str =
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/variantautoscalings.llmd.ai";

/// An API server, and a Prometheus, on one socket.
struct Cluster {
    objects: ApiServer,
    behavior: Arc<Mutex<Behavior>>,
    address: SocketAddr,
    kubeconfig: PathBuf,
    _serving: JoinSet<()>,
}

/// What a test makes of the two.
#[derive(Default)]
struct Behavior {
    /// Resources of which every access is denied.
    denied: BTreeSet<&'static str>,
    /// Resources that may not be listed.
    refused: BTreeSet<&'static str>,
    /// Requests that were answered.
    requests: Vec<String>,
    /// Seconds by which Prometheus's clock is ahead.
    skew: f64,
    /// Names of the series that it has, and their age in seconds.
    series: Vec<(&'static str, f64)>,
}

#[derive(Clone)]
struct Handler {
    objects: ApiServer,
    behavior: Arc<Mutex<Behavior>>,
}

impl Cluster {
    /// An installation without a fault, with one variant and its HPA.
    async fn start(name: &str) -> Self {
        let objects = ApiServer::new();
        let definition: Value = serde_saphyr::from_str(&crd_yaml().unwrap()).unwrap();
        objects.put(DEFINITION, definition);
        objects.put(&format!("{SERVICES}/{}", apiservice::NAME), api_service("wva", "True"));
        objects.put(
            "/api/v1/namespaces/wva-system/serviceaccounts/wva",
            json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "wva", "namespace": "wva-system" } }),
        );
        objects.put_in(VARIANTS, variant("llama"));
        objects.put_in(HPAS, hpa("llama"));
        objects.put_in(DEPLOYMENTS, deployment("llama"));
        let behavior = Arc::new(Mutex::new(Behavior::default()));
        let handler = Handler { objects: objects.clone(), behavior: behavior.clone() };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            axum::serve(listener, Router::new().fallback(answer).with_state(handler)).await.unwrap();
        });
        let kubeconfig = std::env::temp_dir().join(format!("wva-check-{name}-{}.yaml", std::process::id()));
        let text = format!(
            "{{current-context: c, contexts: [{{name: c, context: {{cluster: c, user: u}}}}],\n\
             clusters: [{{name: c, cluster: {{server: 'http://{address}'}}}}], users: [{{name: u, user: {{}}}}]}}"
        );
        std::fs::write(&kubeconfig, text).unwrap();
        Self { objects, behavior, address, kubeconfig, _serving: serving }
    }

    async fn check(&self, words: &[&str]) -> Said {
        let kubeconfig = self.kubeconfig.to_str().unwrap().to_owned();
        let words: Vec<String> = ["check", "--kubeconfig", &kubeconfig]
            .iter()
            .chain(words)
            .map(|word| (*word).to_owned())
            .collect();
        let run = move || wva(&words.iter().map(String::as_str).collect::<Vec<_>>());
        tokio::task::spawn_blocking(run).await.unwrap()
    }

    /// The reasons of all findings but those of the checks that a test does not enable, and the exit code.
    async fn found(&self, words: &[&str]) -> (Vec<String>, i32) {
        let words: Vec<&str> = words.iter().copied().chain(["--output", "json"]).collect();
        let said = self.check(&words).await;
        (reasons(&said), said.code)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.kubeconfig);
    }
}

/// Severity and reason of each finding, without the note that Prometheus was not given.
fn reasons(said: &Said) -> Vec<String> {
    let document = said.json();
    let findings = document["findings"].as_array().unwrap().iter();
    let findings =
        findings.filter(|finding| !(finding["reason"] == "NotChecked" && finding["object"] == "Prometheus"));
    findings
        .map(|finding| {
            for field in ["object", "set", "effect", "fix"] {
                assert!(!finding[field].as_str().unwrap().is_empty(), "{finding}");
            }
            format!("{} {}", finding["severity"].as_str().unwrap(), finding["reason"].as_str().unwrap())
        })
        .collect()
}

async fn answer(State(handler): State<Handler>, request: Request<Body>) -> Response<Body> {
    let (path, query) =
        (request.uri().path().to_owned(), request.uri().query().unwrap_or_default().to_owned());
    handler.behavior.lock().requests.push(format!("{} {path}", request.method()));
    if path == "/version" {
        return ok(&json!({ "major": "1", "minor": "36", "gitVersion": "v1.36.0" }));
    }
    if path.ends_with("accessreviews") {
        let mut review = body(request).await;
        let resource =
            review["spec"]["resourceAttributes"]["resource"].as_str().unwrap_or_default().to_owned();
        let is_denied = handler.behavior.lock().denied.iter().any(|denied| *denied == resource);
        review["status"] = json!({ "allowed": !is_denied });
        return ok(&review);
    }
    if path == "/api/v1/query" {
        let text = request.into_body().collect().await.unwrap().to_bytes();
        return prometheus(&handler.behavior.lock(), std::str::from_utf8(&text).unwrap());
    }
    let plural = path.rsplit('/').next().unwrap_or_default();
    if request.method() == Method::GET && handler.behavior.lock().refused.contains(plural) {
        let (code, refusal) = status(403, "Forbidden");
        return Response::builder().status(code).body(Body::from(refusal.to_string())).unwrap();
    }
    let answer = handler.objects.answer(request).await;
    if query.contains("limit=") { page(answer, &query).await } else { answer }
}

async fn body(request: Request<Body>) -> Value {
    serde_json::from_slice(&request.into_body().collect().await.unwrap().to_bytes()).unwrap()
}

fn ok(value: &Value) -> Response<Body> {
    Response::new(Body::from(value.to_string()))
}

/// The page of a list that is requested.
async fn page(answer: Response<Body>, query: &str) -> Response<Body> {
    let (head, body) = answer.into_parts();
    let mut list: Value = serde_json::from_slice(&body.collect().await.unwrap().to_bytes()).unwrap();
    let number = |name: &str| {
        query.split('&').find_map(|part| part.strip_prefix(name)).map(|text| text.parse::<usize>().unwrap())
    };
    let (limit, from) = (number("limit=").unwrap(), number("continue=").unwrap_or(0));
    if let Some(items) = list["items"].as_array().cloned() {
        let more = items.len() > from + limit;
        list["items"] = items.into_iter().skip(from).take(limit).collect();
        if more {
            list["metadata"]["continue"] = json!((from + limit).to_string());
        }
    }
    Response::from_parts(head, Body::from(list.to_string()))
}

fn prometheus(behavior: &Behavior, form: &str) -> Response<Body> {
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs_f64() + behavior.skew;
    let (kind, result) = if form.contains("query=vector") {
        ("vector", json!([{ "metric": {}, "value": [now, now.to_string()] }]))
    } else if form.contains("query=count") {
        ("vector", json!([{ "metric": { "namespace": "llm" }, "value": [now, "4"] }]))
    } else {
        let series = |(name, age): &(&str, f64)| {
            let metric = json!({
                "__name__": name, "namespace": "llm", "pod": "llama-0", "model_name": "org/m", "instance": "10.0.0.1:8000"
            });
            json!({ "metric": metric, "values": [[now - age - 15.0, "1"], [now - age, "2"]] })
        };
        ("matrix", behavior.series.iter().map(series).collect())
    };
    ok(&json!({ "status": "success", "data": { "resultType": kind, "result": result } }))
}

fn api_service(service: &str, available: &str) -> Value {
    json!({
        "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
        "metadata": { "name": apiservice::NAME, "uid": "u" },
        "spec": {
            "group": "external.metrics.k8s.io", "version": "v1beta1", "versionPriority": 100,
            "groupPriorityMinimum": 100, "caBundle": "QQ==", "service": { "namespace": "wva-system", "name": service }
        },
        "status": { "conditions": [
            { "type": "Available", "status": available, "reason": "FailedDiscoveryCheck", "message": "no route to host" },
            { "type": "CABundleVerified", "status": "True" }
        ] }
    })
}

fn variant(name: &str) -> Value {
    json!({
        "apiVersion": "llmd.ai/v1alpha1", "kind": "VariantAutoscaling",
        "metadata": { "namespace": "llm", "name": name, "uid": format!("u-{name}") },
        "spec": {
            "scaleTargetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": name }, "modelID": "org/m",
            "variantCost": "10.0", "minReplicas": 1, "maxReplicas": 8
        }
    })
}

fn hpa(name: &str) -> Value {
    json!({
        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
        "metadata": { "namespace": "llm", "name": name, "uid": format!("h-{name}") },
        "spec": {
            "scaleTargetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": name },
            "minReplicas": 1, "maxReplicas": 8,
            "behavior": { "scaleDown": { "stabilizationWindowSeconds": 0 } },
            "metrics": [{ "type": "External", "external": {
                "metric": { "name": "wva_desired_replicas", "selector": { "matchLabels": { "variant_name": name } } },
                "target": { "type": "AverageValue", "averageValue": "1" }
            } }]
        }
    })
}

fn deployment(name: &str) -> Value {
    let container = json!({
        "name": "vllm", "image": "vllm/vllm-openai", "lifecycle": { "preStop": { "sleep": { "seconds": 15 } } },
        "resources": { "limits": { "nvidia.com/gpu": "1" } }
    });
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": { "namespace": "llm", "name": name, "uid": format!("d-{name}") },
        "spec": { "replicas": 2, "selector": {}, "template": { "metadata": {}, "spec": {
            "terminationGracePeriodSeconds": 120, "containers": [container],
            "nodeSelector": { "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3" }
        } } },
        "status": { "replicas": 2, "readyReplicas": 2 }
    })
}

#[tokio::test]
async fn an_installation_without_a_fault_has_no_findings() {
    let cluster = Cluster::start("sound").await;
    assert_eq!(cluster.found(&[]).await, (vec![], 0));
    let said = cluster.check(&[]).await;
    assert!(said.out.ends_with("0 errors, 0 warnings, 1 note\n"), "{}", said.out);
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
    let node = |gpus: &str| {
        json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": { "name": "n", "labels": { "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3" } },
            "spec": {}, "status": {
                "allocatable": { "nvidia.com/gpu": gpus }, "conditions": [{ "type": "Ready", "status": "True" }]
            }
        })
    };
    cluster.objects.put_in("/api/v1/nodes", node("8"));
    assert_eq!(cluster.found(&[]).await.0, Vec::<String>::new());
    cluster.objects.put_in("/api/v1/nodes", node("4"));
    let said = cluster.check(&["-o", "json"]).await;
    assert_eq!(reasons(&said), ["warning NoRoomForMaximum", "note MaximaExceedNodes"]);
    assert!(said.out.contains("maxReplicas 8 with 1 GPUs each need 8 H100"), "{}", said.out);
    cluster.objects.delete("/apis/apps/v1/namespaces/llm/deployments/llama");
    assert_eq!(cluster.found(&[]).await.0, ["error TargetNotFound"]);
}

#[tokio::test]
async fn prometheus_its_clock_and_the_series_of_each_model() {
    let cluster = Cluster::start("prometheus").await;
    let url = format!("http://{}", cluster.address);
    let flags = ["--prometheus-url", &url];
    assert_eq!(cluster.found(&flags).await, (vec!["error NoSeries".into()], 1));
    let all = [
        "vllm:kv_cache_usage_perc",
        "vllm:num_requests_waiting",
        "vllm:num_requests_running",
        "vllm:cache_config_info",
        "vllm:prompt_tokens_total",
        "vllm:generation_tokens_total",
        "vllm:inter_token_latency_seconds_sum",
        "vllm:inter_token_latency_seconds_count",
        "vllm:time_to_first_token_seconds_sum",
        "vllm:time_to_first_token_seconds_count",
        "vllm:request_prompt_tokens_sum",
        "vllm:request_prompt_tokens_count",
        "vllm:request_generation_tokens_sum",
        "vllm:request_generation_tokens_count",
        "vllm:iteration_tokens_total_count",
    ];
    cluster.behavior.lock().series = all.map(|name| (name, 5.0)).to_vec();
    assert_eq!(cluster.found(&flags).await, (vec![], 0));
    cluster.behavior.lock().skew = 100.0;
    assert!(cluster.found(&flags).await.0.contains(&"error ClockSkew".to_owned()));
    cluster.behavior.lock().skew = 0.0;
    cluster.behavior.lock().series.retain(|(name, _)| !name.contains("generation_tokens"));
    let said = cluster.check(&["-o", "json", "--prometheus-url", &url]).await;
    assert_eq!(reasons(&said), ["warning SeriesMissing"], "{}", said.out);
    cluster.behavior.lock().series = all.map(|name| (name, 70.0)).to_vec();
    assert_eq!(cluster.found(&flags).await.0, ["warning SeriesStale"]);
    let unreachable = cluster.found(&["--prometheus-url", "http://127.0.0.1:1"]).await;
    assert_eq!(unreachable, (vec!["error PrometheusUnreachable".into()], 1));
}

#[tokio::test]
async fn a_thousand_variants_take_few_requests() {
    let cluster = Cluster::start("many").await;
    for index in 0..1000 {
        let name = format!("v{index:04}");
        let mut variant = variant(&name);
        variant["spec"]["modelID"] = json!(format!("org/{name}"));
        cluster.objects.put_in(VARIANTS, variant);
        cluster.objects.put_in(HPAS, hpa(&name));
        cluster.objects.put_in(DEPLOYMENTS, deployment(&name));
    }
    let began = Instant::now();
    assert_eq!(cluster.found(&[]).await, (vec![], 0));
    // Unoptimised, on a machine with other work.
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
    let missing = wva(&["check", "--config", "/nonexistent.yaml"]);
    assert!(missing.code == 2 && missing.out.contains("file /nonexistent.yaml"), "{}", missing.out);
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
