//! Entries laid over each other: what is said of the models of one namespace, or of all.

use std::collections::BTreeMap;
use std::{fmt, iter};

use smol_str::SmolStr;
use wva_core::GroupId;
use wva_core::model::{ScaleToZero, Scope};

use super::super::document::Diagnostics;
use super::analyzers::Choice;
use super::entries::{QueueingEntry, SaturationEntry, ScaleToZeroEntry, model_policy};
use super::last_good::{DEFAULT, LastGood};
use super::overlay::{Overlay, ScaleToZeroOverlay};
use super::problem::{Place, Problems};

/// The entries of one ConfigMap, and where they are.
pub(super) struct Layer<'a, E> {
    pub(super) place: Place<'a>,
    pub(super) entries: &'a LastGood<E>,
}

/// What a scope is made of.
pub(super) struct Layers<'a> {
    pub(super) saturation: Layer<'a, SaturationEntry>,
    pub(super) zero: Layer<'a, ScaleToZeroEntry>,
    pub(super) queueing: Layer<'a, QueueingEntry>,
    /// Who decides where the entries do not say.
    pub(super) choice: Choice,
    /// Scaling to zero where no entry says anything.
    pub(super) base: ScaleToZero,
    /// The only namespace that is looked at.
    pub(super) only: Option<&'a str>,
}

/// What two ConfigMaps say of one model, with the keys that say it.
#[derive(Default)]
struct ModelEntries<'a> {
    saturation: Option<(&'a str, &'a SaturationEntry)>,
    queueing: Option<(&'a str, &'a QueueingEntry)>,
}

impl Layers<'_> {
    /// The scope. Whatever the entries are, there is one.
    pub(super) fn scope(&self, problems: &mut Problems) -> Scope {
        let default = self.saturation.entries.get(DEFAULT).cloned().unwrap_or_default();
        let default_choice = default.choice.over(&self.choice);
        let queueing = self.queueing.entries.get(DEFAULT);
        let in_charge = queueing.map(|_| Choice::queueing_model());
        let queueing = queueing.cloned().unwrap_or_default();
        let (zero, by_model) = self.scale_to_zero(&default.scale_to_zero(), problems);
        let mut of_default = Diagnostics::default();
        let policy = model_policy(
            &[&default],
            in_charge.as_ref().unwrap_or(&default_choice),
            Some(zero),
            queueing.policy(&QueueingEntry::default()),
            &mut of_default,
        );
        problems.notes(self.saturation.place, DEFAULT, &of_default);
        let models = self.models(problems).into_iter().map(|(group, entries)| {
            let own = entries.saturation.map(|(_, entry)| entry);
            let layers: Vec<&SaturationEntry> = iter::once(&default).chain(own).collect();
            let choice = own.map_or(default_choice.clone(), |own| own.choice.over(&default_choice));
            let below = by_model.get(&group.model).copied().unwrap_or(zero);
            let own_zero = own.and_then(|own| own_zero(own, &default, below));
            let own_queueing = entries.queueing.map_or(&queueing, |(_, entry)| entry).policy(&queueing);
            let choice = in_charge.as_ref().unwrap_or(&choice);
            let mut diagnostics = Diagnostics::default();
            let policy = model_policy(&layers, choice, own_zero, own_queueing, &mut diagnostics);
            // What is wrong with the default is said of the default.
            diagnostics.notes.retain(|note| !of_default.notes.contains(note));
            let key = entries.saturation.map_or(DEFAULT, |(key, _)| key);
            problems.notes(self.saturation.place, key, &diagnostics);
            (group, policy)
        });
        let models = models.collect();
        Scope { default: policy, models, scale_to_zero: by_model }
    }

    /// The default, and what is said by model. As in WVA v0.9 what the saturation ConfigMap's default says wins over both.
    fn scale_to_zero(
        &self,
        inline: &ScaleToZeroOverlay,
        problems: &mut Problems,
    ) -> (ScaleToZero, BTreeMap<SmolStr, ScaleToZero>) {
        let with_inline = |mut policy: ScaleToZero| {
            inline.apply_to(&mut policy);
            policy
        };
        let default = self.zero.entries.get(DEFAULT).map_or(self.base, |entry| entry.over(self.base));
        let mut keys: BTreeMap<SmolStr, &str> = BTreeMap::new();
        let mut models = BTreeMap::new();
        for (key, entry) in self.zero.entries.of_models() {
            let Some(model) = entry.model().cloned() else { continue };
            if let Some(first) = keys.get(&model) {
                problems.reject(self.zero.place, key, duplicate(&model, first));
                continue;
            }
            models.insert(model.clone(), with_inline(entry.over(default)));
            keys.insert(model, key);
        }
        (with_inline(default), models)
    }

    /// Entries by the model they are about.
    fn models(&self, problems: &mut Problems) -> BTreeMap<GroupId, ModelEntries<'_>> {
        let mut models: BTreeMap<GroupId, ModelEntries<'_>> = BTreeMap::new();
        for (group, first) in self.by_model(&self.saturation, |entry| entry.group.as_ref(), problems) {
            models.entry(group).or_default().saturation = Some(first);
        }
        for (group, first) in self.by_model(&self.queueing, |entry| entry.group.as_ref(), problems) {
            models.entry(group).or_default().queueing = Some(first);
        }
        models
    }

    /// The entries of one ConfigMap by model. The first key of a model counts.
    fn by_model<'a, E>(
        &self,
        layer: &Layer<'a, E>,
        group: impl Fn(&E) -> Option<&GroupId>,
        problems: &mut Problems,
    ) -> BTreeMap<GroupId, (&'a str, &'a E)> {
        let mut models: BTreeMap<GroupId, (&str, &E)> = BTreeMap::new();
        for (key, entry) in layer.entries.of_models() {
            let is_ours = |group: &&GroupId| self.only.is_none_or(|only| group.namespace == only);
            let Some(group) = group(entry).filter(is_ours) else { continue };
            match models.get(group) {
                Some((first, _)) => problems.reject(layer.place, key, duplicate(group, first)),
                None => {
                    models.insert(group.clone(), (key, entry));
                }
            }
        }
        models
    }
}

/// What an entry of a model says of scaling to zero over `below`, which has what the default says; `None` when neither does.
fn own_zero(own: &SaturationEntry, default: &SaturationEntry, mut below: ScaleToZero) -> Option<ScaleToZero> {
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
