//! External metrics by the rules of prometheus-adapter, as an HPA reads them: the file, the lists of series, the queries, and the answers.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::{BoxFuture, join_all};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use wiremock::matchers::{body_string_contains, method};
use wiremock::{Mock, MockServer, Request, ResponseTemplate};
use wva::collect::{PrometheusApi, PrometheusSettings};
use wva::engine::{Clock, SystemClock};
use wva::rules::{AdapterRules, ListedObject, ObjectApi, ObjectKind, RuleSettings, Selection};
use wva::serve::RuleMetrics;
use wva::telemetry::RuleMetricFamilies;

use super::client::Answer;
use super::path;
use super::test_server::TestServer;

const FILE: &str = r#"
externalRules:
- seriesQuery: '{__name__=~"^queue_.*",namespace!=""}'
  resources: {template: <<.Resource>>}
  name: {matches: "^(.*)_total$", as: "${1}_rate"}
  metricsQuery: sum(rate(<<.Series>>{<<.LabelMatchers>>}[2m])) by (queue)
- seriesQuery: Orders
  resources: {namespaced: false}
  metricsQuery: max(<<.Series>>{<<.LabelMatchers>>})
- seriesQuery: wva_desired_replicas
  metricsQuery: wva_desired_replicas * 100
"#;

pub(super) struct Fixture {
    pub(super) server: TestServer,
    pub(super) prometheus: MockServer,
    pub(super) rules: Arc<AdapterRules>,
    pub(super) objects: Arc<FakeObjects>,
    directory: TempDir,
    _following: JoinSet<()>,
}

/// An API server with pods and a few other objects.
#[derive(Default)]
pub(super) struct FakeObjects {
    /// Their names by plural, namespace and selector.
    pub(super) lists: Mutex<BTreeMap<String, Result<Vec<&'static str>, String>>>,
    pub(super) requests: Mutex<Vec<String>>,
}

impl ObjectApi for FakeObjects {
    fn kinds(&self) -> BoxFuture<'_, Result<Vec<ObjectKind>, String>> {
        let kind = |(group, kind, plural, is_namespaced): (&str, &str, &str, bool)| ObjectKind {
            group: group.into(),
            version: "v1".into(),
            kind: kind.into(),
            plural: plural.into(),
            singular: kind.to_lowercase().into(),
            is_namespaced,
        };
        let kinds = [
            ("", "Pod", "pods", true),
            ("", "Namespace", "namespaces", false),
            ("", "Node", "nodes", false),
            ("apps", "Deployment", "deployments", true),
        ];
        async move { Ok(kinds.map(kind).into()) }.boxed()
    }

    fn list<'a>(
        &'a self,
        kind: &'a ObjectKind,
        Selection { namespace, labels, fields, .. }: Selection<'a>,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<ListedObject>, String>> {
        async move {
            let key = format!("{} {namespace} {labels}{fields}", kind.plural);
            self.requests.lock().push(key.clone());
            let names = self.lists.lock().get(&key).cloned().unwrap_or_else(|| Ok(Vec::new()))?;
            assert!(names.len() <= limit);
            let object = |name: &str| ListedObject {
                namespace: namespace.into(),
                name: name.into(),
                labels: BTreeMap::from([("app".to_owned(), "web".to_owned())]),
            };
            Ok(names.into_iter().map(object).collect())
        }
        .boxed()
    }
}

/// A Prometheus with one series of each rule.
async fn prometheus() -> MockServer {
    let prometheus = MockServer::start().await;
    for (selector, names) in [
        ("queue_", &["queue_jobs_total", "queue_other"][..]),
        ("Orders", &["Orders"]),
        ("wva_", &["wva_desired_replicas"]),
    ] {
        let names: Vec<_> =
            names.iter().map(|name| json!({ "metric": { "__name__": name }, "value": [1, "1"] })).collect();
        let lists = Mock::given(method("POST"))
            .and(body_string_contains("last_over_time"))
            .and(body_string_contains(selector));
        lists.respond_with(vector(&json!(names))).mount(&prometheus).await;
    }
    prometheus
}

