//! GPUs of the nodes that accept pods, by the accelerator's name, and how many of them pods use. The pods are watched for
//! their variants anyway; what is kept of all others is a few bytes each.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use jiff::Timestamp;
use smol_str::SmolStr;

use super::accelerator::short_name;
use super::devices::{ClaimedGpus, SliceGpus, claim_templates, gpus_of_claims, node_devices};
use super::kind_store::ObjectStore;
use super::partial_objects::{PartialContainer, PartialNode, PartialPod, PodCondition};
use super::placement::NodeTraits;
use super::template::{GPU_RESOURCES, MAX_GPUS, gpu_count, requested_gpus};
use crate::cluster::objects::ACCELERATOR_KEYS;
use crate::engine::UnlabelledNode;

/// What is in the key of a label of nodes with GPUs, whoever sets it: a word, or the number of a vendor of PCI devices.
const GPU_LABELS: [&str; 5] = ["gpu", "accelerator", "10de", "pci-1002", "_1002"];
/// The condition by which the kubelet says that a pod has its network and its devices.
const HAS_DEVICES: &str = "PodReadyToStartContainers";

/// The GPUs of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodeGpus {
    /// The accelerator's name; `None` where no label of the node has it.
    pub(crate) accelerator: Option<SmolStr>,
    /// Those of a device plugin. Drivers of dynamic resource allocation publish theirs elsewhere.
    pub(crate) count: u32,
    /// When the node joined the cluster.
    pub(crate) joined: Timestamp,
    pub(crate) traits: NodeTraits,
}

impl NodeGpus {
    /// `None` for a node that is not ready or is cordoned, and for one without GPUs whose labels name none either.
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
        let is_named = |key: &String| GPU_LABELS.iter().any(|word| key.contains(word));
        let may_have = || node.metadata.labels.iter().flatten().any(|(key, _)| is_named(key));
        (count > 0 || may_have()).then(|| Self { accelerator, count, joined, traits: traits() })
    }
}

/// The GPUs that a pod uses on its node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct PodGpus {
    pub(crate) node: SmolStr,
    /// Those of a device plugin.
    pub(crate) count: u32,
    /// What may claim more.
    pub(crate) claims: Option<Box<PodClaims>>,
}

/// The templates of a pod's claims.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PodClaims {
    pub(crate) namespace: SmolStr,
    pub(crate) templates: Box<[SmolStr]>,
}

impl PodGpus {
    /// `None` for a pod that uses no GPUs or has no node yet. Init containers run before the others and hand their GPUs
    /// over to them, so the larger of the two counts.
    pub(crate) fn from_pod(pod: &PartialPod) -> Option<Self> {
        let node = pod.spec.node_name.as_deref()?;
        let gpus = |container: &PartialContainer| requested_gpus(&container.resources);
        let serving = pod.spec.containers.iter().map(gpus).fold(0, u32::saturating_add);
        let count = pod.spec.init_containers.iter().map(gpus).fold(serving, u32::max);
        // Before that anybody may name a node and claims that nobody has allocated.
        let is_given =
            |condition: &PodCondition| condition.type_ == HAS_DEVICES && condition.status == "True";
        let has_devices =
            pod.status.phase.as_deref() == Some("Running") || pod.status.conditions.iter().any(is_given);
        let claims: &[_] = if has_devices { &pod.spec.resource_claims } else { &[] };
        let templates = claim_templates(claims);
        let namespace = || pod.metadata.namespace.as_deref().unwrap_or_default().into();
        let claims =
            (!templates.is_empty()).then(|| Box::new(PodClaims { namespace: namespace(), templates }));
        (count > 0 || claims.is_some()).then(|| Self { node: node.into(), count, claims })
    }
}

/// The nodes with GPUs, by name, and what pods use of them.
pub(crate) struct NodeIndex<'a> {
    nodes: BTreeMap<&'a str, Cow<'a, NodeGpus>>,
    templates: &'a ObjectStore<ClaimedGpus>,
}

impl<'a> NodeIndex<'a> {
    /// Of a device plugin and a driver that publish the same GPUs, the larger number counts.
    pub(crate) fn new(
        nodes: &'a ObjectStore<NodeGpus>,
        slices: &'a ObjectStore<SliceGpus>,
        templates: &'a ObjectStore<ClaimedGpus>,
    ) -> Self {
        let published = node_devices(slices);
        let nodes = nodes.iter().map(|(key, own)| {
            let Some(devices) = published.get(&*key.name) else { return (&*key.name, Cow::Borrowed(own)) };
            let accelerator = own.accelerator.as_ref().or(devices.product).cloned();
            let count = own.count.max(devices.count);
            (&*key.name, Cow::Owned(NodeGpus { accelerator, count, ..own.clone() }))
        });
        Self { nodes: nodes.filter(|(_, gpus)| gpus.count > 0).collect(), templates }
    }

    /// Those with GPUs.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = (&'a str, &NodeGpus)> {
        self.nodes.iter().map(|(name, gpus)| (*name, &**gpus))
    }

    /// The GPUs that `pods` use, by node. Claims are at most what a node has: their templates may have been changed since.
    pub(crate) fn by_node<'p>(&self, pods: impl Iterator<Item = &'p PodGpus>) -> HashMap<&'p str, u32> {
        let mut used: HashMap<&str, (u32, u32)> = HashMap::new();
        for pod in pods {
            let (of_plugin, claimed) = used.entry(&pod.node).or_default();
            *of_plugin = of_plugin.saturating_add(pod.count);
            if let Some(claims) = &pod.claims {
                let gpus = gpus_of_claims(self.templates, &claims.namespace, &claims.templates);
                *claimed = claimed.saturating_add(gpus.unwrap_or(MAX_GPUS));
            }
        }
        let of_node = |(name, (of_plugin, claimed)): (_, (u32, u32))| {
            let there = self.nodes.get(name).map_or(0, |node| node.count);
            (name, of_plugin.saturating_add(claimed.min(there)))
        };
        used.into_iter().map(of_node).collect()
    }

    /// The GPUs of the nodes that `pods` use, by the accelerator's name.
    pub(crate) fn in_use<'p>(&self, pods: impl Iterator<Item = &'p PodGpus>) -> BTreeMap<SmolStr, u32> {
        let used = self.by_node(pods);
        let named =
            used.iter().filter_map(|(node, gpus)| Some((self.nodes.get(node)?.accelerator.as_ref()?, *gpus)));
        sum_by_accelerator(named)
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
    use kube::runtime::watcher::Event;
    use serde_json::{Value, json};

    use super::*;
    use crate::cluster::objects::ObjectKey;

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
        assert_eq!(node(json!({}), json!({}), "True", json!({ "cpu": "64" })), None, "without GPUs");
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
        let on_node = |count| Some(PodGpus { node: "n".into(), count, claims: None });
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
        let used = |node: &str, count| PodGpus { node: node.into(), count, claims: None };
        let pods = [used("a", 2), used("b", 1), used("cordoned", 8)];
        let mut nodes = ObjectStore::default();
        for name in ["a", "b"] {
            nodes.apply(Event::Apply((ObjectKey::new("", name), Some(gpus.clone()))));
        }
        let (slices, templates) = (ObjectStore::default(), ObjectStore::default());
        let index = NodeIndex::new(&nodes, &slices, &templates);
        assert_eq!(index.in_use(pods.iter()), BTreeMap::from([("H100".into(), 3)]));
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
