//! Combines entries into the policies of the models of one namespace, or of all namespaces.

use std::collections::BTreeMap;
use std::{fmt, iter};

use smol_str::SmolStr;
use wva_core::GroupId;
use wva_core::model::{ScaleToZero, Scope, ServiceClass};

use super::super::document::Diagnostics;
use super::analyzers::AnalyzerChoice;
use super::entries::{QueueingEntry, SaturationEntry, ScaleToZeroEntry, model_policy};
use super::last_good::{DEFAULT, LastGood};
use super::overlay::{Overlay, ScaleToZeroOverlay};
use super::problem::{Location, Problems};
use super::variant_settings::Variants;
use super::variants::{Below, VariantLayer};

/// The entries of one ConfigMap, and its location.
pub(super) struct ConfigMapLayer<'a, E> {
    pub(super) location: Location<'a>,
    pub(super) entries: &'a LastGood<E>,
}

/// The inputs of a scope.
pub(super) struct Layers<'a> {
    pub(super) saturation: ConfigMapLayer<'a, SaturationEntry>,
    pub(super) scale_to_zero: ConfigMapLayer<'a, ScaleToZeroEntry>,
    pub(super) queueing: ConfigMapLayer<'a, QueueingEntry>,
    /// The analyzers where the entries choose none.
    pub(super) choice: AnalyzerChoice,
    /// Scaling to zero where no entry sets it.
    pub(super) base: ScaleToZero,
    /// The only namespace whose models are included; `None` for all.
    pub(super) only: Option<&'a str>,
    /// The models that are included of which variants have settings.
    pub(super) variants: Vec<(&'a GroupId, &'a Variants)>,
    /// The service classes, which variants may name.
    pub(super) classes: &'a LastGood<ServiceClass>,
}

/// The entries of one model in two ConfigMaps, with their keys, and its variants if one of them has settings.
#[derive(Default)]
struct ModelEntries<'a> {
    saturation: Option<(&'a str, &'a SaturationEntry)>,
    queueing: Option<(&'a str, &'a QueueingEntry)>,
    variants: Option<&'a Variants>,
}

