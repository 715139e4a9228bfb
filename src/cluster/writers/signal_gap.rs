//! What a variant's analyzer lacks, for its owner: which series, on how many pods, the likely cause and the next step.

use wva_core::decision::{GapCause, SignalGap};
use wva_core::snapshot::Signal;

use wva_core::text::first_names;

/// The series under which model servers export a signal, the newest of each engine first. Only `collect` knows these names;
/// `app` passes them in.
pub type SeriesOf = fn(Signal) -> Vec<String>;

/// Signals that a message names; the rest are counted. Each may have two names of 45 characters, and an event's note has
/// 1,000 bytes.
const MAX_NAMED: usize = 6;
/// Series that are named for one signal: those of the known engines, without the older ones.
const MAX_SERIES: usize = 2;

/// What is missing, then the likely cause, the next step, and what is decided meanwhile.
#[must_use]
pub fn describe_gap(gap: &SignalGap, series: SeriesOf) -> String {
    let SignalGap { cause, pods, serving, missing, contradicted, warning, .. } = gap;
    let mut parts = Vec::new();
    if let Some(warning) = warning {
        parts.push(format!("the metric source's answer is incomplete ({warning})"));
    }
    if *cause == GapCause::NoWakeUpSignal {
        let names = names(missing, series);
        parts.push(format!("no fresh {names} of the model's scheduler, so that a request for the model at zero would not be seen"));
    } else if !missing.is_empty() {
        parts.push(format!("{pods} of {serving} serving pods lack {}", names(missing, series)));
    }
    if !contradicted.is_empty() {
        let signals = names(contradicted, series);
        parts.push(format!("on {pods} of {serving} serving pods other series contradict {signals}"));
    }
    match cause {
        GapCause::PodsNotListed => {
            parts.push(format!("{pods} of {serving} serving pods are not in the list of pods"));
        }
        GapCause::NotLearned => parts.push(format!(
            "the analyzer has not learned the capacity of a replica, although {serving} serving pods have every signal"
        )),
        GapCause::Asleep => {
            parts.push(format!("the engines of {pods} Ready pods sleep, beside {serving} pods that serve"));
        }
        _ if parts.is_empty() => parts.push(format!("{pods} of {serving} serving pods are not measured")),
        _ => {}
    }
    let (cause, next) = advice(gap.cause);
    let meanwhile = meanwhile(gap);
    format!("{}; likely cause: {cause}; next step: {next}; meanwhile {meanwhile}", parts.join(", and "))
}

/// Who decides until then, and in which direction.
fn meanwhile(gap: &SignalGap) -> String {
    match (gap.fallback, gap.cause) {
        (Some(analyzer), _) => format!("the analyzer {} decides, and only adds replicas", analyzer.as_str()),
        (None, GapCause::NoWakeUpSignal) => "the model's last replica stays".to_owned(),
        (None, GapCause::Asleep) => "these pods count as no capacity".to_owned(),
        (None, GapCause::PartialSource | GapCause::PodsNotListed | GapCause::NotLearned) => {
            "no replica is removed".to_owned()
        }
        // With more than half of the pods unmeasured, the others are not representative.
        (None, _) if gap.pods > gap.serving / 2 => "no replica is removed".to_owned(),
        (None, _) => "the measured pods decide, and the others count as loaded".to_owned(),
    }
}

/// The likely cause and the next step.
const fn advice(cause: GapCause) -> (&'static str, &'static str) {
    match cause {
        GapCause::NotScraped => (
            "scraping these pods fails",
            "look at their targets in Prometheus (up == 0), and at the port and path that it scrapes",
        ),
        GapCause::UnknownEngine => (
            "no pod of the model is scraped, or its engine is not known",
            "check that a PodMonitor or ServiceMonitor selects these pods, and that they export the metrics of an engine in docs/signals.md",
        ),
        GapCause::SeriesDropped => (
            "relabelling or a recording rule drops these series, or the engine does not export them",
            "look for them on a pod's /metrics: if they are there, keep them in metric_relabel_configs; if not, enable them in \
             the engine or choose an analyzer that does not need them",
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
            "the metric source truncated its answer or could not reach one of its stores",
            "look at the warning, and at the stores and limits of the source",
        ),
        GapCause::PodsNotListed => (
            "the labels of these pods do not match the target's selector, or the list of pods is outdated",
            "compare the pods of the scale target with its selector, and look for errors of the pod watch in wva's log",
        ),
        GapCause::NotLearned => (
            "only answers of one token, only one request at a time, or no objective to size by",
            "send the pods more than one request at a time, or choose an analyzer that need not learn, such as saturation",
        ),
        GapCause::NoWakeUpSignal => (
            "the endpoint picker has no flow control, or its metrics are not scraped",
            "switch its flow control on and have its metrics read (docs/scale-to-zero.md), or set the annotation wva.llmd.ai/woken-by to what else starts the model",
        ),
        GapCause::Asleep => {
            ("the engines were put to sleep", "wake them through the engine's API, or remove their pods")
        }
    }
}

