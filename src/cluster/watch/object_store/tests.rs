//! The joins, and that one tenant's objects cost no other tenant.

use jiff::Timestamp;
use kube::runtime::watcher::Event;
use wva_core::decision::{Cause, Verdict};
use wva_core::model::{Role, TargetRef};
use wva_core::snapshot::{Sample, Signal, Template};

use super::*;
use crate::cluster::watch::annotated::WatchedAutoscaler;
use crate::cluster::watch::claims::tests::object;
use crate::cluster::watch::kind_store::StoreEvent;
use crate::cluster::watch::metrics_address::MetricsAddress;
use crate::cluster::watch::pause::Pause;
use crate::cluster::watch::placement::{NodeTraits, Placement};
use crate::engine::{Collected, Labels, NamedModels, Series, assemble};

mod pools;
mod supply;
mod targets;

fn key(name: &str) -> ObjectKey {
    ObjectKey::new("llm", name)
}

fn claim(name: &str, target: &str) -> Arc<VariantObject> {
    Arc::new(object("llm", name, target))
}

fn target(uid: &str) -> ScaleTarget {
    let two = Replicas::new(2);
    let scale = Scale { spec: two, current: two, ready: Replicas::ONE };
    let accelerator = Some("H100".into());
    let template = Template { gpus: Some(2), ..Template::default() };
    let uid = uid.into();
    let (owner, labels, group_size, selected) = (None, None, None, None);
    ScaleTarget {
        uid,
        owner,
        scale,
        accelerator,
        role: Role::Decode,
        template,
        termination: None,
        gpus: Some([2, 0, 0]),
        claims: Box::default(),
        placement: Some(Placement::default()),
        queue: None,
        labels,
        group_size,
        selected,
    }
}

fn pod(owner: &str, phase: Phase) -> WatchedPod {
    let (ip, port) = ("10.0.0.1".parse().unwrap(), Some(8000));
    let address = Some(MetricsAddress { ip, port, scheduler_port: Some(9090), path: None });
    WatchedPod {
        uid: "".into(),
        owner: Some(owner.into()),
        phase,
        is_ready: phase == Phase::Ready,
        created: Timestamp::UNIX_EPOCH,
        ready_since: None,
        address,
        labels: LabelSet::default(),
        gpus: None,
        unschedulable: None,
        deletion_cost: None,
    }
}

fn set(uid: &str, owner: &str) -> ReplicaSetOwner {
    ReplicaSetOwner { uid: uid.into(), deployment: owner.into() }
}

/// The object `name` of the namespace `llm` is new or has changed.
fn applied<V>(name: &str, value: V) -> StoreEvent<V> {
    Event::Apply((key(name), Some(value)))
}

/// One variant `chat` on Deployment `chat`, with a ready pod, a starting one, and strangers.
fn cluster() -> ClusterStore {
    let mut store = ClusterStore::default();
    store.variants.apply(applied("chat", claim("chat", "chat")));
    store.deployments.apply(applied("chat", target("d-1")));
    store.replica_sets.apply(applied("chat-1", set("rs-1", "d-1")));
    store.replica_sets.apply(applied("web-1", set("rs-9", "d-9")));
    store.pods.apply(applied("chat-1-a", pod("rs-1", Phase::Ready)));
    store.pods.apply(applied("chat-1-b", pod("rs-1", Phase::Starting)));
    store.pods.apply(applied("web-1-a", pod("rs-9", Phase::Ready)));
    store.pods.apply(applied("ghost", pod("rs-0", Phase::Ready)));
    store
}

#[test]
fn a_pause_of_the_scaled_object_of_a_variant_is_known_and_no_other_namespaces() {
    let pauses = |store: &ClusterStore| {
        let pauses = store.state().pauses.into_iter();
        pauses.map(|(id, note)| format!("{id}: {note}")).collect::<Vec<_>>()
    };
    let paused = |target: &str, note: &str| {
        let pause = Pause { target: TargetRef::deployment(target), note: note.into() };
        WatchedAutoscaler { variant: None, pause: Some(Box::new(pause)), reads: Box::default(), scaler: None }
    };
    let mut store = cluster();
    let elsewhere = (ObjectKey::new("evil", "chat"), Some(paused("chat", "of a stranger")));
    store.scaled_objects.apply(Ok(Event::Apply(elsewhere)));
    store.scaled_objects.apply(Ok(applied("web", paused("web", "of another workload"))));
    assert!(pauses(&store).is_empty(), "{:?}", pauses(&store));
    store.scaled_objects.apply(Ok(applied("b", paused("chat", "second"))));
    assert!(store.scaled_objects.apply(Ok(applied("a", paused("chat", "first")))), "seen at once");
    assert_eq!(pauses(&store), ["llm/chat: first"]);
    assert_eq!(store.state().view.variants.len(), 1, "a pause makes no variant");
    for name in ["a", "b"] {
        store.scaled_objects.apply(Ok(Event::Apply((key(name), None))));
    }
    assert!(pauses(&store).is_empty());
}

