//! Decisions → the status of a `VariantAutoscaling`. Pure: the words and conditions; writing is in `status_writer`.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use wva_core::Decision;
use wva_core::decision::{Cause, Reason, Target, Unknown, Verdict};
use wva_core::report::LimitGap;

use super::signal_gap::{SeriesOf, sentence};
use crate::cluster::crd::{
    Actuation, CONDITIONS, LIMIT_ENFORCED, METRICS_AVAILABLE, OPTIMIZATION_READY, OptimizedAlloc,
    SIGNALS_COMPLETE, TARGET_RESOLVED, VariantAutoscalingStatus,
};
use crate::cluster::text::shortened;

/// Written where the accelerator's name is not known: the field is required and has at least two characters.
const UNRESOLVED: &str = "unresolved";
/// Shortest name of an accelerator that the schema accepts.
const ACCELERATOR_MIN_CHARS: usize = 2;
/// Longest message of a condition: the schema allows 32,768 bytes, and a person reads far less.
const MESSAGE_MAX_BYTES: usize = 1024;

/// How much a stored status differs from the wanted one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Difference {
    /// Not at all, or only in `lastRunTime`.
    None,
    /// In figures within messages.
    Figures,
    /// In what messages say.
    Words,
    /// In a number, a name, or a condition's status or reason.
    Facts,
}

/// What a condition says.
struct Finding {
    status: &'static str,
    reason: &'static str,
    message: String,
}

/// The wanted status of an object of `generation`, given its `old` one. Of a variant without a number the last
/// allocation stays.
pub(crate) fn render(
    decision: &Decision,
    target: Option<&str>,
    generation: i64,
    at: Timestamp,
    old: &VariantAutoscalingStatus,
    (series, limit): (SeriesOf, Option<&LimitGap>),
) -> VariantAutoscalingStatus {
    let alloc = match &decision.verdict {
        Verdict::Target(target) => Some(alloc(decision, target, at)),
        Verdict::Unknown(_) => old.desired_optimized_alloc.clone(),
    };
    let actuation = match &decision.verdict {
        Verdict::Target(target) => Some(Actuation { applied: decision.current == Some(target.desired) }),
        Verdict::Unknown(_) => old.actuation.clone(),
    };
    let findings = [
        (TARGET_RESOLVED, target_resolved(decision, target)),
        (METRICS_AVAILABLE, metrics_available(&decision.verdict)),
        (SIGNALS_COMPLETE, signals_complete(decision, series)),
        (OPTIMIZATION_READY, optimization_ready(&decision.verdict)),
    ];
    let limit = limit.map(|gap| Finding { status: "False", reason: gap.as_str(), message: gap.to_string() });
    let findings = findings.into_iter().chain(limit.map(|finding| (LIMIT_ENFORCED, finding)));
    let conditions =
        findings.map(|(type_, finding)| condition(type_, finding, generation, at, old)).collect();
    VariantAutoscalingStatus { desired_optimized_alloc: alloc, actuation, conditions }
}

fn alloc(decision: &Decision, target: &Target, at: Timestamp) -> OptimizedAlloc {
    let named = decision.accelerator.as_ref().filter(|name| name.chars().count() >= ACCELERATOR_MIN_CHARS);
    OptimizedAlloc {
        last_run_time: Some(Time(at)),
        accelerator: named.map_or(UNRESOLVED, |name| name.as_str()).to_owned(),
        num_replicas: i32::try_from(target.desired.get()).unwrap_or(i32::MAX),
    }
}

fn target_resolved(decision: &Decision, target: Option<&str>) -> Finding {
    let name = target.unwrap_or_default();
    match &decision.verdict {
        Verdict::Unknown(unknown) if unknown.cause == Cause::InvalidVariant => Finding {
            status: "Unknown",
            reason: "InvalidConfiguration",
            message: unknown.message.to_string(),
        },
        _ if decision.current.is_some() => Finding {
            status: "True",
            reason: "TargetFound",
            message: format!("Scale target Deployment {name} found"),
        },
        _ => Finding {
            status: "False",
            reason: "TargetNotFound",
            message: format!("Scale target Deployment {name} not found"),
        },
    }
}

