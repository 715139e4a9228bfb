//! The results of all models. Each model is finished on its own: a panic holds that model and affects no other.

use std::collections::BTreeSet;

use smol_str::SmolStr;

use super::context::ModelContext;
use super::model::ModelDecision;
use super::publish::{ModelOutcome, publish};
use super::shared_limits::Limits;
use super::{bound, failed_model, zero};
use crate::check::check_group;
use crate::decision::Decision;
use crate::isolate::guarded;
use crate::memory::GroupMemory;
use crate::model::{GroupId, Policy, VariantId};
use crate::report::{GroupReport, ModelFailure, Violation};
use crate::snapshot::{ModelGroup, Snapshot};

/// The results of all models, and their inputs.
pub(super) struct Results<'a> {
    snapshot: &'a Snapshot,
    policy: &'a Policy,
    limits: &'a Limits,
    invalid: &'a BTreeSet<&'a VariantId>,
    pub(super) decisions: Vec<(VariantId, Decision)>,
    pub(super) reports: Vec<(GroupId, GroupReport)>,
    pub(super) groups: Vec<(GroupId, GroupMemory)>,
    pub(super) violations: Vec<Violation>,
    pub(super) failed: Vec<ModelFailure>,
}

impl<'a> Results<'a> {
    pub(super) fn new(
        snapshot: &'a Snapshot,
        policy: &'a Policy,
        limits: &'a Limits,
        invalid: &'a BTreeSet<&'a VariantId>,
    ) -> Self {
        let variants: usize = snapshot.groups.values().map(|group| group.variants.len()).sum();
        Self {
            snapshot,
            policy,
            limits,
            invalid,
            decisions: Vec::with_capacity(variants + snapshot.invalid.len()),
            reports: Vec::with_capacity(snapshot.groups.len()),
            groups: Vec::with_capacity(snapshot.groups.len()),
            violations: Vec::new(),
            failed: Vec::new(),
        }
    }

    /// Bounds, publishes and checks a model whose numbers are stable and within the limits.
    pub(super) fn finish(&mut self, model: ModelDecision<'a>) {
        let (ModelContext { id, group, .. }, before) = (model.context, model.before);
        let finished = guarded(id, || self.finish_unguarded(model));
        match finished {
            Ok((violations, outcome)) => {
                self.violations.extend(violations);
                self.push(id, outcome);
            }
            Err(cause) => self.fail(id, group, before, cause),
        }
    }

    fn finish_unguarded(&self, mut model: ModelDecision<'a>) -> (Vec<Violation>, ModelOutcome) {
        let (ModelContext { id, group, .. }, before) = (model.context, model.before);
        bound::clamp(&mut model);
        zero::apply_zero(&mut model);
        bound::explain_tolerance(&mut model);
        let is_invalid =
            |name: &SmolStr| self.invalid.contains(&VariantId::new(id.namespace.clone(), name.clone()));
        let mut outcome = publish(model, is_invalid);
        self.limits.report_gaps(group, &mut outcome.report);
        let decisions = &mut outcome.decisions;
        decisions.sort_by(|(left, _), (right, _)| left.cmp(right));
        let find = |id: &VariantId| {
            let index = decisions.binary_search_by(|(own, _)| own.cmp(id)).ok()?;
            decisions.get(index).map(|(_, decision)| decision)
        };
        let is_limited = self.limits.concern(group);
        let violations = check_group(self.snapshot.now, id, group, before, (self.policy, is_limited), find);
        (violations, outcome)
    }

    /// A model panicked just now.
    pub(super) fn fail(
        &mut self,
        id: &GroupId,
        group: &ModelGroup,
        before: Option<&GroupMemory>,
        cause: SmolStr,
    ) {
        let mut memory = before.cloned().unwrap_or_default();
        memory.note_failure(self.snapshot.now, cause);
        self.hold(id, group, memory);
    }

    /// Holds a model that panicked, now or before.
    pub(super) fn hold(&mut self, id: &GroupId, group: &ModelGroup, memory: GroupMemory) {
        let Some(failed) = memory.failed.clone() else { return };
        let outcome = failed_model::hold(self.snapshot.now, group, memory, &failed, self.policy);
        self.failed.push(ModelFailure { group: id.clone(), failed });
        self.push(id, outcome);
    }

    fn push(&mut self, id: &GroupId, outcome: ModelOutcome) {
        self.decisions.extend(outcome.decisions);
        self.reports.push((id.clone(), outcome.report));
        self.groups.push((id.clone(), outcome.memory));
    }
}