impl Layers<'_> {
    /// The scope.
    pub(super) fn scope(&self, problems: &mut Problems) -> Scope {
        let default = self.saturation.entries.get(DEFAULT).cloned().unwrap_or_default();
        let default_choice = default.choice.over(&self.choice);
        let queueing = self.queueing.entries.get(DEFAULT);
        let queueing_choice = queueing.map(|_| AnalyzerChoice::queueing_model());
        let queueing = queueing.cloned().unwrap_or_default();
        let (scale_to_zero, by_model) = self.scale_to_zero(&default.scale_to_zero(), problems);
        let mut default_diagnostics = Diagnostics::default();
        let policy = model_policy(
            &[&default],
            queueing_choice.as_ref().unwrap_or(&default_choice),
            Some(scale_to_zero),
            queueing.policy(&QueueingEntry::default()),
            &mut default_diagnostics,
        );
        problems.add_notes(self.saturation.location, DEFAULT, &default_diagnostics);
        let models = self.models(problems).into_iter().map(|(group, entries)| {
            let own = entries.saturation.map(|(_, entry)| entry);
            let layers: Vec<&SaturationEntry> = iter::once(&default).chain(own).collect();
            let choice = own.map_or(default_choice.clone(), |own| own.choice.over(&default_choice));
            let below = by_model.get(&group.model).copied().unwrap_or(scale_to_zero);
            let own_scale_to_zero = own.and_then(|own| own_scale_to_zero(own, &default, below));
            let own_queueing = entries.queueing.map_or(&queueing, |(_, entry)| entry).policy(&queueing);
            let in_force = queueing_choice.as_ref().unwrap_or(&choice);
            let mut diagnostics = Diagnostics::default();
            let mut policy =
                model_policy(&layers, in_force, own_scale_to_zero, own_queueing, &mut diagnostics);
            // Notes about the default have been added above.
            diagnostics.notes.retain(|note| !default_diagnostics.notes.contains(note));
            let key = entries.saturation.map_or(DEFAULT, |(key, _)| key);
            problems.add_notes(self.saturation.location, key, &diagnostics);
            if let Some(variants) = entries.variants {
                let below = Below {
                    group: &group,
                    layers: &layers,
                    choice: queueing_choice.is_none().then_some(&choice),
                    scale_to_zero: own_scale_to_zero.unwrap_or(below),
                    classes: self.classes,
                    policy,
                };
                policy = VariantLayer::new(below, variants, problems.of_variants()).policy();
            }
            (group, policy)
        });
        let models = models.collect();
        Scope { default: policy, models, scale_to_zero: by_model }
    }

    /// The default, and the values by model. As in WVA v0.9, the default entry of the saturation ConfigMap overrides both.
    fn scale_to_zero(
        &self,
        inline: &ScaleToZeroOverlay,
        problems: &mut Problems,
    ) -> (ScaleToZero, BTreeMap<SmolStr, ScaleToZero>) {
        let ConfigMapLayer { location, entries } = &self.scale_to_zero;
        let mut default = self.base;
        if let Some(entry) = entries.get(DEFAULT) {
            entry.apply_to(&mut default);
        }
        let mut keys: BTreeMap<SmolStr, &str> = BTreeMap::new();
        let mut models = BTreeMap::new();
        for (key, entry) in entries.model_entries() {
            let Some(model) = entry.model().cloned() else { continue };
            if let Some(first) = keys.get(&model) {
                problems.add_rejected(*location, key, duplicate(&model, first));
                continue;
            }
            let mut policy = default;
            entry.apply_to(&mut policy);
            inline.apply_to(&mut policy);
            models.insert(model.clone(), policy);
            keys.insert(model, key);
        }
        inline.apply_to(&mut default);
        (default, models)
    }

    /// The entries of each model.
    fn models(&self, problems: &mut Problems) -> BTreeMap<GroupId, ModelEntries<'_>> {
        let mut models: BTreeMap<GroupId, ModelEntries<'_>> = BTreeMap::new();
        for (group, first) in self.by_model(&self.saturation, |entry| entry.group.as_ref(), problems) {
            models.entry(group).or_default().saturation = Some(first);
        }
        for (group, first) in self.by_model(&self.queueing, |entry| entry.group.as_ref(), problems) {
            models.entry(group).or_default().queueing = Some(first);
        }
        for (group, variants) in &self.variants {
            models.entry((*group).clone()).or_default().variants = Some(*variants);
        }
        models
    }

    /// The entries of one ConfigMap by model. If several are about one model, the first is used.
    fn by_model<'a, E>(
        &self,
        layer: &ConfigMapLayer<'a, E>,
        group: impl Fn(&E) -> Option<&GroupId>,
        problems: &mut Problems,
    ) -> BTreeMap<GroupId, (&'a str, &'a E)> {
        let mut models: BTreeMap<GroupId, (&str, &E)> = BTreeMap::new();
        for (key, entry) in layer.entries.model_entries() {
            let is_included = |group: &&GroupId| self.only.is_none_or(|only| group.namespace == only);
            let Some(group) = group(entry).filter(is_included) else { continue };
            match models.get(group) {
                Some((first, _)) => problems.add_rejected(layer.location, key, duplicate(group, first)),
                None => {
                    models.insert(group.clone(), (key, entry));
                }
            }
        }
        models
    }
}

/// Scaling to zero as set by the entry of a model over `below`, which includes the default entry; `None` if neither sets it.
fn own_scale_to_zero(
    own: &SaturationEntry,
    default: &SaturationEntry,
    mut below: ScaleToZero,
) -> Option<ScaleToZero> {
    let overlay = own.scale_to_zero();
    if overlay == ScaleToZeroOverlay::default() && default.scale_to_zero() == ScaleToZeroOverlay::default() {
        return None;
    }
    overlay.apply_to(&mut below);
    Some(below)
}

fn duplicate(model: &impl fmt::Display, first: &str) -> String {
    format!("it is about {model}, as entry {first} is: must be one entry a model; it is left out")
}
