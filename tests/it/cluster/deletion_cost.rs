//! Deletion costs of pods, as the API server sees them.

use tokio::time::advance;
use wva::cluster::DeletionCostWriter;
use wva::cluster::writers::deletion_cost::DeletionCostMetrics;
use wva_core::pod_deletion_order::DeletionOrder;

use super::*;

const COST: &str = "controller.kubernetes.io/pod-deletion-cost";

fn owned(kind: &str, owner: &str, name: &str, uid: &str) -> Value {
    let owners =
        json!([{ "apiVersion": "apps/v1", "kind": kind, "name": "chat", "uid": owner, "controller": true }]);
    json!({ "namespace": "llm", "name": name, "uid": uid, "ownerReferences": owners })
}

/// A ready pod of the variant `llm/chat`.
fn pod(name: &str, cost: Option<i32>) -> Value {
    let mut metadata = owned("ReplicaSet", "rs-1", name, &format!("uid-{name}"));
    if let Some(cost) = cost {
        metadata["annotations"] = json!({ COST: cost.to_string() });
    }
    let ready = json!([{ "type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:01:00Z" }]);
    json!({ "metadata": metadata, "spec": { "nodeName": "n" }, "status": { "conditions": ready } })
}

/// A writer beside an API server with pods of `llm/chat`.
struct Fixture {
    writes: Writes,
    board: Board,
    leadership: watch::Sender<Leadership>,
    sequence: u64,
}

/// With these pods, and this answer to every patch.
async fn fixture(pods: Vec<Value>, answer: (u16, Value)) -> Fixture {
    let count = pods.len();
    let (client, writes) = server(move |request| match request.path.as_str() {
        _ if request.is_watch() => None,
        "/apis/llmd.ai/v1alpha1/variantautoscalings" => list(json!([variant()])),
        "/apis/apps/v1/deployments" => {
            list(json!([{ "metadata": { "namespace": "llm", "name": "chat", "uid": "d-1" } }]))
        }
        "/apis/apps/v1/replicasets" => {
            list(json!([{ "metadata": owned("Deployment", "d-1", "chat-1", "rs-1") }]))
        }
        "/api/v1/pods" => list(Value::from(pods.clone())),
        _ if request.method == "GET" => list(json!([])),
        _ => Some(answer.clone()),
    });
    let settings = WatchSettings { deletion_cost: true, ..WatchSettings::default() };
    let reader = watch_cluster(client.clone(), settings);
    let all = once(&reader, |state| state.pods.values().flatten().count() == count);
    timeout(WRITE_TIMEOUT, all).await.unwrap();
    let (board, leadership) = (Board::new(), watch::Sender::new(held()));
    let metrics = DeletionCostMetrics::default();
    let writer = DeletionCostWriter::new(client, reader, board.subscribe(), leadership.subscribe(), metrics);
    spawn(writer.run(CancellationToken::new()));
    Fixture { writes, board, leadership, sequence: 0 }
}

impl Fixture {
    /// Publishes an evaluation by which the pods `first` go first, and in which nothing is known of `unknown`.
    fn publish(&mut self, first: &[&str], unknown: &[&str]) {
        self.sequence += 1;
        let names = |all: &[&str]| all.iter().map(|name| (*name).into()).collect();
        let deletion_orders = DeletionOrder { first: names(first), unknown: names(unknown) };
        let deletion_orders = BTreeMap::from([(VariantId::new("llm", "chat"), deletion_orders)]);
        self.board.publish(Published { deletion_orders, ..published(self.sequence, 1) });
    }

    /// Pod and cost of each write until there is no more.
    async fn written(&mut self) -> Vec<(String, Option<String>)> {
        let mut all = Vec::new();
        while let Ok(Some(request)) = timeout(QUIET_WINDOW, self.writes.recv()).await {
            let pod = request.path.rsplit('/').next().unwrap().to_owned();
            let cost = request.body["metadata"]["annotations"][COST].as_str().map(str::to_owned);
            all.push((pod, cost));
        }
        all
    }
}

/// A fixture with `count` pods, of which the first `going` are to go, and this answer to every patch.
async fn fleet(count: usize, going: usize, answer: (u16, Value)) -> (Fixture, Vec<String>) {
    let names: Vec<_> = (0..count).map(|index| format!("p{index:03}")).collect();
    let pods = names.iter().map(|name| pod(name, None)).collect();
    (fixture(pods, answer).await, names.into_iter().take(going).collect())
}

fn fine() -> (u16, Value) {
    (200, json!({ "metadata": { "namespace": "llm", "name": "any" } }))
}