fn metrics_available(verdict: &Verdict) -> Finding {
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
                _ => target.message.to_string(),
            };
            Finding { status, reason, message }
        }
        Verdict::Unknown(unknown) => {
            let reason = match unknown.cause {
                Cause::NothingKnown => "MetricsMissing",
                Cause::TooOld => "MetricsStale",
                Cause::InvalidVariant => "InvalidConfiguration",
                Cause::TargetNotFound => "MetricsUnavailable",
            };
            Finding { status: "False", reason, message: unknown.message.to_string() }
        }
    }
}

/// What the analyzer lacks. `MetricsAvailable` says, as upstream does, whether there is anything at all.
fn signals_complete(decision: &Decision, series: SeriesOf) -> Finding {
    if let Some(gap) = &decision.gap {
        return Finding { status: "False", reason: gap.cause.as_str(), message: sentence(gap, series) };
    }
    let metrics = metrics_available(&decision.verdict);
    if metrics.status == "True" {
        let message = "every signal that the analyzer reads is measured on every serving pod".into();
        return Finding { status: "True", reason: "SignalsMeasured", message };
    }
    Finding { status: "Unknown", ..metrics }
}

fn optimization_ready(verdict: &Verdict) -> Finding {
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
            Finding {
                status,
                reason,
                message: format!("{} (target: {} replicas)", target.message, target.desired),
            }
        }
        Verdict::Unknown(Unknown { cause, message, .. }) => {
            let reason = match cause {
                Cause::InvalidVariant => "InvalidConfiguration",
                Cause::TargetNotFound => "SkippedProcessing",
                Cause::NothingKnown | Cause::TooOld => "MetricsUnavailable",
            };
            Finding { status: "False", reason, message: message.to_string() }
        }
    }
}

fn condition(
    type_: &str,
    finding: Finding,
    generation: i64,
    at: Timestamp,
    old: &VariantAutoscalingStatus,
) -> Condition {
    let before = old.conditions.iter().find(|condition| condition.type_ == type_);
    let unchanged = before.filter(|condition| condition.status == finding.status);
    Condition {
        type_: type_.into(),
        status: finding.status.into(),
        reason: finding.reason.into(),
        message: shortened(&finding.message, MESSAGE_MAX_BYTES).into(),
        observed_generation: Some(generation),
        last_transition_time: unchanged.map_or(Time(at), |condition| condition.last_transition_time.clone()),
    }
}

/// How much `old` differs from `new`. Conditions that are not ours do not count.
pub(crate) fn difference(old: &VariantAutoscalingStatus, new: &VariantAutoscalingStatus) -> Difference {
    let alloc = |status: &VariantAutoscalingStatus| {
        status.desired_optimized_alloc.as_ref().map(|alloc| (alloc.num_replicas, alloc.accelerator.clone()))
    };
    if alloc(old) != alloc(new) || old.actuation != new.actuation {
        return Difference::Facts;
    }
    let ours = |old: &&Condition| CONDITIONS.contains(&old.type_.as_str());
    if old.conditions.iter().filter(ours).any(|old| new.conditions.iter().all(|new| new.type_ != old.type_)) {
        return Difference::Facts;
    }
    let of = |new: &Condition| {
        let old = old.conditions.iter().find(|old| old.type_ == new.type_);
        let facts = |condition: &Condition| {
            (condition.status.clone(), condition.reason.clone(), condition.observed_generation)
        };
        match old {
            Some(old) if facts(old) != facts(new) => Difference::Facts,
            Some(old) if old.message == new.message => Difference::None,
            Some(old) if words(&old.message).eq(words(&new.message)) => Difference::Figures,
            Some(_) => Difference::Words,
            None => Difference::Facts,
        }
    };
    new.conditions.iter().map(of).max().unwrap_or(Difference::None)
}

