//! Processor time and memory by the rules of prometheus-adapter, as `kubectl top` and HPAs read them.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{sleep, timeout};
use wiremock::{MockServer, ResponseTemplate};

use super::client::Answer;
use super::rules::{Fixture, vector};
use super::test_server::TestServer;

const FILE: &str = r#"
resourceRules:
  cpu: &rule
    containerQuery: sum by (<<.GroupBy>>) (cpu{<<.LabelMatchers>>})
    nodeQuery: sum by (<<.GroupBy>>) (node_cpu{<<.LabelMatchers>>})
    resources: {template: <<.Resource>>}
    containerLabel: container
  memory:
    containerQuery: sum by (<<.GroupBy>>) (memory{<<.LabelMatchers>>})
    nodeQuery: sum by (<<.GroupBy>>) (node_memory{<<.LabelMatchers>>})
    resources: {template: <<.Resource>>}
    containerLabel: container
  window: 5m
"#;

async fn fixture() -> Fixture {
    let fixture = Fixture::new(&FILE.replace("&rule", ""), MockServer::start().await).await;
    {
        let mut lists = fixture.objects.lists.lock();
        lists.insert("pods llm app=webstatus.phase=Running".into(), Ok(vec!["a", "b", "c"]));
        lists.insert("pods llm status.phase=Running,metadata.name=a".into(), Ok(vec!["a"]));
        lists.insert("pods llm status.phase=Running,metadata.name=c".into(), Ok(vec!["c"]));
        lists.insert("nodes  ".into(), Ok(vec!["n1", "n2"]));
    }
    let at =
        |labels: Value, seconds: u32, value: &str| json!({ "metric": labels, "value": [seconds, value] });
    let of = |pod: &str, container: &str| json!({ "pod": pod, "container": container });
    let cpu = json!([
        at(of("a", "main"), 1_764_000_001, "0.25"),
        at(of("a", "side"), 1_764_000_001, "1"),
        at(of("b", "main"), 1_764_000_001, "NaN"),
    ]);
    let memory =
        json!([at(of("a", "main"), 1_764_000_000, "536870912"), at(of("b", "main"), 1_764_000_000, "1024")]);
    let node = |value: &str| json!([at(json!({ "node": "n1" }), 1_764_000_000, value)]);
    for (part, samples) in [
        ("%28cpu%7B", cpu),
        ("%28memory%7B", memory),
        ("node_cpu", node("3.5")),
        ("node_memory", node("1500")),
    ] {
        fixture.answer(part, vector(&samples)).await;
    }
    let read = async {
        while read(&fixture, "nodes").await.status != 200 {
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(Duration::from_secs(20), read).await.unwrap();
    fixture
}

async fn read(fixture: &Fixture, path: &str) -> Answer {
    fixture.server.read_as_hpa(&format!("/apis/metrics.k8s.io/v1beta1/{path}"), &[]).await
}

fn body(answer: &Answer) -> Value {
    assert_eq!(answer.status, 200, "{}", answer.body);
    let mut body: Value = serde_json::from_str(&answer.body).unwrap();
    let remove = |item: &mut Value| {
        let time = item["metadata"].as_object_mut().unwrap().remove("creationTimestamp");
        assert!(time.is_some() || item["metadata"] == json!({}));
    };
    if let Some(items) = body["items"].as_array_mut() {
        items.iter_mut().for_each(remove);
    } else {
        remove(&mut body);
    }
    body
}

#[tokio::test]
async fn pods_have_the_usage_of_each_container() {
    let fixture = fixture().await;
    let labels = json!({ "app": "web" });
    let first = json!({
        "metadata": { "name": "a", "namespace": "llm", "labels": labels },
        "timestamp": "2025-11-24T16:00:00Z", "window": "5m0s",
        "containers": [
            { "name": "main", "usage": { "cpu": "250m", "memory": "512Mi" } },
            { "name": "side", "usage": { "cpu": "1" } }
        ]
    });
    let list = body(&read(&fixture, "namespaces/llm/pods?labelSelector=app%3Dweb").await);
    let expected = json!({
        "kind": "PodMetricsList", "apiVersion": "metrics.k8s.io/v1beta1", "metadata": {},
        "items": [first, {
            "metadata": { "name": "b", "namespace": "llm", "labels": labels },
            "timestamp": "2025-11-24T16:00:00Z", "window": "5m0s",
            // NaN is no number; and of the third pod there is nothing.
            "containers": [{ "name": "main", "usage": { "memory": "1Ki" } }]
        }]
    });
    assert_eq!(list, expected);
    let queries = fixture.queries().await;
    assert!(
        queries.contains(&r#"sum by (pod,container) (cpu{namespace="llm",pod=~"a|b|c"})"#.to_owned()),
        "{queries:?}"
    );
    let pod = body(&read(&fixture, "namespaces/llm/pods/a").await);
    assert_eq!((&pod["kind"], &pod["containers"]), (&json!("PodMetrics"), &first["containers"]));
    let hpa = fixture
        .server
        .read_as_hpa(
            "/apis/metrics.k8s.io/v1beta1/namespaces/llm/pods?labelSelector=app%3Dweb",
            &["Accept: application/vnd.kubernetes.protobuf"],
        )
        .await;
    assert!(
        hpa.status == 200 && hpa.bytes.starts_with(b"k8s\0") && hpa.body.contains("512Mi"),
        "{}",
        hpa.head
    );
}

#[tokio::test]
async fn nodes_have_their_usage() {
    let fixture = fixture().await;
    let list = body(&read(&fixture, "nodes").await);
    let usage = json!({ "cpu": "3500m", "memory": "1500" });
    assert_eq!((&list["kind"], &list["items"][0]["usage"]), (&json!("NodeMetricsList"), &usage));
    assert_eq!(list["items"].as_array().unwrap().len(), 1, "a node without samples is left out");
}

#[tokio::test]
async fn what_is_not_known_is_an_error_that_says_why() {
    let fixture = fixture().await;
    fixture.objects.lists.lock().insert("pods  status.phase=Running".into(), Err("pods is forbidden".into()));
    for (path, status, expected) in [
        ("namespaces/llm/pods/c", 404, "of pods c in namespace llm cannot be read: Prometheus has no sample"),
        ("namespaces/llm/pods/gone", 404, "or it is not running"),
        ("pods", 500, "pods cannot be listed: pods is forbidden"),
        ("services", 404, "could not find the requested resource"),
        // Authorised as the node of this name, it was a field selector of another one.
        ("nodes/=n1", 404, "is no name of an object"),
    ] {
        let answer = read(&fixture, path).await;
        assert_eq!(answer.status, status, "{path}: {}", answer.body);
        assert!(answer.message().contains(expected), "{path}: {}", answer.message());
    }
    fixture.prometheus.reset().await;
    fixture.answer("sum", ResponseTemplate::new(503)).await;
    sleep(Duration::from_millis(1_100)).await;
    let down = read(&fixture, "nodes").await;
    assert_eq!(down.status, 500, "no empty list");
    assert!(down.message().contains("answered 503"), "{}", down.message());
    fixture.server.reviewer.readers.lock().clear();
    // A namespace whose pods nobody was allowed to read a moment ago.
    let refused = read(&fixture, "namespaces/other/pods/a").await;
    assert!(refused.message().contains("cannot get resource \"pods\" in API group \"metrics.k8s.io\""));
}

#[tokio::test]
async fn the_group_is_listed_only_where_it_is_served() {
    let fixture = fixture().await;
    let resources = body_of(&fixture.server, "/apis/metrics.k8s.io/v1beta1").await;
    let listed: Vec<_> = resources["resources"]
        .as_array()
        .unwrap()
        .iter()
        .map(|own| (&own["name"], &own["kind"], &own["namespaced"]))
        .collect();
    let expected = [
        (&json!("nodes"), &json!("NodeMetrics"), &json!(false)),
        (&json!("pods"), &json!("PodMetrics"), &json!(true)),
    ];
    assert_eq!(listed, expected);
    let groups = body_of(&fixture.server, "/apis").await.to_string();
    assert!(groups.contains("\"metrics.k8s.io\""));
    let without = TestServer::new().await;
    assert!(!body_of(&without, "/apis").await.to_string().contains("\"metrics.k8s.io\""));
    let unknown = without.read_as_hpa("/apis/metrics.k8s.io/v1beta1/nodes", &[]).await;
    assert_eq!(unknown.status, 404);
}

async fn body_of(server: &TestServer, path: &str) -> Value {
    serde_json::from_str(&server.read_as_hpa(path, &[]).await.body).unwrap()
}
