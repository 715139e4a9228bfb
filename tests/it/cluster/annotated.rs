//! HPAs and ScaledObjects that annotations make variants, as an API server has them or does not.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use tokio::time::sleep;
use wva::cluster::{AnnotatedEventWriter, ClusterState, StatusWriter};

use super::*;
use crate::serve::client::Captured;

const HPAS: &str = "/apis/autoscaling/v2/horizontalpodautoscalers";
const SCALED_OBJECTS: &str = "/apis/keda.sh/v1alpha1/scaledobjects";

/// An annotated object that was created in this year.
fn annotated(version: &str, kind: &str, name: &str, target: &str, year: u32) -> Value {
    json!({
        "apiVersion": version, "kind": kind,
        "metadata": {
            "namespace": "llm", "name": name, "uid": format!("{name}-1"), "resourceVersion": "1",
            "creationTimestamp": format!("{year}-01-01T00:00:00Z"),
            "annotations": { "llm-d.ai/managed": "true", "llm-d.ai/model-id": "m" },
        },
        "spec": { "scaleTargetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": target } },
    })
}

fn hpa(name: &str, target: &str, year: u32) -> Value {
    annotated("autoscaling/v2", "HorizontalPodAutoscaler", name, target, year)
}

fn scaled_object(name: &str, target: &str, year: u32) -> Value {
    annotated("keda.sh/v1alpha1", "ScaledObject", name, target, year)
}

/// The watches of a cluster that answers by `script`, and with empty lists where that has no answer.
fn watched(
    mut script: impl FnMut(&ApiRequest) -> Option<(u16, Value)> + Send + 'static,
) -> (kube::Client, Writes, ClusterReader) {
    let (client, writes) = server(move |request| {
        let answer = script(request);
        match request.method.as_str() {
            "GET" if answer.is_none() && !request.is_watch() => list(json!([])),
            "GET" => answer.filter(|(code, _)| !request.is_watch() || *code != 200),
            _ => answer.or_else(|| Some((200, json!({ "metadata": { "namespace": "llm", "name": "x" } })))),
        }
    });
    let settings = WatchSettings { annotated: true, ..WatchSettings::default() };
    let reader = watch_cluster(client.clone(), settings);
    (client, writes, reader)
}

fn names(state: &ClusterState) -> Vec<&str> {
    state.view.variants.iter().map(|state| state.variant.id.name.as_str()).collect()
}

fn aliases(state: &ClusterState) -> Vec<(&str, &str)> {
    state.view.aliases.iter().map(|(id, own)| (id.name.as_str(), own.as_str())).collect()
}

