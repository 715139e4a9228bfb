//! Conversations with an API server. Where the request itself is the promise, a scripted server answers; where a conversation
//! goes back and forth, the small one in `crate::api_server` does. The end-to-end suite has a real one.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a helper of a test fails as the test does"
)]

mod annotated;
mod called;
mod certificates;
mod crashes;
mod deletion_cost;
mod lease;
mod lifecycle;
mod self_check;
mod state;
mod status;
mod take_over;
mod targets;
mod wake;
mod watches;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body as Answer;
use http::{Request, Response};
use http_body_util::BodyExt;
use jiff::{SignedDuration, Timestamp};
use kube::client::Body;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use wva::cluster::{ClusterReader, ClusterState, ClusterWatch, StateStore, StateWriter, WatchSettings};
use wva::engine::{Board, Cluster, Holder, Leadership, Origin, Published, Revision, SystemClock};
use wva_core::VariantId;
use wva_core::decision::{Cause, Decision, Reason, Target, Unknown, Verdict};
use wva_core::memory::{GroupMemory, Memory, VariantMemory};
use wva_core::units::Replicas;

use crate::api_server::status;

/// How long a request that must come may take.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long what must be read may take. Some kinds are looked for every 30 s; the clocks of these tests are paused.
const READ_TIMEOUT: Duration = Duration::from_secs(120);
/// How long no request must come.
const QUIET_WINDOW: Duration = Duration::from_millis(800);
/// The age at which evidence is refused.
const MAX_STALE: Duration = Duration::from_secs(300);
/// The evidence of decisions: 2023-11-14, in seconds.
const EVIDENCE: i64 = 1_700_000_000;

/// A request as it arrived.
#[derive(Debug)]
struct ApiRequest {
    method: String,
    path: String,
    query: String,
    content_type: String,
    body: Value,
}

impl ApiRequest {
    async fn read(request: Request<Body>) -> Self {
        let (head, body) = request.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        let content_type = head.headers.get("content-type").and_then(|value| value.to_str().ok());
        Self {
            method: head.method.to_string(),
            path: head.uri.path().to_owned(),
            query: head.uri.query().unwrap_or_default().to_owned(),
            content_type: content_type.unwrap_or_default().to_owned(),
            body: serde_json::from_slice(&bytes).unwrap_or_default(),
        }
    }

    fn is_watch(&self) -> bool {
        self.query.contains("watch=")
    }
}

/// Writes that a server received.
type Writes = mpsc::Receiver<ApiRequest>;

fn spawn(task: impl Future<Output = ()> + Send + 'static) {
    #[expect(clippy::disallowed_methods, reason = "app spawns it; here the test is the app")]
    tokio::spawn(task);
}

/// A client of a server that answers by `script`, and the writes it receives. Without an answer a watch stays open and
/// silent, and another request stays open.
fn server(
    mut script: impl FnMut(&ApiRequest) -> Option<(u16, Value)> + Send + 'static,
) -> (kube::Client, Writes) {
    let (service, mut handle) = tower_test::mock::pair::<Request<Body>, Response<Answer>>();
    let (sender, writes) = mpsc::channel(64);
    spawn(async move {
        let mut open = Vec::new();
        while let Some((request, respond)) = handle.next_request().await {
            let request = ApiRequest::read(request).await;
            match script(&request) {
                Some((code, body)) => {
                    let body = Answer::from(body.to_string());
                    respond.send_response(Response::builder().status(code).body(body).unwrap());
                }
                None if request.is_watch() => {
                    let silent = futures::stream::pending::<Result<String, Infallible>>();
                    respond.send_response(Response::new(Answer::from_stream(silent)));
                }
                None => open.push(respond),
            }
            if request.method != "GET" && sender.send(request).await.is_err() {
                return;
            }
        }
    });
    (kube::Client::new(service, "default"), writes)
}

async fn next(writes: &mut Writes) -> ApiRequest {
    timeout(WRITE_TIMEOUT, writes.recv()).await.expect("a write in time").expect("an open channel")
}

async fn silence(writes: &mut Writes) {
    if let Ok(Some(request)) = timeout(QUIET_WINDOW, writes.recv()).await {
        panic!("unexpected {request:?}");
    }
}

/// Reads writes, which would otherwise block the server.
fn discard(mut writes: Writes) {
    spawn(async move { while writes.recv().await.is_some() {} });
}

fn list(items: Value) -> Option<(u16, Value)> {
    let metadata = json!({ "resourceVersion": "1" });
    Some((200, json!({ "apiVersion": "v1", "kind": "List", "metadata": metadata, "items": items })))
}

fn not_found() -> Option<(u16, Value)> {
    Some(status(404, "NotFound"))
}

/// The variant `llm/chat`.
fn variant() -> Value {
    json!({
        "apiVersion": "llmd.ai/v1alpha1", "kind": "VariantAutoscaling",
        "metadata": { "namespace": "llm", "name": "chat", "uid": "u-1", "generation": 3 },
        "spec": { "scaleTargetRef": { "kind": "Deployment", "name": "chat" }, "modelID": "m" }
    })
}

/// What the watches read, which run as long as the test.
fn watch_cluster(client: kube::Client, settings: WatchSettings) -> ClusterReader {
    let (watches, reader) = ClusterWatch::new(client, settings);
    spawn(watches.run(CancellationToken::new()));
    reader
}

