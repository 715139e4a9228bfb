//! Series from a healthy Prometheus, and the number of queries they take.

use serde_json::{Value, json};
use wiremock::{Request, ResponseTemplate};
use wva::engine::{Collected, Scope};
use wva_core::snapshot::Signal;
use wva_core::units::Seconds;

use super::support::{
    NOW, collect, counts, endpoint, matrix, ok, prometheus, promql, queries, scope, series, settings, values,
    waiting,
};

#[tokio::test]
async fn samples_keep_their_true_times() {
    let read = ok(&matrix(&[series(
        "vllm:kv_cache_usage_perc",
        json!({"namespace": "llm", "pod": "p", "engine": "0", "model_name": "m"}),
        &[(-30, "0.25"), (-15, "0.5")],
    )]));
    let server = prometheus(ok(&counts(&[("llm", 1)])), read).await;
    let collected = collect(&settings(server.uri()), &scope(&["llm"])).await.unwrap();
    let [series] = collected.series.as_slice() else { panic!("{collected:?}") };
    assert_eq!((&*series.labels.namespace, &*series.labels.pod, &*series.labels.engine), ("llm", "p", "0"));
    assert_eq!((series.labels.model.as_deref(), series.signal), (Some("m"), Signal::KvUsage));
    let times: Vec<i64> = series.samples.iter().map(|sample| sample.at.as_second() - NOW).collect();
    assert_eq!(times, [-30, -15]);
    assert!(collected.gaps.is_empty() && collected.bad_samples == 0);
}

#[tokio::test]
async fn one_model_and_a_thousand_take_the_same_two_queries() {
    for models in [1, 1_000] {
        let result: Vec<Value> = (0..models).map(|n| waiting("llm", &format!("p{n}"), &[(0, "1")])).collect();
        let server = prometheus(ok(&counts(&[("llm", models)])), ok(&matrix(&result))).await;
        let collected = collect(&settings(server.uri()), &scope(&["llm"])).await.unwrap();
        assert_eq!(collected.series.len() as u64, models);
        let sent: Vec<String> = queries(&server).await.iter().map(promql).collect();
        assert_eq!(sent.len(), 2, "{sent:?}");
        assert!(sent[0].starts_with("count by (namespace) ({__name__=~\""));
        assert!(
            sent[1].starts_with("{__name__=~\"vllm:kv_cache_usage_perc|") && sent[1].ends_with("[75000ms]")
        );
    }
}

/// Ages of the samples of scrapes every 60 s of which the last but one was missed, within the window of a query.
fn slow_scrapes(request: &Request) -> ResponseTemplate {
    let query = promql(request);
    let (_, window) = query.rsplit_once('[').unwrap();
    let window: i64 = window.trim_end_matches("ms]").parse().unwrap();
    let samples: Vec<(i64, &str)> = [-560, -500, -440, -380, -320, -260, -200, -140, -20]
        .into_iter()
        .filter(|age| -age * 1_000 <= window)
        .map(|age| (age, "1"))
        .collect();
    ok(&matrix(&[waiting("llm", "p", &samples)]))
}

#[tokio::test]
async fn slow_scrapes_widen_the_window_to_two_samples_after_a_missed_scrape() {
    let server = prometheus(ok(&counts(&[("llm", 1)])), slow_scrapes).await;
    super::support::provider();
    let source = wva::collect::PrometheusSource::new(&settings(server.uri())).unwrap();
    let scope = scope(&["llm"]);
    let mut counts = Vec::new();
    for _ in 0..4 {
        let collected = wva::engine::MetricSource::collect(&source, &scope).await.unwrap();
        counts.push(values(&collected, Signal::Waiting)[0].1.len());
    }
    assert_eq!(counts, [1, 9, 4, 4], "75 s, a look back of 600 s, then 300 s");
    let sent: Vec<String> = queries(&server).await.iter().map(promql).collect();
    assert_eq!(sent.len(), 5, "one count, and one question an evaluation, whatever the window");
    let windows: Vec<&str> = sent.iter().filter_map(|q| Some(q.rsplit_once('[')?.1)).collect();
    assert_eq!(windows, ["75000ms]", "600000ms]", "300000ms]", "300000ms]"]);
}

#[tokio::test]
async fn a_longer_window_that_is_rejected_is_not_tried_again_for_a_while() {
    let read = |request: &Request| {
        if promql(request).ends_with("[75000ms]") {
            return slow_scrapes(request);
        }
        ResponseTemplate::new(422).set_body_json(json!({
            "status": "error", "errorType": "execution",
            "error": "query processing would load too many samples into memory in query execution",
        }))
    };
    let server = prometheus(ok(&counts(&[("llm", 1)])), read).await;
    super::support::provider();
    let source = wva::collect::PrometheusSource::new(&settings(server.uri())).unwrap();
    let scope = scope(&["llm"]);
    let mut answered = Vec::new();
    for _ in 0..4 {
        answered.push(wva::engine::MetricSource::collect(&source, &scope).await.is_ok());
    }
    assert_eq!(answered, [true, false, true, true]);
}

