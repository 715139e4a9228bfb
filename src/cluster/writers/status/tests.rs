//! What a status says after what it said before.

use serde_json::json;
use wva_core::decision::{GapCause, SignalGap};
use wva_core::snapshot::Signal;
use wva_core::units::Replicas;

use super::*;
use crate::cluster::writers::signal_gap::gap;
use crate::cluster::writers::status_events::events;

fn time(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

fn target(desired: u32, reason: Reason, message: &str) -> Decision {
    let target =
        Target { desired: Replicas::new(desired), reason, explanation: message.into(), evidence: time(0) };
    let verdict = Verdict::Target(target);
    Decision { model: "m".into(), accelerator: None, current: Some(Replicas::new(2)), verdict, gap: None }
}

fn unknown(cause: Cause) -> Decision {
    let verdict = Verdict::Unknown(Unknown { cause, explanation: "no evidence".into(), since: time(0) });
    Decision { model: "m".into(), accelerator: None, current: None, verdict, gap: None }
}

fn input(decision: &Decision, seconds: i64) -> StatusInput<'_> {
    StatusInput {
        decision,
        target: None,
        generation: 3,
        at: time(seconds),
        series: |_| Vec::new(),
        limit: None,
        pause: None,
        autoscaler: None,
    }
}

/// The status of an object that had none.
fn first(decision: &Decision) -> VariantAutoscalingStatus {
    render(&input(decision, 100), &VariantAutoscalingStatus::default())
}

fn find<'a>(status: &'a VariantAutoscalingStatus, type_: &str) -> &'a Condition {
    status.condition(type_).unwrap()
}

/// Status and reason of a condition.
fn state<'a>(status: &'a VariantAutoscalingStatus, type_: &str) -> (&'a str, &'a str) {
    let condition = find(status, type_);
    (&condition.status, &condition.reason)
}

#[test]
fn a_number_is_written_even_when_the_accelerator_is_unknown() {
    let alloc = first(&target(3, Reason::ScaleUp, "busy")).desired_optimized_alloc.unwrap();
    assert_eq!((alloc.num_replicas, alloc.accelerator.as_str()), (3, "unresolved"));
}

#[test]
fn applied_says_whether_the_workload_has_followed() {
    assert!(!first(&target(3, Reason::ScaleUp, "busy")).actuation.unwrap().applied);
    assert!(first(&target(2, Reason::Steady, "calm")).actuation.unwrap().applied);
}

#[test]
fn without_a_number_the_last_one_stays_and_the_condition_says_why() {
    let before = first(&target(3, Reason::ScaleUp, "busy"));
    let after = render(&input(&unknown(Cause::TooOld), 200), &before);
    assert_eq!(after.desired_optimized_alloc, before.desired_optimized_alloc);
    let metrics = find(&after, METRICS_AVAILABLE);
    assert_eq!((metrics.status.as_str(), metrics.message.as_str()), ("False", "no evidence"));
}

#[test]
fn a_transition_time_moves_only_with_the_status() {
    let before = first(&target(3, Reason::ScaleUp, "busy"));
    let after = render(&input(&target(4, Reason::SourceDown, "held"), 200), &before);
    assert_eq!(find(&after, OPTIMIZATION_READY).last_transition_time.0, time(100));
    assert_eq!(find(&after, METRICS_AVAILABLE).last_transition_time.0, time(200));
}

#[test]
fn a_status_differs_by_facts_text_or_figures_and_not_by_time() {
    let before = first(&target(2, Reason::Steady, "calm"));
    let later = |reason, message: &str| render(&input(&target(2, reason, message), 900), &before);
    assert_eq!(difference(&before, &later(Reason::Steady, "calm"), false), Difference::None);
    let [old, new] = ["9.5", "10"].map(|rate| later(Reason::Steady, &format!("calm at {rate} req/s")));
    assert_eq!(difference(&old, &new, true), Difference::Figures);
    assert_eq!(difference(&before, &later(Reason::Steady, "calmer"), false), Difference::Text);
    assert_eq!(difference(&before, &later(Reason::Stale, "calm"), false), Difference::Facts);
    let calm = target(2, Reason::Steady, "calm");
    let newer = render(&StatusInput { generation: 4, ..input(&calm, 900) }, &before);
    assert_eq!(difference(&before, &newer, false), Difference::Facts, "observedGeneration");
}

