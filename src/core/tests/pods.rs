//! Pods that fail readiness, or never become ready, while more is needed.

use crate::tests::support::prelude::*;
use wva_core::learn::ObservedStarts;

/// `world` with one pod more, that has not served so far.
fn starting(world: &World, created: i64) -> Snapshot {
    let mut snapshot = world.snapshot();
    let state = &mut group_of(&mut snapshot).variants[0];
    let pod = ready_pod("new", Signals::default());
    state.pods.push(Pod { phase: Phase::Starting, created: at(created), ready_since: None, ..pod });
    let (all, ready) = (Replicas::new(world.running + 1), Replicas::new(world.running));
    state.scale = Some(Scale { spec: all, current: all, ready });
    snapshot
}

/// The number while a pod of that moment has not served so far.
fn with_one_more(world: &mut World, created: i64) -> u32 {
    let verdict = world.decide(&starting(world, created));
    number_of(&verdict).unwrap().get()
}

fn starts(world: &World) -> &ObservedStarts {
    &world.memory.groups.values().next().unwrap().variants.get("llama").unwrap().starts
}

/// A start of `took` seconds is learned, and the last pod begins at 100 s: how long it is counted on.
fn is_counted_on_for_three_minutes(took: i64) {
    let mut world = World::with_load(3, (0.75, 4.0));
    let _ = with_one_more(&mut world, 0);
    world.now = took;
    let mut ready = starting(&world, 0);
    let pod = group_of(&mut ready).variants[0].pods.last_mut().unwrap();
    (pod.phase, pod.ready_since) = (Phase::Ready, Some(at(took)));
    let _ = world.decide(&ready);
    assert_eq!(starts(&world).longest().map(|seconds| seconds as i64), Some(took));
    let compacted = world.memory.groups.values().next().unwrap().compacted();
    let text = serde_json::to_string(&compacted).unwrap();
    assert_eq!(serde_json::from_str::<GroupMemory>(&text).unwrap(), compacted, "it survives a restart");
    // Five are ordered: the last one starts, and may take three times as long.
    world.running = 4;
    world.now = 100;
    let waiting = with_one_more(&mut world, 100);
    for later in [150, 200, 275] {
        world.now = later;
        assert_eq!(with_one_more(&mut world, 100), waiting, "at {later} s");
    }
    world.now = 290;
    let number = with_one_more(&mut world, 100);
    assert!(waiting <= 5 && number == 6, "{waiting}, then {number}");
}

#[test]
fn a_starting_pod_is_counted_on_for_three_starts_and_three_minutes() {
    // Of minutes, which once gave five minutes of credit; and of seconds, after which every slower pod was given up.
    is_counted_on_for_three_minutes(60);
    is_counted_on_for_three_minutes(5);
}

#[test]
fn no_analyzer_replaces_pods_that_failed_at_every_look() {
    for analyzer in Analyzer::ALL {
        let mut world = World::by(analyzer, 6, (0.3, 0.0));
        let mut replaced = |now: i64, failing: usize| {
            world.now = now;
            let mut snapshot = world.snapshot();
            let state = &mut group_of(&mut snapshot).variants[0];
            state.pods.iter_mut().take(failing).for_each(|pod| pod.phase = Phase::Starting);
            count_ready(state);
            let _ = world.decide(&snapshot);
            starts(&world).replaced.pods.min(count(failing))
        };
        // No start was observed: 120 s.
        let all =
            [(0, 1), (30, 2), (119, 3), (120, 3), (150, 1)].map(|(now, failing)| replaced(now, failing));
        assert_eq!(all, [1, 1, 1, 3, 1], "{analyzer:?}");
    }
}
