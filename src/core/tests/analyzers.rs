//! Every analyzer's number passes the same stages: coverage, limits, stability and bounds, and a report that says why.

use crate::tests::support::prelude::*;
use crate::tests::support::steady::{SCRAPE, scrapes};
use wva_core::model::StepLimit;
use wva_core::report::{Direction, Stage, Step};

/// Requests of 1000 tokens and 200 generated at `rate` a second and replica, 20 ms between tokens, in a cache of
/// 100,000 tokens.
fn serving(world: &World, rate: f64) -> Snapshot {
    let mut snapshot = world.snapshot();
    let counters = [
        (Signal::RequestPromptTokensSum, 1000.0),
        (Signal::RequestPromptTokensCount, 1.0),
        (Signal::RequestGenerationTokensSum, 200.0),
        (Signal::RequestGenerationTokensCount, 1.0),
        (Signal::InterTokenLatencySum, 4.0),
        (Signal::InterTokenLatencyCount, 200.0),
        (Signal::TimeToFirstTokenSum, 0.1),
        (Signal::TimeToFirstTokenCount, 1.0),
        (Signal::SchedulerAttempts, 1.0),
    ];
    for engine in engines_mut(&mut snapshot) {
        retain(engine, |signal| [Signal::KvUsage, Signal::Waiting].contains(&signal));
        let times: Vec<_> = engine.get(Signal::KvUsage).iter().map(|sample| sample.at).collect();
        // Each runs for 0.1 s until its first token and for 4 s after it.
        engine.add(Signal::Running, times.into_iter().map(|at| Sample { at, value: 4.1 * rate }));
        for (signal, of_request) in counters {
            // They grow up to now, whenever the world is.
            let grown = |second: i64| 1e6 + of_request * rate * (second + 2 + 20 * SCRAPE) as f64;
            engine.add(signal, scrapes(0).map(|second| Sample { at: at(second), value: grown(second) }));
        }
        engine.add(Signal::KvCapacity, [Sample { at: at(-2), value: 100_000.0 }]);
    }
    snapshot
}

fn target(outcome: &Outcome) -> &Target {
    target_of(outcome, "llama")
}

/// What is decided about `world` where it serves `rate` requests a second and replica.
fn decided(world: &World, rate: f64) -> Outcome {
    world.outcome(&serving(world, rate))
}

fn steps(outcome: &Outcome, stage: Stage) -> Vec<&Step> {
    let group = &outcome.report.groups[&group_id()];
    group.steps.iter().filter(|step| step.stage() == stage).collect()
}

/// Four replicas at this KV-cache usage, decided about by tokens.
fn by_tokens(usage: f64) -> World {
    World::by(Analyzer::Saturation, 4, (usage, 0.0))
}

#[test]
fn missing_tokens_add_as_many_replicas_as_they_need() {
    // 95,000 of 100,000 tokens each: 380,000 / 0.85 are 447,059, 127,059 more than 4 × 80,000: two replicas.
    let world = by_tokens(0.95);
    let outcome = decided(&world, 1.0);
    assert_eq!((target(&outcome).desired.get(), target(&outcome).reason), (6, Reason::ScaleUp));
    let analyzed = steps(&outcome, Stage::Analyze);
    assert!(analyzed[0].values().iter().any(|value| value.name() == "missing" && value.value > 127_000.0));
    assert_eq!(steps(&outcome, Stage::Optimize).len(), 1, "what was added; a vote of one is its finding");
    let quality = "role both: fresh and complete: 4 Ready (4 fresh), 0 starting";
    assert_eq!(steps(&outcome, Stage::Quality)[0].to_string(), quality);
}

#[test]
fn spare_tokens_remove_replicas_and_the_report_has_the_threshold_of_more() {
    let world = by_tokens(0.2);
    let outcome = decided(&world, 1.0);
    assert_eq!((target(&outcome).desired.get(), target(&outcome).reason), (2, Reason::ScaleDown));
    let turn = &steps(&outcome, Stage::Analyze)[0].thresholds()[0];
    assert_eq!((turn.to, turn.at), (Direction::More, 0.85 * 320_000.0));
}

