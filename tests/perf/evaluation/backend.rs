//! A fake cluster and a fake Prometheus over plain HTTP on loopback: the API server lists and keeps watches open, Prometheus answers
//! with gzip. All data is of one time.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// Seconds between two samples of a series.
const SCRAPE_INTERVAL_S: i64 = 15;

/// The series of the reference figures of Prometheus.
const REFERENCE_NAMES: [&str; 6] = [
    "vllm:kv_cache_usage_perc",
    "vllm:num_requests_waiting",
    "vllm:num_requests_running",
    "vllm:time_to_first_token_seconds_count",
    "vllm:request_generation_tokens_count",
    "vllm:request_prompt_tokens_count",
];

/// The other series that wva reads of a vLLM pod.
const FURTHER_NAMES: [&str; 10] = [
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:inter_token_latency_seconds_sum",
    "vllm:inter_token_latency_seconds_count",
    "vllm:time_to_first_token_seconds_sum",
    "vllm:request_generation_tokens_sum",
    "vllm:request_prompt_tokens_sum",
    "vllm:prefix_cache_hits_total",
    "vllm:prefix_cache_queries_total",
    "vllm:cache_config_info",
];

/// The time of all data.
pub(crate) fn timestamp() -> anyhow::Result<Timestamp> {
    Ok("2026-11-21T12:00:00Z".parse()?)
}

