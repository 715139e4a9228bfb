//! What was watched → what an evaluation sees. Pure: tables of watched objects, and the joins over them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use smol_str::SmolStr;
use wva_core::model::{Variant, VariantId};
use wva_core::name_map::NameMap;
use wva_core::snapshot::{Phase, Replica, VariantState};

use super::claims::{claims, valid};
use super::convert::{Target, stored_target};
use super::inventory::{Gpus, Used, in_use, inventory, unlabelled};
use super::pods::SeenPod;
use crate::cluster::objects::{Key, Mark, MarkedPod, VariantObject};
use crate::engine::{ClusterView, Endpoint};

/// One step of a watch, with what is kept of the object; `None` for an object of no interest.
#[derive(Debug)]
pub(crate) enum Step<V> {
    /// A new list begins.
    Init,
    /// An object of that list.
    Listed(Key, Option<V>),
    /// The list is complete: everything not in it is gone.
    Done,
    /// An object is new or has changed.
    Put(Key, Option<V>),
    /// An object is gone.
    Gone(Key),
}

/// The watched objects of one kind.
#[derive(Debug)]
pub(crate) struct Table<V> {
    live: BTreeMap<Key, V>,
    staged: BTreeMap<Key, V>,
    listed: bool,
}

impl<V> Default for Table<V> {
    fn default() -> Self {
        Self { live: BTreeMap::new(), staged: BTreeMap::new(), listed: false }
    }
}

impl<V: PartialEq> Table<V> {
    /// Takes a step; true when something visible changed.
    pub(crate) fn apply(&mut self, step: Step<V>) -> bool {
        match step {
            Step::Init => {
                self.staged.clear();
                false
            }
            Step::Listed(key, value) => {
                if let Some(value) = value {
                    self.staged.insert(key, value);
                }
                false
            }
            Step::Done => {
                let new = std::mem::take(&mut self.staged);
                let changed = !self.listed || new != self.live;
                self.live = new;
                self.listed = true;
                changed
            }
            Step::Put(key, Some(value)) => {
                let changed = self.live.get(&key) != Some(&value);
                self.live.insert(key, value);
                changed
            }
            Step::Put(key, None) | Step::Gone(key) => self.live.remove(&key).is_some(),
        }
    }

    /// True when the watch has listed once.
    pub(crate) fn has_listed(&self) -> bool {
        self.listed
    }

    /// Every object.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Key, &V)> {
        self.live.iter()
    }

    /// What is known of one object.
    fn get(&self, namespace: &str, name: &str) -> Option<&V> {
        self.live.get(&(namespace.into(), name.into()))
    }
}

/// A ReplicaSet that a Deployment manages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OwnedSet {
    pub(crate) uid: Box<str>,
    pub(crate) owner: Box<str>,
}

/// Pods by the uid of their target.
type Owned<'a> = HashMap<&'a str, Vec<(&'a Key, &'a SeenPod)>>;

/// Everything that is watched.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    pub(crate) variants: Table<Arc<VariantObject>>,
    pub(crate) deployments: Table<Target>,
    pub(crate) replica_sets: Table<OwnedSet>,
    pub(crate) pods: Table<SeenPod>,
    /// Only where a limit is what the nodes have.
    pub(crate) nodes: Table<Gpus>,
    /// Nothing is decided before these are listed: a limit that is not known yet is none.
    pub(crate) awaits_nodes: bool,
    /// The namespaces that are to be left alone.
    pub(crate) excluded: Table<()>,
    /// Nobody waits for these any more: what could not be read excludes nothing.
    pub(crate) none_excluded: bool,
}

/// What the cluster looks like at one moment.
#[derive(Debug, Clone, Default)]
pub struct Observed {
    /// For the engine.
    pub view: Arc<ClusterView>,
    /// The objects behind it, for the status writer.
    pub objects: BTreeMap<VariantId, Arc<VariantObject>>,
    /// The pods of variants, where somebody writes to them.
    pub pods: BTreeMap<VariantId, Vec<MarkedPod>>,
}

