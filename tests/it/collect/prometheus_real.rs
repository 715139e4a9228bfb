//! A real Prometheus that scrapes real pages. Without the binary (`prometheus` on the PATH, or named by
//! `WVA_TEST_PROMETHEUS`) these tests print that and pass; the other tests of this folder cover the same with recorded answers.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use wiremock::matchers::{method, path};
use wiremock::{Mock, MockServer, ResponseTemplate};
use wva::collect::{PrometheusSettings, PrometheusSource};
use wva::engine::{Collected, MetricSource as _, Scope};
use wva_core::snapshot::Signal;

use super::support::{LOOPBACK, endpoint, provider, scope, settings, values};

const VLLM: &str = r#"# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 3.0
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} NaN
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="m"} 1000.0
# TYPE vllm:inter_token_latency_seconds histogram
vllm:inter_token_latency_seconds_bucket{engine="0",le="+Inf",model_name="m"} 8.0
vllm:inter_token_latency_seconds_count{engine="0",model_name="m"} 8.0
vllm:inter_token_latency_seconds_sum{engine="0",model_name="m"} 0.25
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",num_gpu_blocks="27000",engine="0"} 1.0
# TYPE inference_extension_flow_control_queue_size gauge
inference_extension_flow_control_queue_size{model_name="m",priority="0"} 2
inference_extension_flow_control_queue_size{model_name="m",priority="1"} 5
"#;

#[expect(clippy::disallowed_methods, reason = "a test finds its tools")]
fn binary() -> Option<PathBuf> {
    let named = std::env::var("WVA_TEST_PROMETHEUS").ok().map(PathBuf::from);
    let searched = std::env::var("PATH").unwrap_or_default();
    let on_path = searched.split(':').map(|dir| Path::new(dir).join("prometheus"));
    named.into_iter().chain(on_path).find(|path| path.is_file())
}

/// A Prometheus that scrapes one page as pods of two namespaces, each by two jobs like an HA pair.
struct Prometheus {
    url: String,
    dir: PathBuf,
    process: Child,
    _pods: MockServer,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

impl Prometheus {
    async fn start(test: &str, flags: &[&str]) -> Option<Self> {
        Self::with(test, flags, configuration, VLLM).await
    }

