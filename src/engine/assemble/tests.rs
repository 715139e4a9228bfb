//! Whose series are whose, and what a scheduler gave to whom.

use super::*;
use std::cell::RefCell;
use std::sync::Arc;

use crate::engine::{Destination, Gap, Labels, MAX_ENGINES_OF_A_POD, Samples, Series, UnlabelledNode};
use jiff::SignedDuration;
use smol_str::SmolStr;
use wva_core::model::{
    Analyzer, Bounds, Compat, GroupId, InvalidVariant, LatencyTargets, Role, TargetRef, Variant,
};
use wva_core::snapshot::{Phase, Pod, Sample, Scale, Signal, Template, VariantState};
use wva_core::units::{Cost, Replicas};
use wva_core::{Memory, Policy, VariantId, decide, observe};

thread_local! {
    /// The model whose series break on this thread.
    static BROKEN: RefCell<Option<GroupId>> = const { RefCell::new(None) };
}

/// Breaks where a test wants it.
pub(super) fn break_down(id: &GroupId) {
    let breaks = BROKEN.with_borrow(|broken| broken.as_ref() == Some(id));
    assert!(!breaks, "index out of bounds: the length is 0");
}

fn assembled(view: &ClusterView, answer: Result<Collected, SourceError>, now: Timestamp) -> Snapshot {
    assemble(view, &NamedModels::new(), answer, now).snapshot
}

fn now() -> Timestamp {
    "2026-11-21T12:00:00Z".parse().unwrap()
}

fn view() -> ClusterView {
    let variant = Variant {
        id: VariantId::new("llm", "llama"),
        model: "meta/llama".into(),
        target: TargetRef::deployment("llama"),
        cost: Cost::new(10.0).unwrap(),
        bounds: Bounds::default(),
        accelerator: None,
        role: Role::Both,
        woken_by: None,
    };
    let replica = Pod {
        name: "llama-0".into(),
        phase: Phase::Ready,
        created: now(),
        ready_since: Some(now()),
        engines: wva_core::name_map::NameMap::default(),
    };
    let state = VariantState {
        variant,
        scale: Some(Scale { spec: Replicas::ONE, current: Replicas::ONE, ready: Replicas::ONE }),
        target_problem: None,
        pods: vec![replica],
        last_status: None,
        unschedulable: None,
        template: Template::default(),
    };
    ClusterView { synced: true, variants: vec![state], ..ClusterView::default() }
}

fn series(pod: &str, model: &str, value: f64) -> Series {
    Series {
        labels: Arc::new(Labels {
            namespace: "llm".into(),
            pod: pod.into(),
            engine: "0".into(),
            port: Some(8000),
            model: Some(model.into()),
            destination: None,
        }),
        signal: Signal::KvUsage,
        samples: [Sample { at: now(), value }].into(),
    }
}

fn engines(collected: Collected) -> Vec<f64> {
    let snapshot = assembled(&view(), Ok(collected), now());
    let group = snapshot.groups.values().next().unwrap();
    let engines = group.variants[0].pods[0].engines.values();
    engines.filter_map(|signals| signals.newest(Signal::KvUsage)).map(|sample| sample.value).collect()
}

#[test]
fn a_series_of_a_pod_that_is_gone_is_dropped() {
    let collected = Collected { series: vec![series("llama-9", "meta/llama", 0.9)], ..Collected::default() };
    assert_eq!(engines(collected), Vec::<f64>::new());
}

#[test]
fn pods_that_belong_to_no_variant_are_counted_by_namespace_once_each() {
    let mut waiting = series("stray", "meta/llama", 1.0);
    waiting.signal = Signal::Waiting;
    let mut scheduler = series("epp-0", "meta/llama", 1.0);
    scheduler.signal = Signal::SchedulerQueueSize;
    let elsewhere =
        series("stray", "meta/llama", 1.0).relabelled(|labels| labels.namespace = "without-variants".into());
    let own = || series("llama-0", "meta/llama", 0.5);
    let count = |series: Vec<Series>| {
        let answer = Ok(Collected { series, ..Collected::default() });
        assemble(&view(), &NamedModels::new(), answer, now()).unattributed.into_iter().collect::<Vec<_>>()
    };
    let strays = vec![own(), series("stray", "meta/llama", 0.5), waiting, scheduler, elsewhere];
    assert_eq!(count(strays), [("llm".into(), 1)]);
    assert_eq!(count(vec![own()]), [("llm".into(), 0)], "so that the series of the namespace stays");
    let mut deleted = series("llama-9", "meta/llama", 0.5);
    deleted.samples = [Sample { at: now() - SignedDuration::from_secs(31), value: 0.5 }].into();
    assert_eq!(count(vec![own(), deleted]), [("llm".into(), 0)], "old samples of a deleted pod were counted");
}

