//! What a variant's analyzer lacks, in words for its owner: which series, on how many pods, the likely cause, the next step.

use wva_core::decision::{GapCause, SignalGap};
use wva_core::snapshot::Signal;

/// The names under which model servers show a signal, the newest of each first. Names belong to the room that reads them, so
/// that whoever puts the program together hands this over.
pub type SeriesOf = fn(Signal) -> Vec<String>;

/// Signals that are named; the rest are counted. Each may have two names of 45 characters, and an event's note has 1,000.
const MAX_NAMED: usize = 6;
/// Names that are given of one signal: those of the engines that are known, without the older ones.
const MAX_NAMES: usize = 2;

/// One or two sentences on what is missing, then the likely cause, the next step, and who decides meanwhile.
#[must_use]
pub fn sentence(gap: &SignalGap, series: SeriesOf) -> String {
    let SignalGap { cause, pods, serving, missing, contradicted, warning, .. } = gap;
    let mut parts = Vec::new();
    if let Some(warning) = warning {
        parts.push(format!("the source's answer is not whole ({warning})"));
    }
    if !missing.is_empty() {
        parts.push(format!("{pods} of {serving} serving pods lack {}", named(missing, series)));
    }
    if !contradicted.is_empty() {
        let what = named(contradicted, series);
        parts.push(format!("on {pods} of {serving} serving pods other series contradict {what}"));
    }
    match cause {
        GapCause::PodsNotListed => {
            parts.push(format!("{pods} of {serving} serving pods are not in the list of pods"));
        }
        GapCause::NotLearned => parts.push(format!(
            "the analyzer has not learned what a replica carries, from {serving} serving pods with every signal"
        )),
        GapCause::Asleep => {
            parts.push(format!("{pods} pods are Ready and their engines sleep, beside {serving} that serve"));
        }
        _ if parts.is_empty() => parts.push(format!("{pods} of {serving} serving pods are not measured")),
        _ => {}
    }
    let (cause, next) = advice(gap.cause);
    let meanwhile = meanwhile(gap);
    format!("{}; likely cause: {cause}; next step: {next}; meanwhile {meanwhile}", parts.join(", and "))
}

/// Who decides until then, and what may happen.
fn meanwhile(gap: &SignalGap) -> String {
    match (gap.stand_in, gap.cause) {
        (Some(analyzer), _) => format!("the analyzer {} decides, about additions only", analyzer.as_str()),
        (None, GapCause::Asleep) => "these pods count as no capacity".to_owned(),
        (None, GapCause::PartialSource | GapCause::PodsNotListed | GapCause::NotLearned) => {
            "nothing is removed".to_owned()
        }
        // More than half: what is measured stands for too little.
        (None, _) if gap.pods > gap.serving / 2 => "nothing is removed".to_owned(),
        (None, _) => "the pods that are measured decide, and those that are not count as loaded".to_owned(),
    }
}

/// The likely cause and the next step.
const fn advice(cause: GapCause) -> (&'static str, &'static str) {
    match cause {
        GapCause::NotScraped => (
            "the scrape of these pods fails",
            "look at the targets of Prometheus for these pods (up == 0), and at the port and path that it asks",
        ),
        GapCause::UnknownEngine => (
            "no pod of the model is scraped, or its engine is not known",
            "check that a PodMonitor or ServiceMonitor selects these pods, and that they serve vLLM's or SGLang's metrics",
        ),
        GapCause::SeriesDropped => (
            "relabelling or a recording rule drops these series, or the engine does not expose them",
            "ask a pod's /metrics for them: if they are there, keep them in metric_relabel_configs; if not, switch them on in \
             the engine or choose an analyzer that does without",
        ),
        GapCause::EngineVersion => (
            "some pods run another version of the engine, as during a rolling update",
            "wait for the update to end; if it has, compare the image of the pods that lack the series with the others'",
        ),
        GapCause::Contradicted => (
            "the engine or its exporter has stopped counting while it serves",
            "restart a pod of the variant and see whether its counters move again; then look for a fix of the engine",
        ),
        GapCause::PartialSource => (
            "the metric source cut its answer or could not reach one of its stores",
            "look at the warning, and at the stores and limits of the source",
        ),
        GapCause::PodsNotListed => (
            "the labels of these pods do not match the target's selector, or the list of pods is behind",
            "compare the pods of the scale target with its selector, and look at this program's log for its watch of pods",
        ),
        GapCause::NotLearned => (
            "answers of one token, one request at a time, or no objective to size by",
            "give the pods more than one request at a time, or choose an analyzer that need not learn, such as saturation",
        ),
        GapCause::Asleep => (
            "somebody has put these engines to sleep",
            "wake them through the engine's API, or remove their pods",
        ),
    }
}

