//! What is remembered of one pod between evaluations: the last minutes of its samples. Bounded in time, in samples and
//! in series; knows no clock.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use wva_core::snapshot::Sample;

use super::settings::ScrapeSettings;
use super::text::Line;
use crate::collect::bounds::MAX_TEXT_BYTES;
use crate::collect::merge::{Part, RawSeries, hash};
use crate::collect::signals::Name;
use crate::engine::{Endpoint, MAX_SERIES_OF_A_POD};

/// How far ahead of the clock a sample may be before it is known that the clock was set back: more than a clock that is
/// being disciplined jumps, no more than evaluations are apart.
const SKEW: SignedDuration = SignedDuration::from_secs(1);

/// Within a pod: name, engine, model, part.
type Key = (&'static str, Option<String>, Option<String>, u64);

/// One series.
#[derive(Debug)]
struct Kept {
    name: &'static Name,
    is_rank: bool,
    part: Part,
    samples: VecDeque<Sample>,
}

/// The samples of one pod.
#[derive(Debug, Default)]
pub(super) struct Window {
    series: BTreeMap<Key, Kept>,
    /// Bytes of their engines and models.
    bytes: usize,
}

/// Bytes of the labels that a series is kept with.
fn text_bytes((_, engine, model, _): &Key) -> usize {
    [engine, model].into_iter().flatten().map(String::len).sum()
}

impl Window {
    /// Adds what a pod answered at `now`. A sample with a time of its own keeps it, unless that is in the future.
    /// How many series there were more than are kept.
    pub(super) fn add(&mut self, lines: Vec<Line>, now: Timestamp) -> u64 {
        self.forget_future(now);
        let mut dropped = 0;
        for line in lines {
            let at = line.at.map_or(now, |at| at.min(now));
            let key = (line.name.text, line.engine, line.model, line.part.id);
            if !self.series.contains_key(&key) {
                let bytes = self.bytes + text_bytes(&key);
                if self.series.len() >= MAX_SERIES_OF_A_POD || bytes > MAX_TEXT_BYTES {
                    dropped += 1;
                    continue;
                }
                self.bytes = bytes;
            }
            let kept = self.series.entry(key).or_insert_with(|| Kept {
                name: line.name,
                is_rank: line.is_rank,
                part: line.part,
                samples: VecDeque::new(),
            });
            let samples = &mut kept.samples;
            if samples.back().is_some_and(|last| last.at >= at) {
                continue;
            }
            if samples.len() >= ScrapeSettings::MAX_SAMPLES {
                samples.pop_front();
            }
            samples.push_back(Sample { at, value: line.value });
        }
        dropped
    }

    /// Forgets samples of a time that is yet to come: the clock was set back. They would look new until it has caught
    /// up, and nothing could be added after them.
    fn forget_future(&mut self, now: Timestamp) {
        for Kept { samples, .. } in self.series.values_mut() {
            while samples.back().is_some_and(|last| last.at.duration_since(now) > SKEW) {
                samples.pop_back();
            }
        }
    }

    /// Forgets samples older than `length` before `now`, and those of a time yet to come.
    pub(super) fn forget(&mut self, now: Timestamp, length: Duration) {
        self.forget_future(now);
        let length = SignedDuration::try_from(length).unwrap_or(SignedDuration::MAX);
        self.series.retain(|_, Kept { samples, .. }| {
            while samples.front().is_some_and(|first| now.duration_since(first.at) > length) {
                samples.pop_front();
            }
            !samples.is_empty()
        });
        self.bytes = self.series.keys().map(text_bytes).sum();
    }

    /// Everything remembered, as series of `endpoint`.
    pub(super) fn series<'a>(&'a self, endpoint: &'a Endpoint) -> impl Iterator<Item = RawSeries> + 'a {
        self.series.iter().map(|((_, engine, model, _), kept)| RawSeries {
            name: kept.name,
            namespace: endpoint.namespace.as_str().into(),
            pod: endpoint.pod.as_str().into(),
            engine: engine.as_deref().map(Into::into),
            is_rank: kept.is_rank,
            port: Some(endpoint.port),
            model: model.as_deref().map(Into::into),
            part: kept.part.clone(),
            to: None,
            is_relayed: false,
            // What tells two pods of one name apart.
            origin: hash(&endpoint.ip),
            samples: kept.samples.iter().copied().collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collect::signals;

    fn line(value: f64, at: Option<Timestamp>) -> Line {
        let name = signals::find("vllm:num_requests_waiting").unwrap();
        Line { name, engine: None, is_rank: false, model: None, part: Part::default(), at, value }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn samples(window: &Window) -> Vec<(i64, f64)> {
        let all = window.series.values().flat_map(|kept| kept.samples.iter());
        all.map(|sample| (sample.at.as_second() - 1_800_000_000, sample.value)).collect()
    }

    #[test]
    fn samples_stay_for_the_window_with_their_true_times() {
        let mut window = Window::default();
        for second in [0, 60, 120] {
            assert_eq!(window.add(vec![line(1.0, None)], at(second)), 0);
        }
        window.forget(at(125), Duration::from_secs(120));
        assert_eq!(samples(&window), [(60, 1.0), (120, 1.0)]);
        window.forget(at(400), Duration::from_secs(120));
        assert!(window.series.is_empty());
    }

    #[test]
    fn a_sample_that_was_relayed_keeps_its_own_time_and_is_not_counted_twice() {
        let mut window = Window::default();
        window.add(vec![line(1.0, Some(at(10)))], at(20));
        window.add(vec![line(1.0, Some(at(10)))], at(25));
        window.add(vec![line(2.0, Some(at(99)))], at(30));
        assert_eq!(samples(&window), [(10, 1.0), (30, 2.0)]);
    }

    #[test]
    fn after_the_clock_was_set_back_new_samples_are_kept_and_old_ones_do_not_look_new() {
        let mut window = Window::default();
        for second in [0, 15, 3_600, 3_615] {
            window.add(vec![line(1.0, None)], at(second));
        }
        window.add(vec![line(2.0, None)], at(30));
        assert_eq!(samples(&window), [(0, 1.0), (15, 1.0), (30, 2.0)]);
        window.forget(at(10), Duration::from_secs(120));
        assert_eq!(samples(&window), [(0, 1.0)], "a pod that says nothing any more");
    }

    #[test]
    fn neither_samples_nor_series_grow_without_bound() {
        let mut window = Window::default();
        for second in 0..1_000 {
            window.add(vec![line(1.0, None)], at(second));
        }
        assert_eq!(samples(&window).len(), ScrapeSettings::MAX_SAMPLES);
        let engines = |count, engine: fn(usize) -> String| {
            (0..count).map(|n| Line { engine: Some(engine(n)), ..line(1.0, None) }).collect::<Vec<_>>()
        };
        let many = engines(MAX_SERIES_OF_A_POD, |n| n.to_string());
        assert_eq!(window.add(many, at(1_000)), 1);
        assert_eq!(window.series.len(), MAX_SERIES_OF_A_POD);
    }

    #[test]
    fn labels_that_change_with_every_scrape_take_no_more_than_their_bound() {
        let mut window = Window::default();
        for second in 0..60 {
            let name = |n| format!("{second}-{n}-{}", "x".repeat(200));
            let lines = (0..900).map(|n| Line { engine: Some(name(n)), ..line(1.0, None) }).collect();
            window.add(lines, at(second));
            let bytes: usize = window.series.keys().map(text_bytes).sum();
            assert!(bytes == window.bytes && bytes <= MAX_TEXT_BYTES, "{bytes} bytes after {second} s");
        }
        assert!(window.series.len() > 500, "what came first stays");
        window.forget(at(400), Duration::from_secs(120));
        assert_eq!(window.bytes, 0);
    }
}
