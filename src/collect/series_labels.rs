//! What both sources read of the labels of a series in the same way, however they hold them.

use std::borrow::Cow;

use super::limits::{MAX_LABEL_BYTES, MAX_LABELS};
use super::signals::MetricKind;

/// The labels whose values both sources keep.
const KEPT_LABELS: [&str; 4] = ["engine", "dp_rank", "model_name", "target_model_name"];

/// The labels of one series.
pub(super) trait SeriesLabels {
    /// The value of a label; `None` when it is absent or empty, which Prometheus treats alike.
    fn get(&self, label: &str) -> Option<&str>;
    /// The number of labels.
    fn count(&self) -> usize;
}

/// The engine that a series names.
pub(super) struct EngineLabel<'l> {
    /// The `engine` label, the data-parallel rank, or both as `engine/rank`.
    pub(super) name: Cow<'l, str>,
    /// Whether the name is a data-parallel rank alone.
    pub(super) is_rank: bool,
}

/// Whether the series is one of its metric that is read; see [`MetricKind::required_label`].
pub(super) fn is_read(kind: MetricKind, labels: &impl SeriesLabels) -> bool {
    kind.required_label().is_none_or(|(label, value)| labels.get(label) == Some(value))
}

/// Whether the series has too many labels, or one to be kept that is too long. Of a cache configuration only the size is kept, so
/// that it may have any number of labels.
pub(super) fn exceeds_limits(kind: MetricKind, labels: &impl SeriesLabels) -> bool {
    (labels.count() > MAX_LABELS && kind != MetricKind::CacheConfig)
        || KEPT_LABELS.into_iter().any(|label| is_too_long(labels, label))
}

/// Whether a label is longer than those that are kept.
pub(super) fn is_too_long(labels: &impl SeriesLabels, label: &str) -> bool {
    labels.get(label).is_some_and(|value| value.len() > MAX_LABEL_BYTES)
}

/// The engine, if the series names one.
pub(super) fn engine<L: SeriesLabels>(labels: &L) -> Option<EngineLabel<'_>> {
    let (name, is_rank) = match (labels.get("engine"), labels.get("dp_rank")) {
        (Some(engine), Some(rank)) => (Cow::Owned(format!("{engine}/{rank}")), false),
        (Some(engine), None) => (Cow::Borrowed(engine), false),
        (None, Some(rank)) => (Cow::Borrowed(rank), true),
        (None, None) => return None,
    };
    Some(EngineLabel { name, is_rank })
}

/// The model, if the series names one. A scheduler names the model that it sends a request to and the one in the request.
pub(super) fn model<L: SeriesLabels>(kind: MetricKind, labels: &L) -> Option<&str> {
    let target = labels.get("target_model_name").filter(|_| kind.is_scheduler());
    target.or_else(|| labels.get("model_name"))
}
