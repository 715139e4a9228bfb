//! What becomes of a number that the checker refuses.

use super::*;
use crate::isolate::tests::with_broken;
use crate::learn::ObservedStarts;
use crate::memory::VariantMemory;
use crate::model::ScaleToZero;
use crate::quality::Shortfall;
use crate::report::{Breach, Rule, Stage};
use crate::snapshot::Scale;
use crate::units::{Replicas, Seconds};

#[derive(serde::Deserialize)]
struct ModelContext {
    policy: Policy,
    memory: Memory,
    snapshot: Snapshot,
}

fn refused(context: &ModelContext) -> Outcome {
    let mut outcome = decide(&context.snapshot, &context.memory, &context.policy);
    let variant = VariantId::new("default", "llama");
    let violation = Violation { variant, rule: Rule::OneStep, detail: Breach::Recorded("two steps".into()) };
    refuse(&by_id(&context.snapshot), &context.memory, &mut outcome, violation);
    outcome
}

fn busy() -> ModelContext {
    serde_json::from_str(include_str!("../../../tests/scenarios/fresh-busy-goes-up.json")).unwrap()
}

#[test]
fn a_refused_number_gives_way_to_the_one_before_it() {
    let context = busy();
    let outcome = refused(&context);
    let Verdict::Target(target) = &outcome.decisions[&VariantId::new("default", "llama")].verdict else {
        panic!("no number")
    };
    assert_eq!((target.desired.get(), target.reason), (2, Reason::CheckFailed));
    assert!(target.explanation.to_string().contains("two steps"), "{}", target.explanation);
    let id = GroupId::new("default", "m");
    assert_eq!(
        outcome.memory.groups[&id].variants, context.memory.groups[&id].variants,
        "not remembered either"
    );
    assert!(outcome.report.groups[&id].steps.iter().any(|step| step.stage() == Stage::Check));
    assert_eq!(outcome.report.violations.len(), 1);
}

#[test]
fn a_refused_number_without_one_before_it_is_an_error() {
    let mut context = busy();
    context.memory = Memory::default();
    let outcome = refused(&context);
    let verdict = &outcome.decisions[&VariantId::new("default", "llama")].verdict;
    assert!(
        matches!(verdict, Verdict::Unknown(unknown) if unknown.cause == Cause::NothingKnown),
        "{verdict:?}"
    );
}

#[test]
fn a_removal_that_leaves_too_little_is_held_and_nobody_is_asked_to_report_it() {
    let scene = busy();
    let mut outcome = decide(&scene.snapshot, &scene.memory, &scene.policy);
    let variant = VariantId::new("default", "llama");
    let detail = Breach::Overfull { limit: Shortfall::Sequences { used: 210.0, remaining: 230.0 } };
    let violation = Violation { variant: variant.clone(), rule: Rule::FitsRemaining, detail };
    refuse(&by_id(&scene.snapshot), &scene.memory, &mut outcome, violation);
    let message = outcome.decisions[&variant].verdict.explanation().to_string();
    let expected =
        "with fewer replicas, running + waiting requests peaked at 210 of the 230 sequences that remain";
    assert!(message.starts_with(expected) && message.ends_with("holding 2 replicas"), "{message}");
    assert!(!message.contains("report"), "{message}");
}

/// The snapshot of `busy` with a second model of the same variant, in namespace `other`.
fn two_models() -> (ModelContext, GroupId, GroupId) {
    let mut context = busy();
    let id = GroupId::new("default", "m");
    let second = GroupId::new("other", "m");
    let mut group = context.snapshot.groups[&id].clone();
    group.variants.iter_mut().for_each(|state| state.variant.id.namespace = "other".into());
    context.snapshot.groups.insert(second.clone(), group);
    let remembered = context.memory.groups[&id].clone();
    context.memory.groups.insert(second.clone(), remembered);
    (context, id, second)
}

fn desired(outcome: &Outcome, namespace: &str) -> (u32, Reason) {
    let Verdict::Target(target) = &outcome.decisions[&VariantId::new(namespace, "llama")].verdict else {
        panic!("no number")
    };
    (target.desired.get(), target.reason)
}

