//! The scale of woken variants, and InferencePools, as the API server sees them.

use wva::cluster::ScaleWriter;
use wva::engine::Term;
use wva::telemetry::WakeMetrics;

use super::*;

const SCALE: &str = "/apis/apps/v1/namespaces/llm/deployments/chat/scale";
const SCALED_OBJECTS: &str = "/apis/keda.sh/v1alpha1/scaledobjects";

fn scale(replicas: i32) -> (u16, Value) {
    let metadata = json!({ "namespace": "llm", "name": "chat", "resourceVersion": "41" });
    (200, json!({ "metadata": metadata, "spec": { "replicas": replicas }, "status": { "replicas": 0 } }))
}

/// The number of the variant chat, decided in the term of this epoch.
fn published(epoch: i64, reason: Reason) -> Published {
    let verdict = Verdict::Target(Target {
        desired: Replicas::new(2),
        reason,
        explanation: "a request waits".into(),
        evidence: "2026-11-21T10:00:00Z".parse().unwrap(),
    });
    let decision =
        Decision { model: "m".into(), accelerator: None, current: Some(Replicas::ZERO), verdict, gap: None };
    Published {
        origin: Origin::Computed,
        term: Some(Term { epoch, ..held().term().unwrap() }),
        decisions: [(VariantId::new("llm", "chat"), decision)].into(),
        revisions: Arc::new([(VariantId::new("llm", "chat"), revision(3))].into()),
        ..Published::empty()
    }
}

/// A writer beside an API server that has the variant chat at zero, and answers reads of its scale with `read`, and writes with each of
/// `written` in turn.
struct Fixture {
    writes: Writes,
    board: Board,
    leadership: watch::Sender<Leadership>,
    registry: Registry,
}

async fn fixture(read: (u16, Value), written: Vec<(u16, Value)>) -> Fixture {
    fixture_with(read, written, list(json!([])).unwrap()).await
}

/// The same, with this answer to a list of ScaledObjects.
async fn fixture_with(
    read: (u16, Value),
    written: Vec<(u16, Value)>,
    scaled_objects: (u16, Value),
) -> Fixture {
    let mut written = written.into_iter();
    let is_known = scaled_objects.0 == 200;
    let (client, writes) = server(move |request| match request.path.as_str() {
        _ if request.is_watch() => None,
        SCALE if request.method == "GET" => Some(read.clone()),
        SCALE => Some(written.next().expect("no further write")),
        SCALED_OBJECTS => Some(scaled_objects.clone()),
        "/apis/llmd.ai/v1alpha1/variantautoscalings" => list(json!([variant()])),
        "/apis/apps/v1/deployments" => list(json!([{
            "metadata": { "namespace": "llm", "name": "chat", "uid": "d-1" }, "spec": { "replicas": 0 },
        }])),
        _ => list(json!([])),
    });
    let settings = WatchSettings { annotated: true, ..WatchSettings::default() };
    let reader = watch_cluster(client.clone(), settings);
    let is_ready = |state: &ClusterState| {
        let is_at_zero = state.view.variants.iter().any(|variant| variant.scale.is_some());
        is_at_zero && state.knows_pauses == is_known
    };
    timeout(WRITE_TIMEOUT, until(&reader, is_ready)).await.unwrap();
    let leadership = watch::Sender::new(held());
    let mut registry = Registry::default();
    let metrics = WakeMetrics::register(&mut registry);
    let board = Board::new();
    let writer = ScaleWriter::new(client, reader, board.clone(), leadership.subscribe(), metrics);
    spawn(writer.run(CancellationToken::new()));
    Fixture { writes, board, leadership, registry }
}

impl Fixture {
    fn epoch(&self) -> i64 {
        self.leadership.borrow().term().unwrap().epoch
    }

    fn wake(&self) {
        self.board.publish(published(self.epoch(), Reason::ScaleFromZero));
    }

    fn counted(&self, result: &str) -> bool {
        let mut text = String::new();
        encode(&mut text, &self.registry).unwrap();
        text.contains(&format!("wva_wake_scale_writes_total{{result=\"{result}\"}} 1"))
    }
}

