//! What the store knows of the autoscalers of variants.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use smol_str::SmolStr;
use wva_core::VariantId;
use wva_core::model::TargetRef;
use wva_core::snapshot::VariantState;

use super::super::autoscalers::{Autoscalers, KnownScalers};
use super::super::value_targets::ReadTypes;
use super::super::variant_objects::VariantObjects;
use super::{ClusterState, ClusterStore};
use crate::cluster::objects::{Bystander, ObjectKey, VariantKind, VariantObject};
use crate::engine::{ClusterView, ValueTargets};

impl ClusterState {
    /// Whether reads of the name of an annotated ScaledObject get the number of its workload, or why not; `None` for one without annotations.
    pub(crate) fn annotated_verdict(&self, id: &VariantId) -> Option<Result<(), String>> {
        let is_own = |object: &VariantObject| object.kind == VariantKind::ScaledObject && !object.is_called;
        if self.objects.get(id).is_some_and(|object| is_own(object)) {
            return Some(Ok(()));
        }
        let is_it = |bystander: &&Bystander| bystander.id == *id && is_own(&bystander.object);
        let bystander = self.bystanders.iter().find(is_it)?;
        let has_number = reads_own_workload(bystander, &self.objects, &self.view.aliases);
        Some(if has_number { Ok(()) } else { Err(bystander.notice.note.clone()) })
    }

    /// The ScaledObjects that KEDA, or somebody else, calls for, and that make no variant.
    pub(crate) fn idle_calls(&self) -> Vec<VariantId> {
        self.called.iter().filter(|(_, verdict)| verdict.is_err()).map(|(id, _)| id.clone()).collect()
    }
}

impl ClusterStore {
    /// Nothing that arrives later is waited for once the first state is complete.
    pub(in super::super) fn end_waits(&mut self, is_complete: bool) {
        self.awaits_targets &= !is_complete;
        self.awaits_annotated &= !is_complete;
        self.awaits_called &= !is_complete;
    }

    /// What may be refused is waited for no longer.
    pub(in super::super) fn end_optional_waits(&mut self) {
        self.ignores_exclusions = true;
        self.ignores_refusals = true;
        self.awaits_called = false;
    }

    /// The objects that make variants.
    pub(super) fn variant_objects(&self, excluded: &BTreeSet<SmolStr>) -> VariantObjects {
        let named = |(key, object): (&ObjectKey, &Arc<VariantObject>)| {
            let id = VariantId::new(&*key.namespace, &*key.name);
            (!excluded.contains(&*key.namespace)).then(|| (id, object.clone()))
        };
        let scalers = self.hpas.objects.iter().chain(self.scaled_objects.objects.iter());
        let annotated = scalers.filter_map(|(key, object)| Some((key, object.variant.as_ref()?)));
        // One that annotations make a variant is that one.
        let is_annotated = |key: &ObjectKey| {
            let own = self.scaled_objects.objects.get(&key.namespace, &key.name);
            own.is_some_and(|own| own.variant.is_some())
        };
        let called = self.called.variants().filter(|(key, _)| !is_annotated(key));
        VariantObjects::new(
            self.variants.iter().filter_map(named).collect(),
            annotated.chain(called).filter_map(named).collect(),
        )
    }

    /// Those of the scale targets in `view`: the others are those of other people.
    pub(super) fn autoscalers(&self, view: &ClusterView) -> Autoscalers {
        let scalers = self.hpas.objects.iter().chain(self.scaled_objects.objects.iter());
        let scalers = scalers.filter_map(|(key, object)| Some((&*key.namespace, object.scaler.as_ref()?)));
        let targets: BTreeSet<(&str, &TargetRef)> = view
            .variants
            .iter()
            .map(|VariantState { variant, .. }| (variant.id.namespace.as_str(), &variant.target))
            .collect();
        let scalers = scalers.filter(|(namespace, scaler)| targets.contains(&(*namespace, scaler.target())));
        let verticals = self.verticals.objects.iter();
        let termination = |state: &VariantState| {
            let target = self.target(&state.variant).ok()??;
            Some((state.variant.id.clone(), target.termination.clone()?))
        };
        KnownScalers {
            scalers: scalers.map(|(namespace, scaler)| (namespace.into(), scaler.clone())).collect(),
            // With a controller instance, those without its label are not watched.
            are_all: self.controller_instance.is_none()
                && self.hpas.is_known(false)
                && self.scaled_objects.is_known(false),
            verticals: verticals.map(|(key, own)| ((&*key.namespace).into(), own.clone())).collect(),
            terminations: view.variants.iter().filter_map(termination).collect(),
            controller_instance: self.controller_instance.clone(),
        }
        .into()
    }

