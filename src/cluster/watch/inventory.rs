//! GPUs of the nodes that accept pods, by the accelerator's name, and how many of them pods use. The pods are watched for
//! their variants anyway; what is kept of all others is a few bytes each.

use std::collections::{BTreeMap, HashMap};

use jiff::Timestamp;
use smol_str::SmolStr;

use super::accelerator::short_name;
use super::partial_objects::{PartialContainer, PartialNode, PartialPod};
use super::placement::NodeTraits;
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
    pub(crate) traits: NodeTraits,
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
        let traits = || NodeTraits::new(node.metadata.labels.as_ref(), &node.spec.taints);
        (count > 0).then(|| Self { accelerator, count, joined, traits: traits() })
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

/// The GPUs of nodes, by the node's name.
pub(crate) struct NodeIndex<'a>(HashMap<&'a str, &'a NodeGpus>);

impl<'a> NodeIndex<'a> {
    pub(crate) fn new(nodes: impl Iterator<Item = (&'a str, &'a NodeGpus)>) -> Self {
        Self(nodes.collect())
    }

    /// The GPUs of the nodes that `pods` use, by the accelerator's name.
    pub(crate) fn in_use<'p>(&self, pods: impl Iterator<Item = &'p PodGpus>) -> BTreeMap<SmolStr, u32> {
        sum_by_accelerator(pods.filter_map(|pod| {
            let node = self.0.get(pod.node.as_str())?;
            Some((node.accelerator.as_ref()?, pod.count))
        }))
    }
}

/// Adds to `elsewhere` what the pods of one variant use, `in_use`, beyond the `counted` GPUs of `accelerator` that count as the
/// variant's: its scale target says how many replicas it has and how many GPUs each has, and its pods may be more, or larger.
pub(crate) fn add_excess(
    elsewhere: &mut BTreeMap<SmolStr, u32>,
    in_use: BTreeMap<SmolStr, u32>,
    accelerator: Option<&str>,
    counted: u32,
) {
    let mut counted = counted;
    for (name, used) in in_use {
        let is_counted = accelerator.is_some_and(|own| own.eq_ignore_ascii_case(&name));
        let own = if is_counted { used.min(counted) } else { 0 };
        counted -= own;
        if used > own {
            let sum = elsewhere.entry(name).or_default();
            *sum = sum.saturating_add(used - own);
        }
    }
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
        let gpus = NodeGpus {
            accelerator: Some("H100".into()),
            count: 8,
            joined: Timestamp::UNIX_EPOCH,
            traits: NodeTraits::default(),
        };
        let used = |node: &str, count| PodGpus { node: node.into(), count };
        let pods = [used("a", 2), used("b", 1), used("cordoned", 8)];
        let nodes = NodeIndex::new([("a", &gpus), ("b", &gpus)].into_iter());
        assert_eq!(nodes.in_use(pods.iter()), BTreeMap::from([("H100".into(), 3)]));
    }

    #[test]
    fn what_pods_use_beyond_what_counts_as_the_variants_is_in_use_elsewhere() {
        let gpus = |counts: &[(&str, u32)]| -> BTreeMap<SmolStr, u32> {
            counts.iter().map(|(name, count)| ((*name).into(), *count)).collect()
        };
        for (in_use, accelerator, counted, excess) in [
            (&[("H100", 8)][..], Some("h100"), 8, &[][..]),
            (&[("H100", 8)], Some("h100"), 2, &[("H100", 6)]),
            (&[("H100", 8)], Some("A100"), 100, &[("H100", 8)]),
            (&[("H100", 8)], None, 100, &[("H100", 8)]),
            (&[("A100", 1), ("H100", 8)], Some("H100"), 8, &[("A100", 1)]),
            // One accelerator, which two nodes spell differently.
            (&[("H100", 8), ("h100", 8)], Some("H100"), 10, &[("h100", 6)]),
            (&[], Some("H100"), 8, &[]),
        ] {
            let mut elsewhere = BTreeMap::new();
            add_excess(&mut elsewhere, gpus(in_use), accelerator, counted);
            assert_eq!(elsewhere, gpus(excess), "{in_use:?} {accelerator:?} {counted}");
        }
        let mut elsewhere = gpus(&[("H100", u32::MAX)]);
        add_excess(&mut elsewhere, gpus(&[("H100", 8)]), None, 0);
        assert_eq!(elsewhere, gpus(&[("H100", u32::MAX)]));
    }
}
