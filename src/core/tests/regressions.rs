//! Defects that were found once, each named by what the product promises instead.

use crate::tests::support::fixture::TestHpa;
use crate::tests::support::prelude::*;
use wva_core::check;
use wva_core::hpa::Behavior;

/// The replicas that a real HPA asks for, which syncs every 15 s, `ticks` times.
fn follow(world: &mut World, ticks: u32) -> Vec<u32> {
    let mut hpa = TestHpa::new(100, Behavior::default());
    let sync = |_| {
        let desired = world.number(15);
        world.running = hpa.sync(world.now, world.running, desired);
        world.running
    };
    (0..ticks).map(sync).collect()
}

#[test]
fn a_fleet_of_twelve_grows_and_shrinks_through_the_tolerance_of_a_real_hpa() {
    let mut world = World::with_load(12, (0.75, 4.0));
    let explanation = World::with_load(12, (0.75, 4.0)).target(0).explanation.to_string();
    assert!(explanation.contains("within an HPA's tolerance of 10 % → 14 replicas"), "{explanation}");
    let replicas = follow(&mut world, 4);
    assert_eq!(replicas[..2], [14, 16], "12 × 1.1 = 13.2 and 14 × 1.1 = 15.4 are swallowed: {replicas:?}");
    world = World { now: world.now, ..World::with_load(12, (0.1, 0.0)) };
    let replicas = follow(&mut world, 200);
    assert!(replicas.contains(&10), "12 × 0.9 = 10.8 is swallowed: {replicas:?}");
    assert_eq!(*replicas.last().unwrap(), 1, "{replicas:?}");
}

#[test]
fn a_bound_within_the_tolerance_is_gone_to_and_not_past() {
    assert_eq!(World { max: Some(13), ..World::with_load(12, (0.75, 4.0)) }.number(0), 13);
    assert_eq!(World { min: 11, ..World::with_load(12, (0.1, 0.0)) }.number(0), 11);
}

#[test]
fn several_replicas_leave_at_once_only_if_the_others_can_carry_all_their_load() {
    // (0.80 − 0.10) / 0.62 = 1.129: 12/11 = 1.09 may be carried, 12/10 = 1.2 may not.
    let mut world = World::with_load(12, (0.62, 0.0));
    assert_eq!(world.number(0), 12);
    world.load = (0.58, 0.0);
    assert_eq!(world.number(15), 10);
}

#[test]
fn the_surge_pods_of_a_rolling_update_are_no_replicas_to_step_from() {
    let mut world = World { surge: 1, ..World::new(4) };
    assert_eq!(world.number(0), 4);
    for _ in 0..40 {
        world.running = world.number(15);
        assert_eq!(world.running, 4, "no load, no growth");
    }
    world.load = (0.75, 4.0);
    assert_eq!(world.number(15), 5);
    // The surge pod, which the rollout deletes, is no spare capacity: 0.5 × 5/3 is too much, 0.5 × 4/3 is not.
    let mut world = World { surge: 1, ..World::with_load(4, (0.5, 0.0)) };
    assert_eq!(world.number(0), 4);
    world.surge = 0;
    assert_eq!(world.number(15), 3);
}

#[test]
fn a_pod_of_several_ranks_takes_all_of_them_with_it() {
    // Two pods of four ranks: 0.5 × 8/7 = 0.57 is safe, and 0.5 × 8/4 = 1.0 is not.
    let mut world = World { engines: 4, ..World::with_load(2, (0.5, 0.0)) };
    assert_eq!(world.number(0), 2);
    world.load = (0.3, 0.0);
    assert_eq!(world.number(15), 1);
}

#[test]
fn a_model_without_wake_up_signal_is_not_scaled_to_zero() {
    let mut world = World { queued: false, load: (0.0, 0.0), ..World::that_may_sleep(60) };
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
    // With a minimum, a person has set it to zero, and the number asks for the minimum as before.
    (world.queued, world.min) = (false, 1);
    assert_eq!(world.number(900), 1);
}

#[test]
fn a_clock_set_back_an_hour_does_not_stop_the_analyzer_for_an_hour() {
    let mut world = World::new(2);
    assert_eq!(world.number(0), 2);
    world.now -= 3600;
    world.load = (0.75, 4.0);
    assert_eq!(world.number(0), 3, "a cycle in the future is due again");
    world.running = 3;
    assert_eq!(world.number(15), 4);
    let group = world.memory.groups.values_mut().next().unwrap();
    group.observed_at = Some(at(world.now + 3600));
    group.variants.or_default("llama").target_since = Some(at(world.now + 3600));
    // The HPA never reaches 4: the time to wait for it starts now, not an hour ahead.
    assert_eq!(world.reason(15), Reason::Transition);
    world.load = (0.5, 1.0);
    assert_eq!(world.number(301), 3);
}

