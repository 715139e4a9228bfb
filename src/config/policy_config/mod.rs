//! Makes the core's policy from the texts of ConfigMaps, and reports what is wrong with them. An invalid entry affects only itself:
//! its last good text stays in force. Pure.

mod analyzers;
mod changes;
mod entries;
mod fields;
mod last_good;
mod layers;
mod limits;
mod model_key;
mod names;
mod overlay;
mod problem;
mod variant_settings;
mod variants;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::iter;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::Value;
use smol_str::SmolStr;
use wva_core::model::{ServiceClass, UnitCost};
use wva_core::{GroupId, Policy};

use super::document::{self, Diagnostics};
use analyzers::AnalyzerChoice;
use entries::{AcceleratorEntry, ClassEntry, QueueingEntry, SaturationEntry, ScaleToZeroEntry};
use last_good::{DEFAULT, LastGood};
use layers::{ConfigMapLayer, Layers};
use limits::Limits;
use model_key::ModelKey;
use overlay::Section;
use problem::Location;

pub use changes::changes;
pub use names::{ConfigMapKind, ConfigMapNames, Found, KnownNames};
pub use problem::{Problem, Problems};
pub use variant_settings::{ModelVariant, VariantSettings, Variants, VariantsByModel};
pub use variants::{Finding, Findings};

/// The texts of a ConfigMap's entries by key, or why they cannot be read.
pub type EntryTexts = Result<Arc<BTreeMap<String, String>>, String>;

/// The ConfigMaps that exist, by namespace and kind.
pub type ConfigMapTexts = BTreeMap<(String, ConfigMapKind), EntryTexts>;

/// Makes policies of ConfigMaps, and remembers the last good text of each entry.
#[derive(Clone)]
pub struct PolicyLoader {
    /// The policy where no ConfigMap sets anything.
    base: Policy,
    /// The names in namespaces of variants.
    names: ConfigMapNames,
    /// The names in the release namespace.
    release_names: ConfigMapNames,
    /// The namespace whose ConfigMaps apply to all others.
    release_namespace: String,
    namespaces: BTreeMap<String, NamespaceEntries>,
    variants: VariantsByModel,
    classes: LastGood<ServiceClass>,
    accelerators: LastGood<UnitCost>,
}

/// The entries of one namespace's ConfigMaps.
#[derive(Default, Clone)]
struct NamespaceEntries {
    saturation: LastGood<SaturationEntry>,
    scale_to_zero: LastGood<ScaleToZeroEntry>,
    queueing: LastGood<QueueingEntry>,
}

impl PolicyLoader {
    /// A loader that knows no ConfigMap yet. `base` is the policy of the command line.
    #[must_use]
    pub fn new(base: Policy, names: ConfigMapNames, release_namespace: String) -> Self {
        Self {
            base,
            release_names: names.clone(),
            names,
            release_namespace,
            namespaces: BTreeMap::new(),
            variants: VariantsByModel::new(),
            classes: LastGood::default(),
            accelerators: LastGood::default(),
        }
    }

    /// Sets the names in the release namespace, for problems. They differ from those in other namespaces where an installation of WVA
    /// gave them.
    pub fn set_release_names(&mut self, names: ConfigMapNames) {
        self.release_names = names;
    }

    /// Sets the settings of VariantAutoscalings, which count from the next policy on. A field that is no longer valid keeps its last
    /// valid value.
    pub fn set_variants(&mut self, mut variants: VariantsByModel) {
        variant_settings::keep_valid(&mut variants, &self.variants);
        self.variants = variants;
    }

    /// The policy of the current ConfigMaps, for variants in `namespaces`.
    pub fn load(&mut self, texts: &ConfigMapTexts, namespaces: &BTreeSet<String>) -> (Policy, Problems) {
        let mut problems = Problems::default();
        let release = &self.release_namespace;
        self.namespaces.retain(|namespace, _| namespace == release || namespaces.contains(namespace));
        for namespace in iter::once(release).chain(namespaces.iter().filter(|name| *name != release)) {
            let only = (namespace != release).then_some(namespace.as_str());
            let entries = self.namespaces.entry(namespace.clone()).or_default();
            let names = if namespace == release { &self.release_names } else { &self.names };
            let mut reader = EntryReader { texts, names, namespace, problems: &mut problems };
            reader.read_namespace(entries, only);
        }
        let names = &self.release_names;
        let mut reader = EntryReader { texts, names, namespace: release, problems: &mut problems };
        reader.read_legacy(&mut self.classes, &mut self.accelerators);
        (self.policy(&mut problems), problems.interleaved())
    }

