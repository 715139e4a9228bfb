//! A source may leave out what no decision looks at: the list of what one does look at is complete.

use jiff::SignedDuration;
use wva_core::model::{Analyzer, ScaleToZero, Variant};
use wva_core::snapshot::{Sample, Signal, Signals};
use wva_core::units::Seconds;
use wva_core::{Memory, Policy, Snapshot, decide, observe, required_signals};

use crate::support::fixture::{World, percent};

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

/// The snapshot without any of `signals`.
fn without(snapshot: &Snapshot, signals: &[Signal]) -> Snapshot {
    let mut snapshot = snapshot.clone();
    for group in snapshot.groups.values_mut() {
        let replicas = group.variants.iter_mut().flat_map(|state| &mut state.replicas);
        let engines = replicas.flat_map(|replica| replica.engines.values_mut());
        for place in engines.chain([&mut group.scheduler]) {
            let mut kept = Signals::default();
            for (signal, samples) in place.iter().filter(|(signal, _)| !signals.contains(signal)) {
                kept.add(signal, samples.iter());
            }
            *place = kept;
        }
    }
    snapshot
}

fn variants(snapshot: &Snapshot) -> impl Iterator<Item = &Variant> {
    snapshot.groups.values().flat_map(|group| &group.variants).map(|state| &state.variant)
}

#[test]
fn what_is_not_in_the_list_changes_no_number() {
    for (analyzer, sleeps) in Analyzer::ALL.into_iter().flat_map(|one| [(one, false), (one, true)]) {
        let (mut plain, mut adorned) = (Memory::default(), Memory::default());
        let mut policy = Policy::default();
        policy.global.default.analyzer = analyzer;
        let retention = Seconds::whole(300);
        policy.global.default.scale_to_zero = sleeps.then_some(ScaleToZero { enabled: true, retention });
        for (now, load) in [(0, (0.5, 1.0)), (60, (0.95, 9.0)), (400, (0.0, 0.0)), (1400, (0.0, 0.0))] {
            let world = World { now, load, min: u32::from(!sleeps), ..World::new(2) };
            let whole = world.snapshot();
            let needed = required_signals(&policy, variants(&whole)).signals;
            let others: Vec<_> = Signal::ALL.into_iter().filter(|signal| !needed.contains(signal)).collect();
            let (less, more) = (without(&whole, &others), with(&whole, &others));
            let one = decide(&less, &observe(&less, plain), &policy);
            let other = decide(&more, &observe(&more, adorned), &policy);
            assert_eq!(one.decisions, other.decisions, "{analyzer:?} at {now} s");
            (plain, adorned) = (one.memory, other.memory);
        }
    }
}

#[test]
fn a_fleet_decided_by_percentages_needs_eleven_signals() {
    let world = World::new(2);
    let needed = required_signals(&percent(), variants(&world.snapshot())).signals;
    assert_eq!(needed.len(), 11, "{needed:?}");
}

#[test]
fn the_test_would_see_a_signal_that_matters() {
    let world = World::new(2);
    let (less, more) = (world.snapshot(), with(&world.snapshot(), &[Signal::Waiting]));
    let outcome = |snapshot: &Snapshot| decide(snapshot, &observe(snapshot, Memory::default()), &percent());
    assert_ne!(outcome(&less), outcome(&more));
}