#[test]
fn a_sample_from_the_future_is_ignored() {
    assert_eq!(World::with_load(2, (0.1, 0.0)).number(0), 1, "calm");
    let world = World::with_load(2, (0.1, 0.0));
    let mut snapshot = world.snapshot();
    for engine in engines_mut(&mut snapshot) {
        engine.add(Signal::KvUsage, [61, 3600].map(|ahead| Sample { at: at(ahead), value: 1.0 }));
    }
    let outcome = world.outcome(&snapshot);
    let target = target_of(&outcome, "llama");
    assert_eq!((target.desired.get(), target.evidence), (1, at(-2)), "they are not there");
}

#[test]
fn one_sample_after_a_start_shrinks_nothing_and_may_grow() {
    let mut world = World { samples: 1, ..World::with_load(3, (0.1, 0.0)) };
    assert_eq!(world.number(0), 3);
    let mut shrunk = world.snapshot();
    shrunk.now = at(15);
    let mut decisions = decide(&shrunk, &world.memory, &world.policy).decisions;
    let Verdict::Target(target) = &mut decisions.get_mut(&World::id()).unwrap().verdict else { panic!() };
    target.desired = Replicas::new(2);
    let found = check::check(&shrunk, &world.memory, &world.policy, &decisions);
    assert_eq!(found.first().map(|violation| violation.rule), Some(Rule::NoBlindDecrease));
    world.samples = 3;
    assert_eq!(world.number(30), 3);
    world.samples = 4;
    assert_eq!(world.number(15), 2, "a minute's peaks are known");
    assert_eq!(World { samples: 1, ..World::with_load(3, (0.75, 4.0)) }.number(0), 4);
}

/// `world` with a second variant, none of whose pods serves. `change` adjusts both variants.
fn with_second_variant(
    world: &World,
    name: &str,
    spec: u32,
    change: impl FnOnce(&mut VariantState, &mut VariantState),
) -> Snapshot {
    let mut snapshot = world.snapshot();
    let variants = &mut group_of(&mut snapshot).variants;
    let mut second = variants[0].clone();
    second.variant.id = id(name);
    let (spec, none) = (Replicas::new(spec), Replicas::ZERO);
    second.scale = Some(Scale { spec, current: spec, ready: none });
    second.pods.clear();
    second.variant.bounds = Bounds { min: none, max: None };
    change(&mut variants[0], &mut second);
    variants.push(second);
    snapshot
}

/// The scale object asks for `spec` pods and has counted none.
fn uncounted(spec: u32, ready: u32) -> Option<Scale> {
    Some(Scale { spec: Replicas::new(spec), current: Replicas::ZERO, ready: Replicas::new(ready) })
}

fn remember_promise(snapshot: &Snapshot, memory: Memory, name: &str, target: u32, since: i64) -> Memory {
    let mut memory = observe(snapshot, memory);
    let variant = memory.groups.values_mut().next().unwrap().variants.or_default(name);
    (variant.target, variant.target_since) = (Some(Replicas::new(target)), Some(at(since)));
    memory
}

/// The outcome if `target` replicas of a variant were promised at second `since`.
fn promised_of(world: &World, snapshot: &Snapshot, name: &str, target: u32, since: i64) -> Outcome {
    let memory = remember_promise(snapshot, Memory::default(), name, target, since);
    let outcome = decide(snapshot, &memory, &world.policy);
    assert_eq!(outcome.report.violations, []);
    outcome
}

#[test]
fn a_withdrawn_number_that_is_published_again_is_waited_for_again() {
    let mut world = World { max: Some(1), ..World::with_load(1, (0.9, 6.0)) };
    world.policy.global.default.stability.down_window = Seconds::whole(120);
    let snapshot = with_second_variant(&world, "sleeper", 0, |_, _| {});
    let first = promised_of(&world, &snapshot, "sleeper", 6, -1200);
    let second = decide(&snapshot, &first.memory, &world.policy);
    let desired = |outcome: &Outcome| target_of(outcome, "sleeper").desired.get();
    assert_eq!((desired(&first), desired(&second)), (6, 6));
}

#[test]
fn a_role_whose_pods_do_not_serve_yet_keeps_its_model_awake() {
    let mut world = World { load: (0.0, 0.0), ..World::that_may_sleep(60) };
    let mut memory = Memory::default();
    for now in [0, 100, 200] {
        world.now = now;
        let snapshot = with_second_variant(&world, "decode", 1, |first, second| {
            (first.variant.role, second.variant.role) = (Role::Prefill, Role::Decode);
        });
        memory = remember_promise(&snapshot, memory, "decode", 6, 0);
        let outcome = decide(&snapshot, &memory, &world.policy);
        assert_eq!(outcome.report.violations, []);
        assert_eq!(target_of(&outcome, "decode").desired.get(), 6);
        memory = outcome.memory;
    }
}