#[test]
fn a_model_that_breaks_is_held_at_its_last_number_and_costs_no_other() {
    let (context, id, second) = two_models();
    let ModelContext { policy, memory, snapshot } = &context;
    let usual = decide(snapshot, memory, policy);
    assert_eq!(desired(&usual, "other"), (3, Reason::ScaleUp));
    for after in 0..2 {
        let outcome = with_broken(&id, after, || decide(snapshot, memory, policy));
        assert_eq!(desired(&outcome, "default"), (2, Reason::CheckFailed), "{after}");
        assert_eq!(desired(&outcome, "other"), (3, Reason::ScaleUp), "{after}");
        assert_eq!(outcome.memory.groups[&second], usual.memory.groups[&second]);
        let [failure] = &outcome.report.failed[..] else { panic!("{:?}", outcome.report.failed) };
        assert_eq!((&failure.group, failure.failed.count, failure.failed.at), (&id, 1, snapshot.now));
        assert!(failure.to_string().contains("index out of bounds"), "{failure}");
        assert_eq!(outcome.memory.groups[&id].variants, memory.groups[&id].variants);
        assert!(outcome.report.violations.is_empty());
    }
}

#[test]
fn a_model_that_broke_is_tried_again_when_its_time_has_come_and_not_before() {
    let (mut context, id, _) = two_models();
    let broken = with_broken(&id, 0, || decide(&context.snapshot, &context.memory, &context.policy));
    context.memory = broken.memory;
    context.snapshot.now += jiff::SignedDuration::from_secs(4);
    let held = decide(&context.snapshot, &context.memory, &context.policy);
    assert_eq!(desired(&held, "default"), (2, Reason::CheckFailed));
    assert!(held.report.failed[0].failed.at < context.snapshot.now, "no new failure");
    context.snapshot.now += jiff::SignedDuration::from_secs(1);
    let tried = decide(&context.snapshot, &context.memory, &context.policy);
    assert_eq!(desired(&tried, "default").0, 3);
    assert!(tried.report.failed.is_empty() && tried.memory.groups[&id].failed.is_none());
}

#[test]
fn a_model_that_breaks_while_it_is_learned_from_is_held_too() {
    let (context, id, second) = two_models();
    let observed = with_broken(&id, 0, || crate::observe(&context.snapshot, context.memory.clone()));
    assert_eq!(
        observed.groups[&second],
        crate::observe(&context.snapshot, context.memory.clone()).groups[&second]
    );
    let outcome = decide(&context.snapshot, &observed, &context.policy);
    assert_eq!(desired(&outcome, "default"), (2, Reason::CheckFailed));
    assert_eq!(desired(&outcome, "other"), (3, Reason::ScaleUp));
    assert_eq!(outcome.report.failed[0].failed.at, context.snapshot.now);
}

/// What breaks when the sharing does: the models' own parts of it, what is of all of them, and what comes after it.
const SHARING: std::ops::Range<u32> = 1..8;

#[test]
fn a_model_that_panics_in_the_shared_part_is_held_and_the_others_share_the_rest() {
    let (mut context, id, _) = two_models();
    for third in ["a", "b", "y", "z"] {
        let mut group = context.snapshot.groups[&id].clone();
        group.variants.iter_mut().for_each(|state| state.variant.id.namespace = third.into());
        context.snapshot.groups.insert(GroupId::new(third, "m"), group);
        let remembered = context.memory.groups[&id].clone();
        context.memory.groups.insert(GroupId::new(third, "m"), remembered);
    }
    context.policy.limits.spend = crate::units::Cost::new(1e9).ok();
    let ModelContext { policy, memory, snapshot } = &context;
    let usual = decide(snapshot, memory, policy);
    for after in SHARING {
        for (id, group) in &snapshot.groups {
            let outcome = with_broken(id, after, || decide(snapshot, memory, policy));
            assert_eq!(outcome.report.failed.len(), 1, "{after}: {:?}", outcome.report.failed);
            assert_eq!(outcome.report.failed[0].group, *id, "{after}");
            for (variant, decision) in &outcome.decisions {
                if group.variants.iter().all(|state| state.variant.id != *variant) {
                    assert_eq!(decision, &usual.decisions[variant], "{after}: {id} broke");
                }
            }
            assert_eq!(desired(&outcome, &id.namespace), (2, Reason::CheckFailed), "{after}");
        }
    }
    let outcome = with_broken(&id, SHARING.end, || decide(snapshot, memory, policy));
    assert_eq!(outcome, usual, "there is nothing of it to break after that");
}

