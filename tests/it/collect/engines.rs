//! What is read of the pages of other engines. The pages are written by the names and labels that each engine's source publishes;
//! those of vLLM and SGLang in `scrape` are recordings.

use serde_json::json;
use wva_core::snapshot::Signal;

use super::scrape::{newest, read};
use super::support::{
    collect, counts, matrix, ok, prometheus, promql, queries, scope, series, settings, values,
};
use wva::engine::Collected;

/// The signals that a page shows, each with the newest value of its only engine, and the models that its series name.
async fn signals_of(page: &'static str) -> (Vec<(Signal, f64)>, Vec<Option<String>>) {
    let collected = read(page).await;
    assert!(collected.gaps.is_empty() && collected.dropped_series == 0, "{collected:?}");
    assert_eq!(collected.bad_samples, 0);
    let mut models: Vec<_> =
        collected.series.iter().map(|series| series.labels.model.as_deref().map(str::to_owned)).collect();
    models.sort();
    models.dedup();
    (only_values(&collected), models)
}

fn only_values(collected: &Collected) -> Vec<(Signal, f64)> {
    let values = Signal::ALL.into_iter().filter_map(|signal| match newest(collected, signal)[..] {
        [] => None,
        [value] => Some((signal, value)),
        ref several => panic!("{signal:?}: {several:?}"),
    });
    values.collect()
}

fn tiny() -> Vec<Option<String>> {
    vec![Some("tiny".to_owned())]
}

#[tokio::test]
async fn tensorrt_llm_shows_its_cache_requests_tokens_and_first_tokens() {
    let (signals, models) = signals_of(include_str!("pages/tensorrt-llm.txt")).await;
    let expected = [
        (Signal::KvUsage, 0.62),
        (Signal::Waiting, 3.0),
        (Signal::Running, 16.0),
        (Signal::PromptTokens, 20_000.0),
        (Signal::GenerationTokens, 5_000.0),
        (Signal::TimeToFirstTokenSum, 1.5),
        (Signal::TimeToFirstTokenCount, 40.0),
    ];
    assert_eq!((signals.as_slice(), models), (&expected[..], tiny()));
}

#[tokio::test]
async fn tgi_shows_requests_and_steps_and_the_cache_it_does_not_export_is_unknown() {
    let (signals, models) = signals_of(include_str!("pages/tgi.txt")).await;
    let expected = [
        (Signal::Waiting, 6.0),
        (Signal::Running, 9.0),
        (Signal::RequestGenerationTokensSum, 5_000.0),
        (Signal::RequestGenerationTokensCount, 40.0),
        (Signal::EngineSteps, 5_040.0),
    ];
    assert_eq!((signals.as_slice(), models), (&expected[..], vec![None]));
}

#[tokio::test]
async fn a_dynamo_worker_shows_its_engine_and_not_the_zero_that_dynamo_starts_with() {
    let (signals, models) = signals_of(include_str!("pages/dynamo-vllm.txt")).await;
    let expected = [(Signal::KvUsage, 0.4), (Signal::Waiting, 2.0), (Signal::Running, 5.0)];
    assert_eq!((signals.as_slice(), models), (&expected[..], tiny()));
}

#[tokio::test]
async fn a_recorded_queue_depth_was_once_a_second_engine_that_replaced_vllms_own() {
    // The rule has newer samples, and neither an engine nor a port.
    let own = json!({"namespace": "llm", "pod": "p", "instance": "10.0.0.1:8000", "engine": "0"});
    let recorded = || json!({"namespace": "llm", "pod": "p", "deployment": "llama"});
    let answer = ok(&matrix(&[
        series("vllm:num_requests_waiting", own, &[(0, "4")]),
        series("vllm_queue_depth", recorded(), &[(15, "0")]),
        series("vllm_cache_usage", recorded(), &[(15, "0.9")]),
        series("vllm_requests_total", recorded(), &[(15, "100")]),
    ]));
    let server = prometheus(ok(&counts(&[("llm", 4)])), answer).await;
    let collected = collect(&settings(server.uri()), &scope(&["llm"])).await.unwrap();
    assert_eq!(values(&collected, Signal::Waiting), [("p".to_owned(), vec![4.0])]);
    assert_eq!((collected.series.len(), collected.bad_samples), (1, 0));
}

