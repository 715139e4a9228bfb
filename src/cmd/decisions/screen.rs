//! An explanation on one screen, for people.

use std::fmt::Write as _;

use jiff::{SignedDuration, Timestamp};
use wva_core::decision::Verdict;
use wva_core::report::{Stage, Step};
use wva_core::snapshot::SourceHealth;

use super::super::terminal::wrapped;
use super::explanation::{Explanation, Pod};
use super::{message, short};
use crate::cluster::writers::signal_gap::describe_gap;
use crate::collect::series_of;

/// Columns of a screen.
const WIDTH: usize = 100;
/// Where sentences begin.
const MARGIN: usize = 17;
/// Pods that are listed one by one.
const PODS: usize = 6;

/// The whole text.
pub(super) fn screen(explanation: &Explanation) -> String {
    let mut text = head(explanation);
    section(&mut text, "Steps");
    for step in &explanation.steps {
        let is_said = step.is_target_of(explanation.decision.verdict.explanation());
        let finding = if is_said { "as above".to_owned() } else { step.to_string() };
        entry(&mut text, step.stage().as_str(), &finding);
        if !step.values().is_empty() {
            let values = step.values().iter().map(|value| format!("{} {}", value.name, rounded(value.value)));
            entry(&mut text, "", &values.collect::<Vec<_>>().join(", "));
        }
        // An analyzer names what binds in its finding.
        if let Some(binding) = step.binding().filter(|_| step.stage() != Stage::Analyze) {
            entry(&mut text, "", &format!("bound by {binding}"));
        }
    }
    if explanation.steps.is_empty() {
        entry(&mut text, "none", "the object itself cannot be used, so nothing was looked at");
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
    section(&mut text, "Evidence");
    evidence(&mut text, explanation);
    if !explanation.ahead.is_empty() {
        section(&mut text, "If nothing changes and nothing new is measured");
        for later in &explanation.ahead {
            let finding = format!("{}: {}", short(&later.decision), message(&later.decision));
            entry(&mut text, &format!("in {}", age(explanation.at, later.at)), &finding);
        }
    }
    text
}

fn head(explanation: &Explanation) -> String {
    let decision = &explanation.decision;
    let current = decision.current.map_or_else(String::new, |current| format!(", {current} now"));
    let mut text = format!("{}: {}{current}\n", explanation.variant, short(decision));
    sentence(&mut text, &message(decision));
    let evidence = match &decision.verdict {
        Verdict::Target(target) => format!("evidence {} old", age(target.evidence, explanation.at)),
        Verdict::Unknown(unknown) => format!("for {}", age(unknown.since, explanation.at)),
    };
    let by =
        explanation.recorded_by.as_ref().map_or_else(String::new, |wva| format!(", recorded by wva {wva}"));
    sentence(&mut text, &format!("{}, {evidence}; from {}{by}", explanation.at, explanation.origin));
    if let Some(recorded) = &explanation.recorded {
        sentence(&mut text, &format!("at the time: {}: {}", short(recorded), message(recorded)));
    }
    text
}

fn evidence(text: &mut String, explanation: &Explanation) {
    if let Some(gap) = &explanation.decision.gap {
        entry(text, "signals", &format!("{}: {}", gap.cause.as_str(), describe_gap(gap, series_of)));
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
        entry(text, "scheduler", &format!("newest sample {} old", age(at, explanation.at)));
    }
    for pod in explanation.pods.iter().take(PODS) {
        entry(text, "pod", &pod_line(pod, explanation.at));
    }
    if let Some(more) = explanation.pods.len().checked_sub(PODS).filter(|more| *more > 0) {
        let newest = explanation.pods.iter().skip(PODS).filter_map(|pod| pod.newest_sample);
        let oldest = newest
            .min()
            .map_or_else(String::new, |at| format!(", samples up to {} old", age(at, explanation.at)));
        entry(text, "pods", &format!("{more} more{oldest}"));
    }
    if explanation.pods.is_empty() {
        entry(text, "pods", "none");
    }
}

fn pod_line(pod: &Pod, now: Timestamp) -> String {
    let sample = match pod.newest_sample {
        Some(at) => format!("newest sample {} old", age(at, now)),
        None => "no sample".into(),
    };
    let engines = if pod.engines > 1 { format!(", {} engines", pod.engines) } else { String::new() };
    format!("{}: {:?}, {sample}{engines}", pod.name, pod.phase)
}

/// As many digits as people read.
fn rounded(value: f64) -> String {
    let digits = if value.abs() >= 1000.0 { 0 } else { 3 };
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// A sentence below the first line.
fn sentence(text: &mut String, sentence: &str) {
    for line in wrapped(sentence, WIDTH - 2) {
        let _ = writeln!(text, "  {line}");
    }
}

fn section(text: &mut String, title: &str) {
    let _ = write!(text, "\n{title}\n");
}

/// A word in the margin and a sentence beside it.
fn entry(text: &mut String, word: &str, sentence: &str) {
    let width = MARGIN - 3;
    for (index, line) in wrapped(sentence, WIDTH - MARGIN).iter().enumerate() {
        let word = if index == 0 { word } else { "" };
        let _ = writeln!(text, "  {word:<width$} {line}");
    }
}

/// The time between two moments, as people say it.
fn age(from: Timestamp, to: Timestamp) -> String {
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
    use wva_core::decision::{GapCause, Reason, SignalGap, Target};
    use wva_core::units::Replicas;
    use wva_core::{Decision, VariantId};

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
            source: Some(SourceHealth::Complete),
            pods: Vec::new(),
            scheduler_sample: None,
            ahead: Vec::new(),
        };
        let text = screen(&explanation);
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let line = format!("signals NotLearned: {} source answered in full", describe_gap(&gap, series_of));
        assert!(words(&text).contains(&words(&line)), "{text}");
        explanation.decision.gap = None;
        assert!(!screen(&explanation).contains("signals"), "nothing is missing");
    }
}
