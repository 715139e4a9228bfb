//! Conversations with an API server where the request itself is the promise: lease, status. A server that
//! answers from a script can't show more than that; the end-to-end suite has a real one.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a helper of a test fails as the test does"
)]

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body as Answer;
use http::{Request, Response};
use http_body_util::BodyExt;
use jiff::Timestamp;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use wva::cluster::leadership::lease;
use wva::cluster::{ClusterReader, ClusterWatch, Election, StateStore, StateWriter, StatusWriter};
use wva::engine::{Board, Cluster, Holder, Leadership, Origin, Published, SystemClock};
use wva_core::decision::{Cause, Decision, Reason, Target, Unknown, Verdict};
use wva_core::units::Replicas;
use wva_core::{Memory, Report, VariantId};

/// How long a request that must come may take.
pub(crate) const SOON: Duration = Duration::from_secs(5);
/// How long nothing must come.
pub(crate) const QUIET: Duration = Duration::from_millis(400);

/// A request as it arrived.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) query: String,
    pub(crate) content_type: String,
    pub(crate) body: Value,
}

/// A client of a server that answers by `script`; without an answer a watch is opened
/// and says nothing, and another request stays open. Writes
/// are told.
pub(crate) fn server(
    mut script: impl FnMut(&Asked) -> Option<(u16, Value)> + Send + 'static,
) -> (kube::Client, mpsc::Receiver<Asked>) {
    let (service, mut handle) = tower_test::mock::pair::<Request<Body>, Response<Answer>>();
    let (told, writes) = mpsc::channel(64);
    #[expect(clippy::disallowed_methods, reason = "the other side of a test")]
    tokio::spawn(async move {
        let mut open = Vec::new();
        while let Some((request, respond)) = handle.next_request().await {
            let asked = asked(request).await;
            match script(&asked) {
                Some((code, body)) => {
                    let body = Answer::from(body.to_string());
                    respond.send_response(Response::builder().status(code).body(body).unwrap());
                }
                None if is_watch(&asked) => {
                    let silent = futures::stream::pending::<Result<String, Infallible>>();
                    respond.send_response(Response::new(Answer::from_stream(silent)));
                }
                None => open.push(respond),
            }
            if asked.method != "GET" && told.send(asked).await.is_err() {
                return;
            }
        }
    });
    (kube::Client::new(service, "default"), writes)
}

async fn asked(request: Request<Body>) -> Asked {
    let (head, body) = request.into_parts();
    let bytes = body.collect().await.unwrap().to_bytes();
    let header =
        |name| head.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
    Asked {
        method: head.method.to_string(),
        path: head.uri.path().to_owned(),
        query: head.uri.query().unwrap_or_default().to_owned(),
        content_type: header("content-type"),
        body: serde_json::from_slice(&bytes).unwrap_or_default(),
    }
}

pub(crate) async fn next(writes: &mut mpsc::Receiver<Asked>) -> Asked {
    timeout(SOON, writes.recv()).await.expect("a write in time").expect("an open channel")
}

pub(crate) async fn silence(writes: &mut mpsc::Receiver<Asked>) {
    if let Ok(Some(asked)) = timeout(QUIET, writes.recv()).await {
        panic!("unexpected {asked:?}");
    }
}

pub(crate) fn is_watch(asked: &Asked) -> bool {
    asked.query.contains("watch=")
}

pub(crate) fn list(items: Value) -> Option<(u16, Value)> {
    Some((
        200,
        json!({ "apiVersion": "v1", "kind": "List", "metadata": { "resourceVersion": "1" }, "items": items }),
    ))
}

pub(crate) fn not_found() -> Option<(u16, Value)> {
    Some((
        404,
        json!({ "kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404, "message": "none" }),
    ))
}

pub(crate) fn lease_object(version: &str, holder: &str, transitions: i32) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": { "name": wva::config::LEASE_NAME, "namespace": "wva", "resourceVersion": version, "uid": "l-1" },
        "spec": {
            "holderIdentity": holder, "leaseDurationSeconds": 1, "leaseTransitions": transitions,
            // A clock that is a century ahead must not matter.
            "renewTime": "2126-01-01T00:00:00.000000Z"
        }
    })
}

/// An election of instance `a` with a duration of one second; stopped by the token.
pub(crate) fn election(client: kube::Client) -> (watch::Receiver<Leadership>, CancellationToken) {
    let settings = lease::Settings {
        duration: Duration::from_secs(1),
        renew_deadline: Duration::from_millis(700),
        retry_period: Duration::from_millis(100),
        ..lease::Settings::new("wva", "a", Some("https://10.0.0.1:6443".to_owned()))
    };
    let (election, leadership) = Election::new(client, settings, Arc::new(SystemClock));
    let stop = CancellationToken::new();
    #[expect(clippy::disallowed_methods, reason = "app spawns it; here the test is the app")]
    tokio::spawn(election.run(stop.clone(), CancellationToken::new()));
    (leadership, stop)
}

