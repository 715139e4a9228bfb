//! One model while it is decided: the state that every stage reads and changes.

use jiff::Timestamp;

use super::context::{ModelContext, VariantContext};
use super::proposal::Proposal;
use crate::analyze::finding::Finding;
use crate::memory::GroupMemory;
use crate::model::{Analyzer, Role};
use crate::optimize::Request;
use crate::quality::{CoverageState, SaturatedPods};
use crate::report::{Analysis, Step};
use crate::units::Replicas;

pub(super) struct ModelDecision<'a> {
    pub(super) context: ModelContext<'a>,
    /// Sorted by role: each role is decided on its own.
    pub(super) variants: Vec<VariantContext<'a>>,
    /// One for each variant, in the same order.
    pub(super) proposals: Vec<Proposal>,
    /// Input of the optimizer, where findings have to become numbers.
    pub(super) optimizer_input: Option<OptimizerInput>,
    pub(super) steps: Vec<Step>,
    pub(super) saturated: Vec<(Role, SaturatedBy)>,
    /// The roles that a fallback decides about, because the model's own analyzer cannot.
    pub(super) fallbacks: Vec<(Role, Analyzer)>,
    /// What will be remembered, until publication without the variants.
    pub(super) memory: GroupMemory,
    pub(super) before: Option<&'a GroupMemory>,
}

/// Input of the optimizer about one model.
pub(super) struct OptimizerInput {
    pub(super) request: Request,
    /// How completely each role is measured.
    pub(super) states: Vec<(Role, CoverageState)>,
    pub(super) analysis: Analysis,
    /// The newest sample that the findings rest on.
    pub(super) evidence: Timestamp,
    /// The numbers of the variants, if the analyzer needs no optimizer; `None` for a variant without one.
    pub(super) settled: Option<Vec<Option<Replicas>>>,
    /// The scheduler showed its queue and no longer does: its requests are unknown.
    pub(super) queue_lost: bool,
}

impl OptimizerInput {
    /// No analyzer knows the capacity of a replica, or has a number.
    pub(super) fn is_silent(&self) -> bool {
        let is_silent = self.request.findings.iter().all(Finding::is_silent);
        self.settled.as_ref().map_or(is_silent, |numbers| numbers.iter().all(Option::is_none))
    }
}

/// The evidence that a fleet is saturated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SaturatedBy {
    Pods(SaturatedPods),
    /// The scheduler's queue has not been empty.
    Queue,
}

impl ModelDecision<'_> {
    /// The analyzer that decides about `role` instead of the model's own.
    pub(super) fn fallback(&self, role: Role) -> Option<Analyzer> {
        self.fallbacks.iter().find(|(of, _)| *of == role).map(|(_, analyzer)| *analyzer)
    }

    pub(super) fn is_saturated(&self, role: Role) -> bool {
        self.saturated.iter().any(|(of, _)| *of == role)
    }
}
