//! Honest engines: what real ones have shown contradicts nothing, whoever reads it and however often.

use super::tests::{at, seen_and_remembered, with_pod};
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

/// What `analyzer` does not believe of `scrapes`, each looked at when it comes, with its second.
fn doubted(analyzer: Analyzer, scrapes: &[&Scrape]) -> Vec<(f64, SignalSet)> {
    let mut evidence = SignalHistory::default();
    let (mut signals, mut doubted) = (Signals::default(), Vec::new());
    for (second, shown) in scrapes {
        let now = at(*second as i64) + SignedDuration::from_millis((second.fract() * 1000.0) as i64);
        let row = shown.iter().copied();
        signals.slide(now, Seconds::whole(600).before(now), 200, row);
        let state = with_pod(signals.clone());
        let (contradicted, remembered) = seen_and_remembered(analyzer, &state, &evidence, now);
        evidence = remembered;
        if !contradicted.is_empty() {
            doubted.push((*second, contradicted));
        }
    }
    doubted
}

#[test]
fn engines_that_were_recorded_once_contradicted_themselves() {
    for (name, text) in RECORDED {
        let all = scrapes(text);
        assert!(all.len() > 30, "{name} has {} scrapes", all.len());
        // Every 5 s, as recorded, and every 15 s.
        for (every, from) in [(1, 0), (3, 0), (3, 1), (3, 2)] {
            let scrapes: Vec<&Scrape> = all.iter().skip(from).step_by(every).collect();
            for analyzer in Analyzer::ALL {
                let doubted = doubted(analyzer, &scrapes);
                assert!(doubted.is_empty(), "{name}, every {every} from {from}, {analyzer:?}: {doubted:?}");
            }
        }
    }
}