#[test]
fn the_pods_of_a_variant_whose_model_is_not_known_count_as_pods_of_no_variant() {
    let mut view = view();
    let mut unnamed = view.variants[0].clone();
    unnamed.variant.id = VariantId::new("llm", "unnamed");
    unnamed.variant.model = "".into();
    unnamed.pods[0].name = "unnamed-0".into();
    view.variants.push(unnamed);
    let id = VariantId::new("llm", "unnamed");
    let assembled = |model: Result<SmolStr, InvalidVariant>| {
        let series = vec![series("unnamed-0", "m", 0.5), series("stray", "m", 0.5)];
        let answer = Ok(Collected { series, ..Collected::default() });
        assemble(&view, &NamedModels::from([(id.clone(), model)]), answer, now())
    };
    let unknown = InvalidVariant::new(id.clone(), "no pod names a model".into());
    let Assembled { snapshot, unattributed, .. } = assembled(Err(unknown.clone()));
    assert_eq!(unattributed, BTreeMap::from([("llm".into(), 1)]), "the stray one");
    let undecided: Vec<_> = snapshot.undecided.iter().map(|state| &state.variant.id).collect();
    assert_eq!((snapshot.invalid, undecided), (vec![unknown], vec![&id]), "what it runs counts in limits");
    let Assembled { snapshot, unattributed, .. } = assembled(Ok("m".into()));
    assert_eq!(unattributed, BTreeMap::from([("llm".into(), 1)]));
    assert_eq!((snapshot.invalid, snapshot.undecided), (vec![], vec![]));
    let group = &snapshot.groups[&GroupId::new("llm", "m")];
    assert_eq!((group.variants[0].variant.model.as_str(), group.variants[0].pods[0].engines.len()), ("m", 1));
}

#[test]
fn a_served_name_that_differs_from_the_model_id_does_not_hide_the_signal() {
    let collected = Collected { series: vec![series("llama-0", "llama", 0.5)], ..Collected::default() };
    assert_eq!(engines(collected), vec![0.5]);
}

#[test]
fn a_second_model_in_the_same_pod_is_not_mixed_in() {
    let second = series("llama-0", "embedder", 0.9).relabelled(|labels| labels.engine = "1".into());
    let collected =
        Collected { series: vec![series("llama-0", "meta/llama", 0.5), second], ..Collected::default() };
    assert_eq!(engines(collected), vec![0.5]);
}

#[test]
fn a_snapshot_has_the_inventory_of_the_view_and_what_others_use_of_it() {
    let gpus = |count| BTreeMap::from([("H100".into(), count)]);
    let view = ClusterView { inventory: Some(gpus(16)), elsewhere: gpus(3), ..view() };
    let snapshot = assembled(&view, Ok(Collected::default()), now());
    assert_eq!((snapshot.inventory, snapshot.elsewhere), (Some(gpus(16)), gpus(3)));
}

#[test]
fn a_node_that_was_just_joining_once_left_the_whole_cluster_without_a_limit() {
    let unlabelled = |minutes| {
        let joined = now() - SignedDuration::from_mins(minutes);
        let unlabelled = Some(UnlabelledNode { name: "gpu-7".into(), joined });
        assembled(&ClusterView { unlabelled, ..view() }, Ok(Collected::default()), now()).unlabelled
    };
    assert_eq!(unlabelled(-1), None, "its clock is ahead");
    assert_eq!(unlabelled(14), None);
    assert_eq!(unlabelled(15).as_deref(), Some("gpu-7"));
}

#[test]
fn a_gap_makes_only_its_own_namespace_partial() {
    let gap = |namespace: &str| Gap { namespace: Some(namespace.into()), reason: "store is down".into() };
    let source_with = |gap| {
        let collected = Collected { gaps: vec![gap], ..Collected::default() };
        let snapshot = assembled(&view(), Ok(collected), now());
        snapshot.groups.into_values().next().unwrap().source
    };
    assert_eq!(source_with(gap("elsewhere")), SourceHealth::Complete);
    assert_eq!(source_with(gap("llm")), SourceHealth::Partial { warnings: vec!["store is down".into()] });
}

