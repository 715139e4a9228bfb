//! The promises of the closed loop, one scenario each.

use std::time::Duration;

use proptest::prelude::*;
use wva_core::model::{Bounds, Policy};
use wva_core::units::{Cost, Ratio, Replicas};

use super::*;
use crate::{
    Algorithm, Arrival, Arrivals, DeletionOrder, LoadShape, MetricPath, Pattern, Physics, RequestSizes,
    ScheduleEntry, Scrape, Segment, SimVariant, SizeSpread, StartUp, TP1,
};

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn hold(rps: f64, lasts: u64) -> Segment {
    Segment::Hold { rps, lasts: s(lasts) }
}

fn variant(replicas: u32) -> SimVariant {
    let cost = Cost::new(1.0).unwrap();
    SimVariant { replicas: Replicas::new(replicas), ..SimVariant::new("v", TP1, cost) }
}

/// One variant under 1000/250 tokens ± 10 %.
fn scenario(lasts: u64, rps: f64, replicas: u32) -> Scenario {
    let load = LoadShape::new(vec![hold(rps, lasts)]);
    Scenario::new("test", s(lasts), load, RequestSizes::uniform(1000.0, 250.0, 0.1), vec![variant(replicas)])
}

fn poisson(segments: Vec<Segment>) -> Arrivals {
    Arrivals::Rate { load: LoadShape::new(segments), pattern: Pattern::Poisson }
}

fn schedule(steps: &[(u64, u32)]) -> Controller {
    let entry = |(at, replicas): &(u64, u32)| ScheduleEntry {
        from: s(*at),
        replicas: vec![Replicas::new(*replicas)],
    };
    let algorithm = Algorithm::Schedule(steps.iter().map(entry).collect());
    Controller { algorithm, scale_down_window: Some(Duration::ZERO), ..Controller::fixed(1) }
}

fn play(scenario: &Scenario, controller: &Controller, seed: u64) -> Run {
    simulate(scenario, controller, seed, |_| {})
}

fn at(run: &Run, second: f64) -> &Point {
    run.series.iter().find(|point| point.at_s >= second).unwrap()
}

#[test]
fn the_same_seed_gives_the_same_run_and_another_does_not() {
    let scenario = scenario(300, 10.0, 2);
    for controller in
        [Controller::wva_v2(), Controller::keda_epp(), Controller::core("v1", Policy::default())]
    {
        let run = play(&scenario, &controller, 1);
        assert_eq!(run, play(&scenario, &controller, 1));
        assert_ne!(run.ttft_p99_s.to_bits(), play(&scenario, &controller, 2).ttft_p99_s.to_bits());
    }
}

#[test]
fn every_controller_gets_the_same_requests() {
    let scenario = scenario(300, 10.0, 2);
    let requests = |controller| {
        let run = play(&scenario, &controller, 7);
        run.series.iter().map(|point| point.rps.to_bits()).collect::<Vec<_>>()
    };
    assert_eq!(requests(Controller::fixed(1)), requests(Controller::keda_epp()));
}

#[test]
fn what_is_asked_for_is_what_is_paid() {
    let mut scenario = scenario(1000, 1.0, 2);
    scenario.variants[0].cost = Cost::new(2.5).unwrap();
    let run = play(&scenario, &Controller::fixed(2), 1);
    assert!((run.replicas_avg - 2.0).abs() < 1e-9 && (run.cost_avg - 5.0).abs() < 1e-9);
    assert!((run.gpu_hours - 2000.0 / 3600.0).abs() < 1e-9);
    assert_eq!((run.changes, run.flips, run.errors, run.unfinished), (0, 0, 0, 0));
    let run = play(&scenario, &schedule(&[(0, 2), (500, 4)]), 1);
    let write = run.writes[0];
    assert_eq!((write.from, write.to), (2, 4));
    assert!((run.replicas_avg - (2.0 + 2.0 * (1000.0 - write.at_s) / 1000.0)).abs() < 1e-9);
}

#[test]
fn an_order_is_carried_out_at_the_next_sync_whose_phase_is_the_seeds() {
    let scenario = scenario(200, 1.0, 1);
    let writes: Vec<f64> =
        (1..=20).map(|seed| play(&scenario, &schedule(&[(0, 1), (100, 2)]), seed).writes[0].at_s).collect();
    assert!(writes.iter().all(|at_s| (100.0..=115.0).contains(at_s)), "{writes:?}");
    let (least, most) = writes.iter().fold((f64::MAX, f64::MIN), |(a, b), at| (a.min(*at), b.max(*at)));
    assert!(least < 104.0 && most > 111.0, "phases are spread: {writes:?}");
}

