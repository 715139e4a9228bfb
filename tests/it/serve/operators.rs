//! Health and the server's own metrics.

use std::io::Read as _;
use std::sync::Arc;
use std::time::Duration;

use flate2::read::GzDecoder;
use wva::engine::{ClusterView, Leadership};
use wva_core::VariantId;
use wva_core::decision::{GapCause, Reason, SignalGap, Verdict};
use wva_core::snapshot::Signal;

use super::READ;
use super::client::{Answer, Captured};
use super::identity::eventually;
use super::test_server::{TestServer, advance_clock, leading, led_by, sample, target, trust};

async fn health(server: &TestServer, path: &str) -> (u16, String) {
    let answer = server.get(path).await;
    assert_eq!(answer.header("content-type"), Some("text/plain; charset=utf-8"));
    (answer.status, answer.body)
}

#[tokio::test]
async fn health_answers_like_other_api_servers() {
    let server = TestServer::new().await;
    for path in ["/livez", "/readyz", "/healthz", "/readyz/informer-sync", "/livez/ping"] {
        assert_eq!(health(&server, path).await, (200, "ok".into()), "{path}");
    }
    let partly_excluded = "[+]ping excluded: ok\n[+]informer-sync ok\n[+]authentication-trust ok\n[+]leadership ok\n\
                [+]serving-certificate ok\n[+]shutdown excluded: ok\n\
                warn: some health checks cannot be excluded: no matches for \"a\",\"b\"\nreadyz check passed\n";
    let path = "/readyz?exclude=ping&verbose&exclude=a&exclude=b&exclude=shutdown";
    assert_eq!(health(&server, path).await, (200, partly_excluded.into()));
    assert_eq!(health(&server, "/readyz?exclude=a").await, (200, "ok".into()), "a warning is no failure");
    let checks =
        ["ping", "informer-sync", "authentication-trust", "leadership", "serving-certificate", "shutdown"];
    for check in checks {
        assert_eq!(health(&server, &format!("/readyz/{check}")).await, (200, "ok".into()), "{check}");
        let live = health(&server, &format!("/livez/{check}")).await.0;
        assert_eq!(live, if check == "ping" { 200 } else { 404 }, "{check}");
    }
}

#[tokio::test]
async fn the_cause_of_not_ready_is_logged_once_and_not_in_the_answer() {
    let (log, _guard) = Captured::log(tracing::Level::INFO);
    let server = TestServer::with(|options| options.has_synced = false).await;
    for _ in 0..3 {
        let (status, body) = health(&server, "/readyz").await;
        assert!(status == 500 && !body.contains("listed"), "{body}");
    }
    assert_eq!(log.lines("not ready").len(), 1);
    assert!(log.lines("not ready")[0].contains("not every watch has listed once"));
    server.synced.send_replace(true);
    assert_eq!(health(&server, "/readyz").await.0, 200);
    assert_eq!(log.lines(" ready").len(), 2, "{:?}", log.lines(" ready"));
}

#[tokio::test]
async fn readiness_waits_for_the_first_sync_and_ends_on_shutdown() {
    let server = TestServer::new().await;
    server.synced.send_replace(false);
    let waiting = "[+]ping ok\n[-]informer-sync failed: reason withheld\n[+]authentication-trust ok\n\
                   [+]leadership ok\n[+]serving-certificate ok\n[+]shutdown ok\nreadyz check failed\n";
    assert_eq!(health(&server, "/readyz").await, (500, waiting.into()));
    assert_eq!(health(&server, "/readyz/informer-sync").await.0, 500);
    assert_eq!(health(&server, "/readyz?exclude=informer-sync").await.0, 200);
    assert_eq!(health(&server, "/livez").await.0, 200);
    server.synced.send_replace(true);
    assert_eq!(health(&server, "/readyz").await.0, 200);
    server.synced.send_replace(false);
    assert_eq!(health(&server, "/readyz").await.0, 200, "once synced, always ready");
    server.stopping.cancel();
    assert_eq!(health(&server, "/readyz").await.0, 500);
    assert_eq!(health(&server, "/livez").await.0, 200);
    assert_eq!(server.proxied("hpa", READ).await.value(), "5", "reads go on while the endpoints change");
}