#[test]
fn pods_join_their_variant_through_the_chain_of_owners() {
    let view = cluster().state().view;
    let names: Vec<_> = view.variants[0].pods.iter().map(|replica| replica.name.as_str()).collect();
    assert_eq!(names, ["chat-1-a", "chat-1-b"]);
    let scraped: Vec<_> = view.endpoints.iter().map(|endpoint| endpoint.pod.as_str()).collect();
    assert_eq!(scraped, ["chat-1-a"], "only ready pods of variants are read");
}

#[test]
fn accelerator_role_and_gpus_are_those_of_the_scale_target() {
    let view = cluster().state().view;
    let variant = &view.variants[0].variant;
    assert_eq!((variant.accelerator.as_deref(), variant.role), (Some("H100"), Role::Decode));
    assert_eq!(view.variants[0].template.gpus, Some(2));
}

fn gpus(name: Option<&str>, joined: i64) -> NodeGpus {
    let joined = Timestamp::from_second(joined).unwrap();
    NodeGpus { accelerator: name.map(Into::into), count: 8, joined, traits: NodeTraits::default() }
}

#[test]
fn the_inventory_is_known_once_the_nodes_have_been_listed() {
    let mut store = cluster();
    assert_eq!(store.state().view.inventory, None);
    for name in ["a", "b"] {
        store.nodes.apply(Event::InitApply((key(name), Some(gpus(Some("H100"), 0)))));
    }
    store.nodes.apply(Event::InitDone);
    assert_eq!(store.state().view.inventory, Some(BTreeMap::from([("H100".into(), 16)])));
    assert_eq!(store.state().view.unlabelled, None);
    for (name, joined) in [("b2", 9), ("d", 7), ("c", 7)] {
        store.nodes.apply(applied(name, gpus(None, joined)));
    }
    let view = store.state().view;
    assert_eq!(view.inventory, Some(BTreeMap::from([("H100".into(), 16)])));
    assert_eq!(view.unlabelled.as_ref().unwrap().name, "c", "the oldest, and the first by its name");
    assert!(!store.has_synced(), "nothing waits for nodes");
}

#[test]
fn gpus_of_other_pods_are_in_use_elsewhere() {
    let mut store = cluster();
    let on_gpus = |owner, count| {
        let gpus = Some(PodGpus { node: "a".into(), count, claims: None });
        Some(WatchedPod { gpus, ..pod(owner, Phase::Ready) })
    };
    store.pods.apply(Event::Apply((key("chat-1-a"), on_gpus("rs-1", 2))));
    store.pods.apply(Event::Apply((key("web-1-a"), on_gpus("rs-9", 3))));
    let job = on_gpus("", 1).map(|job| WatchedPod { owner: None, ..job });
    store.pods.apply(Event::Apply((key("job"), job)));
    assert_eq!(store.state().view.elsewhere, BTreeMap::new(), "nodes are not watched");
    let node = ObjectKey::new("", "a");
    store.nodes.apply(Event::InitApply((node, Some(gpus(Some("H100"), 0)))));
    store.nodes.apply(Event::InitDone);
    assert_eq!(store.state().view.elsewhere, BTreeMap::from([("H100".into(), 4)]));
    store.variants.apply(Event::Delete((key("chat"), None)));
    assert_eq!(store.state().view.elsewhere, BTreeMap::from([("H100".into(), 6)]));
}

#[test]
fn an_excluded_namespace_has_no_variants_and_no_claims() {
    let mut store = cluster();
    store.excluded.apply(Event::Apply((ObjectKey::new("", "llm"), Some(()))));
    let state = store.state();
    assert!(state.objects.is_empty(), "no status is written");
    assert!(state.view.variants.is_empty() && state.view.claims.is_empty());
    assert!(state.view.excluded.contains("llm"));
    store.excluded.apply(Event::Apply((ObjectKey::new("", "llm"), None)));
    assert_eq!(store.state().view.variants.len(), 1);
}

#[test]
fn a_variant_without_its_target_stays_and_has_no_scale() {
    let mut store = cluster();
    store.deployments.apply(Event::Delete((key("chat"), None)));
    let view = store.state().view;
    assert_eq!((view.variants[0].scale, view.variants[0].pods.len()), (None, 0));
}

#[test]
fn pods_of_a_recreated_deployment_do_not_count() {
    let mut store = cluster();
    store.deployments.apply(applied("chat", target("d-2")));
    assert!(store.state().view.variants[0].pods.is_empty());
}

#[test]
fn of_two_variants_with_one_target_the_older_decides_and_the_younger_is_told() {
    let mut store = cluster();
    let mut older = object("llm", "older", "chat");
    older.created -= jiff::SignedDuration::from_secs(1);
    store.variants.apply(applied("older", Arc::new(older)));
    let view = store.state().view;
    assert_eq!((view.variants.len(), view.invalid.len()), (1, 1));
    assert_eq!((view.variants[0].variant.id.name.as_str(), view.variants[0].pods.len()), ("older", 2));
    assert_eq!(view.invalid[0].id.name, "chat");
    assert_eq!(
        view.invalid[0].problem,
        "spec.scaleTargetRef Deployment chat is the target of llm/older too, which was created first and decides: delete \
         one of the two, or name another target"
    );
    store.variants.apply(Event::Delete((key("older"), None)));
    assert_eq!(store.state().view.variants[0].variant.id.name, "chat", "the next one takes over");
}