#[test]
fn an_h100_without_the_argument_is_sized_by_256_sequences_by_upstream_only() {
    let capacity = |analyzer: Analyzer, compat: Compat, argument: Option<i64>| {
        let mut world = World::by(analyzer, 4, (0.2, 0.0));
        world.policy.compat = compat;
        world.policy.global.default.queueing.targets =
            Some(LatencyTargets { ttft_ms: 60_000.0, itl_ms: 60_000.0 });
        let mut snapshot = serving(&world, 2.0);
        let state = &mut group_of(&mut snapshot).variants[0];
        let engine = EngineParameters::defaults(Engine::Vllm);
        let max_sequences = argument.unwrap_or(engine.max_sequences);
        let engine = EngineParameters { max_sequences, has_max_sequences: argument.is_some(), ..engine };
        (state.template.engine, state.variant.accelerator) = (Some(engine), Some("H100".into()));
        for engine in engines_mut(&mut snapshot) {
            engine.add(Signal::KvCapacity, [Sample { at: at(-1), value: 1e7 }]);
        }
        let outcome = world.outcome(&snapshot);
        let values = steps(&outcome, Stage::Analyze)[0].values().to_vec();
        values.into_iter().find(|value| value.name().starts_with("capacity of a replica")).unwrap().value
    };
    for analyzer in [Analyzer::Saturation, Analyzer::QueueingModel] {
        let by = |compat, argument| capacity(analyzer, compat, argument).to_bits();
        let ours = Compat::Corrected;
        assert_eq!(by(ours, None), by(ours, Some(1024)), "{analyzer:?}");
        assert_ne!(by(ours, None), by(ours, Some(256)), "{analyzer:?}");
        for theirs in [Compat::Upstream, Compat::UpstreamJune] {
            assert_eq!(by(theirs, None), by(theirs, Some(256)), "{analyzer:?}");
        }
    }
}

#[test]
fn partial_evidence_removes_nothing_whatever_the_analyzer() {
    for analyzer in [Analyzer::Saturation, Analyzer::Threshold, Analyzer::Weighted, Analyzer::QueueingModel] {
        let mut world = World::by(analyzer, 4, (0.01, 0.0));
        world.source = SourceHealth::Partial { warnings: vec!["a store is missing".into()] };
        let outcome = decided(&world, 1.0);
        assert_eq!(target(&outcome).desired.get(), 4, "{analyzer:?}: {}", target(&outcome).explanation);
    }
}

#[test]
fn the_larger_of_cache_and_queue_steps_by_one() {
    let world = World { samples: 3, ..World::by(Analyzer::Threshold, 4, (0.1, 9.0)) };
    assert_eq!(target(&world.outcome(&world.snapshot())).desired.get(), 5);
    let world = World::by(Analyzer::Threshold, 4, (0.1, 1.0));
    assert_eq!(target(&world.outcome(&world.snapshot())).desired.get(), 3);
}

#[test]
fn the_weighted_score_needs_degradation_to_grow() {
    // Not for long enough to be a saturated fleet.
    let mut world = World { samples: 3, ..World::by(Analyzer::Weighted, 4, (1.0, 9.0)) };
    let first = decided(&world, 1.0);
    assert_eq!(target(&first).desired.get(), 4, "0.5 + 0.3 is not above 0.8");
    world.memory = first.memory;
    world.now = 15;
    assert_eq!(target(&decided(&world, 1.0)).desired.get(), 4);
}

#[test]
fn latencies_that_are_promised_size_the_fleet() {
    let mut world = World::by(Analyzer::QueueingModel, 4, (0.5, 0.0));
    let desired = |world: &World, itl_ms| {
        let mut policy = world.policy.clone();
        policy.global.default.queueing.targets = Some(LatencyTargets { ttft_ms: 400.0, itl_ms });
        let world = World { policy, ..World::new(4) };
        let outcome = decided(&world, 2.0);
        target(&outcome).desired.get()
    };
    let (tight, loose) = (desired(&world, 21.0), desired(&world, 200.0));
    assert!(tight > loose, "{tight} against {loose}");
    world.policy.global.default.analyzer = Analyzer::Inferno;
    assert_eq!(target(&decided(&world, 2.0)).desired.get(), 4, "without a class nothing moves");
    let latency = LatencyTargets { ttft_ms: 400.0, itl_ms: 200.0 };
    world.policy.service_classes = premium(latency);
    let outcome = decided(&world, 2.0);
    assert!(target(&outcome).desired.get() < 4, "{}", target(&outcome).explanation);
    let own = LatencyTargets { itl_ms: 21.0, ..latency };
    world.policy.global.default.service_class = premium(own).pop();
    let by_own_class = decided(&world, 2.0);
    assert!(target(&by_own_class).desired > target(&outcome).desired, "the class of the model alone counts");
}

#[test]
fn what_the_queueing_model_learns_does_not_depend_on_the_order_of_pods() {
    let world = World::by(Analyzer::QueueingModel, 4, (0.5, 0.0));
    let mut snapshot = serving(&world, 2.0);
    let pods = |snapshot: &mut Snapshot| std::mem::take(&mut group_of(snapshot).variants[0].pods);
    let mut given = pods(&mut snapshot);
    for (at, pod) in given.iter_mut().enumerate().skip(1) {
        *pod = pods(&mut serving(&world, 2.0 + 0.1 * at as f64)).swap_remove(at);
    }
    let reversed = given.iter().rev().cloned().collect();
    let learned = [given, reversed].map(|pods| {
        let mut snapshot = snapshot.clone();
        group_of(&mut snapshot).variants[0].pods = pods;
        let group = world.outcome(&snapshot).memory.groups.into_values().next().unwrap();
        group.learned.unwrap().queueing
    });
    assert!(!learned[0].is_empty());
    assert_eq!(learned[0], learned[1]);
}

