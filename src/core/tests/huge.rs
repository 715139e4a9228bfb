//! Numbers that a user may write but no fleet has: a decision from them takes no longer.

use std::time::{Duration, Instant};

use crate::tests::support::closed_form_fleet::{ClosedFormFleet, Workload};
use crate::tests::support::prelude::*;
use crate::tests::support::scenarios;

/// The largest `spec.minReplicas` and `spec.replicas` that Kubernetes accepts.
const LARGEST: Replicas = Replicas::new(2_147_483_647);
/// The time that a decision about one model may take, in an unoptimised build. The usual one takes a tenth of it.
const TIME: Duration = Duration::from_millis(10);

/// A decision, and the shortest of three times that it took, because other tests run at the same time.
fn timed(snapshot: &Snapshot, memory: &Memory, policy: &Policy) -> (Outcome, Duration) {
    #[expect(clippy::disallowed_methods, reason = "how long a decision takes is no input of it")]
    let decided = || {
        let memory = observe(snapshot, memory.clone());
        let begun = Instant::now();
        (decide(snapshot, &memory, policy), begun.elapsed())
    };
    let times = [decided().1, decided().1];
    let (outcome, last) = decided();
    (outcome, times.into_iter().fold(last, Duration::min))
}

#[test]
fn a_minimum_of_two_billions_that_was_taken_back_takes_no_time() {
    let mut analyzers = BTreeSet::new();
    for (name, mut scenario) in scenarios::all() {
        for running in [None, Some(LARGEST)] {
            for state in states_mut(&mut scenario.snapshot) {
                state.variant.bounds = Bounds { min: LARGEST, max: None };
                let many = |count: Replicas| running.filter(|_| count > Replicas::ZERO).unwrap_or(count);
                let more =
                    |scale: Scale| Scale { spec: many(scale.spec), current: many(scale.current), ..scale };
                state.scale = state.scale.map(more);
            }
            let (outcome, time) = timed(&scenario.snapshot, &scenario.memory, &scenario.policy);
            assert!(time < TIME, "{name}: {time:?}");
            let mut memory = outcome.memory;
            states_mut(&mut scenario.snapshot).for_each(|state| state.variant.bounds.min = Replicas::ONE);
            // The same number is remembered if nothing was decided.
            for group in memory.groups.values_mut() {
                group.cycle_at = None;
                group.variants.values_mut().for_each(|variant| variant.target = Some(LARGEST));
            }
            let (_, time) = timed(&scenario.snapshot, &memory, &scenario.policy);
            assert!(time < TIME, "{name}: {time:?}");
        }
        analyzers.insert(scenario.policy.global.default.analyzer);
    }
    assert_eq!(analyzers.len(), 8, "{analyzers:?}");
}

#[test]
fn a_remembered_target_of_two_billions_is_halved_at_once_and_gone_in_an_hour() {
    let mut fleet = ClosedFormFleet::new(Workload::default(), 3, 1);
    fleet.bounds.max = None;
    fleet.run(2.0, 900);
    let group = fleet.memory.groups.get_mut(&group_id()).unwrap();
    group.variants.values_mut().for_each(|variant| variant.target = Some(LARGEST));
    let (_, time) = timed(&fleet.snapshot(), &fleet.memory, &fleet.policy);
    assert!(time < TIME, "{time:?}");
    let from = fleet.targets.len();
    for _ in 0..720 {
        fleet.serve(2.0);
        fleet.decide_without_hpa();
    }
    let after = &fleet.targets[from..];
    assert!(after.first().is_some_and(|first| *first > 10_000), "{after:?}");
    assert!(after.last().is_some_and(|last| *last <= 4), "{after:?}");
}
