//! Authentication and authorisation: what a certificate, a header and a token prove, and what they do not.

use std::sync::atomic::Ordering;

use rcgen::ExtendedKeyUsagePurpose as Usage;

use super::READ;
use super::client::H2;
use super::custom_metrics::{DESIRED, object, variant};
use super::pki::{Authority, Leaf, Subject};
use super::test_server::{TestServer, trust};

const AS_HPA: [&str; 2] = ["X-Remote-User: hpa", "X-Remote-Group: system:masters"];

/// A read with identity headers that only the front proxy may send.
async fn asserted(server: &TestServer, identity: Option<&Leaf>) -> (u16, String) {
    let answer = server.send(identity, &format!("GET {READ}"), &AS_HPA).await;
    (answer.status, if answer.status == 200 { String::new() } else { answer.message() })
}

#[tokio::test]
async fn only_the_front_proxys_certificate_may_name_other_users() {
    let server = TestServer::new().await;
    let proxy = |usages: &[Usage]| {
        let common_name = "front-proxy-client";
        server.front_proxy.issue(&Subject { common_name, usages, ..Subject::default() })
    };
    let impostor = Authority::new("front-proxy-ca").client("front-proxy-client", &[]);
    let foreign = Authority::new("foreign").client("front-proxy-client", &[]);
    let anonymous = "User \"system:anonymous\"";
    for (case, identity, refused_as) in [
        ("no certificate", None, Some(anonymous)),
        ("front proxy without SAN", Some(proxy(&[Usage::ClientAuth])), None),
        ("front proxy without usage", Some(proxy(&[])), None),
        ("front proxy for servers only", Some(proxy(&[Usage::ServerAuth])), Some(anonymous)),
        ("a user", Some(server.users.client("bob", &[])), Some("User \"bob\"")),
        (
            "a user with the proxy's name",
            Some(server.users.client("front-proxy-client", &[])),
            Some("front-proxy-client"),
        ),
        ("unknown CA", Some(foreign), Some(anonymous)),
        ("another CA of the same name", Some(impostor), Some(anonymous)),
        ("a name that is not allowed", Some(server.front_proxy.client("other", &[])), Some(anonymous)),
    ] {
        let (status, message) = asserted(&server, identity.as_ref()).await;
        match refused_as {
            None => assert_eq!(status, 200, "{case}: {message}"),
            Some(name) => {
                assert_eq!(status, 403, "{case}");
                assert!(message.contains(name), "{case}: {message}");
            }
        }
        let probe = server.send(identity.as_ref(), "GET /livez", &[]).await;
        assert_eq!(probe.status, 200, "{case}: a probe is answered whatever the certificate is");
    }
}

#[tokio::test]
async fn a_spoofed_identity_never_reaches_a_review() {
    let server = TestServer::new().await;
    let alice = server.users.client("alice", &["team"]);
    let spoof =
        ["X-Remote-User: root", "X-Remote-Group: system:masters", "X-Remote-Uid: 0", "X-Remote-Extra-A: b"];
    assert_eq!(server.send(Some(&alice), &format!("GET {READ}"), &spoof).await.status, 200);
    let reviews = server.reviewer.reviews.lock().clone();
    let [(user, attributes)] = reviews.as_slice() else { panic!("{reviews:?}") };
    assert_eq!((user.name.as_str(), &user.uid), ("alice", &None));
    assert_eq!(user.groups, ["team", "system:authenticated"]);
    assert!(user.extra.is_empty());
    let expected = "Resource { verb: \"list\", group: \"external.metrics.k8s.io\", version: \"v1beta1\", resource: \
                    \"wva_desired_replicas\", subresource: \"\", namespace: \"llm\", name: \"\" }";
    assert_eq!(format!("{attributes:?}"), expected);
}

/// Public paths.
const PUBLIC: [&str; 7] = [
    "/",
    "/version",
    "/apis",
    "/apis/external.metrics.k8s.io/v1beta1",
    "/openapi/v2",
    "/openapi/v3",
    "/apis/custom.metrics.k8s.io",
];

