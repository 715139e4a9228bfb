//! What once went wrong, each under the name of what the product promises instead.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests may fail like tests")]
#![allow(dead_code, reason = "a helper module of several test programs")]

#[path = "support/world.rs"]
mod world;

use world::World;
use wva_core::hpa::{AtZero, Behavior, Counts, Hpa, Kind, MetricTarget, Settings, Tolerance, milli, propose};
use wva_core::units::Replicas;

/// A real HPA that looks at `world` every 15 s, `ticks` times.
fn follow(world: &mut World, ticks: u32) -> Vec<u32> {
    let (min, max) = (Replicas::ONE, Replicas::new(100));
    let settings = Settings { min, max, behavior: Some(Behavior::default()), at_zero: AtZero::Reads };
    let mut hpa = Hpa::new(settings);
    let look = |_| {
        let desired = milli(f64::from(world.number(15)));
        let count = Replicas::new(world.running);
        let counts = Counts { spec: count, status: count, ready: count };
        let target = MetricTarget { kind: Kind::AverageValue, milli: 1000 };
        let proposal = propose(&[desired], target, counts, Tolerance::default());
        world.running = hpa.step(world::at(world.now), count, proposal).get();
        world.running
    };
    (0..ticks).map(look).collect()
}

#[test]
fn a_fleet_of_twelve_grows_and_shrinks_through_the_tolerance_of_a_real_hpa() {
    let mut world = World::new(12);
    world.load = (0.75, 4.0);
    let seen = follow(&mut world, 4);
    assert_eq!(seen[..2], [14, 16], "12 × 1.1 = 13.2 and 14 × 1.1 = 15.4 are swallowed: {seen:?}");
    world.running = 12;
    world.memory = wva_core::Memory::default();
    world.load = (0.1, 0.0);
    let seen = follow(&mut world, 200);
    assert!(seen.contains(&10), "12 × 0.9 = 10.8 is swallowed: {seen:?}");
    assert_eq!(*seen.last().unwrap(), 1, "{seen:?}");
}

#[test]
fn a_bound_within_the_tolerance_is_gone_to_and_not_past() {
    let mut world = World::new(12);
    (world.load, world.max) = ((0.75, 4.0), Some(13));
    assert_eq!(world.number(0), 13);
    let mut world = World::new(12);
    (world.load, world.min) = ((0.1, 0.0), 11);
    assert_eq!(world.number(0), 11);
}

#[test]
fn several_replicas_leave_at_once_only_if_the_others_can_carry_all_their_load() {
    // (0.80 − 0.10) / 0.62 = 1.129: 12/11 = 1.09 may be carried, 12/10 = 1.2 may not.
    let mut world = World::new(12);
    world.load = (0.62, 0.0);
    assert_eq!(world.number(0), 12);
    world.load = (0.58, 0.0);
    assert_eq!(world.number(15), 10);
}

#[test]
fn the_surge_pods_of_a_rolling_update_are_no_replicas_to_step_from() {
    let mut world = World::new(4);
    world.surge = 1;
    assert_eq!(world.number(0), 4);
    for _ in 0..40 {
        world.running = world.number(15);
        assert_eq!(world.running, 4, "no load, no growth");
    }
    world.load = (0.75, 4.0);
    assert_eq!(world.number(15), 5);
    // The pod that the rollout takes away is no spare capacity: 0.5 × 5/3 is too much, 0.5 × 4/3 is not.
    let mut world = World::new(4);
    (world.surge, world.load) = (1, (0.5, 0.0));
    assert_eq!(world.number(0), 4);
    world.surge = 0;
    assert_eq!(world.number(15), 3);
}

#[test]
fn a_pod_of_several_ranks_takes_all_of_them_with_it() {
    // Two pods of four ranks: 0.5 × 8/7 = 0.57 is safe, and 0.5 × 8/4 = 1.0 is not.
    let mut world = World::new(2);
    (world.engines, world.load) = (4, (0.5, 0.0));
    assert_eq!(world.number(0), 2);
    world.load = (0.3, 0.0);
    assert_eq!(world.number(15), 1);
}
