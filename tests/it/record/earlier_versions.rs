//! Recordings that earlier versions of wva wrote are read, and decide to the same numbers today.

use std::io::Read as _;
use std::path::Path;

use flate2::read::GzDecoder;
use wva::record::{Entry, Lines, decide_recorded};
use wva_core::Decision;
use wva_core::decision::{GapCause, Verdict};

/// Three evaluations, 5 s apart, of each of the 111 scenarios that tests/scenarios had in commit a23ae83, which recorded them.
const FORMAT_1: &[u8] = include_bytes!("recordings/format-1.jsonl.gz");

fn entries(recording: &[u8]) -> Vec<Entry> {
    let mut lines = Vec::new();
    GzDecoder::new(recording).read_to_end(&mut lines).unwrap();
    let found = Lines::new(lines.as_slice(), Path::new("format-1.jsonl")).map(Result::unwrap);
    found.map(|line| *line.entry.unwrap()).collect()
}

/// Everything that an output shows of `decision` except its message, whose words may change from version to version.
fn facts(decision: &Decision) -> String {
    let Decision { model, accelerator, current, verdict, gap } = decision;
    let verdict = match verdict {
        Verdict::Target(target) => format!("{} {:?} of {}", target.desired, target.reason, target.evidence),
        Verdict::Unknown(unknown) => format!("{:?} since {}", unknown.cause, unknown.since),
    };
    // Earlier versions did not say that nothing would wake a model.
    let gap = gap.as_ref().filter(|gap| gap.cause != GapCause::NoWakeUpSignal);
    format!("{model} {accelerator:?} {current:?}: {verdict}, {gap:?}")
}

/// What an evaluation decided, when it was recorded and now.
type Change = (&'static str, &'static str);

/// A missing reserve is restored after three minutes, and no longer after 90 s: this is one of the scenarios.
const CHANGES: [Change; 3] =
    [("3 ScaleUp", "2 Steady"), ("3 Bounded", "3 Transition"), ("3 Bounded", "3 Transition")];

#[test]
fn a_recording_of_format_1_is_decided_to_the_same_numbers() {
    let entries = entries(FORMAT_1);
    assert_eq!(entries.len(), 333);
    let mut changes = Vec::new();
    for entry in entries {
        let outcome = decide_recorded(&entry.snapshot, &entry.memory, &entry.policy);
        assert!(outcome.decisions.keys().eq(entry.decisions.keys()), "{} of {}", entry.sequence, entry.at);
        let pairs = entry.decisions.values().zip(outcome.decisions.values());
        changes.extend(pairs.map(|(was, is)| (facts(was), facts(is))).filter(|(was, is)| was != is));
    }
    let is_expected = |((was, is), change): (&(String, String), Change)| {
        was.contains(&format!(": {} of", change.0)) && is.contains(&format!(": {} of", change.1))
    };
    let mut expected = CHANGES.to_vec();
    expected.sort_unstable();
    changes.sort_unstable_by_key(|(was, _)| was.split(": ").nth(1).map(str::to_owned));
    assert!(changes.len() == CHANGES.len(), "{changes:#?}");
    assert!(changes.iter().zip(expected).all(is_expected), "{changes:#?}");
}