fn named(signals: &[Signal], series: SeriesOf) -> String {
    let name = |signal: &Signal| {
        let names = series(*signal);
        if names.is_empty() {
            format!("{signal:?}")
        } else {
            names[..names.len().min(MAX_NAMES)].join(" or ")
        }
    };
    let named: Vec<_> = signals.iter().take(MAX_NAMED).map(name).collect();
    let more = signals.len().saturating_sub(MAX_NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    named.join(", ") + &more
}

#[cfg(test)]
mod tests {
    use wva_core::model::Analyzer;

    use super::*;

    fn names(signal: Signal) -> Vec<String> {
        match signal {
            Signal::TimeToFirstTokenCount => {
                ["vllm", "sglang"].map(|engine| format!("{engine}:time_to_first_token_seconds_count")).into()
            }
            _ => Vec::new(),
        }
    }

    #[test]
    fn what_is_missing_is_told_by_the_names_of_its_series_with_cause_and_next_step() {
        let gap = SignalGap {
            cause: GapCause::SeriesDropped,
            pods: 6,
            serving: 6,
            missing: vec![Signal::TimeToFirstTokenCount],
            contradicted: Vec::new(),
            stand_in: Some(Analyzer::Saturation),
            warning: None,
        };
        let message = sentence(&gap, names);
        for part in [
            "6 of 6 serving pods lack vllm:time_to_first_token_seconds_count or sglang:time_to_first_token_seconds_count;",
            "likely cause: relabelling",
            "next step: ask a pod's /metrics",
            "meanwhile the analyzer saturation decides, about additions only",
        ] {
            assert!(message.contains(part), "{part}: {message}");
        }
    }

    #[test]
    fn a_gap_of_every_signal_fits_into_an_event() {
        for cause in GapCause::ALL {
            let (missing, contradicted) = (Signal::ALL.to_vec(), vec![Signal::EngineSteps]);
            let (stand_in, warning) = (None, None);
            let gap =
                SignalGap { cause, pods: 1000, serving: 1000, missing, contradicted, stand_in, warning };
            let message = sentence(&gap, names);
            assert!(message.len() < 1000, "{}: {message}", message.len());
        }
    }

    #[test]
    fn what_is_incomplete_without_a_missing_series_is_told_with_its_cause_and_not_as_measured() {
        let gap = |cause, warning: Option<&str>| SignalGap {
            cause,
            pods: 2,
            serving: 6,
            missing: Vec::new(),
            contradicted: Vec::new(),
            stand_in: None,
            warning: warning.map(Into::into),
        };
        let all = [
            (
                gap(GapCause::PartialSource, Some("store a is down")),
                "the source's answer is not whole (store a is down); likely cause",
                "meanwhile nothing is removed",
            ),
            (
                gap(GapCause::PodsNotListed, None),
                "2 of 6 serving pods are not in the list of pods; likely cause",
                "meanwhile nothing is removed",
            ),
            (
                gap(GapCause::NotLearned, None),
                "the analyzer has not learned what a replica carries, from 6 serving pods with every signal; likely cause",
                "meanwhile nothing is removed",
            ),
            (
                gap(GapCause::Asleep, None),
                "2 pods are Ready and their engines sleep, beside 6 that serve; likely cause",
                "meanwhile these pods count as no capacity",
            ),
            (
                SignalGap { pods: 6, ..gap(GapCause::NotScraped, None) },
                "6 of 6 serving pods are not measured; likely cause",
                "meanwhile nothing is removed",
            ),
            (
                gap(GapCause::NotScraped, None),
                "2 of 6 serving pods are not measured; likely cause",
                "meanwhile the pods that are measured decide, and those that are not count as loaded",
            ),
        ];
        for (gap, begins, ends) in all {
            let message = sentence(&gap, names);
            assert!(message.starts_with(begins) && message.ends_with(ends), "{message}");
        }
    }
}
