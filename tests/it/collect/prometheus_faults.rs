//! Faults of Prometheus: incomplete answers are gaps, and no answer is an error that names the next step.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use wiremock::matchers::{method, path};
use wiremock::{Mock, Request, ResponseTemplate};
use wva::collect::{PrometheusSettings, PrometheusSource, Token};
use wva::engine::MetricSource as _;
use wva_core::snapshot::Signal;

use super::support::{
    LOOPBACK, RawServer, collect, counts, matrix, ok, prometheus, promql, provider, queries, scope, settings,
    values, waiting,
};

#[tokio::test]
async fn an_answer_with_a_warning_is_used_and_is_a_gap() {
    let mut answer = matrix(&[waiting("llm", "p", &[(0, "1")])]);
    answer["warnings"] = json!(["store-1: no such host"]);
    let server = prometheus(ok(&counts(&[("llm", 1)])), ok(&answer)).await;
    let collected = collect(&settings(server.uri()), &scope(&["llm"])).await.unwrap();
    assert_eq!(collected.series.len(), 1);
    let [gap] = collected.gaps.as_slice() else { panic!("{:?}", collected.gaps) };
    assert!(gap.namespace.is_none() && gap.reason.contains("store-1"), "{gap:?}");
}

#[tokio::test]
async fn a_partial_answer_and_one_with_an_info_about_missing_data_are_gaps() {
    let lost = "storage node vmstorage-2 was skipped";
    for (key, value) in [("isPartial", json!(true)), ("infos", json!([lost]))] {
        let mut answer = matrix(&[waiting("llm", "p", &[(0, "1")])]);
        answer[key] = value;
        let server = prometheus(ok(&counts(&[("llm", 1)])), ok(&answer)).await;
        let collected = collect(&settings(server.uri()), &scope(&["llm"])).await.unwrap();
        assert_eq!(collected.series.len(), 1, "{key}: what came counts");
        let [gap] = collected.gaps.as_slice() else { panic!("{key}: {:?}", collected.gaps) };
        let why = if key == "infos" { lost } else { "isPartial" };
        assert!(gap.namespace.is_none() && gap.reason.contains(why), "{gap:?}");
    }
    let mut whole = matrix(&[waiting("llm", "p", &[(0, "1")])]);
    whole["isPartial"] = json!(false);
    whole["infos"] = json!(["PromQL info: metric might not be a counter, name does not end in _total"]);
    let server = prometheus(ok(&counts(&[("llm", 1)])), ok(&whole)).await;
    let collected = collect(&settings(server.uri()), &scope(&["llm"])).await.unwrap();
    assert!(collected.gaps.is_empty(), "{:?}", collected.gaps);
}

/// An HTTP answer that ends after half of its body.
fn cut(answer: &Value) -> Vec<u8> {
    let text = answer.to_string();
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        text.len()
    );
    [head.as_bytes(), &text.as_bytes()[..text.len() / 2]].concat()
}

#[tokio::test]
async fn the_series_of_a_truncated_body_are_used_and_it_is_a_gap() {
    let result: Vec<Value> = (0..10).map(|n| waiting("llm", &format!("p{n}"), &[(0, "1")])).collect();
    let server = RawServer::start(cut(&matrix(&result))).await;
    let collected = collect(&settings(server.url()), &scope(&["llm"])).await.unwrap();
    let pods = values(&collected, Signal::Waiting).len();
    assert!((3..=5).contains(&pods), "{pods}");
    assert!(collected.gaps.iter().any(|gap| gap.reason.contains("broke off")), "{:?}", collected.gaps);
}