#[test]
fn a_source_that_does_not_answer_is_down_for_every_group() {
    let error = SourceError { kind: "connect", message: "Prometheus at http://p: refused".into() };
    let snapshot = assembled(&view(), Err(error), now());
    let source = &snapshot.groups.values().next().unwrap().source;
    assert_eq!(*source, SourceHealth::Down { cause: "Prometheus at http://p: refused".into() });
}

#[test]
fn queues_of_several_schedulers_add_up_and_are_as_old_as_the_oldest() {
    let queue = |pod: &str, age: i64, value| Series {
        signal: Signal::SchedulerQueueSize,
        samples: [Sample { at: now() - SignedDuration::from_secs(age), value }].into(),
        ..series(pod, "meta/llama", 0.0)
    };
    let collected =
        Collected { series: vec![queue("epp-a", 1, 3.0), queue("epp-b", 9, 4.0)], ..Collected::default() };
    let snapshot = assembled(&view(), Ok(collected), now());
    let queue = snapshot.groups.values().next().unwrap().scheduler.newest(Signal::SchedulerQueueSize);
    let expected = Sample { at: now() - SignedDuration::from_secs(9), value: 7.0 };
    assert_eq!(queue, Some(expected));
}

#[test]
fn a_sample_of_the_future_once_had_the_whole_fleet_copied_and_decided_about_twice() {
    let sample = |ahead, value| Sample { at: now() + SignedDuration::from_secs(ahead), value };
    let series =
        Series { samples: [sample(-5, 0.5), sample(90, 0.9)].into(), ..series("llama-0", "meta/llama", 0.5) };
    let collected = Collected { series: vec![series], ..Collected::default() };
    let group = assembled(&view(), Ok(collected), now()).groups.into_values().next().unwrap();
    let engine = group.variants[0].pods[0].engines.values().next().unwrap();
    assert_eq!(engine.newest(Signal::KvUsage), Some(sample(-5, 0.5)), "it is left out here already");
}

#[test]
fn of_two_schedulers_one_that_had_stopped_once_hid_the_queue_of_the_other() {
    let queue = |pod: &str, age: i64, value| Series {
        signal: Signal::SchedulerQueueSize,
        samples: [Sample { at: now() - SignedDuration::from_secs(age), value }].into(),
        ..series(pod, "meta/llama", 0.0)
    };
    let newest = |series: [Series; 2]| {
        let collected = Collected { series: series.into(), ..Collected::default() };
        let group = assembled(&view(), Ok(collected), now()).groups.into_values().next().unwrap();
        let newest = group.scheduler.newest(Signal::SchedulerQueueSize).unwrap();
        (now().duration_since(newest.at).as_secs(), newest.value)
    };
    assert_eq!(newest([queue("epp-a", 2, 3.0), queue("epp-b", 90, 4.0)]), (2, 7.0), "at least so many");
    assert_eq!(newest([queue("epp-a", 2, 0.0), queue("epp-b", 90, 4.0)]), (90, 4.0), "nobody knows");
    assert_eq!(newest([queue("epp-a", 2, 3.0), queue("epp-b", 30, 4.0)]), (30, 7.0), "a slow scrape");
}

/// A counter that has grown by `rate` a second for a minute and a half.
fn grown(rate: f64) -> Samples {
    let sample = |back: i32| {
        let at = now() - SignedDuration::from_secs(15 * i64::from(back));
        Sample { at, value: 1000.0 + rate * f64::from(15 * (6 - back)) }
    };
    (0..=6).rev().map(sample).collect()
}

/// What the scheduler gave to `pod`, two a second.
fn given(pod: &str, port: u16, model: &str) -> Series {
    let counter =
        Series { signal: Signal::SchedulerAttempts, samples: grown(2.0), ..series("epp-0", model, 0.0) };
    counter.relabelled(|labels| {
        labels.port = Some(9090);
        labels.destination = Some(Destination { pod: pod.into(), port: Some(port) });
    })
}

fn at_port(engine: &str, port: u16) -> Series {
    series("llama-0", "meta/llama", 0.5).relabelled(|labels| {
        labels.engine = engine.into();
        labels.port = Some(port);
    })
}

