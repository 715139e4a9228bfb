//! The length of the range selector: long enough to judge the samples of the slowest scrape, as learned from the last answer. How
//! old a sample may be is for `wva_core::quality` to decide. Pure.

use std::time::Duration;

use tokio::time::Instant;
use wva_core::quality::stale_limit;
use wva_core::snapshot::{Signal, median_gap};
use wva_core::units::Seconds;

use crate::engine::Series;

/// The longest window, for scrapes up to 2 min apart; also the time after which a window that did not help is tried again. Eight
/// times the default window (75 s) and its samples is what Prometheus and the limit on an answer's size can take.
pub(super) const MAX_WINDOW: Duration = Duration::from_secs(600);

/// The window of the next query.
#[derive(Debug)]
pub(super) struct RangeWindow {
    min: Duration,
    length: Duration,
    /// The last length learned from an observed interval, to which the window returns after a longer one that did not help.
    learned: Duration,
    /// When a longer window may be tried again to find a second sample.
    probe_after: Option<Instant>,
}

impl RangeWindow {
    /// A window of length `min` until a longer one is known to be needed.
    pub(super) fn new(min: Duration) -> Self {
        Self { min, length: min, learned: min, probe_after: None }
    }

    /// The length, at least `required`.
    pub(super) fn length(&self, required: Duration) -> Duration {
        self.length.max(required)
    }

    /// The shortest length, for namespaces that are too large for the usual one.
    pub(super) fn min(&self) -> Duration {
        self.min
    }

    /// Learns from the answer to the last query. The window becomes the stale threshold plus one interval, so that it contains two
    /// samples even after a missed scrape. If no series has two samples, the longest window is tried once.
    pub(super) fn learn(&mut self, series: &[Series], now: Instant) {
        let gauges =
            || series.iter().filter(|series| matches!(series.signal, Signal::KvUsage | Signal::Waiting));
        if gauges().next().is_none() {
            return;
        }
        let intervals = gauges().map(|series| median_gap(series.samples.times()).get());
        let interval = Seconds::new(intervals.fold(0.0, f64::max)).unwrap_or(Seconds::ZERO);
        if interval > Seconds::ZERO {
            let needed = Duration::try_from_secs_f64((stale_limit(interval).get() + interval.get()).ceil());
            self.learned = needed.unwrap_or(MAX_WINDOW).min(MAX_WINDOW).max(self.min);
            self.length = self.learned;
        } else if self.length < MAX_WINDOW && self.probe_after.is_none_or(|after| now >= after) {
            self.length = MAX_WINDOW.max(self.min);
            self.probe_after = Some(now + MAX_WINDOW);
        } else {
            self.length = self.learned;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use jiff::Timestamp;
    use wva_core::snapshot::Sample;

    use super::*;
    use crate::engine::Labels;

    const MIN: Duration = Duration::from_secs(120);

    fn every(seconds: i64, samples: i64) -> Series {
        let at = |n| Timestamp::from_second(1_800_000_000 + n * seconds).unwrap();
        Series {
            labels: Arc::new(Labels {
                namespace: "llm".into(),
                pod: "p".into(),
                engine: "0".into(),
                port: None,
                model: None,
                destination: None,
            }),
            signal: Signal::Waiting,
            samples: (0..samples).map(|n| Sample { at: at(n), value: 1.0 }).collect(),
        }
    }

    #[test]
    fn the_window_contains_two_samples_of_the_slowest_scrape_even_if_one_is_missed() {
        let (mut window, now) = (RangeWindow::new(MIN), Instant::now());
        for (interval, expected) in [(15, 120), (60, 300), (30, 150), (300, 600), (15, 120)] {
            window.learn(&[every(5, 4), every(interval, 3)], now);
            assert_eq!(window.length(Duration::ZERO).as_secs(), expected, "at {interval} s");
        }
    }

    #[test]
    fn without_a_second_sample_the_longest_window_is_tried_once() {
        let (mut window, now) = (RangeWindow::new(MIN), Instant::now());
        window.learn(&[], now);
        assert_eq!(window.length(Duration::ZERO), MIN, "no series, so nothing to find");
        window.learn(&[every(90, 1)], now);
        assert_eq!(window.length(Duration::ZERO), MAX_WINDOW);
        window.learn(&[every(90, 6)], now);
        assert_eq!(window.length(Duration::ZERO).as_secs(), 450);
    }

    #[test]
    fn a_longer_window_that_did_not_help_is_not_tried_every_time() {
        let (mut window, now) = (RangeWindow::new(MIN), Instant::now());
        let new = [every(90, 1)];
        window.learn(&new, now);
        for seconds in [0, 300, 599] {
            window.learn(&new, now + Duration::from_secs(seconds));
            assert_eq!(window.length(Duration::ZERO), MIN, "after {seconds} s");
        }
        window.learn(&new, now + MAX_WINDOW);
        assert_eq!(window.length(Duration::ZERO), MAX_WINDOW);
    }
}
