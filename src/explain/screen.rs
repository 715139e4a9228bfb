//! Renders an explanation as text that fits on one screen.

use std::fmt::Write as _;

use jiff::{SignedDuration, Timestamp};
use wva_core::Decision;
use wva_core::decision::{Cause, Verdict};
use wva_core::report::{Stage, Step};
use wva_core::snapshot::SourceHealth;
use wva_core::text::wrapped;

use super::explanation::{Explanation, Pod};
use super::format::{explanation_text, number_and_reason};
use crate::cluster::writers::signal_gap::describe_gap;
use crate::collect::current_series_names;

/// The width of a line.
const LINE_WIDTH: usize = 100;
/// The column at which the text beside a label begins.
const TEXT_COLUMN: usize = 17;
/// The most pods that are listed one by one.
const MAX_LISTED_PODS: usize = 6;

/// The text of an explanation.
pub(crate) fn screen(explanation: &Explanation) -> String {
    let mut text = head(explanation);
    section(&mut text, "Steps");
    for step in &explanation.steps {
        let is_shown_above = step.is_target_of(explanation.decision.verdict.explanation());
        let finding = if is_shown_above { "as above".to_owned() } else { step.to_string() };
        entry(&mut text, step.stage().as_str(), &finding);
        if !step.values().is_empty() {
            let values =
                step.values().iter().map(|value| format!("{} {}", value.name(), rounded(value.value)));
            entry(&mut text, "", &values.collect::<Vec<_>>().join(", "));
        }
        // The finding of an analyzer names its binding constraint already.
        if let Some(binding) = step.binding().filter(|_| step.stage() != Stage::Analyze) {
            entry(&mut text, "", &format!("bound by {binding}"));
        }
    }
    if explanation.steps.is_empty() {
        entry(&mut text, "none", why_no_steps(&explanation.decision));
    }
    for dropped in &explanation.dropped {
        entry(&mut text, "memory", dropped);
    }
    for violation in &explanation.violations {
        entry(&mut text, "withheld", &violation.to_string());
    }
    let thresholds: Vec<String> =
        explanation.steps.iter().flat_map(Step::thresholds).map(ToString::to_string).collect();
    if !thresholds.is_empty() {
        section(&mut text, "What would change it");
        thresholds.iter().for_each(|threshold| entry(&mut text, "", threshold));
    }
    let predictions = explanation.scorecard.map(|card| card.sentences()).unwrap_or_default();
    if !predictions.is_empty() {
        section(&mut text, "How earlier predictions turned out");
        predictions.iter().for_each(|(quantity, sentence)| entry(&mut text, quantity, sentence));
    }
    section(&mut text, "Evidence");
    evidence(&mut text, explanation);
    if !explanation.predicted.is_empty() {
        section(&mut text, "If no new metrics arrive and no object changes");
        for later in &explanation.predicted {
            let finding =
                format!("{}: {}", number_and_reason(&later.decision), explanation_text(&later.decision));
            entry(&mut text, &format!("in {}", elapsed(explanation.at, later.at)), &finding);
        }
    }
    text
}

fn head(explanation: &Explanation) -> String {
    let decision = &explanation.decision;
    let current = decision.current.map_or_else(String::new, |current| format!(", {current} now"));
    let mut text = format!("{}: {}{current}\n", explanation.variant, number_and_reason(decision));
    sentence(&mut text, &explanation_text(decision));
    let evidence = match &decision.verdict {
        Verdict::Target(target) => format!("evidence {} old", elapsed(target.evidence, explanation.at)),
        Verdict::Unknown(unknown) => format!("for {}", elapsed(unknown.since, explanation.at)),
    };
    let by =
        explanation.recorded_by.as_ref().map_or_else(String::new, |wva| format!(", recorded by wva {wva}"));
    sentence(&mut text, &format!("{}, {evidence}; from {}{by}", explanation.at, explanation.origin));
    if let Some(recorded) = &explanation.recorded {
        let (number, reasons) = (number_and_reason(recorded), explanation_text(recorded));
        sentence(&mut text, &format!("recorded decision: {number}: {reasons}"));
    }
    text
}

/// Why there are no steps. State objects keep none.
fn why_no_steps(decision: &Decision) -> &'static str {
    match &decision.verdict {
        Verdict::Unknown(unknown) if matches!(unknown.cause, Cause::InvalidVariant | Cause::ModelUnknown) => {
            "the object is invalid, so no stage ran"
        }
        _ => "not kept: this is the last state that was stored, and no evaluation has followed it here",
    }
}

