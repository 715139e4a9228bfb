//! What once went wrong, each under the name of what the product promises instead.

use crate::support::fixture;
use crate::support::fixture::World;
use wva_core::decision::{Cause, Decision, Reason, Verdict};
use wva_core::hpa::{AtZero, Behavior, Counts, Hpa, Kind, MetricTarget, Settings, Tolerance, milli, propose};
use wva_core::memory::VariantMemory;
use wva_core::model::{Analyzer, Bounds, Role, ScaleToZero};
use wva_core::snapshot::{Engine, EngineParameters, Sample, Scale, Signal, Signals};
use wva_core::units::{Cost, Replicas, Seconds};
use wva_core::{GroupId, Memory, Policy, Snapshot, VariantId, check, decide, observe};

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
        world.running = hpa.step(fixture::at(world.now), count, proposal).get();
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
    world.memory = Memory::default();
    world.load = (0.1, 0.0);
    let seen = follow(&mut world, 200);
    assert!(seen.contains(&10), "12 × 0.9 = 10.8 is swallowed: {seen:?}");
    assert_eq!(*seen.last().unwrap(), 1, "{seen:?}");
}

#[test]
fn a_step_of_several_replicas_says_why() {
    let mut world = World::new(12);
    world.load = (0.75, 4.0);
    let Verdict::Target(target) = world.evaluate(0) else { panic!("no number") };
    let explanation = target.explanation.to_string();
    assert!(explanation.contains("within an HPA's tolerance of 10 % → 14 replicas"), "{explanation}");
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

#[test]
fn a_model_that_nothing_can_wake_does_not_sleep_and_at_zero_says_so() {
    let mut world = World::new(1);
    world.min = 0;
    world.queued = false;
    world.policy.global.default.scale_to_zero =
        Some(ScaleToZero { enabled: true, retention: Seconds::whole(60) });
    world.load = (0.0, 0.0);
    for _ in 0..40 {
        assert_eq!(world.number(15), 1, "no queue to wake it");
    }
    world.queued = true;
    while world.number(15) > 0 {
        assert!(world.now < 900, "never idle");
    }
    world.running = 0;
    assert_eq!(world.reason(15), Reason::Steady);
    world.queued = false;
    assert_eq!(world.reason(15), Reason::MetricsMissing);
    assert_eq!(world.number(280), 0, "held");
    let Verdict::Unknown(unknown) = world.evaluate(15) else { panic!("held for ever") };
    assert_eq!(unknown.cause, Cause::TooOld);
    assert!(unknown.explanation.to_string().contains("nothing can wake one"), "{}", unknown.explanation);
    world.queued = true;
    assert_eq!(world.number(15), 0);
    // With a minimum the zero is a person's, and the number asks for the minimum as before.
    (world.queued, world.min) = (false, 1);
    assert_eq!(world.number(900), 1);
}

#[test]
fn a_clock_set_back_an_hour_does_not_stop_the_analyzer_for_an_hour() {
    let mut world = World::new(2);
    assert_eq!(world.number(0), 2);
    world.now -= 3600;
    world.load = (0.75, 4.0);
    assert_eq!(world.number(0), 3, "a look in the future is due again");
    world.running = 3;
    assert_eq!(world.number(15), 4);
    let group = world.memory.groups.values_mut().next().unwrap();
    group.observed_at = Some(fixture::at(world.now + 3600));
    group.variants.or_default("llama").target_since = Some(fixture::at(world.now + 3600));
    // The HPA never comes to 4: the patience runs from now, not from an hour ahead.
    assert_eq!(world.reason(15), Reason::Transition);
    world.load = (0.5, 1.0);
    assert_eq!(world.number(301), 3);
}

#[test]
fn a_sample_from_the_future_is_a_bad_sample() {
    let mut world = World::new(2);
    world.load = (0.1, 0.0);
    assert_eq!(world.number(0), 1, "calm");
    let mut world = World::new(2);
    world.load = (0.1, 0.0);
    let mut snapshot = world.snapshot();
    let group = snapshot.groups.values_mut().next().unwrap();
    for replica in group.variants.iter_mut().flat_map(|one| &mut one.replicas) {
        let signals = replica.engines.get_mut("0").unwrap();
        let ahead = |seconds| Sample { at: fixture::at(world.now + seconds), value: 1.0 };
        signals.add(Signal::KvUsage, [ahead(61), ahead(3600)]);
    }
    let memory = observe(&snapshot, world.memory.clone());
    let decisions = decide(&snapshot, &memory, &world.policy).decisions;
    let Verdict::Target(target) = &decisions[&World::id()].verdict else { panic!("no number") };
    assert_eq!((target.desired.get(), target.evidence), (1, fixture::at(-2)), "they are not there");
}

#[test]
fn one_sample_after_a_start_shrinks_nothing_and_may_grow() {
    let mut world = World::new(3);
    world.load = (0.1, 0.0);
    world.samples = 1;
    assert_eq!(world.number(0), 3);
    let mut shrunk = world.snapshot();
    shrunk.now = fixture::at(15);
    let mut decisions = decide(&shrunk, &world.memory, &world.policy).decisions;
    let Verdict::Target(target) = &mut decisions.get_mut(&World::id()).unwrap().verdict else { panic!() };
    target.desired = Replicas::new(2);
    let found = check::check(&shrunk, &world.memory, &world.policy, &decisions);
    assert_eq!(found.first().map(|one| one.rule), Some(wva_core::report::Rule::NoBlindDecrease));
    world.samples = 3;
    assert_eq!(world.number(30), 3);
    world.samples = 4;
    assert_eq!(world.number(15), 2, "a minute's peaks are known");
    let mut world = World::new(3);
    (world.load, world.samples) = ((0.75, 4.0), 1);
    assert_eq!(world.number(0), 4);
}

/// `world` with a second variant beside it, of which nothing serves.
fn beside(world: &World, name: &str, wanted: u32) -> Snapshot {
    let mut snapshot = world.snapshot();
    let variants = &mut snapshot.groups.values_mut().next().unwrap().variants;
    let mut second = variants[0].clone();
    second.variant.id = VariantId::new("default", name);
    let (wanted, none) = (Replicas::new(wanted), Replicas::ZERO);
    second.scale = Some(Scale { spec: wanted, current: wanted, ready: none });
    second.replicas.clear();
    second.variant.bounds = Bounds { min: none, max: None };
    variants.push(second);
    snapshot
}

fn promised(snapshot: &Snapshot, memory: Memory, name: &str, target: u32, since: i64) -> Memory {
    let mut memory = observe(snapshot, memory);
    let one = memory.groups.values_mut().next().unwrap().variants.or_default(name);
    (one.target, one.target_since) = (Some(Replicas::new(target)), Some(fixture::at(since)));
    memory
}

#[test]
fn a_promise_that_was_given_up_and_is_wanted_again_is_waited_for_again() {
    let mut world = World::new(1);
    (world.load, world.max) = ((0.9, 6.0), Some(1));
    world.policy.global.default.stability.down_window = Seconds::whole(120);
    let snapshot = beside(&world, "sleeper", 0);
    let memory = promised(&snapshot, Memory::default(), "sleeper", 6, -1200);
    let sleeper = VariantId::new("default", "sleeper");
    let mut outcome = decide(&snapshot, &memory, &world.policy);
    let first = outcome.decisions.remove(&sleeper).unwrap();
    let second = decide(&snapshot, &outcome.memory, &world.policy).decisions.remove(&sleeper).unwrap();
    let number =
        |decision| if let Verdict::Target(target) = decision { Some(target.desired.get()) } else { None };
    assert_eq!((number(first.verdict), number(second.verdict)), (Some(6), Some(6)));
}

#[test]
fn a_role_whose_pods_do_not_serve_yet_keeps_its_model_awake() {
    let mut world = World::new(1);
    (world.min, world.load) = (0, (0.0, 0.0));
    world.policy.global.default.scale_to_zero =
        Some(ScaleToZero { enabled: true, retention: Seconds::whole(60) });
    let mut memory = Memory::default();
    for now in [0, 100, 200] {
        world.now = now;
        let mut snapshot = beside(&world, "decode", 1);
        let variants = &mut snapshot.groups.values_mut().next().unwrap().variants;
        (variants[0].variant.role, variants[1].variant.role) = (Role::Prefill, Role::Decode);
        memory = promised(&snapshot, memory, "decode", 6, 0);
        let outcome = decide(&snapshot, &memory, &world.policy);
        assert_eq!(outcome.report.violations, []);
        let decision = &outcome.decisions[&VariantId::new("default", "decode")];
        let Verdict::Target(target) = &decision.verdict else { panic!("{decision:?}") };
        assert_eq!(target.desired.get(), 6);
        memory = outcome.memory;
    }
}

#[test]
fn the_replica_that_is_kept_of_a_promise_nobody_followed_was_once_taken_for_a_second_step() {
    let mut world = World::new(3);
    world.load = (0.1, 0.0);
    // Twelve were promised long ago, and the scale object has not counted one of them so far.
    let mut snapshot = beside(&world, "uncounted", 12);
    let variants = &mut snapshot.groups.values_mut().next().unwrap().variants;
    variants[1].scale =
        Some(Scale { spec: Replicas::new(12), current: Replicas::ZERO, ready: Replicas::ZERO });
    variants[1].replicas = variants[0].replicas[..1].to_vec();
    let memory = promised(&snapshot, Memory::default(), "uncounted", 12, -1200);
    let outcome = decide(&snapshot, &memory, &world.policy);
    assert_eq!(outcome.report.violations, []);
    let number = |decision: &Decision| match &decision.verdict {
        Verdict::Target(target) => target.desired.get(),
        Verdict::Unknown(unknown) => panic!("{}", unknown.explanation),
    };
    let numbers: Vec<u32> = outcome.decisions.values().map(number).collect();
    assert_eq!(numbers, [2, 1], "one step, and one that stays");
}

#[test]
fn what_is_held_of_a_promise_for_what_runs_was_once_taken_for_a_step() {
    let mut world = World::new(9);
    world.load = (0.62, 0.0);
    // The scale object counts none of the nine pods, and nobody has followed a promise of 21.
    let mut snapshot = world.snapshot();
    let scale = &mut snapshot.groups.values_mut().next().unwrap().variants[0].scale;
    *scale = Some(Scale { spec: Replicas::ONE, current: Replicas::ZERO, ready: Replicas::new(9) });
    let memory = promised(&snapshot, Memory::default(), "llama", 21, -1200);
    let outcome = decide(&snapshot, &memory, &world.policy);
    assert_eq!(outcome.report.violations, []);
    let Verdict::Target(target) = &outcome.decisions[&World::id()].verdict else { panic!("no number") };
    assert_eq!(target.desired.get(), 7, "9 × 0.62 = 5.58 of 0.9 × 7 = 6.3: {}", target.explanation);
}

#[test]
fn replicas_of_a_variant_without_a_number_once_stood_for_those_that_another_loses() {
    let mut world = World::new(2);
    (world.load, world.policy.global.default.analyzer) = ((0.1, 1.0), Analyzer::Threshold);
    // Of the second nothing is known but that it runs, outside its bounds.
    let mut snapshot = beside(&world, "unknown", 4);
    let variants = &mut snapshot.groups.values_mut().next().unwrap().variants;
    variants[1].variant.bounds.max = Some(Replicas::ZERO);
    // Each pod of the first runs the one request that it can, and another one waits.
    let engine = EngineParameters { max_sequences: 1, ..EngineParameters::defaults(Engine::Vllm) };
    variants[0].template.engine = Some(engine);
    let outcome = decide(&snapshot, &Memory::default(), &world.policy);
    assert_eq!(outcome.report.violations, []);
    let Verdict::Target(target) = &outcome.decisions[&World::id()].verdict else { panic!("no number") };
    assert_eq!(target.desired.get(), 2, "{}", target.explanation);
    assert!(target.explanation.to_string().contains("2 instead of 1"), "{}", target.explanation);
}

#[test]
fn the_replica_that_keeps_a_model_awake_is_not_given_to_another_variant() {
    let mut world = World::new(2);
    (world.min, world.load) = (0, (0.9, 6.0));
    world.policy.global.default.scale_to_zero =
        Some(ScaleToZero { enabled: true, retention: Seconds::whole(60) });
    world.policy.limits.spend = Some(Cost::new(30.0).unwrap());
    // Its zero has been published, yet somebody asks for a pod again, which does not exist so far.
    let mut snapshot = beside(&world, "woken", 1);
    let woken = &mut snapshot.groups.values_mut().next().unwrap().variants[1];
    woken.variant.role = Role::Decode;
    woken.scale = Some(Scale { spec: Replicas::ONE, current: Replicas::ZERO, ready: Replicas::ZERO });
    let memory = promised(&snapshot, Memory::default(), "woken", 0, -20);
    let outcome = decide(&snapshot, &memory, &world.policy);
    let number = |decision: &Decision| match &decision.verdict {
        Verdict::Target(target) => target.desired.get(),
        Verdict::Unknown(unknown) => panic!("{}", unknown.explanation),
    };
    let numbers: Vec<u32> = outcome.decisions.values().map(number).collect();
    assert_eq!(numbers, [2, 1], "three replicas of 10 each are all that 30 buys");
}

#[test]
fn an_order_for_a_sleeping_variant_that_did_not_come_was_forgotten_by_one_read_and_given_again_by_the_next() {
    let mut snapshot = World::new(9).snapshot();
    let group = snapshot.groups.values_mut().next().unwrap();
    let mut serving = group.variants.remove(0);
    serving.variant.bounds = Bounds { min: Replicas::ZERO, max: Some(Replicas::ONE) };
    let mut sleeping = serving.clone();
    (sleeping.variant.id.name, sleeping.variant.bounds.max) = ("asleep".into(), None);
    let none = Replicas::ZERO;
    (sleeping.replicas, sleeping.scale) = (vec![], Some(Scale { spec: none, current: none, ready: none }));
    let mut prefill = sleeping.clone();
    (prefill.variant.id.name, prefill.variant.role) = ("prefill".into(), Role::Prefill);
    // Nobody knows what the nine pods do, and the scheduler's queue does not become empty.
    for replica in &mut serving.replicas {
        (replica.created, replica.ready_since) = (snapshot.now, Some(snapshot.now));
        replica.engines = [("0".into(), Signals::default())].into_iter().collect();
    }
    group.variants = vec![sleeping, prefill, serving];
    group.scheduler = Signals::default();
    let held = [61, 1].map(|ago| Sample { at: fixture::at(-ago), value: 3.0 });
    group.scheduler.add(Signal::SchedulerQueueSize, held);
    let (target, target_since) = (Some(Replicas::ONE), Some(fixture::at(-301)));
    let ordered = VariantMemory { target, target_since, ..VariantMemory::default() };
    let mut memory = Memory::default();
    memory.groups.entry(GroupId::new("default", "m")).or_default().variants.insert("asleep".into(), ordered);
    for read in 1..=3 {
        let outcome = decide(&snapshot, &observe(&snapshot, memory), &Policy::default());
        let Verdict::Target(target) = &outcome.decisions[&VariantId::new("default", "asleep")].verdict else {
            panic!("no number at read {read}")
        };
        assert_eq!(outcome.report.violations, []);
        assert_eq!(target.desired, Replicas::ONE, "at read {read}: {}", target.explanation);
        assert!(
            target.explanation.to_string().contains("0 of 1 ordered replicas run"),
            "{}",
            target.explanation
        );
        memory = outcome.memory;
    }
    // It is kept for as long as the queue does not become empty.
    let group = snapshot.groups.values_mut().next().unwrap();
    group.scheduler = Signals::default();
    group.scheduler.add(Signal::SchedulerQueueSize, [Sample { at: fixture::at(-1), value: 0.0 }]);
    let outcome = decide(&snapshot, &observe(&snapshot, memory), &Policy::default());
    let Verdict::Target(target) = &outcome.decisions[&VariantId::new("default", "asleep")].verdict else {
        panic!("no number")
    };
    assert_eq!(target.desired, Replicas::ZERO, "{}", target.explanation);
}
