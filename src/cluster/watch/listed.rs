//! The state of a cluster whose objects were listed once, made as by the watches: for commands that look once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Namespace;
use kube::core::Resource;
use kube::core::error_boundary::InvalidObject;
use kube::runtime::watcher::Event;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::Instant;
use wva_core::model::VariantId;
use wva_core::snapshot::VariantState;
use wva_core::units::Replicas;

use super::annotated::{called_object, watched_autoscaler};
use super::called_trigger::ScalerService;
use super::cluster_watch::{is_excluded, variant_object};
use super::devices::{claimed_gpus, slice_gpus};
use super::inference_pool::{PoolJoin, WatchedPool, service_selector, watched_pool};
use super::inventory::{NodeGpus, NodeIndex};
use super::kind_store::{ObjectStore, StoreEvent};
use super::labels::SelectorIndex;
use super::node_room::{NodeRoom, NodeRooms};
use super::object_store::{ClusterState, ClusterStore};
use super::optional_objects::OptionalObjects;
use super::partial_objects::{ParseGuard, PartialNode, PartialTarget};
use super::scale_target::ScaleTarget;
use crate::cluster::crd::VariantAutoscaling;
use crate::cluster::objects::{ObjectKey, VariantKind};

/// The kinds of objects that make the state of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ListedKind {
    VariantAutoscaling,
    HorizontalPodAutoscaler,
    ScaledObject,
    Deployment,
    StatefulSet,
    LeaderWorkerSet,
    Namespace,
    Node,
    ResourceSlice,
    ResourceClaimTemplate,
    /// Of the group `inference.networking.k8s.io`.
    InferencePool,
    /// Of the group `inference.networking.x-k8s.io`.
    EarlierInferencePool,
    Service,
}

/// An InferencePool that has variants.
#[derive(Debug)]
pub(crate) struct ListedPool {
    pub(crate) key: ObjectKey,
    pub(crate) variants: BTreeSet<VariantId>,
    /// Why its endpoint picker says nothing, as far as that is seen without its pods.
    pub(crate) problem: Option<PickerProblem>,
}

/// Why an endpoint picker says nothing.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PickerProblem {
    /// The pool names no Service.
    Unnamed,
    /// The Service of this name does not exist, or selects nothing.
    NoService(Box<str>),
    /// The Service of this name selects the pods of no Deployment or StatefulSet; another kind of workload may have them.
    NoWorkload(Box<str>),
    /// No Deployment or StatefulSet whose pods the Service of this name selects has a Ready one.
    NotReady(Box<str>),
}

/// Objects that were listed once.
#[derive(Debug)]
pub(crate) struct ListedCluster(ClusterStore);

impl ListedCluster {
    /// No objects yet. Which variants HPAs read with targets of the type `Value` only is found if `finds_value_targets`.
    pub(crate) fn new(finds_value_targets: bool) -> Self {
        Self(ClusterStore { finds_value_targets, ..ClusterStore::default() })
    }

    /// Adds a complete list of objects of a kind. One that cannot be parsed counts as it does for a watch.
    pub(crate) fn add(&mut self, kind: ListedKind, objects: &[Value]) {
        let store = &mut self.0;
        match kind {
            ListedKind::VariantAutoscaling => {
                for event in events(objects, |object: Result<VariantAutoscaling, _>| variant_object(object)) {
                    store.variants.apply(event);
                }
            }
            ListedKind::HorizontalPodAutoscaler => {
                let with_reads = store.finds_value_targets;
                for event in events(objects, |object| {
                    watched_autoscaler(VariantKind::HorizontalPodAutoscaler, with_reads, object)
                }) {
                    store.hpas.apply(Ok(event));
                }
            }
            ListedKind::ScaledObject => {
                for event in
                    events(objects, |object| watched_autoscaler(VariantKind::ScaledObject, false, object))
                {
                    store.scaled_objects.apply(Ok(event));
                }
            }
            ListedKind::Deployment => apply_all(&mut store.deployments, targets(objects)),
            ListedKind::StatefulSet => {
                for event in targets(objects) {
                    store.stateful_sets.apply(Ok(event), Instant::now());
                }
            }
            ListedKind::LeaderWorkerSet => {
                for event in targets(objects) {
                    store.leader_worker_sets.apply(Ok(event), Instant::now());
                }
            }
            ListedKind::Namespace => {
                let convert = |namespace: Result<Namespace, InvalidObject>| {
                    namespace.ok().filter(|namespace| is_excluded(&namespace.metadata)).map(|_| ())
                };
                apply_all(&mut store.excluded, events(objects, convert));
            }
            ListedKind::Node => {
                let convert = |node: Result<PartialNode, InvalidObject>| NodeGpus::from_node(&node.ok()?);
                apply_all(&mut store.nodes, events(objects, convert));
            }
            ListedKind::ResourceSlice => {
                for event in events(objects, slice_gpus) {
                    store.slices.apply(Ok(event));
                }
            }
            ListedKind::ResourceClaimTemplate => {
                for event in events(objects, claimed_gpus) {
                    store.claim_templates.apply(Ok(event));
                }
            }
            ListedKind::InferencePool => add_pools(&mut store.pools, objects),
            ListedKind::EarlierInferencePool => add_pools(&mut store.x_pools, objects),
            ListedKind::Service => {
                for event in events(objects, service_selector) {
                    store.services.apply(Ok(event));
                }
            }
        }
    }