#[tokio::test]
async fn a_woken_variant_is_scaled_from_the_version_that_was_read() {
    let mut fixture = fixture(scale(0), vec![scale(2)]).await;
    fixture.wake();
    let request = next(&mut fixture.writes).await;
    assert_eq!((request.method.as_str(), request.path.as_str()), ("PATCH", SCALE));
    assert_eq!(request.content_type, "application/merge-patch+json");
    assert!(request.query.contains("fieldManager=wva"), "{}", request.query);
    assert_eq!(request.body, json!({ "metadata": { "resourceVersion": "41" }, "spec": { "replicas": 2 } }));
    silence(&mut fixture.writes).await;
    assert!(fixture.counted("scaled"));
}

#[tokio::test]
async fn a_wake_up_whose_result_was_replaced_before_it_was_read_was_lost() {
    let mut fixture = fixture(scale(0), vec![scale(2)]).await;
    fixture.wake();
    // Without a pause in between, the writer sees this one only.
    fixture.board.publish(published(fixture.epoch(), Reason::Transition));
    assert_eq!(next(&mut fixture.writes).await.path, SCALE);
    silence(&mut fixture.writes).await;
}

/// Its scale target may be another one since.
#[tokio::test]
async fn an_object_that_has_changed_since_the_decision_is_not_scaled_by_it() {
    let mut fixture = fixture(scale(0), vec![scale(2)]).await;
    let epoch = fixture.epoch();
    let decided = |generation| {
        let revisions = Arc::new([(VariantId::new("llm", "chat"), revision(generation))].into());
        Published { revisions, ..published(epoch, Reason::ScaleFromZero) }
    };
    fixture.board.publish(decided(2));
    silence(&mut fixture.writes).await;
    fixture.board.publish(decided(3));
    assert_eq!(next(&mut fixture.writes).await.path, SCALE);
}

#[tokio::test]
async fn a_scale_that_somebody_has_changed_is_left_as_it_is() {
    let mut scaled = fixture(scale(1), vec![]).await;
    scaled.wake();
    silence(&mut scaled.writes).await;
    assert!(scaled.counted("left"));
    let mut gone = fixture(status(404, "NotFound"), vec![]).await;
    gone.wake();
    silence(&mut gone.writes).await;
    assert!(gone.counted("left"));
}

#[tokio::test]
async fn after_a_conflict_the_scale_is_read_again_and_not_for_ever() {
    let mut fixture = fixture(scale(0), vec![status(409, "Conflict"), scale(2)]).await;
    fixture.wake();
    next(&mut fixture.writes).await;
    next(&mut fixture.writes).await;
    silence(&mut fixture.writes).await;
    assert!(fixture.counted("scaled"));
}

#[tokio::test]
async fn an_instance_that_does_not_decide_in_the_term_of_the_number_writes_nothing() {
    let mut lost = fixture(scale(0), vec![]).await;
    let epoch = lost.epoch();
    lost.leadership.send_replace(Leadership::default());
    lost.board.publish(published(epoch, Reason::ScaleFromZero));
    silence(&mut lost.writes).await;
    let mut later = fixture(scale(0), vec![]).await;
    later.board.publish(published(later.epoch() - 1, Reason::ScaleFromZero));
    silence(&mut later.writes).await;
    assert!(later.counted("left"));
}

#[tokio::test]
async fn a_right_that_is_missing_is_counted() {
    let mut fixture = fixture(scale(0), vec![status(403, "Forbidden")]).await;
    fixture.wake();
    next(&mut fixture.writes).await;
    silence(&mut fixture.writes).await;
    assert!(fixture.counted("failed"));
}

#[tokio::test]
async fn a_write_that_failed_was_never_tried_again() {
    let mut fixture = fixture(scale(0), vec![status(403, "Forbidden"), scale(2)]).await;
    fixture.wake();
    next(&mut fixture.writes).await;
    silence(&mut fixture.writes).await;
    // The next evaluation waits for the pods of that number.
    fixture.board.publish(published(fixture.epoch(), Reason::Transition));
    next(&mut fixture.writes).await;
    silence(&mut fixture.writes).await;
    assert!(fixture.counted("scaled"));
}