/// A server with one lease: replaced and created as asked, versions counted.
fn lease_server(mut lease: Option<Value>) -> (kube::Client, mpsc::Receiver<Asked>) {
    let mut version = 10;
    server(move |asked| {
        if is_watch(asked) {
            return None;
        }
        if asked.method == "GET" && asked.query.contains("fieldSelector") {
            return list(json!([]));
        }
        if asked.method == "GET" {
            return lease.clone().map_or_else(not_found, |lease| Some((200, lease)));
        }
        version += 1;
        let mut stored = asked.body.clone();
        stored["metadata"]["resourceVersion"] = json!(version.to_string());
        lease = Some(stored.clone());
        Some((200, stored))
    })
}

#[tokio::test]
async fn the_first_instance_makes_the_lease_and_says_where_it_answers() {
    let (client, mut writes) = lease_server(None);
    let (mut leadership, _stop) = election(client);
    let made = next(&mut writes).await;
    assert_eq!(made.method, "POST");
    assert_eq!(made.path, "/apis/coordination.k8s.io/v1/namespaces/wva/leases");
    assert_eq!(made.body["spec"]["holderIdentity"], "a");
    assert_eq!(made.body["spec"]["leaseTransitions"], 1);
    assert_eq!(made.body["metadata"]["annotations"][lease::ADDRESS_ANNOTATION], "https://10.0.0.1:6443");
    timeout(SOON, leadership.wait_for(Leadership::is_mine)).await.unwrap().unwrap();
    let renewed = next(&mut writes).await;
    assert_eq!(
        (renewed.method.as_str(), &renewed.body["metadata"]["resourceVersion"]),
        ("PUT", &json!("11"))
    );
    assert_eq!(renewed.body["spec"]["leaseTransitions"], 1, "the same epoch");
    assert_eq!(renewed.body["spec"]["acquireTime"], made.body["spec"]["acquireTime"]);
}

#[tokio::test]
async fn a_lease_expires_by_what_we_saw_and_not_by_what_its_clock_says() {
    let (client, mut writes) = lease_server(Some(lease_object("7", "b", 4)));
    let (mut leadership, _stop) = election(client);
    let holder =
        |leadership: &Leadership| leadership.holder.as_ref().is_some_and(|holder| holder.identity == "b");
    timeout(SOON, leadership.wait_for(holder)).await.unwrap().unwrap();
    silence(&mut writes).await;
    let taken = next(&mut writes).await;
    assert_eq!((taken.method.as_str(), &taken.body["metadata"]["resourceVersion"]), ("PUT", &json!("7")));
    assert_eq!(taken.body["spec"]["leaseTransitions"], 5, "a new epoch");
}

#[tokio::test]
async fn an_instance_that_ends_gives_the_lease_up() {
    let (client, mut writes) = lease_server(None);
    let (mut leadership, stop) = election(client);
    next(&mut writes).await;
    timeout(SOON, leadership.wait_for(Leadership::is_mine)).await.unwrap().unwrap();
    stop.cancel();
    let released = async {
        loop {
            let write = next(&mut writes).await;
            if write.body["spec"]["holderIdentity"].is_null() {
                return write;
            }
        }
    };
    let released = timeout(SOON, released).await.unwrap();
    assert_eq!(released.body["spec"]["leaseTransitions"], 1, "the next holder counts on from here");
    assert!(released.body["metadata"]["annotations"].get(lease::ADDRESS_ANNOTATION).is_none());
}

/// A cluster with the variant `llm/chat`, as a server and as what was read from it.
pub(crate) async fn cluster() -> (kube::Client, mpsc::Receiver<Asked>, ClusterReader, CancellationToken) {
    let (client, writes) = server(|asked| match asked.path.as_str() {
        _ if is_watch(asked) => None,
        "/apis/llmd.ai/v1alpha1/variantautoscalings" => list(json!([{
            "apiVersion": "llmd.ai/v1alpha1", "kind": "VariantAutoscaling",
            "metadata": { "namespace": "llm", "name": "chat", "uid": "u-1", "generation": 3 },
            "spec": { "scaleTargetRef": { "kind": "Deployment", "name": "chat" }, "modelID": "m" }
        }])),
        path if asked.method == "GET" && path.starts_with("/api") => list(json!([])),
        _ => Some((200, json!({ "metadata": { "namespace": "llm", "name": "chat" } }))),
    });
    let (watches, reader) = ClusterWatch::new(client.clone(), wva::cluster::watch::Settings::default());
    let stop = CancellationToken::new();
    #[expect(clippy::disallowed_methods, reason = "app spawns it; here the test is the app")]
    tokio::spawn(watches.run(stop.clone()));
    timeout(SOON, reader.subscribe().wait_for(|observed| observed.view.synced)).await.unwrap().unwrap();
    assert_eq!(reader.view().variants.len(), 1);
    (client, writes, reader, stop)
}