#[test]
fn a_second_analyzer_may_ask_for_more_and_must_agree_to_less() {
    let mut world = by_tokens(0.2);
    let secondary = SecondaryAnalyzer { analyzer: Analyzer::QueueingModel, score: 1.0, utilisation: None };
    world.policy.global.default.secondary = vec![secondary];
    world.policy.global.default.queueing.targets = Some(LatencyTargets { ttft_ms: 200.0, itl_ms: 20.5 });
    let outcome = decided(&world, 3.0);
    assert!(target(&outcome).desired.get() >= 4, "{}", target(&outcome).explanation);
    assert!(steps(&outcome, Stage::Optimize)[0].to_string().contains("saturation needs 0.0 more and has "));
}

#[test]
fn a_quota_holds_additions_back_and_is_named() {
    let mut world = by_tokens(0.95);
    let snapshot = serving(&world, 1.0);
    let quota = |gpus| Quota::Cluster { name: "team".into(), quotas: [("H100".into(), gpus)].into() };
    let number = |world: &World| {
        let mut snapshot = snapshot.clone();
        states_mut(&mut snapshot).for_each(|state| state.variant.accelerator = Some("H100".into()));
        world.outcome(&snapshot)
    };
    world.policy.limits.quotas = vec![quota(5)];
    let outcome = number(&world);
    assert_eq!(target(&outcome).desired.get(), 5);
    let bound: Vec<_> = outcome.report.groups.values().flat_map(|group| &group.steps).collect();
    assert!(
        bound.iter().any(|step| step.to_string().contains("team") || step.binding().is_some()),
        "{bound:#?}"
    );
    world.policy.limits.quotas = vec![quota(2)];
    assert_eq!(target(&number(&world)).desired.get(), 4, "what runs is never taken away");
    world.policy.limits.quotas = Vec::new();
    world.policy.limits.spend = Some(Cost::new(45.0).unwrap());
    assert_eq!(target(&number(&world)).desired.get(), 4, "four cost 40 and five 50");
}

#[test]
fn what_others_use_of_the_nodes_is_free_to_upstream_only() {
    let mut world = by_tokens(0.95);
    world.policy.limits.inventory = true;
    let mut snapshot = serving(&world, 1.0);
    let gpus = |count| BTreeMap::from([("H100".into(), count)]);
    (snapshot.inventory, snapshot.elsewhere) = (Some(gpus(8)), gpus(3));
    states_mut(&mut snapshot).for_each(|state| state.variant.accelerator = Some("H100".into()));
    let outcome = world.outcome(&snapshot);
    assert_eq!(target(&outcome).desired.get(), 5);
    let all: Vec<_> = outcome.report.groups.values().flat_map(|group| &group.steps).collect();
    let binding = all.iter().filter_map(|step| step.binding()).collect::<Vec<_>>().join("; ");
    assert!(binding.contains("3.0 of these by others"), "{binding}");
    world.policy.compat = Compat::Upstream;
    assert_eq!(target(&world.outcome(&snapshot)).desired.get(), 6);
}

#[test]
fn a_rise_goes_in_steps_where_the_policy_says_so() {
    let mut world = by_tokens(0.95);
    world.policy.global.default.stability.up_step = Some(StepLimit { replicas: Replicas::ONE, percent: 0.0 });
    world.policy.global.default.stability.down_window = Seconds::whole(300);
    let outcome = decided(&world, 1.0);
    assert_eq!((target(&outcome).desired.get(), target(&outcome).reason), (5, Reason::Bounded));
    assert!(steps(&outcome, Stage::Bound)[0].binding().is_some());
}

#[test]
fn a_change_within_an_hpas_tolerance_is_reported() {
    let mut world = World::by(Analyzer::Saturation, 20, (0.82, 0.0));
    world.policy.global.default.utilisation.up = 0.99;
    let outcome = decided(&world, 1.0);
    let message = target(&outcome).explanation.to_string();
    assert_eq!(target(&outcome).desired.get(), 21, "{message}");
    assert!(message.contains("tolerance of 10 %"), "{message}");
}