#[tokio::test]
async fn the_series_within_the_size_limit_are_used_and_a_longer_body_is_a_gap() {
    let result: Vec<Value> = (0..2_000).map(|n| waiting("llm", &format!("p{n}"), &[(0, "1")])).collect();
    let server = prometheus(ok(&counts(&[("llm", 2_000)])), ok(&matrix(&result))).await;
    let capped = PrometheusSettings { max_body_bytes: 100_000, ..settings(server.uri()) };
    let collected = collect(&capped, &scope(&["llm"])).await.unwrap();
    assert!(collected.series.len() < 2_000);
    let [gap] = collected.gaps.as_slice() else { panic!("{:?}", collected.gaps) };
    assert!(gap.reason.contains("longer than 100000 bytes"), "{}", gap.reason);
}

/// 64 KiB of spaces in gzip.
const BOMB: [u8; 97] = [
    31, 139, 8, 0, 0, 0, 0, 0, 2, 3, 237, 193, 129, 0, 0, 0, 0, 128, 32, 149, 253, 41, 23, 169, 10, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 106, 148, 25, 44, 180, 0, 0,
    1, 0,
];

#[tokio::test]
async fn the_size_limit_counts_decompressed_bytes() {
    let read = ResponseTemplate::new(200).insert_header("content-encoding", "gzip").set_body_bytes(BOMB);
    let server = prometheus(ok(&counts(&[("llm", 1)])), read).await;
    let capped = PrometheusSettings { max_body_bytes: 10_000, ..settings(server.uri()) };
    let error = collect(&capped, &scope(&["llm"])).await.unwrap_err();
    assert_eq!(error.kind, "decode");
    assert!(error.message.contains("longer than 10000 bytes"), "{error}");
}

#[tokio::test]
async fn a_slow_prometheus_is_a_timeout_that_names_it() {
    let slow = || ok(&counts(&[])).set_delay(Duration::from_secs(5));
    let server = prometheus(slow(), slow()).await;
    let hasty = PrometheusSettings { query_timeout: Duration::from_millis(100), ..settings(server.uri()) };
    let error = collect(&hasty, &scope(&["llm"])).await.unwrap_err();
    assert_eq!(error.kind, "timeout");
    assert!(
        error.message.starts_with(&format!("Prometheus at {}: no answer within", server.uri())),
        "{error}"
    );
}

