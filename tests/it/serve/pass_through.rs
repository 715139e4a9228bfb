//! External metrics that are not served here are read from the fallback server: what it answers is passed on, what goes wrong names it, and
//! neither costs the metrics of variants or discovery.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use parking_lot::Mutex;
use rcgen::ExtendedKeyUsagePurpose;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use smol_str::SmolStr;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use wva::pass_through::{FallbackApi, FallbackSettings, ListState};
use wva::serve::FallbackServer;
use wva::telemetry::FallbackMetrics;

use super::client::{Answer, H2};
use super::path;
use super::pki::{Authority, Subject};
use super::test_server::TestServer;

const LIST: &str = r#"{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"external.metrics.k8s.io/v1beta1","resources":[{"name":"jobs","singularName":"","namespaced":true,"kind":"ExternalMetricValueList","verbs":["get"]},{"name":"wva_desired_replicas"},{"name":"a/b"}]}"#;
const VALUES: &str = r#"{"kind":"ExternalMetricValueList","apiVersion":"external.metrics.k8s.io/v1beta1","metadata":{},"items":[{"metricName":"jobs","metricLabels":{"queue":"a"},"timestamp":"2026-11-21T10:00:00Z","window":30,"value":"2500m"},{"metricName":"jobs","metricLabels":null,"timestamp":null,"value":"-9223372036854775808m"}]}"#;

/// What the server answers to reads.
#[derive(Clone)]
enum Reply {
    /// Status line, headers and body, as they are sent.
    Text(String),
    Nothing,
}

fn reply(status: &str, headers: &str, body: &str) -> Reply {
    let length = body.len();
    Reply::Text(format!(
        "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
    ))
}

fn json_reply(status: &str, body: &str) -> Reply {
    reply(status, "content-type: application/json\r\n", body)
}

#[derive(Clone)]
struct Shared {
    list: Arc<Mutex<Reply>>,
    read: Arc<Mutex<Reply>>,
    probe: Arc<Mutex<Reply>>,
    heads: Arc<Mutex<Vec<String>>>,
}

/// An API server whose answers a test sets.
struct Fake {
    shared: Shared,
    port: u16,
    ca: String,
    _task: JoinSet<()>,
}

impl Fake {
    async fn start() -> Self {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let authority = Authority::new("fallback");
        let usages = &[ExtendedKeyUsagePurpose::ServerAuth];
        let leaf = authority.issue(&Subject { names: &["metrics.keda.svc"], usages, ..Subject::default() });
        let chain = vec![CertificateDer::from_pem_slice(leaf.certificate.as_bytes()).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(leaf.key.as_bytes()).unwrap();
        let config = ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key).unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Shared {
            list: Arc::new(Mutex::new(json_reply("200 OK", LIST))),
            read: Arc::new(Mutex::new(json_reply("200 OK", VALUES))),
            probe: Arc::new(Mutex::new(json_reply("404 Not Found", "{}"))),
            heads: Arc::default(),
        };
        let (mut task, served) = (JoinSet::new(), shared.clone());
        task.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((tcp, _)) = listener.accept().await {
                connections.spawn(connection(tcp, acceptor.clone(), served.clone()));
            }
        });
        Self { shared, port, ca: authority.pem(), _task: task }
    }

    fn answers(&self, reply: Reply) {
        *self.shared.read.lock() = reply;
    }

    /// The head of the last request.
    fn last_head(&self) -> String {
        self.shared.heads.lock().last().cloned().unwrap()
    }
}

async fn connection(tcp: TcpStream, acceptor: TlsAcceptor, shared: Shared) {
    let Ok(mut stream) = acceptor.accept(tcp).await else { return };
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let Ok(byte) = stream.read_u8().await else { return };
        head.push(byte);
    }
    let head = String::from_utf8(head).unwrap();
    let is_read = head.contains("/namespaces/");
    let reply = if head.contains("/wva_probe ") {
        shared.probe.lock().clone()
    } else {
        shared.heads.lock().push(head);
        if is_read { shared.read.lock().clone() } else { shared.list.lock().clone() }
    };
    match reply {
        Reply::Text(text) => {
            let _ = stream.write_all(text.as_bytes()).await;
            let _ = stream.shutdown().await;
        }
        Reply::Nothing => sleep(Duration::from_secs(60)).await,
    }
}

struct Fixture {
    server: TestServer,
    fake: Fake,
    api: Arc<FallbackApi>,
    directory: TempDir,
    _listing: JoinSet<()>,
}

async fn fixture() -> Fixture {
    fixture_with(Fake::start().await).await
}

async fn fixture_that_refuses_reads() -> Fixture {
    let fake = Fake::start().await;
    *fake.shared.probe.lock() = json_reply("403 Forbidden", "{}");
    fixture_with(fake).await
}