#[tokio::test]
async fn discovery_is_served_to_every_client_with_a_certificate() {
    let server = TestServer::new().await;
    *server.reviewer.is_unreachable.lock() = true;
    let rotated = Authority::new("front-proxy-ca-2").client("front-proxy-client", &[]);
    let renamed = server.front_proxy.client("another-name", &[]);
    let user = server.users.client("mallory", &[]);
    for path in PUBLIC {
        for (case, identity) in
            [("proxy", &server.proxy), ("rotated CA", &rotated), ("other name", &renamed), ("user", &user)]
        {
            for line in ["X-Remote-User: system:kube-aggregator", "Authorization: Bearer bad"] {
                let answer = server.send(Some(identity), &format!("GET {path}"), &[line]).await;
                assert_eq!(answer.status, 200, "{case} {path} {line}");
            }
        }
    }
    assert!(server.reviewer.reviews.lock().is_empty());
    assert_eq!(server.reviewer.tokens.load(Ordering::SeqCst), 0, "no token is reviewed beside a certificate");
}

#[tokio::test]
async fn without_a_certificate_discovery_needs_a_token() {
    let server = TestServer::new().await;
    for path in
        PUBLIC.into_iter().chain(["/nothing", "/apis/nothing", "/apis/custom.metrics.k8s.io/v1beta2/a/b"])
    {
        let get = format!("GET {path}");
        let anonymous = server.send(None, &get, &["X-Remote-User: system:admin"]).await;
        let message = format!("forbidden: User \"system:anonymous\" cannot get path \"{path}\"");
        assert_eq!((anonymous.status, anonymous.message()), (403, message));
        let bad = server.send(None, &get, &["Authorization: Bearer bad"]).await;
        assert_eq!((bad.status, bad.message().as_str()), (401, "Unauthorized"), "{path}");
    }
    for path in PUBLIC {
        let good = server.send(None, &format!("GET {path}"), &["Authorization: Bearer good"]).await;
        assert_eq!(good.status, 200, "{path}");
    }
    assert!(server.reviewer.reviews.lock().is_empty(), "nobody is asked what a known user may discover");
    *server.reviewer.is_unreachable.lock() = true;
    let unreviewed = server.send(None, "GET /apis", &["Authorization: Bearer third"]).await;
    assert_eq!(unreviewed.status, 200);
    for path in ["/livez", "/readyz", "/healthz"] {
        assert_eq!(server.get(path).await.status, 200, "{path}: a probe shows nothing");
    }
}

#[tokio::test]
async fn before_the_trust_is_loaded_only_discovery_is_answered() {
    let server = TestServer::new().await;
    let data = trust(&server.front_proxy.pem(), &server.users.pem());
    let fresh = TestServer::with(|options| options.has_trust = false).await;
    for path in ["/apis", "/apis/external.metrics.k8s.io/v1beta1"] {
        assert_eq!(fresh.send(Some(&server.proxy), &format!("GET {path}"), &[]).await.status, 200);
        for lines in [&[][..], &["Authorization: Bearer bad"]] {
            assert_eq!(fresh.send(None, &format!("GET {path}"), lines).await.status, 200, "{path} {lines:?}");
        }
    }
    let (status, message) = asserted(&fresh, Some(&server.proxy)).await;
    assert_eq!(status, 503);
    assert!(
        message.starts_with("ConfigMap kube-system/extension-apiserver-authentication has not been read yet")
    );
    fresh.trust.send_replace(Some(data));
    eventually(|| async { asserted(&fresh, Some(&server.proxy)).await.0 == 200 }).await;
}

