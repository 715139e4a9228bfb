//! Pods that no node has room for, to the analyzers of capacity.

use serde::Deserialize;
use wva_core::decision::{Reason, Verdict};
use wva_core::model::Bounds;
use wva_core::snapshot::{Replica, Scale};
use wva_core::units::Replicas;
use wva_core::{GroupId, Memory, Policy, Snapshot, VariantId, decide, observe};

#[derive(Deserialize)]
struct Scene {
    policy: Policy,
    memory: Memory,
    snapshot: Snapshot,
}

/// A cheap variant with one pod that serves and three without a node, a dear one with a pod that serves, and more needed: as
/// V2, the analyzer of throughput and the queueing model see it.
fn scenes() -> [Scene; 3] {
    let read = |text: &str| serde_json::from_str(text).unwrap();
    [
        read(include_str!(
            "../../../tests/scenarios/tokens-ask-the-next-variant-where-no-node-has-room.json"
        )),
        read(include_str!(
            "../../../tests/scenarios/tokens-a-second-ask-the-next-variant-where-no-node-has-room.json"
        )),
        read(include_str!(
            "../../../tests/scenarios/latencies-ask-the-next-variant-where-no-node-has-room.json"
        )),
    ]
}

impl Scene {
    /// So many pods of the cheap variant have no node.
    fn without_a_node(&mut self, pods: u32) {
        let group = self.snapshot.groups.get_mut(&GroupId::new("default", "m")).unwrap();
        let (own, all) = (&mut group.variants[0], Replicas::new(pods + 1));
        let nowhere = own.replicas[1].clone();
        own.replicas.truncate(1);
        let more = (0..pods).map(|pod| Replica { pod: format!("x{pod}").into(), ..nowhere.clone() });
        own.replicas.extend(more);
        own.scale = Some(Scale { spec: all, current: all, ready: Replicas::ONE });
        let memory = self.memory.groups.values_mut().next().unwrap();
        memory.variants.get_mut("cheap").unwrap().target = Some(all);
    }

    fn decided(&self) -> [(u32, Reason, String); 2] {
        let memory = observe(&self.snapshot, self.memory.clone());
        let outcome = decide(&self.snapshot, &memory, &self.policy);
        assert_eq!(outcome.report.violations, []);
        ["cheap", "dear"].map(|name| match &outcome.decisions[&VariantId::new("default", name)].verdict {
            Verdict::Target(target) => (target.desired.get(), target.reason, target.explanation.to_string()),
            Verdict::Unknown(unknown) => panic!("{}", unknown.explanation),
        })
    }
}

#[test]
fn pods_that_no_node_has_room_for_were_once_ordered_again_at_every_look() {
    for mut scene in scenes() {
        let analyzer = scene.policy.global.default.analyzer;
        for pods in [3, 5, 7, 9] {
            scene.without_a_node(pods);
            let [cheap, dear] = scene.decided();
            assert_eq!(cheap.0, pods + 1, "{analyzer:?}: {}", cheap.2);
            assert!(dear.0 > 1 && dear.1 == Reason::ScaleUp, "{analyzer:?}: {}", dear.2);
        }
    }
}

#[test]
fn where_nobody_else_can_grow_the_number_says_that_no_node_has_room() {
    for mut scene in scenes() {
        let analyzer = scene.policy.global.default.analyzer;
        let group = scene.snapshot.groups.get_mut(&GroupId::new("default", "m")).unwrap();
        group.variants[1].variant.bounds = Bounds { min: Replicas::ONE, max: Some(Replicas::ONE) };
        let [cheap, dear] = scene.decided();
        assert_eq!((cheap.0, cheap.1), (4, Reason::Bounded), "{analyzer:?}: {}", cheap.2);
        assert!(cheap.2.contains("no node has room for 3 pods"), "{analyzer:?}: {}", cheap.2);
        assert_eq!((dear.0, dear.1), (1, Reason::Bounded), "{analyzer:?}: {}", dear.2);
    }
}
