//! Servers that refuse requests while their queues are full, in closed loop.

use std::time::Duration;

use wva_core::model::Analyzer;
use wva_core::snapshot::Signal;
use wva_core::units::{Cost, Replicas};
use wva_sim::{
    ClientPatience, Controller, EMULATED_4RPS, EMULATED_4RPS_SIZES, Fault, FaultKind, FaultShare,
    FaultSignals, LoadShape, Physics, Run, Scenario, Segment, SimVariant, simulate,
};

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// The load changes at once after this time, seconds.
const CHANGE_S: f64 = 600.0;
const END_S: f64 = 2400.0;
/// Requests/s after a rise: seven replicas carry them.
const RAISED: f64 = 28.0;
/// How many times as many replicas at most for twice the demand: the largest reserve for growth (0.57) applies, and before that the target utilisation (0.75) did.
const MAX_FACTOR: f64 = 2.0 * 1.57 * 0.75;
const SEEDS: std::ops::RangeInclusive<u64> = 1..=5;

/// Two replicas at the start. Each serves 4 requests/s, and refuses a request while it has 16 that run and two that wait: so few that
/// they show no overload.
fn scenario(before: f64, after: f64) -> Scenario {
    let physics = Physics { max_in_flight: 18, ..EMULATED_4RPS };
    let mut variant = SimVariant::new("llama", physics, Cost::new(1.0).unwrap());
    variant.bounds.max = Some(Replicas::new(100));
    variant.replicas = Replicas::new(2);
    let hold = |rps, lasts| Segment::Hold { rps, lasts };
    let load = LoadShape::new(vec![hold(before, s(600)), hold(after, s(1800))]);
    Scenario::new("refusals", s(2400), load, EMULATED_4RPS_SIZES, vec![variant])
}

/// A fault of the counter of refused requests, for as long as the run.
fn fault(kind: FaultKind, share: FaultShare) -> Fault {
    let signals = FaultSignals::Of(Signal::RefusedRequests);
    Fault { kind, signals, share, from: Duration::ZERO, until: s(10_000) }
}

fn run(scenario: &Scenario, faults: &[Fault], seed: u64) -> Run {
    let scenario = Scenario { faults: faults.to_vec(), ..scenario.clone() };
    simulate(&scenario, &Controller::analyzer(Analyzer::Rate), seed, |_| {})
}

/// The highest number of replicas from `from_s` to `to_s`.
fn highest(run: &Run, from_s: f64, to_s: f64) -> u32 {
    let within = run.series.iter().filter(|point| (from_s..to_s).contains(&point.at_s));
    within.map(|point| point.spec_replicas[0]).max().unwrap()
}

#[test]
fn rate_orders_for_what_is_refused_and_without_the_counter_too_little() {
    let scenario = scenario(5.0, RAISED);
    let blind = [fault(FaultKind::Gone, FaultShare::All)];
    let (mut with, mut without) = (0, 0);
    for seed in SEEDS {
        let (counted, blind) = (run(&scenario, &[], seed), run(&scenario, &blind, seed));
        let ordered = |run: &Run| highest(run, CHANGE_S, CHANGE_S + 60.0);
        let numbers = (ordered(&counted), ordered(&blind));
        assert!(numbers.0 >= 7 && numbers.0 > numbers.1, "{numbers:?}");
        assert!(highest(&counted, CHANGE_S, END_S) <= 14, "no more than the load needs");
        with += counted.errors;
        without += blind.errors;
    }
    assert!(with as f64 <= 0.75 * without as f64, "{with} {without}");
}

#[test]
fn pods_that_claim_refusals_at_most_double_the_demand() {
    let scenario = scenario(12.0, 12.0);
    for seed in SEEDS {
        let of = |faults: &[Fault]| run(&scenario, faults, seed);
        let honest = highest(&of(&[]), 0.0, END_S);
        let liars = of(&[fault(FaultKind::Claimed, FaultShare::All)]);
        let lying = highest(&liars, 0.0, END_S);
        // And one replica more by rounding.
        assert!(f64::from(lying) <= MAX_FACTOR * f64::from(honest) + 1.0, "{lying}, {honest} without a lie");
        let last_quarter = highest(&liars, 0.75 * END_S, END_S);
        assert_eq!(highest(&liars, 0.5 * END_S, 0.75 * END_S), last_quarter, "it grows no further");
        assert_eq!(last_quarter, lying, "and stays");
        let alone = highest(&of(&[fault(FaultKind::Claimed, FaultShare::One)]), 0.0, END_S);
        assert!(alone <= honest + 1, "{alone}, {honest} without a lie: it doubles its own share");
    }
}

#[test]
fn clients_that_try_again_do_not_make_the_fleet_grow_without_end() {
    let scenario = scenario(5.0, RAISED);
    let clients = ClientPatience { timeout: s(60), retries: 10, backoff: s(1) };
    let retrying = Scenario { clients: Some(clients), ..scenario.clone() };
    for seed in SEEDS {
        let (once, again) = (run(&scenario, &[], seed), run(&retrying, &[], seed));
        let peak = |run: &Run| f64::from(highest(run, 0.0, END_S));
        let last = |run: &Run| f64::from(highest(run, END_S - 60.0, END_S));
        assert!(peak(&again) <= MAX_FACTOR * peak(&once), "{} {}", peak(&once), peak(&again));
        // With the tries, the load has shown more growth, for which there is a reserve.
        assert!(last(&again) <= 1.3 * last(&once), "{} {}", last(&once), last(&again));
    }
}