#[tokio::test]
async fn without_namespaces_there_is_no_query() {
    let server = prometheus(ok(&counts(&[])), ok(&matrix(&[]))).await;
    collect(&settings(server.uri()), &scope(&[])).await.unwrap();
    assert!(queries(&server).await.is_empty());
}

#[tokio::test]
async fn gzip_is_accepted() {
    let server = prometheus(ok(&counts(&[])), ok(&matrix(&[]))).await;
    collect(&settings(server.uri()), &scope(&["llm"])).await.unwrap();
    let requests = queries(&server).await;
    assert_eq!(requests[1].headers["accept-encoding"], "gzip");
}

#[tokio::test]
async fn above_max_series_the_query_is_split_by_namespace() {
    let read = |request: &Request| {
        let query = promql(request);
        let result: Vec<Value> = ["a", "b", "c"]
            .iter()
            .filter(|name| query.contains(&format!("namespace=~\"{name}\"")))
            .map(|name| waiting(name, name, &[(0, "1")]))
            .collect();
        ok(&matrix(&result))
    };
    let server = prometheus(ok(&counts(&[("a", 8), ("b", 8), ("c", 8), ("stranger", 99)])), read).await;
    let small = wva::collect::PrometheusSettings { max_series: 10, ..settings(server.uri()) };
    let collected = collect(&small, &scope(&["a", "b", "c"])).await.unwrap();
    assert_eq!(collected.series.len(), 3);
    assert!(collected.gaps.is_empty());
    assert_eq!(queries(&server).await.len(), 4);
}

#[tokio::test]
async fn a_namespace_above_max_series_is_split_by_signal_and_a_failed_query_is_a_gap() {
    let pod = || json!({"namespace": "a", "pod": "p", "engine": "0"});
    let read = move |request: &Request| match promql(request) {
        query if query.contains("waiting") => ok(&matrix(&[waiting("a", "p", &[(0, "1")])])),
        query if query.contains("kv_cache") => {
            ok(&matrix(&[series("vllm:kv_cache_usage_perc", pod(), &[(0, "0.5")])]))
        }
        _ => ResponseTemplate::new(500),
    };
    let server = prometheus(ok(&counts(&[("a", 31)])), read).await;
    let signals = [Signal::KvUsage, Signal::Waiting, Signal::Running].into();
    let needs = Some(wva_core::RequiredSignals { signals, window: Seconds::ZERO });
    let small = wva::collect::PrometheusSettings { max_series: 10, ..settings(server.uri()) };
    let collected = collect(&small, &Scope { needs, ..scope(&["a"]) }).await.unwrap();
    assert_eq!(values(&collected, Signal::Waiting), [("p".to_owned(), vec![1.0])]);
    assert_eq!(values(&collected, Signal::KvUsage), [("p".to_owned(), vec![0.5])]);
    assert!(collected.gaps.iter().all(|gap| gap.reason.contains("500")) && collected.gaps.len() == 1);
    assert_eq!(queries(&server).await.len(), 5, "the count, three signals, and whether engines sleep");
}

#[tokio::test]
async fn counts_are_used_until_there_is_a_new_namespace_or_a_failure() {
    let fails = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let failing = fails.clone();
    let read = move |_: &Request| match failing.load(std::sync::atomic::Ordering::Relaxed) {
        true => ResponseTemplate::new(500),
        false => ok(&matrix(&[waiting("a", "p", &[(0, "1")])])),
    };
    let server = prometheus(ok(&counts(&[("a", 1), ("b", 1)])), read).await;
    super::support::provider();
    let source = wva::collect::PrometheusSource::new(&settings(server.uri())).unwrap();
    for (namespaces, failing, queries_so_far) in [
        (&["a"][..], false, 2),
        (&["a"], false, 3),
        (&["a", "b"], false, 4),
        (&["a", "c"], false, 6),
        (&["a"], true, 7),
        (&["a"], false, 9),
    ] {
        fails.store(failing, std::sync::atomic::Ordering::Relaxed);
        let collected = wva::engine::MetricSource::collect(&source, &scope(namespaces)).await;
        assert_eq!(collected.is_err(), failing);
        assert_eq!(queries(&server).await.len(), queries_so_far, "{namespaces:?}");
    }
}

