//! Counts invalid samples, each once, however many query windows contain it. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use crate::collect::merge::RawLabels;
use crate::collect::signals::MetricName;

/// How long a series is remembered after its last invalid sample: as long as the longest window may contain it.
const MEMORY_WINDOW: SignedDuration = SignedDuration::from_mins(10);

/// Most series that are remembered, of 100 bytes each. A label that changes with every scrape makes a new series every time; samples
/// of series beyond the limit are counted again in every window.
const MAX_REMEMBERED: usize = 100_000;

/// Name, namespace, pod, part and source of a series.
type Key = (&'static str, Arc<str>, Arc<str>, u64, u64);

/// The invalid samples of one series in one answer.
#[derive(Debug)]
pub(super) struct BadSamples {
    key: Key,
    times: Vec<Timestamp>,
}

impl BadSamples {
    /// The samples of a series at `times`; `None` when there are none.
    pub(super) fn new(name: &MetricName, labels: &RawLabels, times: Vec<Timestamp>) -> Option<Self> {
        let key = || {
            let (namespace, pod) = (labels.namespace.clone(), labels.pod.clone());
            (name.text, namespace, pod, labels.part.id, labels.source_hash)
        };
        (!times.is_empty()).then(|| Self { key: key(), times })
    }
}

/// The time of the newest invalid sample that was counted, by series.
#[derive(Debug, Default)]
pub(super) struct BadSampleCounter(BTreeMap<Key, Timestamp>);

impl BadSampleCounter {
    /// The number of samples in `found` that have not been counted before.
    pub(super) fn count_new(&mut self, found: Vec<BadSamples>) -> u64 {
        let mut new = 0;
        for BadSamples { key, times } in found {
            let counted = self.0.get(&key).copied();
            new += times.iter().filter(|at| counted.is_none_or(|counted| **at > counted)).count();
            let newest = times.into_iter().max().max(counted);
            if counted.is_some() || self.0.len() < MAX_REMEMBERED {
                self.0.extend(newest.map(|newest| (key, newest)));
            }
        }
        if let Some(newest) = self.0.values().max().copied() {
            self.0.retain(|_, at| newest.duration_since(*at) <= MEMORY_WINDOW);
        }
        new as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_remembered_series_is_limited() {
        let mut counter = BadSampleCounter::default();
        let bad = |n: u64| BadSamples {
            key: ("vllm:num_requests_waiting", "llm".into(), "p".into(), n, 0),
            times: vec![Timestamp::UNIX_EPOCH],
        };
        let all = MAX_REMEMBERED as u64 + 1_000;
        assert_eq!(counter.count_new((0..all).map(bad).collect()), all);
        assert_eq!((counter.0.len(), counter.count_new(vec![bad(0)])), (MAX_REMEMBERED, 0));
    }
}
