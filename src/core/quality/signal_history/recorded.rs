//! Recordings of real engines: they contradict nothing, whichever analyzer reads them and however often.

use super::tests::{assess_and_remember, at, with_pod};
use super::*;
use crate::model::Analyzer;
use crate::snapshot::Signals;

const RECORDED: [(&str, &str); 5] = [
    ("cpu", include_str!("../../tests/recorded/cpu.txt")),
    ("timed", include_str!("../../tests/recorded/timed.txt")),
    ("cache-bound", include_str!("../../tests/recorded/cache-bound.txt")),
    ("refused-and-aborted", include_str!("../../tests/recorded/refused-and-aborted.txt")),
    ("aborted-and-shared-prefix", include_str!("../../tests/recorded/aborted-and-shared-prefix.txt")),
];

/// A scrape: seconds, and what it showed.
type Scrape = (f64, Vec<(Signal, f64)>);

/// The scrapes of a recording.
fn scrapes(text: &str) -> Vec<Scrape> {
    let (head, table) = text.split_once("KvCapacity ").unwrap();
    assert!(head.lines().all(|line| line.starts_with('#')));
    let (capacity, table) = table.split_once(".\n").unwrap();
    let mut lines = table.lines().map(str::split_whitespace);
    let named = |name: &str| serde_json::from_value(name.into()).unwrap();
    let names: Vec<Signal> = lines.next().unwrap().skip(1).map(named).collect();
    let number = |cell: &str| cell.parse::<f64>().unwrap();
    let capacity = (Signal::KvCapacity, number(capacity));
    lines
        .map(|mut cells| {
            let second = number(cells.next().unwrap());
            let shown = names.iter().copied().zip(cells.map(number));
            (second, shown.chain([capacity]).collect())
        })
        .collect()
}

/// What `analyzer` distrusts in `scrapes`, each looked at when it comes, with its second.
fn distrusted(analyzer: Analyzer, scrapes: &[&Scrape]) -> Vec<(f64, SignalSet)> {
    let mut history = SignalHistory::default();
    let (mut signals, mut distrusted) = (Signals::default(), Vec::new());
    for (second, shown) in scrapes {
        let now = at(*second as i64) + SignedDuration::from_millis((second.fract() * 1000.0) as i64);
        let row = shown.iter().copied();
        signals.slide(now, Seconds::whole(600).before(now), 200, row);
        let state = with_pod(signals.clone());
        let (contradicted, healthy_history) = assess_and_remember(analyzer, &state, &history, now);
        history = healthy_history;
        if !contradicted.is_empty() {
            distrusted.push((*second, contradicted));
        }
    }
    distrusted
}

#[test]
fn recordings_of_real_engines_contradict_nothing() {
    for (name, text) in RECORDED {
        let all = scrapes(text);
        assert!(all.len() > 30, "{name} has {} scrapes", all.len());
        // Every 5 s, as recorded, and every 15 s.
        for (every, from) in [(1, 0), (3, 0), (3, 1), (3, 2)] {
            let scrapes: Vec<&Scrape> = all.iter().skip(from).step_by(every).collect();
            for analyzer in Analyzer::ALL {
                let distrusted = distrusted(analyzer, &scrapes);
                assert!(
                    distrusted.is_empty(),
                    "{name}, every {every} from {from}, {analyzer:?}: {distrusted:?}"
                );
            }
        }
    }
}