#[test]
fn the_replica_kept_of_a_promise_nobody_followed_is_no_second_step() {
    let world = World::with_load(3, (0.1, 0.0));
    // Twelve were promised long ago, and the scale object has counted none of them so far.
    let snapshot = with_second_variant(&world, "uncounted", 12, |first, second| {
        (second.scale, second.pods) = (uncounted(12, 0), first.pods[..1].to_vec());
    });
    let outcome = promised_of(&world, &snapshot, "uncounted", 12, -1200);
    assert_eq!(numbers_of(&outcome), [2, 1], "one step, and one that stays");
}

#[test]
fn what_is_held_of_a_promise_for_what_runs_is_no_step() {
    let world = World::with_load(9, (0.62, 0.0));
    // The scale object counts none of the nine pods, and nothing has followed a promise of 21.
    let mut snapshot = world.snapshot();
    group_of(&mut snapshot).variants[0].scale = uncounted(1, 9);
    let outcome = promised_of(&world, &snapshot, "llama", 21, -1200);
    let target = target_of(&outcome, "llama");
    assert_eq!(target.desired.get(), 7, "9 × 0.62 = 5.58 of 0.9 × 7 = 6.3: {}", target.explanation);
}

#[test]
fn replicas_of_a_variant_without_a_number_replace_none_that_another_loses() {
    let world = World::by(Analyzer::Threshold, 2, (0.1, 1.0));
    // The second runs outside its bounds, and nothing else is known about it.
    let snapshot = with_second_variant(&world, "unknown", 4, |first, second| {
        second.variant.bounds.max = Some(Replicas::ZERO);
        // Each pod of the first runs one request, its maximum, and another one waits.
        let engine = EngineParameters { max_sequences: 1, ..EngineParameters::defaults(Engine::Vllm) };
        first.template.engine = Some(engine);
    });
    let outcome = decide(&snapshot, &Memory::default(), &world.policy);
    assert_eq!(outcome.report.violations, []);
    let target = target_of(&outcome, "llama");
    assert_eq!(target.desired.get(), 2, "{}", target.explanation);
    assert!(target.explanation.to_string().contains("2 instead of 1"), "{}", target.explanation);
}

#[test]
fn the_replica_that_keeps_a_model_awake_is_not_given_to_another_variant() {
    let mut world = World { running: 2, load: (0.9, 6.0), ..World::that_may_sleep(60) };
    world.policy.limits.spend = Some(Cost::new(30.0).unwrap());
    // Its zero has been published, but its scale object asks for a pod again, which does not exist so far.
    let snapshot = with_second_variant(&world, "woken", 1, |_, woken| {
        (woken.variant.role, woken.scale) = (Role::Decode, uncounted(1, 0));
    });
    let outcome = promised_of(&world, &snapshot, "woken", 0, -20);
    assert_eq!(numbers_of(&outcome), [2, 1], "three replicas of 10 each are all that 30 buys");
}

#[test]
fn an_order_for_a_sleeping_variant_is_kept_while_the_queue_is_not_empty() {
    let mut snapshot = World::new(9).snapshot();
    let group = group_of(&mut snapshot);
    let mut serving = group.variants.remove(0);
    serving.variant.bounds = Bounds { min: Replicas::ZERO, max: Some(Replicas::ONE) };
    // The nine pods show nothing, and the scheduler's queue does not become empty.
    for pod in &mut serving.pods {
        (pod.created, pod.ready_since) = (at(0), Some(at(0)));
        pod.engines = [("0".into(), Signals::default())].into_iter().collect();
    }
    let [mut asleep, mut prefill] = ["asleep", "prefill"].map(|name| variant_state(name, Vec::new()));
    (asleep.variant.bounds, prefill.variant.bounds.min) =
        (Bounds { min: Replicas::ZERO, max: None }, Replicas::ZERO);
    prefill.variant.role = Role::Prefill;
    group.variants = vec![asleep, prefill, serving];
    group.scheduler = Signals::default();
    group.scheduler.add(Signal::SchedulerQueueSize, [61, 1].map(|ago| Sample { at: at(-ago), value: 3.0 }));
    let (target, target_since) = (Some(Replicas::ONE), Some(at(-301)));
    let ordered = VariantMemory { target, target_since, ..VariantMemory::default() };
    let mut memory = Memory::default();
    memory.groups.entry(group_id()).or_default().variants.insert("asleep".into(), ordered);
    for read in 1..=3 {
        let outcome = evaluate(&snapshot, memory, &Policy::default());
        let target = target_of(&outcome, "asleep");
        assert_eq!(target.desired, Replicas::ONE, "at read {read}: {}", target.explanation);
        let explanation = target.explanation.to_string();
        assert!(explanation.contains("0 of 1 ordered replicas run"), "{explanation}");
        memory = outcome.memory;
    }
    let group = group_of(&mut snapshot);
    group.scheduler = Signals::default();
    group.scheduler.add(Signal::SchedulerQueueSize, [Sample { at: at(-1), value: 0.0 }]);
    let outcome = evaluate(&snapshot, memory, &Policy::default());
    let target = target_of(&outcome, "asleep");
    assert_eq!(target.desired, Replicas::ZERO, "{}", target.explanation);
}
