//! An API server and a Prometheus on one socket, and an installation without a fault in them.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

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
use crate::record::material::{Said, wva};

pub(super) const VARIANTS: &str = "/apis/llmd.ai/v1alpha1/variantautoscalings";
pub(super) const HPAS: &str = "/apis/autoscaling/v2/horizontalpodautoscalers";
pub(super) const DEPLOYMENTS: &str = "/apis/apps/v1/deployments";
pub(super) const DEFINITION: &str =
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/variantautoscalings.llmd.ai";

/// The series that a model needs.
pub(super) const ALL_SERIES: [&str; 15] = [
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

/// An API server, and a Prometheus, on one socket.
pub(super) struct Cluster {
    pub(super) objects: ApiServer,
    pub(super) behavior: Arc<Mutex<Behavior>>,
    pub(super) address: SocketAddr,
    kubeconfig: PathBuf,
    _serving: JoinSet<()>,
}

/// What a test makes of the two.
#[derive(Default)]
pub(super) struct Behavior {
    /// Resources, also with their verb or subresource, and names of objects, of which every access is denied.
    pub(super) denied: BTreeSet<&'static str>,
    /// Resources that may not be listed.
    pub(super) refused: BTreeSet<&'static str>,
    /// Requests that were answered.
    pub(super) requests: Vec<String>,
    /// Seconds by which Prometheus's clock is ahead.
    pub(super) skew: f64,
    /// Names of the series that it has, and their age in seconds.
    pub(super) series: Vec<(&'static str, f64)>,
    /// A warning of its answers.
    pub(super) warning: Option<&'static str>,
    /// The minor version of the API server; 36 if empty.
    pub(super) minor: String,
}

#[derive(Clone)]
struct Handler {
    objects: ApiServer,
    behavior: Arc<Mutex<Behavior>>,
}

impl Cluster {
    /// An installation without a fault, with one variant and its HPA.
    pub(super) async fn start(name: &str) -> Self {
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

    pub(super) async fn check(&self, words: &[&str]) -> Said {
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
    pub(super) async fn found(&self, words: &[&str]) -> (Vec<String>, i32) {
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
pub(super) fn reasons(said: &Said) -> Vec<String> {
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
        let minor = handler.behavior.lock().minor.clone();
        let minor = if minor.is_empty() { "36".to_owned() } else { minor };
        return ok(&json!({ "major": "1", "minor": minor, "gitVersion": format!("v1.{minor}.0") }));
    }
    if path == "/api" || path == "/apis" {
        return ok(&discovery(&path));
    }
    if path.ends_with("accessreviews") {
        let mut review = body(request).await;
        let attributes = &review["spec"]["resourceAttributes"];
        let is_denied = {
            let denied = &handler.behavior.lock().denied;
            let text = |part: &str| attributes[part].as_str().unwrap_or_default();
            let verb = format!("{} {}", text("verb"), text("resource"));
            let whole = format!("{}/{}", text("resource"), text("subresource"));
            [text("resource"), text("name"), &verb, &whole].iter().any(|own| denied.contains(own))
        };
        review["status"] = json!({ "allowed": !is_denied });
        return ok(&review);
    }
    if path == "/api/v1/labels" {
        return ok(&json!({ "status": "success", "data": ["namespace", "pod"] }));
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

/// Aggregated discovery: pods.
fn discovery(path: &str) -> Value {
    let kind = |kind: &str| json!({ "group": "", "version": "v1", "kind": kind });
    let resource = |name: &str, own: &str, scope: &str| json!({ "resource": name, "responseKind": kind(own), "scope": scope, "singularResource": own.to_lowercase(), "verbs": ["list"] });
    let resources = [resource("pods", "Pod", "Namespaced"), resource("namespaces", "Namespace", "Cluster")];
    let core = json!({ "metadata": {}, "versions": [{ "version": "v1", "resources": resources }] });
    let items = if path == "/api" { vec![core] } else { Vec::new() };
    json!({ "kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items })
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
    let (kind, result) = if form.contains("requests_total") {
        // A series of a rule, with the labels that it asks about.
        ("vector", json!([{ "metric": { "__name__": "requests_total", "__has": "1" }, "value": [now, "1"] }]))
    } else if form.contains("query=vector") {
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
    let warnings: Vec<&str> = behavior.warning.into_iter().collect();
    let data = json!({ "resultType": kind, "result": result });
    ok(&json!({ "status": "success", "data": data, "warnings": warnings }))
}

pub(super) fn api_service(service: &str, available: &str) -> Value {
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

pub(super) fn variant(name: &str) -> Value {
    json!({
        "apiVersion": "llmd.ai/v1alpha1", "kind": "VariantAutoscaling",
        "metadata": { "namespace": "llm", "name": name, "uid": format!("u-{name}") },
        "spec": {
            "scaleTargetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": name }, "modelID": "org/m",
            "variantCost": "10.0", "minReplicas": 1, "maxReplicas": 8
        }
    })
}

pub(super) fn hpa(name: &str) -> Value {
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

pub(super) fn deployment(name: &str) -> Value {
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
