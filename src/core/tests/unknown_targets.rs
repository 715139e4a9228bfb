//! Variants of whose scale target, or of whose replicas' size, nothing is known: neither counts as nothing.

use crate::tests::support::prelude::*;
use crate::tests::support::scenarios::{Scenario, scenario};
use wva_core::model::InvalidVariant;

/// The number of `llama`, and why.
fn decided(scenario: &Scenario) -> (u32, String) {
    let outcome = decide(&scenario.snapshot, &scenario.memory, &scenario.policy);
    assert_eq!(outcome.report.violations, []);
    let target = target_of(&outcome, "llama");
    (target.desired.get(), target.explanation.to_string())
}

/// `scenario` with a variant of the model `model` whose target is not known, or does not exist. One replica was published.
fn with_published(mut scenario: Scenario, model: &str, is_known: bool) -> Scenario {
    let mut state = group_of(&mut scenario.snapshot).variants[0].clone();
    (state.variant.id.name, state.variant.model) = ("other".into(), model.into());
    (state.scale, state.pods) = (None, Vec::new());
    state.target_problem = (!is_known).then(|| "the API server does not answer".into());
    let id = state.variant.group();
    let published = VariantMemory { target: Some(Replicas::ONE), ..VariantMemory::default() };
    scenario.memory.groups.entry(id.clone()).or_default().variants.insert("other".into(), published);
    let group = scenario.snapshot.groups.entry(id).or_insert_with(|| model_group(Vec::new()));
    group.variants.push(state);
    scenario
}

#[test]
fn what_an_unknown_target_used_of_a_limit_is_not_granted_to_others() {
    let free = || scenario("a-quota-of-the-cluster-holds-additions-back");
    assert_eq!(decided(&free()).0, 2, "one of two GPUs is free");
    for model in ["m", "another"] {
        assert_eq!(decided(&with_published(free(), model, false)).0, 1, "{model}");
        assert_eq!(decided(&with_published(free(), model, true)).0, 2, "it does not exist: {model}");
    }
}

#[test]
fn what_a_variant_of_unknown_model_runs_was_granted_to_others() {
    for name in ["gpus-that-are-not-there-hold-additions-back", "a-quota-of-the-cluster-holds-additions-back"]
    {
        let mut limited = scenario(name);
        assert_eq!(decided(&limited).0, 2, "{name}: one of two GPUs is free");
        let mut state = group_of(&mut limited.snapshot).variants[0].clone();
        (state.variant.id.name, state.variant.model) = ("unnamed".into(), "".into());
        limited.snapshot.invalid = vec![InvalidVariant::new(state.variant.id.clone(), String::new())];
        limited.snapshot.undecided = vec![state];
        assert_eq!(decided(&limited).0, 1, "{name}");
        limited.snapshot.undecided[0].scale = None;
        assert_eq!(decided(&limited).0, 2, "{name}: it does not run");
    }
}

#[test]
fn replicas_whose_number_of_gpus_is_not_known_are_not_added_within_a_limit_on_gpus() {
    for name in ["gpus-that-are-not-there-hold-additions-back", "a-quota-of-the-cluster-holds-additions-back"]
    {
        let mut limited = scenario(name);
        assert_eq!(decided(&limited).0, 2, "{name}");
        group_of(&mut limited.snapshot).variants[0].template.gpus = None;
        let (number, why) = decided(&limited);
        assert_eq!(number, 1, "{name}: {why}");
        assert!(why.contains("whose number of GPUs is not known"), "{why}");
    }
}

#[test]
fn a_template_without_a_number_of_gpus_in_a_recording_has_one() {
    let read = |text: &str| serde_json::from_str::<Template>(text).unwrap().gpus;
    assert_eq!((read("{}"), read(r#"{"gpus":null}"#), read(r#"{"gpus":8}"#)), (Some(1), None, Some(8)));
    let unknown = Template { gpus: None, engine: None };
    assert_eq!(read(&serde_json::to_string(&unknown).unwrap()), None);
}

#[test]
fn a_model_with_a_target_that_is_not_known_is_not_idle() {
    let after_idle_minutes = |is_known: bool| {
        let mut world = World { load: (0.0, 0.0), ..World::that_may_sleep(60) };
        let (mut memory, mut number) = (Memory::default(), 1);
        for now in 0..20 {
            world.now = 15 * now;
            let mut snapshot = world.snapshot();
            let mut second = variant_state("second", Vec::new());
            (second.scale, second.variant.bounds.min) = (None, Replicas::ZERO);
            second.target_problem = (!is_known).then(|| "the API server does not answer".into());
            group_of(&mut snapshot).variants.push(second);
            let outcome = evaluate(&snapshot, memory, &world.policy);
            number = target_of(&outcome, "llama").desired.get();
            memory = outcome.memory;
        }
        number
    };
    assert_eq!((after_idle_minutes(true), after_idle_minutes(false)), (0, 1), "its pods may serve");
}