    /// A Prometheus with a configuration for the address of a page.
    async fn with(test: &str, flags: &[&str], configuration: fn(&str) -> String, page: &str) -> Option<Self> {
        let Some(binary) = binary() else {
            println!(
                "no prometheus on the PATH and no WVA_TEST_PROMETHEUS: covered by recorded answers only"
            );
            return None;
        };
        let pods = MockServer::start().await;
        let page = ResponseTemplate::new(200).set_body_raw(page, "text/plain; version=0.0.4");
        Mock::given(method("GET")).and(path("/metrics")).respond_with(page).mount(&pods).await;
        let dir =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("prometheus-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("prometheus.yml"), configuration(&pods.address().to_string())).unwrap();
        let port = std::net::TcpListener::bind((LOOPBACK, 0)).unwrap().local_addr().unwrap().port();
        let process = Command::new(binary)
            .arg(format!("--config.file={}", dir.join("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", dir.join("data").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .args(flags)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Some(Self { url: format!("http://127.0.0.1:{port}"), dir, process, _pods: pods })
    }

    /// The collection in which every series has three samples, with all bad samples until then.
    async fn collect(&self, settings: &PrometheusSettings, scope: &Scope) -> Collected {
        self.collect_series(14, settings, scope).await
    }

    /// The first collection with this number of series of at least three samples each.
    async fn collect_series(&self, least: usize, settings: &PrometheusSettings, scope: &Scope) -> Collected {
        provider();
        let source = PrometheusSource::new(settings).unwrap();
        let mut bad_samples = 0;
        for _ in 0..100 {
            let answer = source.collect(scope).await;
            bad_samples += answer.as_ref().map_or(0, |collected| collected.bad_samples);
            if let Ok(collected) = answer
                && collected.series.len() >= least
                && collected.series.iter().all(|series| series.samples.len() >= 3)
            {
                return Collected { bad_samples, ..collected };
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        panic!("{:?}", source.collect(scope).await);
    }
}

fn configuration(target: &str) -> String {
    let job = |name: &str, namespace: &str| {
        format!(
            "  - job_name: {namespace}-{name}\n    static_configs:\n      - targets: ['{target}']\n        \
             labels: {{namespace: {namespace}, pod: {namespace}-0, replica: {name}}}\n"
        )
    };
    let jobs: String =
        [("a", "one"), ("b", "one"), ("a", "two"), ("b", "two")].map(|(n, ns)| job(n, ns)).concat();
    format!("global: {{scrape_interval: 500ms, scrape_timeout: 500ms}}\nscrape_configs:\n{jobs}")
}

fn fleet() -> Scope {
    let pods = ["one", "two"].map(|ns| endpoint(ns, &format!("{ns}-0"), ([127, 0, 0, 1], 1).into()));
    Scope { endpoints: pods.into(), ..scope(&["one", "two"]) }
}

#[tokio::test]
async fn a_real_prometheus_gives_raw_samples_with_the_times_of_its_scrapes() {
    let Some(prometheus) = Prometheus::start("whole", &[]).await else { return };
    let collected = prometheus.collect(&settings(&prometheus.url), &fleet()).await;
    assert!(collected.gaps.is_empty(), "{:?}", collected.gaps);
    assert!(collected.bad_samples > 0, "the page has a NaN");
    let by_pod = |signal| -> Vec<(String, f64)> {
        values(&collected, signal).into_iter().map(|(pod, values)| (pod, values[0])).collect()
    };
    let both = |value: f64| [("one-0".to_owned(), value), ("two-0".to_owned(), value)];
    assert_eq!(by_pod(Signal::KvUsage), both(0.5));
    assert_eq!(by_pod(Signal::Waiting), both(3.0));
    assert_eq!(by_pod(Signal::KvCapacity), both(432_000.0));
    assert_eq!(by_pod(Signal::InterTokenLatencySum), both(0.25));
    assert_eq!(by_pod(Signal::SchedulerQueueSize), both(7.0));
    assert_eq!(by_pod(Signal::Running), []);
    for series in &collected.series {
        let gaps =
            series.samples.times().windows(2).map(|pair| pair[1].duration_since(pair[0]).as_secs_f64());
        assert!(gaps.into_iter().all(|gap| (0.4..1.6).contains(&gap)), "not one job's scrapes: {series:?}");
    }
}

#[tokio::test]
async fn a_real_prometheus_that_rejects_a_query_for_its_size_is_queried_by_namespace() {
    // Two namespaces × two jobs × nine series × five samples are 180; half of that, and the count of 36, fit.
    // A window of five intervals is what is learned from the answer, so it stays (rounded up: six or seven samples).
    let Some(prometheus) = Prometheus::start("limit", &["--query.max-samples=140"]).await else { return };
    let short = PrometheusSettings { window: Duration::from_millis(2_500), ..settings(&prometheus.url) };
    let collected = prometheus.collect(&short, &fleet()).await;
    assert_eq!(values(&collected, Signal::Waiting).len(), 2);
    assert!(collected.gaps.is_empty(), "{:?}", collected.gaps);
}

/// The same pod in two clusters.
fn two_clusters(target: &str) -> String {
    let job = |cluster: &str| {
        format!(
            "  - job_name: {cluster}\n    static_configs:\n      - targets: ['{target}']\n        \
             labels: {{namespace: one, pod: one-0, cluster: {cluster}}}\n"
        )
    };
    let jobs = job("eu-1") + &job("us-1");
    format!("global: {{scrape_interval: 500ms, scrape_timeout: 500ms}}\nscrape_configs:\n{jobs}")
}

#[tokio::test]
async fn a_real_prometheus_returns_only_the_cluster_that_the_matchers_select() {
    let Some(prometheus) = Prometheus::with("clusters", &[], two_clusters, VLLM).await else { return };
    let pods = vec![endpoint("one", "one-0", ([127, 0, 0, 1], 1).into())];
    let scope = Scope { endpoints: pods, ..scope(&["one"]) };
    let with = |matchers: &[&str]| PrometheusSettings {
        query_matchers: matchers.iter().map(|matcher| (*matcher).to_owned()).collect(),
        ..settings(&prometheus.url)
    };
    prometheus
        .collect_series(7, &with(&[r#"cluster="eu-1""#, r#"cluster!~"us\\-.*",job!="""#]), &scope)
        .await;
    let elsewhere = PrometheusSource::new(&with(&[r#"cluster="eu-2""#])).unwrap();
    assert!(elsewhere.collect(&scope).await.unwrap().series.is_empty());
    let invalid = PrometheusSource::new(&with(&[r#"cluster=~"(""#])).unwrap();
    let error = invalid.collect(&scope).await.unwrap_err();
    assert!(error.message.contains("--query-matcher"), "{error}");
}

/// A page of the tenant `evil` that claims to be that of an idle pod of the tenant `one`.
const FORGED: &str = r#"vllm:num_requests_waiting{engine="0",model_name="m",namespace="one",pod="one-0"} 0
vllm:kv_cache_usage_perc{engine="0",model_name="m",namespace="one",pod="one-0"} 0
inference_extension_flow_control_queue_size{model_name="m",namespace="one",pod="one-0"} 0
"#;

/// The page as that of a pod of `evil`.
fn of_evil(target: &str) -> String {
    format!(
        "global: {{scrape_interval: 500ms, scrape_timeout: 500ms}}\nscrape_configs:\n  - job_name: evil\n    \
         static_configs:\n      - targets: ['{target}']\n        labels: {{namespace: evil, pod: evil-0}}\n"
    )
}

/// The same with `honor_labels`.
fn of_evil_honoured(target: &str) -> String {
    of_evil(target).replace("job_name: evil\n", "job_name: evil\n    honor_labels: true\n")
}

#[tokio::test]
async fn a_real_page_that_names_another_tenants_pod_is_ignored() {
    let Some(prometheus) = Prometheus::with("forged", &[], of_evil, FORGED).await else { return };
    let pods = ["one", "evil"].map(|ns| endpoint(ns, &format!("{ns}-0"), ([127, 0, 0, 1], 1).into()));
    let scope = Scope { endpoints: pods.into(), ..scope(&["one", "evil"]) };
    let collected = prometheus.collect_series(2, &settings(&prometheus.url), &scope).await;
    let namespaces: Vec<&str> = collected.series.iter().map(|series| &*series.labels.namespace).collect();
    assert!(namespaces.iter().all(|namespace| *namespace == "evil"), "{namespaces:?}");
}

#[tokio::test]
async fn with_honor_labels_a_real_page_can_name_another_pod_as_docs_configuration_warns() {
    let Some(prometheus) = Prometheus::with("honoured", &[], of_evil_honoured, FORGED).await else { return };
    let pods = ["one", "evil"].map(|ns| endpoint(ns, &format!("{ns}-0"), ([127, 0, 0, 1], 1).into()));
    let scope = Scope { endpoints: pods.into(), ..scope(&["one", "evil"]) };
    let collected = prometheus.collect_series(2, &settings(&prometheus.url), &scope).await;
    assert!(collected.series.iter().any(|series| &*series.labels.namespace == "one"), "no query can see it");
    let url = format!("{}/api/v1/status/config", prometheus.url);
    let answer = reqwest::get(url).await.unwrap().text().await.unwrap();
    assert!(answer.contains("honor_labels: true"), "but the configuration shows it: {answer}");
}