async fn fixture() -> Fixture {
    let fixture = Fixture::new(FILE, prometheus().await).await;
    fixture.await_names(&["Orders", "queue_jobs_rate", "wva_desired_replicas"]).await;
    fixture
}

impl Fixture {
    pub(super) async fn new(text: &str, prometheus: MockServer) -> Self {
        Self::with_clock(text, prometheus, Arc::new(SystemClock)).await
    }

    pub(super) async fn with_clock(text: &str, prometheus: MockServer, clock: Arc<dyn Clock>) -> Self {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let directory = tempfile::tempdir().unwrap();
        let file: PathBuf = directory.path().join("config.yaml");
        std::fs::write(&file, text).unwrap();
        let api = PrometheusApi::new(&PrometheusSettings::new(prometheus.uri())).unwrap();
        let interval = Duration::from_millis(200);
        let settings = RuleSettings {
            file,
            relist_interval: interval,
            max_age: Duration::from_secs(60),
            serves_usage: true,
            metrics: RuleMetricFamilies::default(),
        };
        let objects = Arc::new(FakeObjects::default());
        let rules = Arc::new(AdapterRules::new(api, objects.clone(), clock, settings));
        let mut following = JoinSet::new();
        following.spawn(rules.clone().run(CancellationToken::new()));
        following.spawn(rules.clone().renew(CancellationToken::new()));
        let served: Arc<dyn RuleMetrics> = rules.clone();
        let server = TestServer::with(|options| options.rules = Some(served)).await;
        Self { server, prometheus, rules, objects, directory, _following: following }
    }

