//! Watched objects → what an evaluation sees. Pure: one store a kind, and the joins over them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use kube::runtime::watcher::Event;
use smol_str::SmolStr;
use wva_core::model::{Variant, VariantId};
use wva_core::name_map::NameMap;
use wva_core::snapshot::{Phase, Pod, VariantState};

use super::claims::{claims, split_by_validity};
use super::convert::{ScaleTarget, stored_replicas};
use super::inventory::{NodeGpus, PodGpus, gpus_in_use, inventory, oldest_unlabelled};
use super::pods::WatchedPod;
use crate::cluster::objects::{ObjectKey, PodWithCost, VariantObject};
use crate::engine::{ClusterView, Endpoint};

/// An event of a watch, with the key and what is kept of the object; `None` for an object that is not kept.
pub(crate) type StoreEvent<V> = Event<(ObjectKey, Option<V>)>;

/// The watched objects of one kind.
#[derive(Debug)]
pub(crate) struct ObjectStore<V> {
    live: BTreeMap<ObjectKey, V>,
    staged: BTreeMap<ObjectKey, V>,
    listed: bool,
}

impl<V> Default for ObjectStore<V> {
    fn default() -> Self {
        Self { live: BTreeMap::new(), staged: BTreeMap::new(), listed: false }
    }
}

impl<V: PartialEq> ObjectStore<V> {
    /// Applies an event; true when something visible changed.
    pub(crate) fn apply(&mut self, event: StoreEvent<V>) -> bool {
        match event {
            Event::Init => {
                self.staged.clear();
                false
            }
            Event::InitApply((key, value)) => {
                self.staged.extend(value.map(|value| (key, value)));
                false
            }
            Event::InitDone => {
                let new = std::mem::take(&mut self.staged);
                let changed = !self.listed || new != self.live;
                self.live = new;
                self.listed = true;
                changed
            }
            Event::Apply((key, Some(value))) => {
                let changed = self.live.get(&key) != Some(&value);
                self.live.insert(key, value);
                changed
            }
            Event::Apply((key, None)) | Event::Delete((key, _)) => self.live.remove(&key).is_some(),
        }
    }

    /// True when the watch has listed once.
    pub(crate) fn has_listed(&self) -> bool {
        self.listed
    }

    /// Every object.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&ObjectKey, &V)> {
        self.live.iter()
    }

    fn get(&self, namespace: &str, name: &str) -> Option<&V> {
        self.live.get(&ObjectKey::new(namespace, name))
    }
}

/// A ReplicaSet that a Deployment manages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReplicaSetOwner {
    /// Uid of the ReplicaSet.
    pub(crate) uid: Box<str>,
    /// Uid of its Deployment.
    pub(crate) deployment: Box<str>,
}

/// Pods by the uid of their scale target.
type PodsByTarget<'a> = HashMap<&'a str, Vec<(&'a ObjectKey, &'a WatchedPod)>>;

/// Everything that is watched.
#[derive(Debug, Default)]
pub(crate) struct ClusterStore {
    pub(crate) variants: ObjectStore<Arc<VariantObject>>,
    pub(crate) deployments: ObjectStore<ScaleTarget>,
    pub(crate) replica_sets: ObjectStore<ReplicaSetOwner>,
    pub(crate) pods: ObjectStore<WatchedPod>,
    /// Empty unless a limit is what the nodes have.
    pub(crate) nodes: ObjectStore<NodeGpus>,
    /// Nothing is decided before the nodes are listed: without them the limit would be ignored.
    pub(crate) awaits_nodes: bool,
    /// The namespaces whose variants are ignored.
    pub(crate) excluded: ObjectStore<()>,
    /// Nothing waits for the namespaces: they could not be listed in time, or only one is watched.
    pub(crate) ignores_exclusions: bool,
}

/// The cluster at one moment.
#[derive(Debug, Clone, Default)]
pub struct ClusterState {
    /// For the engine.
    pub view: Arc<ClusterView>,
    /// The objects behind it, for the status writer.
    pub objects: BTreeMap<VariantId, Arc<VariantObject>>,
    /// The pods of variants; empty unless their deletion costs are written.
    pub pods: BTreeMap<VariantId, Vec<PodWithCost>>,
}

