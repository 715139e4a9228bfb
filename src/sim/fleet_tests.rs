//! The live fleet against its closed forms and its promises.

use std::time::Duration;

use proptest::prelude::*;
use wva_core::units::{Cost, Replicas};

use super::*;

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn variant(physics: Physics, replicas: u32) -> SimVariant {
    let cost = Cost::new(10.0).unwrap();
    SimVariant { replicas: Replicas::new(replicas), ..SimVariant::new("pod", physics, cost) }
}

fn fleet(replicas: u32, physics: Physics, sizes: RequestSizes, seed: u64) -> Fleet {
    Fleet::new(variant(physics, replicas), sizes, seed)
}

fn first(fleet: &Fleet) -> &Pod {
    fleet.pod("pod-000001").unwrap()
}

fn readings(fleet: &Fleet) -> Readings {
    first(fleet).readings().unwrap().clone()
}

fn in_flight(fleet: &Fleet) -> f64 {
    let summary = fleet.summary();
    summary.waiting + summary.running
}

#[test]
fn below_capacity_concurrency_and_throughput_are_those_of_the_closed_form() {
    let sizes = RequestSizes::fixed(1000.0, 250.0);
    let mut fleet = fleet(1, TP1, sizes, 2);
    fleet.set_rate(12.0);
    fleet.advance(s(60));
    let mut sum = 0.0;
    for second in 61..661 {
        fleet.advance(s(second));
        sum += fleet.summary().running;
    }
    let ratio = sum / 600.0 / TP1.concurrency(12.0, sizes);
    assert!((0.9..1.1).contains(&ratio), "{ratio}");
    assert!((0.97..1.03).contains(&(fleet.summary().finished as f64 / (12.0 * 661.0))));
}

#[test]
fn an_unloaded_server_answers_in_the_time_of_its_steps() {
    let mut fleet = fleet(1, TP1, RequestSizes::fixed(4000.0, 100.0), 3);
    fleet.set_rate(0.05);
    fleet.advance(s(300));
    let readings = readings(&fleet);
    let first = readings.first_token.sum() / readings.first_token.count();
    let expected =
        TP1.base_s + 4000.0 * TP1.per_prompt_token_s + TP1.per_sequence_s + 4000.0 * TP1.per_kv_token_s;
    assert!((first / expected - 1.0).abs() < 0.05, "{first} vs {expected}");
    let gap = readings.inter_token.sum() / readings.inter_token.count();
    let expected = TP1.base_s + TP1.per_sequence_s + 4050.0 * TP1.per_kv_token_s;
    assert!((gap / expected - 1.0).abs() < 0.02, "{gap} vs {expected}");
}

#[test]
fn an_engines_steps_are_counted_and_none_while_it_is_idle() {
    let mut fleet = fleet(1, TP1, RequestSizes::fixed(1000.0, 250.0), 6);
    fleet.advance(s(60));
    assert!(readings(&fleet).steps.abs() < 1e-9, "nothing to do");
    fleet.set_rate(12.0);
    fleet.advance(s(120));
    let before = readings(&fleet);
    fleet.advance(s(180));
    let after = readings(&fleet);
    let steps = after.steps - before.steps;
    let gaps = after.inter_token.count() - before.inter_token.count();
    let mean_step_s = (after.inter_token.sum() - before.inter_token.sum()) / gaps;
    assert!((0.97..1.03).contains(&(steps * mean_step_s / 60.0)), "{steps} steps of {mean_step_s} s");
}

#[test]
fn a_full_cache_preempts_the_youngest_and_loses_nothing() {
    let tight = Physics { kv_tokens: 12_000, ..TP1 };
    let mut fleet = fleet(1, tight, RequestSizes::uniform(500.0, 1500.0, 0.2), 4);
    fleet.set_rate(3.0);
    fleet.advance(s(200));
    let loaded = readings(&fleet);
    assert!(loaded.preemptions > 0.0, "memory is too small for all that was admitted");
    assert!(loaded.kv_usage > 0.8 && loaded.kv_usage <= 1.0);
    fleet.set_rate(0.0);
    fleet.advance(s(4000));
    let summary = fleet.summary();
    assert!(in_flight(&fleet).abs() < 1e-9 && summary.arrived == summary.finished, "{summary:?}");
    let drained = readings(&fleet);
    assert!(drained.kv_usage.abs() < 1e-12, "all memory came back");
    let (generated, requested) = (drained.generation_tokens, drained.request_generation.sum());
    assert!((generated - requested).abs() < 1e-6, "no token counts twice: {generated} vs {requested}");
}

