//! The term in which decisions are made, and what has been published in it beside the evaluations of all models.

use std::collections::BTreeMap;
use std::sync::Arc;

use wva_core::decision::Verdict;
use wva_core::memory::GroupMemory;
use wva_core::model::Variant;
use wva_core::report::GroupReport;
use wva_core::units::Replicas;
use wva_core::{Decision, GroupId, Memory, Report, VariantId};

use super::leadership::Term;

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
    /// The models that were woken while that evaluation ran: it has not seen why.
    pub(super) woken: BTreeMap<GroupId, WokenGroup>,
}

/// A model that was woken.
pub(super) struct Woken {
    /// The term in which it was decided.
    pub(super) term: Term,
    /// The variants at zero that have a number now.
    pub(super) variants: Vec<(Variant, Replicas)>,
}

/// What was decided when a model was woken.
#[derive(Clone)]
pub(super) struct WokenGroup {
    /// The evaluation that was the last one to start.
    pub(super) pass: u64,
    pub(super) decisions: BTreeMap<VariantId, Decision>,
    pub(super) report: GroupReport,
    pub(super) memory: GroupMemory,
}

/// What an evaluation is about to publish.
pub(super) struct Outcomes<'a> {
    pub(super) decisions: &'a mut BTreeMap<VariantId, Decision>,
    pub(super) report: &'a mut Report,
    pub(super) memory: &'a mut Arc<Memory>,
}

impl TermState {
    /// The models that the evaluation `pass` would put to sleep again although they were woken while it ran. Forgets all of them:
    /// later evaluations start from what is remembered.
    pub(super) fn take_woken(
        &mut self,
        pass: u64,
        decisions: &BTreeMap<VariantId, Decision>,
    ) -> BTreeMap<GroupId, WokenGroup> {
        let mut woken = std::mem::take(&mut self.woken);
        let is_undone = |group: &WokenGroup| {
            let mut of_group = group.decisions.iter();
            of_group.any(|(id, decision)| {
                // A variant that is gone meanwhile has no decision.
                decisions.get(id).is_some_and(|decided| number(decided) < number(decision))
            })
        };
        woken.retain(|_, group| group.pass == pass && is_undone(group));
        woken
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

/// The desired replicas; `None` if there is no number.
pub(super) fn number(decision: &Decision) -> Option<Replicas> {
    match &decision.verdict {
        Verdict::Target(target) => Some(target.desired),
        Verdict::Unknown(_) => None,
    }
}
