//! GPUs of the nodes that accept pods, by the accelerator's name, and how many of them pods use. The pods are watched for
//! their variants anyway; what is kept of all others is a few bytes each.

use std::collections::{BTreeMap, HashMap};

use jiff::Timestamp;
use smol_str::SmolStr;

use super::accelerator::short_name;
use super::partial_objects::{PartialContainer, PartialNode, PartialPod};
use super::template::{GPU_RESOURCES, gpu_count, requested_gpus};
use crate::cluster::objects::ACCELERATOR_KEYS;
use crate::engine::UnlabelledNode;

/// The GPUs of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodeGpus {
    /// The accelerator's name; `None` where no label of the node has it.
    pub(crate) accelerator: Option<SmolStr>,
    pub(crate) count: u32,
    /// When the node joined the cluster.
    pub(crate) joined: Timestamp,
}

impl NodeGpus {
    /// `None` for a node that has no GPUs, is not ready or is cordoned.
    pub(crate) fn from_node(node: &PartialNode) -> Option<Self> {
        let is_ready = node
            .status
            .conditions
            .iter()
            .any(|condition| condition.type_ == "Ready" && condition.status == "True");
        if !is_ready || node.spec.unschedulable {
            return None;
        }
        let label = |key: &&str| node.metadata.labels.as_ref()?.get(*key).filter(|name| !name.is_empty());
        let accelerator = ACCELERATOR_KEYS.iter().find_map(label).map(|name| short_name(name).into());
        let counts = GPU_RESOURCES.iter().map(|resource| gpu_count(&node.status.allocatable, resource));
        let count = counts.fold(0, u32::saturating_add);
        let joined = node.metadata.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0);
        (count > 0).then_some(Self { accelerator, count, joined })
    }
}

/// The GPUs that a pod uses on its node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PodGpus {
    pub(crate) node: SmolStr,
    pub(crate) count: u32,
}

impl PodGpus {
    /// `None` for a pod that uses no GPUs or has no node yet. Init containers run before the others and hand their GPUs
    /// over to them, so the larger of the two counts.
    pub(crate) fn from_pod(pod: &PartialPod) -> Option<Self> {
        let node = pod.spec.node_name.as_deref()?;
        let gpus = |container: &PartialContainer| requested_gpus(&container.resources);
        let serving = pod.spec.containers.iter().map(gpus).fold(0, u32::saturating_add);
        let count = pod.spec.init_containers.iter().map(gpus).fold(serving, u32::max);
        (count > 0).then(|| Self { node: node.into(), count })
    }
}

/// The GPUs of `nodes` that `pods` use, by the accelerator's name.
pub(crate) fn gpus_in_use<'a>(
    nodes: impl Iterator<Item = (&'a str, &'a NodeGpus)>,
    pods: &[&PodGpus],
) -> BTreeMap<SmolStr, u32> {
    let nodes: HashMap<&str, &NodeGpus> = nodes.collect();
    sum_by_accelerator(pods.iter().filter_map(|pod| {
        let node = nodes.get(pod.node.as_str())?;
        Some((node.accelerator.as_ref()?, pod.count))
    }))
}

/// The GPUs of all nodes, by the accelerator's name.
pub(crate) fn inventory<'a>(nodes: impl IntoIterator<Item = &'a NodeGpus>) -> BTreeMap<SmolStr, u32> {
    sum_by_accelerator(nodes.into_iter().filter_map(|node| Some((node.accelerator.as_ref()?, node.count))))
}

fn sum_by_accelerator<'a>(counts: impl Iterator<Item = (&'a SmolStr, u32)>) -> BTreeMap<SmolStr, u32> {
    let mut sums: BTreeMap<SmolStr, u32> = BTreeMap::new();
    for (accelerator, count) in counts {
        let sum = sums.entry(accelerator.clone()).or_default();
        *sum = sum.saturating_add(count);
    }
    sums
}

/// Of the nodes whose labels do not name their GPUs, the one that has been in the cluster for longest.
pub(crate) fn oldest_unlabelled<'a>(
    nodes: impl Iterator<Item = (&'a str, &'a NodeGpus)>,
) -> Option<UnlabelledNode> {
    let unlabelled = nodes.filter(|(_, gpus)| gpus.accelerator.is_none());
    let oldest = unlabelled.min_by_key(|(name, gpus)| (gpus.joined, *name));
    oldest.map(|(name, gpus)| UnlabelledNode { name: name.into(), joined: gpus.joined })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn node(label: Value, spec: Value, ready: &str, allocatable: Value) -> Option<NodeGpus> {
        let conditions =
            json!([{ "type": "MemoryPressure", "status": "False" }, { "type": "Ready", "status": ready }]);
        let status =
            json!({ "allocatable": allocatable, "conditions": conditions, "images": [{ "names": ["x"] }] });
        let metadata = json!({ "name": "n", "labels": label, "managedFields": [] });
        let node = json!({ "metadata": metadata, "spec": spec, "status": status });
        NodeGpus::from_node(&serde_json::from_value::<PartialNode>(node).unwrap())
    }

    #[test]
    fn gpus_of_schedulable_nodes_are_counted_by_short_name() {
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
        assert_eq!(known.iter().filter(|gpus| gpus.accelerator.is_none()).count(), 1);
    }

    #[test]
    fn the_oldest_node_without_an_accelerator_label_is_named() {
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
            oldest_unlabelled(nodes.filter_map(|(name, gpus)| Some((*name, gpus.as_ref()?))))
        };
        assert_eq!(known(&["gpu-9", "gpu-7", "gpu-1"]).unwrap().name, "gpu-7");
        assert_eq!(known(&["gpu-1", "cpu-1", "gpu-2", "gpu-3"]), None, "no GPUs, or no pods now");
    }

    #[test]
    fn a_pod_uses_the_sum_of_its_containers_or_the_largest_init_container() {
        let used = |spec: Value| {
            PodGpus::from_pod(&serde_json::from_value(json!({ "metadata": {}, "spec": spec })).unwrap())
        };
        let requests = |gpus: u32| json!({ "resources": { "limits": { "nvidia.com/gpu": gpus.to_string(), "cpu": "2" } } });
        let on_node = |count| Some(PodGpus { node: "n".into(), count });
        assert_eq!(
            used(json!({ "nodeName": "n", "containers": [requests(2), requests(1), {}] })),
            on_node(3)
        );
        let init = json!([requests(4), requests(1)]);
        let serving = json!([requests(1)]);
        assert_eq!(
            used(json!({ "nodeName": "n", "initContainers": init, "containers": serving })),
            on_node(4)
        );
        assert_eq!(used(json!({ "containers": serving })), None, "it has no node yet");
        assert_eq!(used(json!({ "nodeName": "n", "containers": [{}] })), None);
    }

    #[test]
    fn gpus_in_use_count_on_schedulable_nodes_only() {
        let gpus = NodeGpus { accelerator: Some("H100".into()), count: 8, joined: Timestamp::UNIX_EPOCH };
        let used = |node: &str, count| PodGpus { node: node.into(), count };
        let pods = [used("a", 2), used("b", 1), used("cordoned", 8)];
        let nodes = [("a", &gpus), ("b", &gpus)];
        let in_use = gpus_in_use(nodes.into_iter(), &pods.iter().collect::<Vec<_>>());
        assert_eq!(in_use, BTreeMap::from([("H100".into(), 3)]));
    }
}
