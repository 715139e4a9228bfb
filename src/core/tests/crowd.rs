//! Thousands of variants of one model, as a tenant may write them, overflow no stack and change no other model's number.

use std::time::{Duration, Instant};

use crate::tests::support::prelude::*;
use wva_core::optimize::{Choice, cheapest_cover};

/// Variants of one model.
const MANY: u32 = 5_000;

/// A variant of the model `crowd` whose one pod serves, at its maximum.
fn variant(usual: &VariantState, index: u32) -> VariantState {
    let mut state = usual.clone();
    let name = format!("v{index:04}");
    (state.variant.id, state.variant.model) = (VariantId::new("crowded", name.as_str()), "crowd".into());
    state.variant.target.name = name.as_str().into();
    let count = Replicas::ONE;
    state.variant.bounds.max = Some(count);
    state.scale = Some(Scale { spec: count, current: count, ready: count });
    state.pods.truncate(1);
    state.pods[0].name = format!("{name}-0").into();
    let engine = EngineParameters { blocks_override: 4000, ..EngineParameters::defaults(Engine::Vllm) };
    state.template = Template { engine: Some(engine), ..Template::default() };
    state
}

/// A model that asks for more, and in another namespace a model with so many variants.
fn snapshot(world: &World, variants: u32) -> Snapshot {
    let mut snapshot = world.snapshot();
    let usual = group_of(&mut snapshot).variants[0].clone();
    let variants: Vec<_> = (0..variants).map(|index| variant(&usual, index)).collect();
    if !variants.is_empty() {
        snapshot.groups.insert(GroupId::new("crowded", "crowd"), model_group(variants));
    }
    snapshot
}

#[test]
fn five_thousand_variants_of_a_model_overflow_no_stack_and_change_no_other_number() {
    for analyzer in Analyzer::ALL {
        let world = World::by(analyzer, 2, (0.95, 8.0));
        let alone = world.outcome(&snapshot(&world, 0));
        #[expect(clippy::disallowed_methods, reason = "how long a decision takes is no input of it")]
        let begun = Instant::now();
        let crowded = world.outcome(&snapshot(&world, MANY));
        let time = begun.elapsed();
        assert!(time < Duration::from_secs(20), "{analyzer:?}: {time:?}");
        println!("{analyzer:?}: {time:?}");
        assert_eq!(crowded.decisions[&World::id()], alone.decisions[&World::id()], "{analyzer:?}");
        assert_eq!(crowded.decisions.len(), alone.decisions.len() + MANY as usize);
    }
}

#[test]
fn the_search_for_the_cheapest_replicas_is_as_deep_as_its_bound() {
    let choice = |cost: u32, max| Choice { cost: f64::from(cost), capacity: vec![1.0], max };
    let choices: Vec<_> = (0..100_000).map(|index| choice(index / 7 + 1, i64::from(index % 2))).collect();
    let found = cheapest_cover(&[40_000.0], &choices).unwrap();
    assert!(!found.is_cheapest);
    assert_eq!(found.counts.iter().sum::<i64>(), 40_000);
    assert_eq!(found.counts[79_999..80_003], [1, 0, 0, 0], "those that cost least");
    let none: Vec<_> = (0..100_000).map(|index| choice(index, 0)).collect();
    assert_eq!(cheapest_cover(&[1.0], &none), None);
}
