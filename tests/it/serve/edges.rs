//! Wire goldens of the rarer answers: who cannot be let in, what cannot be asked for, what has not changed, and what health
//! says.

use std::time::Duration;

use futures::future::join_all;
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use tokio::time::sleep;

use super::bed::{Bed, Wanted, held_by};
use super::client::{Answer, H2};
use super::wire::golden;
use super::{READ, path};

const GROUP_VERSION: &str = "/apis/external.metrics.k8s.io/v1beta1";

/// An answer over HTTP/2, as text.
async fn over_h2(bed: &Bed, path: &str, lines: &[(&str, &str)]) -> Answer {
    let mut connection = H2::connect(bed, Some(&bed.proxy)).await;
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
async fn what_has_not_changed_has_neither_a_body_nor_a_length_over_http_1_and_2() {
    let bed = Bed::new().await;
    let whole = bed.proxied("x", GROUP_VERSION).await;
    let etag = whole.header("etag").unwrap();
    let line = format!("If-None-Match: {etag}");
    let h1 = bed.send(Some(&bed.proxy), &format!("GET {GROUP_VERSION}"), &[&line]).await;
    let h2 = over_h2(&bed, GROUP_VERSION, &[("if-none-match", etag)]).await;
    for (name, answer) in [("edge-not-modified", h1), ("edge-not-modified-h2", h2)] {
        assert_eq!((answer.status, answer.header("content-length")), (304, None), "{name}");
        golden(name, &answer);
    }
}

#[tokio::test]
async fn a_path_that_is_no_text_is_refused_as_kubernetes_refuses_it() {
    let bed = Bed::new().await;
    let custom = "/apis/custom.metrics.k8s.io/v1beta2/namespaces";
    for (name, path) in [
        ("path-external", path("l%ffm", "wva_desired_replicas")),
        ("path-custom", format!("{custom}/llm/deployments.apps/%ff/wva_desired_replicas")),
        ("path-custom-elsewhere", format!("{custom}/llm/%ff")),
        ("path-custom-version", "/apis/custom.metrics.k8s.io/%ff/x".into()),
    ] {
        let answer = bed.proxied("hpa", &path).await;
        assert_eq!((answer.status, answer.message().as_str()), (400, "invalid request path"), "{path}");
        golden(&format!("edge-{name}"), &answer);
    }
    let answer = bed.send(None, "GET /livez/%ff", &[]).await;
    assert_eq!((answer.status, answer.body.as_str()), (404, "404 page not found\n"));
    golden("edge-path-health", &answer);
}

#[tokio::test]
async fn health_takes_get_and_head_and_refuses_the_rest_with_a_status() {
    let bed = Bed::new().await;
    for path in ["/livez", "/readyz", "/healthz", "/readyz/ping"] {
        for method in ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"] {
            let answer = bed.send(None, &format!("{method} {path}"), &[]).await;
            assert_eq!(answer.status, 405, "{method} {path}");
            assert_eq!(answer.message(), "the server does not allow this method on the requested resource");
        }
        let head = bed.send(None, &format!("HEAD {path}"), &[]).await;
        assert_eq!((head.status, head.body.as_str()), (200, ""), "{path}");
    }
    golden("edge-health-post", &bed.send(None, "POST /healthz", &[]).await);
    golden("edge-health-check-post", &bed.send(None, "POST /livez/ping", &[]).await);
}
