//! What becomes of a number that the checker refuses.

use super::*;
use crate::report::{Rule, Stage};

#[derive(serde::Deserialize)]
struct Scene {
    policy: Policy,
    memory: Memory,
    snapshot: Snapshot,
}

fn refused(scene: &Scene) -> Outcome {
    let mut outcome = decide(&scene.snapshot, &scene.memory, &scene.policy);
    let variant = VariantId::new("default", "llama");
    let violation = Violation { variant, rule: Rule::OneStep, detail: "two steps".into() };
    refuse(&scene.snapshot, &scene.memory, &mut outcome, violation);
    outcome
}

fn busy() -> Scene {
    serde_json::from_str(include_str!("../../../tests/scenarios/fresh-busy-goes-up.json")).unwrap()
}

#[test]
fn a_refused_number_gives_way_to_the_one_before_it() {
    let scene = busy();
    let outcome = refused(&scene);
    let Verdict::Target(target) = &outcome.decisions[&VariantId::new("default", "llama")].verdict else {
        panic!("no number")
    };
    assert_eq!((target.desired.get(), target.reason), (2, Reason::CheckFailed));
    assert!(target.message.contains("two steps"), "{}", target.message);
    let id = GroupId::new("default", "m");
    assert_eq!(
        outcome.memory.groups[&id].variants, scene.memory.groups[&id].variants,
        "not remembered either"
    );
    assert!(outcome.report.groups[&id].steps.iter().any(|step| step.stage == Stage::Check));
    assert_eq!(outcome.report.violations.len(), 1);
}

#[test]
fn a_refused_number_without_one_before_it_is_an_error() {
    let mut scene = busy();
    scene.memory = Memory::default();
    let outcome = refused(&scene);
    let verdict = &outcome.decisions[&VariantId::new("default", "llama")].verdict;
    assert!(
        matches!(verdict, Verdict::Unknown(unknown) if unknown.cause == Cause::NothingKnown),
        "{verdict:?}"
    );
}

#[test]
fn a_removal_that_leaves_too_little_is_held_and_nobody_is_asked_to_report_it() {
    let variant = VariantId::new("default", "llama");
    let detail = "running + waiting requests peaked at 210 of the 230 sequences that remain".to_owned();
    let violation = Violation { variant: variant.clone(), rule: Rule::FitsRemaining, detail };
    let message = words::refused(&variant, &violation, Some(crate::units::Replicas::new(4)));
    assert!(message.contains("4 is held: with fewer, running + waiting requests peaked at 210"), "{message}");
    assert!(!message.contains("report"), "{message}");
}
