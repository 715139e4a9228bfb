//! How many replicas of a variant the nodes have room for. Pure.

use std::collections::BTreeMap;

use smol_str::SmolStr;

use super::inventory::NodeIndex;
use super::placement::Placement;
use super::scale_target::ScaleTarget;

/// The room of the nodes for the replicas of a variant, if nothing else ran there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NodeRoom {
    /// Nodes with its accelerator.
    pub(crate) named: usize,
    /// Those of them that its tolerations, node selector and required affinity allow.
    pub(crate) suitable: usize,
    /// The most GPUs that one of these has.
    pub(crate) largest: u32,
    /// The replicas that fit on these.
    pub(crate) replicas: u32,
}

/// The GPUs of the nodes of one accelerator that a placement allows, and how many nodes there are with the accelerator.
struct Suitable {
    named: usize,
    gpus: Vec<u32>,
}

/// Answers for many variants, most of which have the accelerator and the placement of another.
pub(crate) struct NodeRooms<'a> {
    nodes: &'a NodeIndex<'a>,
    known: BTreeMap<(SmolStr, Option<&'a Placement>), Suitable>,
}

impl<'a> NodeRooms<'a> {
    pub(crate) fn new(nodes: &'a NodeIndex<'a>) -> Self {
        Self { nodes, known: BTreeMap::new() }
    }

    /// The room for replicas of `target`, of `gpus` GPUs of `accelerator` each. A pod needs its GPUs on one node; of a replica that is a
    /// group of pods only the sum is known, which may be spread over the nodes in any way.
    pub(crate) fn of(&mut self, accelerator: &str, target: &'a ScaleTarget, gpus: u32) -> NodeRoom {
        let key = (SmolStr::from(accelerator.to_ascii_lowercase()), target.placement.as_ref());
        let nodes = self.nodes;
        let Suitable { named, gpus: on_nodes } = self.known.entry(key).or_insert_with_key(|key| {
            let is_same = |own: &SmolStr| own.eq_ignore_ascii_case(&key.0);
            let named: Vec<_> = nodes
                .nodes()
                .map(|(_, node)| node)
                .filter(|node| node.accelerator.as_ref().is_some_and(is_same))
                .collect();
            let allows = |placement: Option<&Placement>, traits| {
                placement.is_none_or(|placement| placement.accepts(traits))
            };
            let suitable = named.iter().filter(|node| allows(key.1, &node.traits));
            Suitable { named: named.len(), gpus: suitable.map(|node| node.count).collect() }
        });
        let gpus = gpus.max(1);
        let on = |there: &u32| there / gpus;
        let replicas = match target.group_size {
            None | Some(1) => on_nodes.iter().map(on).fold(0, u32::saturating_add),
            Some(_) => on(&on_nodes.iter().copied().fold(0, u32::saturating_add)),
        };
        let largest = on_nodes.iter().copied().max().unwrap_or_default();
        NodeRoom { named: *named, suitable: on_nodes.len(), largest, replicas }
    }
}

#[cfg(test)]
mod tests {
    use kube::runtime::watcher::Event;
    use serde_json::{Value, json};

    use super::super::inventory::NodeGpus;
    use super::super::kind_store::ObjectStore;
    use super::super::partial_objects::PartialTarget;
    use super::*;
    use crate::cluster::objects::ObjectKey;

    fn nodes(gpus: &[u32]) -> ObjectStore<NodeGpus> {
        let mut nodes = ObjectStore::default();
        for (index, gpus) in gpus.iter().enumerate() {
            let name = format!("n{index}");
            let zone = if index == 0 { "first" } else { "other" };
            let labels = json!({ "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "zone": zone });
            let node = json!({
                "metadata": { "name": name, "labels": labels }, "spec": {},
                "status": { "allocatable": { "nvidia.com/gpu": gpus.to_string() }, "conditions": [{ "type": "Ready", "status": "True" }] }
            });
            let node = NodeGpus::from_node(&serde_json::from_value(node).unwrap());
            nodes.apply(Event::Apply((ObjectKey::new("", &name), node)));
        }
        nodes
    }

    fn target(spec: Value) -> ScaleTarget {
        let spec: PartialTarget = serde_json::from_value(json!({ "metadata": {}, "spec": spec })).unwrap();
        ScaleTarget::from(&spec)
    }

    fn pods_of(gpus: u32, mut pod: Value) -> Value {
        pod["containers"] = json!([{ "resources": { "limits": { "nvidia.com/gpu": gpus } } }]);
        json!({ "spec": pod })
    }

    #[test]
    fn a_pod_needs_its_gpus_on_one_node_that_its_template_allows() {
        let (slices, templates) = (ObjectStore::default(), ObjectStore::default());
        for (gpus_of_nodes, accelerator, spec, gpus, expected) in [
            (&[8, 8][..], "H100", json!({ "template": pods_of(1, json!({})) }), 1, (2, 2, 8, 16)),
            // 20 GPUs, and none for a third pod.
            (&[8, 8, 4], "h100", json!({ "template": pods_of(5, json!({})) }), 5, (3, 3, 8, 2)),
            (&[4, 4], "H100", json!({ "template": pods_of(8, json!({})) }), 8, (2, 2, 4, 0)),
            (
                &[8, 8],
                "H100",
                json!({ "template": pods_of(2, json!({ "nodeSelector": { "zone": "first" } })) }),
                2,
                (2, 1, 8, 4),
            ),
            (
                &[8, 8],
                "H100",
                json!({ "template": pods_of(2, json!({ "nodeSelector": { "zone": "none" } })) }),
                2,
                (2, 0, 0, 0),
            ),
            (&[8, 8], "B200", json!({ "template": pods_of(1, json!({})) }), 1, (0, 0, 0, 0)),
            // Two pods of eight GPUs each.
            (
                &[8, 8, 8],
                "H100",
                json!({ "leaderWorkerTemplate": { "size": 2, "workerTemplate": pods_of(8, json!({})) } }),
                16,
                (3, 3, 8, 1),
            ),
        ] {
            let nodes = nodes(gpus_of_nodes);
            let index = NodeIndex::new(&nodes, &slices, &templates);
            let target = target(spec);
            let room = NodeRooms::new(&index).of(accelerator, &target, gpus);
            let (named, suitable, largest, replicas) = expected;
            assert_eq!(room, NodeRoom { named, suitable, largest, replicas }, "{gpus_of_nodes:?} {gpus}");
        }
    }
}
