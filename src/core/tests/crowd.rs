//! Thousands of variants of one model, as a tenant may write them: they cost nobody's stack, and no other model's number.

use std::time::{Duration, Instant};

use wva_core::model::{Analyzer, Bounds};
use wva_core::optimize::{Choice, cheapest_cover};
use wva_core::snapshot::{
    Engine, EngineParameters, ModelGroup, Scale, Signals, SourceHealth, Template, VariantState,
};
use wva_core::units::Replicas;
use wva_core::{GroupId, Memory, Outcome, Policy, Snapshot, decide, observe};

use crate::support::fixture::World;

/// Variants of one model.
const MANY: u32 = 5_000;

/// A variant of the model `crowd` whose one pod serves, at its maximum.
fn variant(usual: &VariantState, index: u32) -> VariantState {
    let mut state = usual.clone();
    let name = format!("v{index:04}");
    state.variant.id.namespace = "crowded".into();
    state.variant.id.name = name.as_str().into();
    state.variant.target.name = name.as_str().into();
    state.variant.model = "crowd".into();
    let count = Replicas::ONE;
    state.variant.bounds = Bounds { min: Replicas::ONE, max: Some(count) };
    state.scale = Some(Scale { spec: count, current: count, ready: count });
    state.replicas.truncate(1);
    state.replicas.iter_mut().for_each(|replica| replica.pod = format!("{name}-0").into());
    let engine = EngineParameters { blocks_override: 4000, ..EngineParameters::defaults(Engine::Vllm) };
    state.template = Template { engine: Some(engine), ..Template::default() };
    state
}

/// A model that asks for more, and beside it, in another namespace, one with so many variants.
fn snapshot(world: &World, variants: u32) -> Snapshot {
    let mut snapshot = world.snapshot();
    let usual = snapshot.groups.values().flat_map(|group| &group.variants).next().unwrap().clone();
    let variants: Vec<_> = (0..variants).map(|index| variant(&usual, index)).collect();
    if !variants.is_empty() {
        let group = ModelGroup { source: SourceHealth::Complete, variants, scheduler: Signals::default() };
        snapshot.groups.insert(GroupId::new("crowded", "crowd"), group);
    }
    snapshot
}

fn decided(snapshot: &Snapshot, policy: &Policy) -> Outcome {
    decide(snapshot, &observe(snapshot, Memory::default()), policy)
}

#[test]
fn five_thousand_variants_of_one_model_overflow_no_stack_and_change_no_other_number() {
    for analyzer in Analyzer::ALL {
        let mut world = World::new(2);
        world.load = (0.95, 8.0);
        world.policy.global.default.analyzer = analyzer;
        let alone = decided(&snapshot(&world, 0), &world.policy);
        #[expect(clippy::disallowed_methods, reason = "how long a decision takes is no input of it")]
        let begun = Instant::now();
        let beside = decided(&snapshot(&world, MANY), &world.policy);
        let time = begun.elapsed();
        assert!(time < Duration::from_secs(20), "{analyzer:?}: {time:?}");
        println!("{analyzer:?}: {time:?}");
        assert_eq!(beside.decisions[&World::id()], alone.decisions[&World::id()], "{analyzer:?}");
        assert_eq!(beside.decisions.len(), alone.decisions.len() + MANY as usize);
        assert!(beside.report.failed.is_empty() && beside.report.violations.is_empty(), "{analyzer:?}");
    }
}

#[test]
fn the_search_for_the_cheapest_replicas_is_as_deep_as_its_bound_whatever_there_is_to_choose_from() {
    let choice = |cost: u32, max| Choice { cost: f64::from(cost), capacity: vec![1.0], max };
    let choices: Vec<_> = (0..100_000).map(|index| choice(index / 7 + 1, i64::from(index % 2))).collect();
    let found = cheapest_cover(&[40_000.0], &choices).unwrap();
    assert!(!found.is_cheapest);
    assert_eq!(found.counts.iter().sum::<i64>(), 40_000);
    assert_eq!(found.counts[79_999..80_003], [1, 0, 0, 0], "those that cost least");
    let none: Vec<_> = (0..100_000).map(|index| choice(index, 0)).collect();
    assert_eq!(cheapest_cover(&[1.0], &none), None);
}