/// By engine, what it had been given last.
fn arrivals(series: Vec<Series>) -> Vec<(String, f64)> {
    let snapshot = assembled(&view(), Ok(Collected { series, ..Collected::default() }), now());
    let group = snapshot.groups.into_values().next().unwrap();
    let engines = &group.variants[0].pods[0].engines;
    let newest = |(name, signals): (&SmolStr, &Signals)| {
        Some((name.to_string(), signals.newest(Signal::SchedulerAttempts)?.value))
    };
    engines.iter().filter_map(newest).collect()
}

#[test]
fn what_a_scheduler_gave_to_a_port_is_of_the_engine_that_answers_there() {
    let engines = || [at_port("8000/0", 8000), at_port("8001/0", 8001)];
    let mut given_and_engines = vec![given("llama-0", 8001, "meta/llama")];
    given_and_engines.extend(engines());
    assert_eq!(arrivals(given_and_engines), [("8001/0".to_owned(), 1180.0)]);
    let mut both = vec![given("llama-0", 8001, "meta/llama"), given("llama-0", 8000, "meta/llama")];
    both.extend(engines());
    assert_eq!(arrivals(both).len(), 2);
}

#[test]
fn engines_behind_one_port_or_one_proxy_share_its_requests() {
    let halves = [("0".to_owned(), 590.0), ("1".to_owned(), 590.0)];
    for port in [8000, 443] {
        let behind = vec![at_port("0", 8000), at_port("1", 8000), given("llama-0", port, "meta/llama")];
        assert_eq!(arrivals(behind), halves, "port {port}");
    }
    let two =
        vec![at_port("0", 8000), given("llama-0", 443, "meta/llama"), given("llama-0", 444, "meta/llama")];
    assert_eq!(arrivals(two), [("0".to_owned(), 2360.0)], "two ports of the proxy add up");
}

#[test]
fn what_was_given_to_another_pod_or_for_another_model_is_not_the_pods() {
    for other in [given("llama-9", 8000, "meta/llama"), given("llama-0", 8000, "embedder")] {
        assert_eq!(arrivals(vec![at_port("0", 8000), other]), []);
    }
    assert_eq!(arrivals(vec![given("llama-0", 8000, "meta/llama")]), [], "no engine is seen");
}

#[test]
fn under_upstreams_rules_the_queueing_model_reads_the_schedulers_attempts() {
    let counters = [
        (Signal::RequestPromptTokensSum, 2000.0),
        (Signal::RequestPromptTokensCount, 2.0),
        (Signal::RequestGenerationTokensSum, 400.0),
        (Signal::RequestGenerationTokensCount, 2.0),
        (Signal::InterTokenLatencySum, 8.0),
        (Signal::InterTokenLatencyCount, 400.0),
        (Signal::TimeToFirstTokenSum, 0.2),
        (Signal::TimeToFirstTokenCount, 2.0),
    ];
    let counter = |(signal, rate)| Series { signal, samples: grown(rate), ..at_port("0", 8000) };
    let mut policy = Policy { compat: Compat::Upstream, ..Policy::default() };
    policy.global.default.analyzer = Analyzer::QueueingModel;
    policy.global.default.queueing.targets = Some(LatencyTargets { ttft_ms: 2000.0, itl_ms: 100.0 });
    let demand = |attempts: Series| {
        let mut series = vec![at_port("0", 8000), attempts];
        series.push(Series { signal: Signal::Waiting, ..at_port("0", 8000) });
        series.extend(counters.map(counter));
        let snapshot = assembled(&view(), Ok(Collected { series, ..Collected::default() }), now());
        let outcome = decide(&snapshot, &observe(&snapshot, Memory::default()), &policy);
        let steps = outcome.report.groups.into_values().flat_map(|group| group.steps);
        let mut values = steps.flat_map(|step| step.values().to_vec());
        values.find(|value| value.name() == "demand").map(|value| value.value)
    };
    let whole = given("llama-0", 8000, "meta/llama").relabelled(|labels| labels.destination = None);
    assert_eq!(demand(whole), Some(0.0), "nobody says to whom it went");
    assert_eq!(demand(given("llama-0", 8000, "meta/llama")), Some(2.0));
}

