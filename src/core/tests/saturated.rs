//! Regressions in which a saturated fleet was frozen or shrunk, each named by what the product promises instead.

use crate::tests::support::prelude::*;
use wva_core::report::Relief;

/// 50 requests wait in every pod, and the KV cache is full.
const SATURATED: (f64, f64) = (0.99, 50.0);

/// What the report says about the safety net at the next evaluation.
fn relief(world: &World) -> Option<Relief> {
    let report = world.outcome(&world.snapshot()).report;
    let steps = report.groups.into_values().flat_map(|group| group.steps);
    steps.into_iter().find_map(|step| step.relief())
}

/// The scheduler has held a request in every scrape of the last minute.
fn hold_requests(snapshot: &mut Snapshot) {
    let now = snapshot.now;
    let sample = |back: i64| Sample { at: now - SignedDuration::from_secs(2 + 15 * back), value: 1.0 };
    group_of(snapshot).scheduler.add(Signal::SchedulerQueueSize, (0..5).map(sample));
}

#[test]
fn the_default_policy_grows_a_saturated_fleet_of_which_it_can_learn_nothing() {
    // It shows the series of V1 and the running requests, from which the rate policy learns nothing.
    let mut world = World { policy: Policy::default(), ..World::with_load(4, SATURATED) };
    let grown = world.target(0);
    let explanation = grown.explanation.to_string();
    assert_eq!((grown.desired.get(), grown.reason), (6, Reason::ScaleUp), "{explanation}");
    // The second part is the analyzer's.
    for part in ["saturated: in every scrape of the last minute 4 of 4", "rate has too little data"] {
        assert!(explanation.contains(part), "{explanation}");
    }
}

#[test]
fn every_analyzers_saturated_fleet_grows_by_half_at_once_and_after_a_start_up_time() {
    for analyzer in Analyzer::ALL {
        let mut world = World::by(analyzer, 4, SATURATED);
        let first = world.number(0);
        assert!(first >= 6, "{analyzer:?}: {first}");
        world.running = first;
        // Without an observed start, 120 s are assumed; here pods run at once.
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
    let mut world = World::by(Analyzer::Rate, 4, SATURATED);
    assert_eq!(world.number(0), 6);
    let waiting = world.target(30);
    let explanation = waiting.explanation.to_string();
    assert_eq!((waiting.desired.get(), waiting.reason), (6, Reason::Transition), "{explanation}");
    assert!(explanation.contains("waiting for 2 replicas to start"), "{explanation}");
    assert_eq!(relief(&world), Some(Relief::Starting));
}

#[test]
fn an_order_that_is_not_followed_is_not_repeated() {
    let mut world = World::by(Analyzer::Rate, 4, SATURATED);
    let numbers: Vec<u32> = (0..60).map(|_| world.number(15)).collect();
    assert!(numbers.iter().all(|number| *number == 6), "{numbers:?}");
    assert_eq!(relief(&world), Some(Relief::NotComing));
}

#[test]
fn a_saturated_fleet_at_its_maximum_says_so() {
    for analyzer in Analyzer::ALL {
        let full = World { max: Some(4), ..World::by(analyzer, 4, SATURATED) }.target(0);
        assert_eq!(full.desired.get(), 4, "{analyzer:?}");
        let explanation = full.explanation.to_string();
        assert!(explanation.contains("the maximum is 4"), "{analyzer:?}: {explanation}");
    }
}

#[test]
fn a_queue_at_the_scheduler_that_never_empties_is_saturation_too() {
    let mut world = World { held: 3.0, ..World::with_load(4, (0.1, 0.0)) };
    assert!(world.number(0) <= 4, "one sample is no minute");
    let mut snapshot = world.snapshot();
    hold_requests(&mut snapshot);
    assert_eq!(numbers_of(&evaluate(&snapshot, Memory::default(), &world.policy)), [6]);
}

#[test]
fn a_cache_below_its_threshold_is_no_saturation() {
    let mut world = World::with_load(4, (0.99, 4.0));
    assert_eq!(relief(&world), Some(Relief::Growing));
    world.load = (0.9, 4.0);
    assert_eq!(relief(&world), None);
}

/// A memory of the world's variant whose last change was in the analyzer's last cycle.
fn remembered(promised: VariantMemory) -> Memory {
    let mut group = GroupMemory { cycle_at: promised.target_since, ..GroupMemory::default() };
    group.variants.insert(World::id().name, promised);
    Memory { groups: [(group_id(), group)].into(), ..Memory::default() }
}

/// The number of a variant at two reads, one right after the other.
fn read_twice(snapshot: &Snapshot, memory: Memory, policy: &Policy, name: &str) -> [u32; 2] {
    let first = evaluate(snapshot, memory, policy);
    let number = target_of(&first, name).desired.get();
    let second = evaluate(snapshot, first.memory, policy);
    [number, target_of(&second, name).desired.get()]
}

#[test]
fn the_safety_net_keeps_the_number_of_an_unseen_fleet_at_every_read() {
    let world = World { max: Some(3), ..World::new(3) };
    let mut snapshot = world.snapshot();
    // Two of three were promised, and no pod was scraped since.
    snapshot.now += SignedDuration::from_secs(400);
    hold_requests(&mut snapshot);
    let (target, moment) = (Some(Replicas::new(2)), Some(at(0)));
    let promised =
        VariantMemory { target, target_since: moment, evidence: moment, ..VariantMemory::default() };
    assert_eq!(read_twice(&snapshot, remembered(promised), &world.policy, "llama"), [3, 3]);
}

/// A second variant, `sleeping`, at zero replicas.
fn add_sleeping(snapshot: &mut Snapshot, last_status: Option<u32>) {
    let mut sleeping = variant_state("sleeping", Vec::new());
    sleeping.last_status = last_status.map(Replicas::new);
    sleeping.variant.bounds.min = Replicas::ZERO;
    group_of(snapshot).variants.push(sleeping);
}

#[test]
fn replicas_beyond_a_lowered_maximum_are_not_waited_for() {
    let world = World { max: Some(3), ..World::with_load(3, SATURATED) };
    let mut snapshot = world.snapshot();
    add_sleeping(&mut snapshot, None);
    let (target, target_since) = (Some(Replicas::new(6)), Some(at(-6)));
    let promised = VariantMemory { target, target_since, ..VariantMemory::default() };
    assert_eq!(read_twice(&snapshot, remembered(promised), &world.policy, "sleeping"), [2, 2]);
}

#[test]
fn the_safety_net_wakes_a_variant_at_zero_whose_status_has_a_higher_number() {
    let world = World::with_load(3, SATURATED);
    let mut snapshot = world.snapshot();
    add_sleeping(&mut snapshot, Some(4));
    // No node has room for more of the first, so that the second is chosen.
    let first = &mut group_of(&mut snapshot).variants[0];
    let pending = Pod { name: "pending".into(), phase: Phase::Unschedulable, ..first.pods[0].clone() };
    first.pods.push(pending);
    let group = GroupMemory { cycle_at: Some(at(-6)), ..GroupMemory::default() };
    let memory = Memory { groups: [(group_id(), group)].into(), ..Memory::default() };
    let outcome = evaluate(&snapshot, memory, &world.policy);
    assert_eq!(target_of(&outcome, "sleeping").desired.get(), 2);
}
