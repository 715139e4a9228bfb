//! The term in which decisions are made, and what has been published in it beside the evaluations of all models.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::time::Instant;
use wva_core::decision::Verdict;
use wva_core::memory::GroupMemory;
use wva_core::report::GroupReport;
use wva_core::units::Replicas;
use wva_core::{Decision, GroupId, Memory, Policy, Report, VariantId};

use super::leadership::Term;
use super::ports::{ClusterView, Endpoint, Revision};

/// The term in which decisions are made.
#[derive(Default)]
pub(super) struct TermState {
    /// The term that the memory belongs to; `None` until one was taken over.
    pub(super) term: Option<Term>,
    /// True when this instance starts no other term.
    pub(super) resigned: bool,
    /// The term that ended while the lease was still ours: its numbers stay the newest until another instance has the lease.
    pub(super) handed_over: Option<Term>,
    /// The number of the evaluation that may publish: the last one that started, unless it was abandoned.
    pub(super) current: u64,
    /// An evaluation was not published, because models were woken while it shared out a limit.
    pub(super) has_repeated: bool,
    /// The models that were woken while that evaluation ran: it has not seen why.
    pub(super) woken: BTreeMap<GroupId, WokenGroup>,
}

/// Requests that wait for a sleeping model.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct WaitingRequests {
    /// The scheduler that holds them.
    pub(super) scheduler: Endpoint,
    /// How many.
    pub(super) requests: f64,
    /// When they were seen.
    pub(super) seen: Instant,
}

/// What came of a try to wake models.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum WakeOutcome {
    /// Another evaluation has published meanwhile, or the first one of the term has not yet: to be tried again.
    Superseded,
    /// These are woken. A limit holds the others back, say, or this instance may not decide.
    Decided(BTreeSet<GroupId>),
}

/// What was decided when a model was woken.
#[derive(Clone)]
pub(super) struct WokenGroup {
    /// The evaluation that was the last one to start.
    pub(super) pass: u64,
    pub(super) decisions: BTreeMap<VariantId, Decision>,
    pub(super) report: GroupReport,
    pub(super) memory: GroupMemory,
    /// The objects that were decided about.
    pub(super) revisions: BTreeMap<VariantId, Revision>,
}

/// What an evaluation is about to publish.
pub(super) struct Outcomes<'a> {
    pub(super) decisions: &'a mut BTreeMap<VariantId, Decision>,
    pub(super) report: &'a mut Report,
    pub(super) memory: &'a mut Arc<Memory>,
}

impl TermState {
    /// The models that the evaluation `pass` would put to sleep again although they were woken while it ran, of the same objects. Forgets
    /// all of them: later evaluations start from what is remembered.
    pub(super) fn take_woken(
        &mut self,
        pass: u64,
        decisions: &BTreeMap<VariantId, Decision>,
        revisions: &BTreeMap<VariantId, Revision>,
    ) -> BTreeMap<GroupId, WokenGroup> {
        let mut woken = std::mem::take(&mut self.woken);
        let is_undone = |group: &WokenGroup| {
            let mut of_group = group.decisions.iter();
            of_group.any(|(id, decision)| {
                // A variant that is gone meanwhile has no decision, and one that became invalid no number.
                let decided = decisions.get(id).and_then(number);
                decided.is_some_and(|decided| Some(decided) < number(decision))
            }) && group.revisions.iter().all(|(id, revision)| revisions.get(id) == Some(revision))
        };
        woken.retain(|_, group| group.pass == pass && is_undone(group));
        woken
    }

    /// Whether all is to be decided again, once, instead of being published with the `woken` models: a limit may have been shared out without
    /// them.
    pub(super) fn repeats(&mut self, woken: &BTreeMap<GroupId, WokenGroup>, has_shared_limits: bool) -> bool {
        self.has_repeated = has_shared_limits && !woken.is_empty() && !self.has_repeated;
        self.has_repeated
    }
}

/// Replaces the decisions about `woken` models, and what is remembered of them, by those of when they were woken.
pub(super) fn keep_awake(woken: BTreeMap<GroupId, WokenGroup>, outcomes: Outcomes<'_>) {
    if woken.is_empty() {
        return;
    }
    let memory = Arc::make_mut(outcomes.memory);
    for (id, group) in woken {
        for (variant, decision) in group.decisions {
            if let Some(decided) = outcomes.decisions.get_mut(&variant) {
                *decided = decision;
            }
        }
        outcomes.report.groups.insert(id.clone(), group.report);
        memory.groups.insert(id, group.memory);
    }
}

/// Whether models share a limit.
pub(super) fn has_shared_limits(policy: &Policy, view: &ClusterView) -> bool {
    let limits = &policy.limits;
    !view.limits.is_empty()
        || limits.inventory
        || !limits.quotas.is_empty()
        || limits.power.is_some()
        || limits.spend.is_some()
}

/// The desired replicas; `None` if there is no number.
pub(super) fn number(decision: &Decision) -> Option<Replicas> {
    match &decision.verdict {
        Verdict::Target(target) => Some(target.desired),
        Verdict::Unknown(_) => None,
    }
}