/// A message without its figures.
fn words(message: &str) -> impl Iterator<Item = char> {
    message.chars().filter(|char| !char.is_ascii_digit() && *char != '.')
}

#[cfg(test)]
mod tests {
    use wva_core::decision::{GapCause, SignalGap};
    use wva_core::snapshot::Signal;
    use wva_core::units::Replicas;

    use super::*;

    fn time(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    fn target(desired: u32, reason: Reason, message: &str) -> Decision {
        let (desired, evidence) = (Replicas::new(desired), time(0));
        let verdict = Verdict::Target(Target { desired, reason, message: message.into(), evidence });
        Decision { model: "m".into(), accelerator: None, current: Some(Replicas::new(2)), verdict, gap: None }
    }

    fn unknown(cause: Cause) -> Decision {
        let verdict = Verdict::Unknown(Unknown { cause, message: "nobody knows".into(), since: time(0) });
        Decision { model: "m".into(), accelerator: None, current: None, verdict, gap: None }
    }

    fn first(decision: &Decision) -> VariantAutoscalingStatus {
        render(
            decision,
            Some("chat"),
            3,
            time(100),
            &VariantAutoscalingStatus::default(),
            (|_| Vec::new(), None),
        )
    }

    fn find<'a>(status: &'a VariantAutoscalingStatus, type_: &str) -> &'a Condition {
        status.conditions.iter().find(|condition| condition.type_ == type_).unwrap()
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
    fn not_knowing_keeps_the_last_number_and_says_so() {
        let before = first(&target(3, Reason::ScaleUp, "busy"));
        let after =
            render(&unknown(Cause::TooOld), Some("chat"), 3, time(200), &before, (|_| Vec::new(), None));
        assert_eq!(after.desired_optimized_alloc, before.desired_optimized_alloc);
        let metrics = find(&after, METRICS_AVAILABLE);
        assert_eq!((metrics.status.as_str(), metrics.message.as_str()), ("False", "nobody knows"));
    }

    #[test]
    fn a_transition_time_moves_only_with_the_status() {
        let before = first(&target(3, Reason::ScaleUp, "busy"));
        let after = render(
            &target(4, Reason::SourceDown, "held"),
            Some("chat"),
            3,
            time(200),
            &before,
            (|_| Vec::new(), None),
        );
        assert_eq!(find(&after, OPTIMIZATION_READY).last_transition_time.0, time(100));
        assert_eq!(find(&after, METRICS_AVAILABLE).last_transition_time.0, time(200));
    }

    #[test]
    fn time_passing_is_no_reason_to_write() {
        let before = first(&target(2, Reason::Steady, "calm"));
        let later = render(
            &target(2, Reason::Steady, "calm"),
            Some("chat"),
            3,
            time(900),
            &before,
            (|_| Vec::new(), None),
        );
        assert_eq!(difference(&before, &later), Difference::None);
        let figures = |figure: &str| {
            let message = format!("calm at {figure} req/s");
            render(
                &target(2, Reason::Steady, &message),
                Some("chat"),
                3,
                time(900),
                &before,
                (|_| Vec::new(), None),
            )
        };
        assert_eq!(difference(&figures("9.5"), &figures("10")), Difference::Figures);
        let words = render(
            &target(2, Reason::Steady, "calmer"),
            Some("chat"),
            3,
            time(900),
            &before,
            (|_| Vec::new(), None),
        );
        assert_eq!(difference(&before, &words), Difference::Words);
        let facts = render(
            &target(2, Reason::Stale, "calm"),
            Some("chat"),
            3,
            time(900),
            &before,
            (|_| Vec::new(), None),
        );
        assert_eq!(difference(&before, &facts), Difference::Facts);
        let newer = render(
            &target(2, Reason::Steady, "calm"),
            Some("chat"),
            4,
            time(900),
            &before,
            (|_| Vec::new(), None),
        );
        assert_eq!(difference(&before, &newer), Difference::Facts, "observedGeneration");
    }

