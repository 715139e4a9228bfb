//! The scorecard of predictions, of fleets in closed loop: what it says of loads that can be forecast and of those that cannot.

use crate::tests::support::closed_form_fleet::{ClosedFormFleet, Workload};
use crate::tests::support::prelude::*;
use wva_core::report::{PredictionError, Scorecard};

fn scorecard(fleet: &ClosedFormFleet) -> Scorecard {
    fleet.memory.groups[&group_id()].scorecard("llama", Role::Both).unwrap()
}

fn demand_error(fleet: &ClosedFormFleet) -> PredictionError {
    scorecard(fleet).demand.error.unwrap()
}

#[test]
fn a_load_that_stays_is_forecast_and_one_that_jumps_is_not() {
    let even = Workload { even: true, ..Workload::default() };
    let mut fleet = ClosedFormFleet::new(even, 3, 1);
    fleet.run(6.0, 3600);
    let card = scorecard(&fleet);
    // Of 150 s ahead, four are pending, and the next is held 68 s after the last.
    assert!((45..=60).contains(&card.demand.matched) && card.demand.unmatched == 0, "{card:?}");
    let PredictionError { mean_absolute, bias } = demand_error(&fleet);
    assert!(mean_absolute < 0.01 && bias.abs() < 0.01, "{card:?}");

    let mut fleet = ClosedFormFleet::new(even, 3, 1);
    (0..6).for_each(|_| {
        fleet.run(2.0, 300);
        fleet.run(8.0, 300);
    });
    assert!(demand_error(&fleet).mean_absolute > 0.2, "{:?}", scorecard(&fleet));
}

/// Nobody can forecast chance: the mean amount of a normal error is 0.8 of its standard deviation, here √(6/60) of 6 requests/s.
#[test]
fn the_error_of_a_poisson_load_is_that_of_chance() {
    let mut errors = Vec::new();
    for seed in 1..=10 {
        let mut fleet = ClosedFormFleet::new(Workload::default(), 3, seed);
        fleet.run(6.0, 3600);
        errors.push(demand_error(&fleet).mean_absolute);
    }
    let mean = errors.iter().sum::<f64>() / 10.0;
    let chance = 0.8 / (6.0_f64 * 60.0).sqrt();
    assert!((0.8 * chance..2.0 * chance).contains(&mean), "{mean} and by chance {chance}");
}

#[test]
fn an_outage_is_no_error_and_its_forecasts_are_dropped() {
    let mut fleet = ClosedFormFleet::new(Workload { even: true, ..Workload::default() }, 3, 1);
    fleet.run(6.0, 1800);
    let before = scorecard(&fleet);
    fleet.source = SourceHealth::Down { cause: "connection refused".into() };
    fleet.run(6.0, 900);
    fleet.source = SourceHealth::Complete;
    fleet.run(6.0, 900);
    let after = scorecard(&fleet);
    assert!(after.demand.unmatched > 0 && after.demand.matched > before.demand.matched, "{after:?}");
    assert!(demand_error(&fleet).mean_absolute < 0.02, "{after:?}");
}

#[test]
fn what_a_saturated_replica_carries_is_compared_with_the_claim_made_before() {
    let mut fleet = ClosedFormFleet::new(Workload::default(), 1, 3);
    fleet.bounds.max = Some(Replicas::ONE);
    fleet.run(1.5, 1200);
    assert_eq!(scorecard(&fleet).capacity.matched, 0, "nothing waits");
    fleet.run(5.0, 600);
    let card = scorecard(&fleet);
    let error = card.capacity.error.unwrap();
    assert!(card.capacity.matched >= 3 && error.mean_absolute < 0.15, "{card:?}");
}

#[test]
fn each_start_is_compared_with_what_was_expected_of_it() {
    let mut fleet = ClosedFormFleet::new(Workload::default(), 2, 7);
    fleet.run(2.0, 600);
    fleet.run(8.0, 900);
    let first = scorecard(&fleet).start_up;
    let started = fleet.pods.len() - 2;
    assert_eq!(first.matched as usize, started, "{first:?}");
    let bias = first.error.unwrap().bias;
    assert!((120.0 / 95.0 - 1.0 - bias).abs() < 0.2, "120 s are expected before a start was seen: {first:?}");
    assert!(bias > 0.0);
}

#[test]
fn nothing_is_left_of_a_withdrawn_model_and_a_jump_of_the_clock_harms_nothing() {
    let mut fleet = ClosedFormFleet::new(Workload { even: true, ..Workload::default() }, 3, 1);
    fleet.run(6.0, 1800);
    let before = scorecard(&fleet);
    let mut back = fleet.clone();
    back.now -= 3600;
    back.pods.iter_mut().for_each(|pod| pod.forget_samples());
    back.run(6.0, 1800);
    let after = scorecard(&back);
    assert!(after.demand.unmatched > before.demand.unmatched, "{after:?}");
    assert!(demand_error(&back).mean_absolute < 0.02, "{after:?}");

    let mut snapshot = fleet.snapshot();
    snapshot.groups.clear();
    let outcome = evaluate(&snapshot, fleet.memory.clone(), &fleet.policy);
    assert!(!outcome.memory.groups.contains_key(&group_id()));
}

#[test]
fn sentences_say_it_in_plain_english() {
    let mut fleet = ClosedFormFleet::new(Workload { even: true, ..Workload::default() }, 3, 1);
    fleet.run(6.0, 3600);
    let mut card = scorecard(&fleet);
    card.demand.matched = 40;
    card.demand.error = Some(PredictionError { mean_absolute: 0.07, bias: -0.02 });
    card.seconds_ahead = Some(90.0);
    card.capacity.matched = 2;
    card.capacity.error = Some(PredictionError { mean_absolute: 0.02, bias: 0.02 });
    card.start_up.matched = 1;
    card.start_up.error = Some(PredictionError { mean_absolute: 0.26, bias: 0.26 });
    let sentences: Vec<String> =
        card.sentences().iter().map(|(name, text)| format!("{name}: {text}")).collect();
    let expected = [
        "demand: Forecasts of demand 90 s ahead were off by 7 % on average over 40 forecasts (2 % too low)",
        "capacity: Claimed capacity of saturated engines was off by 2 % on average over 2 comparisons (2 % too high)",
        "start-up: Expected start-up times were off by 26 % on average over 1 start (26 % too long)",
    ];
    assert_eq!(sentences, expected);
    assert!(Scorecard::default().sentences().is_empty());
}
