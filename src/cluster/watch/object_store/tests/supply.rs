//! Limits that objects of the cluster set for variants.

use kube::runtime::watcher::Event;
use serde_json::{Value, json};
use wva_core::snapshot::VariantLimit;

use super::*;
use crate::cluster::watch::devices::{ClaimedGpus, slice_gpus};
use crate::cluster::watch::optional_objects::ListFailure;
use crate::cluster::watch::partial_objects::{PartialNode, PartialPod, PartialTarget};
use crate::cluster::watch::supply::MAX_PLACEMENTS;
use crate::cluster::watch::supply_objects::{ClosedQueue, QuotaGpus, WatchedQuota};

/// The Deployment of a variant with two replicas of two GPUs, whose pods are placed as `spec` says.
fn placed(spec: Value) -> ScaleTarget {
    let mut template = json!({ "containers": [{ "resources": { "limits": { "nvidia.com/gpu": 2 } } }] });
    template.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    let target = json!({
        "metadata": { "uid": "d-1" }, "spec": { "replicas": 2, "template": { "spec": template } },
        "status": { "replicas": 2, "readyReplicas": 1 },
    });
    ScaleTarget {
        accelerator: Some("H100".into()),
        ..ScaleTarget::from(&serde_json::from_value::<PartialTarget>(target).unwrap())
    }
}