#[tokio::test]
async fn a_number_that_no_request_woke_is_not_written() {
    let mut fixture = fixture(scale(0), vec![]).await;
    fixture.board.publish(published(fixture.epoch(), Reason::Transition));
    silence(&mut fixture.writes).await;
}

/// A person may have paused the workload by an object that may not be read.
#[tokio::test]
async fn while_scaled_objects_are_not_known_nothing_is_scaled() {
    let mut fixture = fixture_with(scale(0), vec![], status(403, "Forbidden")).await;
    fixture.wake();
    silence(&mut fixture.writes).await;
    assert!(fixture.counted("left"));
}

/// The kinds may be absent, refused or broken: the first state does not wait for them.
#[tokio::test]
async fn pools_and_claims_of_devices_that_cannot_be_listed_delay_nothing() {
    for answer in [status(404, "NotFound"), status(403, "Forbidden"), status(500, "InternalError")] {
        let (client, writes) = server(move |request| match request.path.as_str() {
            _ if request.is_watch() => None,
            "/apis/llmd.ai/v1alpha1/variantautoscalings" => list(json!([variant()])),
            path if path.ends_with("/inferencepools") || path.starts_with("/apis/resource.k8s.io/") => {
                Some(answer.clone())
            }
            _ => list(json!([])),
        });
        discard(writes);
        let reader = watch_cluster(client, WatchSettings::default());
        let state = timeout(WRITE_TIMEOUT, until(&reader, |state| state.view.synced)).await.unwrap();
        assert!(state.view.pools.is_empty());
    }
}

#[tokio::test]
async fn a_pool_and_its_service_lead_to_the_endpoint_picker() {
    let labels = json!({ "app": "vllm" });
    let template = json!({ "metadata": { "labels": labels } });
    let (client, writes) = server(move |request| match request.path.as_str() {
        _ if request.is_watch() => None,
        "/apis/llmd.ai/v1alpha1/variantautoscalings" => list(json!([variant()])),
        "/apis/apps/v1/deployments" => list(json!([{
            "metadata": { "namespace": "llm", "name": "chat", "uid": "d-1" },
            "spec": { "replicas": 0, "template": template },
        }])),
        "/apis/inference.networking.k8s.io/v1/inferencepools" => list(json!([{
            "metadata": { "namespace": "llm", "name": "pool" },
            "spec": { "selector": { "matchLabels": labels }, "endpointPickerRef": { "name": "epp" } },
        }])),
        "/apis/inference.networking.x-k8s.io/v1alpha2/inferencepools" => not_found(),
        "/api/v1/services" => list(json!([{
            "metadata": { "namespace": "llm", "name": "epp" }, "spec": { "selector": { "app": "epp" } },
        }])),
        "/api/v1/pods" => list(json!([{
            "metadata": {
                "namespace": "llm", "name": "epp-1", "uid": "p-1", "labels": { "app": "epp" },
                "ownerReferences": [{
                    "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "epp", "uid": "rs-1", "controller": true
                }],
            },
            "spec": { "nodeName": "n" },
            "status": { "podIP": "10.0.0.7", "conditions": [{ "type": "Ready", "status": "True" }] },
        }])),
        _ => list(json!([])),
    });
    discard(writes);
    let reader = watch_cluster(client, WatchSettings::default());
    let found = until(&reader, |state| state.view.pools.iter().any(|pool| !pool.schedulers.is_empty()));
    let view = &timeout(WRITE_TIMEOUT, found).await.unwrap().view;
    let scheduler = &view.pools[0].schedulers[0];
    assert_eq!((scheduler.ip.to_string(), scheduler.port), ("10.0.0.7".to_owned(), Some(9090)));
    assert_eq!(view.pools[0].variants, [VariantId::new("llm", "chat")].into());
}