async fn fixture_with(fake: Fake) -> Fixture {
    let directory = tempfile::tempdir().unwrap();
    let (ca, token) = (directory.path().join("ca.crt"), directory.path().join("token"));
    std::fs::write(&ca, &fake.ca).unwrap();
    std::fs::write(&token, "s3cret\n").unwrap();
    let settings = FallbackSettings {
        service: "keda/metrics".into(),
        host: "metrics.keda.svc".into(),
        lookup_name: "localhost".into(),
        port: fake.port,
        ca: Some(ca),
        token,
        timeout: Duration::from_millis(500),
        list_interval: Duration::from_millis(100),
    };
    let api = Arc::new(FallbackApi::new(&settings, FallbackMetrics::register(&mut Default::default())));
    let mut listing = JoinSet::new();
    listing.spawn(Arc::clone(&api).run(CancellationToken::new()));
    let served: Arc<dyn FallbackServer> = api.clone();
    let server = TestServer::with(|options| options.fallback = Some(served)).await;
    let fixture = Fixture { server, fake, api, directory, _listing: listing };
    fixture.await_names(&["jobs", "wva_desired_replicas"]).await;
    fixture
}

impl Fixture {
    async fn await_names(&self, expected: &[&str]) {
        let listed = async {
            while self.api.names().iter().map(SmolStr::as_str).ne(expected.iter().copied()) {
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(Duration::from_secs(20), listed).await.unwrap_or_else(|_| panic!("{:?}", self.api.names()));
    }

    async fn read(&self, metric: &str, lines: &[&str]) -> Answer {
        self.server.read_as_hpa(&(path("llm", metric) + "?labelSelector=queue%3Da"), lines).await
    }

    /// The names that discovery lists.
    async fn listed(&self, lines: &[&str]) -> Vec<String> {
        let request = "/apis/external.metrics.k8s.io/v1beta1";
        let answer = self.server.read_as_hpa(request, lines).await;
        let list: Value = serde_json::from_str(&answer.body).unwrap();
        let names = list["resources"].as_array().unwrap().iter();
        names.map(|resource| resource["name"].as_str().unwrap().to_owned()).collect()
    }

    /// Fails unless metrics of variants are answered at once.
    async fn assert_own_metrics(&self) {
        let started = Instant::now();
        let answer = self.server.read_as_hpa(super::READ, &[]).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        assert!(started.elapsed() < Duration::from_millis(400), "{:?}", started.elapsed());
    }
}

#[tokio::test]
async fn what_is_not_served_here_is_what_the_fallback_server_answers() {
    let fixture = fixture().await;
    let answer = fixture.read("jobs", &[]).await;
    let expected = json!({
        "kind": "ExternalMetricValueList", "apiVersion": "external.metrics.k8s.io/v1beta1", "metadata": {},
        "items": [
            { "metricName": "jobs", "metricLabels": { "queue": "a" }, "timestamp": "2026-11-21T10:00:00Z", "window": 30, "value": "2500m" },
            { "metricName": "jobs", "metricLabels": {}, "timestamp": null, "value": "-9223372036854775808m" }
        ]
    });
    assert_eq!(serde_json::from_str::<Value>(&answer.body).unwrap(), expected, "{}", answer.head);
    let head = fixture.fake.last_head();
    for line in [
        "GET /apis/external.metrics.k8s.io/v1beta1/namespaces/llm/jobs?labelSelector=queue%3Da HTTP/1.1",
        "accept: application/json",
        "authorization: Bearer s3cret",
        "audit-id: audit-1",
    ] {
        assert!(head.lines().any(|own| own == line), "{line} in {head}");
    }
    assert!(!head.to_lowercase().contains("x-remote"), "{head}");
    // The token is read anew, and so is the representation that the client wants.
    std::fs::write(fixture.directory.path().join("token"), "rotated").unwrap();
    let table = "accept: application/json;as=Table;v=v1;g=meta.k8s.io";
    let answer = fixture.read("any-name", &[table]).await;
    assert!(answer.body.contains(r#""kind":"Table""#) && answer.body.contains("2500m"), "{}", answer.body);
    assert!(fixture.fake.last_head().contains("authorization: Bearer rotated"));
    let answer = fixture.read("jobs", &["accept: application/vnd.kubernetes.protobuf"]).await;
    assert_eq!(answer.header("content-type"), Some("application/vnd.kubernetes.protobuf"));
    // Ours win.
    let reads = fixture.fake.shared.heads.lock().len();
    fixture.assert_own_metrics().await;
    let heads = fixture.fake.shared.heads.lock()[reads..].to_vec();
    assert!(heads.iter().all(|head| !head.contains("/namespaces/")), "{heads:?}");
}

#[tokio::test]
async fn who_may_not_read_a_metric_here_reads_it_nowhere() {
    let fixture = fixture().await;
    let answer = fixture.server.proxied("mallory", &path("llm", "jobs")).await;
    assert_eq!(answer.status, 403, "{}", answer.body);
    assert!(!fixture.fake.shared.heads.lock().iter().any(|head| head.contains("/namespaces/")));
}

#[tokio::test]
async fn a_name_that_another_server_could_read_as_a_path_is_not_passed_on() {
    let fixture = fixture().await;
    for (namespace, metric) in [
        ("llm", "..%2Fother%2Fjobs"),
        ("llm", "%2E%2E"),
        ("%2e%2e", "jobs"),
        ("llm", "jobs%3Fwatch=1"),
        ("llm", "a%252Fb"),
        ("llm%2Fjobs", "x"),
    ] {
        let answer = fixture.server.read_as_hpa(&path(namespace, metric), &[]).await;
        assert_eq!(answer.status, 404, "{namespace} {metric}: {}", answer.body);
        assert!(answer.message().contains("can have this name"), "{}", answer.body);
    }
    assert!(!fixture.fake.shared.heads.lock().iter().any(|head| head.contains("/namespaces/")));
    assert_eq!(fixture.read("datadogmetric@llm:jobs", &[]).await.status, 200);
    assert!(fixture.fake.last_head().contains("/namespaces/llm/datadogmetric@llm:jobs?"));
}

#[tokio::test]
async fn an_answer_that_cannot_be_passed_on_is_an_error_that_names_the_server() {
    let fixture = fixture().await;
    let redirect = "content-type: application/json\r\nlocation: https://localhost/\r\n";
    let html = "content-type: text/html\r\n";
    let status = r#"{"kind":"Status","status":"Failure","message":"no matching metrics found","code":404}"#;
    let bad_value = VALUES.replace("2500m", "2 and a half");
    let huge = format!("{}{}", " ".repeat(1 << 20), VALUES);
    let cases = [
        (json_reply("404 Not Found", status), 404, "answered 404: no matching metrics found"),
        (json_reply("500 Internal Server Error", "{}"), 500, "answered 500: it says no more"),
        (json_reply("401 Unauthorized", status), 503, "--fallback-token-path"),
        (json_reply("403 Forbidden", status), 503, "get and list on * in external.metrics.k8s.io"),
        (reply("302 Found", redirect, ""), 503, "a redirect (302), which is not followed"),
        (reply("200 OK", html, "<html>"), 503, "Content-Type: text/html"),
        (json_reply("200 OK", &huge), 503, "larger than 1048576 bytes"),
        (json_reply("200 OK", LIST), 500, "its kind is \"APIResourceList\""),
        (json_reply("200 OK", &VALUES[..200]), 500, "is no ExternalMetricValueList: EOF"),
        (json_reply("200 OK", &bad_value), 500, "\"2 and a half\" is no quantity"),
        (Reply::Nothing, 503, "did not answer within 0.5 s"),
        (
            Reply::Text(
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{".into(),
            ),
            503,
            "broke off",
        ),
    ];
    for (reply, code, message) in cases {
        fixture.fake.answers(reply);
        let answer = fixture.read("jobs", &[]).await;
        assert_eq!(answer.status, code, "{message}: {}", answer.body);
        let text = answer.message();
        assert!(text.starts_with("jobs in namespace llm cannot be read: "), "{text}");
        assert!(text.contains("Service keda/metrics") && text.contains(message), "{message}: {text}");
        fixture.assert_own_metrics().await;
    }
    // client-go would repeat the read ten times and block a worker of the HPA controller meanwhile.
    fixture.fake.answers(reply(
        "429 Too Many Requests",
        "retry-after: 1\r\ncontent-type: application/json\r\n",
        status,
    ));
    let answer = fixture.read("jobs", &[]).await;
    assert_eq!((answer.status, answer.header("retry-after")), (429, None));
    fixture.fake.answers(json_reply("200 OK", VALUES));
    assert_eq!(fixture.read("jobs", &[]).await.status, 200);
}

#[tokio::test]
async fn a_server_that_hangs_costs_only_its_own_metrics() {
    let fixture = fixture().await;
    fixture.fake.answers(Reply::Nothing);
    *fixture.fake.shared.list.lock() = Reply::Nothing;
    let mut connection = H2::connect(&fixture.server, Some(&fixture.server.proxy)).await;
    let mut read =
        |namespace: u32| connection.get(&path(&format!("team-{namespace}"), "jobs"), "x-remote-user", "hpa");
    let waiting: Vec<_> = (0..80).map(|index| read(index % 5)).collect();
    let waiting = join_all(waiting);
    let own = async {
        sleep(Duration::from_millis(100)).await;
        fixture.assert_own_metrics().await;
        assert_eq!(fixture.listed(&[]).await.len(), 5, "what was listed stays");
    };
    let (answers, ()) = futures::future::join(waiting, own).await;
    let count = |code| answers.iter().flatten().filter(|answer| answer.status() == code).count();
    assert_eq!((count(503), count(429)), (64, 16), "more do not wait");
    let reads =
        || fixture.fake.shared.heads.lock().iter().filter(|head| head.contains("/namespaces/")).count();
    let before = reads();
    let answer = fixture.read("jobs", &[]).await;
    assert!(answer.message().contains("did not answer within"), "{}", answer.body);
    assert_eq!(reads(), before, "a server that hangs is not asked again at once");
    assert_eq!(fixture.server.get("/readyz").await.status, 200);
}

#[tokio::test]
async fn its_metrics_are_listed_beside_ours_and_stay_while_it_is_gone() {
    let fixture = fixture().await;
    let listed = fixture.listed(&[]).await;
    assert_eq!(listed.iter().filter(|name| *name == "wva_desired_replicas").count(), 1);
    assert!(listed.contains(&"jobs".to_owned()) && !listed.contains(&"a/b".to_owned()), "{listed:?}");
    for wrong in [
        reply("200 OK", "content-type: text/html\r\n", "<html>"),
        json_reply("503 Service Unavailable", "{}"),
    ] {
        *fixture.fake.shared.list.lock() = wrong;
        sleep(Duration::from_millis(300)).await;
        assert_eq!(fixture.listed(&[]).await, listed);
    }
    *fixture.fake.shared.list.lock() = json_reply("200 OK", &LIST.replace("jobs", "mails"));
    fixture.await_names(&["mails", "wva_desired_replicas"]).await;
    assert!(fixture.listed(&[]).await.contains(&"mails".to_owned()));
}

/// What the last list has shown, once it satisfies `is_expected`.
async fn state(fixture: &Fixture, is_expected: impl FnMut(&ListState) -> bool) -> ListState {
    let mut state = fixture.api.state();
    let found = timeout(Duration::from_secs(20), state.wait_for(is_expected)).await;
    found.unwrap_or_else(|_| panic!("{:?}", fixture.api.state().borrow())).unwrap().clone()
}

#[tokio::test]
async fn nothing_told_whether_reads_can_be_passed_on_to_it() {
    let fixture = fixture().await;
    let ca = fixture.fake.ca.clone().into_bytes();
    assert_eq!(state(&fixture, Result::is_ok).await, Ok(Some(ca)), "the CA that it was verified by");
    *fixture.fake.shared.list.lock() = json_reply("503 Service Unavailable", "{}");
    assert_eq!(state(&fixture, Result::is_err).await, Err("it answered 503".into()));
    *fixture.fake.shared.list.lock() = json_reply("200 OK", LIST);
    state(&fixture, Result::is_ok).await.unwrap();
}

#[tokio::test]
async fn a_server_that_lists_its_metrics_may_refuse_to_let_them_be_read() {
    let refused = fixture_that_refuses_reads().await;
    let cause = state(&refused, |state| state.as_ref().is_err_and(|cause| cause.contains("403"))).await;
    assert!(cause.unwrap_err().contains("grant it the verbs get and list"));
    *refused.fake.shared.probe.lock() = json_reply("404 Not Found", "{}");
    state(&refused, Result::is_ok).await.unwrap();
}

#[tokio::test]
async fn two_servers_that_pass_on_to_each_other_notice() {
    let fixture = fixture().await;
    let answer = fixture.read("jobs", &["wva-passed-on: 1"]).await;
    assert_eq!(answer.status, 500);
    assert!(answer.message().contains("have each other as --fallback-apiservice"), "{}", answer.body);
    assert!(!fixture.listed(&["wva-passed-on: 1"]).await.contains(&"jobs".to_owned()));
    assert!(fixture.fake.last_head().contains("wva-passed-on: 1"));
}

#[tokio::test]
async fn a_new_ca_is_used_without_a_restart() {
    let fixture = fixture().await;
    let ca = fixture.directory.path().join("ca.crt");
    let is_answered = |expected| {
        let fixture = &fixture;
        async move {
            let changed = async {
                loop {
                    let answer = fixture.read("jobs", &[]).await;
                    if answer.status == expected {
                        return answer;
                    }
                    sleep(Duration::from_millis(100)).await;
                }
            };
            timeout(Duration::from_secs(20), changed).await.unwrap()
        }
    };
    std::fs::write(&ca, Authority::new("fallback").pem()).unwrap();
    let answer = is_answered(503).await;
    assert!(answer.message().contains("--fallback-ca"), "{}", answer.body);
    std::fs::write(&ca, &fixture.fake.ca).unwrap();
    is_answered(200).await;
}