#[tokio::test]
async fn a_rotated_proxy_ca_applies_at_once_and_an_invalid_one_is_ignored() {
    let server = TestServer::new().await;
    let next = Authority::new("front-proxy-ca-2");
    let renewed = next.client("front-proxy-client", &[]);
    assert_eq!(asserted(&server, Some(&renewed)).await.0, 403);
    let bundle = format!("{}{}", server.front_proxy.pem(), next.pem());
    server.trust.send_replace(Some(trust(&bundle, &server.users.pem())));
    eventually(|| async { asserted(&server, Some(&renewed)).await.0 == 200 }).await;
    assert_eq!(asserted(&server, Some(&server.proxy)).await.0, 200);
    let mut damaged = trust(&next.pem(), &server.users.pem());
    damaged.insert("requestheader-allowed-names".into(), "front-proxy-client".into());
    server.trust.send_replace(Some(damaged));
    server.trust.send_replace(Some(trust("-----BEGIN nonsense", "")));
    assert_eq!(asserted(&server, Some(&server.proxy)).await.0, 200);
    server.trust.send_replace(Some(trust(&next.pem(), &server.users.pem())));
    eventually(|| async { asserted(&server, Some(&server.proxy)).await.0 == 403 }).await;
}

#[tokio::test]
async fn a_proxy_that_is_no_longer_trusted_is_rejected_on_its_open_connection() {
    let server = TestServer::new().await;
    let mut h2 = H2::connect(&server, Some(&server.proxy)).await;
    assert_eq!(h2.read().await.unwrap().status(), 200);
    server.trust.send_replace(Some(trust(&Authority::new("next").pem(), &server.users.pem())));
    eventually(async || h2.read().await.unwrap().status() == 403).await;
}

#[tokio::test]
async fn a_user_may_be_in_very_many_groups() {
    let server = TestServer::new().await;
    let mut lines = vec!["X-Remote-User: hpa".to_owned()];
    lines.extend((0..2000).map(|n| format!("X-Remote-Group: oidc:a-long-group-name-of-a-large-company-{n}")));
    let lines: Vec<_> = lines.iter().map(String::as_str).collect();
    for reviews in 1..=2 {
        assert_eq!(server.send(Some(&server.proxy), &format!("GET {READ}"), &lines).await.status, 200);
        assert_eq!(server.reviewer.reviews.lock().len(), reviews, "too large to be remembered");
    }
    assert_eq!(server.reviewer.reviews.lock()[0].0.groups.len(), 2001);
}

#[tokio::test]
async fn an_empty_list_of_allowed_names_allows_any_name() {
    let server = TestServer::new().await;
    let mut any = trust(&server.front_proxy.pem(), &server.users.pem());
    any.insert("requestheader-allowed-names".into(), "[]".into());
    server.trust.send_replace(Some(any));
    let other = server.front_proxy.client("other", &[]);
    eventually(|| async { asserted(&server, Some(&other)).await.0 == 200 }).await;
    assert_eq!(asserted(&server, Some(&server.users.client("bob", &[]))).await.0, 403);
}

#[tokio::test]
async fn an_invalid_name_or_version_causes_no_review() {
    let server = TestServer::new().await;
    let long = "m".repeat(254);
    for path in [
        super::path("llm", &long),
        super::path(&long, DESIRED),
        variant(&long, "x"),
        variant("llm", &long),
        object("v1beta1", "llm", &long, "x", DESIRED),
        object("v1beta1", "llm", "pods", "x", &long),
    ] {
        let answer = server.proxied("hpa", &path).await;
        assert_eq!(answer.status, 404, "{path}");
        assert_eq!(answer.message(), "no namespace, object or metric has a name of more than 253 bytes");
    }
    let unknown_version = object("v3", "llm", "deployments.apps", "x", DESIRED);
    assert_eq!(server.proxied("hpa", &unknown_version).await.status, 404);
    assert!(server.reviewer.reviews.lock().is_empty());
    assert_eq!(server.proxied("hpa", &super::path("llm", &long[1..])).await.status, 404);
    assert_eq!(server.reviewer.reviews.lock().len(), 1, "253 bytes are a name");
}

#[tokio::test]
async fn masters_need_no_review() {
    let server = TestServer::new().await;
    assert_eq!(asserted(&server, Some(&server.proxy)).await.0, 200);
    assert!(server.reviewer.reviews.lock().is_empty());
}

/// Waits until `check` holds.
pub(crate) async fn eventually(mut check: impl AsyncFnMut() -> bool) {
    for _ in 0..500 {
        if check().await {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("it did not happen within five seconds");
}
