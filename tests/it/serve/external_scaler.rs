//! KEDA's external scaler as KEDA calls it: gRPC over TLS, with a certificate of a user.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::client::conn::http2::{self, SendRequest};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use prost::Message;
use tokio::task::JoinSet;
use tokio::time::timeout;
use wva::engine::{ClusterView, Published};
use wva::serve::ScaledObjectCalls;
use wva_core::VariantId;

use super::client::tls;
use super::forwarding::leader_and_follower;
use super::pki::{Leaf, SERVICE};
use super::test_server::{TestServer, advance_clock, sample, target};

#[derive(Clone, PartialEq, Message)]
pub(super) struct ScaledObject {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    namespace: String,
    #[prost(map = "string, string", tag = "3")]
    metadata: HashMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Asked {
    #[prost(message, optional, tag = "1")]
    scaled: Option<ScaledObject>,
    #[prost(string, tag = "2")]
    metric: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Metrics {
    #[prost(message, repeated, tag = "1")]
    pub(super) metrics: Vec<Metric>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Metric {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(int64, tag = "2")]
    pub(super) whole: i64,
    #[prost(double, tag = "3")]
    float: f64,
}

#[derive(Clone, PartialEq, Message)]
struct Active {
    #[prost(bool, tag = "1")]
    result: bool,
}

/// A connection of KEDA.
#[derive(Clone)]
pub(super) struct Keda {
    sender: SendRequest<Full<Bytes>>,
    _connection: Arc<JoinSet<()>>,
}

/// An error: code and message.
pub(super) type Refusal = (u32, String);

impl Keda {
    async fn connect(server: &TestServer, identity: Option<&Leaf>) -> Self {
        Self::connect_to(server.external_scaler, &server.shared_ca.pem(), identity).await
    }

    pub(super) async fn connect_to(address: SocketAddr, ca: &str, identity: Option<&Leaf>) -> Self {
        let stream = tls(address, ca, SERVICE, identity, "h2").await.unwrap();
        // As KEDA does: otherwise the second part of a request waits 40 ms for the acknowledgement of the first.
        stream.get_ref().0.set_nodelay(true).unwrap();
        let (sender, connection) =
            http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        let mut task = JoinSet::new();
        task.spawn(async move {
            let _ = connection.await;
        });
        Self { sender, _connection: Arc::new(task) }
    }

    pub(super) async fn send(&mut self, method: &str, message: &impl Message) -> Response<Incoming> {
        let bytes = message.encode_to_vec();
        let length = u32::try_from(bytes.len()).unwrap().to_be_bytes();
        let body = [&[0][..], &length, &bytes].concat();
        let request = Request::post(format!("https://{SERVICE}/externalscaler.ExternalScaler/{method}"));
        let request = request.header("content-type", "application/grpc").header("te", "trailers");
        self.sender.send_request(request.body(Full::from(body)).unwrap()).await.unwrap()
    }

    pub(super) async fn call<M: Message + Default>(
        &mut self,
        method: &str,
        message: &impl Message,
    ) -> Result<M, Refusal> {
        let (head, body) = self.send(method, message).await.into_parts();
        let body = body.collect().await.unwrap();
        let trailers = body.trailers().cloned().unwrap_or(head.headers);
        let text =
            |name| trailers.get(name).map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default();
        match text("grpc-status").parse().unwrap() {
            0 => Ok(M::decode(&body.to_bytes()[5..]).unwrap()),
            code => Err((code, text("grpc-message"))),
        }
    }
}

/// The trigger of a ScaledObject that names a variant.
fn trigger(namespace: &str, variant: &str) -> ScaledObject {
    let metadata = HashMap::from([("variantName".to_owned(), variant.to_owned())]);
    ScaledObject { name: "scaler".into(), namespace: namespace.into(), metadata }
}

pub(super) fn asked(scaled: ScaledObject) -> Asked {
    Asked { scaled: Some(scaled), metric: "wva_desired_replicas".into() }
}

async fn keda(server: &TestServer) -> Keda {
    Keda::connect(server, Some(&server.users.client("alice", &[]))).await
}

#[tokio::test]
async fn keda_gets_the_number_that_hpas_get() {
    let server = TestServer::new().await;
    let mut keda = keda(&server).await;
    let single = |whole: i64, float: f64| vec![Metric { name: "wva_desired_replicas".into(), whole, float }];
    let llama = trigger("llm", "llama-a100");
    let specs: Metrics = keda.call("GetMetricSpec", &llama).await.unwrap();
    assert_eq!(specs.metrics, single(1, 1.0));
    let metrics: Metrics = keda.call("GetMetrics", &asked(llama.clone())).await.unwrap();
    let head = keda.send("GetMetrics", &asked(llama.clone())).await;
    assert_eq!(head.headers()["wva-evidence-timestamp"], "2026-11-21T10:00:05Z", "how old it is");
    assert_eq!(metrics.metrics, single(5, 5.0));
    let active: Active = keda.call("IsActive", &llama).await.unwrap();
    assert!(active.result);
    assert_eq!(server.reviewer.reviews.lock()[0].0.name, "alice", "as for any read");
}

#[tokio::test]
async fn what_is_not_known_is_an_error_and_never_zero() {
    let server = TestServer::new().await;
    let mut keda = keda(&server).await;
    for (namespace, variant, code, reason) in [
        ("half", "new", 14, "no pod of half/new has been measured yet; wait for one"),
        ("old", "old", 14, "more than"),
        ("llm", "lama", 5, "lama"),
        ("llm", "a b", 3, "is not the name of a variant"),
        ("l/m", "x", 3, "is not the name of a namespace"),
    ] {
        for method in ["GetMetrics", "IsActive"] {
            let scaled = trigger(namespace, variant);
            let refusal = match method {
                "GetMetrics" => keda.call::<Metrics>(method, &asked(scaled)).await.unwrap_err(),
                _ => keda.call::<Active>(method, &scaled).await.unwrap_err(),
            };
            let message = percent_encoding::percent_decode_str(&refusal.1).decode_utf8_lossy();
            assert!(refusal.0 == code && message.contains(reason), "{namespace}/{variant}: {refusal:?}");
        }
    }
    assert_eq!(keda.call::<Active>("Scale", &trigger("llm", "x")).await.unwrap_err().0, 12);
    for (identity, code) in [(Some(server.users.client("mallory", &[])), 7), (None, 16)] {
        let mut stranger = Keda::connect(&server, identity.as_ref()).await;
        let refusal = stranger.call::<Metrics>("GetMetrics", &asked(trigger("llm", "llama-a100"))).await;
        assert_eq!(refusal.unwrap_err().0, code);
    }
}

#[tokio::test]
async fn every_instance_answers_with_the_leaders_number() {
    let (leader, follower) = leader_and_follower().await;
    let decisions = [(VariantId::new("llm", "llama-a100"), target(7, Some(2), "2026-11-21T10:00:05Z"))];
    leader.publish(Published { decisions: decisions.into(), ..sample() });
    let mut keda = keda(&follower).await;
    let metrics: Metrics = keda.call("GetMetrics", &asked(trigger("llm", "llama-a100"))).await.unwrap();
    assert_eq!(metrics.metrics[0].whole, 7);
}

/// The next message of a stream.
async fn next(stream: &mut Incoming) -> Option<bool> {
    let frame = timeout(Duration::from_secs(1), stream.frame()).await.expect("within a second")?;
    let data = frame.unwrap().into_data().ok()?;
    Some(Active::decode(&data[5..]).unwrap().result)
}

#[tokio::test]
async fn a_stream_says_at_once_that_a_model_sleeps_or_wakes() {
    let server = TestServer::new().await;
    let mut keda = keda(&server).await;
    let mut stream = keda.send("StreamIsActive", &trigger("llm", "llama-a100")).await.into_body();
    assert_eq!(next(&mut stream).await, Some(true));
    let publish = |desired| {
        let decisions =
            [(VariantId::new("llm", "llama-a100"), target(desired, Some(2), "2026-11-21T10:00:05Z"))];
        server.publish(Published { decisions: decisions.into(), ..sample() });
    };
    // Nothing known at all, and the same as before: neither is news.
    for published in [Published { decisions: [].into(), ..sample() }, sample()] {
        server.publish(published);
        assert!(timeout(Duration::from_millis(300), stream.frame()).await.is_err());
    }
    publish(0);
    assert_eq!(next(&mut stream).await, Some(false));
    publish(1);
    assert_eq!(next(&mut stream).await, Some(true));
    server.stopping.cancel();
    assert_eq!(next(&mut stream).await, None, "KEDA asks another instance");
}

#[tokio::test]
async fn an_old_connection_ended_its_streams_with_an_error() {
    let server = TestServer::with(|options| options.max_connection_age = Some(Duration::from_secs(1))).await;
    let mut keda = keda(&server).await;
    let mut stream = keda.send("StreamIsActive", &trigger("llm", "llama-a100")).await.into_body();
    let mut specs = keda.send("StreamMetricSpec", &trigger("llm", "llama-a100")).await.into_body();
    assert_eq!(next(&mut stream).await, Some(true));
    specs.frame().await.unwrap().unwrap();
    for stream in [&mut stream, &mut specs] {
        let trailers = timeout(Duration::from_secs(3), stream.frame()).await.unwrap().unwrap().unwrap();
        assert_eq!(trailers.into_trailers().unwrap()["grpc-status"], "0");
    }
}

#[tokio::test]
async fn a_follower_tells_within_a_second_what_the_leader_has_decided() {
    let (leader, follower) = leader_and_follower().await;
    let mut keda = keda(&follower).await;
    let mut stream = keda.send("StreamIsActive", &trigger("llm", "llama-a100")).await.into_body();
    assert_eq!(next(&mut stream).await, Some(true));
    let decisions = [(VariantId::new("llm", "llama-a100"), target(0, Some(2), "2026-11-21T10:00:05Z"))];
    leader.publish(Published { decisions: decisions.into(), ..sample() });
    assert_eq!(next(&mut stream).await, Some(false));
}

#[tokio::test]
async fn whoever_may_not_read_learned_which_deployments_are_scaled() {
    let server = TestServer::new().await;
    let mallory = server.users.client("mallory", &[]);
    let mut stranger = Keda::connect(&server, Some(&mallory)).await;
    for metadata in [vec![("scaleTarget", "llama")], vec![]] {
        let metadata = metadata.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        let scaled = ScaledObject { name: "x".into(), namespace: "llm".into(), metadata };
        assert_eq!(stranger.call::<Active>("IsActive", &scaled).await.unwrap_err().0, 7);
    }
    let specs = stranger.send("StreamMetricSpec", &trigger("llm", "llama-a100")).await;
    let answer = specs.into_body().collect().await.unwrap();
    assert_eq!(answer.trailers().unwrap()["grpc-status"], "7");
}

#[tokio::test]
async fn a_scaled_object_that_is_a_variant_needs_no_metadata() {
    let server = TestServer::new().await;
    let mut keda = keda(&server).await;
    let own = ScaledObject { name: "llama-a100".into(), namespace: "llm".into(), metadata: HashMap::new() };
    let refusal = keda.call::<Metrics>("GetMetrics", &asked(own.clone())).await.unwrap_err();
    assert_eq!(refusal.0, 9);
    let message = percent_encoding::percent_decode_str(&refusal.1).decode_utf8_lossy().into_owned();
    assert!(
        message.contains("set variantName to the name of a VariantAutoscaling, scaleTarget to"),
        "{message}"
    );
    let aliases = [(VariantId::new("llm", "llama-a100"), "x".into())].into();
    *server.reads.view.lock() = Arc::new(ClusterView { aliases, ..ClusterView::default() });
    let metrics: Metrics = keda.call("GetMetrics", &asked(own)).await.unwrap();
    assert_eq!(metrics.metrics[0].whole, 5);
}

/// ScaledObjects that calls make variants.
#[derive(Default)]
struct FakeCalls {
    noted: Mutex<BTreeMap<String, Result<(), String>>>,
    renewed: Mutex<Vec<String>>,
    is_full: Mutex<bool>,
}

impl ScaledObjectCalls for FakeCalls {
    fn verdict(&self, namespace: &str, name: &str) -> Option<Result<(), String>> {
        self.noted.lock().get(&format!("{namespace}/{name}")).cloned()
    }

    fn note(&self, namespace: &str, name: &str) -> Result<(), String> {
        if *self.is_full.lock() {
            return Err("there are too many".into());
        }
        let unread = Err("it has not been read yet".into());
        self.noted.lock().entry(format!("{namespace}/{name}")).or_insert(unread);
        Ok(())
    }

    fn renew(&self, namespace: &str, name: &str) {
        self.renewed.lock().push(format!("{namespace}/{name}"));
    }
}

/// A ScaledObject whose trigger names a model only.
pub(super) fn called(namespace: &str, name: &str) -> ScaledObject {
    let metadata = HashMap::from([("modelID".to_owned(), "org/m".to_owned())]);
    ScaledObject { name: name.into(), namespace: namespace.into(), metadata }
}

async fn server_with_calls() -> (TestServer, Arc<FakeCalls>) {
    let calls = Arc::new(FakeCalls::default());
    let port = calls.clone();
    (TestServer::with(|options| options.calls = Some(port)).await, calls)
}

#[tokio::test]
async fn a_call_makes_a_variant_and_is_an_error_until_that_has_a_number() {
    let (server, calls) = server_with_calls().await;
    let mut keda = keda(&server).await;
    let llama = called("llm", "llama-a100");
    for reason in ["from this call on", "has not been read yet"] {
        let (code, message) = keda.call::<Metrics>("GetMetrics", &asked(llama.clone())).await.unwrap_err();
        let message = percent_encoding::percent_decode_str(&message).decode_utf8_lossy();
        assert!(
            code == 14 && message.contains(reason),
            "{code} {message}: not the number of what has this name now"
        );
    }
    calls.noted.lock().insert("llm/llama-a100".into(), Ok(()));
    let metrics: Metrics = keda.call("GetMetrics", &asked(llama.clone())).await.unwrap();
    assert_eq!(metrics.metrics[0].whole, 5);
    *calls.is_full.lock() = true;
    let full = keda.call::<Metrics>("GetMetrics", &asked(called("llm", "second"))).await.unwrap_err();
    assert_eq!(full.0, 8);
}

#[tokio::test]
async fn whoever_may_not_read_made_variants() {
    let (server, calls) = server_with_calls().await;
    let mut stranger = Keda::connect(&server, Some(&server.users.client("mallory", &[]))).await;
    for name in ["llama-a100", "new"] {
        let refused = stranger.call::<Metrics>("GetMetrics", &asked(called("llm", name))).await;
        assert_eq!(refused.unwrap_err().0, 7);
    }
    let mut keda = keda(&server).await;
    for (namespace, name) in [("llm", "a/b"), ("llm", ""), ("../x", "new"), ("", "new"), ("llm", "a%20b")] {
        let refused = keda.call::<Metrics>("GetMetrics", &asked(called(namespace, name))).await;
        assert_eq!(refused.unwrap_err().0, 3, "{namespace}/{name}");
    }
    let mut named = called("llm", "x");
    named.metadata.insert("variantName".into(), "llama-a100".into());
    let metrics: Metrics = keda.call("GetMetrics", &asked(named)).await.unwrap();
    assert_eq!(metrics.metrics[0].whole, 5, "a variant that is named is the one");
    assert!(calls.noted.lock().is_empty() && calls.renewed.lock().is_empty());
}

#[tokio::test]
async fn a_variant_without_a_number_was_forgotten_while_keda_asked_for_it() {
    let (server, calls) = server_with_calls().await;
    let mut keda = keda(&server).await;
    calls.noted.lock().insert("half/new".into(), Ok(()));
    let refused = keda.call::<Metrics>("GetMetrics", &asked(called("half", "new"))).await.unwrap_err();
    assert_eq!((refused.0, calls.renewed.lock().as_slice()), (14, ["half/new".to_owned()].as_slice()));
}

#[tokio::test]
async fn a_request_that_never_ends_is_given_up() {
    let server = TestServer::new().await;
    let identity = server.users.client("alice", &[]);
    let stream = tls(server.external_scaler, &server.shared_ca.pem(), SERVICE, Some(&identity), "h2").await;
    let (mut sender, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(stream.unwrap())).await.unwrap();
    let mut task = JoinSet::new();
    task.spawn(async move {
        let _ = connection.await;
    });
    let endless = StreamBody::new(futures::stream::pending::<Result<Frame<Bytes>, Infallible>>());
    let request = Request::post(format!("https://{SERVICE}/externalscaler.ExternalScaler/GetMetrics"));
    let answer = sender.send_request(request.body(endless).unwrap());
    let mut answers = JoinSet::new();
    answers.spawn(answer);
    tokio::time::sleep(Duration::from_millis(200)).await;
    advance_clock(Duration::from_secs(11)).await;
    let answer =
        timeout(Duration::from_secs(5), answers.join_next()).await.unwrap().unwrap().unwrap().unwrap();
    assert_eq!(answer.headers()["grpc-status"], "4");
}

#[tokio::test]
async fn the_streams_of_a_follower_ask_the_leader_together() {
    let (leader, follower) = leader_and_follower().await;
    let mut keda = keda(&follower).await;
    let mut streams = Vec::new();
    for _ in 0..50 {
        let mut stream = keda.send("StreamIsActive", &trigger("llm", "llama-a100")).await.into_body();
        assert_eq!(next(&mut stream).await, Some(true));
        streams.push(stream);
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before = leader.reads.count.load(Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(3)).await;
    let reads = leader.reads.count.load(Ordering::SeqCst) - before;
    assert!((4..=8).contains(&reads), "{reads} reads of the leader in 3 s");
    let decisions = [(VariantId::new("llm", "llama-a100"), target(0, Some(2), "2026-11-21T10:00:05Z"))];
    leader.publish(Published { decisions: decisions.into(), ..sample() });
    for stream in &mut streams {
        assert_eq!(next(stream).await, Some(false));
    }
}

#[tokio::test]
async fn a_stream_of_the_leader_reads_again_only_where_the_number_may_be_news() {
    let server = TestServer::new().await;
    let mut keda = keda(&server).await;
    let mut stream = keda.send("StreamIsActive", &trigger("llm", "llama-a100")).await.into_body();
    assert_eq!(next(&mut stream).await, Some(true));
    let before = server.reads.count.load(Ordering::SeqCst);
    for _ in 0..20 {
        server.publish(sample());
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    let reads = server.reads.count.load(Ordering::SeqCst) - before;
    assert!(reads <= 1, "{reads} reads for 20 results with the same number");
}
