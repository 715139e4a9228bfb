//! What once froze or shrank a fleet that had no room left, each under the name of what the product promises instead.

use crate::support::fixture;
use jiff::SignedDuration;
use wva_core::decision::{Reason, Target, Verdict};
use wva_core::memory::{GroupMemory, VariantMemory};
use wva_core::model::Analyzer;
use wva_core::report::Relief;
use wva_core::snapshot::{Phase, Replica, Sample, Scale, Signal};
use wva_core::units::Replicas;
use wva_core::{Memory, Policy, Snapshot, VariantId, decide, observe};

use crate::support::fixture::{World, percent};

/// 50 requests wait in every pod, and the KV cache is full.
const SATURATED: (f64, f64) = (0.99, 50.0);

fn world(analyzer: Analyzer, running: u32) -> World {
    let mut policy = Policy::default();
    policy.global.default.analyzer = analyzer;
    World { policy, load: SATURATED, ..World::new(running) }
}

fn target(world: &mut World, later: i64) -> Target {
    match world.evaluate(later) {
        Verdict::Target(target) => target,
        Verdict::Unknown(unknown) => panic!("{}", unknown.explanation),
    }
}

/// What the report says of the net, at the next evaluation.
fn relief(world: &World) -> Option<Relief> {
    let snapshot = world.snapshot();
    let outcome = decide(&snapshot, &observe(&snapshot, world.memory.clone()), &world.policy);
    let steps = outcome.report.groups.into_values().flat_map(|group| group.steps);
    steps.into_iter().find_map(|step| step.relief())
}

/// The scheduler has held a request in every scrape of the last minute.
fn hold_requests(snapshot: &mut Snapshot) {
    let now = snapshot.now;
    let at = |back: i64| now - SignedDuration::from_secs(2 + 15 * back);
    let queue = &mut snapshot.groups.values_mut().next().unwrap().scheduler;
    queue.add(Signal::SchedulerQueueSize, (0..5).map(|back| Sample { at: at(back), value: 1.0 }));
}

#[test]
fn the_default_policy_does_not_freeze_a_saturated_fleet_of_which_it_can_learn_nothing() {
    // The series of V1 and the running requests, and nothing that the rate policy learns from.
    let mut world = World { policy: Policy::default(), load: SATURATED, ..World::new(4) };
    let grown = target(&mut world, 0);
    assert_eq!((grown.desired.get(), grown.reason), (6, Reason::ScaleUp), "{}", grown.explanation);
    assert!(
        grown.explanation.to_string().contains("saturated: in every scrape of the last minute 4 of 4"),
        "{}",
        grown.explanation
    );
    assert!(
        grown.explanation.to_string().contains("rate has too little data"),
        "and what the analyzer says: {}",
        grown.explanation
    );
}

#[test]
fn every_analyzer_s_saturated_fleet_grows_by_half_at_once_and_again_after_a_start_up_time() {
    for analyzer in Analyzer::ALL {
        let mut world = world(analyzer, 4);
        let first = world.number(0);
        assert!(first >= 6, "{analyzer:?}: {first}");
        world.running = first;
        // The start-up time of pods that nobody has seen starting is 120 s; here they run at once.
        let follow = |_| {
            world.running = world.number(15);
            world.running
        };
        let numbers: Vec<u32> = (0..10).map(follow).collect();
        assert!(numbers.is_sorted() && numbers[0] >= first, "{analyzer:?}: {numbers:?} after {first}");
        assert!(numbers[9] >= first + first.div_ceil(2), "{analyzer:?}: {numbers:?} after {first}");
    }
}

#[test]
fn a_saturated_fleet_waits_for_pods_that_were_ordered_and_says_so() {
    let mut world = world(Analyzer::Rate, 4);
    assert_eq!(world.number(0), 6);
    let waiting = target(&mut world, 30);
    assert_eq!((waiting.desired.get(), waiting.reason), (6, Reason::Transition), "{}", waiting.explanation);
    assert!(
        waiting.explanation.to_string().contains("waiting for 2 replicas to start"),
        "{}",
        waiting.explanation
    );
    assert_eq!(relief(&world), Some(Relief::Starting));
}

#[test]
fn what_nobody_followed_is_not_ordered_on_and_on() {
    let mut world = world(Analyzer::Rate, 4);
    let numbers: Vec<u32> = (0..60).map(|_| world.number(15)).collect();
    assert!(numbers.iter().all(|number| *number == 6), "{numbers:?}");
    assert_eq!(relief(&world), Some(Relief::NotComing));
}

#[test]
fn a_saturated_fleet_at_its_maximum_says_so() {
    for analyzer in Analyzer::ALL {
        let mut world = World { max: Some(4), ..world(analyzer, 4) };
        let full = target(&mut world, 0);
        assert_eq!(full.desired.get(), 4, "{analyzer:?}");
        assert!(
            full.explanation.to_string().contains("the maximum is 4"),
            "{analyzer:?}: {}",
            full.explanation
        );
    }
}

