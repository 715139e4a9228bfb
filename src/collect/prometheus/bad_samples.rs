//! Impossible samples, each counted once however many windows it is in. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use crate::collect::merge::RawSeries;

/// How long a series is remembered after its last impossible sample: as long as the longest window may show it again.
const REMEMBERED: SignedDuration = SignedDuration::from_mins(10);

/// Series that are remembered, of 100 bytes each. Labels that change with every scrape are new series every time; those beyond the
/// bound are counted again in every window.
const MAX_REMEMBERED: usize = 100_000;

/// Name, namespace, pod, part, and what tells copies apart.
type Key = (&'static str, Arc<str>, Arc<str>, u64, u64);

/// The impossible samples of one series in one answer.
#[derive(Debug)]
pub(super) struct Bad {
    key: Key,
    times: Vec<Timestamp>,
}

impl Bad {
    /// `times` of samples of `series`; `None` when there are none.
    pub(super) fn of(series: &RawSeries, times: Vec<Timestamp>) -> Option<Self> {
        let key = || {
            let (namespace, pod) = (series.namespace.clone(), series.pod.clone());
            (series.name.text, namespace, pod, series.part.id, series.origin)
        };
        (!times.is_empty()).then(|| Self { key: key(), times })
    }
}

/// The newest impossible sample counted, by series.
#[derive(Debug, Default)]
pub(super) struct Counted(BTreeMap<Key, Timestamp>);

impl Counted {
    /// How many of these were never counted before.
    pub(super) fn count(&mut self, seen: Vec<Bad>) -> u64 {
        let mut new = 0;
        for Bad { key, times } in seen {
            let counted = self.0.get(&key).copied();
            new += times.iter().filter(|at| counted.is_none_or(|counted| **at > counted)).count();
            let newest = times.into_iter().max().max(counted);
            if counted.is_some() || self.0.len() < MAX_REMEMBERED {
                self.0.extend(newest.map(|newest| (key, newest)));
            }
        }
        if let Some(newest) = self.0.values().max().copied() {
            self.0.retain(|_, at| newest.duration_since(*at) <= REMEMBERED);
        }
        new as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_that_change_with_every_scrape_are_not_remembered_without_bound() {
        let mut counted = Counted::default();
        let bad = |n: u64| Bad {
            key: ("vllm:num_requests_waiting", "llm".into(), "p".into(), n, 0),
            times: vec![Timestamp::UNIX_EPOCH],
        };
        let all = MAX_REMEMBERED as u64 + 1_000;
        assert_eq!(counted.count((0..all).map(bad).collect()), all);
        assert_eq!((counted.0.len(), counted.count(vec![bad(0)])), (MAX_REMEMBERED, 0));
    }
}
