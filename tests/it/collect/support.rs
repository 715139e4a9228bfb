//! Shared by the tests of `collect`: answers, servers and a clock that the tests move.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use wiremock::matchers::{body_string_contains, method, path};
use wiremock::{Mock, MockServer, Request, ResponseTemplate};
use wva::collect::{PrometheusSettings, PrometheusSource};
use wva::engine::{Clock, Collected, Endpoint, MetricSource, Scope, SourceError};
use wva_core::snapshot::Signal;

/// One TLS provider for the process, as `main` installs it.
pub(super) fn provider() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
}

pub(super) const NOW: i64 = 1_800_000_000;

pub(super) fn scope(namespaces: &[&str]) -> Scope {
    let namespaces: BTreeSet<String> = namespaces.iter().map(|&name| name.to_owned()).collect();
    Scope { namespaces, ..Scope::default() }
}

pub(super) fn endpoint(namespace: &str, pod: &str, address: SocketAddr) -> Endpoint {
    let (ip, port) = (address.ip(), Some(address.port()));
    Endpoint { namespace: namespace.into(), pod: pod.into(), ip, port, path: None }
}

pub(super) const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// A series of an answer, with samples as (second, text).
pub(super) fn series(name: &str, labels: Value, samples: &[(i64, &str)]) -> Value {
    let mut metric = labels;
    metric["__name__"] = json!(name);
    let values: Vec<Value> = samples.iter().map(|(second, value)| json!([NOW + second, value])).collect();
    json!({ "metric": metric, "values": values })
}

/// `waiting` of one pod.
pub(super) fn waiting(namespace: &str, pod: &str, samples: &[(i64, &str)]) -> Value {
    let labels = json!({"namespace": namespace, "pod": pod, "instance": "10.0.0.1:8000", "engine": "0"});
    series("vllm:num_requests_waiting", labels, samples)
}

pub(super) fn matrix(result: &[Value]) -> Value {
    json!({"status": "success", "data": {"resultType": "matrix", "result": result}})
}

pub(super) fn counts(rows: &[(&str, u64)]) -> Value {
    let row = |(namespace, count): &(&str, u64)| json!({"metric": {"namespace": namespace}, "value": [NOW, count.to_string()]});
    let result: Vec<Value> = rows.iter().map(row).collect();
    json!({"status": "success", "data": {"resultType": "vector", "result": result}})
}

pub(super) fn ok(body: &Value) -> ResponseTemplate {
    ResponseTemplate::new(200).set_body_json(body)
}

/// A fake Prometheus with one answer to counts and one to all other queries.
pub(super) async fn prometheus(
    count: ResponseTemplate,
    read: impl wiremock::Respond + 'static,
) -> MockServer {
    let server = MockServer::start().await;
    let query = || Mock::given(method("POST")).and(path("/api/v1/query"));
    query().and(body_string_contains("count+by")).respond_with(count).with_priority(1).mount(&server).await;
    query().respond_with(read).with_priority(2).mount(&server).await;
    server
}

pub(super) fn settings(url: impl Into<String>) -> PrometheusSettings {
    PrometheusSettings { query_timeout: Duration::from_secs(5), ..PrometheusSettings::new(url) }
}

pub(super) async fn collect(settings: &PrometheusSettings, scope: &Scope) -> Result<Collected, SourceError> {
    provider();
    PrometheusSource::new(settings)?.collect(scope).await
}

/// The queries among the received requests.
pub(super) async fn queries(server: &MockServer) -> Vec<Request> {
    let requests = server.received_requests().await.unwrap();
    requests.into_iter().filter(|request| request.url.path() == "/api/v1/query").collect()
}

/// The query of a recorded request.
pub(super) fn promql(request: &Request) -> String {
    let form = wiremock_form(&request.body);
    form.into_iter().find(|(key, _)| key == "query").map(|(_, value)| value).unwrap_or_default()
}

fn wiremock_form(body: &[u8]) -> Vec<(String, String)> {
    let url = reqwest::Url::parse(&format!("http://x/?{}", String::from_utf8_lossy(body))).unwrap();
    url.query_pairs().into_owned().collect()
}

/// The values of `signal`, by pod, as collected.
pub(super) fn values(collected: &Collected, signal: Signal) -> Vec<(String, Vec<f64>)> {
    let found = collected.series.iter().filter(|series| series.signal == signal);
    let mut values: Vec<_> = found
        .map(|s| (s.labels.pod.to_string(), s.samples.iter().map(|sample| sample.value).collect()))
        .collect();
    values.sort_by(|a: &(String, Vec<f64>), b| a.0.cmp(&b.0));
    values
}

/// A server that reads a request's head and writes these bytes to every connection, then closes it.
pub(super) struct RawServer {
    pub address: SocketAddr,
    _accepting: JoinSet<()>,
}

impl RawServer {
    pub(super) async fn start(answer: Vec<u8>) -> Self {
        let listener = TcpListener::bind((LOOPBACK, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut accepting = JoinSet::new();
        accepting.spawn(async move {
            while let Ok((mut socket, _)) = listener.accept().await {
                let mut head = [0; 64 * 1024];
                let _ = socket.read(&mut head).await;
                let _ = socket.write_all(&answer).await;
                let _ = socket.shutdown().await;
            }
        });
        Self { address, _accepting: accepting }
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

/// A clock that stands still until it is moved.
pub(super) struct HandClock(AtomicI64);

impl HandClock {
    pub(super) fn new() -> Self {
        Self(AtomicI64::new(NOW))
    }

    pub(super) fn advance(&self, seconds: i64) {
        self.0.fetch_add(seconds, Ordering::Relaxed);
    }
}

impl Clock for HandClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_second(self.0.load(Ordering::Relaxed)).unwrap()
    }

    fn sleep(&self, _: Duration) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }
}