#[test]
fn signals_are_complete_only_when_the_analyzer_has_every_series() {
    let mut lacking = target(2, Reason::Steady, "calm");
    let missing = vec![Signal::Running];
    lacking.gap = Some(SignalGap { missing, ..gap(GapCause::SeriesDropped, 2, 2) });
    let before = first(&lacking);
    assert_eq!(state(&before, SIGNALS_COMPLETE), ("False", "SeriesDropped"));
    let message = &find(&before, SIGNALS_COMPLETE).message;
    assert!(message.starts_with("2 of 2 serving pods lack Running;"), "{message}");
    assert_eq!(find(&before, METRICS_AVAILABLE).status, "True", "as in upstream");
    let after = first(&target(2, Reason::Steady, "calm"));
    assert_eq!(find(&after, SIGNALS_COMPLETE).status, "True");
    assert_eq!(difference(&before, &after, false), Difference::Facts);
    let blind = first(&target(2, Reason::SourceDown, "held"));
    assert_eq!(find(&blind, SIGNALS_COMPLETE).status, "Unknown");
}

#[test]
fn a_partial_answer_of_the_source_is_not_reported_as_complete() {
    for (cause, begins) in [
        (GapCause::PartialSource, "the metric source's answer is incomplete (a store is down);"),
        (GapCause::PodsNotListed, "1 of 2 serving pods are not in the list of pods;"),
        (GapCause::NotLearned, "the analyzer has not learned the capacity of a replica"),
        (GapCause::Asleep, "the engines of 1 Ready pods sleep"),
    ] {
        let mut partial = target(2, Reason::Partial, "held");
        let warning = (cause == GapCause::PartialSource).then(|| "a store is down".into());
        partial.gap = Some(SignalGap { warning, ..gap(cause, 1, 2) });
        let status = first(&partial);
        assert_eq!(state(&status, SIGNALS_COMPLETE), ("False", cause.as_str()));
        let message = &find(&status, SIGNALS_COMPLETE).message;
        assert!(message.starts_with(begins), "{message}");
    }
}

#[test]
fn a_limit_that_is_not_enforced_has_a_condition_until_it_is() {
    let calm = target(2, Reason::Steady, "calm");
    let before = first(&calm);
    let unlabelled = LimitGap::UnlabelledNode { node: "gpu-7".into() };
    let with_gap = |limit| render(&StatusInput { limit, ..input(&calm, 200) }, &before);
    let open = with_gap(Some(&LimitGap::NoInventory));
    assert_eq!(state(&open, LIMIT_ENFORCED), ("False", "NoInventory"));
    assert_eq!(difference(&before, &open, false), Difference::Facts);
    let partial = with_gap(Some(&unlabelled));
    assert_eq!(state(&partial, LIMIT_ENFORCED), ("False", "UnlabelledNode"));
    let message = &find(&partial, LIMIT_ENFORCED).message;
    assert!(message.contains("the node gpu-7"), "{message}");
    assert_eq!(difference(&open, &partial, false), Difference::Facts);
    assert_eq!(difference(&open, &with_gap(None), false), Difference::Facts, "the condition is removed");
    assert_eq!(difference(&before, &with_gap(None), false), Difference::None);
}

#[test]
fn a_paused_scaled_object_is_a_condition_and_one_event_until_it_is_resumed() {
    let calm = target(2, Reason::Steady, "calm");
    let before = first(&calm);
    let with = |pause| render(&StatusInput { pause, ..input(&calm, 200) }, &before);
    let paused = with(Some("ScaledObject chat: KEDA does not apply the number"));
    assert_eq!(state(&paused, PAUSED), ("True", "Paused"));
    assert_eq!(find(&paused, PAUSED).message, "ScaledObject chat: KEDA does not apply the number");
    assert_eq!(state(&paused, OPTIMIZATION_READY), ("True", "OptimizationSucceeded"), "the number stays");
    assert_eq!(difference(&before, &paused, false), Difference::Facts);
    let reasons = |old: &VariantAutoscalingStatus, new: &VariantAutoscalingStatus| {
        events(old, new).into_iter().map(|event| event.reason).collect::<Vec<_>>()
    };
    assert_eq!((reasons(&before, &paused), reasons(&paused, &paused)), (vec!["Paused".to_owned()], vec![]));
    assert_eq!(difference(&paused, &with(None), false), Difference::Facts, "the condition is removed");
    assert!(with(None).condition(PAUSED).is_none() && reasons(&paused, &with(None)).is_empty());
}

