//! Forwarding between two real servers, one of them without the lease.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rcgen::ExtendedKeyUsagePurpose;
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep};
use wva::serve::tls::SharedPki;
use wva_core::VariantId;

use super::client::{Captured, exchange, tls};
use super::custom_metrics::{self, deployment, object, server_with, variant};
use super::identity::eventually;
use super::pki::{Authority, INSTANCE, Leaf, SERVICE, Subject};
use super::test_server::{TestServer, leading, led_by, sample, target};
use super::{READ, path};

const INNER: &str = "/internal/v1/external/llm/wva_desired_replicas";
const INNER_OBJECT: &str =
    "/internal/v1/custom/v1beta2/namespaces/llm/deployments.apps/llama-decode/wva_desired_replicas";

/// The leader, and another instance with older numbers.
pub(crate) async fn leader_and_follower() -> (TestServer, TestServer) {
    let shared_ca = Arc::new(Authority::new("wva"));
    let leader = server_with(|options| options.shared_ca = shared_ca.clone()).await;
    let follower = server_with(|options| options.shared_ca = shared_ca).await;
    let mut older = sample();
    for decision in older.decisions.values_mut() {
        *decision = target(3, Some(2), "2026-11-21T09:59:00Z");
    }
    follower.publish(older);
    follower.leadership.send_replace(led_by(Some(format!("https://{}", leader.address))));
    (leader, follower)
}

#[tokio::test]
async fn every_instance_returns_the_leaders_answer_as_its_client_accepts_it() {
    let (leader, follower) = leader_and_follower().await;
    let mut many = sample();
    let id = |index| VariantId::new("many", format!("variant-{index:04}"));
    many.decisions.extend((0..1000).map(|index| (id(index), target(1, Some(1), "2026-11-21T10:00:05Z"))));
    leader.publish(many);
    let paths = [
        READ.to_owned(),
        path("pair", "wva_desired_replicas"),
        path("pair", "wva_desired_ratio") + "?labelSelector=variant_name+in+%28two%2Cx%29",
        path("half", "wva_desired_replicas"),
        path("llm", "nothing"),
        path("llm", "wva_desired_replicas") + "?labelSelector=a%3Db%3Dc",
        path("many", "wva_desired_replicas"),
        variant("llm", "llama-a100"),
        object("v1beta1", "llm", "deployments.apps", "llama-decode", "wva_desired_ratio"),
        deployment("pair", "*") + "?metricLabelSelector=variant+in+%28two%2Cx%29",
        deployment("pair", "pair-two"),
        variant("llm", "nope"),
        variant("llm", "x") + "?labelSelector=a%3Db%3Dc",
    ];
    let forms = [
        "Accept: */*",
        "Accept: application/vnd.kubernetes.protobuf, */*",
        "Accept: application/yaml",
        "Accept: application/json;as=Table;v=v1;g=meta.k8s.io",
        "Accept: application/xml",
        "Accept-Encoding: gzip",
    ];
    for (path, form) in paths.iter().flat_map(|path| forms.map(|form| (path, form))) {
        let reads = || leader.reads.count.load(Ordering::SeqCst);
        let before = reads();
        let forwarded = follower.read_as_hpa(path, &[form]).await;
        let is_valid = !path.contains("a%3Db") && !form.ends_with("xml");
        assert_eq!(reads() > before, is_valid, "{path} {form}");
        let direct = leader.read_as_hpa(path, &[form]).await;
        assert_eq!(forwarded.status, direct.status, "{path} {form}");
        assert!(forwarded.bytes == direct.bytes, "{path} {form}");
        for name in [
            "content-type",
            "content-encoding",
            "content-length",
            "vary",
            "warning",
            "cache-control",
            "audit-id",
        ] {
            assert_eq!(forwarded.all(name), direct.all(name), "{path} {form} {name}");
        }
        let is_compressed = forwarded.header("content-encoding") == Some("gzip");
        assert_eq!(is_compressed, path.contains("/many/") && form.ends_with("gzip"), "{path} {form}");
    }
}

#[tokio::test]
async fn every_instance_has_the_leaders_decisions_as_text() {
    let (leader, follower) = leader_and_follower().await;
    let decisions = async |server: &TestServer| {
        server.send(None, "GET /metrics/decisions", &["Authorization: Bearer good"]).await
    };
    let (direct, forwarded) = (decisions(&leader).await, decisions(&follower).await);
    assert!(direct.body.contains("variant_name=\"llama-a100\"} 5"), "{}", direct.body);
    assert_eq!((forwarded.status, &forwarded.body), (200, &direct.body));
    assert_eq!(forwarded.header("content-type"), direct.header("content-type"));
    // Without the leader, the last state that it published.
    follower.leadership.send_replace(led_by(None));
    let last = decisions(&follower).await;
    assert!(last.body.contains("variant_name=\"llama-a100\"} 3"), "{}", last.body);
}

