//! Merging of copies, names and parts.

mod refusals;

use wva_core::snapshot::Sample;

use super::*;

thread_local! {
    /// The pod whose merge panics on this thread.
    static BROKEN: std::cell::RefCell<Option<Arc<str>>> = const { std::cell::RefCell::new(None) };
}

/// Panics for the pod that a test has chosen.
pub(super) fn break_down(pod: &Arc<str>) {
    let breaks = BROKEN.with_borrow(|broken| broken.as_ref() == Some(pod));
    assert!(!breaks, "index out of bounds: the length is 0");
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

fn raw(name: &str, engine: Option<&str>, port: Option<u16>, samples: &[(i64, f64)]) -> RawSeries {
    let labels = RawLabels {
        namespace: "llm".into(),
        pod: "pod-0".into(),
        engine: engine.map(Into::into),
        port,
        model: Some("m".into()),
        part: Part::default(),
        is_rank: false,
        destination: None,
        is_relayed: false,
        source_hash: 0,
    };
    RawSeries {
        name: signals::find(name).unwrap(),
        labels: labels.into(),
        is_truncated: false,
        samples: samples.iter().map(|&(s, value)| Sample { at: at(s), value }).collect(),
    }
}

fn merged(raw: Vec<RawSeries>) -> Vec<Series> {
    merge(vec![raw]).series
}

fn values(series: &[Series], signal: Signal) -> Vec<f64> {
    let found = series.iter().filter(|series| series.signal == signal);
    found.flat_map(|series| series.samples.iter().map(|sample| sample.value)).collect()
}

#[test]
fn the_copy_with_the_newest_sample_is_used_and_not_mixed_with_the_other() {
    let mut first = raw("vllm:num_requests_waiting", Some("0"), Some(8000), &[(0, 1.0), (15, 2.0)]);
    let mut second = raw("vllm:num_requests_waiting", Some("0"), Some(8000), &[(7, 10.0), (22, 20.0)]);
    first = first.relabelled(|labels| labels.source_hash = 1);
    second = second.relabelled(|labels| labels.source_hash = 2);
    for order in [[first.clone(), second.clone()], [second, first]] {
        let merged = merged(order.into());
        assert_eq!(merged.len(), 1);
        assert_eq!(values(&merged, Signal::Waiting), [10.0, 20.0]);
    }
}

#[test]
fn the_new_name_is_used_when_an_engine_exposes_both() {
    let merged = merged(vec![
        raw("vllm:gpu_cache_usage_perc", Some("0"), None, &[(0, 0.2)]),
        raw("vllm:kv_cache_usage_perc", Some("0"), None, &[(0, 0.4)]),
    ]);
    assert_eq!(values(&merged, Signal::KvUsage), [0.4]);
}

#[test]
fn an_old_name_is_used_alone_and_again_after_a_rollback() {
    let old = raw("vllm:gpu_cache_usage_perc", Some("0"), None, &[(30, 0.2)]);
    assert_eq!(values(&merged(vec![old.clone()]), Signal::KvUsage), [0.2]);
    let before = raw("vllm:kv_cache_usage_perc", Some("0"), None, &[(0, 0.9)]);
    assert_eq!(values(&merged(vec![before, old]), Signal::KvUsage), [0.2]);
}

#[test]
fn the_halves_of_a_ratio_never_come_from_two_names() {
    let merged = merged(vec![
        raw("vllm:prefix_cache_hits_total", Some("0"), None, &[(0, 1.0)]),
        raw("vllm:gpu_prefix_cache_hits", Some("0"), None, &[(0, 50.0)]),
        raw("vllm:gpu_prefix_cache_queries", Some("0"), None, &[(0, 100.0)]),
    ]);
    assert_eq!(values(&merged, Signal::PrefixCacheHits), [50.0]);
    assert_eq!(values(&merged, Signal::PrefixCacheQueries), [100.0]);
}

#[test]
fn engines_with_the_same_label_at_several_ports_stay_apart() {
    let merged = merged(vec![
        raw("vllm:num_requests_waiting", Some("0"), Some(8000), &[(0, 1.0)]),
        raw("vllm:num_requests_waiting", Some("0"), Some(8001), &[(0, 2.0)]),
    ]);
    let engines: Vec<_> = merged.iter().map(|series| &*series.labels.engine).collect();
    assert_eq!(engines, ["8000/0", "8001/0"]);
}

#[test]
fn an_engine_without_a_label_is_named_by_its_port() {
    let merged = merged(vec![raw("vllm:num_requests_waiting", None, Some(8000), &[(0, 1.0)])]);
    assert_eq!(&*merged[0].labels.engine, "8000");
}

#[test]
fn a_cache_configuration_without_an_engine_belongs_to_the_only_engine_at_its_port() {
    let config = |port| raw("vllm:cache_config_info", None, Some(port), &[(0, 432_000.0)]);
    let waiting = |engine, port| raw("vllm:num_requests_waiting", Some(engine), Some(port), &[(0, 1.0)]);
    let engines = |raw| -> Vec<(Signal, String)> {
        merged(raw).into_iter().map(|series| (series.signal, series.labels.engine.to_string())).collect()
    };
    let mut found = engines(vec![config(8000), waiting("0", 8000)]);
    found.sort();
    let mut expected = [(Signal::KvCapacity, "0".to_owned()), (Signal::Waiting, "0".to_owned())];
    expected.sort();
    assert_eq!(found, expected);
    let ranks = engines(vec![config(8000), waiting("0", 8000), config(8001), waiting("0", 8001)]);
    let names: BTreeSet<_> = ranks.into_iter().map(|(_, engine)| engine).collect();
    assert_eq!(names.into_iter().collect::<Vec<_>>(), ["8000/0", "8001/0"]);
    let several = engines(vec![config(8000), waiting("0", 8000), waiting("1", 8000)]);
    assert!(several.iter().all(|(signal, _)| *signal == Signal::Waiting), "its engine is unknown");
    let alone = raw("vllm:num_requests_waiting", None, Some(8000), &[(0, 1.0)]);
    assert!(engines(vec![config(8000), alone]).iter().all(|(_, engine)| *engine == *"8000"));
}

#[test]
fn a_schedulers_parts_are_summed_by_model_and_a_counter_keeps_its_last_value() {
    let part = |text, name: &str, samples: &[(i64, f64)]| {
        let part = Part::from_labels([("part", text)].into_iter());
        raw(name, None, Some(9090), samples).relabelled(|labels| labels.part = part)
    };
    let queue = "inference_extension_flow_control_queue_size";
    let attempts = "inference_extension_scheduler_attempts_total";
    let merged = merged(vec![
        part("priority=0", queue, &[(0, 3.0), (15, 3.0)]),
        part("priority=1", queue, &[(0, 2.0)]),
        part("pod_name=a", attempts, &[(0, 100.0), (15, 110.0)]),
        part("pod_name=b", attempts, &[(0, 7.0)]),
    ]);
    assert_eq!(values(&merged, Signal::SchedulerQueueSize), [5.0, 3.0]);
    assert_eq!(values(&merged, Signal::SchedulerAttempts), [107.0, 117.0]);
    assert!(merged.iter().all(|series| series.labels.model.as_deref() == Some("m")));
}

#[test]
fn a_schedulers_requests_are_counted_for_the_model_and_for_each_destination() {
    let to = |pod: &str, priority: &str, value| {
        let series = raw("llm_d_epp_scheduler_attempts_total", None, Some(9090), &[(0, value)]);
        series.relabelled(|labels| {
            labels.part = Part::from_labels([("pod_name", pod), ("priority", priority)].into_iter());
            labels.destination = Some(Destination { pod: pod.into(), port: Some(8000) });
        })
    };
    let mut copy = to("a", "0", 99.0);
    copy.samples = [Sample { at: at(-15), value: 98.0 }].into_iter().chain(copy.samples.iter()).collect();
    let merged = merged(vec![to("a", "0", 1.0), copy, to("a", "1", 2.0), to("b", "0", 4.0)]);
    let counted = |pod: Option<&str>| {
        let about = |series: &&Series| series.labels.destination.as_ref().map(|to| &*to.pod) == pod;
        let found: Vec<_> = merged.iter().filter(about).collect();
        assert_eq!(found.len(), 1, "{pod:?}");
        found[0].samples.last().unwrap().value
    };
    assert_eq!((counted(Some("a")), counted(Some("b")), counted(None)), (101.0, 4.0, 105.0));
}

/// A series of a metrics page.
fn part(name: &str, labels: &[(&str, &str)], samples: &[(i64, f64)]) -> RawSeries {
    let rank = labels.iter().find(|(label, _)| *label == "dp_rank").map(|(_, rank)| *rank);
    let part = Part::from_page(labels.iter().copied());
    raw(name, rank, Some(30000), samples).relabelled(|labels| {
        labels.part = part;
        labels.is_rank = rank.is_some();
    })
}

/// A series of Prometheus.
fn queried(name: &str, labels: &[(&str, &str)], samples: &[(i64, f64)]) -> RawSeries {
    let part = Part::from_query(labels.iter().copied());
    let of_source = labels.iter().filter(|(label, _)| !is_part_label(label));
    let source_hash = of_source.map(hash).fold(0, u64::wrapping_add);
    raw(name, Some("0"), Some(8000), samples).relabelled(|labels| {
        labels.part = part;
        labels.source_hash = source_hash;
    })
}

const FIRSTS: &str = "sglang:time_to_first_token_seconds_count";
const SUM: &str = "sglang:time_to_first_token_seconds_sum";

#[test]
fn streaming_and_other_requests_are_one_counter() {
    let page = |streaming, samples: &[(i64, f64)]| part(FIRSTS, &[("is_streaming", streaming)], samples);
    let found = merged(vec![
        page("true", &[(0, 100.0), (5, 110.0), (10, 120.0)]),
        page("false", &[(0, 50.0), (5, 55.0), (10, 60.0)]),
        part(SUM, &[("is_streaming", "true")], &[(0, 1.0), (5, 2.0), (10, 3.0)]),
    ]);
    assert_eq!(values(&found, Signal::TimeToFirstTokenCount), [150.0, 165.0, 180.0]);
}

#[test]
fn a_part_that_appears_late_is_no_jump_and_a_scrape_without_a_part_is_no_drop() {
    let page = |streaming, samples: &[(i64, f64)]| part(FIRSTS, &[("is_streaming", streaming)], samples);
    let grown = merged(vec![
        page("true", &[(0, 100.0), (5, 110.0), (10, 120.0), (15, 130.0)]),
        page("false", &[(10, 7.0), (15, 9.0)]),
    ]);
    assert_eq!(values(&grown, Signal::TimeToFirstTokenCount), [107.0, 117.0, 127.0, 139.0]);
    let lost = merged(vec![
        page("true", &[(0, 100.0), (5, 110.0), (10, 120.0), (15, 130.0)]),
        page("false", &[(0, 5_000.0), (10, 5_002.0)]),
    ]);
    assert_eq!(values(&lost, Signal::TimeToFirstTokenCount), [5_100.0, 5_122.0], "only where both are known");
}

#[test]
fn series_scraped_at_different_times_are_not_added_up() {
    let page = |streaming, samples: &[(i64, f64)]| part(FIRSTS, &[("is_streaming", streaming)], samples);
    let found = merged(vec![
        page("true", &[(0, 1.0), (10, 2.0), (20, 3.0)]),
        page("false", &[(2, 1.0), (12, 2.0), (22, 3.0)]),
    ]);
    assert_eq!(values(&found, Signal::TimeToFirstTokenCount), Vec::<f64>::new());
}

#[test]
fn the_total_without_a_priority_is_used_and_not_added_to_its_parts() {
    let queue = |priority, value| part("sglang:num_queue_reqs", &[("priority", priority)], &[(0, value)]);
    let found = merged(vec![queue("", 5.0), queue("1", 2.0), queue("2", 3.0)]);
    assert_eq!(values(&found, Signal::Waiting), [5.0]);
    let parts = merged(vec![queue("1", 2.0), queue("2", 3.0)]);
    assert_eq!(values(&parts, Signal::Waiting), [5.0]);
}

#[test]
fn parts_of_a_ratio_are_not_summed_but_the_highest_is_used() {
    let used = |pool, value| part("sglang:token_usage", &[("pool", pool)], &[(0, value)]);
    assert_eq!(values(&merged(vec![used("a", 0.7), used("b", 0.8)]), Signal::KvUsage), [0.8]);
    let tokens = |pool, value| part("sglang:max_total_num_tokens", &[("pool", pool)], &[(0, value)]);
    assert_eq!(values(&merged(vec![tokens("a", 9.0), tokens("b", 4.0)]), Signal::KvCapacity), [4.0]);
}

#[test]
fn each_data_parallel_rank_is_an_engine_and_common_counters_are_divided() {
    let rank =
        |rank, value| part("sglang:num_running_reqs", &[("dp_rank", rank), ("tp_rank", "0")], &[(0, value)]);
    let found = merged(vec![
        rank("0", 3.0),
        rank("1", 4.0),
        part("sglang:generation_tokens_total", &[("is_streaming", "true")], &[(0, 100.0)]),
        part("sglang:generation_tokens_total", &[("is_streaming", "false")], &[(0, 60.0)]),
    ]);
    assert_eq!(values(&found, Signal::Running), [3.0, 4.0]);
    assert_eq!(values(&found, Signal::GenerationTokens), [80.0, 80.0]);
    assert!(found.iter().all(|series| ["0", "1"].contains(&&*series.labels.engine)), "{found:?}");
}

#[test]
fn tensor_parallel_ranks_are_not_added_up() {
    let rank = |rank| part("sglang:num_running_reqs", &[("tp_rank", rank)], &[(0, 6.0)]);
    assert_eq!(values(&merged(vec![rank("0"), rank("1")]), Signal::Running), [6.0]);
}

#[test]
fn an_unknown_label_splits_a_counter_unless_every_series_of_the_pod_has_it() {
    let prompt = |labels: &[(&str, &str)], value| queried("vllm:prompt_tokens_total", labels, &[(0, value)]);
    let running = |labels: &[(&str, &str)]| queried("vllm:num_requests_running", labels, &[(0, 1.0)]);
    let found = merged(vec![
        prompt(&[("app", "x"), ("tenant", "a")], 10.0),
        prompt(&[("app", "x"), ("tenant", "b")], 5.0),
        running(&[("app", "x")]),
    ]);
    assert_eq!(values(&found, Signal::PromptTokens), [15.0], "the label of a body");
    let pair = |of: &'static str| [("app", "x"), ("receive", of)];
    let found = merged(vec![
        prompt(&pair("a"), 10.0),
        prompt(&pair("b"), 10.0),
        running(&pair("a")),
        running(&pair("b")),
    ]);
    assert_eq!(values(&found, Signal::PromptTokens), [10.0], "copies of two servers");
}

#[test]
fn parts_of_two_copies_are_never_added_up() {
    let count = |job, streaming, samples: &[(i64, f64)]| {
        queried(FIRSTS, &[("job", job), ("is_streaming", streaming)], samples)
    };
    let found = merged(vec![
        count("a", "true", &[(0, 10.0), (15, 20.0)]),
        count("a", "false", &[(0, 1.0), (15, 2.0)]),
        count("b", "true", &[(3, 11.0), (18, 21.0)]),
        count("b", "false", &[(3, 1.0), (18, 2.0)]),
    ]);
    assert_eq!(values(&found, Signal::TimeToFirstTokenCount), [12.0, 23.0]);
}

#[test]
fn parts_in_a_truncated_answer_are_not_read_and_single_series_are() {
    let mut cut = vec![
        queried(FIRSTS, &[("is_streaming", "true")], &[(0, 10.0)]),
        queried("vllm:num_requests_running", &[], &[(0, 1.0)]),
    ];
    cut.iter_mut().for_each(|series| series.is_truncated = true);
    let found = merged(cut);
    assert_eq!(values(&found, Signal::TimeToFirstTokenCount), Vec::<f64>::new());
    assert_eq!(values(&found, Signal::Running), [1.0]);
}

#[test]
fn requests_waiting_for_capacity_are_preferred_to_all_waiting_requests() {
    let found = merged(vec![
        raw("vllm:num_requests_waiting", Some("0"), None, &[(0, 9.0)]),
        raw("vllm:num_requests_waiting_by_reason", Some("0"), None, &[(0, 2.0)]),
    ]);
    assert_eq!(values(&found, Signal::Waiting), [2.0]);
}

#[test]
fn a_sleeping_engine_has_no_data_and_one_awake_has_no_sleep_signal() {
    let sleep = |samples: &[(i64, f64)]| raw("vllm:engine_sleep_state", Some("0"), None, samples);
    let usage = || raw("vllm:kv_cache_usage_perc", Some("0"), None, &[(0, 0.5), (15, 0.0), (30, 0.0)]);
    let asleep = merged(vec![sleep(&[(0, 0.0), (15, 1.0), (30, 1.0)]), usage()]);
    assert_eq!(values(&asleep, Signal::KvUsage), [0.5], "from before");
    assert_eq!(values(&asleep, Signal::Asleep), [0.0, 1.0, 1.0]);
    let awake = merged(vec![sleep(&[(0, 1.0), (15, 1.0), (30, 0.0)]), usage()]);
    assert_eq!(values(&awake, Signal::KvUsage), [0.5, 0.0, 0.0]);
    assert_eq!(values(&awake, Signal::Asleep), Vec::<f64>::new());
    let always = merged(vec![sleep(&[(0, 1.0), (30, 1.0)]), usage()]);
    assert_eq!(always.len(), 1, "an idle sleeper has no spare capacity");
}

#[test]
fn a_pod_with_a_hundred_thousand_engines_is_cut_to_the_limit_within_a_second() {
    let engines =
        (0..100_000).map(|n| raw("vllm:kv_cache_usage_perc", Some(&n.to_string()), Some(8000), &[(0, 0.5)]));
    let raw: Vec<RawSeries> = engines.collect();
    let started = tokio::time::Instant::now();
    let Merged { series, dropped, .. } = merge(vec![raw]);
    let took = started.elapsed();
    assert!(took < std::time::Duration::from_secs(1), "{took:?}");
    assert_eq!(
        (series.len(), dropped.count()),
        (MAX_ENGINES_OF_A_POD, 100_000 - MAX_ENGINES_OF_A_POD as u64)
    );
}

#[test]
fn a_pod_whose_merge_panics_is_a_gap_and_affects_no_other_pod() {
    let of = |pod: &str| {
        let series = raw("vllm:num_requests_waiting", None, None, &[(0, 1.0)]);
        series.relabelled(|labels| labels.pod = pod.into())
    };
    BROKEN.set(Some("pod-1".into()));
    let merged = merge(vec![vec![of("pod-0"), of("pod-1")], vec![of("pod-2")]]);
    BROKEN.set(None);
    let mut collected = Collected::default();
    assert_eq!(merged.put_into(&mut collected).count(), 0);
    let pods: Vec<&str> = collected.series.iter().map(|series| &*series.labels.pod).collect();
    assert_eq!(pods, ["pod-0", "pod-2"]);
    let [gap] = collected.gaps.as_slice() else { panic!("{:?}", collected.gaps) };
    assert!(gap.namespace.as_deref() == Some("llm") && gap.reason.contains("pod-1"), "{gap:?}");
    let [failure] = collected.failures.as_slice() else { panic!("{:?}", collected.failures) };
    assert_eq!(failure.to_string(), "pod pod-1 in namespace llm: index out of bounds: the length is 0");
}

/// The requests that a scheduler has sent to one port of a pod.
fn attempts(scheduler: &str, pod: &str, port: u16, value: f64) -> RawSeries {
    let series = raw("llm_d_epp_scheduler_attempts_total", None, Some(9090), &[(0, value)]);
    series.relabelled(|labels| {
        labels.pod = scheduler.into();
        labels.part = Part::from_labels([("pod_name", pod), ("port", &port.to_string())].into_iter());
        labels.destination = Some(Destination { pod: pod.into(), port: Some(port) });
    })
}

#[test]
fn of_fifty_thousand_ports_of_a_scheduler_those_of_engines_are_told_apart() {
    let mut all: Vec<_> = (0..50_000).map(|n| attempts("epp-0", "pod-0", 10_000 + n, 1.0)).collect();
    all.push(raw("vllm:num_requests_waiting", Some("0"), Some(10_007), &[(0, 1.0)]));
    let started = tokio::time::Instant::now();
    let found = merged(all);
    let took = started.elapsed();
    assert!(took < std::time::Duration::from_secs(5), "{took:?}");
    let given = |port| {
        let to = |series: &&Series| series.labels.destination.as_ref().is_some_and(|to| to.port == port);
        found.iter().filter(to).map(|series| series.samples.get(0).unwrap().value).collect::<Vec<_>>()
    };
    assert_eq!((given(Some(10_007)), given(None)), (vec![1.0], vec![49_999.0]));
    assert_eq!(found.len(), 4, "with the total and the engine itself");
    let totals: Vec<Series> =
        found.into_iter().filter(|series| series.labels.destination.is_none()).collect();
    assert_eq!(values(&totals, Signal::SchedulerAttempts), [50_000.0]);
}

#[test]
fn all_schedulers_of_a_namespace_share_one_limit() {
    let of = |n: u32| (0..10_000).map(move |port| attempts(&format!("epp-{n}"), "pod-0", port, 1.0));
    let elsewhere = attempts("epp-9", "pod-0", 1, 1.0).relabelled(|labels| labels.namespace = "other".into());
    let Merged { series, dropped, .. } = merge(vec![(0..10).flat_map(of).chain([elsewhere]).collect()]);
    assert_eq!(dropped.count(), 50_000);
    assert!(series.iter().any(|own| &*own.labels.namespace == "other"), "each namespace has its own");
}

#[test]
fn a_relayed_scheduler_that_is_also_scraped_directly_is_ignored() {
    let direct = raw("llm_d_epp_flow_control_queue_size", None, None, &[(0, 3.0)]);
    let newer = RawSeries { samples: [Sample { at: at(5), value: 9.0 }].into(), ..direct.clone() };
    let relayed = newer.relabelled(|labels| {
        labels.is_relayed = true;
        labels.source_hash = 7;
    });
    for order in [[direct.clone(), relayed.clone()], [relayed.clone(), direct]] {
        assert_eq!(values(&merged(order.into()), Signal::SchedulerQueueSize), [3.0]);
    }
    assert_eq!(values(&merged(vec![relayed]), Signal::SchedulerQueueSize), [9.0], "alone it counts");
}

#[test]
fn relayed_series_use_no_part_of_the_limit_of_a_pod_that_is_scraped_directly() {
    let relayed = (0..1_000).map(|n| {
        let series = raw("vllm:kv_cache_usage_perc", Some(&n.to_string()), Some(8000), &[(0, 0.0)]);
        series.relabelled(|labels| labels.is_relayed = true)
    });
    let own = raw("vllm:kv_cache_usage_perc", Some("0"), Some(8000), &[(0, 0.9)]);
    let Merged { series, dropped, .. } = merge(vec![relayed.chain([own]).collect()]);
    assert_eq!((values(&series, Signal::KvUsage), dropped.count()), (vec![0.9], 0));
}

#[test]
fn a_page_with_a_different_time_for_every_series_is_merged_within_seconds() {
    let part = |n: u16| {
        let samples = (0..8)
            .map(|k| Sample { at: at(15 * k) + jiff::SignedDuration::from_millis(i64::from(n)), value: 1.0 });
        let series = RawSeries { samples: samples.collect(), ..attempts("epp-0", "pod-0", n, 1.0) };
        series.relabelled(|labels| labels.destination = None)
    };
    let all: Vec<_> = (0..5_000).map(part).collect();
    let started = tokio::time::Instant::now();
    let found = merged(all);
    let took = started.elapsed();
    assert!(took < std::time::Duration::from_secs(5), "{took:?}");
    assert!(found.iter().all(|series| series.samples.len() <= 1_200), "the number of times is limited");
}

#[test]
fn a_sum_that_overflows_is_no_sample() {
    let huge = |n| attempts("epp-0", "pod-0", n, f64::MAX).relabelled(|labels| labels.destination = None);
    let found = merged(vec![huge(1), huge(2)]);
    assert_eq!(values(&found, Signal::SchedulerAttempts), Vec::<f64>::new());
}
