//! Metrics of objects by the rules of prometheus-adapter, as an HPA reads them: discovery, the lists of objects, the queries, and the answers.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};
use wiremock::matchers::{body_string_contains, method, path};
use wiremock::{Mock, MockServer, ResponseTemplate};
use wva::serve::RuleMetrics as _;

use super::client::Answer;
use super::rules::{Fixture, vector};

const FILE: &str = r#"
rules:
- seriesQuery: '{__name__=~"^http_.*",namespace!=""}'
  resources: {template: <<.Resource>>}
  name: {matches: "^(.*)_total$", as: "${1}_rate"}
  metricsQuery: sum(rate(<<.Series>>{<<.LabelMatchers>>}[2m])) by (<<.GroupBy>>)
- seriesQuery: fan_speed
  resources: {overrides: {instance: {resource: node}}}
  metricsQuery: max(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)
"#;

async fn fixture() -> Fixture {
    let prometheus = MockServer::start().await;
    let labels = json!({ "status": "success", "data": ["__name__", "job", "namespace", "pod"] });
    Mock::given(path("/api/v1/labels"))
        .respond_with(ResponseTemplate::new(200).set_body_json(labels))
        .mount(&prometheus)
        .await;
    for (selector, metric) in [
        ("http_.*", json!({ "__name__": "http_hits_total", "__has": "1" })),
        ("fan_speed", json!({ "__name__": "fan_speed", "__has": "1" })),
    ] {
        let lists = Mock::given(method("POST"))
            .and(body_string_contains("last_over_time"))
            .and(body_string_contains(selector));
        let series = json!([{ "metric": metric, "value": [1, "1"] }]);
        lists.respond_with(vector(&series)).mount(&prometheus).await;
    }
    let fixture = Fixture::new(FILE, prometheus).await;
    let listed = async {
        while fixture.rules.objects().len() < 3 {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(Duration::from_secs(20), listed)
        .await
        .unwrap_or_else(|_| panic!("{:?}", fixture.rules.objects()));
    fixture.objects.lists.lock().insert("pods llm app=web".into(), Ok(vec!["a", "b", "c"]));
    fixture
}

async fn read(fixture: &Fixture, version: &str, path: &str) -> Answer {
    fixture.server.read_as_hpa(&format!("/apis/custom.metrics.k8s.io/{version}/{path}"), &[]).await
}

fn body(answer: &Answer) -> Value {
    assert_eq!(answer.status, 200, "{}", answer.body);
    serde_json::from_str(&answer.body).unwrap()
}

#[tokio::test]
async fn discovery_lists_the_metrics_of_each_kind_of_objects() {
    let fixture = fixture().await;
    for version in ["v1beta1", "v1beta2"] {
        let discovery =
            fixture.server.read_as_hpa(&format!("/apis/custom.metrics.k8s.io/{version}"), &[]).await;
        let list = body(&discovery);
        let resources = list["resources"].as_array().unwrap();
        let listed: Vec<_> = resources
            .iter()
            .filter(|own| !own["name"].as_str().unwrap().ends_with("_desired_replicas"))
            .map(|own| (own["name"].as_str().unwrap(), own["namespaced"].as_bool().unwrap()))
            .filter(|(name, _)| !name.contains("wva_"))
            .collect();
        let expected =
            [("namespaces/http_hits_rate", false), ("nodes/fan_speed", false), ("pods/http_hits_rate", true)];
        assert_eq!(listed, expected);
        assert_eq!(resources.last().unwrap()["kind"], "MetricValueList");
    }
}

#[tokio::test]
async fn all_objects_of_a_selector_have_the_values_of_their_labels() {
    let fixture = fixture().await;
    let samples = json!([
        { "metric": { "pod": "c" }, "value": [1_764_000_000, "-0.5"] },
        { "metric": { "pod": "a" }, "value": [1_764_000_000.9, "2.5"] },
        { "metric": { "pod": "other" }, "value": [1_764_000_000, "7"] },
        { "metric": {}, "value": [1_764_000_000, "8"] }
    ]);
    fixture.answer("http_hits_total", vector(&samples)).await;
    let query = "labelSelector=app%3Dweb&metricLabelSelector=code+in+(200,5.x)";
    let newer = read(&fixture, "v1beta2", &format!("namespaces/llm/pods/*/http_hits_rate?{query}")).await;
    let selector =
        json!({ "matchExpressions": [{ "key": "code", "operator": "In", "values": ["200", "5.x"] }] });
    let item = |name: &str, value: &str| {
        json!({
            "describedObject": { "kind": "Pod", "namespace": "llm", "name": name, "apiVersion": "v1" },
            "metric": { "name": "http_hits_rate", "selector": selector },
            "timestamp": "2025-11-24T16:00:00Z", "value": value
        })
    };
    let expected = json!({
        "kind": "MetricValueList", "apiVersion": "custom.metrics.k8s.io/v1beta2", "metadata": {},
        "items": [item("a", "2500m"), item("c", "-500m")]
    });
    assert_eq!(body(&newer), expected);
    let older = read(&fixture, "v1beta1", &format!("namespaces/llm/pod/*/http_hits_rate?{query}")).await;
    let expected = json!({
        "describedObject": { "kind": "Pod", "namespace": "llm", "name": "a", "apiVersion": "v1" },
        "metricName": "http_hits_rate", "timestamp": "2025-11-24T16:00:00Z", "value": "2500m", "selector": selector
    });
    assert_eq!(body(&older)["items"][0], expected);
    assert_eq!(
        fixture.queries().await,
        [r#"sum(rate(http_hits_total{code=~"200|5.x",namespace="llm",pod=~"a|b|c"}[2m])) by (pod)"#],
        "both versions share one query"
    );
    let hpa = fixture
        .server
        .read_as_hpa(
            &format!("/apis/custom.metrics.k8s.io/v1beta2/namespaces/llm/pods/*/http_hits_rate?{query}"),
            &["Accept: application/vnd.kubernetes.protobuf"],
        )
        .await;
    assert!(
        hpa.status == 200 && hpa.bytes.starts_with(b"k8s\0") && hpa.body.contains("-500m"),
        "{}",
        hpa.head
    );
}

#[tokio::test]
async fn a_named_object_is_not_listed() {
    let fixture = fixture().await;
    for (part, label, name) in
        [("pod=", "pod", "a"), ("instance=", "instance", "n1"), ("{namespace=", "namespace", "llm")]
    {
        let samples = json!([{ "metric": { label: name }, "value": [1_764_000_000, "3"] }]);
        fixture
            .answer(&form_urlencoded::byte_serialize(part.as_bytes()).collect::<String>(), vector(&samples))
            .await;
    }
    for (path, described, query) in [
        (
            "namespaces/llm/pods/a/HTTP_hits_rate?labelSelector=app%3Dother",
            json!({ "kind": "Pod", "namespace": "llm", "name": "a", "apiVersion": "v1" }),
            r#"sum(rate(http_hits_total{namespace="llm",pod="a"}[2m])) by (pod)"#,
        ),
        (
            "nodes/n1/fan_speed",
            json!({ "kind": "Node", "name": "n1", "apiVersion": "v1" }),
            r#"max(fan_speed{instance="n1"}) by (instance)"#,
        ),
        (
            "namespaces/llm/metrics/http_hits_rate",
            json!({ "kind": "Namespace", "name": "llm", "apiVersion": "v1" }),
            r#"sum(rate(http_hits_total{namespace="llm"}[2m])) by (namespace)"#,
        ),
    ] {
        let answer = body(&read(&fixture, "v1beta2", path).await);
        assert_eq!(
            (&answer["items"][0]["describedObject"], &answer["items"][0]["value"]),
            (&described, &json!("3"))
        );
        assert_eq!(fixture.queries().await.last().unwrap(), query);
    }
    assert!(fixture.objects.requests.lock().is_empty());
}

#[tokio::test]
async fn readers_of_a_moment_share_the_list_and_the_query() {
    let fixture = Arc::new(fixture().await);
    let samples = json!([{ "metric": { "pod": "a" }, "value": [1_764_000_000, "3"] }]);
    fixture.answer("http_hits_total", vector(&samples).set_delay(Duration::from_millis(300))).await;
    let path = "namespaces/llm/pods/*/http_hits_rate?labelSelector=app%3Dweb";
    let reads = join_all((0..20).map(|_| read(&fixture, "v1beta2", path))).await;
    assert!(reads.iter().all(|answer| answer.status == 200));
    assert_eq!((fixture.queries().await.len(), fixture.objects.requests.lock().len()), (1, 1));
}

#[tokio::test]
async fn reads_of_many_selectors_share_a_list() {
    let fixture = fixture().await;
    fixture.objects.lists.lock().insert("pods llm ".into(), Ok(vec!["a", "b"]));
    let samples = json!([{ "metric": { "pod": "a" }, "value": [1_764_000_000, "3"] }]);
    fixture.answer("http_hits_total", vector(&samples)).await;
    let read = async |selector: &str| {
        let path = "namespaces/llm/pods/*/http_hits_rate?labelSelector=";
        read(&fixture, "v1beta2", &format!("{path}{selector}")).await
    };
    for application in ["x", "y", "z"] {
        let answer = read(&format!("app%3D{application}")).await;
        assert!(answer.message().ends_with("the selector selects no object"), "{}", answer.body);
    }
    let selected = body(&read("app+in+(web,v),tier!%3Ddb").await);
    assert_eq!(selected["items"][0]["describedObject"]["name"], "a");
    let queries = fixture.queries().await;
    assert_eq!(
        queries,
        [r#"sum(rate(http_hits_total{namespace="llm",pod=~"a|b"}[2m])) by (pod)"#],
        "all of app=web"
    );
    assert_eq!(read("app!%3Dweb").await.status, 404);
    let lists = ["pods llm app=x", "pods llm app=y", "pods llm app=z", "pods llm "];
    assert_eq!(*fixture.objects.requests.lock(), lists);
}

#[tokio::test]
async fn reads_of_objects_by_name_share_a_query() {
    let fixture = fixture().await;
    fixture.answer("pod%3D", vector(&json!([]))).await;
    let sample = |label: &str, name: &str, value: &str| json!({ "metric": { label: name }, "value": [1_764_000_000, value] });
    let all = json!([sample("pod", "p-8", "2.5"), sample("pod", "p-7", "NaN"), sample("pod", "p-3", "4")]);
    let part = form_urlencoded::byte_serialize(b"by (pod)").collect::<String>();
    fixture.answer(&part, vector(&all)).await;
    let read = async |pod: u8| {
        let answer = read(&fixture, "v1beta2", &format!("namespaces/llm/pods/p-{pod}/http_hits_rate")).await;
        match answer.status {
            200 => body(&answer)["items"][0]["value"].as_str().unwrap().to_owned(),
            status => format!("{status} {}", answer.message()),
        }
    };
    let missing = |pod: u8| {
        let query = format!(r#"sum(rate(http_hits_total{{namespace="llm",pod="p-{pod}"}}[2m])) by (pod)"#);
        (query.clone(), format!("the query of its rule, {query}: it has no value of this object now"))
    };
    for pod in 0..3 {
        assert!(read(pod).await.ends_with(&missing(pod).1), "asked for alone");
    }
    let answers = join_all((3..9).map(read)).await;
    assert_eq!((answers[0].as_str(), answers[5].as_str()), ("4", "2500m"));
    assert!(answers[1].starts_with("404 ") && answers[1].ends_with(&missing(4).1), "{answers:?}");
    assert!(answers[4].starts_with("500 ") && answers[4].contains("the value of p-7 is NaN"), "{answers:?}");
    let shared = r#"sum(rate(http_hits_total{namespace="llm",}[2m])) by (pod)"#.to_owned();
    let expected: Vec<_> = (0..3).map(|pod| missing(pod).0).chain([shared]).collect();
    assert_eq!(fixture.queries().await, expected);
}

#[tokio::test]
async fn reads_of_namespaces_are_asked_for_one_by_one() {
    let fixture = fixture().await;
    fixture.answer("http_hits_total", vector(&json!([]))).await;
    for namespace in 0..8 {
        read(&fixture, "v1beta2", &format!("namespaces/n-{namespace}/metrics/http_hits_rate")).await;
    }
    let queries = fixture.queries().await;
    assert!(queries.len() == 8 && queries.iter().all(|query| query.contains("namespace=")), "{queries:?}");
}

#[tokio::test]
async fn what_is_not_known_is_an_error_that_says_why_and_never_zero() {
    let fixture = fixture().await;
    fixture.objects.lists.lock().insert("pods llm app=secret".into(), Err("pods is forbidden".into()));
    fixture
        .answer("pod%3D%22nan", vector(&json!([{ "metric": { "pod": "nan" }, "value": [1, "NaN"] }])))
        .await;
    fixture.answer("pod%3D%22gone", vector(&json!([]))).await;
    fixture.answer("pod%3D%22down", ResponseTemplate::new(503)).await;
    fixture.answer("instance%3D", vector(&json!([]))).await;
    fixture.objects.lists.lock().insert("nodes  ".into(), Ok(vec!["n1", "n2"]));
    for (path, status, expected) in [
        (
            "namespaces/llm/pods/a/other",
            404,
            "could not find the metric other for pods a: rules make 3 metrics",
        ),
        (
            "namespaces/llm/brands/a/http_hits_rate",
            404,
            "could not find the metric http_hits_rate for brands a",
        ),
        ("namespaces/llm/nodes/n1/fan_speed", 404, "for nodes n1"),
        ("pods/a/http_hits_rate", 404, "for pods a"),
        ("namespaces/llm/pods/gone/http_hits_rate", 404, "it has no value of this object now"),
        ("namespaces/llm/pods/*/http_hits_rate?labelSelector=app%3Dnone", 404, "selects no object"),
        (
            "namespaces/llm/pods/*/http_hits_rate?labelSelector=app%3Dsecret",
            500,
            "its pods cannot be listed: pods is forbidden",
        ),
        ("namespaces/llm/pods/nan/http_hits_rate", 500, "the value of nan is NaN, which is no quantity"),
        ("namespaces/llm/pods/down/http_hits_rate", 500, "answered 503"),
        ("namespaces/llm/pods/a/http_hits_rate?metricLabelSelector=size%3E3", 400, "compares size by <"),
        (
            "namespaces/llm/pods/*/http_hits_rate?fieldSelector=metadata.name%3Da",
            400,
            "name the object in the path",
        ),
        ("namespaces/llm/http_hits_rate", 400, "invalid request path"),
        ("nodes/n1/wva_desired_replicas", 404, "for nodes n1"),
    ] {
        let answer = read(&fixture, "v1beta2", path).await;
        assert_eq!(answer.status, status, "{path}: {}", answer.body);
        assert!(answer.message().contains(expected), "{path}: {}", answer.message());
    }
    let none = read(&fixture, "v1beta2", "nodes/*/fan_speed").await;
    assert_eq!(body(&none)["items"], json!([]), "objects without a value are left out");
}

#[tokio::test]
async fn whoever_reads_needs_the_right_that_the_path_says() {
    let fixture = fixture().await;
    let samples = json!([{ "metric": { "instance": "n1" }, "value": [1_764_000_000, "3"] }]);
    fixture.answer("fan_speed", vector(&samples)).await;
    fixture.server.reviewer.readers.lock().clear();
    for (path, object) in [
        (
            "nodes/n1/fan_speed",
            "cannot get resource \"nodes/fan_speed\" in API group \"custom.metrics.k8s.io\" at the cluster scope",
        ),
        (
            "namespaces/llm/metrics/m",
            "cannot get resource \"metrics\" in API group \"custom.metrics.k8s.io\" in the namespace \"llm\"",
        ),
        ("namespaces/llm/pods/*/m", "cannot get resource \"pods/m\""),
    ] {
        let answer = read(&fixture, "v1beta2", path).await;
        assert_eq!(answer.status, 403, "{}", answer.body);
        assert!(answer.message().contains(object), "{}", answer.message());
    }
    assert!(fixture.queries().await.is_empty());
}

#[tokio::test]
async fn each_read_of_another_object_cost_the_api_server_a_review() {
    let fixture = fixture().await;
    fixture.answer("http_hits_total", vector(&json!([]))).await;
    let server = &fixture.server;
    let read = async |pod: &str, proxied: bool| {
        let path = format!("/apis/custom.metrics.k8s.io/v1beta2/namespaces/llm/pods/{pod}/http_hits_rate");
        let answer = if proxied {
            server.read_as_hpa(&path, &[]).await
        } else {
            server.send(None, &format!("GET {path}"), &["Authorization: Bearer good"]).await
        };
        (answer.status, std::mem::take(&mut *server.reviewer.reviews.lock()).len())
    };
    assert_eq!(read("a", true).await, (404, 1), "whether all may be read");
    for pod in ["b", "c"] {
        assert_eq!(read(pod, true).await, (404, 0));
    }
    // Whose requests the API server has not authorised.
    server.reviewer.readers.lock().insert("prometheus".to_owned());
    for pod in ["a", "b"] {
        assert_eq!(read(pod, false).await, (404, 1), "{pod}");
    }
}

#[tokio::test]
async fn who_may_read_one_object_reads_no_other_one() {
    let fixture = fixture().await;
    fixture.answer("http_hits_total", vector(&json!([]))).await;
    *fixture.server.reviewer.only_object.lock() = Some("a".to_owned());
    let read = async |pod: &str| {
        read(&fixture, "v1beta2", &format!("namespaces/llm/pods/{pod}/http_hits_rate")).await.status
    };
    assert_eq!((read("a").await, read("b").await, read("*").await), (404, 403, 403));
    *fixture.server.reviewer.hangs.lock() = true;
    let known = timeout(Duration::from_secs(2), read("a"));
    assert_eq!(known.await, Ok(404), "it waited for the review of all objects");
}

#[tokio::test]
async fn a_name_that_ends_a_string_of_the_query_read_series_of_another_namespace() {
    let fixture = fixture().await;
    fixture.answer("http_hits_total", vector(&json!([]))).await;
    let list = "pods llm app=web".to_owned();
    fixture.objects.lists.lock().insert(list, Ok(vec!["a", "b\"} or secret{x=\""]));
    for path in [
        "namespaces/llm/pods/a%22%7D%20or%20secret%7Bx=%22/http_hits_rate",
        "namespaces/kube-system%2Fsecrets%3Fx=/pods/*/http_hits_rate",
        "namespaces/a%22%7D/metrics/http_hits_rate",
    ] {
        let answer = read(&fixture, "v1beta2", path).await;
        assert_eq!(answer.status, 404, "{path}: {}", answer.body);
    }
    assert!(fixture.queries().await.is_empty() && fixture.objects.requests.lock().is_empty());
    let all = read(&fixture, "v1beta2", "namespaces/llm/pods/*/http_hits_rate?labelSelector=app%3Dweb").await;
    assert_eq!(all.status, 200, "{}", all.body);
    assert_eq!(
        fixture.queries().await,
        [r#"sum(rate(http_hits_total{namespace="llm",pod="a"}[2m])) by (pod)"#]
    );
}
