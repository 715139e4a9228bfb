//! What the store knows of the autoscalers of variants.

use std::collections::{BTreeMap, BTreeSet};

use smol_str::SmolStr;
use wva_core::VariantId;
use wva_core::model::TargetRef;
use wva_core::snapshot::VariantState;

use super::super::autoscalers::{Autoscalers, KnownScalers};
use super::super::value_targets::ReadTypes;
use super::ClusterStore;
use crate::engine::{ClusterView, ValueTargets};

impl ClusterStore {
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