#[tokio::test]
async fn a_prometheus_that_hangs_takes_three_timeouts_however_many_namespaces_there_are() {
    let slow = ok(&matrix(&[])).set_delay(Duration::from_secs(9));
    let names: Vec<String> = (0..100).map(|n| format!("ns{n:02}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let rows: Vec<(&str, u64)> = names.iter().map(|name| (*name, 10)).collect();
    let server = prometheus(ok(&counts(&rows)), slow).await;
    let hasty = PrometheusSettings {
        query_timeout: Duration::from_millis(300),
        max_series: 10,
        ..settings(server.uri())
    };
    let started = tokio::time::Instant::now();
    let error = collect(&hasty, &scope(&names)).await.unwrap_err();
    assert_eq!(error.kind, "timeout");
    assert!(started.elapsed() < Duration::from_secs(4), "{:?}", started.elapsed());
}

#[tokio::test]
async fn a_slow_namespace_is_a_gap_and_affects_no_other() {
    let read = |request: &Request| {
        let query = promql(request);
        match ["b", "c"].iter().find(|name| query.contains(&format!("namespace=~\"{name}\""))) {
            Some(name) => ok(&matrix(&[waiting(name, name, &[(0, "1")])])),
            None => ok(&matrix(&[])).set_delay(Duration::from_secs(9)),
        }
    };
    let server = prometheus(ok(&counts(&[("a", 8), ("b", 8), ("c", 8)])), read).await;
    provider();
    let split = PrometheusSettings {
        max_series: 10,
        deadline: Duration::from_millis(700),
        concurrency: 1,
        ..settings(server.uri())
    };
    let source = PrometheusSource::new(&split).unwrap();
    let scope = scope(&["a", "b", "c"]);
    let started = tokio::time::Instant::now();
    let first = source.collect(&scope).await.unwrap_err();
    assert_eq!(first.kind, "timeout", "one at a time, the slow one first: nothing came");
    let collected = source.collect(&scope).await.unwrap();
    assert!(started.elapsed() < Duration::from_secs(4), "{:?}", started.elapsed());
    assert_eq!(values(&collected, Signal::Waiting).len(), 2, "the slow one goes last now");
    let [gap] = collected.gaps.as_slice() else { panic!("{:?}", collected.gaps) };
    assert!(gap.namespace.as_deref() == Some("a") && gap.reason.contains("no answer within"), "{gap:?}");
}

#[tokio::test]
async fn a_prometheus_that_is_gone_is_a_connect_error() {
    let listener = std::net::TcpListener::bind((LOOPBACK, 0)).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let error = collect(&settings(url), &scope(&["llm"])).await.unwrap_err();
    assert_eq!(error.kind, "connect");
    assert!(error.message.contains("refused") && error.message.contains("check the URL"), "{error}");
}

#[tokio::test]
async fn an_error_quotes_prometheus_and_says_what_to_do() {
    let denied = ResponseTemplate::new(403).set_body_string("<html>no</html>");
    let server = prometheus(denied, ok(&matrix(&[]))).await;
    let error = collect(&settings(server.uri()), &scope(&["llm"])).await.unwrap_err();
    assert_eq!(error.kind, "status");
    assert!(error.message.contains("403") && error.message.contains("bearer token"), "{error}");

    let broken = json!({"status": "error", "errorType": "bad_data", "error": "parse error"});
    let server = prometheus(ResponseTemplate::new(400).set_body_json(broken), ok(&matrix(&[]))).await;
    let error = collect(&settings(server.uri()), &scope(&["llm"])).await.unwrap_err();
    assert!(error.message.contains("(parse error)"), "{error}");
}

#[tokio::test]
async fn a_web_page_instead_of_an_api_is_a_decode_error() {
    let page = ResponseTemplate::new(200).set_body_string("<!doctype html><title>Login</title>");
    let server = prometheus(page, ok(&matrix(&[]))).await;
    let error = collect(&settings(server.uri()), &scope(&["llm"])).await.unwrap_err();
    assert_eq!(error.kind, "decode");
}

#[tokio::test]
async fn no_secret_is_ever_sent_over_plain_http_nor_shown() {
    let server = prometheus(ok(&counts(&[])), ResponseTemplate::new(500)).await;
    let url = server.uri().replace("http://", "http://user:s3cret@");
    let with_secrets = PrometheusSettings { token: Token::Inline("t0ken".into()), ..settings(url) };
    let error = collect(&with_secrets, &scope(&["llm"])).await.unwrap_err();
    for secret in ["s3cret", "t0ken"] {
        assert!(!error.message.contains(secret) && !format!("{with_secrets:?}").contains(secret), "{error}");
    }
    let requests = queries(&server).await;
    assert_eq!(requests.len(), 2);
    assert!(requests.iter().all(|request| !request.headers.contains_key("authorization")));
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let away = ResponseTemplate::new(302).insert_header("location", "https://elsewhere/");
    let server = prometheus(away, ok(&matrix(&[]))).await;
    let error = collect(&settings(server.uri()), &scope(&["llm"])).await.unwrap_err();
    assert!(error.message.contains("302") && error.message.contains("final URL"), "{error}");
}

/// The namespaces of a query.
fn named(query: &str) -> Vec<String> {
    let (_, labels) = query.split_once("namespace=~\"").unwrap();
    labels.split('"').next().unwrap().split('|').map(str::to_owned).collect()
}

/// Answers with a pod of each namespace in the query; `evil` changes answers with the namespace `evil`.
fn with_evil(evil: fn(Vec<Value>) -> ResponseTemplate) -> impl Fn(&Request) -> ResponseTemplate {
    move |request| {
        let names = named(&promql(request));
        let own = names.iter().filter(|name| *name != "evil");
        let result: Vec<Value> = own.map(|name| waiting(name, name, &[(0, "1")])).collect();
        if names.iter().any(|name| name == "evil") { evil(result) } else { ok(&matrix(&result)) }
    }
}

/// A hundred series with a label of 10 kB each, before all others.
fn huge_labels(others: Vec<Value>) -> ResponseTemplate {
    let mut series: Vec<Value> = (0..100).map(|n| waiting("evil", &format!("p{n}"), &[(0, "1")])).collect();
    series.iter_mut().for_each(|series| series["metric"]["note"] = json!("x".repeat(10_000)));
    series.extend(others);
    ok(&matrix(&series))
}

fn slow(others: Vec<Value>) -> ResponseTemplate {
    ok(&matrix(&others)).set_delay(Duration::from_secs(9))
}

/// Collects three times, and checks that only `evil` is a gap and all others are answered. Returns the queries of the last time.
async fn check_that_only_evil_is_affected(
    count: ResponseTemplate,
    evil: fn(Vec<Value>) -> ResponseTemplate,
) -> Vec<String> {
    provider();
    let server = prometheus(count, with_evil(evil)).await;
    let settings = PrometheusSettings {
        max_body_bytes: 500_000,
        query_timeout: Duration::from_millis(500),
        ..settings(server.uri())
    };
    let source = PrometheusSource::new(&settings).unwrap();
    let scope = scope(&["a", "b", "evil", "f"]);
    let mut before = 0;
    for round in 0..3 {
        before = queries(&server).await.len();
        let collected = source.collect(&scope).await.unwrap();
        let all = values(&collected, Signal::Waiting);
        let others: Vec<&str> =
            all.iter().map(|(pod, _)| pod.as_str()).filter(|pod| pod.len() == 1).collect();
        assert_eq!(others, ["a", "b", "f"], "round {round}");
        let blind: Vec<_> = collected.gaps.iter().map(|gap| gap.namespace.as_deref()).collect();
        assert_eq!(blind, [Some("evil")], "round {round}: {:?}", collected.gaps);
    }
    queries(&server).await[before..].iter().map(promql).collect()
}

#[tokio::test]
async fn a_namespace_with_huge_labels_affects_only_itself() {
    let rows = [("a", 1), ("b", 1), ("evil", 100), ("f", 1), ("stranger", 1_000_000)];
    let sent = check_that_only_evil_is_affected(ok(&counts(&rows)), huge_labels).await;
    assert!(
        sent.iter().all(|query| !query.contains("stranger")),
        "foreign namespaces are not read: {sent:?}"
    );
}

#[tokio::test]
async fn a_namespace_with_slow_series_affects_only_itself() {
    check_that_only_evil_is_affected(ok(&counts(&[("a", 1), ("b", 1), ("evil", 100), ("f", 1)])), slow).await;
}

#[tokio::test]
async fn an_oversized_namespace_does_not_delay_the_others() {
    provider();
    let server = prometheus(ok(&counts(&[("a", 1), ("evil", 100)])), with_evil(slow)).await;
    let settings = PrometheusSettings { deadline: Duration::from_secs(6), ..settings(server.uri()) };
    let source = PrometheusSource::new(&settings).unwrap();
    let mut took = Vec::new();
    for _ in 0..2 {
        let started = tokio::time::Instant::now();
        let collected = source.collect(&scope(&["a", "evil"])).await.unwrap();
        took.push(started.elapsed().as_secs_f64());
        assert!(values(&collected, Signal::Waiting).iter().any(|(pod, _)| pod == "a"), "{collected:?}");
    }
    assert!(took[0] > 4.0 && took[1] < 3.5, "the whole time once, then 2 s: {took:?}");
}

#[tokio::test]
async fn a_namespace_that_cannot_be_counted_affects_only_itself() {
    let sent =
        check_that_only_evil_is_affected(ok(&counts(&[])).set_delay(Duration::from_secs(9)), slow).await;
    assert!(sent.iter().all(|query| !query.starts_with("count")), "it is not tried every time: {sent:?}");
}

#[tokio::test]
async fn an_oversized_namespace_does_not_shorten_the_window_of_others() {
    provider();
    let read = |request: &Request| {
        let query = promql(request);
        let names = named(&query);
        if names.contains(&"evil".to_owned()) {
            return huge_labels(Vec::new());
        }
        let (_, window) = query.rsplit_once('[').unwrap();
        let window: i64 = window.trim_end_matches("ms]").parse().unwrap();
        let samples: Vec<(i64, &str)> =
            (0..10).map(|n| (-60 * n, "1")).filter(|(age, _)| -age * 1_000 <= window).rev().collect();
        ok(&matrix(&[waiting("a", "a", &samples)]))
    };
    let server = prometheus(ok(&counts(&[("a", 1), ("evil", 100)])), read).await;
    let settings = PrometheusSettings { max_body_bytes: 500_000, ..settings(server.uri()) };
    let source = PrometheusSource::new(&settings).unwrap();
    let mut samples = Vec::new();
    for _ in 0..3 {
        let collected = source.collect(&scope(&["a", "evil"])).await.unwrap();
        let all = values(&collected, Signal::Waiting);
        samples.push(all.iter().find(|(pod, _)| pod == "a").unwrap().1.len());
    }
    assert_eq!(samples, [2, 6, 6], "75 s, then 300 s for a scrape every 60 s");
}

/// The log, and the number of requests for the configuration, of two collections with this answer to such a request.
async fn logged(configuration: ResponseTemplate) -> (String, usize) {
    provider();
    let server = prometheus(ok(&counts(&[("a", 1)])), ok(&matrix(&[waiting("a", "a", &[(0, "1")])]))).await;
    Mock::given(method("GET"))
        .and(path("/api/v1/status/config"))
        .respond_with(configuration)
        .mount(&server)
        .await;
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_max_level(tracing::Level::DEBUG)
        .with_writer(move || writer.clone())
        .finish();
    let _logging = tracing::subscriber::set_default(subscriber);
    let source = PrometheusSource::new(&settings(server.uri())).unwrap();
    for _ in 0..2 {
        assert_eq!(source.collect(&scope(&["a"])).await.unwrap().series.len(), 1, "nothing depends on it");
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    let requests = server.received_requests().await.unwrap();
    let count = requests.iter().filter(|request| request.url.path() == "/api/v1/status/config").count();
    let text = log.0.lock().unwrap().clone();
    (String::from_utf8(text).unwrap(), count)
}

/// The log as text.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn a_job_with_honor_labels_is_logged_once_with_the_remedy() {
    let yaml = "scrape_configs:\n- job_name: vllm\n- job_name: tenants\n  honor_labels: true\n";
    let (log, requests) = logged(ok(&json!({"status": "success", "data": {"yaml": yaml}}))).await;
    let warnings: Vec<&str> =
        log.lines().filter(|line| line.contains("WARN") && line.contains("honor_labels")).collect();
    assert!(warnings.len() == 1 && requests == 1, "{log}");
    assert!(warnings[0].contains("\"tenants\"") && warnings[0].contains("overrideHonorLabels"), "{log}");
    assert!(!warnings[0].contains("vllm"), "{log}");
}

#[tokio::test]
async fn an_unreadable_configuration_is_logged_once_and_has_no_effect() {
    for status in [403, 404] {
        let (log, requests) = logged(ResponseTemplate::new(status)).await;
        let lines: Vec<&str> = log.lines().filter(|line| line.contains("honor_labels")).collect();
        assert!(lines.len() == 1 && requests == 1 && lines[0].contains("DEBUG"), "{log}");
        assert!(lines[0].contains(&status.to_string()), "{log}");
    }
}