/// Serving pods of all variants, each with a sample.
fn series<'a>(pods: impl IntoIterator<Item = &'a ObjectKey>, now: Timestamp) -> Collected {
    let series = |key: &ObjectKey, signal, value| Series {
        labels: Arc::new(Labels {
            namespace: (&*key.namespace).into(),
            pod: (&*key.name).into(),
            engine: "".into(),
            port: Some(8000),
            model: None,
            destination: None,
        }),
        signal,
        samples: [Sample { at: now, value }].into(),
    };
    let gauges = [(Signal::KvUsage, 0.9), (Signal::Waiting, 8.0), (Signal::Running, 20.0)];
    let of_pod = |pod| gauges.map(|(signal, value)| series(pod, signal, value));
    Collected { series: pods.into_iter().flat_map(of_pod).collect(), ..Collected::default() }
}

#[test]
fn five_thousand_variants_of_one_model_take_a_second_at_most_and_affect_no_tenant() {
    let mut store = cluster();
    let now = Timestamp::from_second(1_800_000_000).unwrap();
    let policy = wva_core::Policy::default();
    let evaluated = |store: &ClusterStore| {
        let view = store.state().view;
        let answer = series(store.pods.iter().map(|(key, _)| key), now);
        let snapshot = assemble(&view, &NamedModels::new(), Ok(answer), now).snapshot;
        let memory = wva_core::observe(&snapshot, wva_core::Memory::default());
        wva_core::decide(&snapshot, &memory, &policy)
    };
    let alone = evaluated(&store);
    for index in 0..5_000 {
        let name = format!("v{index}");
        let key = ObjectKey::new("crowded", &name);
        let object = object("crowded", &name, &name);
        store.variants.apply(Event::Apply((key.clone(), Some(Arc::new(object)))));
        store.deployments.apply(Event::Apply((key.clone(), Some(target(&name)))));
        store.replica_sets.apply(Event::Apply((key.clone(), Some(set(&format!("rs-{name}"), &name)))));
        store.pods.apply(Event::Apply((key, Some(pod(&format!("rs-{name}"), Phase::Ready)))));
    }
    // The shortest of three times: other tests run beside it.
    let timed = || {
        let begun = Instant::now();
        (evaluated(&store), begun.elapsed())
    };
    let times = [timed().1, timed().1];
    let (beside, last) = timed();
    let took = times.into_iter().fold(last, Duration::min);
    assert!(took < Duration::from_secs(1), "{took:?}");
    let id = VariantId::new("llm", "chat");
    assert_eq!(beside.decisions[&id], alone.decisions[&id]);
    let causes = beside.decisions.values().filter_map(|decision| match &decision.verdict {
        Verdict::Unknown(unknown) => Some(unknown),
        Verdict::Target(_) => None,
    });
    let crowded: Vec<_> = causes.filter(|unknown| unknown.cause == Cause::InvalidVariant).collect();
    assert_eq!(crowded.len(), 4_900);
    let explanation = crowded[0].explanation.to_string();
    assert!(explanation.contains("more than 100 variants"), "{explanation}");
}

#[test]
fn a_deployment_is_found_with_every_variant_that_claims_it() {
    let mut store = cluster();
    for (name, target) in [("aa", "zz"), ("copy", "chat"), ("zz", "aa")] {
        store.variants.apply(applied(name, claim(name, target)));
    }
    let view = store.state().view;
    let claimants = |deployment| -> Vec<_> {
        let claims = view.claims_on("llm", &TargetRef::deployment(deployment)).iter();
        claims.map(|claim| claim.variant.name.as_str()).collect()
    };
    assert_eq!(claimants("chat"), ["chat", "copy"]);
    assert_eq!((claimants("aa"), claimants("zz"), claimants("none")), (vec!["zz"], vec!["aa"], vec![]));
    let found = view.variant(&VariantId::new("llm", "zz")).map(|state| state.variant.target.name.as_str());
    assert_eq!(found, Some("aa"));
    assert!(view.variant(&VariantId::new("llm", "copy")).is_none(), "another one decides");
}

#[test]
fn nothing_is_synced_until_every_watch_has_listed() {
    let mut store = cluster();
    store.variants.apply(Event::InitDone);
    store.deployments.apply(Event::InitDone);
    store.replica_sets.apply(Event::InitDone);
    assert!(!store.state().view.synced);
    store.pods.apply(Event::InitDone);
    assert!(!store.state().view.synced, "whose namespace is excluded is not known");
    store.ignores_exclusions = true;
    assert!(store.state().view.synced);
}