#[test]
fn a_request_larger_than_the_memory_fails_at_once() {
    let small = Physics { kv_tokens: 1000, ..TP1 };
    let mut fleet = fleet(1, small, RequestSizes::fixed(900.0, 200.0), 5);
    fleet.set_rate(1.0);
    fleet.advance(s(60));
    let summary = fleet.summary();
    assert!(summary.failed > 0 && summary.failed == summary.arrived, "{summary:?}");
}

#[test]
fn requests_wait_at_the_gateway_until_the_first_pod_is_ready() {
    let mut late = variant(TP1, 0);
    late.start_up = StartUp { mean: s(30), spread: 0.0 };
    let mut fleet = Fleet::new(late, RequestSizes::fixed(1000.0, 250.0), 6);
    fleet.set_rate(5.0);
    fleet.scale(1);
    fleet.advance(s(29));
    assert!(fleet.summary().ready == 0 && fleet.summary().waiting > 50.0);
    assert!(fleet.summary().max_wait_s > 25.0);
    fleet.advance(s(60));
    assert!(fleet.summary().ready == 1 && fleet.summary().waiting < 5.0);
    assert!((25.0..40.0).contains(&fleet.summary().max_wait_s));
    fleet.reset_stats();
    fleet.advance(s(90));
    assert!(fleet.summary().max_wait_s < 1.0, "after a reset only new waits count");
}

#[test]
fn a_terminating_pod_gets_nothing_new_and_finishes_what_it_has() {
    let mut fleet = fleet(2, TP1, RequestSizes::fixed(1000.0, 250.0), 7);
    fleet.set_rate(10.0);
    fleet.advance(s(30));
    assert!(fleet.delete_pod("pod-000001"));
    let before = first(&fleet).in_flight();
    fleet.advance(s(31));
    let after = fleet.pod("pod-000001").map_or(0, Pod::in_flight);
    assert!(after < before, "it only drains");
    fleet.advance(s(61));
    assert!(fleet.pod("pod-000001").is_none() && fleet.summary().failed == 0);
    assert!(!fleet.delete_pod("pod-000001"), "it is gone");
}

#[test]
fn the_grace_period_ends_what_is_left() {
    let slow = Physics { base_s: 0.5, ..TP1 };
    let mut fleet = fleet(1, slow, RequestSizes::fixed(100.0, 1000.0), 8);
    fleet.set_rate(1.0);
    fleet.advance(s(20));
    let before = in_flight(&fleet);
    fleet.set_rate(0.0);
    fleet.delete_pod("pod-000001");
    fleet.advance(s(49));
    assert!(fleet.pod("pod-000001").is_some());
    fleet.advance(s(50));
    assert!(fleet.pod("pod-000001").is_none());
    assert!((fleet.summary().failed as f64 - before).abs() < 1e-9);
}

#[test]
fn scaling_down_removes_starting_pods_first_then_the_youngest() {
    let mut slow = variant(TP1, 1);
    slow.start_up = StartUp { mean: s(30), spread: 0.05 };
    let mut fleet = Fleet::new(slow, RequestSizes::fixed(1000.0, 250.0), 9);
    let counts = |fleet: &Fleet| (fleet.summary().ready, fleet.summary().starting);
    fleet.advance(s(1));
    fleet.scale(3);
    assert_eq!(counts(&fleet), (1, 2));
    fleet.advance(s(29));
    assert_eq!(fleet.summary().ready, 1, "28.5 s is the shortest start");
    fleet.advance(s(33));
    assert_eq!(fleet.summary().ready, 3);
    fleet.scale(4);
    fleet.scale(3);
    assert_eq!(counts(&fleet), (3, 0), "the starting one went");
    fleet.scale(1);
    fleet.advance(s(34));
    assert_eq!(fleet.pods().iter().map(|pod| &*pod.name).collect::<Vec<_>>(), ["pod-000001"]);
    assert_eq!(fleet.counts().status, Replicas::ONE);
}

