//! How far back to ask: as far as samples of the slowest engine need to be judged, learned from the last answer; and which
//! namespaces were too much by themselves, of which the least is asked for. Pure.
//! Not here: how old a sample may be; that is `wva_core::quality`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;
use wva_core::quality::stale_limit;
use wva_core::snapshot::{Signal, median_gap};
use wva_core::units::Seconds;

use crate::engine::Series;

/// The longest window, for scrapes up to 2 min apart; also how long a window that didn't help isn't tried again. Five
/// times the usual window, and five times its samples, is what a Prometheus and the cap on an answer have room for.
const MAX_WINDOW: Duration = Duration::from_secs(600);

/// What the last answers say about the window of the next.
#[derive(Debug)]
pub(super) struct Window {
    least: Duration,
    length: Duration,
    /// The last length that an interval was behind; what a look further back goes back to.
    learned: Duration,
    /// No look further back in search of a second sample before then.
    probe_after: Option<Instant>,
}

impl Window {
    /// `least` is asked for until more is known to be needed.
    pub(super) fn new(least: Duration) -> Self {
        Self { least, length: least, learned: least, probe_after: None }
    }

    /// How far back to ask: `looked` where decisions look further back.
    pub(super) fn length(&self, looked: Duration) -> Duration {
        self.length.max(looked)
    }

    /// How far back to ask where that is too much.
    pub(super) fn least(&self) -> Duration {
        self.least
    }

    /// Learns from what came of asking this far back. The stale limit and one interval, so that there are two samples
    /// even after a missed scrape; when no series has two, one look as far back as may be.
    pub(super) fn learn(&mut self, series: &[Series], now: Instant) {
        let judged = || series.iter().filter(|one| matches!(one.signal, Signal::KvUsage | Signal::Waiting));
        if judged().next().is_none() {
            return;
        }
        let mut times = Vec::new();
        let gaps = judged().map(|one| {
            times.clear();
            times.extend(one.samples.iter().map(|sample| sample.at));
            median_gap(&times).get()
        });
        let interval = Seconds::new(gaps.fold(0.0, f64::max)).unwrap_or(Seconds::ZERO);
        if interval > Seconds::ZERO {
            let needed = Duration::try_from_secs_f64((stale_limit(interval).get() + interval.get()).ceil());
            self.learned = needed.unwrap_or(MAX_WINDOW).min(MAX_WINDOW).max(self.least);
            self.length = self.learned;
        } else if self.length < MAX_WINDOW && self.probe_after.is_none_or(|after| now >= after) {
            self.length = MAX_WINDOW.max(self.least);
            self.probe_after = Some(now + MAX_WINDOW);
        } else {
            self.length = self.learned;
        }
    }
}

/// Namespaces of which an answer was refused, cut or late though nothing else was asked for with it. What is left is to ask for
/// them alone, and for few samples; a namespace stays here as long as a window that didn't help isn't tried again.
#[derive(Debug, Default)]
pub(super) struct Heavy(BTreeMap<String, Instant>);

impl Heavy {
    /// It was too much.
    pub(super) fn note(&mut self, namespace: &str, now: Instant) {
        self.0.insert(namespace.to_owned(), now + MAX_WINDOW);
    }

    /// Those of now.
    pub(super) fn namespaces(&mut self, now: Instant) -> BTreeSet<String> {
        self.0.retain(|_, until| now < *until);
        self.0.keys().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use wva_core::snapshot::Sample;

    use super::*;

    const LEAST: Duration = Duration::from_secs(120);

    fn every(seconds: i64, samples: i64) -> Series {
        let at = |n| Timestamp::from_second(1_800_000_000 + n * seconds).unwrap();
        Series {
            namespace: "llm".into(),
            pod: "p".into(),
            engine: "0".into(),
            port: None,
            model: None,
            signal: Signal::Waiting,
            to: None,
            samples: (0..samples).map(|n| Sample { at: at(n), value: 1.0 }).collect(),
        }
    }

    #[test]
    fn the_slowest_scrape_decides_and_a_missed_one_still_leaves_two_samples() {
        let (mut window, now) = (Window::new(LEAST), Instant::now());
        for (interval, wanted) in [(15, 120), (60, 300), (30, 150), (300, 600), (15, 120)] {
            window.learn(&[every(5, 4), every(interval, 3)], now);
            assert_eq!(window.length(Duration::ZERO).as_secs(), wanted, "at {interval} s");
        }
    }

    #[test]
    fn without_a_second_sample_it_looks_far_back_once_and_keeps_what_it_found() {
        let (mut window, now) = (Window::new(LEAST), Instant::now());
        window.learn(&[], now);
        assert_eq!(window.length(Duration::ZERO), LEAST, "nothing there is nothing to look for");
        window.learn(&[every(90, 1)], now);
        assert_eq!(window.length(Duration::ZERO), MAX_WINDOW);
        window.learn(&[every(90, 6)], now);
        assert_eq!(window.length(Duration::ZERO).as_secs(), 450);
    }

    #[test]
    fn a_look_that_found_nothing_is_not_repeated_every_time() {
        let (mut window, now) = (Window::new(LEAST), Instant::now());
        let new = [every(90, 1)];
        window.learn(&new, now);
        for seconds in [0, 300, 599] {
            window.learn(&new, now + Duration::from_secs(seconds));
            assert_eq!(window.length(Duration::ZERO), LEAST, "after {seconds} s");
        }
        window.learn(&new, now + MAX_WINDOW);
        assert_eq!(window.length(Duration::ZERO), MAX_WINDOW);
    }

    #[test]
    fn a_namespace_that_was_too_much_is_asked_for_the_least_for_a_while() {
        let (mut heavy, now) = (Heavy::default(), Instant::now());
        heavy.note("a", now);
        heavy.note("b", now + Duration::from_secs(60));
        let names = |heavy: &mut Heavy, after: Duration| {
            heavy.namespaces(now + after).into_iter().collect::<Vec<_>>()
        };
        assert_eq!(names(&mut heavy, Duration::ZERO), ["a", "b"]);
        assert_eq!(names(&mut heavy, MAX_WINDOW), ["b"]);
        assert_eq!(names(&mut heavy, MAX_WINDOW * 2), Vec::<String>::new());
    }
}