    #[test]
    fn an_analyzer_that_lacks_a_series_is_no_good_news() {
        let mut lacking = target(2, Reason::Steady, "calm");
        lacking.gap = Some(SignalGap {
            cause: GapCause::SeriesDropped,
            pods: 2,
            serving: 2,
            missing: vec![Signal::Running],
            contradicted: Vec::new(),
            stand_in: None,
            warning: None,
        });
        let before = first(&lacking);
        let complete = find(&before, SIGNALS_COMPLETE);
        assert_eq!((complete.status.as_str(), complete.reason.as_str()), ("False", "SeriesDropped"));
        assert!(complete.message.starts_with("2 of 2 serving pods lack Running;"), "{}", complete.message);
        assert_eq!(find(&before, METRICS_AVAILABLE).status, "True", "what it means is upstream's");
        let after = first(&target(2, Reason::Steady, "calm"));
        assert_eq!(find(&after, SIGNALS_COMPLETE).status, "True");
        assert_eq!(difference(&before, &after), Difference::Facts);
        let blind = first(&target(2, Reason::SourceDown, "held"));
        assert_eq!(find(&blind, SIGNALS_COMPLETE).status, "Unknown");
    }

    #[test]
    fn a_source_that_answered_in_part_was_told_as_complete() {
        for (cause, begins) in [
            (GapCause::PartialSource, "the source's answer is not whole (a store is down);"),
            (GapCause::PodsNotListed, "1 of 2 serving pods are not in the list of pods;"),
            (GapCause::NotLearned, "the analyzer has not learned what a replica carries"),
            (GapCause::Asleep, "1 pods are Ready and their engines sleep"),
        ] {
            let mut partly = target(2, Reason::Partial, "held");
            partly.gap = Some(SignalGap {
                cause,
                pods: 1,
                serving: 2,
                missing: Vec::new(),
                contradicted: Vec::new(),
                stand_in: None,
                warning: (cause == GapCause::PartialSource).then(|| "a store is down".into()),
            });
            let status = first(&partly);
            let complete = find(&status, SIGNALS_COMPLETE);
            assert_eq!((complete.status.as_str(), complete.reason.as_str()), ("False", cause.as_str()));
            assert!(complete.message.starts_with(begins), "{}", complete.message);
        }
    }

    #[test]
    fn a_limit_that_is_not_in_force_is_told_until_it_is() {
        let calm = target(2, Reason::Steady, "calm");
        let before = first(&calm);
        let unlabelled = LimitGap::UnlabelledNode { node: "gpu-7".into() };
        let unlimited = |gap| render(&calm, Some("chat"), 3, time(200), &before, (|_| Vec::new(), gap));
        let open = unlimited(Some(&LimitGap::NoInventory));
        let condition = find(&open, LIMIT_ENFORCED);
        assert_eq!((condition.status.as_str(), condition.reason.as_str()), ("False", "NoInventory"));
        assert_eq!(difference(&before, &open), Difference::Facts);
        let partly = unlimited(Some(&unlabelled));
        let condition = find(&partly, LIMIT_ENFORCED);
        assert_eq!((condition.status.as_str(), condition.reason.as_str()), ("False", "UnlabelledNode"));
        assert!(condition.message.contains("the node gpu-7"), "{}", condition.message);
        assert_eq!(difference(&open, &partly), Difference::Facts);
        assert_eq!(difference(&open, &unlimited(None)), Difference::Facts, "the condition goes again");
        assert_eq!(difference(&before, &unlimited(None)), Difference::None);
    }

    #[test]
    fn a_missing_target_and_an_unusable_object_are_told_apart() {
        let missing = first(&unknown(Cause::TargetNotFound));
        let resolved = find(&missing, TARGET_RESOLVED);
        assert_eq!((resolved.status.as_str(), resolved.reason.as_str()), ("False", "TargetNotFound"));
        let invalid = first(&unknown(Cause::InvalidVariant));
        assert_eq!(find(&invalid, TARGET_RESOLVED).status, "Unknown");
        assert_eq!(find(&invalid, METRICS_AVAILABLE).reason, "InvalidConfiguration");
    }
}