#[test]
fn a_pod_with_a_hundred_thousand_engines_delays_nobody() {
    let mut all: Vec<Series> = (0..100_000).map(|n| at_port(&format!("{n:06}"), 8000)).collect();
    all.push(given("llama-0", 8000, "meta/llama"));
    let started = tokio::time::Instant::now();
    let arrivals = arrivals(all);
    let took = started.elapsed();
    assert!(took < std::time::Duration::from_secs(1), "{took:?}");
    assert_eq!(arrivals.len(), MAX_ENGINES_OF_A_POD);
}

#[test]
fn a_scheduler_that_names_every_port_of_a_pod_costs_no_more_than_its_series() {
    let engines: Vec<Series> = (0..MAX_ENGINES_OF_A_POD).map(|n| at_port(&n.to_string(), 8000)).collect();
    let ports = (0..50_000_u16).map(|n| given("llama-0", 10_000 + n, "meta/llama"));
    let all: Vec<Series> = engines.into_iter().chain(ports).collect();
    let started = tokio::time::Instant::now();
    let arrivals = arrivals(all);
    let took = started.elapsed();
    assert!(took < std::time::Duration::from_secs(1), "{took:?}");
    assert_eq!(arrivals.len(), MAX_ENGINES_OF_A_POD);
    let expected = 1180.0 * 50_000.0 / MAX_ENGINES_OF_A_POD as f64;
    assert!(arrivals.iter().all(|(_, value)| (value - expected).abs() < 1e-6 * expected), "{arrivals:?}");
}

#[test]
fn a_model_whose_series_break_is_held_and_no_other_model_notices() {
    let mut view = view();
    let mut healthy = view.variants[0].clone();
    healthy.variant.id = VariantId::new("llm", "qwen");
    healthy.variant.model = "qwen".into();
    healthy.pods[0].name = "qwen-0".into();
    view.variants.push(healthy);
    let both = || vec![series("llama-0", "meta/llama", 0.5), series("qwen-0", "qwen", 0.25)];
    let answer = || Ok(Collected { series: both(), ..Collected::default() });
    BROKEN.set(Some(GroupId { namespace: "llm".into(), model: "meta/llama".into() }));
    let Assembled { snapshot, failures, .. } = assemble(&view, &NamedModels::new(), answer(), now());
    BROKEN.set(None);
    let shows = |snapshot: &Snapshot, model: &str| {
        let group = snapshot.groups.iter().find(|(id, _)| id.model == model).unwrap().1;
        let engines = group.variants[0].pods[0].engines.len();
        (engines, group.source == SourceHealth::Complete)
    };
    assert_eq!((shows(&snapshot, "meta/llama"), shows(&snapshot, "qwen")), ((0, false), (1, true)));
    let [failure] = failures.as_slice() else { panic!("{failures:?}") };
    assert_eq!(
        failure.to_string(),
        "model meta/llama in namespace llm: index out of bounds: the length is 0"
    );
    let Assembled { snapshot, failures, .. } = assemble(&view, &NamedModels::new(), answer(), now());
    assert_eq!((shows(&snapshot, "meta/llama"), failures.len()), ((1, true), 0), "the next time it is whole");
}

#[test]
fn a_pod_all_of_whose_engines_sleep_is_not_ready_in_a_snapshot() {
    let of = |engine: &str, value| {
        series("llama-0", "meta/llama", value).relabelled(|labels| labels.engine = engine.into())
    };
    let sleeps = |engine: &str| Series { signal: Signal::Asleep, ..of(engine, 1.0) };
    let awake = |engine: &str| of(engine, 0.5);
    let runs = |engine: &str| Series { signal: Signal::Running, ..awake(engine) };
    let phase = |series| {
        let snapshot = assembled(&view(), Ok(Collected { series, ..Collected::default() }), now());
        let state = snapshot.groups.into_values().next().unwrap().variants.swap_remove(0);
        (state.pods[0].phase, state.scale.unwrap().ready.get())
    };
    assert_eq!(phase(vec![sleeps("0")]), (Phase::Asleep, 0));
    assert_eq!(phase(vec![sleeps("0"), sleeps("1")]), (Phase::Asleep, 0));
    assert_eq!(phase(vec![sleeps("0"), awake("1")]), (Phase::Ready, 1));
    assert_eq!(phase(vec![awake("0")]), (Phase::Ready, 1));
    assert_eq!(
        phase(vec![sleeps("0"), runs("1")]),
        (Phase::Ready, 1),
        "without its cache and queue it serves"
    );
    assert_eq!(phase(Vec::new()), (Phase::Ready, 1), "not known to sleep");
}
