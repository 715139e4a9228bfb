//! What is remembered of one pod between evaluations: the last minutes of its samples. Bounded in time, in samples and
//! in series; knows no clock.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use wva_core::snapshot::Sample;

use super::text::Line;
use crate::collect::merge::RawSeries;
use crate::collect::signals::Name;
use crate::engine::Endpoint;

/// Samples kept of one series: 2 min at one a second, which is as often as evaluations may follow each other.
const MAX_SAMPLES: usize = 120;

/// Series kept of one pod: 18 of each of 50 engines. A pod has one engine, or eight.
const MAX_SERIES: usize = 900;

/// How far ahead of the clock a sample may be before it is known that the clock was set back: more than a clock that is
/// being disciplined jumps, no more than evaluations are apart.
const SKEW: SignedDuration = SignedDuration::from_secs(1);

/// Within a pod: name, engine, model, part.
type Key = (&'static str, Option<String>, Option<String>, String);

/// The samples of one pod.
#[derive(Debug, Default)]
pub(super) struct Window(BTreeMap<Key, (&'static Name, VecDeque<Sample>)>);

impl Window {
    /// Adds what a pod answered at `now`. A sample with a time of its own keeps it, unless that is in the future.
    /// False when there were more series than are kept.
    pub(super) fn add(&mut self, lines: Vec<Line>, now: Timestamp) -> bool {
        self.forget_future(now);
        let mut room = true;
        for line in lines {
            let at = line.at.map_or(now, |at| at.min(now));
            let key = (line.name.text, line.engine, line.model, line.part);
            if self.0.len() >= MAX_SERIES && !self.0.contains_key(&key) {
                room = false;
                continue;
            }
            let (_, samples) = self.0.entry(key).or_insert_with(|| (line.name, VecDeque::new()));
            if samples.back().is_some_and(|last| last.at >= at) {
                continue;
            }
            if samples.len() >= MAX_SAMPLES {
                samples.pop_front();
            }
            samples.push_back(Sample { at, value: line.value });
        }
        room
    }

    /// Forgets samples of a time that is yet to come: the clock was set back. They would look new until it has caught
    /// up, and nothing could be added after them.
    fn forget_future(&mut self, now: Timestamp) {
        for (_, samples) in self.0.values_mut() {
            while samples.back().is_some_and(|last| last.at.duration_since(now) > SKEW) {
                samples.pop_back();
            }
        }
    }

    /// Forgets samples older than `length` before `now`, and those of a time yet to come.
    pub(super) fn forget(&mut self, now: Timestamp, length: Duration) {
        self.forget_future(now);
        let length = SignedDuration::try_from(length).unwrap_or(SignedDuration::MAX);
        self.0.retain(|_, (_, samples)| {
            while samples.front().is_some_and(|first| now.duration_since(first.at) > length) {
                samples.pop_front();
            }
            !samples.is_empty()
        });
    }

    /// Everything remembered, as series of `endpoint`.
    pub(super) fn series<'a>(&'a self, endpoint: &'a Endpoint) -> impl Iterator<Item = RawSeries> + 'a {
        self.0.iter().map(|((_, engine, model, part), (name, samples))| RawSeries {
            name,
            namespace: endpoint.namespace.as_str().into(),
            pod: endpoint.pod.as_str().into(),
            engine: engine.as_deref().map(Into::into),
            port: Some(endpoint.port),
            model: model.as_deref().map(Into::into),
            part: part.as_str().into(),
            to: None,
            is_relayed: false,
            origin: origin(endpoint.ip),
            samples: samples.iter().copied().collect(),
        })
    }
}

/// What tells two pods of one name apart.
fn origin(ip: IpAddr) -> u64 {
    let mut hasher = DefaultHasher::new();
    ip.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collect::signals;

    fn line(value: f64, at: Option<Timestamp>) -> Line {
        let name = signals::find("vllm:num_requests_waiting").unwrap();
        Line { name, engine: None, model: None, part: String::new(), at, value }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn samples(window: &Window) -> Vec<(i64, f64)> {
        let all = window.0.values().flat_map(|(_, samples)| samples.iter());
        all.map(|sample| (sample.at.as_second() - 1_800_000_000, sample.value)).collect()
    }

    #[test]
    fn samples_stay_for_the_window_with_their_true_times() {
        let mut window = Window::default();
        for second in [0, 60, 120] {
            assert!(window.add(vec![line(1.0, None)], at(second)));
        }
        window.forget(at(125), Duration::from_secs(120));
        assert_eq!(samples(&window), [(60, 1.0), (120, 1.0)]);
        window.forget(at(400), Duration::from_secs(120));
        assert!(window.0.is_empty());
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
        assert_eq!(samples(&window).len(), MAX_SAMPLES);
        let many = (0..MAX_SERIES).map(|n| Line { engine: Some(n.to_string()), ..line(1.0, None) }).collect();
        assert!(!window.add(many, at(1_000)));
        assert_eq!(window.0.len(), MAX_SERIES);
    }
}