fn evidence(text: &mut String, explanation: &Explanation) {
    if let Some(gap) = &explanation.decision.gap {
        entry(
            text,
            "signals",
            &format!("{}: {}", gap.cause.as_str(), describe_gap(gap, current_series_names)),
        );
    }
    match &explanation.source {
        None => {}
        Some(SourceHealth::Complete) => entry(text, "source", "answered in full"),
        Some(SourceHealth::Partial { warnings }) => {
            entry(text, "source", &format!("answered in part: {}", warnings.join("; ")));
        }
        Some(SourceHealth::Down { cause }) => entry(text, "source", &format!("did not answer: {cause}")),
    }
    if let Some(at) = explanation.scheduler_sample {
        entry(text, "scheduler", &format!("newest sample {} old", elapsed(at, explanation.at)));
    }
    let Some(pods) = &explanation.pods else {
        return entry(text, "not kept", "the inputs of this evaluation are not in memory here");
    };
    for pod in pods.iter().take(MAX_LISTED_PODS) {
        entry(text, "pod", &pod_line(pod, explanation.at));
    }
    if let Some(more) = pods.len().checked_sub(MAX_LISTED_PODS).filter(|more| *more > 0) {
        let newest = pods.iter().skip(MAX_LISTED_PODS).filter_map(|pod| pod.newest_sample);
        let oldest = newest
            .min()
            .map_or_else(String::new, |at| format!(", samples up to {} old", elapsed(at, explanation.at)));
        entry(text, "pods", &format!("{more} more{oldest}"));
    }
    if pods.is_empty() {
        entry(text, "pods", "none");
    }
}

fn pod_line(pod: &Pod, now: Timestamp) -> String {
    let sample = match pod.newest_sample {
        Some(at) => format!("newest sample {} old", elapsed(at, now)),
        None => "no sample".into(),
    };
    let engines = if pod.engines > 1 { format!(", {} engines", pod.engines) } else { String::new() };
    format!("{}: {:?}, {sample}{engines}", pod.name, pod.phase)
}

/// A value with at most three decimals, and none from 1000 on.
fn rounded(value: f64) -> String {
    let digits = if value.abs() >= 1000.0 { 0 } else { 3 };
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// An indented sentence.
fn sentence(text: &mut String, sentence: &str) {
    for line in wrapped(sentence, LINE_WIDTH - 2) {
        let _ = writeln!(text, "  {line}");
    }
}

fn section(text: &mut String, title: &str) {
    let _ = write!(text, "\n{title}\n");
}

/// A label with a sentence beside it, wrapped in its own column.
fn entry(text: &mut String, label: &str, sentence: &str) {
    let width = TEXT_COLUMN - 3;
    for (index, line) in wrapped(sentence, LINE_WIDTH - TEXT_COLUMN).iter().enumerate() {
        let label = if index == 0 { label } else { "" };
        let _ = writeln!(text, "  {label:<width$} {line}");
    }
}

/// The time from `from` to `to`, with units.
pub(crate) fn elapsed(from: Timestamp, to: Timestamp) -> String {
    let span = to.duration_since(from).max(SignedDuration::ZERO);
    let seconds = span.as_secs();
    match seconds {
        0..=119 => format!("{seconds} s"),
        120..=7199 if seconds % 60 == 0 => format!("{} min", seconds / 60),
        120..=7199 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use wva_core::VariantId;
    use wva_core::decision::{GapCause, Reason, SignalGap, Target};
    use wva_core::units::Replicas;

    use super::*;

    #[test]
    fn what_the_analyzer_lacks_is_told_on_the_screen_before_what_the_source_answered() {
        let at = Timestamp::UNIX_EPOCH;
        let gap = SignalGap {
            cause: GapCause::NotLearned,
            pods: 2,
            serving: 2,
            missing: Vec::new(),
            contradicted: Vec::new(),
            fallback: None,
            warning: None,
        };
        let desired = Replicas::new(2);
        let target = Target { desired, reason: Reason::Steady, explanation: "held".into(), evidence: at };
        let decision = Decision {
            model: "m".into(),
            accelerator: None,
            current: Some(desired),
            verdict: Verdict::Target(target),
            gap: Some(gap.clone()),
        };
        let mut explanation = Explanation {
            variant: VariantId::new("llm", "chat"),
            origin: "a file".into(),
            at,
            recorded_by: None,
            decision,
            recorded: None,
            steps: Vec::new(),
            violations: Vec::new(),
            dropped: Vec::new(),
            scorecard: None,
            source: Some(SourceHealth::Complete),
            pods: Some(Vec::new()),
            scheduler_sample: None,
            predicted: Vec::new(),
        };
        let text = screen(&explanation);
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let line = format!(
            "signals NotLearned: {} source answered in full",
            describe_gap(&gap, current_series_names)
        );
        assert!(words(&text).contains(&words(&line)), "{text}");
        explanation.decision.gap = None;
        assert!(!screen(&explanation).contains("signals"), "nothing is missing");
    }
}
