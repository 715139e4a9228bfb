//! A read and its circumstances: what it may select from the published result, what else its answer depends on.

use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use wva_core::units::Seconds;
use wva_core::{Decision, VariantId};

use super::metric::Labels;
use super::query::VariantSelector;
use crate::engine::{ClusterView, Published};
use crate::serve::data_read::ReadState;
use crate::serve::paths::EXTERNAL_GROUP;

/// A read of one metric.
#[derive(Clone, Copy)]
pub(crate) struct MetricQuery<'a> {
    /// The API group, which errors name.
    pub(crate) group: &'static str,
    pub(crate) namespace: &'a str,
    pub(crate) metric: &'a str,
    pub(crate) selector: VariantSelector<'a>,
    /// Only variants whose scale target is of this group and kind; `None`: of any.
    pub(crate) target_kind: Option<(&'static str, &'static str)>,
    /// Only VariantAutoscalings are selected, and no annotated objects.
    pub(crate) no_annotated: bool,
    pub(crate) context: &'a ReadContext<'a>,
}

impl MetricQuery<'_> {
    /// The variant that a further name stands for. Metrics of objects are read by the objects' own names only.
    pub(super) fn aliased(&self, name: &VariantId) -> Option<VariantId> {
        (self.group == EXTERNAL_GROUP).then(|| self.context.view.aliased(name)).flatten()
    }

    /// True when the read may select this variant.
    pub(super) fn includes(&self, id: &VariantId) -> bool {
        !(self.no_annotated && self.context.view.annotated.contains(id))
    }

    /// True when the query asks for the scale target of this variant, as far as that is known here.
    pub(super) fn is_about(&self, id: &VariantId) -> bool {
        self.target_kind.is_none_or(|(group, kind)| {
            let target = self.context.view.variant(id).map(|state| &state.variant.target);
            target.is_none_or(|target| target.group == group && target.kind == kind)
        })
    }
}

/// The circumstances of a read.
pub(crate) struct ReadContext<'a> {
    /// The label `controller_instance`, if this installation has one.
    pub(crate) controller_instance: Option<&'a str>,
    /// The time of the read: the age of evidence is judged now, not when it was published.
    pub(crate) now: Timestamp,
    /// Evidence older than this is not answered.
    pub(crate) max_stale: Seconds,
    /// When this process started.
    pub(crate) started: Timestamp,
    pub(crate) waiting_for: WaitingFor,
    /// What the watches know now. Errors depend on it, and which variant a further name stands for; no number does.
    pub(crate) view: Arc<ClusterView>,
}

impl<'a> ReadContext<'a> {
    pub(crate) fn new(state: &'a ReadState) -> Self {
        Self {
            controller_instance: state.controller_instance.as_deref(),
            now: state.reader.now(),
            max_stale: state.reader.max_stale(),
            started: state.started,
            waiting_for: WaitingFor::new(state),
            view: state.reader.view(),
        }
    }
}

/// What an instance without any result waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WaitingFor {
    /// The first listing of its watches.
    Watches,
    /// An instance that holds the lease.
    Leader,
    /// The state objects of this leader.
    State(String),
    /// Its own first evaluation.
    Evaluation,
}

impl WaitingFor {
    fn new(state: &ReadState) -> Self {
        let leadership = state.leadership.borrow();
        match leadership.other_holder() {
            Some(leader) => Self::State(leader.identity.clone()),
            None if !state.synced.has_synced() => Self::Watches,
            None if leadership.is_mine() => Self::Evaluation,
            None => Self::Leader,
        }
    }
}

impl fmt::Display for WaitingFor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Watches => f.write_str(
                "its watches of the API server have not all listed once; check that the CustomResourceDefinition of \
                 VariantAutoscaling is installed and that this server may list and watch what it needs: its log names \
                 what is missing",
            ),
            Self::Leader => f.write_str(
                "no instance of wva holds the lease; check that this server reaches the API server and may get, create \
                 and update its Lease",
            ),
            Self::State(leader) => write!(
                f,
                "instance {leader} holds the lease, and its results have not been read; check that {leader} runs and \
                 evaluates, and that this server may read its state objects"
            ),
            Self::Evaluation => f.write_str(
                "its first evaluation has not ended; that takes seconds, so retry, and see this server's log if it \
                 stays so",
            ),
        }
    }
}

/// A variant that a read may select.
#[derive(Clone, Copy)]
pub(super) struct Candidate<'a> {
    pub(super) id: &'a VariantId,
    pub(super) decision: &'a Decision,
    /// The name by which the read finds it: its own, or a further one.
    name: &'a str,
}

impl<'a> Candidate<'a> {
    fn named(name: &'a str, (id, decision): (&'a VariantId, &'a Decision)) -> Self {
        Self { id, decision, name }
    }

    /// The labels of its item.
    pub(super) fn labels(&self, query: &MetricQuery<'a>) -> Labels<'a> {
        let accelerator = self.decision.accelerator.as_deref();
        Labels::new(self.id, accelerator, query.context.controller_instance).with_name(self.name)
    }
}

/// The decisions about the variants that the selector names, as that of an HPA does, else about all of the namespace. A read of
/// one variant therefore costs the same with one variant as with ten thousand, and so does an error.
pub(super) fn candidates<'a>(published: &'a Published, query: &MetricQuery<'a>) -> Vec<Candidate<'a>> {
    let names = query.selector.names();
    if names.is_empty() {
        let all = in_namespace(published, query.namespace).filter(|(id, _)| query.includes(id));
        return all.map(|found| Candidate::named(&found.0.name, found)).collect();
    }
    let find = |id: &VariantId| published.decisions.get_key_value(id).filter(|(id, _)| query.includes(id));
    let candidate = |name: &'a str| {
        let id = VariantId::new(query.namespace, name);
        // The own name of a variant takes precedence over a further name of another one.
        let found = find(&id).or_else(|| query.aliased(&id).and_then(|aliased| find(&aliased)))?;
        Some(Candidate::named(name, found))
    };
    names.into_iter().filter_map(candidate).collect()
}

/// The decisions about all variants of a namespace.
pub(super) fn in_namespace<'a>(
    published: &'a Published,
    namespace: &'a str,
) -> impl Iterator<Item = (&'a VariantId, &'a Decision)> {
    published
        .decisions
        .range(VariantId::new(namespace, "")..)
        .take_while(move |(id, _)| id.namespace == namespace)
}