#[tokio::test]
async fn a_limit_error_splits_queries_by_namespace_for_a_while() {
    let read = |request: &Request| {
        let query = promql(request);
        match ["a", "b"].iter().find(|name| query.contains(&format!("namespace=~\"{name}\""))) {
            Some(name) => ok(&matrix(&[waiting(name, name, &[(0, "1")])])),
            None => ResponseTemplate::new(422).set_body_json(json!({
                "status": "error", "errorType": "execution",
                "error": "the query exceeded the maximum number of series (limit: 1 series) (err-mimir-max-series-per-query)",
            })),
        }
    };
    let server = prometheus(ok(&counts(&[("a", 1), ("b", 1)])), read).await;
    super::support::provider();
    let source = wva::collect::PrometheusSource::new(&settings(server.uri())).unwrap();
    let scope = scope(&["a", "b"]);
    for queries_so_far in [4, 7] {
        let collected = wva::engine::MetricSource::collect(&source, &scope).await.unwrap();
        assert_eq!(values(&collected, Signal::Waiting).len(), 2);
        assert!(collected.gaps.is_empty(), "{:?}", collected.gaps);
        assert_eq!(queries(&server).await.len(), queries_so_far);
    }
}

#[tokio::test]
async fn after_a_limit_error_only_the_affected_query_is_repeated_by_namespace() {
    let read = |request: &Request| {
        let query = promql(request);
        let (_, labels) = query.split_once("namespace=~\"").unwrap();
        let names: Vec<&str> = labels.split('"').next().unwrap().split('|').collect();
        match names.as_slice() {
            ["a", "b"] => ResponseTemplate::new(422).set_body_json(json!({
                "status": "error", "errorType": "execution",
                "error": "query processing would load too many samples into memory in query execution",
            })),
            names => {
                let result: Vec<Value> = names.iter().map(|name| waiting(name, name, &[(0, "1")])).collect();
                ok(&matrix(&result))
            }
        }
    };
    let server = prometheus(ok(&counts(&[("a", 5), ("b", 5), ("c", 5), ("d", 5)])), read).await;
    super::support::provider();
    let small = wva::collect::PrometheusSettings { max_series: 10, ..settings(server.uri()) };
    let source = wva::collect::PrometheusSource::new(&small).unwrap();
    // The count, two queries, and the rejected one again in two parts; then the count and a query for each namespace.
    for queries_so_far in [5, 10] {
        let scope = scope(&["a", "b", "c", "d"]);
        let collected = wva::engine::MetricSource::collect(&source, &scope).await.unwrap();
        assert_eq!(values(&collected, Signal::Waiting).len(), 4);
        assert!(collected.gaps.is_empty(), "{:?}", collected.gaps);
        assert_eq!(queries(&server).await.len(), queries_so_far);
    }
}

#[tokio::test]
async fn a_namespace_that_fails_alone_is_a_gap_of_that_namespace() {
    let read = |request: &Request| {
        if promql(request).contains("namespace=~\"a\"") {
            ok(&matrix(&[waiting("a", "a", &[(0, "1")])]))
        } else {
            ResponseTemplate::new(500)
        }
    };
    let server = prometheus(ok(&counts(&[("a", 8), ("b", 8)])), read).await;
    let small = wva::collect::PrometheusSettings { max_series: 10, ..settings(server.uri()) };
    let collected = collect(&small, &scope(&["a", "b"])).await.unwrap();
    assert_eq!(collected.series.len(), 1);
    let [gap] = collected.gaps.as_slice() else { panic!("{:?}", collected.gaps) };
    assert_eq!(gap.namespace.as_deref(), Some("b"));
    assert!(gap.reason.contains("500"), "{}", gap.reason);
}

#[tokio::test]
async fn the_replica_of_an_ha_pair_with_the_newest_sample_is_used() {
    let copy = |replica: &str, samples: &[(i64, &str)]| {
        let labels = json!({"namespace": "llm", "pod": "p", "instance": "10.0.0.1:8000", "engine": "0",
                            "prometheus_replica": replica});
        series("vllm:num_requests_waiting", labels, samples)
    };
    let read = ok(&matrix(&[copy("a", &[(-17, "1"), (-2, "2")]), copy("b", &[(-24, "30"), (-9, "40")])]));
    let server = prometheus(ok(&counts(&[("llm", 2)])), read).await;
    let collected = collect(&settings(server.uri()), &scope(&["llm"])).await.unwrap();
    assert_eq!(values(&collected, Signal::Waiting), [("p".to_owned(), vec![1.0, 2.0])]);
}

