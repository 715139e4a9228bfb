//! A variant through time: cycles, reads, an HPA that follows, scaling to and from zero.

use crate::tests::support::fixture::TestHpa;
use crate::tests::support::prelude::*;
use wva_core::check;
use wva_core::hpa::Behavior;

#[test]
fn a_hundred_reads_move_a_number_as_far_as_a_single_read() {
    let mut world = World::with_load(2, (0.75, 4.0));
    assert_eq!(world.number(0), 3);
    for _ in 0..100 {
        assert_eq!(world.number(0), 3);
    }
    assert_eq!(world.reason(5), Reason::ScaleUp, "the reason of the last cycle stands until the next");
    assert_eq!(world.reason(10), Reason::Transition);
    world.running = 3;
    assert_eq!(world.number(14), 3, "not before the cycle is over");
    assert_eq!(world.number(1), 4);
}

#[test]
fn a_real_hpa_follows_up_and_down_and_settles() {
    let mut world = World::new(1);
    let mut hpa = TestHpa::new(10, Behavior::default());
    let mut replicas = Vec::new();
    for tick in 0..160 {
        // Load for four replicas, then for one.
        let total: f64 = if tick < 40 { 2.0 } else { 0.4 };
        world.load = ((total / f64::from(world.running)).min(1.0), 0.0);
        let desired = world.number(15);
        world.running = hpa.sync(world.now, world.running, desired);
        replicas.push(world.running);
    }
    assert_eq!(replicas[39], 3, "2.0 / 3 = 0.67 leaves more than 0.10 of 0.80: {replicas:?}");
    assert_eq!(*replicas.last().unwrap(), 1, "{replicas:?}");
    assert!(
        replicas.windows(2).all(|pair| pair[0].abs_diff(pair[1]) <= 1),
        "one step at a time: {replicas:?}"
    );
}

#[test]
fn an_idle_model_sleeps_and_a_waiting_request_wakes_it() {
    let mut world = World::that_may_sleep(60);
    assert_eq!(world.number(15), 1);
    (world.load, world.requests) = ((0.0, 0.0), 1.0);
    let mut slept_after = 0;
    while world.number(15) > 0 {
        slept_after += 15;
        assert!(slept_after < 200);
    }
    assert!(slept_after >= 45, "after {slept_after} s");
    world.running = 0;
    assert_eq!(world.number(300), 0, "asleep is measured anew at every evaluation");
    world.held = 2.0;
    assert_eq!(world.reason(5), Reason::ScaleFromZero);
    assert_eq!(world.number(5), 1);
}

#[test]
fn a_gap_in_the_measurements_starts_the_idle_clock_again() {
    let mut world = World::that_may_sleep(600);
    (world.load, world.requests) = ((0.0, 0.0), 1.0);
    for _ in 0..30 {
        assert_eq!(world.number(15), 1);
    }
    world.source = SourceHealth::Down { cause: "refused".into() };
    let _ = world.evaluate(15);
    world.source = SourceHealth::Complete;
    for _ in 0..39 {
        assert_eq!(world.number(15), 1, "the clock began after the gap");
    }
    assert_eq!(world.number(30), 0);
}

#[test]
fn a_restart_that_missed_requests_does_not_trust_the_old_idle_clock() {
    let mut world = World::that_may_sleep(600);
    (world.load, world.requests) = ((0.0, 0.0), 1.0);
    let _ = world.evaluate(0);
    // One hour without us, in which requests came and went.
    world.requests = 900.0;
    assert_eq!(world.number(3600), 1);
}