/// The state of the cluster as soon as it is as expected.
async fn until(reader: &ClusterReader, is_expected: impl Fn(&ClusterState) -> bool) -> Arc<ClusterState> {
    let mut states = reader.subscribe();
    let state = states.wait_for(|state| is_expected(state));
    timeout(READ_TIMEOUT, state).await.unwrap().unwrap().clone()
}

/// The same, once it is synced.
async fn once(reader: &ClusterReader, is_expected: impl Fn(&ClusterState) -> bool) -> Arc<ClusterState> {
    until(reader, |state| state.view.synced && is_expected(state)).await
}

/// A cluster with the variant `llm/chat`, as a server and as what was read from it.
async fn cluster() -> (kube::Client, Writes, ClusterReader) {
    cluster_of(variant()).await
}

/// A cluster with this variant.
async fn cluster_of(variant: Value) -> (kube::Client, Writes, ClusterReader) {
    let written = json!({ "metadata": { "namespace": "llm", "name": "chat" } });
    cluster_that_answers(variant, (200, written)).await
}

/// A cluster with this variant, and its answer to a status.
async fn cluster_that_answers(
    variant: Value,
    to_status: (u16, Value),
) -> (kube::Client, Writes, ClusterReader) {
    let (client, writes) = server(move |request| match request.path.as_str() {
        _ if request.is_watch() => None,
        "/apis/llmd.ai/v1alpha1/variantautoscalings" => list(json!([variant])),
        path if request.method == "GET" && path.starts_with("/api") => list(json!([])),
        path if path.ends_with("/status") => Some(to_status.clone()),
        _ => Some((200, json!({ "metadata": { "namespace": "llm", "name": "chat" } }))),
    });
    let reader = watch_cluster(client.clone(), WatchSettings::default());
    timeout(WRITE_TIMEOUT, until(&reader, |state| state.view.synced)).await.unwrap();
    assert_eq!(reader.view().variants.len(), 1);
    (client, writes, reader)
}

fn decision(model: &str, verdict: Verdict) -> Decision {
    Decision { model: model.into(), accelerator: None, current: None, verdict, gap: None }
}

fn target(desired: u32, reason: Reason, message: &str, evidence: Timestamp) -> Verdict {
    Verdict::Target(Target { desired: Replicas::new(desired), reason, explanation: message.into(), evidence })
}

fn too_old(since: Timestamp) -> Verdict {
    Verdict::Unknown(Unknown { cause: Cause::TooOld, explanation: "nothing is measured".into(), since })
}

fn time(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

/// `llm/chat` in this generation.
fn revision(generation: i64) -> Revision {
    Revision { uid: "u-1".into(), generation }
}

/// An evaluation, `sequence` seconds after its evidence.
fn evaluation(sequence: u64, decisions: BTreeMap<VariantId, Decision>) -> Published {
    Published {
        sequence,
        at: time(EVIDENCE) + SignedDuration::from_secs(i64::try_from(sequence).unwrap()),
        origin: Origin::Computed,
        decisions,
        revisions: Arc::new(BTreeMap::from([(VariantId::new("llm", "chat"), revision(3))])),
        ..Published::empty()
    }
}

/// An evaluation that wants `desired` replicas of `llm/chat`.
fn published(sequence: u64, desired: u32) -> Published {
    let verdict = target(desired, Reason::ScaleUp, "busy", time(EVIDENCE));
    let decision = Decision { current: Some(Replicas::ONE), ..decision("m", verdict) };
    evaluation(sequence, BTreeMap::from([(VariantId::new("llm", "chat"), decision)]))
}

/// An evaluation that has no number for `llm/chat`.
fn unknown(sequence: u64) -> Published {
    let mut published = published(sequence, 1);
    for decision in published.decisions.values_mut() {
        decision.verdict = too_old(published.at);
    }
    published
}

/// Instance `a` holds epoch `epoch` of the lease `l-1` for an hour.
fn leading(epoch: i64) -> Leadership {
    let holder = Holder { identity: "a".into(), address: None, lease: "l-1".into(), epoch };
    Leadership { holder: Some(holder), mine_until: Some(Instant::now() + Duration::from_secs(3600)) }
}

fn held() -> Leadership {
    leading(1)
}

/// The memory of one variant.
fn remember(variant: &str, target: u32) -> GroupMemory {
    let memory = VariantMemory { target: Some(Replicas::new(target)), ..VariantMemory::default() };
    GroupMemory { variants: [(variant.into(), memory)].into(), ..GroupMemory::default() }
}

/// The state objects of the installation `wva`.
fn state_store(client: kube::Client) -> StateStore {
    StateStore::new(client, "wva", "wva", Arc::new(SystemClock))
}

/// What a state writer reads from.
struct StateInputs {
    board: Board,
    memory: watch::Sender<Arc<Memory>>,
    leadership: watch::Sender<Leadership>,
}

impl StateInputs {
    fn new(memory: Memory, leadership: Leadership) -> Self {
        Self {
            board: Board::new(),
            memory: watch::Sender::new(Arc::new(memory)),
            leadership: watch::Sender::new(leadership),
        }
    }

    fn writer(&self, client: kube::Client) -> StateWriter {
        let published = self.board.subscribe();
        let leadership = self.leadership.subscribe();
        StateWriter::new(state_store(client), published, self.memory.subscribe(), leadership, MAX_STALE)
    }
}

/// The metrics as Prometheus reads them.
fn metrics(registry: &Registry) -> String {
    let mut text = String::new();
    encode(&mut text, registry).unwrap();
    text
}