/// A number with these reasons as data.
fn explained(desired: u32, reason: Reason, explanation: &serde_json::Value) -> Decision {
    let mut decision = target(desired, reason, "");
    if let Verdict::Target(target) = &mut decision.verdict {
        let written = json!({ "message": "", "explanation": explanation });
        target.explanation = serde_json::from_value(written).unwrap();
    }
    decision
}

/// Held back by `limit`: one replica instead of three.
fn limited(limit: &str) -> Decision {
    let binding = json!({ "limit": limit, "key": "H100", "budget": 8.0, "used": 8.0, "free": 0.0 });
    let why = json!({ "kind": "limit", "binding": binding });
    let adjustment = json!({ "stage": "limit", "from": 3, "to": 1, "why": why });
    let basis = json!({ "kind": "analyzed" });
    let explanation = json!({ "number": 1, "basis": basis, "adjustments": [adjustment] });
    explained(1, Reason::Bounded, &explanation)
}

#[test]
fn replicas_that_a_limit_holds_back_are_a_condition_with_its_name() {
    let constrained = first(&limited("team-a"));
    assert_eq!(state(&constrained, CAPACITY_CONSTRAINED), ("True", "LimitReached"));
    let message = &find(&constrained, CAPACITY_CONSTRAINED).message;
    assert!(message.starts_with("1 instead of 3: team-a of H100: 0.0 of 8.0 free"), "{message}");
    assert!(message.ends_with("it ends when the limit is raised, or others use less of it"), "{message}");
    let calm = explained(2, Reason::Steady, &json!({ "number": 2, "basis": { "kind": "idle" } }));
    let lifted = render(&input(&calm, 200), &constrained);
    assert_eq!(state(&lifted, CAPACITY_CONSTRAINED), ("False", "NotConstrained"));
    assert_eq!(find(&lifted, CAPACITY_CONSTRAINED).last_transition_time.0, time(200));
    let nothing = first(&unknown(Cause::TooOld));
    assert_eq!(state(&nothing, CAPACITY_CONSTRAINED), ("Unknown", "MetricsUnavailable"));
}

#[test]
fn an_outage_of_the_source_or_a_new_leader_ended_a_limit_and_reported_it_again() {
    let before = first(&limited("team-a"));
    let down = json!({ "number": 1, "basis": { "kind": "sourceDown", "cause": "refused" } });
    let starting = json!({ "number": 1, "basis": { "kind": "podsStarting", "starting": 1 } });
    // A number that was restored has the text of its reasons only, until the analyzer's next cycle.
    let restored = target(1, Reason::Bounded, "limited");
    let held = [(Reason::SourceDown, down), (Reason::Starting, starting)];
    for held in held.map(|(reason, why)| explained(1, reason, &why)).into_iter().chain([restored]) {
        let during = render(&input(&held, 200), &before);
        assert_eq!(find(&during, CAPACITY_CONSTRAINED), find(&before, CAPACITY_CONSTRAINED));
        let after = render(&input(&limited("team-a"), 300), &during);
        assert_eq!(find(&after, CAPACITY_CONSTRAINED), find(&before, CAPACITY_CONSTRAINED));
        let events = events(&before, &during).into_iter().chain(events(&during, &after));
        assert_eq!(events.filter(|event| event.reason == "LimitReached").count(), 0);
        assert_eq!(state(&first(&held), CAPACITY_CONSTRAINED), ("Unknown", "NotAnalyzed"));
    }
}