    pub(super) async fn await_names(&self, expected: &[&str]) {
        let listed = async {
            while self.rules.names().iter().map(|name| name.as_str()).ne(expected.iter().copied()) {
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(Duration::from_secs(20), listed).await.unwrap_or_else(|_| panic!("{:?}", self.rules.names()));
    }

    /// Answers queries that contain `part`.
    pub(super) async fn answer(&self, part: &str, answer: ResponseTemplate) {
        Mock::given(method("POST"))
            .and(body_string_contains(part))
            .respond_with(answer)
            .mount(&self.prometheus)
            .await;
    }

    /// The answer to a read, as the API server passes it on.
    pub(super) async fn read(&self, metric: &str, query: &str) -> Answer {
        self.server.read_as_hpa(&(path("llm", metric) + query), &[]).await
    }

    /// The queries that Prometheus was sent.
    pub(super) async fn queries(&self) -> Vec<String> {
        let requests = self.prometheus.received_requests().await.unwrap();
        let sent = requests.iter().filter(|request| request.url.path().ends_with("/query"));
        let query = |request: &Request| {
            let mut pairs = form_urlencoded::parse(&request.body);
            pairs.find(|(key, _)| key == "query").map(|(_, value)| value.into_owned())
        };
        sent.filter_map(query).filter(|query| !query.contains("last_over_time")).collect()
    }
}

pub(super) fn vector(samples: &Value) -> ResponseTemplate {
    let data = json!({ "resultType": "vector", "result": samples });
    ResponseTemplate::new(200).set_body_json(json!({ "status": "success", "data": data }))
}

#[tokio::test]
async fn a_metric_of_a_rule_is_what_its_query_makes() {
    let fixture = fixture().await;
    let samples = json!([
        { "metric": { "queue": "a" }, "value": [1_764_000_000.9, "2.5"] },
        { "metric": { "queue": "b" }, "value": [1_764_000_000, "-1234.5678"] }
    ]);
    fixture.answer("queue_jobs_total", vector(&samples)).await;
    let answer = fixture.read("queue_jobs_rate", "?labelSelector=queue+in+(a,b)").await;
    let expected = json!({
        "kind": "ExternalMetricValueList", "apiVersion": "external.metrics.k8s.io/v1beta1", "metadata": {},
        "items": [
            { "metricName": "queue_jobs_rate", "metricLabels": { "queue": "a" }, "timestamp": "2025-11-24T16:00:00Z", "value": "2500m" },
            { "metricName": "queue_jobs_rate", "metricLabels": { "queue": "b" }, "timestamp": "2025-11-24T16:00:00Z", "value": "-1234567m" }
        ]
    });
    assert_eq!(serde_json::from_str::<Value>(&answer.body).unwrap(), expected, "{}", answer.head);
    assert_eq!(
        fixture.queries().await,
        [r#"sum(rate(queue_jobs_total{queue=~"a|b",namespace="llm"}[2m])) by (queue)"#]
    );
    let hpa = fixture
        .server
        .read_as_hpa(&path("llm", "queue_jobs_rate"), &["Accept: application/vnd.kubernetes.protobuf"])
        .await;
    assert_eq!((hpa.status, hpa.bytes.starts_with(b"k8s\0")), (200, true), "{}", hpa.head);
    assert!(hpa.body.contains("-1234567m"));
    let discovery = fixture.server.read_as_hpa("/apis/external.metrics.k8s.io/v1beta1", &[]).await;
    assert!(discovery.body.contains("\"queue_jobs_rate\""), "{}", discovery.body);
}

#[tokio::test]
async fn readers_of_a_moment_share_a_query() {
    let fixture = fixture().await;
    let samples = json!([{ "metric": {}, "value": [1_764_000_000, "3"] }]);
    fixture.answer("Orders", vector(&samples).set_delay(Duration::from_millis(300))).await;
    // An HPA asks in lower case.
    let reads = join_all((0..20).map(|_| fixture.read("orders", ""))).await;
    assert!(reads.iter().all(|answer| answer.value() == "3"), "{reads:?}");
    assert_eq!(fixture.queries().await, ["max(Orders{})"]);
    sleep(Duration::from_millis(1_200)).await;
    assert_eq!(fixture.read("Orders", "").await.value(), "3");
    assert_eq!(fixture.queries().await.len(), 2, "an answer is used again for a second");
}

/// A series of a queue.
fn series(queue: &str, value: &str) -> Value {
    json!({ "metric": { "queue": queue }, "value": [1_764_000_000, value] })
}

#[tokio::test]
async fn reads_that_differ_in_the_value_of_a_label_share_a_query() {
    let fixture = fixture().await;
    fixture.answer("queue%3D", vector(&json!([series("alone", "1")]))).await;
    let all = json!([series("q-9", "9"), series("q-3", "3.5"), { "metric": {}, "value": [1, "7"] }]);
    fixture.answer("queue_jobs_total", vector(&all)).await;
    let read = async |queue: u8| {
        let answer = fixture.read("queue_jobs_rate", &format!("?labelSelector=queue%3Dq-{queue}")).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        let list: Value = serde_json::from_str(&answer.body).unwrap();
        list["items"].clone()
    };
    for queue in 0..3 {
        assert_eq!(read(queue).await[0]["metricLabels"], json!({ "queue": "alone" }));
    }
    let item = |queue: &str, value: &str| {
        let labels = json!({ "queue": queue });
        json!([{ "metricName": "queue_jobs_rate", "metricLabels": labels, "timestamp": "2025-11-24T16:00:00Z", "value": value }])
    };
    let answers = join_all((3..10).map(read)).await;
    assert_eq!((&answers[0], &answers[6]), (&item("q-3", "3500m"), &item("q-9", "9")));
    assert!(
        answers[1..6].iter().all(|items| *items == json!([])),
        "no sample is no item, as alone: {answers:?}"
    );
    let alone = (0..3).map(|queue| {
        format!(r#"sum(rate(queue_jobs_total{{queue="q-{queue}",namespace="llm"}}[2m])) by (queue)"#)
    });
    let shared = r#"sum(rate(queue_jobs_total{namespace="llm"}[2m])) by (queue)"#.to_owned();
    assert_eq!(fixture.queries().await, alone.chain([shared]).collect::<Vec<_>>(), "the namespace stays");
}

#[tokio::test]
async fn a_shared_query_that_fails_costs_no_read_its_answer() {
    let fixture = fixture().await;
    fixture.answer("queue%3D", vector(&json!([series("alone", "1")]))).await;
    fixture.answer("queue_jobs_total", ResponseTemplate::new(503)).await;
    for queue in 0..12 {
        let answer = fixture.read("queue_jobs_rate", &format!("?labelSelector=queue%3Dq-{queue}")).await;
        assert_eq!(answer.value(), "1");
    }
    assert_eq!(fixture.queries().await.len(), 13, "one of them is shared, and not asked again");
}

#[tokio::test]
async fn a_query_that_adds_up_all_values_of_a_label_is_asked_for_each() {
    let fixture = fixture().await;
    fixture.answer("Orders", vector(&json!([series("alone", "1")]))).await;
    for queue in 0..8 {
        fixture.read("Orders", &format!("?labelSelector=queue%3Dq-{queue}")).await;
    }
    for queue in 0..8 {
        fixture.read("queue_jobs_rate", &format!("?labelSelector=queue%3Dq-{queue},size+in+(1,2)")).await;
    }
    let queries = fixture.queries().await;
    assert!(queries.len() == 16 && queries.iter().all(|query| query.contains("queue=")), "{queries:?}");
}

#[tokio::test]
async fn a_metric_of_variants_is_never_that_of_a_rule() {
    let fixture = fixture().await;
    let answer = fixture.read("wva_desired_replicas", "?labelSelector=variant_name%3Dllama-a100").await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(fixture.queries().await, Vec::<String>::new());
}

#[tokio::test]
async fn what_prometheus_does_not_know_is_an_error_or_an_empty_list_and_never_zero() {
    let fixture = fixture().await;
    let unknown = fixture.read("queue_other", "").await;
    assert_eq!((unknown.status, unknown.message().contains("there is no metric")), (404, true));
    let compared = fixture.read("Orders", "?labelSelector=size%3E3").await;
    assert_eq!(compared.status, 400);
    assert!(
        compared
            .message()
            .contains("Orders in namespace llm cannot be read: its selector compares size by <"),
        "{}",
        compared.message()
    );
    let scalar = |value: &str| {
        let data = json!({ "resultType": "scalar", "result": [1_764_000_000, value] });
        ResponseTemplate::new(200).set_body_json(json!({ "status": "success", "data": data }))
    };
    for (label, answer, expected) in [
        ("nan", scalar("NaN"), "is NaN, which is no quantity"),
        ("large", scalar("1e30"), "which is no quantity"),
        ("down", ResponseTemplate::new(503), "answered 503"),
    ] {
        fixture.answer(label, answer).await;
        let answer = fixture.read("Orders", &format!("?labelSelector=case%3D{label}")).await;
        assert_eq!(answer.status, 500);
        let message = answer.message();
        assert!(
            message.contains(expected) && message.contains(&format!(r#"max(Orders{{case="{label}"}})"#)),
            "{message}"
        );
    }
    fixture.answer("empty", vector(&json!([]))).await;
    let empty = fixture.read("Orders", "?labelSelector=case%3Dempty").await;
    assert_eq!((empty.status, empty.body.contains("\"items\":[]")), (200, true), "{}", empty.body);
}

#[tokio::test]
async fn a_file_that_changes_is_read_again_and_one_that_is_wrong_changes_nothing() {
    let fixture = fixture().await;
    let file = fixture.directory.path().join("config.yaml");
    std::fs::write(&file, "externalRules: [{seriesQuery: Orders, name: {as: size}, resources: {namespaced: false}, metricsQuery: a}]").unwrap();
    fixture.await_names(&["size"]).await;
    std::fs::write(&file, "externalRules: {").unwrap();
    sleep(Duration::from_millis(600)).await;
    fixture.await_names(&["size"]).await;
    fixture.prometheus.reset().await;
    sleep(Duration::from_millis(600)).await;
    fixture.await_names(&["size"]).await;
}