#[tokio::test]
async fn a_server_is_not_ready_before_it_can_answer_reads() {
    let server = TestServer::with(|options| options.has_trust = false).await;
    assert_eq!(health(&server, "/readyz/authentication-trust").await.0, 500);
    assert_eq!(health(&server, "/readyz").await.0, 500);
    assert_eq!(server.proxied("hpa", READ).await.status, 503);
    server.trust.send_replace(Some(trust(&server.front_proxy.pem(), &server.users.pem())));
    assert_eq!(health(&server, "/readyz").await.0, 200);

    let server = TestServer::with(|options| options.is_leader = false).await;
    assert_eq!(health(&server, "/readyz/leadership").await.0, 500);
    assert_eq!(health(&server, "/readyz").await.0, 500);
    server.leadership.send_replace(led_by(None));
    assert_eq!(health(&server, "/readyz").await.0, 200);
    server.leadership.send_replace(Leadership::default());
    assert_eq!(health(&server, "/readyz").await.0, 200, "between two leaders");
}

#[tokio::test]
async fn readiness_waits_at_most_30_s_for_trust_and_lease_or_for_the_watches() {
    for is_synced in [true, false] {
        let server = TestServer::with(|options| {
            options.has_synced = is_synced;
            options.has_trust = !is_synced;
            options.is_leader = !is_synced;
        })
        .await;
        server.publish(wva::engine::Published::empty());
        assert_eq!(health(&server, "/readyz").await.0, 500);
        advance_clock(Duration::from_secs(31)).await;
        assert_eq!(health(&server, "/readyz").await, (200, "ok".into()));
        if !is_synced {
            let read = server.proxied("hpa", READ).await;
            assert_eq!(read.status, 503);
            assert!(read.message().contains("have not all listed once"), "{}", read.body);
        }
    }
}

/// Lets the lease of this instance expire without a known new leader.
fn isolate(server: &TestServer) {
    *server.reads.has_expired.lock() = true;
    let expired = Leadership { mine_until: Some(tokio::time::Instant::now()), ..led_by(None) };
    server.leadership.send_replace(expired);
}

#[tokio::test]
async fn an_isolated_instance_is_ready_again_once_it_knows_the_leader() {
    for leadership in [led_by(None), leading()] {
        let server = TestServer::new().await;
        isolate(&server);
        assert_eq!(server.proxied("hpa", READ).await.status, 503);
        assert_eq!(health(&server, "/readyz/leadership").await.0, 500);
        assert_eq!(health(&server, "/readyz").await.0, 500);
        server.leadership.send_replace(Leadership::default());
        assert_eq!(health(&server, "/readyz").await.0, 500, "no leader is known");
        for path in ["/livez", "/apis", "/apis/external.metrics.k8s.io/v1beta1", "/openapi/v2"] {
            assert_eq!(server.get_as_proxy(path).await.status, 200, "{path}");
        }
        server.leadership.send_replace(leadership);
        assert_eq!(health(&server, "/readyz").await.0, 200);
    }
}

#[tokio::test]
async fn an_instance_that_may_answer_stays_ready_without_a_leader() {
    let server = TestServer::new().await;
    isolate(&server);
    *server.reads.has_expired.lock() = false;
    assert_eq!(server.proxied("hpa", READ).await.value(), "5");
    assert_eq!(health(&server, "/readyz").await.0, 200);
}

#[tokio::test]
async fn an_isolated_single_instance_is_ready_again_after_30_s() {
    let server = TestServer::new().await;
    isolate(&server);
    for (after, status) in [(0, 500), (29, 500), (2, 200), (60, 200), (3600, 200)] {
        advance_clock(Duration::from_secs(after)).await;
        assert_eq!(health(&server, "/readyz").await.0, status, "{after} s later");
    }
}

#[tokio::test]
async fn short_contacts_do_not_make_an_isolated_instance_unready_each_time() {
    let server = TestServer::new().await;
    // Seconds of isolation, seconds of contact, and the readiness when it is isolated again.
    for (isolated, in_contact, status) in [(20, 5, 500), (5, 20, 200), (40, 25, 200), (15, 31, 500)] {
        isolate(&server);
        health(&server, "/readyz").await;
        advance_clock(Duration::from_secs(isolated)).await;
        server.leadership.send_replace(leading());
        assert_eq!(health(&server, "/readyz").await.0, 200);
        advance_clock(Duration::from_secs(in_contact)).await;
        isolate(&server);
        assert_eq!(
            health(&server, "/readyz").await.0,
            status,
            "{isolated} s isolated, {in_contact} s in contact"
        );
    }
}