#[tokio::test]
async fn the_instance_that_receives_a_read_authorises_it() {
    let (leader, follower) = leader_and_follower().await;
    for (path, reviews) in [(READ, 1), (&variant("llm", "llama-a100"), 3)] {
        assert_eq!(follower.proxied("mallory", path).await.status, 403);
        assert_eq!(follower.reviewer.reviews.lock().len(), reviews);
    }
    assert_eq!(follower.proxied("hpa", READ).await.value(), "5");
    assert!(leader.reviewer.reviews.lock().is_empty());
}

#[tokio::test]
async fn without_the_leader_reads_get_its_last_state_with_its_true_time() {
    let (mut leader, follower) = leader_and_follower().await;
    assert_eq!(follower.proxied("hpa", READ).await.value(), "5");
    leader.shutdown.cancel();
    leader.task.join_next().await;
    for path in [READ, READ, &deployment("llm", "llama-decode")] {
        let answer = follower.proxied("hpa", path).await;
        assert_eq!(answer.value(), "3");
        assert!(answer.body.contains(r#""timestamp":"2026-11-21T09:59:00Z""#));
        let warning = answer.header("warning").unwrap();
        assert!(warning.starts_with("299 - \"the leader wva-0 "), "{warning}");
        assert!(warning.ends_with("this is the last state it published\""), "{warning}");
    }
}

#[tokio::test]
async fn a_number_of_an_expired_lease_is_not_answered() {
    let (leader, follower) = leader_and_follower().await;
    *leader.reads.has_expired.lock() = true;
    let forwarded = follower.proxied("hpa", READ).await;
    assert_eq!(
        forwarded.value(),
        "3",
        "what the last leader published, for it is no number of an earlier term"
    );
    assert!(forwarded.header("warning").unwrap().contains("this is the last state it published"));
    let regained = leader.proxied("hpa", READ).await;
    assert_eq!(regained.status, 503);
    assert!(regained.message().contains("has just acquired the lease"), "{}", regained.message());
    leader.leadership.send_replace(wva::engine::Leadership::default());
    let lapsed = leader.proxied("hpa", READ).await;
    assert_eq!(lapsed.status, 503);
    assert!(lapsed.message().contains("its lease has expired"), "{}", lapsed.message());
    assert!(lapsed.message().contains("no instance is known to hold the lease"), "{}", lapsed.message());
    *leader.reads.has_expired.lock() = false;
    assert_eq!(leader.proxied("hpa", READ).await.value(), "5", "until it is known to be of no earlier term");
}

#[tokio::test]
async fn a_read_right_after_the_lease_is_regained_waits_for_the_first_result() {
    let (leader, _other) = leader_and_follower().await;
    *leader.reads.has_expired.lock() = true;
    let taking_over = async {
        sleep(Duration::from_millis(100)).await;
        *leader.reads.has_expired.lock() = false;
        leader.publish(sample());
    };
    let (answer, ()) = tokio::join!(leader.proxied("hpa", READ), taking_over);
    assert_eq!((answer.status, answer.value().as_str()), (200, "5"), "{}", answer.body);
}

#[tokio::test]
async fn a_silent_leader_delays_one_read_and_not_each() {
    let (_leader, follower) = leader_and_follower().await;
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap();
    follower.leadership.send_replace(led_by(Some(format!("https://{address}"))));
    let started = Instant::now();
    assert_eq!(follower.proxied("hpa", READ).await.value(), "3");
    let first = started.elapsed();
    assert!(first >= Duration::from_millis(700) && first < Duration::from_millis(1500), "{first:?}");
    let started = Instant::now();
    for _ in 0..5 {
        assert_eq!(follower.proxied("hpa", READ).await.value(), "3");
    }
    assert!(started.elapsed() < Duration::from_millis(500), "the others are answered at once");
}

#[tokio::test]
async fn a_moved_lease_is_noticed_and_a_read_is_forwarded_once() {
    let (leader, follower) = leader_and_follower().await;
    // Each believes that the other one holds the lease.
    leader.leadership.send_replace(led_by(Some(format!("https://{}", follower.address))));
    let answer = follower.proxied("hpa", READ).await;
    assert_eq!(answer.value(), "3");
    assert!(answer.header("warning").unwrap().contains("no longer holds the lease"));
    follower.leadership.send_replace(leading());
    assert_eq!(leader.proxied("hpa", READ).await.value(), "3");
    assert_eq!(leader.proxied("hpa", READ).await.header("warning"), None);
}

#[tokio::test]
async fn a_restarted_leader_does_not_hide_the_last_state_of_others() {
    let (leader, follower) = leader_and_follower().await;
    leader.publish(wva::engine::Published::empty());
    let answer = follower.proxied("hpa", READ).await;
    assert_eq!(answer.value(), "3");
    let warning = answer.header("warning").unwrap();
    assert!(warning.contains("the leader wva-0 has just started and has no result yet"), "{warning}");
    leader.publish(sample());
    assert_eq!(follower.proxied("hpa", READ).await.value(), "5", "it is asked again at once, without a rest");
}

#[tokio::test]
async fn only_an_instance_may_use_the_internal_paths() {
    let server = custom_metrics::server().await;
    let ask = async |leaf: Option<Leaf>, path: &str| {
        let stream = tls(server.address, &server.shared_ca.pem(), INSTANCE, leaf.as_ref(), "http/1.1").await;
        let masters = ["X-Remote-User: hpa", "X-Remote-Group: system:masters"];
        exchange(stream.unwrap(), &format!("GET {path}"), &masters).await
    };
    let named = |ca: &Authority| {
        ca.issue(&Subject { common_name: INSTANCE, names: &[INSTANCE], ..Subject::default() })
    };
    for path in [INNER, INNER_OBJECT] {
        assert_eq!(ask(Some(server.instance()), path).await.value(), "5");
    }
    for (case, leaf) in [
        ("nobody", None),
        ("the front proxy", Some(server.proxy.clone())),
        ("a user with an instance's name", Some(named(&server.users))),
        ("another CA of the same name", Some(named(&Authority::new("wva")))),
        ("another name of the shared CA", Some(server.shared_ca.client("wva-instance.other.internal", &[]))),
    ] {
        for path in [INNER, INNER_OBJECT] {
            assert_eq!(ask(leaf.clone(), path).await.status, 403, "{case} {path}");
        }
    }
}

#[tokio::test]
async fn an_untrusted_instance_certificate_is_verified_once_per_version_of_the_bundle() {
    let (log, _guard) = Captured::log(tracing::Level::DEBUG);
    let server = TestServer::new().await;
    let foreign = Authority::new("wva");
    let usages = &[ExtendedKeyUsagePurpose::ClientAuth];
    let named = Subject { common_name: INSTANCE, names: &[INSTANCE], usages, ..Subject::default() };
    let leaf = foreign.issue(&named);
    let ask = async || {
        let stream = tls(server.address, &server.shared_ca.pem(), INSTANCE, Some(&leaf), "http/1.1").await;
        exchange(stream.unwrap(), &format!("GET {INNER}"), &[]).await
    };
    for _ in 0..5 {
        assert_eq!(ask().await.status, 403);
    }
    let verifications = log.lines("this CA did not issue the client certificate");
    assert_eq!(
        verifications.len(),
        3,
        "for the proxy's CA, the users' and the shared one: {verifications:?}"
    );
    server.shared.send_replace(Some(SharedPki { ca_pem: foreign.pem(), ..server.shared_ca.shared() }));
    assert_eq!(ask().await.value(), "5", "what was no before is asked of the new bundle");
}

#[tokio::test]
async fn renewed_shared_certificates_open_a_new_connection_to_the_leader() {
    let (leader, follower) = leader_and_follower().await;
    assert_eq!(follower.proxied("hpa", READ).await.value(), "5");
    let next = Authority::new("next").shared();
    leader.shared.send_replace(Some(next.clone()));
    follower.shared.send_replace(Some(next.clone()));
    // Both servers show the new leaf to clients that trust the new CA.
    eventually(async || {
        let stream = tls(follower.address, &next.ca_pem, SERVICE, Some(&follower.proxy), "http/1.1").await;
        let Ok(stream) = stream else { return false };
        let answer = exchange(stream, &format!("GET {READ}"), &["X-Remote-User: hpa"]).await;
        answer.status == 200 && answer.value() == "5"
    })
    .await;
}

#[tokio::test]
async fn an_error_from_the_last_state_says_that_the_leader_did_not_answer() {
    let (_leader, follower) = leader_and_follower().await;
    follower.leadership.send_replace(led_by(Some("https://127.0.0.1:1".into())));
    let answer = follower.proxied("hpa", &path("llm", "wva_desired_replicas")).await;
    assert_eq!(answer.value(), "3");
    *follower.reads.now.lock() = "2026-11-21T11:00:00Z".parse().unwrap();
    let answer = follower.proxied("hpa", READ).await;
    assert_eq!(answer.status, 503);
    let message = answer.message();
    assert!(
        message.contains("is withheld") && message.contains("(the leader wva-0 cannot be reached"),
        "{message}"
    );
}