#[test]
fn pods_are_ready_after_their_start_up() {
    let mut scenario = scenario(400, 1.0, 1);
    scenario.variants[0].start_up = StartUp { mean: s(60), spread: 0.1 };
    let run = play(&scenario, &schedule(&[(0, 1), (100, 3)]), 3);
    let ordered = run.writes[0].at_s;
    assert_eq!((at(&run, ordered + 50.0).ready, at(&run, ordered + 50.0).starting), (1, 2));
    assert_eq!((at(&run, ordered + 68.0).ready, at(&run, ordered + 68.0).starting), (3, 0));
}

#[test]
fn a_drain_cuts_only_what_outlives_the_grace_period() {
    let mut scenario = scenario(300, 8.0, 2);
    let shrink = schedule(&[(0, 2), (100, 1)]);
    scenario.grace_period = s(30);
    let run = play(&scenario, &shrink, 1);
    assert_eq!((run.errors, run.finished), (0, run.requests), "a request takes 2 s");
    scenario.grace_period = Duration::from_millis(300);
    let cut = play(&scenario, &shrink, 1);
    assert!(cut.errors > 2 && cut.finished + cut.errors == cut.requests, "{}", cut.errors);
    assert!(cut.slo_attainment <= cut.finished as f64 / cut.requests as f64);
}

#[test]
fn the_least_loaded_pod_goes_with_fewer_streams_than_the_youngest() {
    let mut scenario = scenario(900, 3.0, 4);
    let spread = SizeSpread::LogNormal(1.5);
    scenario.sizes[0].sizes = RequestSizes { prompt: 500.0, output: 3000.0, spread };
    scenario.grace_period = s(10);
    let shrink = schedule(&[(0, 4), (100, 6), (400, 3)]);
    let errors = |deletion_order| {
        let scenario = Scenario { deletion_order, ..scenario.clone() };
        (1..=5).map(|seed| play(&scenario, &shrink, seed).errors).sum::<u64>()
    };
    let (young, light) = (errors(DeletionOrder::Youngest), errors(DeletionOrder::LeastLoaded));
    assert!(light < young, "{light} and {young}");
}

#[test]
fn pods_without_a_node_cost_no_gpu_and_start_when_another_goes() {
    let mut scenario = scenario(600, 1.0, 1);
    scenario.variants[0].max_scheduled_pods = Some(2);
    let run = play(&scenario, &schedule(&[(0, 1), (60, 4), (300, 1), (320, 2)]), 1);
    assert!(run.series.iter().all(|point| point.ready <= 2));
    let waiting = at(&run, 250.0);
    assert_eq!((waiting.spec_replicas[0], waiting.ready, waiting.starting), (4, 2, 2));
    assert!(run.gpu_hours < 2.0 * 600.0 / 3600.0);
    assert!(at(&run, 599.0).ready == 2, "the node of the pod that went was taken again");
}

#[test]
fn when_every_scrape_is_lost_nothing_is_decided() {
    let mut scenario = scenario(900, 30.0, 1);
    scenario.scrape.loss = Ratio::new(1.0).unwrap();
    for controller in [Controller::core("v1", Policy::default()), Controller::wva_v2()] {
        assert_eq!(play(&scenario, &controller, 1).changes, 0);
    }
    scenario.scrape.loss = Ratio::new(0.3).unwrap();
    assert!(play(&scenario, &Controller::core("v1", Policy::default()), 1).changes > 0);
}

#[test]
fn through_prometheus_a_number_comes_later_than_directly() {
    let mut scenario = scenario(600, 1.0, 1);
    scenario.arrivals = poisson(vec![hold(1.0, 200), hold(40.0, 400)]);
    let policy = Policy::default();
    let mean = |controller: &Controller| {
        let first = |seed| play(&scenario, controller, seed).writes[0].at_s;
        (1..=10).map(first).sum::<f64>() / 10.0
    };
    let direct = mean(&Controller::core("v1", policy.clone()));
    let late = Controller { path: MetricPath::published(), ..Controller::core("v1", policy) };
    let late = mean(&late);
    assert!((200.0..230.0).contains(&direct), "{direct}");
    assert!(late > direct + 10.0, "{late} after {direct}");
}