#[test]
fn the_source_comes_back_and_the_number_goes_on_from_where_it_was() {
    let mut world = World::new(2);
    assert_eq!(world.number(0), 2);
    world.source = SourceHealth::Down { cause: "Prometheus refused".into() };
    assert_eq!(world.reason(290), Reason::SourceDown);
    let Verdict::Unknown(unknown) = world.evaluate(20) else { panic!("held for ever") };
    assert_eq!(unknown.cause, Cause::TooOld);
    assert!(unknown.explanation.to_string().contains("Prometheus refused"), "{}", unknown.explanation);
    assert_eq!(unknown.since, at(-2), "since the last sample it rested on");
    world.source = SourceHealth::Complete;
    world.load = (0.75, 4.0);
    assert_eq!(world.number(5), 3);
}

/// The first rule that is broken when `desired` is what is decided.
fn broken_rule(world: &World, desired: u32) -> Option<Rule> {
    let snapshot = world.snapshot();
    let mut decisions = decide(&snapshot, &world.memory, &world.policy).decisions;
    let decision = decisions.get_mut(&World::id()).unwrap();
    let Verdict::Target(target) = &mut decision.verdict else { panic!("no number") };
    target.desired = Replicas::new(desired);
    let found = check::check(&snapshot, &world.memory, &world.policy, &decisions);
    found.first().map(|violation| violation.rule)
}

#[test]
fn the_checker_refuses_what_breaks_a_rule() {
    let mut world = World::new(3);
    assert_eq!(world.number(0), 3);
    world.now += 15;
    let broken = [3, 4, 2, 5, 1, 0].map(|desired| broken_rule(&world, desired));
    let one_step = Some(Rule::OneStep);
    assert_eq!(broken, [None, None, None, one_step, one_step, Some(Rule::WithinBounds)]);
    world.min = 0;
    assert_eq!(broken_rule(&world, 0), Some(Rule::ZeroOnlyWhenIdle));
    world.now -= 10;
    assert_eq!(broken_rule(&world, 4), Some(Rule::OneStep), "between two cycles");
    world.max = Some(3);
    world.now += 10;
    assert_eq!(broken_rule(&world, 4), Some(Rule::WithinBounds));
    world.source = SourceHealth::Partial { warnings: vec!["cut".into()] };
    assert_eq!(broken_rule(&world, 2), Some(Rule::NoBlindDecrease));
    let snapshot = world.snapshot();
    let missing = check::check(&snapshot, &world.memory, &world.policy, &BTreeMap::new());
    assert_eq!(missing.first().map(|violation| violation.rule), Some(Rule::OneDecision));
}

#[test]
fn a_limit_cuts_published_replicas_that_do_not_run_in_steps() {
    let mut world = World::new(6);
    assert_eq!(world.number(0), 5);
    (world.now, world.running) = (world.now + 15, 1);
    let two_steps = Some(Rule::OneStep);
    assert_eq!([3, 8].map(|desired| broken_rule(&world, desired)), [two_steps; 2], "no limit, no reason");
    world.policy.limits.spend = Some(Cost::new(30.0).unwrap());
    assert_eq!([3, 8].map(|desired| broken_rule(&world, desired)), [None, two_steps]);
}

#[test]
fn memory_is_forgotten_with_its_variant_and_survives_a_restart() {
    let mut world = World::new(2);
    assert_eq!(world.number(0), 2);
    let text = serde_json::to_string(&world.memory).unwrap();
    assert_eq!(serde_json::from_str::<Memory>(&text).unwrap(), world.memory);
    let mut nothing = world.snapshot();
    (nothing.now, nothing.groups) = (at(60), BTreeMap::new());
    assert_eq!(decide(&nothing, &world.memory, &world.policy).memory, Memory::default());
}

#[test]
fn an_idle_clock_that_was_not_observed_just_now_is_not_believed() {
    let mut world = World::that_may_sleep(60);
    assert_eq!(world.number(0), 1);
    let group = world.memory.groups.values_mut().next().unwrap();
    group.idle_since = Some(at(-600));
    world.now += 15;
    let outcome = decide(&world.snapshot(), &world.memory, &world.policy);
    assert_eq!(outcome.report.violations, []);
    assert_eq!(numbers_of(&outcome), [1]);
}
