//! What is learned from recordings of real engines, against what was measured of them.

use super::support::prelude::*;
use super::support::recorded::{Evaluation, Scrape, evaluations, recording};

/// A part of a recording at constant load.
struct Level {
    recording: &'static str,
    from: f64,
    until: f64,
    /// Load as a share of saturation.
    load: f64,
    /// Saturation as measured by a closed loop, requests/s.
    saturation: f64,
    /// Sequences at most, by the engine's argument.
    sequences: i64,
}

const fn level(recording: &'static str, [from, until]: [f64; 2], load: f64) -> Level {
    let (saturation, sequences) = match recording.as_bytes() {
        b"cpu" => (11.48, 32),
        b"timed" => (6.36, 32),
        _ => (5.42, 256),
    };
    Level { recording, from, until, load, saturation, sequences }
}

const LEVELS: [Level; 10] = [
    level("cpu", [75.0, 231.0], 0.25),
    level("cpu", [405.0, 561.0], 0.75),
    level("cpu", [735.0, 891.0], 1.1),
    level("timed", [75.0, 261.0], 0.25),
    level("timed", [270.0, 456.0], 0.5),
    level("timed", [465.0, 651.0], 0.75),
    level("timed", [660.0, 846.0], 0.9),
    level("timed", [857.0, 1043.0], 1.1),
    level("cache-bound", [85.0, 211.0], 0.25),
    level("cache-bound", [220.0, 346.0], 0.5),
];

impl Level {
    fn scrapes(&self) -> Vec<Scrape> {
        recording(self.recording)
            .into_iter()
            .filter(|(second, _)| (self.from..self.until).contains(second))
            .collect()
    }

    fn evaluations(&self) -> Vec<Evaluation> {
        evaluations(&self.scrapes(), self.sequences)
    }
}

#[test]
fn the_capacity_claimed_of_a_recorded_engine_is_what_it_carries() {
    for level in LEVELS {
        let claim = level.evaluations().last().unwrap().capacity.unwrap() / level.saturation;
        // Aimed at: 0.85 to 1.15 below half load, 0.9 to 1.1 from there on.
        let bounds = if level.load < 0.5 { 0.85..=1.15 } else { 0.9..=1.1 };
        assert!(
            bounds.contains(&claim),
            "{} at {}: {claim:.2} of its saturation",
            level.recording,
            level.load
        );
    }
}

#[test]
fn scrapes_15_s_apart_show_the_same_within_a_third() {
    for level in LEVELS {
        for from in 0..3 {
            let scrapes: Vec<Scrape> = level.scrapes().into_iter().skip(from).step_by(3).collect();
            let claim =
                evaluations(&scrapes, level.sequences).last().unwrap().capacity.unwrap() / level.saturation;
            assert!((0.7..=1.33).contains(&claim), "{} at {}: {claim:.2}", level.recording, level.load);
        }
    }
}

#[test]
fn arrivals_seen_at_recorded_engines_are_those_that_came() {
    for level in LEVELS {
        let (scrapes, evaluations) = (level.scrapes(), level.evaluations());
        let counted = evaluations.last().unwrap().arrivals.unwrap();
        let ratio = counted / came(&scrapes, &[Signal::TimeToFirstTokenCount, Signal::Waiting]);
        assert!(
            (0.95..=1.05).contains(&ratio),
            "{} at {}: {ratio:.3} of what came",
            level.recording,
            level.load
        );
    }
}

/// What an engine is offered that refuses requests while 24 of them are in its queue or run, from the first refused one to the last: 7
/// requests/s.
#[test]
fn arrivals_at_a_recorded_engine_contain_those_that_it_refused() {
    let all = recording("refused-and-aborted");
    let arrived = [Signal::TimeToFirstTokenCount, Signal::Waiting, Signal::RefusedRequests];
    for (from, until) in [(10.0, 86.0), (115.0, 191.0)] {
        let within = |(second, _): &&Scrape| (from..until).contains(second);
        let scrapes: Vec<Scrape> = all.iter().filter(within).cloned().collect();
        let offered = came(&scrapes, &arrived);
        let [refused, admitted] =
            [&arrived[2..], &arrived[..2]].map(|signals| came(&scrapes, signals) / offered);
        assert!((6.3..=7.7).contains(&offered) && (0.35..=0.46).contains(&refused), "{offered} {refused}");
        let arrivals = |scrapes: &[Scrape]| evaluations(scrapes, 16).last().unwrap().arrivals.unwrap();
        let ratio = arrivals(&scrapes) / offered;
        assert!((0.95..=1.05).contains(&ratio), "{ratio:.3} of what came");
        // Without the counter they are only those that it admitted, as well known as ever.
        let hide = |(second, shown): &Scrape| {
            let shown = shown.iter().copied().filter(|(signal, _)| *signal != Signal::RefusedRequests);
            (*second, shown.collect())
        };
        let hidden: Vec<Scrape> = scrapes.iter().map(hide).collect();
        let ratio = arrivals(&hidden) / offered / admitted;
        assert!((0.95..=1.05).contains(&ratio), "{ratio:.3} of what was admitted");
    }
}

/// The growth of the sum of `signals` in a second.
fn came(scrapes: &[Scrape], signals: &[Signal]) -> f64 {
    let sum = |(_, shown): &Scrape| -> f64 {
        shown.iter().filter(|(signal, _)| signals.contains(signal)).map(|(_, value)| value).sum()
    };
    let (first, last) = (scrapes.first().unwrap(), scrapes.last().unwrap());
    (sum(last) - sum(first)) / (last.0 - first.0)
}
