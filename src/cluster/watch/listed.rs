//! The state of a cluster whose objects were listed once, made as by the watches: for commands that look once.

use kube::core::Resource;
use kube::core::error_boundary::InvalidObject;
use kube::runtime::watcher::Event;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::Instant;

use super::annotated::{WatchedAutoscaler, watched_autoscaler};
use super::cluster_watch::{is_excluded, variant_object};
use super::devices::{claimed_gpus, slice_gpus};
use super::inventory::NodeGpus;
use super::kind_store::{ObjectStore, StoreEvent};
use super::object_store::{ClusterState, ClusterStore};
use super::optional_objects::OptionalObjects;
use super::partial_objects::{ParseGuard, PartialNode, PartialTarget};
use super::scale_target::ScaleTarget;
use crate::cluster::crd::VariantAutoscaling;
use crate::cluster::objects::{ObjectKey, VariantKind};
use k8s_openapi::api::core::v1::Namespace;

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
}

/// Objects that were listed once.
#[derive(Debug, Default)]
pub(crate) struct ListedCluster(ClusterStore);

impl ListedCluster {
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
                add_autoscalers(&mut store.hpas, VariantKind::HorizontalPodAutoscaler, objects);
            }
            ListedKind::ScaledObject => {
                add_autoscalers(&mut store.scaled_objects, VariantKind::ScaledObject, objects);
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
        }
    }

    /// What an evaluation would see, without pods.
    pub(crate) fn state(&self) -> ClusterState {
        self.0.state()
    }
}

fn add_autoscalers(store: &mut OptionalObjects<WatchedAutoscaler>, kind: VariantKind, objects: &[Value]) {
    for event in events(objects, |object| watched_autoscaler(kind, false, object)) {
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
