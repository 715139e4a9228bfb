//! The GPUs that a cluster has, of the nodes that take pods, by the accelerator's name; and which of them pods use. Pods
//! are watched for their variants' sake anyway, so that those of others cost a few bytes each.

use std::collections::{BTreeMap, HashMap};

use jiff::Timestamp;
use smol_str::SmolStr;

use super::accelerator::short;
use super::partial_objects::{LeanContainer, LeanNode, LeanPod};
use super::template::{GPU_RESOURCES, asked, gpus};
use crate::cluster::objects::ACCELERATOR_KEYS;
use crate::engine::UnlabelledNode;

/// The GPUs of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Gpus {
    /// `None` where the node does not name them.
    pub(crate) name: Option<SmolStr>,
    pub(crate) count: u32,
    /// When the node joined the cluster.
    pub(crate) joined: Timestamp,
}

impl Gpus {
    /// `None` for a node without GPUs, or that takes no pods now.
    pub(crate) fn of(node: &LeanNode) -> Option<Self> {
        let ready = node.status.conditions.iter().any(|one| one.type_ == "Ready" && one.status == "True");
        if !ready || node.spec.unschedulable {
            return None;
        }
        let label = |key: &&str| node.metadata.labels.as_ref()?.get(*key).filter(|name| !name.is_empty());
        let name = ACCELERATOR_KEYS.iter().find_map(label).map(|name| short(name).into());
        let count = GPU_RESOURCES.iter().map(|resource| gpus(&node.status.allocatable, resource));
        let count = count.fold(0, u32::saturating_add);
        let joined = node.metadata.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0);
        (count > 0).then_some(Self { name, count, joined })
    }
}

/// The GPUs that a pod takes of its node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Used {
    pub(crate) node: SmolStr,
    pub(crate) count: u32,
}

impl Used {
    /// `None` for a pod without GPUs, or that is on no node yet. A container that starts before the others has given its
    /// GPUs back to them.
    pub(crate) fn of(pod: &LeanPod) -> Option<Self> {
        let node = pod.spec.node_name.as_deref()?;
        let gpus = |container: &LeanContainer| asked(&container.resources);
        let serving = pod.spec.containers.iter().map(gpus).fold(0, u32::saturating_add);
        let count = pod.spec.init_containers.iter().map(gpus).fold(serving, u32::max);
        (count > 0).then(|| Self { node: node.into(), count })
    }
}

/// What `pods` use of these nodes, by the accelerator's name.
pub(crate) fn in_use<'a>(
    nodes: impl Iterator<Item = (&'a str, &'a Gpus)>,
    pods: &[&Used],
) -> BTreeMap<SmolStr, u32> {
    let nodes: HashMap<&str, &Gpus> = nodes.collect();
    let known = pods.iter().filter_map(|used| {
        let Gpus { name, joined, .. } = nodes.get(used.node.as_str())?;
        Some(Gpus { name: Some(name.clone()?), count: used.count, joined: *joined })
    });
    inventory(&known.collect::<Vec<_>>())
}

/// All nodes together.
pub(crate) fn inventory<'a>(nodes: impl IntoIterator<Item = &'a Gpus>) -> BTreeMap<SmolStr, u32> {
    let mut inventory: BTreeMap<SmolStr, u32> = BTreeMap::new();
    for Gpus { name, count, .. } in nodes {
        let Some(name) = name else { continue };
        let sum = inventory.entry(name.clone()).or_default();
        *sum = sum.saturating_add(*count);
    }
    inventory
}