impl ClusterStore {
    /// Joins scale targets and pods to variants.
    pub(crate) fn state(&self) -> ClusterState {
        let excluded: BTreeSet<SmolStr> = self.excluded.iter().map(|(key, ())| (&*key.name).into()).collect();
        let objects: BTreeMap<_, _> = self
            .variants
            .iter()
            .filter(|(key, _)| !excluded.contains(&*key.namespace))
            .map(|(key, object)| (VariantId::new(&*key.namespace, &*key.name), object.clone()))
            .collect();
        let (variants, invalid) = split_by_validity(&objects);
        let (pods, other_pods) = self.pods_by_target(&variants);
        let mut with_cost = BTreeMap::new();
        let mut view = ClusterView {
            synced: self.has_synced(),
            claims: claims(&objects),
            invalid,
            excluded,
            ..ClusterView::default()
        };
        if self.nodes.listed {
            view.inventory = Some(inventory(self.nodes.live.values()));
            let nodes = || self.nodes.iter().map(|(key, gpus)| (&*key.name, gpus));
            view.elsewhere = gpus_in_use(nodes(), &other_pods);
            view.unlabelled = oldest_unlabelled(nodes());
        }
        for (variant, object) in variants {
            let target = self.deployments.get(&variant.id.namespace, &variant.target.name);
            let pods = target.and_then(|target| pods.get(&*target.uid)).map_or(&[][..], Vec::as_slice);
            view.endpoints.extend(pods.iter().filter_map(|(key, pod)| endpoint(key, pod)));
            let costs = deletion_costs(pods);
            if !costs.is_empty() {
                with_cost.insert(variant.id.clone(), costs);
            }
            view.variants.push(variant_state(variant, object, target, pods));
        }
        ClusterState { view: Arc::new(view), objects, pods: with_cost }
    }

    /// True when every watch has listed once.
    fn has_synced(&self) -> bool {
        let required =
            self.variants.listed && self.deployments.listed && self.replica_sets.listed && self.pods.listed;
        let nodes = !self.awaits_nodes || self.nodes.listed;
        required && nodes && (self.excluded.listed || self.ignores_exclusions)
    }

    /// The pods of the variants by the uid of their scale target, through the ReplicaSets between them; and the GPUs of all
    /// other pods.
    fn pods_by_target<'a>(
        &'a self,
        variants: &[(&Variant, &VariantObject)],
    ) -> (PodsByTarget<'a>, Vec<&'a PodGpus>) {
        let targets = variants
            .iter()
            .filter_map(|(variant, _)| self.deployments.get(&variant.id.namespace, &variant.target.name));
        let mut pods: PodsByTarget<'_> = targets.map(|target| (&*target.uid, Vec::new())).collect();
        let deployments: HashMap<&str, &str> = self
            .replica_sets
            .live
            .values()
            .filter(|set| pods.contains_key(&*set.deployment))
            .map(|set| (&*set.uid, &*set.deployment))
            .collect();
        let mut others = Vec::new();
        for (key, pod) in &self.pods.live {
            let target = pod.replica_set.as_deref().and_then(|uid| deployments.get(uid));
            match target.and_then(|target| pods.get_mut(target)) {
                Some(pods) => pods.push((key, pod)),
                None => others.extend(&pod.gpus),
            }
        }
        (pods, others)
    }
}

/// The pods whose deletion cost can be written; one that is terminating needs none.
fn deletion_costs(pods: &[(&ObjectKey, &WatchedPod)]) -> Vec<PodWithCost> {
    let staying = pods.iter().filter(|(_, pod)| pod.phase != Phase::Terminating);
    let with_cost = staying.filter_map(|(key, pod)| {
        Some(PodWithCost { name: (&*key.name).into(), stored: pod.deletion_cost.as_deref()?.clone() })
    });
    with_cost.collect()
}

fn variant_state(
    variant: &Variant,
    object: &VariantObject,
    target: Option<&ScaleTarget>,
    pods: &[(&ObjectKey, &WatchedPod)],
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
        pods: pods.iter().map(|(key, pod)| replica(key, pod)).collect(),
        last_status: alloc.and_then(|alloc| stored_replicas(alloc.num_replicas)),
        template: target.map(|target| target.template.clone()).unwrap_or_default(),
    }
}

fn replica(key: &ObjectKey, pod: &WatchedPod) -> Pod {
    Pod {
        name: (&*key.name).into(),
        phase: pod.phase,
        created: pod.created,
        ready_since: pod.ready_since,
        engines: NameMap::default(),
    }
}

/// Where the metrics of a Ready pod are. Other pods refuse connections, or answer before they serve.
fn endpoint(key: &ObjectKey, pod: &WatchedPod) -> Option<Endpoint> {
    let address = pod.address.as_ref().filter(|_| pod.phase == Phase::Ready)?;
    Some(Endpoint {
        namespace: key.namespace.to_string(),
        pod: key.name.to_string(),
        ip: address.ip,
        port: address.port,
        path: address.path.as_deref().map(str::to_owned),
    })
}

#[cfg(test)]
mod tests;
