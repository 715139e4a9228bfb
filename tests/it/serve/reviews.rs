//! Reviews by the API server: their number, how long their results are used, and the errors without one.

use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::join_all;
use tokio::time::{Instant, sleep, timeout};

use super::READ;
use super::client::{Answer, Captured, H2};
use super::golden::golden;
use super::identity::eventually;
use super::test_server::{TestServer, advance_clock};

/// The sync interval of an HPA.
const SYNC: Duration = Duration::from_secs(15);

async fn with_token(server: &TestServer, token: &str) -> Answer {
    server.send(None, "GET /metrics", &[&format!("Authorization: Bearer {token}")]).await
}

fn reviews(server: &TestServer) -> usize {
    server.reviewer.reviews.lock().len()
}

#[tokio::test]
async fn an_hpa_causes_one_review_per_45_s_and_waits_only_for_the_first() {
    let server = TestServer::new().await;
    assert_eq!(server.proxied("hpa", READ).await.value(), "5");
    for sync in 1..=40 {
        advance_clock(SYNC).await;
        assert_eq!(server.proxied("hpa", READ).await.value(), "5");
        // Every third sync finds a permission within its refresh window.
        eventually(async || reviews(&server) == 1 + sync / 3).await;
    }
}

/// Reads of an HPA over 285 s, none of which waits for a review.
async fn read_for_285_s(server: &TestServer) {
    for _ in 1..20 {
        advance_clock(SYNC).await;
        let read = timeout(Duration::from_secs(2), server.proxied("hpa", READ)).await;
        assert_eq!(read.expect("not after the review").value(), "5");
        sleep(Duration::from_millis(10)).await;
    }
    assert!(reviews(server) <= 20, "{} reviews", reviews(server));
}

#[tokio::test]
async fn a_hanging_review_does_not_delay_regular_reads() {
    let server = TestServer::new().await;
    assert_eq!(server.proxied("hpa", READ).await.status, 200);
    *server.reviewer.hangs.lock() = true;
    read_for_285_s(&server).await;
    assert!(reviews(&server) >= 5, "{} reviews", reviews(&server));
}

#[tokio::test]
async fn a_permission_is_extended_for_five_minutes_without_the_api_server() {
    let server = TestServer::new().await;
    assert_eq!(server.proxied("hpa", READ).await.status, 200);
    *server.reviewer.is_unreachable.lock() = true;
    read_for_285_s(&server).await;
    advance_clock(SYNC + Duration::from_secs(1)).await;
    let expired = server.proxied("hpa", READ).await;
    assert_eq!(expired.status, 503, "301 s");
    let message = expired.message();
    assert!(
        message.starts_with(&format!("whether User \"hpa\" may read {READ} cannot be decided: ")),
        "{message}"
    );
    assert!(
        message.contains("connection refused; check that this server reaches the API server"),
        "{message}"
    );
    *server.reviewer.is_unreachable.lock() = false;
    assert_eq!(server.proxied("hpa", READ).await.value(), "5", "an error is not cached");
}

#[tokio::test]
async fn a_revoked_permission_ends_with_the_next_review() {
    let server = TestServer::new().await;
    assert_eq!(server.proxied("hpa", READ).await.status, 200);
    let ends = async || {
        server.reviewer.readers.lock().remove("hpa");
        let before = reviews(&server);
        assert_eq!(server.proxied("hpa", READ).await.status, 200, "it is reviewed meanwhile");
        eventually(async || server.proxied("hpa", READ).await.status == 403).await;
        assert_eq!(reviews(&server), before + 1);
        server.reviewer.readers.lock().insert("hpa".into());
        advance_clock(Duration::from_secs(11)).await;
        assert_eq!(server.proxied("hpa", READ).await.status, 200);
    };
    advance_clock(Duration::from_secs(45)).await;
    ends().await;
    *server.reviewer.is_unreachable.lock() = true;
    advance_clock(Duration::from_secs(200)).await;
    assert_eq!(
        server.proxied("hpa", READ).await.status,
        200,
        "it is extended, even after minutes without a read"
    );
    *server.reviewer.is_unreachable.lock() = false;
    advance_clock(Duration::from_secs(11)).await;
    ends().await;
}

#[tokio::test]
async fn a_permission_is_not_extended_when_the_api_server_rejects_the_review() {
    let server = TestServer::new().await;
    assert_eq!(server.proxied("hpa", READ).await.status, 200);
    *server.reviewer.refuses.lock() = true;
    advance_clock(Duration::from_secs(61)).await;
    assert_eq!(server.proxied("hpa", READ).await.status, 503);
    *server.reviewer.refuses.lock() = false;
    *server.reviewer.is_unreachable.lock() = true;
    assert_eq!(server.proxied("hpa", READ).await.status, 503, "the old permission does not return");
}

