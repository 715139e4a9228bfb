//! A series as a source read it, and which part of its metric it is.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use jiff::Timestamp;

use crate::collect::signals::MetricName;
use crate::engine::{Destination, Samples, SharedTimes};

/// Labels that do not split a metric into parts: they identify what the series is about or where it was scraped, or their value
/// is the measurement.
const IDENTITY_LABELS: [&str; 20] = [
    "__name__",
    "cluster",
    "container",
    "dp_rank",
    "endpoint",
    "engine",
    "instance",
    "job",
    "model_name",
    "namespace",
    "node",
    "pod",
    "pod_name",
    "prometheus",
    "prometheus_replica",
    "reason",
    "replica",
    "service",
    "sleep_state",
    "le",
];
/// Labels that are known to split a metric into parts.
const PART_LABELS: [&str; 3] = ["is_streaming", PRIORITY, "lora_name"];
/// A series with an empty value of this label is the total of all others.
const PRIORITY: &str = "priority";

/// A series as a source read it. All series of a fleet are in memory together, so it is small: labels and times, which most series of
/// a pod have in common, are shared.
#[derive(Debug, Clone)]
pub(crate) struct RawSeries {
    pub(crate) name: &'static MetricName,
    pub(crate) labels: Arc<RawLabels>,
    /// Whether it comes from a truncated answer, in which other parts may be missing.
    pub(crate) is_truncated: bool,
    /// Valid, oldest first.
    pub(crate) samples: Samples,
}

/// What a series is about and where it comes from.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct RawLabels {
    pub(crate) namespace: Arc<str>,
    pub(crate) pod: Arc<str>,
    /// The `engine` label, or else the data-parallel rank.
    pub(crate) engine: Option<Arc<str>>,
    /// Whether `engine` is a data-parallel rank.
    pub(crate) is_rank: bool,
    /// The port at which it was scraped.
    pub(crate) port: Option<u16>,
    pub(crate) model: Option<Arc<str>>,
    pub(crate) part: Part,
    /// For a scheduler's counter: where the counted requests were sent.
    pub(crate) destination: Option<Destination>,
    /// Whether a collector reports it about another pod.
    pub(crate) is_relayed: bool,
    /// A hash of all other labels. It tells copies of the same series apart, and the same copy is chosen every time.
    pub(crate) source_hash: u64,
}

impl RawSeries {
    /// The series with changed labels.
    pub(super) fn relabelled(mut self, change: impl FnOnce(&mut RawLabels)) -> Self {
        change(Arc::make_mut(&mut self.labels));
        self
    }

    pub(super) fn newest(&self) -> Option<Timestamp> {
        self.samples.last().map(|sample| sample.at)
    }

    /// The sort key of copies of one series. The one with the highest is used.
    pub(super) fn copy_rank(&self) -> (Option<Timestamp>, usize, u64) {
        (self.newest(), self.samples.len(), self.labels.source_hash)
    }
}

impl RawLabels {
    /// Bytes of the labels that are kept with it, as text or as hashes.
    pub(crate) fn label_bytes(&self) -> usize {
        let bytes = |text: &Option<Arc<str>>| text.as_deref().map_or(0, str::len);
        let destination = self.destination.as_ref().map_or(0, |destination| destination.pod.len());
        bytes(&self.engine) + bytes(&self.model) + destination + size_of_val(&*self.part.undecided)
    }
}

/// Stores what several series have in common once.
#[derive(Debug, Default)]
pub(crate) struct SharedParts {
    labels: HashSet<Arc<RawLabels>>,
    times: SharedTimes,
}

impl SharedParts {
    /// A series that shares its labels and times with those before it.
    pub(crate) fn series(
        &mut self,
        name: &'static MetricName,
        labels: RawLabels,
        mut samples: Samples,
    ) -> RawSeries {
        self.times.share(&mut samples);
        let labels = if let Some(stored) = self.labels.get(&labels) {
            Arc::clone(stored)
        } else {
            let stored = Arc::new(labels);
            self.labels.insert(Arc::clone(&stored));
            stored
        };
        RawSeries { name, labels, is_truncated: false, samples }
    }
}

/// Which part of its metric a series is, where an engine or scheduler splits the metric by labels.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Part {
    /// A hash of the labels that split the metric, independent of their order; 0 if there are none.
    pub(crate) id: u64,
    /// Whether one of them is a priority.
    pub(crate) has_priority: bool,
    /// Labels of which it is not known yet whether they split the metric: for each the hash of its name, and the hash of its name
    /// and value.
    pub(crate) undecided: Box<[(u64, u64)]>,
}

impl Part {
    /// From the labels on a metrics page: the engine sets all of them.
    pub(crate) fn from_page<'l>(labels: impl Iterator<Item = (&'l str, &'l str)>) -> Self {
        Self::new(labels, true)
    }

    /// From the labels of a series in Prometheus: the scrape configuration may have set some of them.
    pub(crate) fn from_query<'l>(labels: impl Iterator<Item = (&'l str, &'l str)>) -> Self {
        Self::new(labels, false)
    }

    /// Split by one label more, which has this value.
    pub(crate) fn split_by(mut self, label: &str, value: Option<&str>) -> Self {
        if let Some(value) = value {
            self.id = self.id.wrapping_add(hash(&(label, value)));
        }
        self
    }

    /// From labels that all split the metric.
    pub(crate) fn from_labels<'l>(labels: impl Iterator<Item = (&'l str, &'l str)>) -> Self {
        let id = labels.map(|pair| hash(&pair)).fold(0, u64::wrapping_add);
        Self { id, ..Self::default() }
    }

    fn new<'l>(labels: impl Iterator<Item = (&'l str, &'l str)>, is_page: bool) -> Self {
        let (mut part, mut undecided) = (Self::default(), Vec::new());
        for (label, value) in labels.filter(|(label, value)| !value.is_empty() && !is_identity_label(label)) {
            if is_page || is_part_label(label) {
                part.id = part.id.wrapping_add(hash(&(label, value)));
                part.has_priority |= label == PRIORITY;
            } else {
                undecided.push((hash(&label), hash(&(label, value))));
            }
        }
        part.undecided = undecided.into();
        part
    }
}

/// Whether a label does not split a metric. The tensor-, pipeline- and expert-parallel ranks of one engine all report the same value.
fn is_identity_label(label: &str) -> bool {
    label.ends_with("_rank") || IDENTITY_LABELS.contains(&label)
}

/// Whether a label is known to split a metric.
pub(crate) fn is_part_label(label: &str) -> bool {
    PART_LABELS.contains(&label)
}

/// A hash that is the same in every run.
pub(crate) fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