/// Of these nodes the one that has been there for longest of those that do not name their GPUs.
pub(crate) fn unlabelled<'a>(nodes: impl Iterator<Item = (&'a str, &'a Gpus)>) -> Option<UnlabelledNode> {
    let unlabelled = nodes.filter(|(_, gpus)| gpus.name.is_none());
    let oldest = unlabelled.min_by_key(|(node, gpus)| (gpus.joined, *node));
    oldest.map(|(node, gpus)| UnlabelledNode { name: node.into(), joined: gpus.joined })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn node(label: Value, spec: Value, ready: &str, allocatable: Value) -> Option<Gpus> {
        let conditions =
            json!([{ "type": "MemoryPressure", "status": "False" }, { "type": "Ready", "status": ready }]);
        let status =
            json!({ "allocatable": allocatable, "conditions": conditions, "images": [{ "names": ["x"] }] });
        let metadata = json!({ "name": "n", "labels": label, "managedFields": [] });
        let node = json!({ "metadata": metadata, "spec": spec, "status": status });
        Gpus::of(&serde_json::from_value::<LeanNode>(node).unwrap())
    }

    #[test]
    fn gpus_of_nodes_that_take_pods_are_counted_by_their_short_name() {
        let h100 = json!({ "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3" });
        let gke = json!({ "cloud.google.com/gke-accelerator": "nvidia-h100-80gb" });
        let amd = json!({ "amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM" });
        let eight = json!({ "nvidia.com/gpu": "8", "cpu": "64", "memory": "1Ti" });
        let nodes = [
            node(h100.clone(), json!({}), "True", eight.clone()),
            node(gke, json!({ "unschedulable": false }), "True", json!({ "nvidia.com/gpu": 2 })),
            node(amd, json!({}), "True", json!({ "amd.com/gpu": "4" })),
            node(h100.clone(), json!({ "unschedulable": true }), "True", eight.clone()),
            node(h100.clone(), json!({}), "Unknown", eight.clone()),
            node(json!({}), json!({}), "True", eight.clone()),
            node(h100.clone(), json!({}), "True", json!({ "nvidia.com/gpu": "0" })),
            node(h100, json!({}), "True", json!({ "nvidia.com/gpu": "many" })),
        ];
        let known: Vec<_> = nodes.into_iter().flatten().collect();
        assert_eq!(inventory(&known), BTreeMap::from([("H100".into(), 10), ("MI300X".into(), 4)]));
        assert_eq!(known.iter().filter(|gpus| gpus.name.is_none()).count(), 1);
    }

    #[test]
    fn a_node_that_does_not_name_its_gpus_was_once_left_out_without_a_word() {
        let eight = json!({ "nvidia.com/gpu": "8" });
        let named = json!({ "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3" });
        let nodes = [
            ("gpu-9", node(json!({}), json!({}), "True", eight.clone())),
            ("gpu-7", node(json!({ "nvidia.com/gpu.product": "" }), json!({}), "True", eight.clone())),
            ("gpu-1", node(named, json!({}), "True", eight.clone())),
            ("cpu-1", node(json!({}), json!({}), "True", json!({ "cpu": "64" }))),
            ("gpu-2", node(json!({}), json!({ "unschedulable": true }), "True", eight.clone())),
            ("gpu-3", node(json!({}), json!({}), "Unknown", eight)),
        ];
        let known = |names: &[&str]| {
            let nodes = nodes.iter().filter(|(name, _)| names.contains(name));
            unlabelled(nodes.filter_map(|(name, gpus)| Some((*name, gpus.as_ref()?))))
        };
        assert_eq!(known(&["gpu-9", "gpu-7", "gpu-1"]).unwrap().name, "gpu-7");
        assert_eq!(known(&["gpu-1", "cpu-1", "gpu-2", "gpu-3"]), None, "no GPUs, or no pods now");
    }

    #[test]
    fn a_pod_uses_what_its_containers_ask_for_together_or_what_one_before_them_did() {
        let used =
            |spec: Value| Used::of(&serde_json::from_value(json!({ "metadata": {}, "spec": spec })).unwrap());
        let asks = |gpus: u32| json!({ "resources": { "limits": { "nvidia.com/gpu": gpus.to_string(), "cpu": "2" } } });
        let on_node = |count| Some(Used { node: "n".into(), count });
        assert_eq!(used(json!({ "nodeName": "n", "containers": [asks(2), asks(1), {}] })), on_node(3));
        let (before, serving) = (json!([asks(4), asks(1)]), json!([asks(1)]));
        assert_eq!(
            used(json!({ "nodeName": "n", "initContainers": before, "containers": serving })),
            on_node(4)
        );
        assert_eq!(used(json!({ "containers": serving })), None, "it waits for a node");
        assert_eq!(used(json!({ "nodeName": "n", "containers": [{}] })), None);
    }

    #[test]
    fn what_pods_use_counts_on_nodes_that_count() {
        let gpus = Gpus { name: Some("H100".into()), count: 8, joined: Timestamp::UNIX_EPOCH };
        let used = |node: &str, count| Used { node: node.into(), count };
        let pods = [used("a", 2), used("b", 1), used("cordoned", 8)];
        let nodes = [("a", &gpus), ("b", &gpus)];
        let in_use = in_use(nodes.into_iter(), &pods.iter().collect::<Vec<_>>());
        assert_eq!(in_use, BTreeMap::from([("H100".into(), 3)]));
    }
}
