//! One series as a source found it, and which part of a figure it is.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use jiff::Timestamp;
use wva_core::snapshot::Sample;

use crate::collect::signals::Name;
use crate::engine::Receiver;

/// Labels that say who it is about or where it was scraped, and labels whose value is the figure: they divide nothing.
const NAMING: [&str; 20] = [
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
/// Labels that are known to divide.
const DIVIDING: [&str; 3] = ["is_streaming", PRIORITY, "lora_name"];
/// The label whose empty value is the total of all others.
const PRIORITY: &str = "priority";

/// One series as a source found it; its samples are oldest first and possible. Names are shared: there are many series
/// of each.
#[derive(Debug, Clone)]
pub(crate) struct RawSeries {
    pub(crate) name: &'static Name,
    pub(crate) namespace: Arc<str>,
    pub(crate) pod: Arc<str>,
    /// The `engine` label, or else the data-parallel rank.
    pub(crate) engine: Option<Arc<str>>,
    /// It is a data-parallel rank.
    pub(crate) is_rank: bool,
    /// The port it was scraped at.
    pub(crate) port: Option<u16>,
    pub(crate) model: Option<Arc<str>>,
    /// Which part of a figure it is.
    pub(crate) part: Part,
    /// Whom the scheduler counts it for.
    pub(crate) to: Option<Receiver>,
    /// A collector says it of a pod that it isn't.
    pub(crate) is_relayed: bool,
    /// Every other label, hashed, so that equal copies are chosen the same way each time.
    pub(crate) origin: u64,
    pub(crate) samples: Vec<Sample>,
}

impl RawSeries {
    pub(super) fn newest(&self) -> Option<Timestamp> {
        self.samples.last().map(|sample| sample.at)
    }

    /// Bytes of the labels that it keeps, as texts or as hashes.
    pub(crate) fn text_bytes(&self) -> usize {
        let bytes = |text: &Option<Arc<str>>| text.as_deref().map_or(0, str::len);
        let to = self.to.as_ref().map_or(0, |to| to.pod.len());
        bytes(&self.engine) + bytes(&self.model) + to + size_of_val(&*self.part.unsure)
    }

    /// Which of two copies counts: more wins.
    pub(super) fn rank(&self) -> (Option<Timestamp>, usize, u64) {
        (self.newest(), self.samples.len(), self.origin)
    }
}

/// Which part of a figure a series is.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Part {
    /// Of the labels that divide, a hash whatever their order; 0 without any.
    pub(crate) id: u64,
    /// Its priority is named.
    pub(crate) has_priority: bool,
    /// Hashes of labels that may divide, each of its name and of name and value.
    pub(crate) unsure: Box<[(u64, u64)]>,
    /// It stands in an answer that isn't whole: other parts may be missing.
    pub(crate) is_cut: bool,
}

impl Part {
    /// By the labels of a page.
    pub(crate) fn of_page<'l>(labels: impl Iterator<Item = (&'l str, &'l str)>) -> Self {
        Self::new(labels, true)
    }

    /// By the labels of a series of Prometheus.
    pub(crate) fn of_query<'l>(labels: impl Iterator<Item = (&'l str, &'l str)>) -> Self {
        Self::new(labels, false)
    }

    /// By labels that are known to divide.
    pub(crate) fn by<'l>(labels: impl Iterator<Item = (&'l str, &'l str)>) -> Self {
        let id = labels.map(|pair| hash(&pair)).fold(0, u64::wrapping_add);
        Self { id, ..Self::default() }
    }

    fn new<'l>(labels: impl Iterator<Item = (&'l str, &'l str)>, is_page: bool) -> Self {
        let (mut part, mut unsure) = (Self::default(), Vec::new());
        for (label, value) in labels.filter(|(label, value)| !value.is_empty() && !is_naming(label)) {
            if is_page || DIVIDING.contains(&label) {
                part.id = part.id.wrapping_add(hash(&(label, value)));
                part.has_priority |= label == PRIORITY;
            } else {
                unsure.push((hash(&label), hash(&(label, value))));
            }
        }
        part.unsure = unsure.into();
        part
    }
}

/// A label that divides nothing. Of the ranks of one engine (tensor, pipeline, expert parallel) each tells the same.
fn is_naming(label: &str) -> bool {
    label.ends_with("_rank") || NAMING.contains(&label)
}

/// A hash of the same value in every run.
pub(crate) fn hash(what: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

/// A label that may tell copies apart.
pub(crate) fn is_dividing(label: &str) -> bool {
    DIVIDING.contains(&label)
}