#[tokio::test]
async fn a_denial_is_never_extended_and_a_token_for_two_minutes() {
    let server = TestServer::new().await;
    assert_eq!(server.proxied("mallory", READ).await.status, 403);
    assert_eq!(with_token(&server, "bad").await.status, 401);
    assert_eq!(with_token(&server, "good").await.status, 200);
    assert_eq!(server.proxied("prometheus", READ).await.status, 200);
    *server.reviewer.is_unreachable.lock() = true;
    for _ in 1..8 {
        advance_clock(SYNC).await;
        assert_eq!(with_token(&server, "good").await.status, 200);
        assert_eq!(server.proxied("mallory", READ).await.status, 503);
        assert_eq!(with_token(&server, "bad").await.status, 503);
        sleep(Duration::from_millis(10)).await;
    }
    advance_clock(SYNC + Duration::from_secs(1)).await;
    assert_eq!(with_token(&server, "good").await.status, 503, "121 s");
}

#[tokio::test]
async fn a_denial_is_cached_for_less_time_than_a_permission() {
    let server = TestServer::new().await;
    assert_eq!(server.proxied("carol", READ).await.status, 403);
    server.reviewer.readers.lock().insert("carol".into());
    advance_clock(Duration::from_secs(8)).await;
    assert_eq!(server.proxied("carol", READ).await.status, 403);
    assert_eq!(reviews(&server), 1);
    advance_clock(Duration::from_secs(3)).await;
    assert_eq!(server.proxied("carol", READ).await.status, 200, "the new RoleBinding works after 10 s");
    server.reviewer.readers.lock().remove("carol");
    advance_clock(Duration::from_secs(55)).await;
    assert_eq!(server.proxied("carol", READ).await.status, 200);
    advance_clock(Duration::from_secs(6)).await;
    assert_eq!(server.proxied("carol", READ).await.status, 403, "and the removed one ends within 60 s");
}

#[tokio::test]
async fn an_invalid_token_is_cached_for_less_time_than_a_valid_one() {
    let server = TestServer::new().await;
    let token_reviews = || server.reviewer.tokens.load(Ordering::SeqCst);
    for (token, status, cached, expired) in [("bad", 401, 4, 2), ("good", 200, 9, 22)] {
        let before = token_reviews();
        assert_eq!(with_token(&server, token).await.status, status);
        advance_clock(Duration::from_secs(cached)).await;
        assert_eq!(with_token(&server, token).await.status, status);
        assert_eq!(token_reviews(), before + 1, "{token}");
        advance_clock(Duration::from_secs(expired)).await;
        assert_eq!(with_token(&server, token).await.status, status);
        assert_eq!(token_reviews(), before + 2, "{token}");
    }
    *server.reviewer.is_unreachable.lock() = true;
    assert_eq!(with_token(&server, "good").await.status, 200, "its review is cached");
    let unreviewed = with_token(&server, "other").await;
    assert_eq!(unreviewed.message(), "the bearer token cannot be reviewed: connection refused");
    assert_eq!(unreviewed.status, 503);
}

#[tokio::test]
async fn callers_with_the_same_question_share_one_review_with_a_timeout() {
    let server = TestServer::new().await;
    *server.reviewer.hangs.lock() = true;
    let mut h2 = H2::connect(&server, Some(&server.proxy)).await;
    let reads: Vec<_> = (0..50).map(|_| h2.read()).collect();
    sleep(Duration::from_millis(200)).await;
    assert_eq!(reviews(&server), 1);
    advance_clock(Duration::from_secs(6)).await;
    for answer in timeout(Duration::from_secs(2), join_all(reads)).await.expect("an end") {
        assert_eq!(answer.unwrap().status(), 503);
    }
    advance_clock(Duration::from_secs(1)).await;
    let read = server.proxied("hpa", READ);
    let advance = async {
        sleep(Duration::from_millis(100)).await;
        advance_clock(Duration::from_secs(6)).await;
    };
    let (late, ()) = tokio::join!(read, advance);
    assert!(late.message().contains("the API server did not answer within 5 s"), "{}", late.body);
}