#[test]
fn a_queue_at_the_scheduler_that_never_empties_is_saturation_too() {
    let mut world = World { load: (0.1, 0.0), held: 3.0, policy: percent(), ..World::new(4) };
    assert!(world.number(0) <= 4, "one sample is no minute");
    let mut snapshot = world.snapshot();
    hold_requests(&mut snapshot);
    let outcome = decide(&snapshot, &observe(&snapshot, Memory::default()), &percent());
    let Verdict::Target(grown) = &outcome.decisions[&World::id()].verdict else { panic!("no number") };
    assert_eq!(grown.desired.get(), 6, "{}", grown.explanation);
    assert_eq!(outcome.report.violations, []);
}

/// What is remembered of the world's variant, at whose last change the analyzer looked.
fn remembered(snapshot: &Snapshot, promised: VariantMemory) -> Memory {
    let mut group = GroupMemory { cycle_at: promised.target_since, ..GroupMemory::default() };
    group.variants.insert(World::id().name, promised);
    let mut memory = Memory::default();
    memory.groups.insert(snapshot.groups.keys().next().unwrap().clone(), group);
    memory
}

#[test]
fn what_the_net_keeps_of_a_fleet_that_nobody_sees_is_still_a_number_at_the_second_read() {
    let world = World { max: Some(3), policy: percent(), ..World::new(3) };
    let mut snapshot = world.snapshot();
    // Two of three were promised, and since then no pod has been scraped.
    snapshot.now += SignedDuration::from_secs(400);
    hold_requests(&mut snapshot);
    let moment = Some(fixture::at(0));
    let promised = VariantMemory {
        target: Some(Replicas::new(2)),
        target_since: moment,
        evidence: moment,
        ..VariantMemory::default()
    };
    let mut memory = remembered(&snapshot, promised);
    for read in ["first", "second"] {
        let outcome = decide(&snapshot, &observe(&snapshot, memory), &world.policy);
        assert_eq!(outcome.report.violations, []);
        match &outcome.decisions[&World::id()].verdict {
            Verdict::Target(target) => {
                assert_eq!(target.desired.get(), 3, "{read} read: {}", target.explanation)
            }
            Verdict::Unknown(unknown) => panic!("{read} read: {}", unknown.explanation),
        }
        memory = outcome.memory;
    }
}

#[test]
fn a_pod_with_room_is_room() {
    let mut world = world(Analyzer::SaturationPercent, 4);
    world.load = (0.99, 4.0);
    assert_eq!(relief(&world), Some(Relief::Growing));
    world.load = (0.9, 4.0);
    assert_eq!(relief(&world), None);
}

/// A second variant, of which nobody asks for a replica.
fn beside_asleep(snapshot: &mut Snapshot, last_status: Option<u32>) -> VariantId {
    let group = snapshot.groups.values_mut().next().unwrap();
    let mut asleep = group.variants[0].clone();
    asleep.variant.id.name = "zzz".into();
    asleep.replicas.clear();
    asleep.last_status = last_status.map(Replicas::new);
    asleep.scale = Some(Scale { spec: Replicas::ZERO, current: Replicas::ZERO, ready: Replicas::ZERO });
    (asleep.variant.bounds.min, asleep.variant.bounds.max) = (Replicas::ZERO, None);
    let id = asleep.variant.id.clone();
    group.variants.push(asleep);
    id
}

#[test]
fn what_a_lowered_maximum_takes_from_a_promise_is_not_waited_for() {
    let world = World { max: Some(3), ..world(Analyzer::SaturationPercent, 3) };
    let mut snapshot = world.snapshot();
    let id = beside_asleep(&mut snapshot, None);
    let moment = Some(snapshot.now - SignedDuration::from_secs(6));
    let promised =
        VariantMemory { target: Some(Replicas::new(6)), target_since: moment, ..VariantMemory::default() };
    let mut memory = remembered(&snapshot, promised);
    for read in ["first", "second"] {
        let outcome = decide(&snapshot, &observe(&snapshot, memory), &world.policy);
        assert_eq!(outcome.report.violations, []);
        let Verdict::Target(target) = &outcome.decisions[&id].verdict else { panic!("no number") };
        assert_eq!(target.desired.get(), 2, "{read} read: {}", target.explanation);
        memory = outcome.memory;
    }
}

#[test]
fn a_variant_scaled_to_zero_is_woken_by_the_safety_net_although_its_status_has_a_higher_number() {
    let world = world(Analyzer::SaturationPercent, 3);
    let mut snapshot = world.snapshot();
    let id = beside_asleep(&mut snapshot, Some(4));
    // No node has room for more of the first, so that the other one is asked.
    let first = &mut snapshot.groups.values_mut().next().unwrap().variants[0];
    let pending = Replica { pod: "pending".into(), phase: Phase::Unschedulable, ..first.replicas[0].clone() };
    first.replicas.push(pending);
    let mut memory = world.memory.clone();
    let looked = snapshot.now - SignedDuration::from_secs(6);
    let key = snapshot.groups.keys().next().unwrap().clone();
    memory.groups.insert(key, GroupMemory { cycle_at: Some(looked), ..GroupMemory::default() });
    let outcome = decide(&snapshot, &observe(&snapshot, memory), &world.policy);
    assert_eq!(outcome.report.violations, []);
    let Verdict::Target(target) = &outcome.decisions[&id].verdict else { panic!("no number") };
    assert_eq!(target.desired.get(), 2, "{}", target.explanation);
}