    /// The ScaledObjects that KEDA calls for. Where the number under the name of one is about another workload, it has none.
    pub(super) fn called_verdicts(
        &self,
        objects: &BTreeMap<VariantId, Arc<VariantObject>>,
        aliases: &BTreeMap<VariantId, SmolStr>,
        bystanders: &[Bystander],
    ) -> BTreeMap<VariantId, Result<(), SmolStr>> {
        let mut verdicts = self.called.verdicts();
        for bystander in
            bystanders.iter().filter(|bystander| bystander.object.kind == VariantKind::ScaledObject)
        {
            if let Some(verdict) = verdicts.get_mut(&bystander.id)
                && !reads_own_workload(bystander, objects, aliases)
            {
                *verdict = Err(bystander.notice.note.as_str().into());
            }
        }
        verdicts
    }

    /// Without the list of HPAs, one that multiplies would be taken for one that does not.
    pub(super) fn value_targets(&self, multipliers: BTreeMap<VariantId, u32>) -> Option<ValueTargets> {
        let are_known = self.hpas.objects.has_listed();
        self.finds_value_targets.then_some(ValueTargets { are_known, multipliers })
    }

    pub(super) fn read_types(&self, aliases: &BTreeMap<VariantId, SmolStr>) -> Option<ReadTypes<'_>> {
        let objects = self.hpas.objects.iter();
        let reads = objects.flat_map(|(key, object)| object.reads.iter().map(move |read| (key, read)));
        self.finds_value_targets.then(|| ReadTypes::new(reads, aliases))
    }
}

/// Whether reads of an object's name get a number that is about the workload which it scales.
fn reads_own_workload(
    Bystander { id, object, .. }: &Bystander,
    objects: &BTreeMap<VariantId, Arc<VariantObject>>,
    aliases: &BTreeMap<VariantId, SmolStr>,
) -> bool {
    let name = aliases.get(id).unwrap_or(&id.name);
    let decider = objects.get(&VariantId::new(id.namespace.clone(), name.clone()));
    decider.is_some_and(|decider| decider.target.is_some() && decider.target == object.target)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::watch::claims::tests::object;

    fn named(kind: VariantKind, name: &str, target: &str) -> (VariantId, Arc<VariantObject>) {
        let object = VariantObject { kind, ..object("llm", name, target) };
        (VariantId::new("llm", name), Arc::new(object))
    }

    #[test]
    fn a_scaled_object_got_the_number_of_the_workload_that_has_its_name() {
        let variant = |name, target| named(VariantKind::VariantAutoscaling, name, target);
        let reads_own = |variants: Vec<_>| {
            let scaled = named(VariantKind::ScaledObject, "chat", "web");
            let merged = VariantObjects::new(variants.into_iter().collect(), vec![scaled]);
            let VariantObjects { objects, aliases, bystanders } = merged;
            reads_own_workload(&bystanders[0], &objects, &aliases)
        };
        assert!(!reads_own(vec![variant("chat", "b")]));
        assert!(
            !reads_own(vec![variant("chat", "b"), variant("web", "web")]),
            "although another one decides"
        );
        assert!(reads_own(vec![variant("web", "web")]));
        assert!(reads_own(vec![variant("chat", "web")]));
    }
}