#[tokio::test(start_paused = true)]
async fn scaled_objects_come_and_go_with_keda_without_a_restart() {
    let (is_installed, lists) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let (installed, counted) = (is_installed.clone(), lists.clone());
    let (_client, writes, reader) = watched(move |request| {
        if request.path != SCALED_OBJECTS {
            return None;
        }
        counted.fetch_add(1, Ordering::SeqCst);
        let objects = json!([scaled_object("chat-scaler", "chat", 2026)]);
        if installed.load(Ordering::SeqCst) { list(objects) } else { not_found() }
    });
    discard(writes);
    let began = Instant::now();
    once(&reader, |state| names(state).is_empty()).await;
    assert!(began.elapsed() < Duration::from_secs(5), "nothing waits for an absent kind");
    sleep(Duration::from_secs(300)).await;
    let count = lists.load(Ordering::SeqCst);
    assert!((9..=12).contains(&count), "{count} lists in 5 minutes");
    is_installed.store(true, Ordering::SeqCst);
    let state = once(&reader, |state| names(state) == ["chat-scaler"]).await;
    assert_eq!(aliases(&state), [("chat", "chat-scaler")]);
    is_installed.store(false, Ordering::SeqCst);
    once(&reader, |state| names(state).is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn one_answer_that_a_kind_does_not_exist_forgets_no_variant() {
    let failures = Arc::new(AtomicU32::new(0));
    let left = failures.clone();
    let (_client, writes, reader) = watched(move |request| {
        let fails = |left: u32| left.checked_sub(1);
        match request.path.as_str() {
            SCALED_OBJECTS if left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fails).is_ok() => {
                not_found()
            }
            SCALED_OBJECTS => list(json!([scaled_object("chat-scaler", "chat", 2026)])),
            _ => None,
        }
    });
    discard(writes);
    once(&reader, |state| names(state) == ["chat-scaler"]).await;
    failures.store(1, Ordering::SeqCst);
    let mut states = reader.subscribe();
    let is_lost = states.wait_for(|state| names(state).is_empty());
    assert!(timeout(Duration::from_secs(300), is_lost).await.is_err(), "its number would be forgotten");
    assert_eq!(failures.load(Ordering::SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn a_restart_forgot_annotated_variants_when_the_first_lists_failed() {
    let began = Instant::now();
    let starts = move || began.elapsed() < Duration::from_secs(60);
    let (_client, writes, reader) = watched(move |request| match request.path.as_str() {
        HPAS if starts() => Some(status(if began.elapsed().as_secs() < 30 { 500 } else { 404 }, "Starting")),
        HPAS => list(json!([hpa("chat-hpa", "chat", 2026)])),
        _ => None,
    });
    discard(writes);
    let first = once(&reader, |_| true).await;
    assert_eq!(names(&first), ["chat-hpa"], "nothing is decided without it");
    assert!(began.elapsed() >= Duration::from_secs(60));
}

#[tokio::test(start_paused = true)]
async fn a_restart_forgot_scaled_objects_when_their_kind_was_not_served_yet() {
    let lists = AtomicU32::new(0);
    let (_client, writes, reader) = watched(move |request| match request.path.as_str() {
        SCALED_OBJECTS if lists.fetch_add(1, Ordering::SeqCst) == 0 => not_found(),
        SCALED_OBJECTS => list(json!([scaled_object("chat-scaler", "chat", 2026)])),
        _ => None,
    });
    discard(writes);
    assert_eq!(names(&*once(&reader, |_| true).await), ["chat-scaler"]);
}

#[tokio::test(start_paused = true)]
async fn without_keda_an_outage_of_the_api_server_left_a_warning_that_nothing_revoked() {
    let (log, _guard) = Captured::log(tracing::Level::INFO);
    let began = Instant::now();
    let (_client, writes, reader) = watched(move |request| {
        let is_away = (60..120).contains(&began.elapsed().as_secs());
        (request.path == SCALED_OBJECTS)
            .then(|| if is_away { Some(status(500, "InternalError")) } else { not_found() })
            .flatten()
    });
    discard(writes);
    once(&reader, |_| true).await;
    sleep(Duration::from_secs(300)).await;
    assert_eq!(log.lines("ScaledObjects"), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn the_first_state_waits_ten_seconds_for_hpas_that_may_not_be_listed() {
    let is_allowed = Arc::new(AtomicBool::new(false));
    let allowed = is_allowed.clone();
    let (_client, writes, reader) = watched(move |request| match request.path.as_str() {
        HPAS if allowed.load(Ordering::SeqCst) => list(json!([hpa("chat-hpa", "chat", 2026)])),
        HPAS => Some(status(403, "Forbidden")),
        _ => None,
    });
    discard(writes);
    let began = Instant::now();
    once(&reader, |state| names(state).is_empty()).await;
    assert!(began.elapsed() >= Duration::from_secs(10), "{:?}", began.elapsed());
    is_allowed.store(true, Ordering::SeqCst);
    once(&reader, |state| names(state) == ["chat-hpa"]).await;
}

#[tokio::test(start_paused = true)]
async fn an_hpa_beside_a_variant_autoscaling_makes_no_second_variant() {
    let (_client, writes, reader) = watched(|request| match request.path.as_str() {
        "/apis/llmd.ai/v1alpha1/variantautoscalings" => list(json!([variant()])),
        HPAS => list(json!([
            hpa("chat-hpa", "chat", 2024),
            hpa("web-hpa", "web", 2025),
            json!({ "metadata": { "namespace": "llm", "name": "plain", "resourceVersion": "1" }, "spec": {} }),
        ])),
        SCALED_OBJECTS => list(json!([scaled_object("web-scaler", "web", 2026)])),
        _ => None,
    });
    discard(writes);
    let state = once(&reader, |state| !state.objects.is_empty()).await;
    assert_eq!(names(&state), ["chat", "web-hpa"], "the older one of two on one target");
    assert_eq!(aliases(&state), [("chat-hpa", "chat"), ("web", "web-hpa"), ("web-scaler", "web-hpa")]);
    let bystanders: Vec<_> = state.bystanders.iter().map(|bystander| bystander.id.name.as_str()).collect();
    assert_eq!(bystanders, ["chat-hpa", "web-scaler"]);
    assert!(state.view.invalid.is_empty(), "{:?}", state.view.invalid);
}

#[tokio::test(start_paused = true)]
async fn an_event_that_the_api_server_refused_counted_as_written() {
    let posts = AtomicU32::new(0);
    let (client, mut writes, reader) = watched(move |request| match request.path.as_str() {
        HPAS => list(json!([hpa("chat", "web", 2025), hpa("second", "web", 2026)])),
        _ if request.method == "POST" && posts.fetch_add(1, Ordering::SeqCst) == 0 => {
            Some(status(500, "InternalError"))
        }
        _ => None,
    });
    once(&reader, |state| names(state) == ["chat"]).await;
    let (board, leadership) = (Board::new(), watch::Sender::new(held()));
    let (results, held) = (board.subscribe(), leadership.subscribe());
    let events = AnnotatedEventWriter::new(client, reader, results, held, "a".into(), |_| Vec::new());
    spawn(events.run(CancellationToken::new()));
    for sequence in [1, 2] {
        board.publish(published(sequence, 1));
        let event = next(&mut writes).await;
        assert_eq!(event.body["reason"], "TargetDecidedElsewhere", "result {sequence}");
        sleep(Duration::from_secs(120)).await;
    }
    board.publish(published(3, 1));
    silence(&mut writes).await;
}

#[tokio::test]
async fn an_annotated_object_gets_events_and_no_status() {
    let (client, mut writes, reader) = watched(|request| match request.path.as_str() {
        HPAS => list(json!([hpa("chat", "web", 2025), hpa("second", "web", 2026)])),
        _ => None,
    });
    once(&reader, |state| names(state) == ["chat"]).await;
    let (board, leadership) = (Board::new(), watch::Sender::new(held()));
    let (published_results, held) = (board.subscribe(), leadership.subscribe());
    let statuses = StatusWriter::new(
        client.clone(),
        reader.clone(),
        published_results.clone(),
        held.clone(),
        "a".into(),
        |_| Vec::new(),
    );
    let events =
        AnnotatedEventWriter::new(client, reader, published_results, held, "a".into(), |_| Vec::new());
    spawn(statuses.run(CancellationToken::new()));
    spawn(events.run(CancellationToken::new()));
    let mut event = async || {
        let event = next(&mut writes).await;
        assert_eq!(
            (event.method.as_str(), event.path.as_str()),
            ("POST", "/apis/events.k8s.io/v1/namespaces/llm/events")
        );
        let text =
            |pointer| event.body.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        assert_eq!(
            (text("/regarding/apiVersion"), text("/regarding/kind")),
            ("autoscaling/v2".into(), "HorizontalPodAutoscaler".into())
        );
        [text("/regarding/uid"), text("/reason"), text("/note")]
    };
    let decided = |sequence, desired| {
        let revision = Revision { uid: "chat-1".into(), generation: 0 };
        let revisions = Arc::new(BTreeMap::from([(VariantId::new("llm", "chat"), revision)]));
        Published { revisions, ..published(sequence, desired) }
    };
    board.publish(decided(1, 1));
    let [uid, reason, note] = event().await;
    assert_eq!((uid.as_str(), reason.as_str()), ("chat-1", "NumberNotRead"));
    assert!(note.ends_with("has more: NumberNotRead, SeveralAutoscalers"), "{note}");
    let [uid, reason, note] = event().await;
    assert_eq!((uid.as_str(), reason.as_str()), ("second-1", "TargetDecidedElsewhere"));
    assert!(
        note.starts_with("HorizontalPodAutoscaler llm/chat decides about the same scale target"),
        "{note}"
    );
    board.publish(decided(2, 3));
    let [uid, reason, note] = event().await;
    assert_eq!((uid.as_str(), reason.as_str()), ("chat-1", "DesiredReplicasChanged"));
    assert!(note.starts_with("desired replicas 1 → 3: busy"), "{note}");
    board.publish(decided(3, 3));
    silence(&mut writes).await;
}

/// An HPA without annotations, which the watch of annotated ones did not keep before.
#[tokio::test]
async fn an_hpa_that_multiplies_the_number_is_a_condition_of_the_variant_and_an_event() {
    let (client, mut writes, reader) = watched(|request| match request.path.as_str() {
        "/apis/llmd.ai/v1alpha1/variantautoscalings" => list(json!([variant()])),
        HPAS => {
            let mut plain = hpa("plain", "chat", 2025);
            plain["metadata"]["annotations"] = Value::Null;
            plain["spec"]["maxReplicas"] = json!(8);
            plain["spec"]["metrics"] = json!([{ "type": "External", "external": {
                "metric": { "name": "wva_desired_replicas", "selector": { "matchLabels": { "variant_name": "chat" } } },
                "target": { "type": "Value", "value": "1" }
            } }]);
            list(json!([plain]))
        }
        _ => None,
    });
    once(&reader, |state| names(state) == ["chat"]).await;
    let (board, leadership) = (Board::new(), watch::Sender::new(held()));
    let (results, held) = (board.subscribe(), leadership.subscribe());
    let statuses = StatusWriter::new(client, reader, results, held, "a".into(), |_| Vec::new());
    spawn(statuses.run(CancellationToken::new()));
    board.publish(published(1, 1));
    let written = next(&mut writes).await;
    assert!(written.path.ends_with("/chat/status"), "{written:?}");
    let conditions = written.body["status"]["conditions"].as_array().unwrap();
    let condition = conditions.iter().find(|condition| condition["type"] == "AutoscalerConfigured").unwrap();
    assert_eq!(
        (&condition["status"], &condition["reason"]),
        (&json!("False"), &json!("TargetTypeMultiplies"))
    );
    let message = condition["message"].as_str().unwrap();
    assert!(message.starts_with("HorizontalPodAutoscaler llm/plain: the target"), "{message}");
    loop {
        let event = next(&mut writes).await;
        if event.body["reason"] == "TargetTypeMultiplies" {
            assert_eq!(event.body["regarding"]["name"], "chat");
            break;
        }
    }
}
