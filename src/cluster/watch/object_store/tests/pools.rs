//! InferencePools: which variants they have, and where their endpoint pickers are.

use serde_json::{Value, json};

use super::*;
use crate::cluster::watch::inference_pool::{service_selector, watched_pool};
use crate::cluster::watch::optional_objects::ListFailure;
use crate::cluster::watch::partial_objects::PartialPod;

/// The object `name` of `namespace`, as a watch delivers it; with what is kept of it.
fn event<K: serde::de::DeserializeOwned, V>(
    (namespace, name): (&str, &str),
    spec: Value,
    kept: impl Fn(Result<K, kube::core::error_boundary::InvalidObject>) -> Option<V>,
) -> Result<StoreEvent<V>, ListFailure> {
    let metadata = json!({ "namespace": namespace, "name": name });
    let text = json!({ "metadata": metadata, "spec": spec }).to_string();
    let object = serde_json::from_str(&text).map_err(|error| kube::core::error_boundary::InvalidObject {
        error: error.to_string(),
        metadata: Default::default(),
    });
    Ok(Event::Apply((ObjectKey::new(namespace, name), kept(object))))
}

fn pool(store: &mut ClusterStore, id: (&str, &str), spec: Value) {
    store.pools.apply(event(id, spec, watched_pool));
}

fn service(store: &mut ClusterStore, id: (&str, &str), spec: Value) {
    store.services.apply(event(id, spec, service_selector));
}

/// A pod of the ReplicaSet `rs-9`, which is no variant's.
fn labelled_pod(labels: Value, annotations: Value, containers: Value) -> WatchedPod {
    let owners = json!([{
        "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "rs-9", "controller": true
    }]);
    let pod = json!({
        "metadata": { "name": "p", "labels": labels, "annotations": annotations, "ownerReferences": owners },
        "spec": { "nodeName": "n", "containers": containers },
        "status": { "podIP": "10.0.0.9", "conditions": [{ "type": "Ready", "status": "True" }] },
    });
    WatchedPod::from_pod(&serde_json::from_value::<PartialPod>(pod).unwrap()).unwrap()
}

fn picker() -> WatchedPod {
    labelled_pod(json!({ "app": "epp" }), json!({}), json!([{}]))
}

fn labelled_target(labels: Value) -> ScaleTarget {
    let labels = serde_json::from_value::<BTreeMap<String, String>>(labels).unwrap();
    ScaleTarget { labels: Some(LabelSet::of(Some(&labels))), ..target("d-1") }
}

/// The variant `chat` at zero, whose template has the labels of the pool `chat`, with an endpoint picker.
fn pooled() -> ClusterStore {
    let mut store = ClusterStore::default();
    store.variants.apply(applied("chat", claim("chat", "chat")));
    store.deployments.apply(applied("chat", labelled_target(json!({ "app": "vllm", "model": "m" }))));
    let spec = json!({
        "selector": { "matchLabels": { "app": "vllm" } }, "targetPorts": [{ "number": 8000 }],
        "endpointPickerRef": { "name": "epp", "port": { "number": 9002 } },
    });
    pool(&mut store, ("llm", "chat"), spec);
    service(&mut store, ("llm", "epp"), json!({ "selector": { "app": "epp" } }));
    store.pods.apply(applied("epp-1", picker()));
    store
}

/// A pool, its variants, and its schedulers with their ports.
type FoundPool = (String, Vec<String>, Vec<(String, Option<u16>)>);

fn pools(store: &ClusterStore) -> Vec<FoundPool> {
    let state = store.state();
    let pools = state.view.pools.iter().map(|pool| {
        let variants = pool.variants.iter().map(ToString::to_string).collect();
        let schedulers = pool.schedulers.iter().map(|endpoint| (endpoint.pod.clone(), endpoint.port));
        (format!("{}/{}", pool.namespace, pool.name), variants, schedulers.collect())
    });
    pools.collect()
}

fn own_pool() -> FoundPool {
    ("llm/chat".into(), vec!["llm/chat".into()], vec![("epp-1".into(), Some(9090))])
}

#[test]
fn a_variant_at_zero_belongs_to_the_pool_that_selects_its_template() {
    let mut store = pooled();
    assert_eq!(pools(&store), [own_pool()]);
    assert!(store.state().view.endpoints.is_empty(), "an endpoint picker serves no model");
    store.deployments.apply(applied("chat", labelled_target(json!({ "app": "sglang" }))));
    assert_eq!(pools(&store), []);
}

#[test]
fn pods_of_no_variant_may_serve_another_model_of_the_pool() {
    let has_others = |store: &ClusterStore| store.state().view.pools[0].has_others;
    let mut store = pooled();
    assert!(!has_others(&store));
    store.pods.apply(applied("x-1", labelled_pod(json!({ "app": "vllm" }), json!({}), json!([{}]))));
    assert!(has_others(&store), "of a workload without a variant");

    // The object of another model cannot be used, and its Deployment is at zero.
    let mut store = pooled();
    let unclaimed = ScaleTarget { uid: "d-2".into(), ..labelled_target(json!({ "app": "vllm" })) };
    store.deployments.apply(applied("broken", unclaimed));
    assert!(has_others(&store));

    let mut store = pooled();
    let reference = json!({ "name": "epp", "port": { "number": 9002 } });
    let spec = json!({ "selector": { "matchLabels": { "app": "else" } }, "endpointPickerRef": reference });
    pool(&mut store, ("llm", "second"), spec);
    assert!(has_others(&store), "its endpoint picker has a second pool");
}

