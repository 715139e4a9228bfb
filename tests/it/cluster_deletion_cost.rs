//! Which pods are marked to go first, as the API server sees it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::time::{advance, timeout};
use tokio_util::sync::CancellationToken;
use wva::cluster::watch::Settings;
use wva::cluster::writers::deletion_cost::DeletionCostMetrics;
use wva::cluster::{ClusterWatch, DeletionCostWriter};
use wva::engine::{Board, Leadership, Published};
use wva_core::VariantId;
use wva_core::pod_deletion_order::DeletionOrder;

use crate::cluster::{Asked, QUIET, SOON, held, is_watch, list, next, published, server, silence};

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

/// A writer beside an API server that has these pods of `llm/chat` and answers every patch so.
struct Bed {
    writes: mpsc::Receiver<Asked>,
    board: Board,
    leadership: watch::Sender<Leadership>,
    sequence: u64,
    stop: CancellationToken,
}

async fn bed(pods: Vec<Value>, answer: (u16, Value)) -> Bed {
    let count = pods.len();
    let (client, writes) = server(move |asked| match asked.path.as_str() {
        _ if is_watch(asked) => None,
        "/apis/llmd.ai/v1alpha1/variantautoscalings" => list(json!([{
            "apiVersion": "llmd.ai/v1alpha1", "kind": "VariantAutoscaling",
            "metadata": { "namespace": "llm", "name": "chat", "uid": "u-1" },
            "spec": { "scaleTargetRef": { "kind": "Deployment", "name": "chat" }, "modelID": "m" }
        }])),
        "/apis/apps/v1/deployments" => {
            list(json!([{ "metadata": { "namespace": "llm", "name": "chat", "uid": "d-1" } }]))
        }
        "/apis/apps/v1/replicasets" => {
            list(json!([{ "metadata": owned("Deployment", "d-1", "chat-1", "rs-1") }]))
        }
        "/api/v1/pods" => list(Value::from(pods.clone())),
        _ if asked.method == "GET" => list(json!([])),
        _ => Some(answer.clone()),
    });
    let (watches, reader) =
        ClusterWatch::new(client.clone(), Settings { deletion_cost: true, ..Settings::default() });
    let (board, leadership, stop) = (Board::new(), watch::Sender::new(held()), CancellationToken::new());
    let metrics = DeletionCostMetrics::default();
    let mut changes = reader.subscribe();
    let writer = DeletionCostWriter::new(client, reader, board.subscribe(), leadership.subscribe(), metrics);
    #[expect(clippy::disallowed_methods, reason = "app spawns it; here the test is the app")]
    tokio::spawn(watches.run(stop.clone()));
    #[expect(clippy::disallowed_methods, reason = "app spawns it; here the test is the app")]
    tokio::spawn(writer.run(stop.clone()));
    let all = changes
        .wait_for(|observed| observed.view.synced && observed.pods.values().flatten().count() == count);
    timeout(SOON, all).await.unwrap().unwrap();
    Bed { writes, board, leadership, sequence: 0, stop }
}

impl Bed {
    /// An evaluation by which these pods go first; of those nothing is known.
    fn publish(&mut self, first: &[&str], unknown: &[&str]) {
        self.sequence += 1;
        let names = |all: &[&str]| all.iter().map(|name| (*name).into()).collect();
        let victims = DeletionOrder { first: names(first), unknown: names(unknown) };
        let victims = BTreeMap::from([(VariantId::new("llm", "chat"), victims)]);
        self.board.publish(Published { victims, ..published(self.sequence, 1) });
    }

    /// All that is written before it is quiet: the pod, and its cost.
    async fn written(&mut self) -> Vec<(String, Option<String>)> {
        let mut all = Vec::new();
        while let Ok(Some(asked)) = timeout(QUIET, self.writes.recv()).await {
            let pod = asked.path.rsplit('/').next().unwrap().to_owned();
            let cost = asked.body["metadata"]["annotations"][COST].as_str().map(str::to_owned);
            all.push((pod, cost));
        }
        all
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn fine() -> (u16, Value) {
    (200, json!({ "metadata": { "namespace": "llm", "name": "any" } }))
}

fn refusal(code: u16, reason: &str) -> (u16, Value) {
    (
        code,
        json!({ "kind": "Status", "status": "Failure", "reason": reason, "code": code, "message": reason }),
    )
}

#[tokio::test]
async fn only_the_holder_marks_pods_and_takes_nothing_from_other_managers() {
    let mut bed = bed(vec![pod("a", None), pod("b", None)], fine()).await;
    bed.leadership.send_replace(Leadership::default());
    bed.publish(&["b"], &[]);
    silence(&mut bed.writes).await;
    bed.leadership.send_replace(held());
    bed.publish(&["b"], &[]);
    let asked = next(&mut bed.writes).await;
    assert_eq!((asked.method.as_str(), asked.path.as_str()), ("PATCH", "/api/v1/namespaces/llm/pods/b"));
    assert_eq!(asked.content_type, "application/apply-patch+yaml");
    assert!(asked.query.contains("fieldManager=wva") && !asked.query.contains("force"), "{}", asked.query);
    let metadata =
        json!({ "namespace": "llm", "name": "b", "uid": "uid-b", "annotations": { COST: "-1000" } });
    assert_eq!(
        asked.body,
        json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata }),
        "and nothing else"
    );
    silence(&mut bed.writes).await;
}

