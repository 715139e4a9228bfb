//! Decisions → the status of a `VariantAutoscaling`. Pure: the conditions and their messages; writing is in `status_writer`.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use wva_core::Decision;
use wva_core::decision::{Cause, Reason, Target, Unknown, Verdict};
use wva_core::model::TargetRef;
use wva_core::report::LimitGap;

use super::signal_gap::{SeriesOf, describe_gap};
use crate::cluster::crd::{
    Actuation, CONDITIONS, LIMIT_ENFORCED, METRICS_AVAILABLE, OPTIMIZATION_READY, OptimizedAlloc,
    SIGNALS_COMPLETE, TARGET_RESOLVED, VariantAutoscalingStatus,
};
use crate::cluster::text::shortened;

/// Written where the accelerator's name is not known: the field is required.
const UNRESOLVED: &str = "unresolved";
/// Shortest name of an accelerator that the schema accepts.
const MIN_ACCELERATOR_CHARS: usize = 2;
/// Longest message of a condition: the schema allows 32,768 bytes, and a person reads far less.
const MAX_MESSAGE_BYTES: usize = 1024;

/// How much a stored status differs from the new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Difference {
    /// Not at all, or only in `lastRunTime`.
    None,
    /// In figures within messages.
    Figures,
    /// In the text of messages.
    Text,
    /// In a number, a name, or a condition's status or reason.
    Facts,
}

/// What a status is rendered from.
pub(crate) struct StatusInput<'a> {
    pub(crate) decision: &'a Decision,
    /// The scale target; `None` when the spec is invalid.
    pub(crate) target: Option<&'a TargetRef>,
    /// Of the object.
    pub(crate) generation: i64,
    pub(crate) at: Timestamp,
    /// Names the series of missing signals.
    pub(crate) series: SeriesOf,
    /// The limit that is configured and not enforced, if any.
    pub(crate) limit: Option<&'a LimitGap>,
}

/// Status, reason and message of a condition.
struct ConditionState {
    status: &'static str,
    reason: &'static str,
    message: String,
}

impl ConditionState {
    fn new(status: &'static str, reason: &'static str, message: impl Into<String>) -> Self {
        Self { status, reason, message: message.into() }
    }
}

/// The status of an object, given its `old` one. A variant without a number keeps its last allocation.
pub(crate) fn render(input: &StatusInput<'_>, old: &VariantAutoscalingStatus) -> VariantAutoscalingStatus {
    let StatusInput { decision, at, .. } = *input;
    let (desired_optimized_alloc, actuation) = match &decision.verdict {
        Verdict::Target(target) => {
            let applied = decision.current == Some(target.desired);
            (Some(alloc(decision, target, at)), Some(Actuation { applied }))
        }
        Verdict::Unknown(_) => (old.desired_optimized_alloc.clone(), old.actuation.clone()),
    };
    let mut states = vec![
        (TARGET_RESOLVED, target_resolved(decision, input.target)),
        (METRICS_AVAILABLE, metrics_available(&decision.verdict)),
        (SIGNALS_COMPLETE, signals_complete(decision, input.series)),
        (OPTIMIZATION_READY, optimization_ready(&decision.verdict)),
    ];
    if let Some(gap) = input.limit {
        states.push((LIMIT_ENFORCED, ConditionState::new("False", gap.as_str(), gap.to_string())));
    }
    let conditions = states.into_iter().map(|(type_, state)| condition(type_, state, input, old)).collect();
    VariantAutoscalingStatus { desired_optimized_alloc, actuation, conditions }
}

fn alloc(decision: &Decision, target: &Target, at: Timestamp) -> OptimizedAlloc {
    let name = decision.accelerator.as_ref().filter(|name| name.chars().count() >= MIN_ACCELERATOR_CHARS);
    OptimizedAlloc {
        last_run_time: Some(Time(at)),
        accelerator: name.map_or(UNRESOLVED, |name| name.as_str()).to_owned(),
        num_replicas: i32::try_from(target.desired.get()).unwrap_or(i32::MAX),
    }
}

fn target_resolved(decision: &Decision, target: Option<&TargetRef>) -> ConditionState {
    let target = target.map(ToString::to_string).unwrap_or_default();
    match &decision.verdict {
        Verdict::Unknown(unknown) if unknown.cause == Cause::InvalidVariant => {
            ConditionState::new("Unknown", "InvalidConfiguration", unknown.explanation.to_string())
        }
        Verdict::Unknown(unknown) if unknown.cause == Cause::TargetUnknown => {
            ConditionState::new("Unknown", "TargetUnknown", unknown.explanation.to_string())
        }
        _ if decision.current.is_some() => {
            ConditionState::new("True", "TargetFound", format!("Scale target {target} found"))
        }
        _ => ConditionState::new("False", "TargetNotFound", format!("Scale target {target} not found")),
    }
}

fn metrics_available(verdict: &Verdict) -> ConditionState {
    match verdict {
        Verdict::Target(target) => {
            let (status, reason) = match target.reason {
                Reason::ScaleFromZero => ("True", "ScaleFromZero"),
                Reason::Starting | Reason::MetricsMissing => ("False", "MetricsMissing"),
                Reason::Stale => ("False", "MetricsStale"),
                Reason::SourceDown => ("False", "PrometheusError"),
                Reason::ScaleUp
                | Reason::ScaleDown
                | Reason::Steady
                | Reason::Transition
                | Reason::Bounded
                | Reason::ScaleToZero
                | Reason::Partial
                | Reason::CheckFailed => ("True", "MetricsFound"),
            };
            let message = match reason {
                "MetricsFound" => "Saturation metrics data is available for scaling decisions".into(),
                _ => target.explanation.to_string(),
            };
            ConditionState { status, reason, message }
        }
        Verdict::Unknown(unknown) => {
            let reason = match unknown.cause {
                Cause::NothingKnown => "MetricsMissing",
                Cause::TooOld => "MetricsStale",
                Cause::InvalidVariant => "InvalidConfiguration",
                Cause::TargetNotFound | Cause::TargetUnknown => "MetricsUnavailable",
            };
            ConditionState::new("False", reason, unknown.explanation.to_string())
        }
    }
}

