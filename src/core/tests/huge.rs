//! Numbers that a user may write and no fleet has: what is decided from them takes no longer.

use std::collections::BTreeSet;
use std::fs::read_to_string;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::support::closed_form_fleet::{Plant, World};
use serde::Deserialize;
use wva_core::memory::VariantMemory;
use wva_core::snapshot::{Scale, VariantState};
use wva_core::units::Replicas;
use wva_core::{Memory, Outcome, Policy, Snapshot, decide, observe};

/// The largest `spec.minReplicas` and `spec.replicas` that Kubernetes takes.
const LARGEST: Replicas = Replicas::new(2_147_483_647);
/// The time that a decision about one model may take, in an unoptimised build. The usual one takes a tenth of it.
const TIME: Duration = Duration::from_millis(10);

#[derive(Deserialize)]
struct Scene {
    policy: Policy,
    memory: Memory,
    snapshot: Snapshot,
}

fn scenes() -> Vec<(String, Scene)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/scenarios");
    let files = folder.read_dir().unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_file());
    let scene = |path: &Path| serde_json::from_str(&read_to_string(path).unwrap()).unwrap();
    files.map(|path| (path.file_stem().unwrap().to_string_lossy().into_owned(), scene(&path))).collect()
}

fn variants(snapshot: &mut Snapshot) -> impl Iterator<Item = &mut VariantState> {
    snapshot.groups.values_mut().flat_map(|group| &mut group.variants)
}

/// A decision, and the shortest of three times that it took: other tests run beside it.
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
fn a_minimum_of_two_billions_that_was_taken_back_once_took_all_memory() {
    let mut analyzers = BTreeSet::new();
    for (name, mut scene) in scenes() {
        for running in [None, Some(LARGEST)] {
            variants(&mut scene.snapshot).for_each(|state| {
                state.variant.bounds.min = LARGEST;
                state.variant.bounds.max = None;
                let many = |count: Replicas| running.filter(|_| count > Replicas::ZERO).unwrap_or(count);
                let scale = state.scale;
                state.scale =
                    scale.map(|one| Scale { spec: many(one.spec), current: many(one.current), ..one });
            });
            let (outcome, time) = timed(&scene.snapshot, &scene.memory, &scene.policy);
            assert!(time < TIME, "{name}: {time:?}");
            let mut memory = outcome.memory;
            variants(&mut scene.snapshot).for_each(|state| state.variant.bounds.min = Replicas::ONE);
            // As much is remembered where nothing was decided.
            for group in memory.groups.values_mut() {
                group.cycle_at = None;
                group.variants.values_mut().for_each(|one: &mut VariantMemory| one.target = Some(LARGEST));
            }
            let (_, time) = timed(&scene.snapshot, &memory, &scene.policy);
            assert!(time < TIME, "{name}: {time:?}");
        }
        analyzers.insert(scene.policy.global.default.analyzer);
    }
    assert_eq!(analyzers.len(), 8, "{analyzers:?}");
}

#[test]
fn a_remembered_target_of_two_billions_is_halved_in_no_time_and_down_again_in_an_hour() {
    let mut plant = Plant::new(World::default(), 3, 1);
    (plant.bounds.max, plant.bounds.min) = (None, Replicas::ONE);
    plant.run(2.0, 900);
    let group = plant.memory.groups.get_mut(&Plant::group()).unwrap();
    group.variants.values_mut().for_each(|one: &mut VariantMemory| one.target = Some(LARGEST));
    let (_, time) = timed(&plant.snapshot(), &plant.memory, &plant.policy);
    assert!(time < TIME, "{time:?}");
    let from = plant.targets.len();
    for _ in 0..720 {
        plant.serve(2.0);
        plant.decide_without_hpa();
    }
    let after = &plant.targets[from..];
    assert!(after.first().is_some_and(|first| *first > 10_000), "{after:?}");
    assert!(after.last().is_some_and(|last| *last <= 4), "{after:?}");
}