#[tokio::test]
async fn metrics_export_published_targets_and_nothing_unknown() {
    let server = TestServer::with(|options| options.controller_instance = Some("blue".into())).await;
    let answer = server.metrics().await;
    assert_eq!(answer.status, 200);
    let expected = Some("application/openmetrics-text; version=1.0.0; charset=utf-8");
    assert_eq!(answer.header("content-type"), expected);
    let labels = r#"{variant_name="llama-a100",namespace="llm",variant="llama-a100",accelerator_type="A100",controller_instance="blue"}"#;
    for line in [
        "# HELP wva_desired_replicas Desired number of replicas for each variant".to_owned(),
        "# TYPE wva_desired_replicas gauge".to_owned(),
        format!("wva_desired_replicas{labels} 5"),
        format!("wva_current_replicas{labels} 2"),
        format!("wva_desired_ratio{labels} 2.5"),
        format!("inferno_desired_replicas{labels} 5"),
        format!("inferno_desired_ratio{labels} 2.5"),
    ] {
        assert!(answer.has_line(&line), "{line} is missing in\n{}", answer.body);
    }
    for absent in ["new", "old", "bad"] {
        let number = format!("_replicas{{variant_name=\"{absent}\"");
        assert!(!answer.body.contains(&number), "{number} must not be there");
    }
    assert!(answer.body.ends_with("# EOF\n"));
}

#[tokio::test]
async fn compressed_metrics_are_the_same_text() {
    let server = TestServer::new().await;
    let plain = server.metrics().await;
    assert_eq!(plain.header("content-encoding"), None);
    let lines = ["Authorization: Bearer good", "Accept-Encoding: gzip"];
    let packed = server.send(None, "GET /metrics", &lines).await;
    assert_eq!((packed.status, packed.header("content-encoding")), (200, Some("gzip")));
    assert_eq!(packed.header("content-type"), plain.header("content-type"));
    let mut text = String::new();
    GzDecoder::new(&packed.bytes[..]).read_to_string(&mut text).unwrap();
    let of_variants = |text: &str| -> Vec<String> {
        text.lines().filter(|line| line.contains("variant_name=")).map(str::to_owned).collect()
    };
    assert!(!of_variants(&text).is_empty() && text.ends_with("# EOF\n"), "{text}");
    assert_eq!(of_variants(&text), of_variants(&plain.body));
}

/// The text of `/metrics/decisions`.
async fn decisions(server: &TestServer) -> Answer {
    server.send(None, "GET /metrics/decisions", &["Authorization: Bearer good"]).await
}

#[tokio::test]
async fn decisions_are_one_line_a_variant_in_the_format_that_keda_parses() {
    let server = TestServer::with(|options| options.controller_instance = Some("blue".into())).await;
    let answer = decisions(&server).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let own = "wva_desired_replicas{accelerator_type=\"A100\",controller_instance=\"blue\",exported_namespace=\"llm\",\
               namespace=\"llm\",variant=\"llama-a100\",variant_name=\"llama-a100\"} 5";
    assert!(answer.has_line(own), "{}", answer.body);
    let lines: Vec<_> = answer.body.lines().filter(|line| !line.starts_with('#')).collect();
    let mut sorted = lines.clone();
    sorted.sort_unstable();
    sorted.dedup();
    assert_eq!(lines.len(), sorted.len(), "no variant twice");
    for absent in ["\"new\"", "\"old\"", "\"bad\""] {
        assert!(!answer.body.contains(absent), "{absent} has no number, and no line");
    }
}