#[tokio::test]
async fn only_the_leader_writes_and_takes_nothing_from_other_field_managers() {
    let mut fixture = fixture(vec![pod("a", None), pod("b", None)], fine()).await;
    fixture.leadership.send_replace(Leadership::default());
    fixture.publish(&["b"], &[]);
    silence(&mut fixture.writes).await;
    fixture.leadership.send_replace(held());
    fixture.publish(&["b"], &[]);
    let request = next(&mut fixture.writes).await;
    assert_eq!((request.method.as_str(), request.path.as_str()), ("PATCH", "/api/v1/namespaces/llm/pods/b"));
    assert_eq!(request.content_type, "application/apply-patch+yaml");
    assert!(
        request.query.contains("fieldManager=wva") && !request.query.contains("force"),
        "{}",
        request.query
    );
    let metadata =
        json!({ "namespace": "llm", "name": "b", "uid": "uid-b", "annotations": { COST: "-1000" } });
    assert_eq!(
        request.body,
        json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata }),
        "and nothing else"
    );
    silence(&mut fixture.writes).await;
}

#[tokio::test]
async fn the_first_pod_has_the_lowest_cost_and_old_costs_go_unless_the_pod_is_unknown() {
    let pods = vec![
        pod("a", Some(-1000)),
        pod("b", None),
        pod("c", Some(-999)),
        pod("d", Some(-1000)),
        pod("e", None),
        pod("f", Some(-998)),
    ];
    let mut fixture = fixture(pods, fine()).await;
    fixture.publish(&["b", "c", "d"], &["e", "f"]);
    let mut written = fixture.written().await;
    assert_eq!(written[0], ("b".into(), Some("-1000".into())), "a pod without a cost comes first");
    written.sort();
    let expected = [("a", None), ("b", Some("-1000")), ("d", Some("-998"))];
    assert_eq!(written, expected.map(|(pod, cost): (&str, Option<&str>)| (pod.into(), cost.map(Into::into))));
}

#[tokio::test]
async fn a_variant_that_no_longer_shrinks_has_no_costs() {
    let mut fixture = fixture(vec![pod("a", Some(-1000)), pod("b", None)], fine()).await;
    fixture.publish(&[], &[]);
    assert_eq!(fixture.written().await, [("a".to_owned(), None)]);
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_written_to_again_after_half_a_minute_and_then_less_and_less_often() {
    let mut fixture = fixture(vec![pod("a", None), pod("b", None), pod("c", None)], fine()).await;
    fixture.publish(&["a"], &[]);
    assert_eq!(fixture.written().await.len(), 1);
    fixture.publish(&["b", "a"], &[]);
    assert_eq!(
        fixture.written().await,
        [("b".to_owned(), Some("-1000".to_owned()))],
        "a has just been written"
    );
    advance(Duration::from_secs(31)).await;
    fixture.publish(&["b", "a"], &[]);
    let a = ("a".to_owned(), Some("-999".to_owned()));
    assert!(fixture.written().await.contains(&a));
    for (seconds, again) in [(31, false), (31, true), (91, false), (31, true)] {
        advance(Duration::from_secs(seconds)).await;
        fixture.leadership.send_replace(held());
        fixture.publish(&["b", "a"], &[]);
        assert_eq!(fixture.written().await.contains(&a), again, "after {seconds} s more");
    }
}

#[tokio::test(start_paused = true)]
async fn an_annotation_of_another_field_manager_is_left_alone_and_delays_no_other_pod() {
    let mut fixture =
        fixture(vec![pod("a", Some(7)), pod("b", None), pod("c", None)], status(409, "Conflict")).await;
    fixture.publish(&["a", "b"], &[]);
    assert_eq!(fixture.written().await.len(), 2);
    advance(Duration::from_secs(31)).await;
    fixture.publish(&["a", "b"], &[]);
    assert_eq!(fixture.written().await, [], "for five minutes");
}

#[tokio::test(start_paused = true)]
async fn a_cost_that_was_not_written_here_is_not_removed() {
    let mut fixture = fixture(vec![pod("a", Some(7)), pod("b", Some(-1000))], fine()).await;
    fixture.publish(&[], &[]);
    assert_eq!(fixture.written().await, [("b".to_owned(), None)]);
}

#[tokio::test(start_paused = true)]
async fn writes_are_bounded_and_an_evaluation_after_a_refusal_tries_few_pods() {
    for (case, count, going, answer, expected) in [
        ("refused: one batch an evaluation", 40, 30, status(403, "Forbidden"), [8, 8]),
        ("a hundred writes, and the rest after the next evaluation", 130, 120, fine(), [100, 20]),
    ] {
        let (mut fixture, going) = fleet(count, going, answer).await;
        let going: Vec<&str> = going.iter().map(String::as_str).collect();
        for writes in expected {
            fixture.publish(&going, &[]);
            assert_eq!(fixture.written().await.len(), writes, "{case}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_writer_that_loses_the_lease_stops() {
    let (mut fixture, going) = fleet(60, 50, fine()).await;
    fixture.publish(&going.iter().map(String::as_str).collect::<Vec<_>>(), &[]);
    next(&mut fixture.writes).await;
    fixture.leadership.send_replace(Leadership::default());
    assert!(fixture.written().await.len() < 16);
}
