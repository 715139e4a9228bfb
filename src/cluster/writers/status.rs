//! Decisions → the status of a `VariantAutoscaling`. Pure: the conditions and their messages; writing is in `status_writer`.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use wva_core::Decision;
use wva_core::decision::{Cause, Reason, Target, Unknown, Verdict};
use wva_core::model::TargetRef;
use wva_core::report::LimitGap;

use super::signal_gap::{SeriesOf, describe_gap};
use crate::cluster::crd::{
    AUTOSCALER_CONFIGURED, Actuation, CAPACITY_CONSTRAINED, CONDITIONS, LIMIT_ENFORCED, METRICS_AVAILABLE,
    OPTIMIZATION_READY, OptimizedAlloc, PAUSED, SIGNALS_COMPLETE, TARGET_RESOLVED, VariantAutoscalingStatus,
};
use crate::cluster::watch::AutoscalerVerdict;
use wva_core::text::shortened;

/// The reason of conditions while it is not known which model the pods serve.
const MODEL_UNKNOWN: &str = "ModelUnknown";
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
    /// Of the object that was decided about.
    pub(crate) generation: i64,
    pub(crate) at: Timestamp,
    /// Names the series of missing signals.
    pub(crate) series: SeriesOf,
    /// The limit that is configured and not enforced, if any.
    pub(crate) limit: Option<&'a LimitGap>,
    /// Whether the autoscalers of its target follow the number; `None` if they are not known.
    pub(crate) autoscaler: Option<&'a AutoscalerVerdict>,
    /// Why KEDA does not follow the number, if it does not.
    pub(crate) pause: Option<&'a str>,
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
    let constrained = capacity_constrained(&decision.verdict, old.condition(CAPACITY_CONSTRAINED));
    let is_kept = constrained.is_none();
    states.extend(constrained.map(|state| (CAPACITY_CONSTRAINED, state)));
    if let Some(gap) = input.limit {
        states.push((LIMIT_ENFORCED, ConditionState::new("False", gap.as_str(), gap.to_string())));
    }
    states.extend(input.autoscaler.map(|verdict| {
        let status = if verdict.follows { "True" } else { "False" };
        (AUTOSCALER_CONFIGURED, ConditionState::new(status, verdict.reason, verdict.message.as_str()))
    }));
    states.extend(input.pause.map(|note| (PAUSED, ConditionState::new("True", PAUSED, note))));
    let mut conditions: Vec<_> =
        states.into_iter().map(|(type_, state)| condition(type_, state, input, old)).collect();
    conditions.extend(old.condition(CAPACITY_CONSTRAINED).filter(|_| is_kept).cloned());
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
        Verdict::Unknown(unknown) if unknown.cause == Cause::ModelUnknown => {
            ConditionState::new("Unknown", MODEL_UNKNOWN, unknown.explanation.to_string())
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
                Cause::ModelUnknown => MODEL_UNKNOWN,
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
                Cause::ModelUnknown => MODEL_UNKNOWN,
            };
            ConditionState::new("False", reason, explanation.to_string())
        }
    }
}

/// What holds replicas back. `None` where `old` stays: a number that is only held says nothing new, and a limit that denied replicas a
/// moment ago is named there.
fn capacity_constrained(verdict: &Verdict, old: Option<&Condition>) -> Option<ConditionState> {
    let Verdict::Target(target) = verdict else {
        return Some(ConditionState { status: "Unknown", ..optimization_ready(verdict) });
    };
    let is_known = old.is_some_and(|old| old.status != "Unknown");
    let is_limited = old.is_some_and(|old| old.reason == "LimitReached");
    match target.explanation.capacity_constraint() {
        Some(constraint) if constraint.is_earlier() && is_limited => None,
        Some(constraint) => Some(ConditionState::new("True", constraint.as_str(), constraint.to_string())),
        None if target.explanation.rests_on_finding() => {
            let message = "every replica that is needed is granted";
            Some(ConditionState::new("False", "NotConstrained", message))
        }
        None if is_known => None,
        None => {
            Some(ConditionState::new("Unknown", "NotAnalyzed", "no analyzer has found yet what is needed"))
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
mod tests;
