//! The GPUs that a cluster has: of the nodes that take pods, by the accelerator's name.
//!
//! Which pods use them is not looked at, as in WVA: what is no variant's counts as free.

use std::collections::BTreeMap;

use smol_str::SmolStr;

use super::accelerator::short;
use super::convert::ACCELERATOR_KEYS;
use super::template::{GPU_RESOURCES, gpus};
use super::wire::LeanNode;

/// The GPUs of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Gpus {
    pub(crate) name: SmolStr,
    pub(crate) count: u32,
}

impl Gpus {
    /// `None` for a node without GPUs, without a name for them, or that takes no pods now.
    pub(crate) fn of(node: &LeanNode) -> Option<Self> {
        let ready = node.status.conditions.iter().any(|one| one.type_ == "Ready" && one.status == "True");
        let labels = node.metadata.labels.as_ref().filter(|_| ready && !node.spec.unschedulable)?;
        let name =
            ACCELERATOR_KEYS.iter().find_map(|key| labels.get(*key)).filter(|name| !name.is_empty())?;
        let count = GPU_RESOURCES.iter().map(|resource| gpus(&node.status.allocatable, resource));
        let count = count.fold(0, u32::saturating_add);
        (count > 0).then(|| Self { name: short(name).into(), count })
    }
}

/// All nodes together.
pub(crate) fn inventory<'a>(nodes: impl Iterator<Item = &'a Gpus>) -> BTreeMap<SmolStr, u32> {
    let mut inventory: BTreeMap<SmolStr, u32> = BTreeMap::new();
    for Gpus { name, count } in nodes {
        let sum = inventory.entry(name.clone()).or_default();
        *sum = sum.saturating_add(*count);
    }
    inventory
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
        assert_eq!(inventory(known.iter()), BTreeMap::from([("H100".into(), 10), ("MI300X".into(), 4)]));
    }
}
