//! ConfigMaps → the core's policy. Pure: texts in, a policy and what is wrong with the texts out. Nothing an author writes
//! stops this: an entry that is wrong does not count, and its last right text goes on counting.

mod analyzers;
mod changes;
mod entries;
mod fields;
mod last_good;
mod layers;
mod limits;
mod model_key;
mod overlay;
mod problem;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::iter;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::Value;
use smol_str::SmolStr;
use wva_core::Policy;
use wva_core::model::{ServiceClass, UnitCost};

use super::document::{self, Diagnostics};
use analyzers::Choice;
use entries::{AcceleratorEntry, ClassEntry, QueueingEntry, SaturationEntry, ScaleToZeroEntry};
use last_good::{DEFAULT, LastGood};
use layers::{Layer, Layers};
use limits::Limits;
use model_key::ModelKey;
use overlay::Section;
use problem::Place;

pub use changes::changes;
pub use problem::{Problem, Problems};

/// What a ConfigMap is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Thresholds and analyzers by model, and limits.
    Saturation,
    /// Scaling to zero by model.
    ScaleToZero,
    /// The queueing model: its default entry puts it in charge.
    QueueingModel,
    /// The legacy solver's classes of service.
    ServiceClasses,
    /// The legacy solver's accelerators.
    AcceleratorCosts,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Saturation,
        Self::ScaleToZero,
        Self::QueueingModel,
        Self::ServiceClasses,
        Self::AcceleratorCosts,
    ];

    /// True when a namespace of variants may have one of its own, in place of the one of the release's namespace.
    #[must_use]
    pub const fn may_be_local(self) -> bool {
        matches!(self, Self::Saturation | Self::ScaleToZero | Self::QueueingModel)
    }
}

/// The names of the ConfigMaps, by what they are about: each has one, and no two share one.
pub type Names = BTreeMap<Kind, String>;

/// Entries of a ConfigMap by key, or why they cannot be read.
pub type Map = Result<Arc<BTreeMap<String, String>>, String>;

/// The ConfigMaps that exist, by namespace and what they are about.
pub type Maps = BTreeMap<(String, Kind), Map>;

/// Makes a policy of what the ConfigMaps say now, and of what they said when they were last right.
pub struct PolicyLoader {
    /// What counts where no ConfigMap says anything.
    base: Policy,
    names: Names,
    /// The namespace whose ConfigMaps count for all others.
    home: String,
    namespaces: BTreeMap<String, NamespaceEntries>,
    classes: LastGood<ServiceClass>,
    accelerators: LastGood<UnitCost>,
}

/// The entries of one namespace's ConfigMaps.
#[derive(Default)]
struct NamespaceEntries {
    saturation: LastGood<SaturationEntry>,
    zero: LastGood<ScaleToZeroEntry>,
    queueing: LastGood<QueueingEntry>,
}

impl PolicyLoader {
    /// Nothing is known yet. `base` is what the command line says, `home` the release's namespace.
    #[must_use]
    pub fn new(base: Policy, names: Names, home: String) -> Self {
        Self {
            base,
            names,
            home,
            namespaces: BTreeMap::new(),
            classes: LastGood::default(),
            accelerators: LastGood::default(),
        }
    }

    /// The policy as the ConfigMaps are now, for variants in `namespaces`.
    pub fn load(&mut self, maps: &Maps, namespaces: &BTreeSet<String>) -> (Policy, Problems) {
        let mut problems = Problems::default();
        self.namespaces.retain(|namespace, _| *namespace == self.home || namespaces.contains(namespace));
        for namespace in iter::once(&self.home).chain(namespaces.iter().filter(|name| **name != self.home)) {
            let local = (*namespace != self.home).then_some(namespace.as_str());
            let entries = self.namespaces.entry(namespace.clone()).or_default();
            Reading { maps, names: &self.names, namespace, problems: &mut problems }.local(entries, local);
        }
        Reading { maps, names: &self.names, namespace: &self.home, problems: &mut problems }
            .shared(&mut self.classes, &mut self.accelerators);
        (self.policy(&mut problems), problems.in_turn())
    }