#[test]
fn cost_is_the_integral_over_all_pods_that_exist() {
    let mut fleet = fleet(2, TP1, RequestSizes::fixed(1000.0, 250.0), 10);
    fleet.advance(s(1800));
    fleet.scale(3);
    fleet.advance(s(3600));
    let cost = fleet.summary().cost;
    assert!((cost - 25.0).abs() < 1e-9, "2 × 10 for an hour, 10 for half an hour: {cost}");
}

/// Load and figures of the emulated server, whose requests arrive evenly.
#[test]
fn the_emulated_server_serves_four_requests_a_second_and_queues_the_rest() {
    let mut fleet = fleet(1, EMULATED_4RPS, EMULATED_4RPS_SIZES, 11).with_pattern(Pattern::Even);
    let mut measured = |from: u64, rps: f64, seconds: u64| {
        fleet.set_rate(rps);
        fleet.advance(s(from + seconds));
        let summary = fleet.summary();
        (summary.kv_usage, summary.waiting, summary.running)
    };
    let (kv_usage, waiting, running) = measured(0, 2.0, 10);
    // A request that arrives at this moment waits for the step under way.
    assert!((kv_usage - 0.45).abs() < 0.03 && waiting <= 1.0, "{kv_usage} {waiting}");
    assert!((running - 8.0).abs() < 1.5, "{running}");
    let (kv_usage, waiting, running) = measured(10, 14.0, 10);
    assert!((kv_usage - 0.9).abs() < 0.05 && (running - 16.0).abs() < 0.5, "{kv_usage} {running}");
    assert!((waiting - 100.0).abs() < 10.0, "14 arrive and 4 leave a second: {waiting}");
    let (_, waiting, running) = measured(20, 3.0, 10);
    assert!((waiting - 90.0).abs() < 10.0 && (running - 16.0).abs() < 0.5, "{waiting}");
    let (kv_usage, waiting, running) = measured(30, 3.0, 120);
    assert!((kv_usage - 0.675).abs() < 0.04 && waiting <= 1.0, "{kv_usage} {waiting}");
    assert!((running - 12.0).abs() < 1.5, "{running}");
    let (readings, summary) = (readings(&fleet), fleet.summary());
    let started = summary.finished as f64 + summary.running;
    assert!((readings.prompt_tokens - 1000.0 * started).abs() < 1e-3);
    assert!((summary.max_wait_s - 25.0).abs() < 3.0, "{}", summary.max_wait_s);
}

#[test]
fn even_load_is_shared_evenly_and_no_request_is_lost() {
    let none = variant(EMULATED_4RPS, 0);
    let mut fleet = Fleet::new(none, EMULATED_4RPS_SIZES, 11).with_pattern(Pattern::Even);
    fleet.set_rate(14.0);
    fleet.advance(s(5));
    assert!((fleet.summary().waiting - 70.0).abs() < 1.5, "no pod is ready");
    assert!(["a", "b"].iter().all(|name| fleet.add_ready_pod(name)));
    assert!(!fleet.add_ready_pod("a"), "the name is taken");
    fleet.advance(s(15));
    // 70 from before, and 6 a second more than two pods serve; 32 of them run.
    let summary = fleet.summary();
    assert!((summary.waiting + summary.running - 162.0).abs() < 32.0, "{summary:?}");
    assert!((summary.running - 32.0).abs() < 1e-6 && summary.kv_usage > 0.8, "{summary:?}");
    assert!(["c", "d"].iter().all(|name| fleet.add_ready_pod(name)));
    fleet.advance(s(315));
    let summary = fleet.summary();
    assert!((summary.capacity_rps - 16.0).abs() < 1e-9 && summary.waiting < 1.0, "{summary:?}");
    assert!((summary.kv_usage - 0.9 * 3.5 / 4.0).abs() < 0.03, "{}", summary.kv_usage);
    let running: Vec<f64> = fleet.pods().iter().map(|pod| pod.readings().unwrap().running).collect();
    assert!(running.iter().all(|running| (running - 14.0).abs() < 2.5), "{running:?}");
    assert!((summary.arrived as f64 - summary.finished as f64 - in_flight(&fleet)).abs() < 1e-6);
}