#[test]
fn a_limit_that_is_asked_once_a_minute_seemed_to_end_in_between() {
    let before = first(&limited("team-a"));
    let analyzed = json!({ "kind": "analyzed" });
    let denied = json!({ "number": 1, "basis": analyzed, "hindrance": { "kind": "denied" } });
    let denied = explained(1, Reason::Steady, &denied);
    let between = render(&input(&denied, 200), &before);
    assert_eq!(find(&between, CAPACITY_CONSTRAINED), find(&before, CAPACITY_CONSTRAINED));
    assert_eq!(state(&first(&denied), CAPACITY_CONSTRAINED), ("True", "LimitReached"));
    let granted = explained(3, Reason::ScaleUp, &json!({ "number": 3, "basis": analyzed }));
    let after = render(&input(&granted, 300), &between);
    assert_eq!(state(&after, CAPACITY_CONSTRAINED), ("False", "NotConstrained"));
}

#[test]
fn a_scale_target_is_named_with_its_kind() {
    let chat = TargetRef { kind: "StatefulSet".into(), ..TargetRef::deployment("chat") };
    let (calm, missing) = (target(2, Reason::Steady, "calm"), unknown(Cause::TargetNotFound));
    for (decision, message) in [
        (&calm, "Scale target StatefulSet chat found"),
        (&missing, "Scale target StatefulSet chat not found"),
    ] {
        let input = StatusInput { target: Some(&chat), ..input(decision, 100) };
        let status = render(&input, &VariantAutoscalingStatus::default());
        assert_eq!(find(&status, TARGET_RESOLVED).message, message);
    }
}

#[test]
fn a_missing_target_and_an_invalid_object_have_different_conditions() {
    let missing = first(&unknown(Cause::TargetNotFound));
    assert_eq!(state(&missing, TARGET_RESOLVED), ("False", "TargetNotFound"));
    let unseen = first(&unknown(Cause::TargetUnknown));
    assert_eq!(state(&unseen, TARGET_RESOLVED), ("Unknown", "TargetUnknown"));
    assert_eq!(find(&unseen, TARGET_RESOLVED).message, "no evidence", "why it is not known");
    let unnamed = first(&unknown(Cause::ModelUnknown));
    assert_eq!(state(&unnamed, TARGET_RESOLVED), ("Unknown", "ModelUnknown"));
    assert_eq!(state(&unnamed, OPTIMIZATION_READY), ("False", "ModelUnknown"));
    let invalid = first(&unknown(Cause::InvalidVariant));
    assert_eq!(find(&invalid, TARGET_RESOLVED).status, "Unknown");
    assert_eq!(find(&invalid, METRICS_AVAILABLE).reason, "InvalidConfiguration");
}

#[test]
fn an_autoscaler_that_does_not_follow_is_a_condition_and_one_event_until_it_is_mended() {
    let calm = target(2, Reason::Steady, "calm");
    let before = first(&calm);
    assert!(before.condition(AUTOSCALER_CONFIGURED).is_none(), "nothing reads the number");
    let with = |follows, reason, message: &str| {
        let verdict = AutoscalerVerdict { follows, reason, message: message.into(), findings: Vec::new() };
        render(&StatusInput { autoscaler: Some(&verdict), ..input(&calm, 200) }, &before)
    };
    let reasons = |old: &VariantAutoscalingStatus, new: &VariantAutoscalingStatus| -> Vec<String> {
        events(old, new).into_iter().map(|event| event.reason).collect()
    };
    let wrong = with(false, "TargetTypeMultiplies", "HPA chat multiplies");
    assert_eq!(state(&wrong, AUTOSCALER_CONFIGURED), ("False", "TargetTypeMultiplies"));
    assert_eq!(reasons(&before, &wrong), ["TargetTypeMultiplies"]);
    assert!(reasons(&wrong, &wrong).is_empty(), "once");
    let slow = with(true, "RemovalsDelayed", "300 s");
    assert_eq!(state(&slow, AUTOSCALER_CONFIGURED), ("True", "RemovalsDelayed"));
    assert_eq!(reasons(&before, &slow), ["RemovalsDelayed"], "it costs money");
    assert!(reasons(&slow, &slow).is_empty(), "once");
    let right = with(true, AutoscalerVerdict::AS_EXPECTED, "they follow it");
    assert_eq!(state(&right, AUTOSCALER_CONFIGURED), ("True", "AsExpected"));
    assert!(reasons(&wrong, &right).is_empty());
    assert_eq!(difference(&wrong, &right, false), Difference::Facts);
}