    fn policy(&self, problems: &mut Problems) -> Policy {
        let none = NamespaceEntries::default();
        let release = self.namespaces.get(&self.release_namespace).unwrap_or(&none);
        let default = release.saturation.get(DEFAULT);
        let choice = default.map(|entry| entry.choice.clone()).unwrap_or_default();
        let no_choice = AnalyzerChoice::default();
        let global = self.layers(&self.release_namespace, release, release, no_choice).scope(problems);
        let mut policy = Policy { global, ..self.base.clone() };
        let mut rescale = BTreeMap::new();
        for (namespace, entries) in &self.namespaces {
            self.note_misplaced(namespace, entries, problems);
            if *namespace == self.release_namespace || entries.is_empty() {
                continue;
            }
            let scope = self.layers(namespace, entries, release, choice.clone()).scope(problems);
            policy.namespaces.insert(namespace.into(), scope);
            let own = entries.saturation.get(DEFAULT).and_then(|entry| entry.limits.rescale);
            rescale.extend(own.map(|own| (SmolStr::from(namespace), own)));
        }
        let unlimited = Limits::default();
        policy.limits = default.map_or(&unlimited, |entry| &entry.limits).policy(rescale);
        policy.compat = default.and_then(|entry| entry.fields.compat).unwrap_or(policy.compat);
        policy.service_classes = self.classes.iter().map(|(_, class)| class.clone()).collect();
        policy.accelerators =
            self.accelerators.iter().map(|(name, cost)| (SmolStr::from(name), cost.clone())).collect();
        policy
    }

    /// The layers of one namespace: of each kind its own ConfigMap, or that of the release namespace if it has no entries.
    fn layers<'a>(
        &'a self,
        namespace: &'a str,
        own: &'a NamespaceEntries,
        release: &'a NamespaceEntries,
        choice: AnalyzerChoice,
    ) -> Layers<'a> {
        use ConfigMapKind::{QueueingModel, Saturation, ScaleToZero};
        Layers {
            saturation: self.layer(Saturation, namespace, &own.saturation, &release.saturation),
            scale_to_zero: self.layer(ScaleToZero, namespace, &own.scale_to_zero, &release.scale_to_zero),
            queueing: self.layer(QueueingModel, namespace, &own.queueing, &release.queueing),
            choice,
            base: self.base.global.default.scale_to_zero.unwrap_or_default(),
            only: (*namespace != self.release_namespace).then_some(namespace),
            variants: self.variants_in(namespace),
            classes: &self.classes,
        }
    }

    /// The models in the scope of `namespace` of which variants have settings. The scope of the release namespace is every namespace
    /// without entries of its own.
    fn variants_in(&self, namespace: &str) -> Vec<(&GroupId, &Variants)> {
        if namespace == self.release_namespace {
            let has_scope = |namespace: &str| {
                namespace != self.release_namespace
                    && self.namespaces.get(namespace).is_some_and(|entries| !entries.is_empty())
            };
            return self.variants.iter().filter(|(group, _)| !has_scope(&group.namespace)).collect();
        }
        let from = self.variants.range(GroupId::new(namespace, "")..);
        from.take_while(|(group, _)| group.namespace == namespace).collect()
    }

    fn layer<'a, E>(
        &'a self,
        kind: ConfigMapKind,
        namespace: &'a str,
        own: &'a LastGood<E>,
        release: &'a LastGood<E>,
    ) -> ConfigMapLayer<'a, E> {
        let (namespace, entries) =
            if own.is_empty() { (self.release_namespace.as_str(), release) } else { (namespace, own) };
        ConfigMapLayer { location: self.location(namespace, kind), entries }
    }

    fn location<'a>(&'a self, namespace: &'a str, kind: ConfigMapKind) -> Location<'a> {
        let names = if namespace == self.release_namespace { &self.release_names } else { &self.names };
        Location { namespace, config_map: name(names, kind) }
    }

    /// Notes limits and `compat` in entries where they have no effect, because they are for all models together.
    fn note_misplaced(&self, namespace: &str, entries: &NamespaceEntries, problems: &mut Problems) {
        let location = self.location(namespace, ConfigMapKind::Saturation);
        for (key, entry) in entries.saturation.iter() {
            let is_default = key == DEFAULT;
            let is_elsewhere = !(is_default && namespace == self.release_namespace);
            let has_limits =
                entry.limits.is_set() && is_elsewhere || entry.limits.rescale.is_some() && !is_default;
            let has_compat = entry.fields.compat.is_some() && is_elsewhere;
            let misplaced = [(has_limits, "limits have"), (has_compat, "compat has")];
            let notes = misplaced.into_iter().filter(|(is_misplaced, _)| *is_misplaced).map(|(_, what)| {
                let release = &self.release_namespace;
                format!("{what} no effect here, only in the entry default of namespace {release}")
            });
            problems.add_notes(
                location,
                key,
                &Diagnostics { notes: notes.collect(), ..Diagnostics::default() },
            );
        }
    }
}