#[tokio::test]
async fn above_the_limit_of_reviews_the_answer_is_429_at_once() {
    let server = TestServer::new().await;
    assert_eq!(server.proxied("hpa", READ).await.status, 200);
    assert_eq!(with_token(&server, "good").await.status, 200);
    *server.reviewer.hangs.lock() = true;
    let mut h2 = H2::connect(&server, Some(&server.proxy)).await;
    let waiting: Vec<_> = (0..64).map(|n| h2.get(READ, "x-remote-user", &format!("user-{n}"))).collect();
    sleep(Duration::from_millis(200)).await;
    let began = Instant::now();
    let rejected = server.proxied("one-too-many", READ).await;
    assert_eq!(rejected.status, 429);
    let message = rejected.message();
    assert!(
        message.contains("\"one-too-many\"") && message.contains("64 reviews are already waiting"),
        "{message}"
    );
    golden("edge-too-many-reviews", &rejected);
    assert_eq!(server.proxied("hpa", READ).await.value(), "5", "who was reviewed before is answered");
    assert_eq!(with_token(&server, "good").await.status, 200);
    for path in ["/apis", "/apis/external.metrics.k8s.io/v1beta1", "/openapi/v2", "/livez", "/readyz"] {
        assert_eq!(server.get_as_proxy(path).await.status, 200, "{path}");
    }
    assert!(began.elapsed() < Duration::from_secs(2), "none of it waits");
    drop(waiting);
}

#[tokio::test]
async fn invalid_tokens_do_not_use_up_the_reviews_of_known_callers() {
    let server = TestServer::new().await;
    *server.reviewer.hangs.lock() = true;
    let mut h2 = H2::connect(&server, None).await;
    let waiting: Vec<_> =
        (0..64).map(|n| h2.get("/apis", "authorization", &format!("Bearer junk-{n}"))).collect();
    sleep(Duration::from_millis(200)).await;
    assert_eq!(server.reviewer.tokens.load(Ordering::SeqCst), 64);
    *server.reviewer.hangs.lock() = false;
    let rejected = with_token(&server, "one-too-many").await;
    assert_eq!(rejected.status, 429);
    assert!(rejected.message().contains("64 reviews are already waiting"), "{}", rejected.body);
    let token = "Authorization: Bearer unknown";
    golden("edge-too-many-token-reviews", &server.send(None, &format!("GET {READ}"), &[token]).await);
    assert_eq!(server.proxied("hpa", READ).await.value(), "5", "its review has a place of its own");
    let discovery = server.send(None, "GET /apis", &["Authorization: Bearer one-too-many"]).await;
    assert_eq!(discovery.status, 200, "what is public is served without a review");
    drop(waiting);
}

#[tokio::test]
async fn only_the_credential_id_is_ignored_by_the_cache() {
    let server = TestServer::new().await;
    let read = |extra: &'static str| {
        let lines = ["X-Remote-User: hpa", extra];
        let server = &server;
        async move { server.send(Some(&server.proxy), &format!("GET {READ}"), &lines).await.status }
    };
    for (extra, reviews_so_far) in [
        ("X-Remote-Extra-Authentication.kubernetes.io%2fcredential-Id: JTI=1", 1),
        ("X-Remote-Extra-authentication.kubernetes.io%2Fcredential-id: JTI=2", 1),
        ("X-Remote-Extra-Authentication.kubernetes.io%2fpod-Name: kcm", 2),
        ("X-Remote-Group: more", 3),
        ("X-Remote-Extra-Scopes: view", 4),
    ] {
        assert_eq!(read(extra).await, 200);
        assert_eq!(reviews(&server), reviews_so_far, "{extra}");
    }
    let extra = server.reviewer.reviews.lock()[0].0.extra.clone();
    let credential = extra.get("authentication.kubernetes.io/credential-id");
    assert_eq!(credential.map(Vec::as_slice), Some(&["JTI=1".to_owned()][..]), "the review itself has it");
}

#[tokio::test]
async fn a_token_appears_in_no_log_line_error_or_metric() {
    const SECRET: &str = "eyJhbGciOi-secret-4f1d";
    let (log, _guard) = Captured::log(tracing::Level::TRACE);
    let server = TestServer::new().await;
    let mut answers = vec![with_token(&server, SECRET).await, with_token(&server, "good").await];
    *server.reviewer.is_unreachable.lock() = true;
    answers.push(with_token(&server, &format!("{SECRET}-2")).await);
    let path = format!("/metrics?access_token=x&audit={SECRET}");
    let lines = [&*format!("Authorization: Basic {SECRET}"), &*format!("Authorization: {SECRET}")];
    answers.push(server.send(None, &format!("GET {READ}"), &lines).await);
    let mut h2 = H2::connect(&server, None).await;
    assert_eq!(h2.get(READ, "authorization", &format!("Bearer {SECRET}")).await.unwrap().status(), 401);
    assert_eq!(answers.iter().map(|answer| answer.status).collect::<Vec<_>>(), [401, 200, 503, 403]);
    assert!(answers.iter().all(|answer| !format!("{answer:?}").contains(SECRET)));
    assert!(log.lines("answered").len() >= 5, "the log was captured");
    assert_eq!(log.lines(SECRET), Vec::<String>::new());
    // A path is logged without its query, where some clients put tokens.
    let _ = server.get(&path).await;
    assert_eq!(log.lines(SECRET), Vec::<String>::new());
}