#[tokio::test]
async fn a_saturated_triton_was_once_read_as_one_where_nothing_waits() {
    let labels = |label: &str, value: &str| {
        json!({"namespace": "llm", "pod": "p", "instance": "10.0.0.1:8002", "model": "tensorrt_llm",
               "version": "1", label: value})
    };
    let requests =
        |kind, value| series("nv_trt_llm_request_metrics", labels("request_type", kind), &[(0, value)]);
    let usage = labels("kv_cache_block_type", "fraction");
    let answer = ok(&matrix(&[
        requests("waiting", "0"),
        requests("scheduled", "64"),
        series("nv_trt_llm_kv_cache_block_metrics", usage, &[(0, "0.99")]),
    ]));
    let server = prometheus(ok(&counts(&[("llm", 3)])), answer).await;
    let collected = collect(&settings(server.uri()), &scope(&["llm"])).await.unwrap();
    assert!(collected.series.is_empty(), "{collected:?}");
}

#[tokio::test]
async fn a_vllm_fleet_with_a_pod_label_request_type_once_lost_all_its_series() {
    let labels = json!({"namespace": "llm", "pod": "p", "instance": "10.0.0.1:8000", "engine": "0",
                        "request_type": "chat", "kv_cache_block_type": "used", "version": "2"});
    let answer = ok(&matrix(&[series("vllm:num_requests_running", labels, &[(0, "7")])]));
    let server = prometheus(ok(&counts(&[("llm", 1)])), answer).await;
    let collected = collect(&settings(server.uri()), &scope(&["llm"])).await.unwrap();
    assert_eq!(values(&collected, Signal::Running), [("p".to_owned(), vec![7.0])]);
    for promql in queries(&server).await.iter().map(promql) {
        assert!(!promql.contains("request_type") && !promql.contains("block_type"), "{promql}");
    }
}

#[tokio::test]
async fn a_page_with_another_tenants_pod_under_any_engines_names_is_ignored() {
    let labels = json!({"namespace": "evil", "pod": "e", "exported_namespace": "llm", "exported_pod": "p"});
    let names = ["trtllm_num_requests_waiting", "tgi_queue_size", "sglang:num_queue_reqs"];
    let forged: Vec<_> = names.map(|name| series(name, labels.clone(), &[(0, "0")])).into();
    let server = prometheus(ok(&counts(&[("llm", 1)])), ok(&matrix(&forged))).await;
    let collected = collect(&settings(server.uri()), &scope(&["llm"])).await.unwrap();
    assert!(collected.series.is_empty(), "{collected:?}");
}

#[tokio::test]
async fn refused_requests_in_prometheus_are_added_up_by_reason_and_not_by_copy() {
    let refused = |replica: &str, reason: &str, value| {
        let labels = json!({"namespace": "llm", "pod": "p", "instance": "10.0.0.1:8000", "model_name": "tiny",
                            "prometheus_replica": replica, "reason": reason});
        series("vllm:admission_rejections_total", labels, &[(0, value)])
    };
    let running = json!({"namespace": "llm", "pod": "p", "instance": "10.0.0.1:8000", "engine": "0",
                         "model_name": "tiny", "prometheus_replica": "a"});
    let answer = ok(&matrix(&[
        series("vllm:num_requests_running", running, &[(0, "16")]),
        refused("a", "max_num_queued_reqs", "230"),
        refused("a", "max_num_queued_tokens", "10"),
        refused("b", "max_num_queued_reqs", "230"),
        refused("b", "max_num_queued_tokens", "10"),
    ]));
    let server = prometheus(ok(&counts(&[("llm", 5)])), answer).await;
    let collected = collect(&settings(server.uri()), &scope(&["llm"])).await.unwrap();
    assert_eq!(values(&collected, Signal::RefusedRequests), [("p".to_owned(), vec![240.0])]);
    assert!(collected.series.iter().all(|series| &*series.labels.engine == "0"), "{collected:?}");
}