/// Which signals the analyzer lacks. `MetricsAvailable` says only whether there are any at all, as in upstream.
fn signals_complete(decision: &Decision, series: SeriesOf) -> ConditionState {
    if let Some(gap) = &decision.gap {
        return ConditionState::new("False", gap.cause.as_str(), describe_gap(gap, series));
    }
    let metrics = metrics_available(&decision.verdict);
    if metrics.status == "True" {
        let message = "every signal that the analyzer reads is measured on every serving pod";
        return ConditionState::new("True", "SignalsMeasured", message);
    }
    ConditionState { status: "Unknown", ..metrics }
}

fn optimization_ready(verdict: &Verdict) -> ConditionState {
    match verdict {
        Verdict::Target(target) => {
            let reason = match target.reason {
                Reason::CheckFailed => "OptimizationFailed",
                Reason::ScaleFromZero => "ScaleFromZeroMode",
                Reason::MetricsMissing | Reason::Partial | Reason::Stale | Reason::SourceDown => {
                    "SaturationSafetyOverride"
                }
                _ => "OptimizationSucceeded",
            };
            let status = if target.reason == Reason::CheckFailed { "False" } else { "True" };
            ConditionState::new(status, reason, target.explanation.to_string())
        }
        Verdict::Unknown(Unknown { cause, explanation, .. }) => {
            let reason = match cause {
                Cause::InvalidVariant => "InvalidConfiguration",
                Cause::TargetNotFound | Cause::TargetUnknown => "SkippedProcessing",
                Cause::NothingKnown | Cause::TooOld => "MetricsUnavailable",
            };
            ConditionState::new("False", reason, explanation.to_string())
        }
    }
}

fn condition(
    type_: &str,
    state: ConditionState,
    input: &StatusInput<'_>,
    old: &VariantAutoscalingStatus,
) -> Condition {
    let same_status = old.condition(type_).filter(|condition| condition.status == state.status);
    Condition {
        type_: type_.into(),
        status: state.status.into(),
        reason: state.reason.into(),
        message: shortened(&state.message, MAX_MESSAGE_BYTES).into(),
        observed_generation: Some(input.generation),
        last_transition_time: same_status
            .map_or(Time(input.at), |condition| condition.last_transition_time.clone()),
    }
}

/// How much `old` differs from `new`. With `has_same_reasons`, messages differ only in their figures. Conditions of other
/// writers do not count.
pub(crate) fn difference(
    old: &VariantAutoscalingStatus,
    new: &VariantAutoscalingStatus,
    has_same_reasons: bool,
) -> Difference {
    let alloc = |status: &VariantAutoscalingStatus| {
        status.desired_optimized_alloc.as_ref().map(|alloc| (alloc.num_replicas, alloc.accelerator.clone()))
    };
    if alloc(old) != alloc(new) || old.actuation != new.actuation {
        return Difference::Facts;
    }
    let is_ours = |old: &&Condition| CONDITIONS.contains(&old.type_.as_str());
    if old.conditions.iter().filter(is_ours).any(|old| new.condition(&old.type_).is_none()) {
        return Difference::Facts;
    }
    let of_condition = |new: &Condition| {
        let facts = |condition: &Condition| {
            (condition.status.clone(), condition.reason.clone(), condition.observed_generation)
        };
        match old.condition(&new.type_) {
            Some(old) if facts(old) != facts(new) => Difference::Facts,
            Some(old) if old.message == new.message => Difference::None,
            Some(_) if has_same_reasons => Difference::Figures,
            Some(_) => Difference::Text,
            None => Difference::Facts,
        }
    };
    new.conditions.iter().map(of_condition).max().unwrap_or(Difference::None)
}

/// True when `now` has the same reasons as `before` and lacks the same signals, whatever the numbers are.
pub(crate) fn has_same_reasons(before: &Decision, now: &Decision) -> bool {
    let gap = |decision: &Decision| {
        let gap = decision.gap.as_ref()?;
        Some((gap.cause, gap.missing.clone(), gap.contradicted.clone(), gap.fallback, gap.warning.clone()))
    };
    before.verdict.explanation().has_same_reasons(now.verdict.explanation()) && gap(before) == gap(now)
}

#[cfg(test)]
mod tests {
    use wva_core::decision::{GapCause, SignalGap};
    use wva_core::snapshot::Signal;
    use wva_core::units::Replicas;

    use super::*;
    use crate::cluster::writers::signal_gap::gap;

    fn time(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    fn target(desired: u32, reason: Reason, message: &str) -> Decision {
        let target = Target {
            desired: Replicas::new(desired),
            reason,
            explanation: message.into(),
            evidence: time(0),
        };
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
        let invalid = first(&unknown(Cause::InvalidVariant));
        assert_eq!(find(&invalid, TARGET_RESOLVED).status, "Unknown");
        assert_eq!(find(&invalid, METRICS_AVAILABLE).reason, "InvalidConfiguration");
    }
}
