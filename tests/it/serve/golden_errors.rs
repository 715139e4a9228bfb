//! Wire goldens of the rarer answers: authentication errors, invalid requests, unmodified documents, and health.

use std::env::consts::{ARCH, OS};

use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;

use super::client::{Answer, H2};
use super::custom_metrics::{self, DESIRED, object};
use super::golden::golden;
use super::test_server::{TestServer, led_by};
use super::{READ, path};

const GROUP_VERSION: &str = "/apis/external.metrics.k8s.io/v1beta1";

/// An answer over HTTP/2, as text.
async fn over_h2(server: &TestServer, path: &str, lines: &[(&str, &str)]) -> Answer {
    let mut connection = H2::connect(server, Some(&server.proxy)).await;
    let request = http::Request::get(format!("https://ignored{path}")).header("audit-id", "audit-1");
    let request = lines.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    let answer = connection.sender.send_request(request.body(Empty::<Bytes>::new()).unwrap()).await.unwrap();
    let (head, body) = answer.into_parts();
    let bytes = body.collect().await.unwrap().to_bytes().to_vec();
    let lines = head.headers.iter().map(|(name, value)| format!("\n{name}: {}", value.to_str().unwrap()));
    let first = format!("{:?} {}", head.version, head.status);
    let body = String::from_utf8_lossy(&bytes).into_owned();
    Answer { status: head.status.as_u16(), head: first + &lines.collect::<String>(), body, bytes }
}

#[tokio::test]
async fn a_304_has_neither_a_body_nor_a_length() {
    let server = TestServer::new().await;
    let whole = server.proxied("x", GROUP_VERSION).await;
    let etag = whole.header("etag").unwrap();
    let line = format!("If-None-Match: {etag}");
    let h1 = server.send(Some(&server.proxy), &format!("GET {GROUP_VERSION}"), &[&line]).await;
    let h2 = over_h2(&server, GROUP_VERSION, &[("if-none-match", etag)]).await;
    for (name, answer) in [("edge-not-modified", h1), ("edge-not-modified-h2", h2)] {
        assert_eq!((answer.status, answer.header("content-length")), (304, None), "{name}");
        golden(name, &answer);
    }
}

#[tokio::test]
async fn a_path_that_is_not_utf8_gets_the_error_of_kubernetes() {
    let server = TestServer::new().await;
    let custom = "/apis/custom.metrics.k8s.io/v1beta2/namespaces";
    for (name, path) in [
        ("path-external", path("l%ffm", "wva_desired_replicas")),
        ("path-custom", format!("{custom}/llm/deployments.apps/%ff/wva_desired_replicas")),
        ("path-custom-elsewhere", format!("{custom}/llm/%ff")),
        ("path-custom-version", "/apis/custom.metrics.k8s.io/%ff/x".into()),
    ] {
        let answer = server.proxied("hpa", &path).await;
        assert_eq!((answer.status, answer.message().as_str()), (400, "invalid request path"), "{path}");
        golden(&format!("edge-{name}"), &answer);
    }
    let answer = server.get("/livez/%ff").await;
    assert_eq!((answer.status, answer.body.as_str()), (404, "404 page not found\n"));
    golden("edge-path-health", &answer);
}

#[tokio::test]
async fn health_allows_get_and_head_only() {
    let server = TestServer::new().await;
    for path in ["/livez", "/readyz", "/healthz", "/readyz/ping"] {
        for method in ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"] {
            let answer = server.send(None, &format!("{method} {path}"), &[]).await;
            assert_eq!(answer.status, 405, "{method} {path}");
            assert_eq!(answer.message(), "the server does not allow this method on the requested resource");
        }
        let head = server.send(None, &format!("HEAD {path}"), &[]).await;
        assert_eq!((head.status, head.body.as_str()), (200, ""), "{path}");
    }
    golden("edge-health-post", &server.send(None, "POST /healthz", &[]).await);
    golden("edge-health-check-post", &server.send(None, "POST /livez/ping", &[]).await);
}

#[tokio::test]
async fn authentication_errors_are_these_bytes() {
    let server = TestServer::new().await;
    let read = format!("GET {READ}");
    let bad = "Authorization: Bearer bad";
    for (name, request, lines) in [
        ("unauthorized", read.as_str(), vec![bad]),
        ("unauthorized-metrics", "GET /metrics", vec![bad]),
        ("unauthorized-protobuf", &read, vec![bad, "Accept: application/vnd.kubernetes.protobuf, */*"]),
        ("anonymous", &read, vec![]),
        ("anonymous-metrics", "GET /metrics", vec![]),
    ] {
        golden(&format!("edge-{name}"), &server.send(None, request, &lines).await);
    }
    let mallory = ["X-Remote-User: mallory"];
    golden("edge-forbidden-metrics", &server.send(Some(&server.proxy), "GET /metrics", &mallory).await);
}

