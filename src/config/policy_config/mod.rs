//! ConfigMaps → the core's policy. Pure: texts in, a policy and what is wrong with the texts out. Nothing an author writes
//! stops this: an entry that is wrong does not count, and its last right text goes on counting.

mod analyzers;
mod changes;
mod classes;
mod fields;
mod last_good;
mod limits;
mod model_key;
mod node;
mod problem;
mod queueing;
mod rate;
mod saturation;
mod scope;
mod zero;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::iter;
use std::sync::Arc;

use smol_str::SmolStr;
use wva_core::Policy;
use wva_core::model::{ServiceClass, UnitCost};

use analyzers::Choice;
use fields::{Fields, Said};
use last_good::{DEFAULT, LastGood, parse};
use limits::Limits;
use model_key::ModelKey;
use problem::At;
use scope::{Layer, Layers};

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

/// What the ConfigMaps say now, with what they said when they were last right.
pub struct PolicyLoader {
    /// What counts where no ConfigMap says anything.
    base: Policy,
    names: Names,
    /// The namespace whose ConfigMaps count for all others.
    home: String,
    rooms: BTreeMap<String, Room>,
    classes: LastGood<ServiceClass>,
    accelerators: LastGood<UnitCost>,
}

/// The ConfigMaps of one namespace.
#[derive(Default)]
struct Room {
    saturation: LastGood<saturation::Entry>,
    zero: LastGood<zero::Entry>,
    queueing: LastGood<queueing::Entry>,
}

impl PolicyLoader {
    /// Nothing is known yet. `base` is what the command line says, `home` the release's namespace.
    #[must_use]
    pub fn new(base: Policy, names: Names, home: String) -> Self {
        let (classes, accelerators) = (LastGood::default(), LastGood::default());
        Self { base, names, home, rooms: BTreeMap::new(), classes, accelerators }
    }

    /// The policy as the ConfigMaps are now, for variants in `namespaces`.
    pub fn take(&mut self, maps: &Maps, namespaces: &BTreeSet<String>) -> (Policy, Problems) {
        let mut problems = Problems::default();
        self.rooms.retain(|namespace, _| *namespace == self.home || namespaces.contains(namespace));
        for namespace in iter::once(&self.home).chain(namespaces.iter().filter(|one| **one != self.home)) {
            let local = (*namespace != self.home).then_some(namespace.as_str());
            let room = self.rooms.entry(namespace.clone()).or_default();
            let read = Reading { maps, names: &self.names, namespace, problems: &mut problems };
            read.room(room, local);
        }
        let home = Reading { maps, names: &self.names, namespace: &self.home, problems: &mut problems };
        home.shared(&mut self.classes, &mut self.accelerators);
        (self.policy(&mut problems), problems.in_turn())
    }

    fn policy(&self, problems: &mut Problems) -> Policy {
        let none = Room::default();
        let home = self.rooms.get(&self.home).unwrap_or(&none);
        let default = home.saturation.get(DEFAULT);
        let choice = default.map(|entry| entry.choice.clone()).unwrap_or_default();
        let global = self.layers(&self.home, home, home, Choice::default()).scope(problems);
        let mut policy = Policy { global, ..self.base.clone() };
        let mut rescale = BTreeMap::new();
        for (namespace, room) in &self.rooms {
            self.misplaced(namespace, room, problems);
            if *namespace == self.home || room.is_empty() {
                continue;
            }
            let scope = self.layers(namespace, room, home, choice.clone()).scope(problems);
            policy.namespaces.insert(namespace.into(), scope);
            let own = room.saturation.get(DEFAULT).and_then(|entry| entry.limits.rescale);
            rescale.extend(own.map(|own| (SmolStr::from(namespace), own)));
        }
        let nothing = Limits::default();
        policy.limits = default.map_or(&nothing, |entry| &entry.limits).policy(rescale);
        policy.compat = default.and_then(|entry| entry.compat).unwrap_or(policy.compat);
        policy.service_classes = self.classes.all().map(|(_, class)| class.clone()).collect();
        let costs = self.accelerators.all().map(|(name, cost)| (SmolStr::from(name), cost.clone()));
        policy.accelerators = costs.collect();
        policy
    }