    fn policy(&self, problems: &mut Problems) -> Policy {
        let none = NamespaceEntries::default();
        let home = self.namespaces.get(&self.home).unwrap_or(&none);
        let default = home.saturation.get(DEFAULT);
        let choice = default.map(|entry| entry.choice.clone()).unwrap_or_default();
        let global = self.layers(&self.home, home, home, Choice::default()).scope(problems);
        let mut policy = Policy { global, ..self.base.clone() };
        let mut rescale = BTreeMap::new();
        for (namespace, entries) in &self.namespaces {
            self.note_misplaced(namespace, entries, problems);
            if *namespace == self.home || entries.is_empty() {
                continue;
            }
            let scope = self.layers(namespace, entries, home, choice.clone()).scope(problems);
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

    /// What counts in one namespace: of each kind its own ConfigMap, or, where that says nothing, the one of `home`.
    fn layers<'a>(
        &'a self,
        namespace: &'a str,
        entries: &'a NamespaceEntries,
        home: &'a NamespaceEntries,
        choice: Choice,
    ) -> Layers<'a> {
        Layers {
            saturation: self.layer(Kind::Saturation, namespace, &entries.saturation, &home.saturation),
            zero: self.layer(Kind::ScaleToZero, namespace, &entries.zero, &home.zero),
            queueing: self.layer(Kind::QueueingModel, namespace, &entries.queueing, &home.queueing),
            choice,
            base: self.base.global.default.scale_to_zero.unwrap_or_default(),
            only: (*namespace != self.home).then_some(namespace),
        }
    }

    fn layer<'a, E>(
        &'a self,
        kind: Kind,
        namespace: &'a str,
        own: &'a LastGood<E>,
        home: &'a LastGood<E>,
    ) -> Layer<'a, E> {
        let (namespace, entries) = if own.is_empty() { (self.home.as_str(), home) } else { (namespace, own) };
        Layer { place: Place { namespace, config_map: name(&self.names, kind) }, entries }
    }

    /// Limits and `compat` are about all models together: nothing looks for them but in one entry.
    fn note_misplaced(&self, namespace: &str, entries: &NamespaceEntries, problems: &mut Problems) {
        let place = Place { namespace, config_map: name(&self.names, Kind::Saturation) };
        for (key, entry) in entries.saturation.iter() {
            let is_default = key == DEFAULT;
            let is_elsewhere = !(is_default && namespace == self.home);
            let has_limits =
                entry.limits.is_set() && is_elsewhere || entry.limits.rescale.is_some() && !is_default;
            let has_compat = entry.fields.compat.is_some() && is_elsewhere;
            let misplaced = [(has_limits, "limits have"), (has_compat, "compat has")];
            let notes = misplaced.into_iter().filter(|(is_misplaced, _)| *is_misplaced).map(|(_, what)| {
                format!("{what} no effect here, but in the entry default of namespace {}", self.home)
            });
            problems.notes(place, key, &Diagnostics { notes: notes.collect(), ..Diagnostics::default() });
        }
    }
}

impl NamespaceEntries {
    fn is_empty(&self) -> bool {
        self.saturation.is_empty() && self.zero.is_empty() && self.queueing.is_empty()
    }
}

/// The reading of one namespace's ConfigMaps.
struct Reading<'a> {
    maps: &'a Maps,
    names: &'a Names,
    namespace: &'a str,
    problems: &'a mut Problems,
}

impl Reading<'_> {
    fn local(mut self, entries: &mut NamespaceEntries, namespace: Option<&str>) {
        self.update(Kind::Saturation, &mut entries.saturation, |fields, key, diagnostics| {
            Some(SaturationEntry::new(fields, ModelKey { key, namespace }, diagnostics))
        });
        self.update(Kind::QueueingModel, &mut entries.queueing, |fields, key, diagnostics| {
            Some(QueueingEntry::new(fields, ModelKey { key, namespace }, diagnostics))
        });
        self.update(Kind::ScaleToZero, &mut entries.zero, |entry: ScaleToZeroEntry, key, diagnostics| {
            Some(entry.checked(key, diagnostics))
        });
    }

    fn shared(mut self, classes: &mut LastGood<ServiceClass>, accelerators: &mut LastGood<UnitCost>) {
        self.update(Kind::ServiceClasses, classes, |entry: ClassEntry, _, diagnostics| {
            Some(entry.class(diagnostics))
        });
        self.update(Kind::AcceleratorCosts, accelerators, |entry: AcceleratorEntry, _, diagnostics| {
            entry.unit_cost(diagnostics)
        });
    }

    fn update<F: DeserializeOwned + Default, E>(
        &mut self,
        kind: Kind,
        entries: &mut LastGood<E>,
        check: impl Fn(F, &str, &mut Diagnostics) -> Option<E>,
    ) {
        let place = Place { namespace: self.namespace, config_map: name(self.names, kind) };
        match self.maps.get(&(self.namespace.to_owned(), kind)) {
            Some(Err(cause)) => return self.problems.whole_map(place, cause),
            Some(Ok(texts)) => entries
                .update(texts, |key, text| read(text, |fields, diagnostics| check(fields, key, diagnostics))),
            None => *entries = LastGood::default(),
        }
        self.problems.texts(place, entries.diagnostics());
    }
}

/// What one text says; `None` when it is refused. What fields say together is checked when each alone is right.
fn read<F: DeserializeOwned + Default, E>(
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
    // Notes are for an entry that counts.
    diagnostics.notes.clear();
    (None, diagnostics)
}

fn name(names: &Names, kind: Kind) -> &str {
    names.get(&kind).map_or("", String::as_str)
}
