//! Other installations that are silent, stopped or wrong.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::IntoResponse;
use axum::routing::any;
use http::Response;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use parking_lot::Mutex;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;

use wva::serve::OtherInstallation;

use super::{accepts, at_port, ca_file, has, pair, selecting, settings};
use crate::serve::client::{Answer, Captured};
use crate::serve::custom_metrics::{DESIRED, deployment, variant};
use crate::serve::identity::eventually;
use crate::serve::path;
use crate::serve::pki::{Authority, Leaf};
use crate::serve::test_server::TestServer;

/// A server with the other installation's certificate that answers everything with `answer`.
struct Impostor {
    port: u16,
    _task: JoinSet<()>,
}

impl Impostor {
    async fn start(
        identity: &Leaf,
        answer: impl Fn() -> Response<Body> + Clone + Send + Sync + 'static,
    ) -> Self {
        let chain =
            CertificateDer::pem_slice_iter(identity.certificate.as_bytes()).map(Result::unwrap).collect();
        let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config =
            ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let mut config = config.with_no_client_auth().with_single_cert(chain, key).unwrap();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let router = Router::new().fallback(any(async move || answer().into_response()));
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((tcp, _)) = listener.accept().await {
                let (acceptor, service) = (acceptor.clone(), TowerToHyperService::new(router.clone()));
                connections.spawn(async move {
                    let Ok(stream) = acceptor.accept(tcp).await else { return };
                    let connection = auto::Builder::new(TokioExecutor::new());
                    let _ = connection.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Self { port, _task: task }
    }
}

/// The owner that lists an installation at this port.
async fn owner_of(port: u16, ca: &Authority, files: &Path) -> TestServer {
    let listed = at_port(port, ca, files);
    let owner = TestServer::with(|options| options.installations = settings(vec![listed], None)).await;
    has(&owner, &[("both", "first", 4)]);
    eventually(async || {
        let message = owner.proxied("hpa", &selecting("blue", "variant_name%3Dsky")).await.body;
        !message.contains("has not been read yet")
    })
    .await;
    owner
}

const VALID: &str = r#"{"variant":"blue/sky","name":"sky","timestamp":"2026-11-21T10:00:05Z","thousandths":7000,
    "reason":"Steady","model":"m","message":"x"}"#;

fn values(values: &str) -> String {
    format!("{{\"values\":[{values}]}}")
}

/// What the owner answers to a read of this path when the installation answers with these values.
async fn answer_from(body: &str, path: &str, instance: Option<&str>) -> Answer {
    let (files, ca) = (tempfile::tempdir().unwrap(), Authority::new("blue"));
    let shared = ca.shared();
    let body = values(body);
    let answer = move || {
        let answer = Response::builder().header("wva-answered-by", "installation");
        answer.body(Body::from(body.clone())).unwrap()
    };
    let impostor = Impostor::start(&Leaf { certificate: shared.cert_pem, key: shared.key_pem }, answer).await;
    let mut listed = at_port(impostor.port, &ca, files.path());
    listed.controller_instance = instance.map(str::to_owned);
    let owner = TestServer::with(|options| options.installations = settings(vec![listed], None)).await;
    has(&owner, &[("both", "first", 4)]);
    eventually(async || !owner.proxied("hpa", path).await.body.contains("has not been read yet")).await;
    owner.proxied("hpa", path).await
}

#[tokio::test]
async fn a_number_that_an_hpa_cuts_to_32_bits_was_passed_on() {
    let sky = selecting("blue", "variant_name%3Dsky");
    let most = answer_from(&VALID.replace("7000", "100000000"), &sky, None).await;
    assert_eq!(most.value(), "100k");
    let more = answer_from(&VALID.replace("7000", "100000001"), &sky, None).await;
    assert_eq!(more.status, 503);
    assert!(more.message().contains("100000001 thousandths are more than"), "{}", more.message());
}

#[tokio::test]
async fn a_value_of_another_controller_instance_was_passed_on() {
    let sky = selecting("blue", "variant_name%3Dsky");
    let azure = VALID.replace("\"reason\"", "\"controllerInstance\":\"azure\",\"reason\"");
    assert_eq!(answer_from(&azure, &sky, Some("azure")).await.value(), "7");
    for (value, instance) in [(azure.as_str(), "rose"), (VALID, "azure")] {
        let answer = answer_from(value, &sky, Some(instance)).await;
        assert_eq!(answer.status, 503);
        assert!(answer.message().contains("with another controller_instance"), "{}", answer.message());
    }
}

#[tokio::test]
async fn one_name_was_counted_twice() {
    let sky = selecting("blue", "variant_name%3Dsky");
    let alias = VALID.replace("blue/sky", "blue/cloud");
    let object = |variant: &str| {
        VALID.replace("blue/sky", variant).replace("\"reason\"", "\"object\":\"sky\",\"reason\"")
    };
    let twice = format!("{},{}", object("blue/sky"), object("blue/sky"));
    for (body, path, cause) in [
        (format!("{VALID},{alias}"), sky, "it has one name twice"),
        (twice.clone(), variant("blue", "sky"), "it has one name twice"),
        (twice, deployment("blue", "sky"), "it has one name twice"),
        (object("blue/cloud"), variant("blue", "sky"), "an object that was not requested"),
        (object("blue/sky"), selecting("blue", "variant_name%3Dsky"), "an object, which this read does not"),
    ] {
        let answer = answer_from(&body, &path, None).await;
        assert_eq!(answer.status, 503, "{path}: {}", answer.body);
        assert!(answer.message().contains(cause), "{path}: {}", answer.message());
    }
    let own = VALID.replace("blue/sky", "both/second").replace("\"sky\"", "\"first\"");
    assert_eq!(answer_from(&own, &path("both", DESIRED), None).await.value(), "4", "ours wins");
}

#[tokio::test]
async fn a_field_selector_did_not_bind_other_installations() {
    let dead = OtherInstallation {
        port: 1,
        ..at_port(1, &Authority::new("blue"), tempfile::tempdir().unwrap().path())
    };
    let owner = TestServer::with(|options| options.installations = settings(vec![dead], None)).await;
    has(&owner, &[("both", "first", 4)]);
    let named = variant("both", "*") + "?fieldSelector=metadata.name%3Dfirst";
    assert_eq!(owner.proxied("hpa", &named).await.value(), "4", "nobody else is asked");
    let path = variant("blue", "*") + "?fieldSelector=metadata.name%21%3Dsky";
    let excluded = VALID.replace("\"reason\"", "\"object\":\"sky\",\"reason\"");
    let answer = answer_from(&excluded, &path, None).await;
    assert!(answer.message().contains("an object that was not requested"), "{}", answer.body);
}

#[tokio::test]
async fn a_time_from_another_age_was_passed_on() {
    let sky = selecting("blue", "variant_name%3Dsky");
    for time in ["2026-11-20T09:59:00Z", "2026-11-21T10:06:00Z", "-009000-01-01T00:00:00Z"] {
        let answer = answer_from(&VALID.replace("2026-11-21T10:00:05Z", time), &sky, None).await;
        assert_eq!(answer.status, 503, "{time}: {}", answer.body);
        assert!(
            answer.message().contains("in the future, or older than a day"),
            "{time}: {}",
            answer.message()
        );
    }
}

#[tokio::test]
async fn a_thousand_small_values_became_a_table_of_megabytes() {
    let value = |number: u32| {
        VALID.replace("blue/sky", &format!("blue/v{number}")).replace("\"sky\"", &format!("\"v{number}\""))
    };
    let body: Vec<String> = (0..1_001).map(value).collect();
    let answer = answer_from(&body.join(","), &path("blue", DESIRED), None).await;
    assert!(answer.message().contains("more than 1000 values"), "{}", answer.body);
}

#[tokio::test]
async fn an_answer_that_was_too_large_or_cut_stopped_other_reads() {
    let (log, _guard) = Captured::log(tracing::Level::INFO);
    let (files, ca) = (tempfile::tempdir().unwrap(), Authority::new("blue"));
    let shared = ca.shared();
    let next = Arc::new(Mutex::new(""));
    let state = next.clone();
    let answer = move || {
        let body = match std::mem::take(&mut *state.lock()) {
            "large" => Body::from(" ".repeat(1 << 21)),
            "cut" => {
                let chunks = [Ok("{"), Err(std::io::Error::other("cut"))];
                Body::from_stream(futures::stream::iter(chunks))
            }
            _ => Body::from(values(VALID)),
        };
        Response::builder().header("wva-answered-by", "installation").body(body).unwrap()
    };
    let impostor = Impostor::start(&Leaf { certificate: shared.cert_pem, key: shared.key_pem }, answer).await;
    let owner = owner_of(impostor.port, &ca, files.path()).await;
    let sky = selecting("blue", "variant_name%3Dsky");
    eventually(async || owner.proxied("hpa", &sky).await.status == 200).await;
    let failures = log.lines("an installation cannot be read").len();
    *next.lock() = "large";
    let large = owner.proxied("hpa", &sky).await;
    assert_eq!(large.status, 503);
    assert!(
        large.message().contains("larger than 1048576 bytes; check that the selector"),
        "{}",
        large.message()
    );
    assert_eq!(owner.proxied("hpa", &sky).await.value(), "7", "at once");
    *next.lock() = "cut";
    assert_eq!(owner.proxied("hpa", &sky).await.value(), "7", "it is asked once more");
    assert_eq!(log.lines("an installation cannot be read").len(), failures);
}

#[tokio::test]
async fn an_answer_that_is_no_answer_is_an_error_and_never_an_empty_list() {
    let ca = Authority::new("blue");
    let shared = ca.shared();
    let identity = Leaf { certificate: shared.cert_pem, key: shared.key_pem };
    let status = r#"{"kind":"Status","reason":"NotFound","message":"none","code":404}"#;
    for (code, answered_by, body, cause) in [
        (200, "installation", values(VALID), ""),
        (200, "installation", "<html>".to_owned(), "its answer cannot be parsed"),
        (200, "installation", values(""), "its answer has no value"),
        (200, "installation", r#"{"items":[]}"#.to_owned(), "its answer cannot be parsed"),
        (200, "installation", values(&VALID.replace("7000", "-1")), "its answer cannot be parsed"),
        (
            200,
            "installation",
            values(&VALID.replace("7000", "9223372036854775808")),
            "its answer cannot be parsed",
        ),
        (
            200,
            "installation",
            values(&VALID.replace("blue/sky", "both/sky")),
            "a variant of another namespace",
        ),
        (
            200,
            "installation",
            values(&VALID.replace("\"sky\"", "\"sea\"")),
            "that the selector does not select",
        ),
        (200, "installation", " ".repeat(1 << 21), "its answer is larger than 1048576 bytes"),
        (200, "", values(VALID), "it answered with status 200"),
        (404, "", status.to_owned(), "it answered with status 404"),
        (503, "installation", "no".to_owned(), "without a Status"),
    ] {
        let files = tempfile::tempdir().unwrap();
        let text = body.clone();
        let answer = move || {
            let answer = Response::builder().status(code).header("wva-answered-by", answered_by);
            answer.body(Body::from(text.clone())).unwrap()
        };
        let impostor = Impostor::start(&identity, answer).await;
        let owner = owner_of(impostor.port, &ca, files.path()).await;
        let answer = owner.proxied("hpa", &selecting("blue", "variant_name%3Dsky")).await;
        if cause.is_empty() {
            assert_eq!(answer.value(), "7");
            continue;
        }
        assert_eq!(answer.status, 503, "{cause}: {}", answer.body);
        let message = answer.message();
        assert!(message.contains("installation blue at 127.0.0.1:"), "{message}");
        assert!(message.contains(cause), "{cause}: {message}");
        assert!(message.contains("; check "), "{message}");
        assert_eq!(
            owner.proxied("hpa", &selecting("both", "variant_name%3Dfirst")).await.value(),
            "4",
            "{cause}"
        );
    }
}

#[tokio::test]
async fn a_silent_installation_costs_its_own_reads_a_few_seconds_and_others_nothing() {
    let files = tempfile::tempdir().unwrap();
    let ca = Authority::new("blue");
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let owner = owner_of(silent.local_addr().unwrap().port(), &ca, files.path()).await;
    let own = selecting("both", "variant_name%3Dfirst");
    let theirs = selecting("blue", "variant_name%3Dsky");
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let started = Instant::now();
    let both = async {
        let answer = owner.proxied("hpa", &theirs).await;
        (answer, started.elapsed())
    };
    let alone = async {
        let answer = owner.proxied("hpa", &own).await;
        (answer, started.elapsed())
    };
    let ((slow, after), (fast, at_once)) = tokio::join!(both, alone);
    assert_eq!((slow.status, fast.value().as_str()), (503, "4"));
    assert!(slow.message().contains("did not answer within 3s"), "{}", slow.message());
    assert!(after >= Duration::from_millis(2900) && after < Duration::from_secs(5), "{after:?}");
    assert!(at_once < Duration::from_secs(1), "{at_once:?}");
    let started = Instant::now();
    let next = owner.proxied("hpa", &theirs).await;
    assert!(started.elapsed() < Duration::from_millis(500), "the next one is answered at once");
    let message = next.message();
    assert!(message.contains("failed less than a second ago: it did not answer within 3s"), "{message}");
}

#[tokio::test]
async fn a_stopped_installation_is_an_error_until_it_is_back() {
    let (log, _guard) = Captured::log(tracing::Level::INFO);
    let mut pair = pair().await;
    let failures = || log.lines("an installation cannot be read").len();
    let recoveries = || log.lines("an installation can be read again").len();
    let before = (failures(), recoveries());
    pair.peer.shutdown.cancel();
    pair.peer.wait_for_end().await;
    let answer = pair.read("blue", "sky").await;
    assert_eq!(answer.status, 503);
    assert!(answer.message().contains("that no NetworkPolicy is in the way"), "{}", answer.message());
    assert_eq!(pair.select("both", "").await.status, 503, "a list without its values would be wrong");
    assert_eq!(pair.read("both", "first").await.value(), "4");
    assert_eq!(failures(), before.0 + 1);
    let (address, ca) = (pair.peer.address, pair.peer.shared_ca.clone());
    let accepted = accepts(pair._files.path().join("owner.crt"));
    pair.peer = TestServer::with(|options| {
        options.listen = address;
        options.shared_ca = ca;
        options.installations = accepted;
    })
    .await;
    has(&pair.peer, &[("blue", "sky", 8)]);
    eventually(async || pair.read("blue", "sky").await.status == 200).await;
    assert_eq!(pair.read("blue", "sky").await.value(), "8");
    assert_eq!(recoveries(), before.1 + 1);
}

#[tokio::test]
async fn an_installation_without_rights_to_review_is_ready() {
    let files = tempfile::tempdir().unwrap();
    let accepted = accepts(ca_file(files.path(), "owner.crt", &Authority::new("owner")));
    let server = TestServer::with(|options| {
        options.has_trust = false;
        options.trust_refused = true;
        options.installations = accepted;
    })
    .await;
    assert_eq!(server.get("/readyz").await.status, 200);
    let alone = TestServer::with(|options| {
        options.has_trust = false;
        options.trust_refused = true;
    })
    .await;
    assert_eq!(alone.get("/readyz").await.status, 500, "one that nobody forwards to has no other clients");
}

#[tokio::test]
async fn an_installation_with_a_forwarder_was_ready_before_it_had_read_the_trust() {
    let files = tempfile::tempdir().unwrap();
    let accepted = accepts(ca_file(files.path(), "owner.crt", &Authority::new("owner")));
    let server = TestServer::with(|options| {
        options.has_trust = false;
        options.installations = accepted;
    })
    .await;
    assert_eq!(server.get("/readyz").await.status, 500);
    server.trust.send_replace(Some(std::collections::BTreeMap::new()));
    assert_eq!(server.get("/readyz").await.status, 200);
}
