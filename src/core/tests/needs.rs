//! A source may leave out what no decision looks at: the list of what one does look at is complete.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests may fail like tests")]

#[allow(dead_code, reason = "shared by several tests")]
#[path = "support/world.rs"]
mod world;

use jiff::SignedDuration;
use wva_core::snapshot::{Sample, Signal, Signals};
use wva_core::{Memory, NEEDS, Policy, Snapshot, decide, observe};

use world::World;

/// Every signal there is.
const ALL: [Signal; 19] = [
    Signal::KvUsage,
    Signal::Waiting,
    Signal::Running,
    Signal::KvCapacity,
    Signal::PromptTokens,
    Signal::GenerationTokens,
    Signal::InterTokenLatencySum,
    Signal::InterTokenLatencyCount,
    Signal::TimeToFirstTokenSum,
    Signal::TimeToFirstTokenCount,
    Signal::RequestPromptTokensSum,
    Signal::RequestPromptTokensCount,
    Signal::RequestGenerationTokensSum,
    Signal::RequestGenerationTokensCount,
    Signal::PrefixCacheHits,
    Signal::PrefixCacheQueries,
    Signal::SchedulerQueueSize,
    Signal::SchedulerQueueBytes,
    Signal::SchedulerAttempts,
];

/// The snapshot with changing values of these signals in every engine and scheduler.
fn with(snapshot: &Snapshot, signals: &[Signal]) -> Snapshot {
    let mut snapshot = snapshot.clone();
    let samples = |now| {
        (0..5).map(move |back| Sample {
            at: now - SignedDuration::from_secs(1 + 9 * back),
            value: 7.0 * back as f64,
        })
    };
    for group in snapshot.groups.values_mut() {
        let replicas = group.variants.iter_mut().flat_map(|state| &mut state.replicas);
        let engines = replicas.flat_map(|replica| replica.engines.values_mut());
        let add =
            |place: &mut Signals| signals.iter().for_each(|signal| place.add(*signal, samples(snapshot.now)));
        engines.chain([&mut group.scheduler]).for_each(add);
    }
    snapshot
}

#[test]
fn what_is_not_in_the_list_changes_no_decision() {
    let others: Vec<_> = ALL.into_iter().filter(|signal| !NEEDS.contains(signal)).collect();
    let (mut plain, mut adorned) = (Memory::default(), Memory::default());
    let policy = Policy::default();
    for (now, load) in [(0, (0.5, 1.0)), (60, (0.95, 9.0)), (400, (0.0, 0.0)), (1400, (0.0, 0.0))] {
        let world = World { now, load, ..World::new(2) };
        let (less, more) = (world.snapshot(), with(&world.snapshot(), &others));
        let one = decide(&less, &observe(&less, plain), &policy);
        let other = decide(&more, &observe(&more, adorned), &policy);
        assert_eq!(one, other, "at {now} s");
        (plain, adorned) = (one.memory, other.memory);
    }
}

#[test]
fn the_test_would_see_a_signal_that_matters() {
    let world = World::new(2);
    let (less, more) = (world.snapshot(), with(&world.snapshot(), &[Signal::Waiting]));
    let outcome =
        |snapshot: &Snapshot| decide(snapshot, &observe(snapshot, Memory::default()), &Policy::default());
    assert_ne!(outcome(&less), outcome(&more));
}