#[tokio::test]
async fn undecided_access_is_denied_with_these_bytes() {
    let object = object("v1beta2", "llm", "deployments.apps", "llama-decode", DESIRED);
    let server = TestServer::with(|options| options.has_trust = false).await;
    for (name, path) in [("", READ), ("-custom", &object), ("-metrics", "/metrics")] {
        golden(&format!("edge-trust-not-loaded{name}"), &server.proxied("hpa", path).await);
    }
    let server = TestServer::new().await;
    *server.reviewer.is_unreachable.lock() = true;
    for (name, path) in [("", READ), ("-custom", &object), ("-metrics", "/metrics")] {
        golden(&format!("edge-review-failed{name}"), &server.proxied("hpa", path).await);
        let token = ["Authorization: Bearer good"];
        let answer = server.send(None, &format!("GET {path}"), &token).await;
        golden(&format!("edge-token-review-failed{name}"), &answer);
    }
}

#[tokio::test]
async fn invalid_names_and_methods_get_these_bytes() {
    let server = TestServer::new().await;
    let long = "n".repeat(254);
    for (name, path) in [
        ("long-namespace", path(&long, DESIRED)),
        ("long-metric", path("llm", &long)),
        ("long-object", object("v1beta2", "llm", "deployments.apps", &long, DESIRED)),
    ] {
        golden(&format!("edge-{name}"), &server.proxied("hpa", &path).await);
    }
    let object = object("v1beta2", "llm", "deployments.apps", "llama-decode", DESIRED);
    for (name, path) in [("", READ), ("-custom", &object), ("-discovery", "/apis"), ("-health", "/livez")] {
        let request = format!("OPTIONS {path}");
        golden(
            &format!("edge-options{name}"),
            &server.send(Some(&server.proxy), &request, &["X-Remote-User: hpa"]).await,
        );
    }
    golden("edge-health-head", &server.send(None, "HEAD /readyz", &[]).await);
}

#[tokio::test]
async fn health_says_these_bytes() {
    let server = TestServer::with(|options| options.has_synced = false).await;
    for (name, path) in [
        ("live", "/livez"),
        ("live-verbose", "/livez?verbose"),
        ("not-ready", "/readyz"),
        ("not-ready-check", "/readyz/informer-sync"),
        ("unknown-check", "/readyz/nothing"),
    ] {
        golden(&format!("edge-health-{name}"), &server.get(path).await);
    }
    server.synced.send_replace(true);
    golden("edge-health-ready", &server.get("/readyz").await);
    golden("edge-health-ready-verbose", &server.get("/readyz?verbose").await);
    golden("edge-health-warning", &server.get("/readyz?verbose&exclude=nothing").await);
}

#[tokio::test]
async fn the_version_is_these_bytes_but_for_the_platform() {
    let server = TestServer::new().await;
    let mut answer = server.proxied("anybody", "/version").await;
    let etag = answer.header("etag").unwrap().to_owned();
    let length = answer.bytes.len().to_string();
    assert_eq!(answer.header("content-length"), Some(length.as_str()));
    answer.body = answer.body.replace(&format!("{OS}/{ARCH}"), "OS/ARCH");
    answer.head = answer
        .head
        .replace(&etag, "(etag)")
        .replace(&format!("content-length: {length}"), "content-length: N");
    golden("edge-version", &answer);
}

#[tokio::test]
async fn an_answer_over_http_2_has_these_headers() {
    let server = TestServer::new().await;
    golden("edge-data-h2", &over_h2(&server, READ, &[("x-remote-user", "hpa")]).await);
    golden("edge-forbidden-h2", &over_h2(&server, READ, &[("x-remote-user", "mallory")]).await);
    golden("edge-health-h2", &over_h2(&server, "/livez", &[]).await);
}

#[tokio::test]
async fn the_last_state_comes_with_a_warning() {
    let server = custom_metrics::server().await;
    server.leadership.send_replace(led_by(None));
    let object = object("v1beta2", "llm", "deployments.apps", "llama-decode", DESIRED);
    golden("edge-last-state", &server.proxied("hpa", READ).await);
    golden("edge-last-state-two", &server.proxied("hpa", &path("pair", DESIRED)).await);
    golden("edge-last-state-custom", &server.proxied("hpa", &object).await);
    golden("edge-last-state-unknown", &server.proxied("hpa", &path("half", DESIRED)).await);
}
