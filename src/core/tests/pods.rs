//! Pods that fail readiness, or never become ready, while more is needed.

use wva_core::decision::Verdict;
use wva_core::learn::ObservedStarts;
use wva_core::memory::GroupMemory;
use wva_core::model::Analyzer;
use wva_core::name_map::NameMap;
use wva_core::snapshot::{Phase, Replica, Scale};
use wva_core::units::Replicas;
use wva_core::{Snapshot, decide, observe};

use crate::support::fixture::{World, at};

/// `world` with one pod more, that has not served so far.
fn starting(world: &World, created: i64) -> Snapshot {
    let mut snapshot = world.snapshot();
    let state = &mut snapshot.groups.values_mut().next().unwrap().variants[0];
    let pod = Replica {
        pod: "new".into(),
        phase: Phase::Starting,
        created: at(created),
        ready_since: None,
        engines: NameMap::default(),
    };
    state.replicas.push(pod);
    let all = Replicas::new(world.running + 1);
    state.scale = Some(Scale { spec: all, current: all, ready: Replicas::new(world.running) });
    snapshot
}

fn decided(world: &mut World, snapshot: &Snapshot) -> u32 {
    let outcome = decide(snapshot, &observe(snapshot, std::mem::take(&mut world.memory)), &world.policy);
    assert_eq!(outcome.report.violations, []);
    world.memory = outcome.memory;
    match &outcome.decisions[&World::id()].verdict {
        Verdict::Target(target) => target.desired.get(),
        Verdict::Unknown(unknown) => panic!("{}", unknown.explanation),
    }
}

/// The number while a pod of that moment has not served so far.
fn with_one_more(world: &mut World, created: i64) -> u32 {
    let snapshot = starting(world, created);
    decided(world, &snapshot)
}

fn starts(world: &World) -> &ObservedStarts {
    &world.memory.groups.values().next().unwrap().variants.get("llama").unwrap().starts
}

/// A start of `took` seconds is learned, and the last pod begins at 100 s: how long it is counted on.
fn is_counted_on_for_three_minutes(took: i64) {
    let mut world = World { load: (0.75, 4.0), ..World::new(3) };
    let _ = with_one_more(&mut world, 0);
    world.now = took;
    let mut ready = starting(&world, 0);
    let pod = ready.groups.values_mut().next().unwrap().variants[0].replicas.last_mut().unwrap();
    (pod.phase, pod.ready_since) = (Phase::Ready, Some(at(took)));
    let _ = decided(&mut world, &ready);
    assert_eq!(starts(&world).longest().map(|seconds| seconds as i64), Some(took));
    let kept = world.memory.groups.values().next().unwrap().compacted();
    let text = serde_json::to_string(&kept).unwrap();
    assert_eq!(serde_json::from_str::<GroupMemory>(&text).unwrap(), kept, "it survives a restart");
    // Five are asked for: the last one starts, and may take three times as long.
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
fn a_pod_past_three_of_the_starts_that_were_learned_once_got_credit_for_five_minutes() {
    is_counted_on_for_three_minutes(60);
}

#[test]
fn after_a_start_of_seconds_every_slower_pod_was_once_given_up_at_once() {
    is_counted_on_for_three_minutes(5);
}

#[test]
fn pods_that_failed_were_once_replaced_at_every_look_by_all_but_the_default_policy() {
    for analyzer in Analyzer::ALL {
        let mut world = World { load: (0.3, 0.0), ..World::new(6) };
        world.policy.global.default.analyzer = analyzer;
        let mut replaced = |now: i64, failing: usize| {
            world.now = now;
            let mut snapshot = world.snapshot();
            let state = &mut snapshot.groups.values_mut().next().unwrap().variants[0];
            state.replicas.iter_mut().take(failing).for_each(|pod| pod.phase = Phase::Starting);
            let ready = Replicas::new(6 - u32::try_from(failing).unwrap());
            state.scale = state.scale.map(|scale| Scale { ready, ..scale });
            let _ = decided(&mut world, &snapshot);
            starts(&world).replaced.pods.min(u32::try_from(failing).unwrap())
        };
        // Nobody has seen a start: 120 s.
        let all =
            [(0, 1), (30, 2), (119, 3), (120, 3), (150, 1)].map(|(now, failing)| replaced(now, failing));
        assert_eq!(all, [1, 1, 1, 3, 1], "{analyzer:?}");
    }
}