#[tokio::test(start_paused = true)]
async fn who_may_not_list_namespaces_waits_ten_seconds_for_them_and_has_none_excluded() {
    let (client, _writes) = server(|asked| match asked.path.as_str() {
        _ if is_watch(asked) => None,
        "/api/v1/namespaces" => {
            Some((403, json!({ "kind": "Status", "reason": "Forbidden", "code": 403, "message": "no" })))
        }
        _ => list(json!([])),
    });
    let (watches, reader) = ClusterWatch::new(client, wva::cluster::watch::Settings::default());
    let (stop, began) = (CancellationToken::new(), tokio::time::Instant::now());
    #[expect(clippy::disallowed_methods, reason = "app spawns it; here the test is the app")]
    tokio::spawn(watches.run(stop.clone()));
    let mut views = reader.subscribe();
    let synced = timeout(Duration::from_secs(20), views.wait_for(|observed| observed.view.synced));
    assert!(synced.await.unwrap().unwrap().view.excluded.is_empty());
    assert!(began.elapsed() >= Duration::from_secs(10), "{:?}", began.elapsed());
    stop.cancel();
}

#[tokio::test(start_paused = true)]
async fn no_number_is_decided_before_the_nodes_are_known_that_limit_it_or_cannot_be() {
    let (client, _writes) = server(|asked| match asked.path.as_str() {
        _ if is_watch(asked) => None,
        "/api/v1/nodes" => {
            Some((403, json!({ "kind": "Status", "reason": "Forbidden", "code": 403, "message": "no" })))
        }
        _ => list(json!([])),
    });
    let (wanted, limit) = watch::channel(true);
    let (watches, reader) = ClusterWatch::new(client, wva::cluster::watch::Settings::default());
    let (stop, began) = (CancellationToken::new(), tokio::time::Instant::now());
    #[expect(clippy::disallowed_methods, reason = "app spawns it; here the test is the app")]
    tokio::spawn(watches.with_inventory(limit).run(stop.clone()));
    let mut views = reader.subscribe();
    let synced = timeout(Duration::from_secs(20), views.wait_for(|observed| observed.view.synced));
    assert_eq!(synced.await.unwrap().unwrap().view.inventory, None);
    assert!(began.elapsed() >= Duration::from_secs(10), "{:?}", began.elapsed());
    drop(wanted);
    stop.cancel();
}

pub(crate) fn published(sequence: u64, desired: u32) -> Published {
    let evidence = Timestamp::from_second(1_700_000_000).unwrap();
    let target =
        Target { desired: Replicas::new(desired), reason: Reason::ScaleUp, message: "busy".into(), evidence };
    let (model, current) = ("m".into(), Some(Replicas::ONE));
    let decision =
        Decision { model, accelerator: None, current, verdict: Verdict::Target(target), gap: None };
    Published {
        sequence,
        at: evidence + jiff::SignedDuration::from_secs(i64::try_from(sequence).unwrap()),
        took: Duration::ZERO,
        origin: Origin::Computed,
        term: None,
        decisions: BTreeMap::from([(VariantId::new("llm", "chat"), decision)]),
        report: Report::default(),
        victims: BTreeMap::new(),
    }
}

/// The same without a number.
pub(crate) fn unknown(sequence: u64) -> Published {
    let mut published = published(sequence, 1);
    let (cause, since) = (Cause::TooOld, published.at);
    for decision in published.decisions.values_mut() {
        let message = "nothing is measured".into();
        decision.verdict = Verdict::Unknown(Unknown { cause, message, since });
    }
    published
}

pub(crate) fn held() -> Leadership {
    let holder = Holder { identity: "a".into(), address: None, lease: "l-1".into(), epoch: 1 };
    Leadership {
        holder: Some(holder),
        mine_until: Some(tokio::time::Instant::now() + Duration::from_secs(60)),
    }
}