#[tokio::test]
async fn a_fleet_may_have_old_and_new_names() {
    let pod = |pod: &str| json!({"namespace": "llm", "pod": pod, "engine": "0"});
    let read = ok(&matrix(&[
        series("vllm:kv_cache_usage_perc", pod("new"), &[(0, "0.5")]),
        series("vllm:gpu_cache_usage_perc", pod("new"), &[(0, "0.9")]),
        series("vllm:gpu_cache_usage_perc", pod("old"), &[(0, "0.7")]),
    ]));
    let server = prometheus(ok(&counts(&[("llm", 3)])), read).await;
    let collected = collect(&settings(server.uri()), &scope(&["llm"])).await.unwrap();
    let expected = [("new".to_owned(), vec![0.5]), ("old".to_owned(), vec![0.7])];
    assert_eq!(values(&collected, Signal::KvUsage), expected);
}

#[tokio::test]
async fn a_bad_sample_is_dropped_and_counted() {
    let read = ok(&matrix(&[waiting("llm", "p", &[(-45, "3"), (-30, "NaN"), (-15, "+Inf"), (0, "-1")])]));
    let server = prometheus(ok(&counts(&[("llm", 1)])), read).await;
    let collected = collect(&settings(server.uri()), &scope(&["llm"])).await.unwrap();
    assert_eq!(values(&collected, Signal::Waiting), [("p".to_owned(), vec![3.0])]);
    assert_eq!(collected.bad_samples, 3);
}

#[tokio::test]
async fn a_bad_sample_that_stays_in_the_window_is_counted_once() {
    let rounds = std::sync::atomic::AtomicI64::new(0);
    let read = move |_: &Request| {
        // A NaN every 15 s, and a window of eight of them that moves by one.
        let first = rounds.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let samples: Vec<(i64, &str)> = (first..first + 8).map(|n| (n * 15, "NaN")).collect();
        ok(&matrix(&[waiting("llm", "p", &samples)]))
    };
    let server = prometheus(ok(&counts(&[("llm", 1)])), read).await;
    super::support::provider();
    let source = wva::collect::PrometheusSource::new(&settings(server.uri())).unwrap();
    let scope = scope(&["llm"]);
    for new in [8, 1, 1] {
        let collected = wva::engine::MetricSource::collect(&source, &scope).await.unwrap();
        assert_eq!(collected.bad_samples, new);
    }
}

/// The collection from the series `read`, with `collectors` trusted and a pod `p` in `llm`.
async fn collected_with(read: &[Value], collectors: &[&str]) -> Collected {
    let server = prometheus(ok(&counts(&[("llm", 1), ("monitoring", 1)])), ok(&matrix(read))).await;
    let mut scope = scope(&["llm"]);
    scope.endpoints.push(endpoint("llm", "p", ([127, 0, 0, 1], 8000).into()));
    let trusted_collectors = collectors.iter().map(|&name| name.to_owned()).collect();
    let settings = wva::collect::PrometheusSettings { trusted_collectors, ..settings(server.uri()) };
    collect(&settings, &scope).await.unwrap()
}

fn relayed(namespace: &str, samples: &[(i64, &str)]) -> Value {
    let labels = json!({"namespace": namespace, "pod": "x", "exported_namespace": "llm", "exported_pod": "p", "engine": "0"});
    series("vllm:num_requests_waiting", labels, samples)
}

#[tokio::test]
async fn a_series_relayed_by_a_trusted_collector_is_the_exported_pods() {
    let collected = collected_with(&[relayed("monitoring", &[(0, "1")])], &["monitoring"]).await;
    assert_eq!(values(&collected, Signal::Waiting), [("p".to_owned(), vec![1.0])]);
}

#[tokio::test]
async fn a_page_about_another_tenants_pod_is_ignored_however_new_its_samples_are() {
    let read = [waiting("llm", "p", &[(0, "9")]), relayed("evil", &[(0, "0"), (14, "0")])];
    for collectors in [&[][..], &["monitoring"]] {
        let collected = collected_with(&read, collectors).await;
        assert_eq!(values(&collected, Signal::Waiting), [("p".to_owned(), vec![9.0])], "{collectors:?}");
    }
}

#[tokio::test]
async fn a_pods_own_series_are_preferred_to_relayed_ones_whatever_engine_those_name() {
    let mut other = relayed("monitoring", &[(0, "0"), (14, "0")]);
    other["metric"]["engine"] = json!("7");
    let read = [waiting("llm", "p", &[(0, "9")]), relayed("monitoring", &[(0, "0"), (14, "0")]), other];
    let collected = collected_with(&read, &["monitoring"]).await;
    assert_eq!(values(&collected, Signal::Waiting), [("p".to_owned(), vec![9.0])]);
}
