//! How much one pod may say. Whoever runs a pod writes its page, so series, engines and the bytes of labels are bounded for
//! each pod by itself, and for all schedulers of a namespace together; what is left out is counted, makes a gap of its namespace,
//! and is logged once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::engine::{Gap, MAX_ENGINES_OF_A_POD, MAX_SERIES_OF_A_POD};

/// A source answers after this with what it has, and with gaps for the rest. The engine cuts a collection off at 20 s and then knows
/// nothing at all; 5 s are left to put together what was read on a busy machine.
pub(super) const COLLECTION_TIMEOUT: Duration = Duration::from_secs(15);
/// Labels of one series. Those of vLLM's cache configuration, which are not kept, are 35; a scrape configuration adds a dozen, or
/// all labels of the pod.
pub(super) const MAX_LABELS: usize = 64;
/// Bytes of one label that is kept. Names of models have up to 100, of pods 253 at most.
pub(super) const MAX_LABEL_BYTES: usize = 256;
/// Bytes of all labels that are kept of one pod: 1,000 series of an engine and a model name of 64 bytes each. Ten thousand pods
/// that fill it are 1.3 GB; ten that do are lost in the noise, and an honest one has 1 KiB.
pub(super) const MAX_TEXT_BYTES: usize = 128 * 1024;
/// Series of all schedulers of a namespace: they count by endpoint, and 20,000 endpoints with two priorities are 40,000. As
/// they are kept these are 20 MB.
pub(super) const MAX_SCHEDULER_SERIES: usize = 50_000;
/// Bytes of their labels that are kept: names of a model and of a pod, of 80 bytes each.
const MAX_SCHEDULER_TEXT_BYTES: usize = 8 * 1024 * 1024;
/// Series of all pods that nobody knows, in a namespace of which no pod is known: what 20 pods may show. Nothing is decided by
/// them unless these pods become known while they are read.
const MAX_STRANGERS_SERIES: usize = 20_000;
/// Bytes of their labels.
const MAX_STRANGERS_TEXT_BYTES: usize = 20 * MAX_TEXT_BYTES;

/// Who shares a room, of what a namespace shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Holder {
    /// One pod.
    Pod,
    /// All its schedulers.
    Schedulers,
    /// All pods that nobody knows.
    Strangers,
}

/// What of a room is taken.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Room {
    series: usize,
    bytes: usize,
}

impl Room {
    /// Takes room for a series with so many bytes of labels; false when there is none left.
    pub(super) const fn take(&mut self, holder: Holder, bytes: usize) -> bool {
        let (max_series, max_bytes) = match holder {
            Holder::Pod => (MAX_SERIES_OF_A_POD, MAX_TEXT_BYTES),
            Holder::Schedulers => (MAX_SCHEDULER_SERIES, MAX_SCHEDULER_TEXT_BYTES),
            Holder::Strangers => (MAX_STRANGERS_SERIES, MAX_STRANGERS_TEXT_BYTES),
        };
        let fits = self.series < max_series && self.bytes + bytes <= max_bytes;
        if fits {
            self.series += 1;
            self.bytes += bytes;
        }
        fits
    }
}

/// Series left out, by namespace and pod.
#[derive(Debug, Default)]
pub(super) struct Dropped(BTreeMap<(Arc<str>, Arc<str>), u64>);

impl Dropped {
    pub(super) fn add(&mut self, namespace: &Arc<str>, pod: &Arc<str>, series: u64) {
        if series > 0 {
            *self.0.entry((namespace.clone(), pod.clone())).or_default() += series;
        }
    }

    pub(super) fn extend(&mut self, more: Self) {
        more.0.iter().for_each(|((namespace, pod), series)| self.add(namespace, pod, *series));
    }

    /// All of them.
    pub(super) fn count(&self) -> u64 {
        self.0.values().sum()
    }

    pub(super) fn gaps(&self) -> impl Iterator<Item = Gap> {
        let gap = |((namespace, pod), series): (&(Arc<str>, Arc<str>), &u64)| {
            let reason = format!(
                "pod {pod}: {series} of its series are left out; {MAX_SERIES_OF_A_POD} series, {MAX_ENGINES_OF_A_POD} engines, \
                 {MAX_LABELS} labels of a series, {MAX_LABEL_BYTES} bytes of a label and {} KiB of labels are kept, and of all \
                 schedulers of a namespace {MAX_SCHEDULER_SERIES} series; check what it exposes",
                MAX_TEXT_BYTES / 1024
            );
            Gap { namespace: Some(namespace.to_string()), reason }
        };
        self.0.iter().map(gap)
    }
}

/// The pods of which it is known, and was logged, that series are left out.
#[derive(Debug, Default)]
pub(super) struct LogOnce(Mutex<BTreeSet<(Arc<str>, Arc<str>)>>);

impl LogOnce {
    /// Logs the pods that are new among `dropped`, and forgets those that aren't among it any more.
    pub(super) fn log(&self, dropped: &Dropped) {
        let mut logged = self.0.lock();
        for (pod, series) in dropped.0.iter().filter(|(pod, _)| !logged.contains(*pod)) {
            let (namespace, pod) = pod;
            tracing::warn!(
                ?namespace,
                ?pod,
                series,
                "a pod shows more series, engines or labels, or longer ones, than are kept; check what it exposes"
            );
        }
        *logged = dropped.0.keys().cloned().collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_series_nor_bytes_of_labels_of_one_pod_grow_without_bound() {
        let mut many = Room::default();
        assert_eq!((0..5_000).filter(|_| many.take(Holder::Pod, 10)).count(), MAX_SERIES_OF_A_POD);
        let mut long = Room::default();
        let kept = (0..5_000).filter(|_| long.take(Holder::Pod, 2 * MAX_LABEL_BYTES)).count();
        assert_eq!(kept * 2 * MAX_LABEL_BYTES, MAX_TEXT_BYTES);
        let mut schedulers = Room::default();
        let take = |room: &mut Room, bytes| room.take(Holder::Schedulers, bytes);
        assert!((0..40_000).all(|_| take(&mut schedulers, 160)), "20,000 endpoints with two priorities");
        assert_eq!((0..40_000).filter(|_| take(&mut schedulers, 160)).count(), 10_000);
        let mut long = Room::default();
        let kept = (0..50_000).filter(|_| take(&mut long, 2 * MAX_LABEL_BYTES)).count();
        assert_eq!(kept * 2 * MAX_LABEL_BYTES, MAX_SCHEDULER_TEXT_BYTES);
    }

    #[test]
    fn what_is_left_out_is_a_gap_of_its_own_namespace_that_names_the_pod() {
        let mut dropped = Dropped::default();
        dropped.add(&"llm".into(), &"p".into(), 0);
        assert_eq!((dropped.count(), dropped.gaps().count()), (0, 0));
        dropped.add(&"llm".into(), &"p".into(), 2);
        dropped.add(&"llm".into(), &"p".into(), 3);
        let gaps: Vec<Gap> = dropped.gaps().collect();
        assert!(dropped.count() == 5 && gaps[0].namespace.as_deref() == Some("llm"));
        assert!(gaps.len() == 1 && gaps[0].reason.starts_with("pod p: 5 of its series"), "{gaps:?}");
    }
}