#[tokio::test]
async fn a_status_is_applied_once_and_only_by_the_holder() {
    let (client, mut writes, reader, stop) = cluster().await;
    let (board, leadership) = (Board::new(), watch::Sender::new(Leadership::default()));
    let writer = StatusWriter::new(client, reader, board.subscribe(), leadership.subscribe(), "a".into());
    #[expect(clippy::disallowed_methods, reason = "app spawns it; here the test is the app")]
    tokio::spawn(writer.run(stop.clone()));
    board.publish(published(1, 3));
    silence(&mut writes).await;

    leadership.send_replace(held());
    board.publish(published(2, 3));
    let applied = next(&mut writes).await;
    assert_eq!(applied.method, "PATCH");
    assert_eq!(applied.path, "/apis/llmd.ai/v1alpha1/namespaces/llm/variantautoscalings/chat/status");
    assert_eq!(applied.content_type, "application/apply-patch+yaml");
    assert!(
        applied.query.contains("fieldManager=wva") && applied.query.contains("force=true"),
        "{}",
        applied.query
    );
    assert_eq!(applied.body["metadata"]["uid"], "u-1", "never a namesake");
    let status = &applied.body["status"];
    assert_eq!(status["desiredOptimizedAlloc"]["numReplicas"], 3);
    assert_eq!(status["desiredOptimizedAlloc"]["accelerator"], "unresolved");
    assert_eq!(status["actuation"]["applied"], false);
    assert_eq!(status["conditions"][0]["observedGeneration"], 3);

    while let Ok(Some(event)) = timeout(QUIET, writes.recv()).await {
        assert_eq!(
            event.path, "/apis/events.k8s.io/v1/namespaces/llm/events",
            "events may follow, no second status"
        );
    }
    board.publish(published(3, 3));
    silence(&mut writes).await;
    board.publish(published(4, 4));
    assert_eq!(next(&mut writes).await.body["status"]["desiredOptimizedAlloc"]["numReplicas"], 4);
}

/// A holder of `epoch` 1 of lease `l-1` beside a state object that epoch `written` of `lease` left; what it writes.
async fn state_writes(
    lease: &str,
    written: i64,
) -> (mpsc::Receiver<Asked>, CancellationToken, Board, watch::Sender<Leadership>) {
    let header = json!({ "version": 1, "holder": "b", "lease": lease, "epoch": written, "written": "2026-01-01T00:00:00Z" });
    let (client, writes) = server(move |asked| match (asked.method.as_str(), asked.path.as_str()) {
        _ if is_watch(asked) => None,
        ("GET", "/api/v1/namespaces/wva/configmaps") => list(json!([])),
        ("GET", path) if path.ends_with("/wva-state-decisions-0") => Some((
            200,
            json!({
                "metadata": { "name": "wva-state-decisions-0", "resourceVersion": "5" },
                "data": { "header": header.to_string(), "entries": "" }
            }),
        )),
        ("GET", _) => not_found(),
        _ => Some((200, asked.body.clone())),
    });
    let (board, memory) = (Board::new(), watch::Sender::new(Arc::new(Memory::default())));
    let (leadership, stop) = (watch::Sender::new(held()), CancellationToken::new());
    let store = StateStore::new(client, "wva", "wva", Arc::new(SystemClock));
    let writer = StateWriter::new(
        store,
        board.subscribe(),
        memory.subscribe(),
        leadership.subscribe(),
        Duration::from_secs(300),
    );
    let cancel = stop.clone();
    #[expect(clippy::disallowed_methods, reason = "app spawns it; here the test is the app")]
    tokio::spawn(async move {
        writer.run(cancel).await;
        drop(memory);
    });
    board.publish(published(1, 3));
    (writes, stop, board, leadership)
}

#[tokio::test]
async fn a_holder_writes_its_decisions_at_once_and_its_memory_when_it_ends() {
    let (mut writes, stop, _board, _leadership) = state_writes("l-1", 1).await;
    let decisions = next(&mut writes).await;
    let header: Value = serde_json::from_str(decisions.body["data"]["header"].as_str().unwrap()).unwrap();
    assert_eq!((&header["lease"], &header["epoch"]), (&json!("l-1"), &json!(1)));
    assert_eq!(
        (decisions.method.as_str(), &decisions.body["metadata"]["resourceVersion"]),
        ("PUT", &json!("5"))
    );
    assert!(decisions.body["data"]["entries"].as_str().unwrap().contains("llm/chat"));
    silence(&mut writes).await;
    stop.cancel();
    let memory = next(&mut writes).await;
    assert_eq!(
        (memory.method.as_str(), &memory.body["metadata"]["name"]),
        ("POST", &json!("wva-state-memory-0"))
    );
}

#[tokio::test]
async fn a_holder_that_was_replaced_overwrites_nothing() {
    let (mut writes, stop, _board, _leadership) = state_writes("l-1", 2).await;
    silence(&mut writes).await;
    stop.cancel();
    silence(&mut writes).await;
}

#[tokio::test]
async fn a_holder_is_not_deposed_by_what_was_written_under_a_lease_that_was_deleted() {
    let (mut writes, _stop, _board, _leadership) = state_writes("gone", 7).await;
    assert_eq!(next(&mut writes).await.method, "PUT");
}