#[test]
fn what_is_learned_of_a_variant_stays_below_two_kibibytes() {
    for analyzer in [Analyzer::Saturation, Analyzer::Throughput, Analyzer::QueueingModel, Analyzer::Weighted]
    {
        let mut world = World::by(analyzer, 4, (0.6, 6.0));
        for _ in 0..50 {
            let outcome = decided(&world, 2.0);
            world.memory = outcome.memory;
        }
        let bytes = serde_json::to_string(&world.memory.groups).unwrap().len();
        assert!(bytes <= 2048, "{analyzer:?}: {bytes}");
    }
}

#[test]
fn a_late_scrape_of_a_slow_interval_is_no_idle_fleet() {
    let world = by_tokens(0.8);
    let mut snapshot = serving(&world, 1.0);
    let late = |value: f64| (1..8).map(move |back| Sample { at: at(-60 * back - 10), value });
    for engine in engines_mut(&mut snapshot) {
        retain(engine, |signal| ![Signal::KvUsage, Signal::Waiting].contains(&signal));
        engine.add(Signal::KvUsage, late(0.8));
        engine.add(Signal::Waiting, late(0.0));
    }
    let outcome = world.outcome(&snapshot);
    assert!(target(&outcome).desired.get() >= 4, "{}", target(&outcome).explanation);
}

#[test]
fn the_ranks_of_a_pod_are_removed_together() {
    // Four pods of eight engines at 35 %: three pods carry them at 47 %, one pod would take 140 %.
    let mut world = by_tokens(0.35);
    world.engines = 8;
    let outcome = decided(&world, 1.0);
    assert_eq!(target(&outcome).desired.get(), 3, "{}", target(&outcome).explanation);
}

#[test]
fn without_the_schedulers_queue_nothing_is_removed() {
    let world = by_tokens(0.2);
    let mut snapshot = serving(&world, 1.0);
    let scheduler = &mut group_of(&mut snapshot).scheduler;
    *scheduler = Signals::default();
    scheduler.add(Signal::SchedulerQueueSize, [Sample { at: at(-290), value: 500.0 }]);
    assert_eq!(target(&world.outcome(&snapshot)).desired.get(), 4);
}

#[test]
fn the_legacy_solver_does_not_take_unknown_for_idle() {
    let mut world = World::by(Analyzer::Inferno, 4, (0.5, 0.0));
    let latency = LatencyTargets { ttft_ms: 400.0, itl_ms: 200.0 };
    world.policy.service_classes = premium(latency);
    let learned = decided(&world, 2.0).memory;
    world.memory = learned;
    world.now = 60;
    let mut outcome = world.outcome(&world.snapshot());
    assert!(target(&outcome).desired.get() >= 1);
    world.memory = std::mem::take(&mut outcome.memory);
    world.now = 120;
    assert_eq!(target(&world.outcome(&world.snapshot())).desired, target(&outcome).desired);
}

/// `snapshot` without these signals of its first `pods`.
fn without(snapshot: &Snapshot, signals: &[Signal], pods: usize) -> Snapshot {
    let mut snapshot = snapshot.clone();
    let pods = states_mut(&mut snapshot).flat_map(|state| state.pods.iter_mut().take(pods));
    for engine in pods.flat_map(|pod| pod.engines.values_mut()) {
        retain(engine, |signal| !signals.contains(&signal));
    }
    snapshot
}

#[test]
fn a_pod_without_prompt_lengths_or_first_tokens_is_never_counted_as_0() {
    use Signal::{
        RequestPromptTokensCount, RequestPromptTokensSum, TimeToFirstTokenCount, TimeToFirstTokenSum,
    };
    let lost: [&[Signal]; 4] = [
        &[RequestPromptTokensSum, RequestPromptTokensCount],
        &[RequestPromptTokensCount],
        &[TimeToFirstTokenSum, TimeToFirstTokenCount],
        &[TimeToFirstTokenCount],
    ];
    for analyzer in [Analyzer::QueueingModel, Analyzer::Throughput] {
        for rate in [1.0, 4.0, 8.0] {
            // Requests of 1,100 tokens on average: what runs is what the caches hold.
            let world = World::by(analyzer, 4, (f64::min(rate * 4.1 * 1100.0 / 100_000.0, 0.9), 0.0));
            let whole = serving(&world, rate);
            let usual = target(&world.outcome(&whole)).desired.get();
            for signals in lost {
                for pods in [1, 2, 4] {
                    let outcome = world.outcome(&without(&whole, signals, pods));
                    let target = target(&outcome);
                    let (number, message) = (target.desired.get(), target.explanation.to_string());
                    let case = format!("{analyzer:?}, {rate} req/s, {signals:?} of {pods} pods: {message}");
                    assert!(number >= usual.min(4), "{number} instead of {usual}: {case}");
                    assert!(number <= usual.max(4) + 2, "{number} instead of {usual}: {case}");
                }
            }
        }
    }
}
