//! What narrows the queries: matchers, namespaces, and the tenant's header.

use http::HeaderName;
use serde_json::json;
use wiremock::{MockServer, Request, ResponseTemplate};
use wva::collect::{PrometheusSettings, Token};
use wva::engine::Scope;
use wva_core::RequiredSignals;
use wva_core::snapshot::Signal;
use wva_core::units::Seconds;

use super::support::{
    collect, counts, matrix, ok, prometheus, promql, queries, scope, settings, values, waiting,
};

/// A fake Prometheus with one pod in `llm`.
async fn server() -> MockServer {
    prometheus(ok(&counts(&[("llm", 1)])), ok(&matrix(&[waiting("llm", "p", &[(0, "1")])]))).await
}

fn tenant(value: Token) -> Vec<(HeaderName, Token)> {
    vec![(HeaderName::from_static("x-scope-orgid"), value)]
}

#[tokio::test]
async fn every_query_has_the_matchers_the_namespaces_and_nothing_else() {
    let server = server().await;
    let narrowed = PrometheusSettings {
        query_matchers: vec![r#"cluster="eu-1",env!~"dev.*""#.into(), r#"zone=~"a\\.b""#.into()],
        query_namespaces: ["llm".to_owned()].into(),
        trusted_collectors: vec!["monitoring/otel".into()],
        ..settings(server.uri())
    };
    let needs = RequiredSignals { signals: [Signal::KvUsage].into(), window: Seconds::ZERO };
    let scope = Scope { needs: Some(needs), ..scope(&["llm", "other"]) };
    let collected = collect(&narrowed, &scope).await.unwrap();
    assert_eq!(values(&collected, Signal::Waiting), [("p".to_owned(), vec![1.0])]);
    let [gap] = collected.gaps.as_slice() else { panic!("{:?}", collected.gaps) };
    assert_eq!(gap.namespace.as_deref(), Some("other"));
    assert!(gap.reason.contains("--query-namespace"), "{gap:?}");

    let names = "vllm:kv_cache_usage_perc|vllm:gpu_cache_usage_perc|sglang:token_usage|\
                 trtllm_kv_cache_utilization|vllm:engine_sleep_state";
    let start = format!(
        "{{__name__=~\"{names}\",sleep_state=~\"|awake\",cluster=\"eu-1\",env!~\"dev.*\",zone=~\"a\\\\.b\",namespace=~"
    );
    let count = format!(
        "count by (namespace) ({start}\"llm\"}}) or count by (namespace, exported_namespace) \
         ({start}\"monitoring\",exported_namespace=~\"llm\"}})"
    );
    let sent: Vec<String> = queries(&server).await.iter().map(promql).collect();
    assert_eq!(sent, [count, format!("{start}\"llm\"}}[75000ms]")]);
}

#[tokio::test]
async fn without_a_namespace_that_may_be_queried_nothing_is() {
    let server = server().await;
    let query_namespaces = ["elsewhere".to_owned()].into();
    let narrowed = PrometheusSettings { query_namespaces, ..settings(server.uri()) };
    let collected = collect(&narrowed, &scope(&["llm"])).await.unwrap();
    assert!(collected.series.is_empty() && collected.gaps.len() == 1, "{collected:?}");
    assert!(queries(&server).await.is_empty());
}

#[tokio::test]
async fn a_tenant_is_sent_with_every_query_also_over_plain_http() {
    let server = server().await;
    let headers = tenant(Token::Inline("team-a".into()));
    collect(&PrometheusSettings { headers, ..settings(server.uri()) }, &scope(&["llm"])).await.unwrap();
    let requests = queries(&server).await;
    assert_eq!(requests.len(), 2);
    assert!(requests.iter().all(|request| request.headers["x-scope-orgid"] == "team-a"));
}

#[tokio::test]
async fn a_header_from_a_file_is_a_secret_and_not_sent_over_plain_http() {
    let server = server().await;
    let file = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("tenant-over-http");
    std::fs::write(&file, "s3cret").unwrap();
    let headers = tenant(Token::File(file));
    collect(&PrometheusSettings { headers, ..settings(server.uri()) }, &scope(&["llm"])).await.unwrap();
    let requests = queries(&server).await;
    assert!(requests.iter().all(|request| !request.headers.contains_key("x-scope-orgid")));
}

#[tokio::test]
async fn a_header_named_like_a_credential_was_once_sent_over_plain_http() {
    let server = server().await;
    let headers = ["x-api-key", "x-auth", "x-vault-token", "x-scope-orgid"]
        .map(|name| (HeaderName::from_static(name), Token::Inline("s3cret".into())));
    let with_headers = PrometheusSettings { headers: headers.into(), ..settings(server.uri()) };
    collect(&with_headers, &scope(&["llm"])).await.unwrap();
    for request in queries(&server).await {
        let sent = request.headers.iter().filter(|(_, value)| *value == "s3cret");
        assert_eq!(sent.map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["x-scope-orgid"]);
    }
}

#[tokio::test]
async fn a_server_that_wants_a_tenant_gets_an_error_that_names_the_flag_and_no_value() {
    // As Mimir and Cortex answer: plain text.
    let denied = |_: &Request| ResponseTemplate::new(401).set_body_string("no org id\n");
    let server = prometheus(ResponseTemplate::new(401).set_body_string("no org id\n"), denied).await;
    let error = collect(&settings(server.uri()), &scope(&["llm"])).await.unwrap_err();
    assert!(error.message.contains("401 Unauthorized (no org id)"), "{error}");
    assert!(error.message.contains("--prometheus-header 'X-Scope-OrgID: TENANT'"), "{error}");

    let unknown = ResponseTemplate::new(403).set_body_string("tenant unknown");
    let server = prometheus(unknown, denied).await;
    let with_tenant =
        PrometheusSettings { headers: tenant(Token::Inline("s3cret".into())), ..settings(server.uri()) };
    let error = collect(&with_tenant, &scope(&["llm"])).await.unwrap_err();
    assert!(error.message.contains("the tenant in --prometheus-header"), "{error}");
    assert!(!error.message.contains("s3cret") && !format!("{with_tenant:?}").contains("s3cret"), "{error}");
}

#[tokio::test]
async fn a_server_that_repeats_a_header_once_put_its_value_into_the_error() {
    // Long enough that the quote ends within the last value.
    let said = format!("no such org s3cret-team, nor s3cret {} s3cret-team", "x".repeat(250));
    let body = |is_json: bool| {
        if is_json { json!({ "status": "error", "error": said }).to_string() } else { said.clone() }
    };
    for (is_json, kind) in [(false, "text/plain"), (true, "application/json")] {
        let denied = ResponseTemplate::new(403).set_body_raw(body(is_json), kind);
        let server = prometheus(denied.clone(), move |_: &Request| denied.clone()).await;
        let mut headers = tenant(Token::Inline("s3cret".into()));
        headers.push((HeaderName::from_static("x-team"), Token::Inline("s3cret-team".into())));
        let repeated = PrometheusSettings { headers, ..settings(server.uri()) };
        let error = collect(&repeated, &scope(&["llm"])).await.unwrap_err();
        assert!(error.message.contains("403 Forbidden (no such org …, nor … xxx"), "{error}");
        assert!(!error.message.contains("s3cr"), "{error}");
    }
}
