//! What has been decided so far, model by model. Each is finished on its own: one that breaks is held, and costs no other.

use std::collections::BTreeSet;

use smol_str::SmolStr;

use super::context::ModelContext;
use super::failed_model::hold;
use super::limits::Limits;
use super::model_group::{Decided, PendingModel};
use super::shared;
use crate::check::check_group;
use crate::decision::Decision;
use crate::isolate::guarded;
use crate::memory::GroupMemory;
use crate::model::{GroupId, Policy, VariantId};
use crate::optimize::Request;
use crate::progress::Progress;
use crate::report::{GroupReport, ModelFailure, Violation};
use crate::snapshot::{ModelGroup, Snapshot};

/// What all models came to.
#[derive(Default)]
pub(super) struct All {
    pub(super) decisions: Vec<(VariantId, Decision)>,
    pub(super) reports: Vec<(GroupId, GroupReport)>,
    pub(super) groups: Vec<(GroupId, GroupMemory)>,
    pub(super) broken: Vec<Violation>,
    pub(super) failed: Vec<ModelFailure>,
}

/// A pass over all models.
pub(super) struct ModelPass<'a> {
    snapshot: &'a Snapshot,
    policy: &'a Policy,
    limits: &'a Limits,
    invalid: &'a BTreeSet<&'a VariantId>,
    pub(super) decided: All,
}

impl<'a> ModelPass<'a> {
    pub(super) fn new(
        snapshot: &'a Snapshot,
        (policy, limits): (&'a Policy, &'a Limits),
        invalid: &'a BTreeSet<&'a VariantId>,
    ) -> Self {
        let variants = snapshot.groups.values().map(|group| group.variants.len());
        let decided = All {
            decisions: Vec::with_capacity(variants.sum::<usize>() + snapshot.invalid.len()),
            reports: Vec::with_capacity(snapshot.groups.len()),
            groups: Vec::with_capacity(snapshot.groups.len()),
            ..All::default()
        };
        Self { snapshot, policy, limits, invalid, decided }
    }

    /// The decision about a model whose numbers are settled, and what the checker says to it.
    pub(super) fn finish(&mut self, pending: PendingModel<'a>) {
        let (ModelContext { id, group, .. }, before) = (pending.context, pending.before);
        let finished = guarded(id, || {
            let keep =
                |name: &SmolStr| self.invalid.contains(&VariantId::new(id.namespace.clone(), name.clone()));
            let mut decided = pending.finish(keep);
            self.limits.tell_gaps(group, &mut decided.report);
            let Decided { decisions, .. } = &mut decided;
            decisions.sort_by(|(one, _), (next, _)| one.cmp(next));
            let find = |id: &VariantId| {
                let at = decisions.binary_search_by(|(own, _)| own.cmp(id)).ok()?;
                decisions.get(at).map(|(_, decision)| decision)
            };
            let broken = check_group(self.snapshot.now, id, group, before, self.policy, find);
            (broken, decided)
        });
        match finished {
            Ok((broken, decided)) => {
                self.decided.broken.extend(broken);
                self.keep(id, decided);
            }
            Err(cause) => self.broke(id, group, before, cause),
        }
    }

    /// The models that share what is limited; `held` is what the others use of it.
    pub(super) fn share(
        &mut self,
        mut sharing: Vec<PendingModel<'a>>,
        held: Vec<Request>,
        progress: &dyn Progress,
    ) {
        if sharing.is_empty() {
            return;
        }
        let causes = shared::together(&mut sharing, held, (self.limits, self.policy), progress);
        for (pending, cause) in sharing.into_iter().zip(causes) {
            progress.begins(Some(pending.context.id));
            match cause {
                None => self.finish(pending),
                Some(cause) => {
                    self.broke(pending.context.id, pending.context.group, pending.before, cause);
                }
            }
        }
    }

    /// A model broke just now.
    pub(super) fn broke(
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

    /// Holds a model that broke, now or before.
    pub(super) fn hold(&mut self, id: &GroupId, group: &ModelGroup, memory: GroupMemory) {
        let Some(failed) = memory.failed.clone() else { return };
        let decided = hold(self.snapshot.now, group, memory, &failed, self.policy);
        self.decided.failed.push(ModelFailure { group: id.clone(), failed });
        self.keep(id, decided);
    }

    fn keep(&mut self, id: &GroupId, decided: Decided) {
        self.decided.decisions.extend(decided.decisions);
        self.decided.reports.push((id.clone(), decided.report));
        self.decided.groups.push((id.clone(), decided.memory));
    }
}