impl NamespaceEntries {
    fn is_empty(&self) -> bool {
        self.saturation.is_empty() && self.scale_to_zero.is_empty() && self.queueing.is_empty()
    }
}

/// Reads the ConfigMaps of one namespace.
struct EntryReader<'a> {
    texts: &'a ConfigMapTexts,
    names: &'a ConfigMapNames,
    namespace: &'a str,
    problems: &'a mut Problems,
}

impl EntryReader<'_> {
    /// Reads the ConfigMaps that every namespace may have. `only` is the only namespace that their entries may be about.
    fn read_namespace(&mut self, entries: &mut NamespaceEntries, only: Option<&str>) {
        self.read(ConfigMapKind::Saturation, &mut entries.saturation, |fields, key, diagnostics| {
            Some(SaturationEntry::new(fields, ModelKey { key, namespace: only }, diagnostics))
        });
        self.read(ConfigMapKind::QueueingModel, &mut entries.queueing, |fields, key, diagnostics| {
            Some(QueueingEntry::new(fields, ModelKey { key, namespace: only }, diagnostics))
        });
        self.read(
            ConfigMapKind::ScaleToZero,
            &mut entries.scale_to_zero,
            |entry: ScaleToZeroEntry, key, diagnostics| Some(entry.checked(key, diagnostics)),
        );
    }

    /// Reads the ConfigMaps of the legacy solver.
    fn read_legacy(&mut self, classes: &mut LastGood<ServiceClass>, accelerators: &mut LastGood<UnitCost>) {
        self.read(ConfigMapKind::ServiceClasses, classes, |entry: ClassEntry, _, diagnostics| {
            Some(entry.class(diagnostics))
        });
        self.read(
            ConfigMapKind::AcceleratorCosts,
            accelerators,
            |entry: AcceleratorEntry, _, diagnostics| entry.unit_cost(diagnostics),
        );
    }

    /// Updates `entries` from the ConfigMap of `kind`. `check` makes an entry of its fields.
    fn read<F: DeserializeOwned + Default, E>(
        &mut self,
        kind: ConfigMapKind,
        entries: &mut LastGood<E>,
        check: impl Fn(F, &str, &mut Diagnostics) -> Option<E>,
    ) {
        let location = Location { namespace: self.namespace, config_map: name(self.names, kind) };
        match self.texts.get(&(self.namespace.to_owned(), kind)) {
            Some(Err(cause)) => return self.problems.add_unreadable(location, cause, entries.is_empty()),
            Some(Ok(texts)) => entries.update(texts, |key, text| {
                read_entry(text, |fields, diagnostics| check(fields, key, diagnostics))
            }),
            None => *entries = LastGood::default(),
        }
        self.problems.add_entries(location, entries.diagnostics());
    }
}

/// The entry of a text; `None` if it is invalid. Fields are checked together only when each is valid.
fn read_entry<F: DeserializeOwned + Default, E>(
    text: &str,
    check: impl FnOnce(F, &mut Diagnostics) -> Option<E>,
) -> (Option<E>, Diagnostics) {
    let mut diagnostics = Diagnostics::default();
    let document = document::parse(text).unwrap_or_else(|cause| {
        diagnostics.error(format!("the entry is no YAML document: {cause}"));
        Value::Null
    });
    let fields = document::read::<Section<F>>(document, &mut diagnostics);
    let entry = fields
        .filter(|_| diagnostics.errors.is_empty())
        .and_then(|Section(fields)| check(fields, &mut diagnostics));
    if diagnostics.errors.is_empty() {
        return (entry, diagnostics);
    }
    // Notes are only for entries that are in force.
    diagnostics.notes.clear();
    (None, diagnostics)
}

fn name(names: &ConfigMapNames, kind: ConfigMapKind) -> &str {
    names.get(&kind).map_or("", String::as_str)
}