#[test]
fn from_zero_requests_wait_at_the_gateway_for_the_first_pod() {
    let mut scenario = scenario(300, 4.0, 0);
    scenario.variants[0].bounds = Bounds { min: Replicas::ZERO, max: Some(Replicas::new(5)) };
    let run = play(&scenario, &schedule(&[(0, 0), (50, 1)]), 1);
    let ready = run.series.iter().find(|point| point.ready > 0).unwrap();
    assert!((140.0..165.0).contains(&ready.at_s), "{}", ready.at_s);
    assert!((4.0 * ready.at_s - at(&run, ready.at_s - 1.5).waiting).abs() < 100.0);
    assert!(run.ttft_p95_s > 90.0 && run.finished == run.requests);
}

#[test]
fn the_core_wakes_a_model_that_sleeps() {
    let mut scenario = scenario(300, 4.0, 0);
    scenario.variants[0].bounds = Bounds { min: Replicas::ZERO, max: Some(Replicas::new(5)) };
    for controller in [Controller::core("v1", Policy::default()), Controller::keda_epp()] {
        let run = play(&scenario, &controller, 1);
        assert!(run.writes[0].at_s < 50.0 && run.finished > 0, "{}", controller.name);
    }
}

#[test]
fn keda_asks_for_what_its_thresholds_say() {
    // 12 requests a second that take about 2.6 s: 31 in the pod.
    let scenario = scenario(900, 12.0, 1);
    let in_flight = TP1.concurrency(12.0, RequestSizes::fixed(1000.0, 250.0));
    let mut keda = Controller::keda_epp();
    keda.algorithm = Algorithm::KedaEpp { in_pod: in_flight / 2.5, waiting: 1e6 };
    let run = play(&scenario, &keda, 1);
    assert!((2..=5).contains(&run.series.last().unwrap().spec_replicas[0]), "{:?}", run.writes);
}

#[test]
fn a_spare_is_on_top_of_every_number() {
    let scenario = scenario(300, 1.0, 1);
    let spare = Controller { spares: 2, ..Controller::fixed(1) };
    assert_eq!(play(&scenario, &spare, 1).series.last().unwrap().spec_replicas, [3]);
}

#[test]
fn under_overload_a_run_finishes_what_the_capacity_formula_says() {
    for (prompt, output, tokens_per_step, hits) in [
        (4000.0, 1000.0, 1.0, 0.0),
        (1000.0, 250.0, 1.0, 0.0),
        (1000.0, 250.0, 2.5, 0.0),
        (1000.0, 250.0, 1.0, 0.5),
        (100.0, 1000.0, 1.0, 0.0),
    ] {
        let mut scenario = scenario(2000, 120.0, 1);
        scenario.sizes[0].sizes = RequestSizes::uniform(prompt, output, 0.1);
        scenario.variants[0].physics = Physics { tokens_per_step, ..TP1 };
        scenario.prefix_hits = Ratio::new(hits).unwrap();
        let run = play(&scenario, &Controller::fixed(1), 1);
        let per_prompt_token_s = TP1.per_prompt_token_s * (1.0 - hits);
        let physics = Physics { per_prompt_token_s, ..scenario.variants[0].physics };
        let formula = physics.capacity_rps(RequestSizes::fixed(prompt, output));
        let rps = run.finished as f64 / (2000.0 + DRAIN_TIMEOUT.as_secs_f64());
        // The formula uses 90 % of the memory, the server admits up to 99 %: up to a few per cent more.
        assert!(run.unfinished > 0, "the rest waits");
        assert!((0.95..1.06).contains(&(rps / formula)), "{prompt}/{output}: {rps} vs {formula}");
    }
}

#[test]
fn a_slow_first_pod_and_rough_steps_make_everything_later() {
    let base = scenario(300, 10.0, 1);
    let p50 = |scenario: &Scenario| play(scenario, &Controller::fixed(1), 1).ttft_p50_s;
    let mut slow = base.clone();
    slow.variants[0].first_pod_slowdown = 1.5;
    assert!(p50(&slow) > 1.3 * p50(&base));
    let mut rough = base.clone();
    rough.variants[0].deviations.per_prompt_token = 1e-3;
    assert!(p50(&rough) > 1.2 * p50(&base));
    let mut noisy = base.clone();
    noisy.variants[0].deviations.noise = 0.15;
    let share = p50(&noisy) / p50(&base);
    assert!((0.9..1.1).contains(&share), "noise has no mean: {share}");
    noisy.variants[0].deviations.stalls = 0.005;
    noisy.variants[0].deviations.stall_s = 1.0;
    assert!(play(&noisy, &Controller::fixed(1), 1).ttft_p99_s > 1.0);
}

