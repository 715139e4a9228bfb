//! The series of one answer: those in scope and within the limits.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::bad_samples::BadSamples;
use super::response::QueriedSeries;
use super::scope_index::{IdentifiedSeries, LabelInterner, Rejected, ScopeIndex};
use crate::collect::limits::{DroppedSeries, LimitScope, LimitUsage};
use crate::collect::merge::{RawSeries, SharedParts};

/// What a limit is shared by. Names are compared by address, since each is stored once. What a pod and what a collector reports
/// about it have separate limits, because the former is preferred.
#[derive(PartialEq, Eq, Hash)]
struct LimitKey {
    scope: LimitScope,
    namespace: usize,
    /// Only for a pod's own limit.
    pod: Option<usize>,
    is_relayed: bool,
}

/// The series of one answer.
pub(super) struct QueryResult {
    index: Arc<ScopeIndex>,
    interner: LabelInterner,
    shared: Arc<Mutex<SharedParts>>,
    pub(super) raw: Vec<RawSeries>,
    pub(super) bad_samples: Vec<BadSamples>,
    usage: HashMap<LimitKey, LimitUsage>,
    pub(super) dropped: DroppedSeries,
}

impl QueryResult {
    pub(super) fn new(index: Arc<ScopeIndex>, shared: Arc<Mutex<SharedParts>>) -> Self {
        Self {
            index,
            interner: LabelInterner::default(),
            shared,
            raw: Vec::new(),
            bad_samples: Vec::new(),
            usage: HashMap::new(),
            dropped: DroppedSeries::default(),
        }
    }

    pub(super) fn add(&mut self, series: QueriedSeries<'_>) {
        match self.index.identify(series, &mut self.interner) {
            Ok(IdentifiedSeries { name, labels, samples, invalid }) => {
                let scope = self.index.limit_scope(name.kind, &labels);
                let key = LimitKey {
                    scope,
                    namespace: labels.namespace.as_ptr().addr(),
                    pod: (scope == LimitScope::Pod).then(|| labels.pod.as_ptr().addr()),
                    is_relayed: labels.is_relayed,
                };
                if self.usage.entry(key).or_default().try_add(scope, labels.label_bytes()) {
                    self.bad_samples.extend(BadSamples::new(name, &labels, invalid));
                    self.raw.push(self.shared.lock().series(name, labels, samples));
                } else {
                    self.dropped.add(&labels.namespace, &labels.pod, 1);
                    self.interner.forget(labels);
                }
            }
            Err(Rejected::OverLimit { namespace, pod }) => self.dropped.add(&namespace, &pod, 1),
            Err(Rejected::OutOfScope) => {}
        }
    }
}