    /// Adds what ScaledObjects would be once KEDA calls `service` for them.
    pub(crate) fn add_called(&mut self, objects: &[Value], service: &ScalerService) {
        let events = events(objects, |object| called_object(object, Some(service)).ok());
        let made: BTreeMap<_, _> = events
            .into_iter()
            .filter_map(|event| match event {
                Event::InitApply((key, Some(object))) => Some((key, Arc::new(object))),
                _ => None,
            })
            .collect();
        self.0.called.follow(&made.keys().cloned().collect());
        for (key, object) in made {
            self.0.called.apply(&key, Ok(object));
        }
    }

    /// What an evaluation would see, without pods.
    pub(crate) fn state(&self) -> ClusterState {
        self.0.state()
    }

    /// The InferencePools that select pods of the templates of variants in `state`, which is that of these objects.
    pub(crate) fn pools(&self, state: &ClusterState) -> Vec<ListedPool> {
        let store = &self.0;
        let mut join = PoolJoin::new([&store.pools.objects, &store.x_pools.objects]);
        for VariantState { variant, .. } in &state.view.variants {
            join.add(&variant.id, store.target(variant).ok().flatten(), &[]);
        }
        let listed = |(key, pool, variants): (&ObjectKey, &WatchedPool, _)| ListedPool {
            key: key.clone(),
            variants,
            problem: self.picker_problem(&key.namespace, pool),
        };
        join.with_variants().map(listed).collect()
    }

    /// The room of the nodes for the replicas of each variant in `state`, which is that of these objects. Empty where no GPUs of nodes
    /// are known.
    pub(crate) fn node_rooms(&self, state: &ClusterState) -> BTreeMap<VariantId, NodeRoom> {
        let store = &self.0;
        let nodes = NodeIndex::new(&store.nodes, &store.slices.objects, &store.claim_templates.objects);
        let mut rooms = NodeRooms::new(&nodes);
        let room = |VariantState { variant, template, .. }: &VariantState| {
            let (accelerator, gpus) = (variant.accelerator.as_deref()?, template.gpus?);
            let target = store.target(variant).ok().flatten()?;
            Some((variant.id.clone(), rooms.of(accelerator, target, gpus)))
        };
        if state.view.inventory.as_ref().is_none_or(BTreeMap::is_empty) {
            return BTreeMap::new();
        }
        state.view.variants.iter().filter_map(room).collect()
    }

    fn picker_problem(&self, namespace: &str, pool: &WatchedPool) -> Option<PickerProblem> {
        let Some(picker) = &pool.picker else { return Some(PickerProblem::Unnamed) };
        let Some(selector) = self.0.services.objects.get(namespace, picker) else {
            return Some(PickerProblem::NoService(picker.clone()));
        };
        let mut selecting = SelectorIndex::default();
        selecting.add(selector, ());
        let sets = self.0.stateful_sets.known("StatefulSet").ok();
        let workloads = [Some(&self.0.deployments), sets].into_iter().flatten();
        let workloads = workloads.flat_map(|workloads| workloads.of_namespace(namespace));
        let is_selected = |workload: &&ScaleTarget| {
            let labels = workload.labels.as_ref();
            labels.is_some_and(|labels| selecting.selecting(labels).next().is_some())
        };
        let selected = workloads.map(|(_, workload)| workload).filter(is_selected);
        match selected.map(|workload| workload.scale.ready).max() {
            None => Some(PickerProblem::NoWorkload(picker.clone())),
            Some(Replicas::ZERO) => Some(PickerProblem::NotReady(picker.clone())),
            Some(_) => None,
        }
    }
}

fn add_pools(store: &mut OptionalObjects<WatchedPool>, objects: &[Value]) {
    for event in events(objects, watched_pool) {
        store.apply(Ok(event));
    }
}

fn apply_all<V: PartialEq>(store: &mut ObjectStore<V>, events: Vec<StoreEvent<V>>) {
    for event in events {
        store.apply(event);
    }
}

fn targets(objects: &[Value]) -> Vec<StoreEvent<ScaleTarget>> {
    events(objects, |target: Result<PartialTarget, InvalidObject>| Some(ScaleTarget::from(&target.ok()?)))
}

/// The events of a watch that lists these objects.
fn events<K: Resource + DeserializeOwned, V>(
    objects: &[Value],
    convert: impl Fn(Result<K, InvalidObject>) -> Option<V>,
) -> Vec<StoreEvent<V>> {
    let applied = objects.iter().filter_map(|object| {
        let ParseGuard(parsed) = serde_json::from_str::<ParseGuard<K>>(&object.to_string()).ok()?;
        let metadata = parsed.as_ref().map_or_else(|invalid| &invalid.metadata, Resource::meta);
        let key = ObjectKey::of(metadata);
        Some(Event::InitApply((key, convert(parsed))))
    });
    [Event::Init].into_iter().chain(applied).chain([Event::InitDone]).collect()
}
