//! Servers, pods and clients beyond the linear model: each shows in closed loop as what it is.

use std::time::Duration;

use proptest::prelude::*;
use wva_core::units::{Cost, Ratio, Replicas};
use wva_sim::{
    ClientPatience, Controller, Deviations, LoadShape, PodFault, PrefixCache, RequestSizes, Run, Scenario,
    Segment, SimVariant, TP1, simulate,
};

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// 1000/250 tokens at a constant rate for ten minutes on fixed replicas.
fn scenario(rps: f64, replicas: u32) -> Scenario {
    let variant = SimVariant {
        replicas: Replicas::new(replicas),
        ..SimVariant::new("v", TP1, Cost::new(1.0).unwrap())
    };
    let load = LoadShape::new(vec![Segment::Hold { rps, lasts: s(600) }]);
    Scenario::new("physics", s(600), load, RequestSizes::uniform(1000.0, 250.0, 0.1), vec![variant])
}

fn play(scenario: &Scenario, replicas: u32) -> Run {
    simulate(scenario, &Controller::fixed(replicas), 1, |_| {})
}

fn with(deviations: Deviations, rps: f64) -> Scenario {
    let mut scenario = scenario(rps, 1);
    scenario.variants[0].deviations = deviations;
    scenario
}

#[test]
fn experts_cost_a_lone_request_less_than_a_full_batch() {
    let experts = Deviations { experts_s: 0.02, expert_share: 0.03, ..Deviations::default() };
    let itl = |deviations, rps| {
        play(&with(deviations, rps), 1).series.iter().filter_map(|point| point.itl_s).sum::<f64>()
    };
    let added = |rps| itl(experts, rps) / itl(Deviations::default(), rps);
    assert!(added(0.1) > 1.05, "{}", added(0.1));
    assert!(added(8.0) > 1.3 * added(0.1), "{} and {}", added(8.0), added(0.1));
}

#[test]
fn stalls_are_as_rare_and_as_long_as_they_are_said_to_be() {
    let stalls = Deviations { stalls: 0.001, stall_s: 2.0, ..Deviations::default() };
    let run = play(&with(stalls, 3.0), 1);
    assert!(run.ttft_p99_s > 1.0 && run.ttft_p50_s < 0.5, "{} {}", run.ttft_p50_s, run.ttft_p99_s);
    assert_eq!(run.finished, run.requests);
}

#[test]
fn a_crash_fails_requests_and_takes_a_start_up() {
    let mut scenario = scenario(10.0, 2);
    scenario.variants[0].pod_faults = vec![PodFault::Crashing { every: s(200), pods: 1 }];
    let run = play(&scenario, 2);
    assert!(run.errors > 0 && run.errors < run.requests / 10, "{}", run.errors);
    let ready = |at_s: f64| run.series.iter().find(|point| point.at_s >= at_s).unwrap().ready;
    assert_eq!([ready(190.0), ready(230.0), ready(320.0)], [2, 1, 2], "95 s after 200 s");
}

#[test]
fn a_pod_that_blinks_gets_no_requests_for_a_while() {
    let mut scenario = scenario(10.0, 2);
    scenario.variants[0].pod_faults = vec![PodFault::Blinking { every: s(100), lasts: s(30), pods: 1 }];
    let run = play(&scenario, 2);
    let ready = |at_s: f64| run.series.iter().find(|point| point.at_s >= at_s).unwrap().ready;
    assert_eq!([ready(90.0), ready(115.0), ready(150.0)], [2, 1, 2]);
    assert_eq!(run.errors, 0, "what runs goes on");
}

#[test]
fn a_cold_cache_and_a_bad_router_make_prompts_longer() {
    let p50 = |prefix_cache| {
        let mut scenario = scenario(20.0, 4);
        scenario.sizes[0].sizes = RequestSizes::uniform(4000.0, 50.0, 0.1);
        scenario.prefix_hits = Ratio::new(0.9).unwrap();
        scenario.prefix_cache = prefix_cache;
        play(&scenario, 4).ttft_p50_s
    };
    let warm = p50(PrefixCache::default());
    assert!(p50(PrefixCache { warm_after: 1e6, spread: 0.0 }) > 1.5 * warm);
    assert!(p50(PrefixCache { warm_after: 0.0, spread: 1.0 }) > 1.5 * warm);
}

#[test]
fn clients_that_give_up_come_back_and_then_fail() {
    let mut scenario = scenario(60.0, 1);
    scenario.clients = Some(ClientPatience { timeout: s(5), retries: 1, backoff: s(2) });
    let run = play(&scenario, 1);
    assert!(run.errors > run.requests / 3, "one replica serves 23.5 of 60 requests/s: {}", run.errors);
    let waiting = run.series.iter().map(|point| point.waiting).fold(0.0, f64::max);
    assert!(waiting < 60.0 * 2.0 * 6.0, "nobody waits for longer than five seconds: {waiting}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn no_request_is_lost_by_crashes_stalls_and_impatience(
        seed in 0_u64..1000,
        rps in 0.5_f64..60.0,
        timeout in 1_u64..30,
        retries in 0_u32..3,
        crash in 30_u64..300,
        stalls in 0.0_f64..0.01,
    ) {
        let mut scenario = scenario(rps, 2);
        scenario.clients = Some(ClientPatience { timeout: s(timeout), retries, backoff: s(1) });
        let variant = &mut scenario.variants[0];
        variant.pod_faults = vec![
            PodFault::Crashing { every: s(crash), pods: 1 },
            PodFault::Blinking { every: s(70), lasts: s(20), pods: 2 },
        ];
        variant.deviations = Deviations { stalls, stall_s: 3.0, ..Deviations::default() };
        let run = simulate(&scenario, &Controller::fixed(2), seed, |_| {});
        prop_assert_eq!(run.requests, run.finished + run.errors + run.unfinished);
        prop_assert!((0.0..=1.0).contains(&run.slo_attainment));
    }
}