    /// What counts in one namespace: of each kind its own ConfigMap, or, where that says nothing, the one of `home`.
    fn layers<'a>(
        &'a self,
        namespace: &'a str,
        room: &'a Room,
        home: &'a Room,
        choice: Choice,
    ) -> Layers<'a> {
        let (queueing, saturation) = (&room.queueing, &room.saturation);
        let base = self.base.global.default.scale_to_zero.unwrap_or_default();
        Layers {
            saturation: self.layer(Kind::Saturation, namespace, saturation, &home.saturation),
            zero: self.layer(Kind::ScaleToZero, namespace, &room.zero, &home.zero),
            queueing: self.layer(Kind::QueueingModel, namespace, queueing, &home.queueing),
            choice,
            base,
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
        let (namespace, kept) = if own.is_empty() { (self.home.as_str(), home) } else { (namespace, own) };
        Layer { at: At { namespace, config_map: name(&self.names, kind) }, kept }
    }

    /// Limits and `compat` are of all models together: nobody looks for them but in one entry.
    fn misplaced(&self, namespace: &str, room: &Room, problems: &mut Problems) {
        let at = At { namespace, config_map: name(&self.names, Kind::Saturation) };
        for (key, entry) in room.saturation.all() {
            let is_default = key == DEFAULT;
            let elsewhere = !(is_default && namespace == self.home);
            let limits = entry.limits.is_set() && elsewhere || entry.limits.rescale.is_some() && !is_default;
            let compat = entry.compat.is_some() && elsewhere;
            let set = [(limits, "limits have"), (compat, "compat has")].into_iter().filter(|(set, _)| *set);
            let note = |(_, what)| {
                format!("{what} no effect here, but in the entry default of namespace {}", self.home)
            };
            let notes: Vec<String> = set.map(note).collect();
            if !notes.is_empty() {
                problems.notes(at, key, &Said { notes, ..Said::default() });
            }
        }
    }
}

impl Room {
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
    fn room(mut self, room: &mut Room, local: Option<&str>) {
        self.read(Kind::Saturation, &mut room.saturation, |fields, key| {
            Some(saturation::Entry::read(fields, ModelKey { key, namespace: local }))
        });
        self.read(Kind::QueueingModel, &mut room.queueing, |fields, key| {
            Some(queueing::Entry::read(fields, ModelKey { key, namespace: local }))
        });
        self.read(Kind::ScaleToZero, &mut room.zero, |fields, key| Some(zero::Entry::read(fields, key)));
    }

    fn shared(mut self, classes: &mut LastGood<ServiceClass>, accelerators: &mut LastGood<UnitCost>) {
        self.read(Kind::ServiceClasses, classes, |fields, _| Some(classes::class(fields)));
        self.read(Kind::AcceleratorCosts, accelerators, |fields, _| classes::accelerator(fields));
    }

    fn read<E>(
        &mut self,
        kind: Kind,
        kept: &mut LastGood<E>,
        read: impl Fn(&mut Fields<'_>, &str) -> Option<E>,
    ) {
        let at = At { namespace: self.namespace, config_map: name(self.names, kind) };
        match self.maps.get(&(self.namespace.to_owned(), kind)) {
            Some(Err(why)) => return self.problems.whole_map(at, why),
            Some(Ok(entries)) => kept.take(entries, |key, text| parse(text, |fields| read(fields, key))),
            None => *kept = LastGood::default(),
        }
        self.problems.texts(at, kept.said());
    }
}

fn name(names: &Names, kind: Kind) -> &str {
    names.get(&kind).map_or("", String::as_str)
}