#[tokio::test]
async fn the_first_to_go_is_the_cheapest_and_an_old_mark_goes_unless_nothing_is_known_of_its_pod() {
    let pods = vec![
        pod("a", Some(-1000)),
        pod("b", None),
        pod("c", Some(-999)),
        pod("d", Some(-1000)),
        pod("e", None),
        pod("f", Some(-998)),
    ];
    let mut bed = bed(pods, fine()).await;
    bed.publish(&["b", "c", "d"], &["e", "f"]);
    let mut written = bed.written().await;
    assert_eq!(written[0], ("b".into(), Some("-1000".into())), "what does not say so yet comes first");
    written.sort();
    let expected = [("a", None), ("b", Some("-1000")), ("d", Some("-998"))];
    assert_eq!(written, expected.map(|(pod, cost): (&str, Option<&str>)| (pod.into(), cost.map(Into::into))));
}

#[tokio::test]
async fn a_variant_that_shrinks_no_more_has_no_marks() {
    let mut bed = bed(vec![pod("a", Some(-1000)), pod("b", None)], fine()).await;
    bed.publish(&[], &[]);
    assert_eq!(bed.written().await, [("a".to_owned(), None)]);
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_written_to_after_half_a_minute_at_the_earliest_and_then_more_and_more_rarely() {
    let mut bed = bed(vec![pod("a", None), pod("b", None), pod("c", None)], fine()).await;
    bed.publish(&["a"], &[]);
    assert_eq!(bed.written().await.len(), 1);
    bed.publish(&["b", "a"], &[]);
    assert_eq!(bed.written().await, [("b".to_owned(), Some("-1000".to_owned()))], "a has just been written");
    advance(Duration::from_secs(31)).await;
    bed.publish(&["b", "a"], &[]);
    let a = ("a".to_owned(), Some("-999".to_owned()));
    assert!(bed.written().await.contains(&a));
    for (seconds, again) in [(31, false), (31, true), (91, false), (31, true)] {
        advance(Duration::from_secs(seconds)).await;
        bed.leadership.send_replace(held());
        bed.publish(&["b", "a"], &[]);
        assert_eq!(bed.written().await.contains(&a), again, "after {seconds} s more");
    }
}

#[tokio::test(start_paused = true)]
async fn an_annotation_of_somebody_else_is_left_alone_and_keeps_nobody_else_waiting() {
    let mut bed =
        bed(vec![pod("a", Some(7)), pod("b", None), pod("c", None)], refusal(409, "Conflict")).await;
    bed.publish(&["a", "b"], &[]);
    assert_eq!(bed.written().await.len(), 2);
    advance(Duration::from_secs(31)).await;
    bed.publish(&["a", "b"], &[]);
    assert_eq!(bed.written().await, [], "for five minutes");
}

#[tokio::test(start_paused = true)]
async fn a_cost_that_nobody_here_wrote_is_not_removed_over_and_over() {
    let mut bed = bed(vec![pod("a", Some(7)), pod("b", Some(-1000))], fine()).await;
    bed.publish(&[], &[]);
    assert_eq!(bed.written().await, [("b".to_owned(), None)]);
}

#[tokio::test(start_paused = true)]
async fn what_is_refused_is_not_tried_on_every_pod() {
    let names: Vec<String> = (0..40).map(|number| format!("p{number:02}")).collect();
    let pods = names.iter().map(|name| pod(name, None)).collect();
    let mut bed = bed(pods, refusal(403, "Forbidden")).await;
    let first: Vec<&str> = names.iter().map(String::as_str).take(30).collect();
    bed.publish(&first, &[]);
    assert_eq!(bed.written().await.len(), 8, "one go");
    bed.publish(&first, &[]);
    assert_eq!(bed.written().await.len(), 8, "the next result, the next go");
}

#[tokio::test(start_paused = true)]
async fn one_evaluation_has_a_hundred_writes_and_the_next_one_the_rest() {
    let names: Vec<String> = (0..130).map(|number| format!("p{number:03}")).collect();
    let mut bed = bed(names.iter().map(|name| pod(name, None)).collect(), fine()).await;
    let first: Vec<&str> = names.iter().map(String::as_str).take(120).collect();
    bed.publish(&first, &[]);
    assert_eq!(bed.written().await.len(), 100);
    bed.publish(&first, &[]);
    assert_eq!(bed.written().await.len(), 20);
}

#[tokio::test(start_paused = true)]
async fn who_lost_the_lease_on_the_way_stops() {
    let names: Vec<String> = (0..60).map(|number| format!("p{number:02}")).collect();
    let mut bed = bed(names.iter().map(|name| pod(name, None)).collect(), fine()).await;
    let first: Vec<&str> = names.iter().map(String::as_str).take(50).collect();
    bed.publish(&first, &[]);
    next(&mut bed.writes).await;
    bed.leadership.send_replace(Leadership::default());
    assert!(bed.written().await.len() < 16);
}
