//! Entries laid over each other: what is said of the models of one namespace, or of all.

use std::collections::BTreeMap;

use smol_str::SmolStr;
use wva_core::GroupId;
use wva_core::model::{ScaleToZero, Scope};

use super::analyzers::Choice;
use super::fields::Said;
use super::last_good::{DEFAULT, LastGood};
use super::problem::{At, Problems};
use super::{queueing, saturation, zero};

/// The entries of one ConfigMap, and where they are.
pub(super) struct Layer<'a, E> {
    pub(super) at: At<'a>,
    pub(super) kept: &'a LastGood<E>,
}

/// What a scope is made of.
pub(super) struct Layers<'a> {
    pub(super) saturation: Layer<'a, saturation::Entry>,
    pub(super) zero: Layer<'a, zero::Entry>,
    pub(super) queueing: Layer<'a, queueing::Entry>,
    /// Who decides where the entries do not say.
    pub(super) choice: Choice,
    /// Scaling to zero where no entry says anything.
    pub(super) base: ScaleToZero,
    /// The only namespace that is looked at.
    pub(super) only: Option<&'a str>,
}

/// What two ConfigMaps say of one model, with the keys that say it.
#[derive(Default)]
struct OfModel<'a> {
    saturation: Option<(&'a str, &'a saturation::Entry)>,
    queueing: Option<(&'a str, &'a queueing::Entry)>,
}

impl Layers<'_> {
    /// The scope. Whatever the entries are, there is one.
    pub(super) fn scope(&self, problems: &mut Problems) -> Scope {
        let mut default = self.saturation.kept.get(DEFAULT).cloned().unwrap_or_default();
        default.choice = default.choice.over(&self.choice);
        let queueing = self.queueing.kept.get(DEFAULT);
        let in_charge = queueing.map(|_| Choice::queueing_model());
        let below = queueing.cloned().unwrap_or_default();
        let (zero, by_model) = self.scale_to_zero(default.zero, problems);
        let mut whole = default.clone();
        whole.choice = in_charge.clone().unwrap_or(whole.choice);
        let mut of_default = Said::default();
        let policy = whole.policy(Some(zero), below.policy(&queueing::Entry::default()), &mut of_default);
        problems.notes(self.saturation.at, DEFAULT, &of_default);
        let of_models = self.models(problems).into_iter().map(|(group, of)| {
            let (key, entry) = of.saturation.unwrap_or((DEFAULT, &default));
            let mut entry = entry.over(&default);
            entry.choice = in_charge.clone().unwrap_or(entry.choice);
            let own_zero = entry.zero.is_set() && of.saturation.is_some();
            let own_zero =
                own_zero.then(|| entry.zero.over(by_model.get(&group.model).copied().unwrap_or(zero)));
            let queueing = of.queueing.map_or(&below, |(_, entry)| entry).policy(&below);
            let mut said = Said::default();
            let policy = entry.policy(own_zero, queueing, &mut said);
            // What is wrong with the default is said of the default.
            said.notes.retain(|note| !of_default.notes.contains(note));
            problems.notes(self.saturation.at, key, &said);
            (group, policy)
        });
        let models = of_models.collect();
        Scope { default: policy, models, scale_to_zero: by_model }
    }

    /// The default, and what is said by model. What the saturation ConfigMap's default says wins over both, as in WVA
    /// (algorithm reference §7.7).
    fn scale_to_zero(
        &self,
        inline: saturation::Inline,
        problems: &mut Problems,
    ) -> (ScaleToZero, BTreeMap<SmolStr, ScaleToZero>) {
        let default = self.zero.kept.get(DEFAULT).map_or(self.base, |entry| entry.over(self.base));
        let mut keys: BTreeMap<SmolStr, &str> = BTreeMap::new();
        let mut models = BTreeMap::new();
        for (key, entry) in self.zero.kept.others() {
            let Some(model) = entry.model.clone() else { continue };
            if let Some(first) = keys.get(&model) {
                problems.refuse(self.zero.at, key, twice(&model, first));
                continue;
            }
            models.insert(model.clone(), inline.over(entry.over(default)));
            keys.insert(model, key);
        }
        (inline.over(default), models)
    }

    /// Entries by the model they are about. The first key of a model counts.
    fn models(&self, problems: &mut Problems) -> BTreeMap<GroupId, OfModel<'_>> {
        let mut models: BTreeMap<GroupId, OfModel<'_>> = BTreeMap::new();
        let ours = |group: &GroupId| self.only.is_none_or(|only| group.namespace == only);
        for (key, entry) in self.saturation.kept.others() {
            let Some(group) = entry.group.as_ref().filter(|group| ours(group)) else { continue };
            let slot = &mut models.entry(group.clone()).or_default().saturation;
            match slot {
                Some((first, _)) => problems.refuse(self.saturation.at, key, twice(group, first)),
                None => *slot = Some((key, entry)),
            }
        }
        for (key, entry) in self.queueing.kept.others() {
            let Some(group) = entry.group.as_ref().filter(|group| ours(group)) else { continue };
            let slot = &mut models.entry(group.clone()).or_default().queueing;
            match slot {
                Some((first, _)) => problems.refuse(self.queueing.at, key, twice(group, first)),
                None => *slot = Some((key, entry)),
            }
        }
        models
    }
}

fn twice(model: &impl std::fmt::Display, first: &str) -> String {
    format!("it is about {model}, as entry {first} is: must be one entry a model; it is left out")
}
