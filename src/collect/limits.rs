//! Limits on what is kept of each pod. Whoever runs a pod writes its metrics page, so the number of series and engines and the
//! bytes of labels are limited for each pod separately, and for all schedulers of a namespace together. Series beyond a limit
//! are counted, reported as a gap of their namespace, and logged once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::engine::{Gap, MAX_ENGINES_OF_A_POD, MAX_SERIES_OF_A_POD};

/// After this, a source returns what it has, with gaps for the rest. The engine gives up a collection after 20 s and then has no
/// data at all; the difference of 5 s is for merging the series on a busy machine.
pub(super) const COLLECTION_TIMEOUT: Duration = Duration::from_secs(15);
/// Labels of one series. vLLM's cache configuration has 35, which are not kept; a scrape configuration adds a dozen, or all labels
/// of the pod.
pub(super) const MAX_LABELS: usize = 64;
/// Bytes of one label value that is kept. Names of models have up to 100, names of pods at most 253.
pub(super) const MAX_LABEL_BYTES: usize = 256;
/// Bytes of all labels kept of one pod: 1,000 series of an engine and a model name of 64 bytes each. A usual pod has 1 KiB. 10,000
/// pods at the limit take 1.3 GB.
pub(super) const MAX_POD_LABEL_BYTES: usize = 128 * 1024;
/// Series of all schedulers of a namespace: they count by endpoint, and 20,000 endpoints with two priorities are 40,000 series. At
/// the limit they take 20 MB.
pub(super) const MAX_SCHEDULER_SERIES: usize = 50_000;
/// Bytes of the labels kept of these series: 160 for each, for the names of a model and of a pod.
const MAX_SCHEDULER_LABEL_BYTES: usize = 8 * 1024 * 1024;
/// Series of all unknown pods, in a namespace in which no pod is known: those of 20 pods. They count only if these pods become
/// known while they are collected.
const MAX_UNKNOWN_POD_SERIES: usize = 20_000;
/// Bytes of the labels kept of these series.
const MAX_UNKNOWN_POD_LABEL_BYTES: usize = 20 * MAX_POD_LABEL_BYTES;

/// The series of a namespace that share a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum LimitScope {
    /// Those of one pod.
    Pod,
    /// Those of all schedulers.
    Schedulers,
    /// Those of all pods that are not known.
    UnknownPods,
}

/// How much of a limit is used.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LimitUsage {
    series: usize,
    label_bytes: usize,
}

impl LimitUsage {
    /// Adds a series with `label_bytes` of labels. Returns false, and adds nothing, when it would exceed the limit of `scope`.
    pub(super) const fn try_add(&mut self, scope: LimitScope, label_bytes: usize) -> bool {
        let (max_series, max_label_bytes) = match scope {
            LimitScope::Pod => (MAX_SERIES_OF_A_POD, MAX_POD_LABEL_BYTES),
            LimitScope::Schedulers => (MAX_SCHEDULER_SERIES, MAX_SCHEDULER_LABEL_BYTES),
            LimitScope::UnknownPods => (MAX_UNKNOWN_POD_SERIES, MAX_UNKNOWN_POD_LABEL_BYTES),
        };
        let fits = self.series < max_series && self.label_bytes + label_bytes <= max_label_bytes;
        if fits {
            self.series += 1;
            self.label_bytes += label_bytes;
        }
        fits
    }
}

/// The number of series beyond a limit, by namespace and pod.
#[derive(Debug, Default)]
pub(super) struct DroppedSeries(BTreeMap<(Arc<str>, Arc<str>), u64>);

impl DroppedSeries {
    pub(super) fn add(&mut self, namespace: &Arc<str>, pod: &Arc<str>, series: u64) {
        if series > 0 {
            *self.0.entry((namespace.clone(), pod.clone())).or_default() += series;
        }
    }

