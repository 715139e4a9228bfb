//! The samples of one pod between evaluations: those of the last minutes, limited in age and number. Pure.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use smol_str::SmolStr;
use wva_core::snapshot::Sample;

use super::parse::PageSample;
use super::settings::ScrapeSettings;
use crate::collect::limits::MAX_POD_LABEL_BYTES;
use crate::collect::merge::{Part, RawLabels, RawSeries, SharedParts, hash};
use crate::collect::signals::MetricName;
use crate::engine::{Destination, Endpoint, MAX_SERIES_OF_A_POD};

/// How far in the future a sample may be before the clock must have been set back: more than a clock under time synchronisation
/// jumps, and at most the shortest interval between evaluations.
const CLOCK_TOLERANCE: SignedDuration = SignedDuration::from_secs(1);

/// A series within its pod: name, engine, model, destination, part.
type HistoryKey = (&'static str, Option<String>, Option<String>, Option<Destination>, u64);

/// The samples of one series.
#[derive(Debug)]
struct SeriesHistory {
    name: &'static MetricName,
    is_rank: bool,
    part: Part,
    samples: VecDeque<Sample>,
}

/// The samples of one pod.
#[derive(Debug, Default)]
pub(super) struct PodHistory {
    /// Of a scheduler: the model that all of its series are about.
    only_model: Option<SmolStr>,
    series: BTreeMap<HistoryKey, SeriesHistory>,
    /// Bytes of the labels in the keys.
    label_bytes: usize,
}

/// Bytes of the labels in a key.
fn label_bytes((_, engine, model, destination, _): &HistoryKey) -> usize {
    let named: usize = [engine, model].into_iter().flatten().map(String::len).sum();
    named + destination.as_ref().map_or(0, |destination| destination.pod.len())
}

impl PodHistory {
    /// Forgets everything where the series of a scheduler are about other models than before: their sums would jump.
    pub(super) fn set_only_model(&mut self, only_model: Option<&SmolStr>) {
        if self.only_model.as_ref() != only_model {
            *self = Self { only_model: only_model.cloned(), ..Self::default() };
        }
    }

    /// Adds the samples of a page read at `now`, and returns how many belong to series beyond the limits. A sample keeps its own
    /// time, if it has one that is not in the future.
    pub(super) fn add(&mut self, samples: Vec<PageSample>, now: Timestamp) -> u64 {
        self.forget_future(now);
        let mut dropped = 0;
        for sample in samples {
            let at = sample.at.map_or(now, |at| at.min(now));
            let key = (sample.name.text, sample.engine, sample.model, sample.destination, sample.part.id);
            if !self.series.contains_key(&key) {
                let bytes = self.label_bytes + label_bytes(&key);
                if self.series.len() >= MAX_SERIES_OF_A_POD || bytes > MAX_POD_LABEL_BYTES {
                    dropped += 1;
                    continue;
                }
                self.label_bytes = bytes;
            }
            let series = self.series.entry(key).or_insert_with(|| SeriesHistory {
                name: sample.name,
                is_rank: sample.is_rank,
                part: sample.part,
                samples: VecDeque::new(),
            });
            let samples = &mut series.samples;
            if samples.back().is_some_and(|last| last.at >= at) {
                continue;
            }
            if samples.len() >= ScrapeSettings::MAX_SAMPLES {
                samples.pop_front();
            }
            samples.push_back(Sample { at, value: sample.value });
        }
        dropped
    }

    /// Forgets samples in the future, which are left when the clock is set back. Until it has caught up, they would look new, and
    /// no sample could be added after them.
    fn forget_future(&mut self, now: Timestamp) {
        for SeriesHistory { samples, .. } in self.series.values_mut() {
            while samples.back().is_some_and(|last| last.at.duration_since(now) > CLOCK_TOLERANCE) {
                samples.pop_back();
            }
        }
    }

    /// Forgets samples older than `max_age`, and those in the future.
    pub(super) fn forget(&mut self, now: Timestamp, max_age: Duration) {
        self.forget_future(now);
        let max_age = SignedDuration::try_from(max_age).unwrap_or(SignedDuration::MAX);
        self.series.retain(|_, SeriesHistory { samples, .. }| {
            while samples.front().is_some_and(|first| now.duration_since(first.at) > max_age) {
                samples.pop_front();
            }
            !samples.is_empty()
        });
        self.label_bytes = self.series.keys().map(label_bytes).sum();
    }

    /// All series, as those of `endpoint`.
    pub(super) fn series<'a>(&'a self, endpoint: &'a Endpoint) -> impl Iterator<Item = RawSeries> + 'a {
        let (namespace, pod): (Arc<str>, Arc<str>) =
            (endpoint.namespace.as_str().into(), endpoint.pod.as_str().into());
        let mut shared = SharedParts::default();
        self.series.iter().map(move |((_, engine, model, destination, _), series)| {
            let labels = RawLabels {
                namespace: namespace.clone(),
                pod: pod.clone(),
                engine: engine.as_deref().map(Into::into),
                is_rank: series.is_rank,
                port: endpoint.port,
                model: model.as_deref().map(Into::into),
                part: series.part.clone(),
                destination: destination.clone(),
                is_relayed: false,
                // Tells pods with the same name apart.
                source_hash: hash(&endpoint.ip),
            };
            shared.series(series.name, labels, series.samples.iter().copied().collect())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collect::signals;

    fn sample(value: f64, at: Option<Timestamp>) -> PageSample {
        let name = signals::find("vllm:num_requests_waiting").unwrap();
        PageSample {
            name,
            engine: None,
            is_rank: false,
            model: None,
            part: Part::default(),
            destination: None,
            at,
            value,
        }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn samples(history: &PodHistory) -> Vec<(i64, f64)> {
        let all = history.series.values().flat_map(|series| series.samples.iter());
        all.map(|sample| (sample.at.as_second() - 1_800_000_000, sample.value)).collect()
    }

    #[test]
    fn a_scheduler_that_is_about_another_model_begins_anew() {
        let mut history = PodHistory::default();
        let base = SmolStr::new_static("base");
        for only_model in [None, Some(&base), Some(&base), None] {
            history.set_only_model(only_model);
            history.add(vec![sample(1.0, Some(at(0)))], at(0));
            assert_eq!(samples(&history), [(0, 1.0)], "{only_model:?}");
            history.set_only_model(only_model);
            assert_eq!(samples(&history), [(0, 1.0)], "the same as before");
        }
        history.set_only_model(Some(&base));
        assert!(samples(&history).is_empty());
    }

    #[test]
    fn samples_are_kept_for_the_window_with_their_true_times() {
        let mut history = PodHistory::default();
        for second in [0, 60, 120] {
            assert_eq!(history.add(vec![sample(1.0, None)], at(second)), 0);
        }
        history.forget(at(125), Duration::from_secs(120));
        assert_eq!(samples(&history), [(60, 1.0), (120, 1.0)]);
        history.forget(at(400), Duration::from_secs(120));
        assert!(history.series.is_empty());
    }

    #[test]
    fn a_sample_with_a_time_keeps_it_and_is_not_added_twice() {
        let mut history = PodHistory::default();
        history.add(vec![sample(1.0, Some(at(10)))], at(20));
        history.add(vec![sample(1.0, Some(at(10)))], at(25));
        history.add(vec![sample(2.0, Some(at(99)))], at(30));
        assert_eq!(samples(&history), [(10, 1.0), (30, 2.0)]);
    }

    #[test]
    fn after_the_clock_is_set_back_new_samples_are_added_and_future_ones_forgotten() {
        let mut history = PodHistory::default();
        for second in [0, 15, 3_600, 3_615] {
            history.add(vec![sample(1.0, None)], at(second));
        }
        history.add(vec![sample(2.0, None)], at(30));
        assert_eq!(samples(&history), [(0, 1.0), (15, 1.0), (30, 2.0)]);
        history.forget(at(10), Duration::from_secs(120));
        assert_eq!(samples(&history), [(0, 1.0)], "without new samples, too");
    }

    #[test]
    fn the_numbers_of_samples_and_series_are_limited() {
        let mut history = PodHistory::default();
        for second in 0..1_000 {
            history.add(vec![sample(1.0, None)], at(second));
        }
        assert_eq!(samples(&history).len(), ScrapeSettings::MAX_SAMPLES);
        let engines = |count, engine: fn(usize) -> String| {
            (0..count)
                .map(|n| PageSample { engine: Some(engine(n)), ..sample(1.0, None) })
                .collect::<Vec<_>>()
        };
        let many = engines(MAX_SERIES_OF_A_POD, |n| n.to_string());
        assert_eq!(history.add(many, at(1_000)), 1);
        assert_eq!(history.series.len(), MAX_SERIES_OF_A_POD);
    }

    #[test]
    fn label_bytes_are_limited_when_labels_change_with_every_scrape() {
        let mut history = PodHistory::default();
        for second in 0..60 {
            let name = |n| format!("{second}-{n}-{}", "x".repeat(200));
            let samples =
                (0..900).map(|n| PageSample { engine: Some(name(n)), ..sample(1.0, None) }).collect();
            history.add(samples, at(second));
            let bytes: usize = history.series.keys().map(label_bytes).sum();
            assert!(
                bytes == history.label_bytes && bytes <= MAX_POD_LABEL_BYTES,
                "{bytes} bytes after {second} s"
            );
        }
        assert!(history.series.len() > 500, "the first ones are kept");
        history.forget(at(400), Duration::from_secs(120));
        assert_eq!(history.label_bytes, 0);
    }
}