#[test]
fn arrivals_keep_their_rate_through_changes_of_rate() {
    let mut fleet = Fleet::new(variant(TP1, 0), RequestSizes::fixed(1.0, 1.0), 3);
    for second in 0..2000_u64 {
        fleet.set_rate(if second % 2 == 0 { 0.0 } else { 10.0 });
        fleet.advance(s(second + 1));
    }
    let arrived = fleet.summary().arrived;
    assert!((9_700..10_300).contains(&arrived), "{arrived}");
}

/// A fleet with every kind of event, advanced to `end` in steps of `tick`.
fn busy(seed: u64, tick: Duration, end: Duration) -> Fleet {
    let mut template = variant(TP1, 0);
    template.start_up = StartUp { mean: s(20), spread: 0.2 };
    let mut fleet = Fleet::new(template, RequestSizes::uniform(2000.0, 400.0, 0.3), seed);
    fleet.follow(LoadShape::new(vec![
        Segment::Ramp { from: 1.0, to: 30.0, lasts: s(60) },
        Segment::Wave { mean: 10.0, swing: 8.0, period: s(30), lasts: s(60) },
    ]));
    for (at, replicas) in [(0, 1), (30, 4), (90, 2), (100, 3), (140, 1)] {
        while fleet.now() < s(at).min(end) {
            let next = (fleet.now() + tick).min(s(at));
            fleet.advance(next);
        }
        fleet.scale(replicas);
    }
    fleet.advance(end);
    fleet
}

#[test]
fn the_same_seed_gives_the_same_bytes_and_another_seed_does_not() {
    let bytes = |fleet: &Fleet| format!("{fleet:?}");
    assert_eq!(bytes(&busy(1, s(1), s(180))), bytes(&busy(1, s(1), s(180))));
    assert_ne!(bytes(&busy(1, s(1), s(180))), bytes(&busy(2, s(1), s(180))));
}

#[test]
fn how_often_it_is_read_changes_nothing_that_is_counted() {
    let fine = busy(3, Duration::from_millis(100), s(180)).summary();
    let coarse = busy(3, s(5), s(180)).summary();
    assert!(fine.arrived.abs_diff(coarse.arrived) <= 1, "{} vs {}", fine.arrived, coarse.arrived);
    assert!((fine.finished as f64 / coarse.finished as f64 - 1.0).abs() < 0.02);
}

proptest! {
    #![proptest_config(cases::slow())]

    #[test]
    fn nothing_is_lost_and_counters_never_fall(seed in 0_u64..1000, rate in 0.5_f64..40.0, kv in 20_000_u32..200_000) {
        let physics = Physics { kv_tokens: kv, ..TP1 };
        let mut fleet = fleet(2, physics, RequestSizes::uniform(1500.0, 300.0, 0.5), seed);
        fleet.set_rate(rate);
        let mut last = [0.0; 6];
        for second in 1..=60_u64 {
            fleet.advance(s(second));
            if second == 30 {
                fleet.delete_pod("pod-000002");
            }
            let summary = fleet.summary();
            let accounted = in_flight(&fleet) + (summary.finished + summary.failed) as f64;
            prop_assert!((summary.arrived as f64 - accounted).abs() < 1e-6, "{} vs {accounted}", summary.arrived);
            let readings = readings(&fleet);
            prop_assert!((0.0..=1.0).contains(&readings.kv_usage));
            let now = [readings.prompt_tokens, readings.generation_tokens, readings.inter_token.sum(),
                readings.inter_token.count(), readings.first_token.sum(), readings.finished()];
            prop_assert!(now.iter().zip(&last).all(|(now, last)| now >= last));
            last = now;
        }
    }
}