impl Tables {
    /// Joins targets and pods to variants.
    pub(crate) fn observed(&self) -> Observed {
        let excluded: BTreeSet<SmolStr> =
            self.excluded.iter().map(|((_, name), ())| (&**name).into()).collect();
        let objects: BTreeMap<_, _> = self
            .variants
            .iter()
            .filter(|((namespace, _), _)| !excluded.contains(&**namespace))
            .map(|((namespace, name), object)| (VariantId::new(&**namespace, &**name), object.clone()))
            .collect();
        let (variants, invalid) = valid(&objects);
        let (pods, strangers) = self.pods_by_target(&variants);
        let mut marked = BTreeMap::new();
        let mut view = ClusterView {
            synced: self.synced(),
            claims: claims(&objects),
            invalid,
            excluded,
            ..ClusterView::default()
        };
        if self.nodes.listed {
            view.inventory = Some(inventory(self.nodes.live.values()));
            let nodes = || self.nodes.iter().map(|((_, name), gpus)| (&**name, gpus));
            view.elsewhere = in_use(nodes(), &strangers);
            view.unlabelled = unlabelled(nodes());
        }
        for (variant, object) in variants {
            let target = self.deployments.get(&variant.id.namespace, &variant.target.name);
            let owned = target.and_then(|target| pods.get(&*target.uid)).map_or(&[][..], Vec::as_slice);
            view.endpoints.extend(owned.iter().filter_map(|(key, pod)| endpoint(key, pod)));
            marked.extend(marked_pods(&variant.id, owned));
            view.variants.push(state(variant, object, target, owned));
        }
        Observed { view: Arc::new(view), objects, pods: marked }
    }

    /// True when every watch has listed once.
    fn synced(&self) -> bool {
        let all =
            self.variants.listed && self.deployments.listed && self.replica_sets.listed && self.pods.listed;
        let nodes = !self.awaits_nodes || self.nodes.listed;
        all && nodes && (self.excluded.listed || self.none_excluded)
    }

    /// The pods of the variants' targets by the target's uid, through the ReplicaSets between them; and the GPUs of all
    /// other pods.
    fn pods_by_target<'a>(&'a self, variants: &[(&Variant, &VariantObject)]) -> (Owned<'a>, Vec<&'a Used>) {
        let targets = variants
            .iter()
            .filter_map(|(variant, _)| self.deployments.get(&variant.id.namespace, &variant.target.name));
        let mut pods: HashMap<&str, Vec<_>> = targets.map(|target| (&*target.uid, Vec::new())).collect();
        let sets: HashMap<&str, &str> = self
            .replica_sets
            .live
            .values()
            .filter(|set| pods.contains_key(&*set.owner))
            .map(|set| (&*set.uid, &*set.owner))
            .collect();
        let mut strangers = Vec::new();
        for (key, pod) in &self.pods.live {
            let target = pod.owner.as_deref().and_then(|owner| sets.get(owner));
            match target.and_then(|target| pods.get_mut(target)) {
                Some(owned) => owned.push((key, pod)),
                None => strangers.extend(&pod.used),
            }
        }
        (pods, strangers)
    }
}

/// Those of a variant's pods whose annotation is written; one that is on its way out has been chosen.
fn marked_pods(id: &VariantId, pods: &[(&Key, &SeenPod)]) -> Option<(VariantId, Vec<MarkedPod>)> {
    let staying = pods.iter().filter(|(_, pod)| pod.phase != Phase::Terminating);
    let marked = staying.filter_map(|(key, pod)| {
        let mark = Mark::clone(pod.mark.as_ref()?);
        Some(MarkedPod { pod: (&*key.1).into(), mark })
    });
    let marked: Vec<_> = marked.collect();
    (!marked.is_empty()).then(|| (id.clone(), marked))
}

fn state(
    variant: &Variant,
    object: &VariantObject,
    target: Option<&Target>,
    pods: &[(&Key, &SeenPod)],
) -> VariantState {
    let mut variant = variant.clone();
    if let Some(target) = target {
        variant.role = target.role;
        variant.accelerator = target.accelerator.as_deref().map(SmolStr::from).or(variant.accelerator);
    }
    let alloc = object.status.as_ref().and_then(|status| status.desired_optimized_alloc.as_ref());
    VariantState {
        variant,
        scale: target.map(|target| target.scale),
        replicas: pods.iter().map(|(key, pod)| replica(key, pod)).collect(),
        last_status: alloc.and_then(|alloc| stored_target(alloc.num_replicas)),
        template: target.map(|target| target.template.clone()).unwrap_or_default(),
    }
}

fn replica(key: &Key, pod: &SeenPod) -> Replica {
    Replica {
        pod: (&*key.1).into(),
        phase: pod.phase,
        created: pod.created,
        ready_since: pod.ready_since,
        engines: NameMap::default(),
    }
}

/// Where a pod's metrics are. Only of ready pods: the others refuse connections or answer before they serve.
fn endpoint((namespace, name): &Key, pod: &SeenPod) -> Option<Endpoint> {
    let (ip, port) = pod.address.filter(|_| pod.phase == Phase::Ready)?;
    Some(Endpoint { namespace: namespace.to_string(), pod: name.to_string(), ip, port })
}

#[cfg(test)]
mod tests;