fn names(signals: &[Signal], series: SeriesOf) -> String {
    let name = |signal: &Signal| {
        let names = series(*signal);
        if names.is_empty() {
            format!("{signal:?}")
        } else {
            names[..names.len().min(MAX_SERIES)].join(" or ")
        }
    };
    first_names(signals.iter().map(name), MAX_NAMED, ", ")
}

/// A gap without missing signals, for tests.
#[cfg(test)]
pub(super) fn gap(cause: GapCause, pods: u32, serving: u32) -> SignalGap {
    SignalGap {
        cause,
        pods,
        serving,
        missing: Vec::new(),
        contradicted: Vec::new(),
        fallback: None,
        warning: None,
    }
}

#[cfg(test)]
mod tests {
    use wva_core::model::Analyzer;

    use super::*;

    fn series(signal: Signal) -> Vec<String> {
        match signal {
            Signal::TimeToFirstTokenCount => {
                ["vllm", "sglang"].map(|engine| format!("{engine}:time_to_first_token_seconds_count")).into()
            }
            _ => Vec::new(),
        }
    }

    #[test]
    fn a_gap_names_the_missing_series_its_cause_and_the_next_step() {
        let gap = SignalGap {
            missing: vec![Signal::TimeToFirstTokenCount],
            fallback: Some(Analyzer::Saturation),
            ..gap(GapCause::SeriesDropped, 6, 6)
        };
        let message = describe_gap(&gap, series);
        for part in [
            "6 of 6 serving pods lack vllm:time_to_first_token_seconds_count or sglang:time_to_first_token_seconds_count;",
            "likely cause: relabelling",
            "next step: look for them on a pod's /metrics",
            "meanwhile the analyzer saturation decides, and only adds replicas",
        ] {
            assert!(message.contains(part), "{part}: {message}");
        }
    }

    #[test]
    fn a_gap_of_every_signal_fits_into_an_event() {
        for cause in GapCause::ALL {
            let missing = Signal::ALL.to_vec();
            let contradicted = vec![Signal::EngineSteps];
            let message =
                describe_gap(&SignalGap { missing, contradicted, ..gap(cause, 1000, 1000) }, series);
            assert!(message.len() < 1000, "{}: {message}", message.len());
        }
    }

    #[test]
    fn a_gap_without_a_missing_series_has_its_cause_and_does_not_look_complete() {
        let warning = Some("store a is down".into());
        for (gap, begins, ends) in [
            (
                SignalGap { warning, ..gap(GapCause::PartialSource, 2, 6) },
                "the metric source's answer is incomplete (store a is down); likely cause",
                "meanwhile no replica is removed",
            ),
            (
                gap(GapCause::PodsNotListed, 2, 6),
                "2 of 6 serving pods are not in the list of pods; likely cause",
                "meanwhile no replica is removed",
            ),
            (
                gap(GapCause::NotLearned, 2, 6),
                "the analyzer has not learned the capacity of a replica, although 6 serving pods have every signal; likely cause",
                "meanwhile no replica is removed",
            ),
            (
                gap(GapCause::Asleep, 2, 6),
                "the engines of 2 Ready pods sleep, beside 6 pods that serve; likely cause",
                "meanwhile these pods count as no capacity",
            ),
            (
                gap(GapCause::NotScraped, 6, 6),
                "6 of 6 serving pods are not measured; likely cause",
                "meanwhile no replica is removed",
            ),
            (
                gap(GapCause::NotScraped, 2, 6),
                "2 of 6 serving pods are not measured; likely cause",
                "meanwhile the measured pods decide, and the others count as loaded",
            ),
        ] {
            let message = describe_gap(&gap, series);
            assert!(message.starts_with(begins) && message.ends_with(ends), "{message}");
        }
    }
}