#[test]
fn a_pool_of_the_older_group_names_the_same_in_other_fields() {
    let mut store = pooled();
    let older = |labels: Value| {
        let extension = json!({ "group": "", "kind": "Service", "name": "epp", "portNumber": 9002 });
        json!({ "selector": labels, "targetPortNumber": 8000, "extensionRef": extension })
    };
    let spec = older(json!({ "app": "vllm", "matchLabels": "no" }));
    store.x_pools.apply(event(("llm", "other"), spec, watched_pool));
    assert_eq!(pools(&store), [own_pool()], "its selector requires a label with an unusual name");
    store.x_pools.apply(event(("llm", "chat"), older(json!({ "app": "none" })), watched_pool));
    assert_eq!(pools(&store), [own_pool()], "of one name, the newer group counts");
    store.pools.apply(Err(ListFailure::NotServed));
    store.pools.apply(Err(ListFailure::NotServed));
    assert_eq!(pools(&store), [], "the newer kind has gone");
    store.x_pools.apply(event(("llm", "chat"), older(json!({ "app": "vllm" })), watched_pool));
    assert_eq!(pools(&store), [own_pool()]);
}

#[test]
fn a_variant_without_a_template_would_sleep_in_a_pool_that_it_left_with_its_last_pod() {
    let mut store = pooled();
    let untold = ScaleTarget { labels: None, ..target("d-1") };
    store.deployments.apply(applied("chat", untold));
    assert_eq!(pools(&store), []);
    store.replica_sets.apply(applied("chat-1", set("rs-1", "d-1")));
    let labels = labelled_pod(json!({ "app": "vllm" }), json!({}), json!([{}])).labels;
    store.pods.apply(applied("chat-1-a", WatchedPod { labels, ..pod("rs-1", Phase::Pending) }));
    assert_eq!(pools(&store), [], "its pods do not count");
}

#[test]
fn an_endpoint_picker_says_where_its_metrics_are() {
    let mut store = pooled();
    let port = |store: &ClusterStore| pools(store).remove(0).2.first().and_then(|(_, port)| *port);
    let http = json!([{ "ports": [{ "name": "http", "containerPort": 8080 }] }]);
    let named = json!([{ "ports": [{ "name": "grpc", "containerPort": 9002 }, { "name": "metrics", "containerPort": 9095 }] }]);
    for (annotations, containers, expected) in [
        (json!({}), http, 9090),
        (json!({}), named.clone(), 9095),
        (json!({ "prometheus.io/port": "9099" }), named, 9099),
        (json!({ "prometheus.io/port": "none" }), json!([{}]), 9090),
    ] {
        store.pods.apply(applied("epp-1", labelled_pod(json!({ "app": "epp" }), annotations, containers)));
        assert_eq!(port(&store), Some(expected));
    }
    store.pods.apply(applied("epp-1", WatchedPod { phase: Phase::Starting, ..picker() }));
    assert_eq!(port(&store), None, "it is not Ready");
}

/// A tenant may write into a pool what they like. None of it leads out of their namespace, nor to an address.
#[test]
fn a_pool_that_points_to_foreign_services_leads_to_no_pod() {
    let mut store = pooled();
    service(&mut store, ("secret", "epp"), json!({ "selector": { "app": "vault" } }));
    let vault = labelled_pod(json!({ "app": "vault" }), json!({}), json!([{}]));
    store.pods.apply(Event::Apply((ObjectKey::new("secret", "vault-0"), Some(vault))));
    let pools_of = |store: &mut ClusterStore, picker: Value| {
        let spec = json!({ "selector": { "matchLabels": { "app": "vllm" } }, "endpointPickerRef": picker });
        pool(store, ("llm", "chat"), spec);
        pools(store).remove(0).2
    };
    for picker in [
        json!({ "name": "epp", "namespace": "secret", "kind": "Pod" }),
        json!({ "name": "secret/epp" }),
        json!({ "name": "../secret/epp" }),
        json!({ "name": "epp.secret" }),
        json!({ "name": "" }),
        json!({ "group": "example.com", "name": "epp" }),
    ] {
        assert!(pools_of(&mut store, picker.clone()).is_empty(), "{picker}");
    }
    service(
        &mut store,
        ("llm", "epp"),
        json!({ "type": "ExternalName", "externalName": "vault.secret", "selector": { "app": "epp" } }),
    );
    assert!(pools_of(&mut store, json!({ "name": "epp" })).is_empty());
    service(&mut store, ("llm", "epp"), json!({ "clusterIP": "10.96.0.1" }));
    assert!(pools_of(&mut store, json!({ "name": "epp" })).is_empty(), "without a selector");
    service(&mut store, ("llm", "epp"), json!({ "selector": { "app": "vault" } }));
    assert!(pools_of(&mut store, json!({ "name": "epp" })).is_empty(), "the pods of another namespace");
}

#[test]
fn pools_and_their_endpoint_pickers_are_bounded() {
    let mut store = pooled();
    for count in 0..20 {
        store.pods.apply(applied(&format!("epp-{count:02}"), picker()));
    }
    assert_eq!(pools(&store).remove(0).2.len(), 8);
    for count in 0..1_500 {
        let spec = json!({ "selector": { "matchLabels": { "app": "vllm" } } });
        pool(&mut store, ("llm", &format!("many-{count:04}")), spec);
    }
    assert_eq!(pools(&store).len(), 4, "of one variant");
    assert_eq!(pools(&store).remove(0).0, "llm/chat");
}

#[test]
fn an_unreadable_pool_or_one_that_selects_everything_has_no_variants() {
    let mut store = pooled();
    for spec in [
        json!({ "selector": 7 }),
        json!({ "selector": {} }),
        json!({ "selector": { "matchLabels": {} } }),
        json!({}),
    ] {
        pool(&mut store, ("llm", "chat"), spec);
        assert_eq!(pools(&store), []);
    }
}
