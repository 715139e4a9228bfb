//! Pods that no node has room for, and the analyzers of capacity.

use crate::tests::support::prelude::*;
use crate::tests::support::scenarios::{Scenario, scenario};
use wva_core::name_map::NameMap;

/// A cheap variant with one pod that serves and three without a node, a dear one with a pod that serves, and more needed: as
/// V2, the analyzer of throughput and the queueing model see it.
fn scenarios() -> [Scenario; 3] {
    [
        "tokens-ask-the-next-variant-where-no-node-has-room",
        "tokens-a-second-ask-the-next-variant-where-no-node-has-room",
        "latencies-ask-the-next-variant-where-no-node-has-room",
    ]
    .map(scenario)
}

/// So many pods of the cheap variant have no node.
fn leave_without_a_node(scenario: &mut Scenario, pods: u32) {
    let all = Replicas::new(pods + 1);
    let own = &mut group_of(&mut scenario.snapshot).variants[0];
    let nowhere = own.pods[1].clone();
    own.pods.truncate(1);
    own.pods.extend((0..pods).map(|pod| Pod { name: format!("x{pod}").into(), ..nowhere.clone() }));
    own.scale = Some(Scale { spec: all, current: all, ready: Replicas::ONE });
    let memory = scenario.memory.groups.values_mut().next().unwrap();
    memory.variants.get_mut("cheap").unwrap().target = Some(all);
}

fn decided(scenario: &Scenario) -> [(u32, Reason, String); 2] {
    let outcome = scenario.decided();
    assert_eq!(outcome.report.violations, []);
    ["cheap", "dear"].map(|name| {
        let target = target_of(&outcome, name);
        (target.desired.get(), target.reason, target.explanation.to_string())
    })
}

#[test]
fn pods_that_no_node_has_room_for_are_ordered_once() {
    for mut scenario in scenarios() {
        let analyzer = scenario.policy.global.default.analyzer;
        for pods in [3, 5, 7, 9] {
            leave_without_a_node(&mut scenario, pods);
            let [cheap, dear] = decided(&scenario);
            assert_eq!(cheap.0, pods + 1, "{analyzer:?}: {}", cheap.2);
            assert!(dear.0 > 1 && dear.1 == Reason::ScaleUp, "{analyzer:?}: {}", dear.2);
        }
    }
}

#[test]
fn the_report_says_that_no_node_fits_if_no_other_variant_can_grow() {
    for mut scenario in scenarios() {
        let analyzer = scenario.policy.global.default.analyzer;
        group_of(&mut scenario.snapshot).variants[1].variant.bounds =
            Bounds { min: Replicas::ONE, max: Some(Replicas::ONE) };
        let [cheap, dear] = decided(&scenario);
        assert_eq!((cheap.0, cheap.1), (4, Reason::Bounded), "{analyzer:?}: {}", cheap.2);
        assert!(cheap.2.contains("no node has room for 3 pods"), "{analyzer:?}: {}", cheap.2);
        assert_eq!((dear.0, dear.1), (1, Reason::Bounded), "{analyzer:?}: {}", dear.2);
    }
}

#[test]
fn a_pod_without_a_node_beside_ready_ones_was_not_said_to_hold_anything_back() {
    let mut snapshot = World::with_load(3, (0.5, 0.0)).snapshot();
    let own = &mut group_of(&mut snapshot).variants[0];
    let nowhere = &mut own.pods[2];
    (nowhere.phase, nowhere.ready_since) = (Phase::Unschedulable, None);
    nowhere.engines = NameMap::default();
    count_ready(own);
    let outcome = decide(&snapshot, &Memory::default(), &policy_of(Analyzer::Threshold));
    let explanation = &target_of(&outcome, "llama").explanation;
    let constraint = explanation.capacity_constraint().map(|constraint| constraint.as_str());
    assert_eq!(constraint, Some("NoNodeHasRoom"), "{explanation}");
}