#[test]
fn what_a_broken_model_uses_of_a_limit_is_used_now_and_as_long_as_it_is_held() {
    // Two replicas of each model run, at 10 each, and each wants three.
    for (spend, other) in [(40.0, 2), (50.0, 3)] {
        let (mut context, id, _) = two_models();
        context.policy.limits.spend = crate::units::Cost::new(spend).ok();
        for after in 0..SHARING.end {
            let ModelContext { policy, memory, snapshot } = &context;
            let broken = with_broken(&id, after, || decide(snapshot, memory, policy));
            assert_eq!(desired(&broken, "default"), (2, Reason::CheckFailed), "{after}");
            // When it breaks after the sharing, what it was granted is used by nobody.
            let granted = if after < SHARING.end - 2 { other } else { desired(&broken, "other").0 };
            assert_eq!(desired(&broken, "other").0, granted, "{spend}, {after}");
            let mut memory = memory.clone();
            memory.groups.insert(id.clone(), broken.memory.groups[&id].clone());
            let held = decide(snapshot, &memory, policy);
            assert_eq!(desired(&held, "default"), (2, Reason::CheckFailed));
            assert_eq!(desired(&held, "other").0, other, "{spend}, {after}");
        }
    }
}

#[test]
fn a_model_that_breaks_where_pods_are_put_in_order_costs_no_other_its_order() {
    let (context, id, second) = two_models();
    let outcome = decide(&context.snapshot, &context.memory, &context.policy);
    let ordered = |after| {
        let found = with_broken(&id, after, || {
            crate::pod_deletion_order::deletion_orders(&context.snapshot, &outcome.decisions)
        });
        found.into_keys().map(|variant| variant.namespace).collect::<Vec<_>>()
    };
    assert_eq!(ordered(1), [id.namespace.clone(), second.namespace.clone()]);
    assert_eq!(ordered(0), [second.namespace]);
}

#[test]
fn a_model_whose_decision_was_given_up_is_held_like_one_that_broke() {
    let (context, id, second) = two_models();
    let (mut memory, now) = (context.memory.clone(), context.snapshot.now);
    crate::give_up(&mut memory, &id, now, "it had not ended after 30 s");
    let held = decide(&context.snapshot, &memory, &context.policy);
    assert_eq!(desired(&held, "default"), (2, Reason::CheckFailed));
    assert_eq!(desired(&held, "other").0, 3);
    assert!(held.report.failed[0].to_string().contains("not ended after 30 s"), "{:?}", held.report.failed);
    assert_eq!(
        held.memory.groups[&second],
        decide(&context.snapshot, &context.memory, &context.policy).memory.groups[&second]
    );
    // Once is once, until it would be tried again.
    let retry_at = |memory: &Memory| memory.groups[&id].failed.as_ref().map(|failed| failed.retry_at);
    let first = retry_at(&memory).unwrap();
    crate::give_up(&mut memory, &id, now, "it had not ended after 30 s");
    assert_eq!(retry_at(&memory), Some(first));
    crate::give_up(&mut memory, &id, first, "it had not ended after 30 s");
    assert_eq!(memory.groups[&id].failed.as_ref().map(|failed| failed.count), Some(2));
}

#[test]
fn an_order_at_zero_was_forgotten_while_its_pod_was_still_starting() {
    let learned: ObservedStarts = serde_json::from_str(r#"{"last":[400.0]}"#).unwrap();
    for (configured, starts) in [(400, ObservedStarts::default()), (120, learned)] {
        let is_ordered = |age: i64| {
            let mut context = busy();
            let policy = &mut context.policy.global.default;
            policy.rate.start_up = Seconds::whole(configured);
            policy.scale_to_zero = Some(ScaleToZero { enabled: true, ..ScaleToZero::default() });
            let now = context.snapshot.now;
            let memory = VariantMemory {
                target: Some(Replicas::ONE),
                target_since: Some(now - jiff::SignedDuration::from_secs(age)),
                evidence: Some(now),
                starts: starts.clone(),
                ..VariantMemory::default()
            };
            let id = GroupId::new("default", "m");
            context.memory.groups.get_mut(&id).unwrap().variants.insert("llama".into(), memory);
            let state = &mut context.snapshot.groups.get_mut(&id).unwrap().variants[0];
            state.variant.bounds.min = Replicas::ZERO;
            state.pods.clear();
            let [spec, current, ready] = [Replicas::ZERO; 3];
            state.scale = Some(Scale { spec, current, ready });
            let outcome = decide(&context.snapshot, &context.memory, &context.policy);
            desired(&outcome, "default") == (1, Reason::Transition)
        };
        // Starting takes 400 s, and an HPA needs up to 30 s to act on an order.
        assert_eq!([0, 301, 429, 431].map(is_ordered), [true, true, true, false], "{configured}");
    }
}
