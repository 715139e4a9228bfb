//! Recordings of real engines: they contradict nothing, whichever analyzer reads them and however often.

use super::tests::{assess_and_remember, with_pod};
use super::*;
use crate::model::Analyzer;
use crate::snapshot::Signals;
use crate::tests::support::recorded::{RECORDINGS, Scrape, moment, scrapes};

/// What `analyzer` distrusts in `scrapes`, each looked at when it comes, with its second.
fn distrusted(analyzer: Analyzer, scrapes: &[&Scrape]) -> Vec<(f64, SignalSet)> {
    let mut history = SignalHistory::default();
    let (mut signals, mut distrusted) = (Signals::default(), Vec::new());
    for (second, shown) in scrapes {
        let now = moment(*second);
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
    for (name, text) in RECORDINGS {
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