#[tokio::test]
async fn a_scaled_object_lost_its_series_to_a_variant_autoscaling_on_its_target() {
    let server = TestServer::new().await;
    let (keda, deployment) = (VariantId::new("llm", "keda"), VariantId::new("llm", "deployment"));
    // `new` has a decision of its own until the next evaluation; `deployment` is the name of a scale target.
    let new = VariantId::new("half", "new");
    let aliases = [(&keda, "llama-a100"), (&new, "good"), (&deployment, "llama-a100")];
    let aliases = aliases.map(|(alias, name)| (alias.clone(), name.into())).into();
    let followers = [keda, new].into();
    *server.reads.view.lock() = Arc::new(ClusterView { aliases, followers, ..ClusterView::default() });
    for (source, answer) in [("decisions", decisions(&server).await), ("metrics", server.metrics().await)] {
        let lines = |name: &str| {
            let label = format!("variant_name=\"{name}\"");
            let desired = answer.body.lines().filter(|line| line.starts_with("wva_desired_replicas{"));
            desired.filter(|line| line.contains(&label)).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(lines("llama-a100").len(), 1, "{source}");
        assert_eq!(lines("keda"), [lines("llama-a100")[0].replace("llama-a100", "keda")], "{source}");
        assert!(lines("new").is_empty() && lines("deployment").is_empty(), "{source}: {}", answer.body);
    }
}

#[tokio::test]
async fn decisions_need_a_right_and_a_result() {
    let server = TestServer::new().await;
    assert_eq!(server.send(None, "GET /metrics/decisions", &[]).await.status, 403);
    assert_eq!(
        server.send(None, "POST /metrics/decisions", &["Authorization: Bearer good"]).await.status,
        405
    );
    server.publish(wva::engine::Published::empty());
    let answer = decisions(&server).await;
    assert_eq!(answer.status, 503, "an empty list would look as if there were no variants");
    assert!(answer.message().contains("no decision has been made yet"), "{}", answer.body);
}

#[tokio::test]
async fn a_missing_signal_is_shown_by_a_metric() {
    let server = TestServer::new().await;
    let mut values = Vec::new();
    let gaps = GapCause::ALL.map(|cause| Some(Some(cause)));
    for gap in [None, Some(None)].into_iter().chain(gaps) {
        let mut next = sample();
        let mut decision = target(5, Some(2), "2026-11-21T10:00:05Z");
        if let (Some(gap), Verdict::Target(target)) = (gap, &mut decision.verdict) {
            target.reason = Reason::Steady;
            decision.gap = gap.map(|cause| SignalGap {
                cause,
                pods: 2,
                serving: 2,
                missing: vec![Signal::Running],
                contradicted: Vec::new(),
                fallback: None,
                warning: None,
            });
        }
        next.decisions.insert(VariantId::new("llm", "llama-a100"), decision);
        server.publish(next);
        let body = server.metrics().await.body;
        let is_of_variant =
            |line: &&str| line.starts_with("wva_signals_complete{") && line.contains("\"llama-a100\"");
        values.push(
            body.lines().find(is_of_variant).and_then(|line| line.rsplit(' ').next()).map(str::to_owned),
        );
    }
    assert_eq!(values[..2], [None, Some("1".into())], "unknown while nothing is measured");
    assert_eq!(values[2..], vec![Some("0".to_owned()); GapCause::ALL.len()], "whatever the cause is");
}

#[tokio::test]
async fn only_the_leader_shows_the_numbers() {
    let server = TestServer::new().await;
    assert_eq!(health(&server, "/livez").await.0, 200);
    server.leadership.send_replace(led_by(None));
    let answer = server.metrics().await;
    assert!(!answer.body.contains("wva_desired_replicas"));
    assert!(answer.body.contains("wva_http_requests_total"));
}

#[tokio::test]
async fn every_change_of_a_number_is_counted_with_its_direction_and_reason() {
    let server = TestServer::new().await;
    assert_eq!(server.metrics().await.status, 200, "the server has begun to follow");
    for (desired, direction) in [(7, "up"), (6, "down"), (6, "down")] {
        let mut next = sample();
        let id = VariantId::new("llm", "llama-a100");
        next.decisions.insert(id, target(desired, Some(2), "2026-11-21T10:00:05Z"));
        server.publish(next);
        let labels = format!(
            r#"{{variant_name="llama-a100",namespace="llm",variant="llama-a100",direction="{direction}",reason="SourceDown"}} 1"#
        );
        let line = format!("wva_replica_scaling_total{labels}");
        eventually(|| async { server.metrics().await.has_line(&line) }).await;
    }
}

#[tokio::test]
async fn the_age_of_every_answered_item_is_counted_once_in_its_group() {
    let server = TestServer::new().await;
    let count = r#"metrics_apiserver_metric_freshness_seconds_count{group="external.metrics.k8s.io"}"#;
    let answer = server.metrics().await;
    assert!(answer.has_line(&format!("{count} 0")), "{}", answer.body);
    assert!(answer.body.contains(r#"_seconds_count{group="custom.metrics.k8s.io"} 0"#));
    server.proxied("hpa", &super::path("pair", "wva_desired_replicas")).await;
    server.proxied("hpa", &super::path("half", "wva_desired_replicas")).await;
    let answer = server.metrics().await;
    let sum = count.replace("_count", "_sum");
    // 5 s and 10 s old; the failed read counts nothing.
    assert!(answer.has_line(&format!("{count} 2")), "{}", answer.body);
    assert!(answer.has_line(&format!("{sum} 15.0")), "{}", answer.body);
}

#[tokio::test]
async fn requests_are_counted_by_route_and_never_by_path() {
    let server = TestServer::new().await;
    for namespace in 0..5 {
        server.proxied("hpa", &super::path(&format!("ns{namespace}"), "m")).await;
    }
    tokio::time::sleep(Duration::from_millis(10)).await;
    let answer = server.metrics().await;
    let route = "/apis/external.metrics.k8s.io/v1beta1/namespaces/{namespace}/{metric}";
    let line = format!("wva_http_requests_total{{route=\"{route}\",code=\"404\"}} 5");
    assert!(answer.has_line(&line), "{line} is missing in\n{}", answer.body);
    assert!(!answer.body.contains("ns1"));
}
