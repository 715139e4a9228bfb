//! A source may leave out the signals that no decision reads: the list of those that are required is complete.

use crate::tests::support::prelude::*;
use wva_core::required_signals;

/// Changes the signals of every engine and scheduler.
fn changed(snapshot: &Snapshot, change: impl Fn(&mut Signals)) -> Snapshot {
    let mut snapshot = snapshot.clone();
    engines_mut(&mut snapshot).for_each(&change);
    snapshot.groups.values_mut().for_each(|group| change(&mut group.scheduler));
    snapshot
}

/// The snapshot with changing values of these signals.
fn with(snapshot: &Snapshot, signals: &[Signal]) -> Snapshot {
    let at = |back: i64| snapshot.now - SignedDuration::from_secs(1 + 9 * back);
    let samples = || (0..5).map(|back| Sample { at: at(back), value: 7.0 * back as f64 });
    changed(snapshot, |place| signals.iter().for_each(|signal| place.add(*signal, samples())))
}

fn without(snapshot: &Snapshot, signals: &[Signal]) -> Snapshot {
    changed(snapshot, |place| retain(place, |signal| !signals.contains(&signal)))
}

fn variants(snapshot: &Snapshot) -> impl Iterator<Item = &Variant> {
    states(snapshot).map(|state| &state.variant)
}

#[test]
fn signals_that_are_not_required_change_no_number() {
    for (analyzer, sleeps) in
        Analyzer::ALL.into_iter().flat_map(|analyzer| [(analyzer, false), (analyzer, true)])
    {
        let (mut plain, mut adorned) = (Memory::default(), Memory::default());
        let mut policy = policy_of(analyzer);
        let retention = Seconds::whole(300);
        policy.global.default.scale_to_zero = sleeps.then_some(ScaleToZero { enabled: true, retention });
        for (now, load) in [(0, (0.5, 1.0)), (60, (0.95, 9.0)), (400, (0.0, 0.0)), (1400, (0.0, 0.0))] {
            let world = World { now, load, min: u32::from(!sleeps), ..World::new(2) };
            let whole = world.snapshot();
            let needed = required_signals(&policy, variants(&whole)).signals;
            let unneeded: Vec<_> =
                Signal::ALL.into_iter().filter(|signal| !needed.contains(signal)).collect();
            let (less, more) = (without(&whole, &unneeded), with(&whole, &unneeded));
            let bare = decide(&less, &observe(&less, plain), &policy);
            let full = decide(&more, &observe(&more, adorned), &policy);
            assert_eq!(bare.decisions, full.decisions, "{analyzer:?} at {now} s");
            (plain, adorned) = (bare.memory, full.memory);
        }
    }
}

#[test]
fn a_fleet_decided_by_percentages_needs_eleven_signals() {
    let world = World::new(2);
    let needed = required_signals(&world.policy, variants(&world.snapshot())).signals;
    assert_eq!(needed.len(), 11, "{needed:?}");
}

#[test]
fn a_signal_that_is_needed_changes_the_outcome() {
    let world = World::new(2);
    let (less, more) = (world.snapshot(), with(&world.snapshot(), &[Signal::Waiting]));
    let outcome =
        |snapshot: &Snapshot| decide(snapshot, &observe(snapshot, Memory::default()), &world.policy);
    assert_ne!(outcome(&less), outcome(&more));
}