    pub(super) fn extend(&mut self, more: Self) {
        more.0.iter().for_each(|((namespace, pod), series)| self.add(namespace, pod, *series));
    }

    /// The number in all pods.
    pub(super) fn count(&self) -> u64 {
        self.0.values().sum()
    }

    /// A gap for each pod.
    pub(super) fn gaps(&self) -> impl Iterator<Item = Gap> {
        let gap = |((namespace, pod), series): (&(Arc<str>, Arc<str>), &u64)| {
            let reason = format!(
                "pod {pod}: {series} of its series are left out; the limits are {MAX_SERIES_OF_A_POD} series and \
                 {MAX_ENGINES_OF_A_POD} engines of a pod, {MAX_LABELS} labels of a series, {MAX_LABEL_BYTES} bytes of a label, \
                 {} KiB of labels of a pod, and {MAX_SCHEDULER_SERIES} series of all schedulers of a namespace; check what the \
                 pod exposes",
                MAX_POD_LABEL_BYTES / 1024
            );
            Gap { namespace: Some(namespace.to_string()), reason }
        };
        self.0.iter().map(gap)
    }
}

/// The pods with dropped series that have been logged.
#[derive(Debug, Default)]
pub(super) struct DroppedSeriesLog(Mutex<BTreeSet<(Arc<str>, Arc<str>)>>);

impl DroppedSeriesLog {
    /// Logs the pods in `dropped` that have not been logged, and forgets those that are no longer in it.
    pub(super) fn log(&self, dropped: &DroppedSeries) {
        let mut logged = self.0.lock();
        for (pod, series) in dropped.0.iter().filter(|(pod, _)| !logged.contains(*pod)) {
            let (namespace, pod) = pod;
            tracing::warn!(
                ?namespace,
                ?pod,
                series,
                "a pod exposes more series, engines or labels, or longer labels, than are kept; check what it exposes"
            );
        }
        *logged = dropped.0.keys().cloned().collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_and_label_bytes_of_a_pod_are_limited() {
        let mut many = LimitUsage::default();
        assert_eq!((0..5_000).filter(|_| many.try_add(LimitScope::Pod, 10)).count(), MAX_SERIES_OF_A_POD);
        let mut long = LimitUsage::default();
        let kept = (0..5_000).filter(|_| long.try_add(LimitScope::Pod, 2 * MAX_LABEL_BYTES)).count();
        assert_eq!(kept * 2 * MAX_LABEL_BYTES, MAX_POD_LABEL_BYTES);
        let mut schedulers = LimitUsage::default();
        let add = |usage: &mut LimitUsage, bytes| usage.try_add(LimitScope::Schedulers, bytes);
        assert!((0..40_000).all(|_| add(&mut schedulers, 160)), "20,000 endpoints with two priorities");
        assert_eq!((0..40_000).filter(|_| add(&mut schedulers, 160)).count(), 10_000);
        let mut long = LimitUsage::default();
        let kept = (0..50_000).filter(|_| add(&mut long, 2 * MAX_LABEL_BYTES)).count();
        assert_eq!(kept * 2 * MAX_LABEL_BYTES, MAX_SCHEDULER_LABEL_BYTES);
    }

    #[test]
    fn dropped_series_are_a_gap_of_their_namespace_that_names_the_pod() {
        let mut dropped = DroppedSeries::default();
        dropped.add(&"llm".into(), &"p".into(), 0);
        assert_eq!((dropped.count(), dropped.gaps().count()), (0, 0));
        dropped.add(&"llm".into(), &"p".into(), 2);
        dropped.add(&"llm".into(), &"p".into(), 3);
        let gaps: Vec<Gap> = dropped.gaps().collect();
        assert!(dropped.count() == 5 && gaps[0].namespace.as_deref() == Some("llm"));
        assert!(gaps.len() == 1 && gaps[0].reason.starts_with("pod p: 5 of its series"), "{gaps:?}");
    }
}