/// A Ready node of eight H100.
fn node(spec: Value, pool: &str) -> Option<NodeGpus> {
    let labels = json!({ "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "pool": pool });
    let ready = json!([{ "type": "Ready", "status": "True" }]);
    let status = json!({ "allocatable": { "nvidia.com/gpu": "8" }, "conditions": ready });
    let node = json!({ "metadata": { "name": "n", "labels": labels }, "spec": spec, "status": status });
    NodeGpus::from_node(&serde_json::from_value::<PartialNode>(node).unwrap())
}

fn tainted() -> Value {
    json!({ "taints": [{ "key": "dedicated", "value": "training", "effect": "NoSchedule" }] })
}

/// Two nodes, of which the first has a taint.
fn with_nodes(target: ScaleTarget) -> ClusterStore {
    let mut store = cluster();
    store.deployments.apply(applied("chat", target));
    for (name, spec, pool) in [("a", tainted(), "blue"), ("b", json!({}), "red")] {
        store.nodes.apply(Event::InitApply((ObjectKey::new("", name), node(spec, pool))));
    }
    store.nodes.apply(Event::InitDone);
    store
}

fn on_node(owner: &str, node: &str, count: u32) -> Option<WatchedPod> {
    Some(WatchedPod {
        gpus: Some(PodGpus { node: node.into(), count, claims: None }),
        ..pod(owner, Phase::Ready)
    })
}

fn numbers(store: &ClusterStore) -> Vec<(String, String, u32, u32)> {
    let limits = store.state().view.limits.to_vec();
    limits
        .into_iter()
        .map(|limit| (limit.limit.into(), limit.key.into(), limit.gpus, limit.elsewhere))
        .collect()
}

fn suitable(gpus: u32, elsewhere: u32) -> Vec<(String, String, u32, u32)> {
    vec![(VariantLimit::SUITABLE_NODES.into(), "H100 for llm/chat".into(), gpus, elsewhere)]
}

#[test]
fn gpus_of_nodes_with_taints_that_a_variant_does_not_tolerate_were_room_for_it() {
    let mut store = with_nodes(placed(json!({})));
    assert_eq!(store.state().view.inventory, Some(BTreeMap::from([("H100".into(), 16)])));
    assert_eq!(numbers(&store), suitable(8, 0));
    store.pods.apply(Event::Apply((key("chat-1-a"), on_node("rs-1", "b", 2))));
    store.pods.apply(Event::Apply((key("job-b"), on_node("rs-9", "b", 3))));
    store.pods.apply(Event::Apply((key("job-a"), on_node("rs-9", "a", 5))));
    assert_eq!(numbers(&store), suitable(8, 3), "of others are those of another owner on the suitable node");
    store.pods.apply(Event::Apply((key("chat-1-a"), on_node("rs-1", "a", 2))));
    assert_eq!(numbers(&store), suitable(10, 3), "a taint came later: it is used, and on no suitable node");
    store.nodes.apply(Event::Apply((ObjectKey::new("", "b"), node(tainted(), "red"))));
    assert_eq!(numbers(&store), suitable(0, 0), "none is suitable");
    let tolerates = json!({ "tolerations": [{ "key": "dedicated", "operator": "Exists" }] });
    assert_eq!(numbers(&with_nodes(placed(tolerates))), [], "the inventory says all");
}

#[test]
fn nodes_are_suitable_by_their_labels_too_and_none_may_be() {
    assert_eq!(numbers(&with_nodes(placed(json!({ "nodeSelector": { "pool": "red" } })))), suitable(8, 0));
    let blue = json!({ "nodeSelector": { "pool": "blue" } });
    assert_eq!(numbers(&with_nodes(placed(blue))), suitable(0, 0), "selected, but tainted");
    let term = json!({ "matchExpressions": [{ "key": "pool", "operator": "NotIn", "values": ["red"] }] });
    let required =
        json!({ "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [term] } });
    let not_red = json!({ "affinity": { "nodeAffinity": required } });
    assert_eq!(numbers(&with_nodes(placed(not_red))), suitable(0, 0));
    let another = ScaleTarget { accelerator: Some("A100".into()), ..placed(json!({})) };
    assert_eq!(
        numbers(&with_nodes(another)),
        [],
        "no node has its accelerator: that is the inventory's to say"
    );
    let cordoned = node(json!({ "unschedulable": true }), "red");
    assert_eq!(cordoned, None);
}

#[test]
fn a_quota_limits_what_its_variants_use_beside_others() {
    let mut store = cluster();
    let quota = |hard, used| WatchedQuota { gpus: [Some(QuotaGpus { hard, used }), None, None] };
    store.quotas.apply(Ok(applied("gpus", quota(8, 7))));
    store.quotas.apply(Ok(Event::Apply((ObjectKey::new("other", "gpus"), Some(quota(0, 0))))));
    let limit = |gpus, elsewhere| {
        vec![(VariantLimit::RESOURCE_QUOTA.into(), "nvidia.com/gpu in llm/gpus".into(), gpus, elsewhere)]
    };
    assert_eq!(numbers(&store), limit(8, 3), "two replicas of two GPUs are its own");
    for (tighter, name) in [(quota(9, 9), "early"), (quota(4, 0), "late")] {
        store.quotas.apply(Ok(Event::Apply((key(name), Some(tighter)))));
        let of_resource = numbers(&store);
        assert_eq!(of_resource.len(), 1, "the tightest for each resource: {of_resource:?}");
        assert!(of_resource[0].1.ends_with(name), "{of_resource:?}");
        store.quotas.apply(Ok(Event::Apply((key(name), None))));
    }
    let amd = ScaleTarget { gpus: Some([0, 2, 0]), ..target("d-1") };
    store.deployments.apply(applied("chat", amd));
    assert_eq!(numbers(&store), [], "of another resource");
    store.deployments.apply(applied("chat", ScaleTarget { gpus: None, ..target("d-1") }));
    assert_eq!(numbers(&store), [], "nobody knows of which");
    store.deployments.apply(applied("chat", target("d-1")));
    store.quotas.apply(Err(ListFailure::Refused));
    assert_eq!(numbers(&store), limit(8, 3), "what is known stays known");
    store.quotas.apply(Ok(Event::Apply((key("gpus"), None))));
    assert_eq!(numbers(&store), []);
}

#[test]
fn pods_that_a_status_does_not_count_yet_were_those_of_others_in_a_quota() {
    let mut store = cluster();
    let used = WatchedQuota { gpus: [Some(QuotaGpus { hard: 8, used: 8 }), None, None] };
    store.quotas.apply(Ok(applied("gpus", used)));
    let mut ordered = target("d-1");
    ordered.scale.spec = Replicas::new(4);
    store.deployments.apply(applied("chat", ordered.clone()));
    let elsewhere = |store: &ClusterStore| numbers(store)[0].3;
    assert_eq!(elsewhere(&store), 0, "four replicas of two GPUs are requested, and all have their pods");
    ordered.scale = Scale { spec: Replicas::new(2), current: Replicas::new(4), ..ordered.scale };
    store.deployments.apply(applied("chat", ordered));
    assert_eq!(elsewhere(&store), 0, "a rollout runs surge pods");
}

#[test]
fn pods_that_a_status_does_not_count_yet_were_those_of_others_on_suitable_nodes() {
    let mut ordered = placed(json!({}));
    ordered.scale.spec = Replicas::new(4);
    let mut store = with_nodes(ordered);
    for name in ["a", "b", "c", "d"] {
        store.pods.apply(Event::Apply((key(name), on_node("rs-1", "b", 2))));
    }
    assert_eq!(numbers(&store), suitable(8, 0));
}

#[test]
fn a_closed_queue_admits_nothing_more() {
    let mut store = cluster();
    let closed = ClosedQueue { reason: "stopPolicy Hold".into() };
    store.earlier_queues.apply(Ok(applied("main", closed.clone())));
    assert_eq!(numbers(&store), [], "it waits in no queue");
    store.deployments.apply(applied("chat", ScaleTarget { queue: Some("main".into()), ..target("d-1") }));
    let limit = [(VariantLimit::CLOSED_QUEUE.into(), "llm/main (stopPolicy Hold)".into(), 0, 0)];
    assert_eq!(numbers(&store), limit);
    store.earlier_queues.apply(Ok(Event::Apply((key("main"), None))));
    assert_eq!(numbers(&store), [], "it is open again");
    store.queues.apply(Ok(applied("main", closed)));
    assert_eq!(numbers(&store), limit);
}

#[test]
fn rules_that_a_tenant_writes_by_the_thousand_are_not_all_compared_with_every_node() {
    let mut store = with_nodes(placed(json!({})));
    for index in 0..300 {
        let name = format!("v{index}");
        let own = placed(json!({ "nodeSelector": { "pool": name } }));
        let mut variant = object("llm", &name, &name);
        variant.variant.as_mut().unwrap().model = name.as_str().into();
        store.variants.apply(applied(&name, Arc::new(variant)));
        store.deployments.apply(applied(&name, ScaleTarget { uid: name.as_str().into(), ..own }));
    }
    assert_eq!(store.state().view.limits.len(), MAX_PLACEMENTS);
}

#[test]
fn nodes_that_can_no_longer_be_read_are_stale_after_a_while_and_not_forgotten() {
    let mut store = with_nodes(placed(json!({})));
    let (now, max_stale) = (Instant::now(), Duration::from_secs(60));
    let is_stale = |store: &ClusterStore| store.state().view.is_inventory_stale;
    let after = |seconds| now + Duration::from_secs(seconds);
    assert!(!store.apply_nodes(Err(Unreadable), now));
    assert!(!store.apply_nodes(Err(Unreadable), after(50)), "since the first failure");
    assert!(!store.expire(after(60), max_stale) && !is_stale(&store));
    assert!(store.expire(after(61), max_stale) && is_stale(&store));
    assert!(!store.expire(after(62), max_stale), "a change once");
    assert!(!store.apply_nodes(Ok(Event::Init), after(63)) && is_stale(&store), "a list that may fail");
    assert_eq!(store.state().view.inventory, Some(BTreeMap::from([("H100".into(), 16)])));
    assert!(store.apply_nodes(Ok(Event::InitDone), after(64)) && !is_stale(&store));
}

/// A node without GPUs of a device plugin, and a slice of a driver with `gpus` for it.
fn publish(store: &mut ClusterStore, gpus: usize) {
    let labels = json!({ "nvidia.com/gpu.present": "true" });
    let ready = json!([{ "type": "Ready", "status": "True" }]);
    let node = json!({ "metadata": { "name": "n", "labels": labels }, "status": { "conditions": ready } });
    let node = NodeGpus::from_node(&serde_json::from_value::<PartialNode>(node).unwrap());
    store.nodes.apply(Event::InitApply((ObjectKey::new("", "c"), node)));
    store.nodes.apply(Event::InitDone);
    let device = json!({ "attributes": { "productName": { "string": "NVIDIA H100 80GB HBM3" } } });
    let pool = json!({ "name": "c", "generation": 1 });
    let spec =
        json!({ "driver": "gpu.nvidia.com", "nodeName": "c", "pool": pool, "devices": vec![device; gpus] });
    let slice = json!({ "metadata": { "name": "s" }, "spec": spec });
    let slice = slice_gpus(Ok(serde_json::from_value(slice).unwrap()));
    store.slices.apply(Ok(Event::Apply((ObjectKey::new("", "s"), slice))));
}

#[test]
fn gpus_that_pods_claim_and_drivers_publish_were_not_there() {
    let mut store = cluster();
    publish(&mut store, 8);
    let claims = json!([{ "name": "gpu", "resourceClaimTemplateName": "four" }]);
    let spec =
        json!({ "replicas": 2, "template": { "spec": { "containers": [{}], "resourceClaims": claims } } });
    let value = json!({ "metadata": { "uid": "d-1" }, "spec": spec });
    let deployment = ScaleTarget::from(&serde_json::from_value::<PartialTarget>(value).unwrap());
    store.deployments.apply(applied("chat", deployment));
    let gpus = |store: &ClusterStore| store.state().view.variants[0].template.gpus;
    assert_eq!(gpus(&store), Some(1), "nobody knows the template");
    store.claim_templates.apply(Ok(applied("four", ClaimedGpus(Some(4)))));
    assert_eq!(gpus(&store), Some(4));
    let view = |store: &ClusterStore| store.state().view;
    assert_eq!(view(&store).inventory, Some(BTreeMap::from([("H100".into(), 8)])));
    assert_eq!((view(&store).elsewhere.len(), view(&store).unlabelled.clone()), (0, None));
    let claimed = |phase: &str| -> PartialPod {
        let owner =
            json!([{ "apiVersion": "v1", "kind": "CloneSet", "name": "o", "uid": "o", "controller": true }]);
        let metadata = json!({ "name": "job", "namespace": "llm", "uid": "p", "ownerReferences": owner });
        let spec = json!({ "nodeName": "c", "resourceClaims": claims });
        serde_json::from_value(json!({ "metadata": metadata, "spec": spec, "status": { "phase": phase } }))
            .unwrap()
    };
    let job = WatchedPod::from_pod(&claimed("Running")).unwrap();
    store.pods.apply(applied("job", job.clone()));
    assert_eq!(view(&store).elsewhere, BTreeMap::from([("H100".into(), 4)]));
    store.claim_templates.apply(Ok(applied("four", ClaimedGpus(Some(1024)))));
    assert_eq!(view(&store).elsewhere["H100"], 8, "a template was changed after its claims were made");
    store.claim_templates.apply(Ok(applied("four", ClaimedGpus(None))));
    assert_eq!((gpus(&store), view(&store).elsewhere["H100"]), (Some(1), 8), "all of a node's");
    store.pods.apply(applied("another-job", job));
    assert_eq!(view(&store).elsewhere["H100"], 8, "a node has no more");
    store.pods.apply(applied("job", WatchedPod::from_pod(&claimed("Pending")).unwrap()));
    store.pods.apply(applied("another-job", WatchedPod::from_pod(&claimed("Pending")).unwrap()));
    assert_eq!(view(&store).elsewhere.len(), 0, "whoever names a node has not got its devices yet");
}
