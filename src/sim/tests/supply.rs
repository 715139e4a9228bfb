//! Demand that goes to the next variant where the cheapest has no room, and back when there is: in closed loop.

use std::time::Duration;

use wva_core::model::{Analyzer, Bounds};
use wva_core::units::{Cost, Replicas};
use wva_sim::{
    Controller, LoadShape, Point, RequestSizes, Run, Scenario, Segment, SimVariant, TP1, simulate,
};

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// When nodes are added that have room for every pod: while the demand is low.
const ROOM_FROM: u64 = 5400;
/// When the demand is high for the second time, seconds, and has been for ten minutes.
const SECOND_RISE: f64 = 7800.0;
/// 12 requests/s need five replicas.
const RPS: f64 = 12.0;
const NEEDED: u32 = 5;

/// A cheap variant, two pods of which fit on nodes at first, and one for three times its price; `stages` are requests/s for as many seconds.
fn scenario(stages: &[(f64, u64)]) -> Scenario {
    let variant = |name, cost| SimVariant {
        bounds: Bounds { min: Replicas::ONE, max: Some(Replicas::new(20)) },
        ..SimVariant::new(name, TP1, Cost::new(cost).unwrap())
    };
    let cheap =
        SimVariant { max_scheduled_pods: Some(2), room_from: Some(s(ROOM_FROM)), ..variant("cheap", 1.0) };
    let load = stages.iter().map(|(rps, lasts)| Segment::Hold { rps: *rps, lasts: s(*lasts) });
    let sizes = RequestSizes::uniform(4000.0, 1000.0, 0.1);
    Scenario::new(
        "supply",
        s(12_000),
        LoadShape::new(load.collect()),
        sizes,
        vec![cheap, variant("dear", 3.0)],
    )
}

fn between(run: &Run, from_s: f64, to_s: f64) -> impl Iterator<Item = &Point> {
    run.series.iter().filter(move |point| point.at_s > from_s && point.at_s <= to_s)
}

/// Requested replicas of both, Ready ones and waiting requests every five minutes, for messages of failing tests.
fn timeline(run: &Run) -> Vec<(&[u32], u32, f64)> {
    let points = run.series.iter().filter(|point| point.at_s % 300.0 < 2.0);
    points.map(|point| (&*point.spec_replicas, point.ready, point.waiting)).collect()
}

#[test]
fn what_serves_for_a_higher_price_moves_to_the_cheapest_variant_under_steady_demand() {
    // Pods that take longer to start than a removal waits after an addition were counted as if they served.
    for (seed, start) in [(21, 60), (22, 120), (23, 600)] {
        let mut scenario = scenario(&[(3.0, 600), (RPS, 17_400)]);
        scenario.duration = s(18_000);
        scenario.variants.iter_mut().for_each(|variant| variant.start_up.mean = s(start));
        let run = simulate(&scenario, &Controller::analyzer(Analyzer::Rate), seed, |_| {});
        let timeline = timeline(&run);
        for point in between(&run, 3000.0, 18_000.0) {
            let at = point.at_s;
            assert!(point.ready >= NEEDED, "seed {seed}: below the demand at {at} s: {timeline:?}");
            assert!(point.waiting < 60.0, "seed {seed}: {} wait at {at} s: {timeline:?}", point.waiting);
        }
        // Tries without room come first. They double the wait.
        let has_moved = |point: &Point| point.spec_replicas[1] == 1 && point.spec_replicas[0] >= NEEDED - 1;
        let is_back = between(&run, 15_000.0, 18_000.0).all(has_moved);
        assert!(is_back, "seed {seed}: the dear one still serves: {timeline:?}");
    }
}

#[test]
fn demand_goes_to_the_next_variant_and_to_the_cheapest_again_when_it_has_room() {
    for seed in [11, 12, 13] {
        // The demand is high before there is room for more of the cheap ones and after.
        let scenario = scenario(&[(3.0, 600), (RPS, 3000), (3.0, 3600), (RPS, 4800)]);
        let run = simulate(&scenario, &Controller::analyzer(Analyzer::Rate), seed, |_| {});
        let timeline = timeline(&run);
        for (from_s, to_s) in [(1500.0, 3600.0), (SECOND_RISE, 12_000.0)] {
            for point in between(&run, from_s, to_s) {
                let at = point.at_s;
                assert!(point.ready >= NEEDED, "seed {seed}: below the demand at {at} s: {timeline:?}");
                assert!(point.waiting < 60.0, "seed {seed}: {} wait at {at} s: {timeline:?}", point.waiting);
            }
        }
        let spilt = between(&run, 1500.0, 3600.0).all(|point| point.spec_replicas[1] >= NEEDED - 2);
        assert!(spilt, "seed {seed}: the dear one does not take it: {timeline:?}");
        let is_back = between(&run, SECOND_RISE, 12_000.0).all(|point| point.spec_replicas[0] >= NEEDED - 2);
        assert!(is_back, "seed {seed}: the cheap one does not take it: {timeline:?}");
        for variant in 0..2 {
            let numbers =
                || between(&run, SECOND_RISE + 900.0, 12_000.0).map(|point| point.spec_replicas[variant]);
            let swings = numbers().max().unwrap() - numbers().min().unwrap();
            assert!(swings <= 2, "seed {seed}: {swings} replicas up and down: {timeline:?}");
        }
    }
}