#[test]
fn a_gateway_that_holds_gives_the_queue_to_new_pods() {
    let mut scenario = scenario(600, 30.0, 1);
    scenario.arrivals = poisson(vec![hold(10.0, 100), hold(40.0, 200), hold(5.0, 300)]);
    let grow = schedule(&[(0, 1), (150, 4)]);
    let bound = play(&scenario, &grow, 1);
    scenario.max_waiting_per_pod = Some(2);
    let held = play(&scenario, &grow, 1);
    assert!(held.ttft_p99_s < 0.8 * bound.ttft_p99_s, "{} and {}", held.ttft_p99_s, bound.ttft_p99_s);
    assert_eq!(held.finished, held.requests);
}

#[test]
fn a_trace_is_played_as_recorded() {
    let mut scenario = scenario(100, 1.0, 1);
    let arrival = |at_s, prompt, output| Arrival { at_s, prompt, output, cached: 0 };
    let trace = vec![
        arrival(1.0, 4000, 10),
        arrival(50.0, 1_000_000, 10),
        arrival(99.0, 10, 2),
        arrival(100.5, 1, 1),
    ];
    scenario.arrivals = Arrivals::Trace(trace.into());
    let run = play(&scenario, &Controller::fixed(1), 1);
    assert_eq!(
        (run.requests, run.finished, run.errors),
        (3, 2, 1),
        "the second request is larger than the memory"
    );
}

#[test]
fn a_long_run_keeps_a_bounded_series_and_tells_its_progress() {
    let scenario = scenario(10_000, 0.1, 1);
    let mut shares = Vec::new();
    let run = simulate(&scenario, &Controller::fixed(1), 1, |share| shares.push(share));
    assert!(run.series.len() <= Run::MAX_POINTS && shares.len() <= Run::MAX_POINTS + 2);
    assert!(shares.is_sorted() && shares.last().is_some_and(|last| (last - 1.0).abs() < 1e-12));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn no_request_is_lost_whatever_happens(
        seed in 0_u64..1000,
        rps in 0.5_f64..60.0,
        orders in prop::collection::vec(0_u32..6, 5),
        grace in 0_u64..20,
        kv in 10_000_u32..400_000,
        hold_at in prop::option::of(1_u32..4),
        schedulable in prop::option::of(0_u32..4),
        burst in 1_u32..20,
        noise in prop::bool::ANY,
    ) {
        let mut scenario = scenario(250, rps, 2);
        let load = LoadShape::new(vec![hold(rps, 100), Segment::Ramp { from: rps, to: 0.0, lasts: s(100) }, hold(rps, 50)]);
        scenario.arrivals = Arrivals::Rate { load, pattern: Pattern::Bursts(burst) };
        scenario.grace_period = s(grace);
        scenario.max_waiting_per_pod = hold_at;
        scenario.scrape = Scrape { loss: Ratio::new(0.1).unwrap(), ..Scrape::default() };
        let variant = &mut scenario.variants[0];
        variant.bounds.min = Replicas::ZERO;
        variant.physics.kv_tokens = kv;
        variant.max_scheduled_pods = schedulable;
        variant.start_up = StartUp { mean: s(20), spread: 0.5 };
        variant.deviations.noise = if noise { 0.2 } else { 0.0 };
        let steps: Vec<(u64, u32)> = orders.iter().enumerate().map(|(at, n)| (at as u64 * 50, *n)).collect();
        let run = play(&scenario, &schedule(&steps), seed);
        prop_assert_eq!(run.requests, run.finished + run.errors + run.unfinished);
        prop_assert!((0.0..=1.0).contains(&run.slo_attainment));
        let came: f64 = run.series.iter().map(|point| point.rps).sum();
        prop_assert!((came - run.requests as f64).abs() < 1e-6, "{} of {}", came, run.requests);
        prop_assert!(run.series.iter().all(|point| (0.0..=1.0).contains(&point.kv_usage)));
    }
}