/// Names and window in milliseconds.
type QueryKey = (Vec<&'static str>, i64);

struct Backend {
    variants: usize,
    names: Vec<&'static str>,
    now: Timestamp,
    /// Answers by query, because the same queries are repeated.
    answers: Mutex<HashMap<QueryKey, Vec<u8>>>,
}

type Shared = State<Arc<Backend>>;

/// Serves on a free port, prints the URL, and ends with the parent process.
pub(crate) async fn serve(variants: usize, all_names: bool) -> anyhow::Result<()> {
    let mut names = REFERENCE_NAMES.to_vec();
    names.extend(FURTHER_NAMES.iter().filter(|_| all_names));
    let backend = Backend { variants, names, now: timestamp()?, answers: Mutex::default() };
    let routes = Router::new()
        .route("/api/v1/query", post(query))
        .route("/api/v1/pods", get(|state, query| list(Path("pods".into()), state, query)))
        .route("/api/v1/namespaces", get(|state, query| list(Path("namespaces".into()), state, query)))
        .route("/apis/apps/v1/{plural}", get(list))
        .route("/apis/llmd.ai/v1alpha1/{plural}", get(list))
        .with_state(Arc::new(backend));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    super::print_line(&format!("http://{}", listener.local_addr()?));
    let parent_gone = async {
        drop(tokio::task::spawn_blocking(|| std::io::stdin().read(&mut [0; 1])).await);
    };
    axum::serve(listener, routes).with_graceful_shutdown(parent_gone).await?;
    Ok(())
}

/// Reads the answer of a query with a bare client.
pub(crate) async fn fetch(url: &str) -> anyhow::Result<usize> {
    let query = format!("{{__name__=~\"{}\"}}[120000ms]", REFERENCE_NAMES.join("|"));
    let form =
        reqwest::Url::parse_with_params(url, [("query", query)])?.query().unwrap_or_default().to_owned();
    let client = reqwest::Client::builder().no_proxy().tls_certs_only([]).gzip(true).build()?;
    let request = client.post(format!("{url}/api/v1/query")).body(form);
    let mut answer = request.header(CONTENT_TYPE, "application/x-www-form-urlencoded").send().await?;
    let mut bytes = 0;
    while let Some(chunk) = answer.chunk().await? {
        bytes += chunk.len();
    }
    Ok(bytes)
}

async fn query(State(backend): Shared, form: String) -> Response {
    let url = format!("http://x/?{form}");
    let url = reqwest::Url::parse(&url);
    let promql = url.ok().and_then(|url| {
        url.query_pairs().find(|(key, _)| key == "query").map(|(_, value)| value.into_owned())
    });
    let promql = promql.unwrap_or_default();
    let names: Vec<_> = backend.names.iter().copied().filter(|name| promql.contains(name)).collect();
    let headers = [(CONTENT_TYPE, "application/json"), (CONTENT_ENCODING, "gzip")];
    if promql.contains("count by") {
        let series = (2 * backend.variants * names.len()).to_string();
        let row = json!({"metric": {"namespace": "llm"}, "value": [0, series]});
        let count = json!({"status": "success", "data": {"resultType": "vector", "result": [row]}});
        return (headers, zipped(&count.to_string())).into_response();
    }
    let window = promql.rsplit_once('[').and_then(|(_, window)| window.strip_suffix("ms]"));
    let window: i64 = window.and_then(|window| window.parse().ok()).unwrap_or(60_000);
    let answer = backend.answers.lock().ok().map(|mut answers| {
        let make = || zipped(&backend.samples(&names, window));
        answers.entry((names.clone(), window)).or_insert_with(make).clone()
    });
    (headers, answer.unwrap_or_default()).into_response()
}

fn zipped(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    let written = encoder.write_all(text.as_bytes());
    written.and_then(|()| encoder.finish()).unwrap_or_default()
}

impl Backend {
    /// The answer of Prometheus for these names: the series of all pods with their samples in the window.
    fn samples(&self, names: &[&str], window: i64) -> String {
        let mut text = String::from(r#"{"status":"success","data":{"resultType":"matrix","result":["#);
        let mut separator = "";
        for name in names {
            for pod in 0..2 * self.variants {
                text.push_str(separator);
                separator = ",";
                self.write_series(&mut text, name, pod, window);
            }
        }
        text.push_str("]}}");
        text
    }

    fn write_series(&self, text: &mut String, name: &str, pod: usize, window: i64) {
        let ip = ip(pod);
        let model = pod / 2;
        let pod_name = pod_name(pod);
        let config = if name == "vllm:cache_config_info" {
            r#""block_size":"16","cache_dtype":"auto","num_gpu_blocks":"27000","#
        } else {
            ""
        };
        let _ = write!(
            text,
            r#"{{"metric":{{"__name__":"{name}",{config}"container":"vllm","endpoint":"http","engine":"0","instance":"{ip}:8000","job":"llm/vllm","model_name":"v-{model}","namespace":"llm","node":"gpu-{}","pod":"{pod_name}"}},"values":["#,
            pod % 500,
        );
        // Scrapes are spread over the interval.
        let newest = 1000 + (pod as i64 * 7919) % (SCRAPE_INTERVAL_S * 1000);
        let count = (window - newest) / (SCRAPE_INTERVAL_S * 1000);
        for back in (0..=count).rev() {
            let at = self.now - SignedDuration::from_millis(newest + back * SCRAPE_INTERVAL_S * 1000);
            let value = value(name, pod, back);
            let comma = if back == 0 { "" } else { "," };
            let _ = write!(text, r#"[{:.3},"{value}"]{comma}"#, at.as_millisecond() as f64 / 1e3);
        }
        text.push_str("]}");
    }
}

fn value(name: &str, pod: usize, back: i64) -> String {
    match name {
        "vllm:kv_cache_usage_perc" => format!("{}", ((pod * 31 + 17 * back as usize) % 79) as f64 / 97.0),
        "vllm:num_requests_waiting" => format!("{}", (pod + back as usize).is_multiple_of(5) as u8),
        "vllm:num_requests_running" => format!("{}", (pod + 3 * back as usize) % 23),
        "vllm:cache_config_info" => "1".into(),
        _ => format!("{}", 100_000 + pod as i64 * 7 - back * 11),
    }
}

fn ip(pod: usize) -> Ipv4Addr {
    let [_, b, c, d] = u32::try_from(pod).unwrap_or_default().to_be_bytes();
    Ipv4Addr::new(10, b, c, d)
}

/// The name that the example `exporter` uses.
fn pod_name(pod: usize) -> String {
    format!("v-{}-{}", pod / 2, pod % 2)
}

/// A list in pages, or a watch without events.
async fn list(
    Path(plural): Path<String>,
    State(backend): Shared,
    Query(parameters): Query<HashMap<String, String>>,
) -> Response {
    let number = |key: &str| parameters.get(key).and_then(|text| text.parse::<usize>().ok());
    if parameters.get("watch").is_some_and(|watch| watch == "true" || watch == "1") {
        return Body::from_stream(futures::stream::pending::<Result<String, std::io::Error>>())
            .into_response();
    }
    let total = match plural.as_str() {
        "pods" => 2 * backend.variants,
        "namespaces" => 0,
        _ => backend.variants,
    };
    let from = number("continue").unwrap_or_default();
    let to = number("limit").map_or(total, |limit| total.min(from + limit));
    let items: Option<Vec<Value>> = (from..to).map(|index| object(&plural, index)).collect();
    let Some(items) = items else { return http::StatusCode::NOT_FOUND.into_response() };
    let next = if to < total { to.to_string() } else { String::new() };
    let (kind, version) = kind(&plural);
    let metadata = json!({"resourceVersion": "1000", "continue": next});
    let list =
        json!({"apiVersion": version, "kind": format!("{kind}List"), "metadata": metadata, "items": items});
    ([(CONTENT_TYPE, "application/json")], list.to_string()).into_response()
}

fn kind(plural: &str) -> (&'static str, &'static str) {
    match plural {
        "pods" => ("Pod", "v1"),
        "deployments" => ("Deployment", "apps/v1"),
        "replicasets" => ("ReplicaSet", "apps/v1"),
        "namespaces" => ("Namespace", "v1"),
        _ => ("VariantAutoscaling", "llmd.ai/v1alpha1"),
    }
}

/// An object of realistic size: most of its bytes are managed fields.
fn object(plural: &str, index: usize) -> Option<Value> {
    let (kind, version) = kind(plural);
    let fields: serde_json::Map<_, _> =
        (0..40).map(|field| (format!("f:field-{field}"), json!({"f:value": {}}))).collect();
    let managed = json!([{"manager": "kube-controller-manager", "operation": "Update", "fieldsV1": fields}]);
    let uid = format!("00000000-{plural:.4}-0000-0000-{index:012}");
    let mut metadata = json!({
        "namespace": "llm", "name": format!("v-{index}"), "uid": uid, "resourceVersion": "1000", "generation": 1,
        "creationTimestamp": "2026-11-21T10:00:00Z", "managedFields": managed, "labels": {"app": "vllm"},
    });
    let owner = |kind: &str, plural: &str, index: usize| {
        let uid = format!("00000000-{plural:.4}-0000-0000-{index:012}");
        json!([{"apiVersion": "apps/v1", "kind": kind, "name": format!("v-{index}"), "uid": uid, "controller": true}])
    };
    let containers =
        json!([{"name": "vllm", "image": "vllm", "ports": [{"name": "http", "containerPort": 8000}]}]);
    let template = json!({"metadata": {"labels": {"app": "vllm"}}, "spec": {"containers": containers,
        "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}}});
    let (spec, status) = match plural {
        "pods" => {
            metadata["name"] = json!(pod_name(index));
            metadata["ownerReferences"] = owner("ReplicaSet", "replicasets", index / 2);
            let ready = |type_: &str| json!({"type": type_, "status": "True", "lastTransitionTime": "2026-11-21T10:01:00Z"});
            let conditions: Vec<_> =
                ["PodScheduled", "Initialized", "ContainersReady", "Ready"].map(ready).into();
            let status = json!({"phase": "Running", "podIP": ip(index), "conditions": conditions});
            (json!({"nodeName": "gpu-1", "containers": containers}), status)
        }
        "deployments" => {
            let status = json!({"replicas": 2, "readyReplicas": 2});
            (json!({"replicas": 2, "template": template}), status)
        }
        "replicasets" => {
            metadata["ownerReferences"] = owner("Deployment", "deployments", index);
            (json!({"replicas": 2, "template": template}), json!({"replicas": 2}))
        }
        "variantautoscalings" => {
            let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": format!("v-{index}")});
            let spec =
                json!({"scaleTargetRef": target, "modelID": format!("v-{index}"), "variantCost": "10.0"});
            (spec, json!({}))
        }
        _ => return None,
    };
    Some(json!({"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec, "status": status}))
}
