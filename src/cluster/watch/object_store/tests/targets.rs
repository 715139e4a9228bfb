//! Scale targets of every kind, their pods, and the GPUs of these.

use super::*;
use crate::cluster::watch::known_targets::WatchProblem;

/// `llm/chat`, with a scale target of another kind.
fn claim_on(group: &str, kind: &str) -> Arc<VariantObject> {
    let mut object = object("llm", "chat", "chat");
    let variant = object.variant.as_mut().unwrap();
    variant.target = TargetRef { group: group.into(), kind: kind.into(), name: "chat".into() };
    Arc::new(object)
}

/// The first list of a kind: `chat` alone.
fn list(targets: &mut OptionalTargets, target: ScaleTarget) {
    targets.apply(Ok(Event::InitApply((key("chat"), Some(target)))), Instant::now());
    targets.apply(Ok(Event::InitDone), Instant::now());
}

fn pod_names(state: &VariantState) -> Vec<&str> {
    state.pods.iter().map(|pod| pod.name.as_str()).collect()
}

#[test]
fn a_stateful_set_owns_its_pods_and_a_deployment_of_the_same_name_does_not_matter() {
    let mut store = cluster();
    store.variants.apply(applied("chat", claim_on("apps", "StatefulSet")));
    store.pods.apply(applied("chat-0", pod("sts-1", Phase::Ready)));
    list(&mut store.stateful_sets, target("sts-1"));
    let state = store.state();
    let variant = &state.view.variants[0];
    assert_eq!((pod_names(variant), variant.scale.is_some()), (vec!["chat-0"], true));
    assert_eq!(state.view.endpoints.len(), 1);
}

#[test]
fn deletion_costs_are_written_to_pods_of_deployments_only() {
    let mut store = cluster();
    let with_cost = |owner| {
        let cost = crate::cluster::objects::StoredCost { uid: "p".into(), cost: None };
        WatchedPod { deletion_cost: Some(Box::new(cost)), ..pod(owner, Phase::Ready) }
    };
    store.pods.apply(applied("chat-1-a", with_cost("rs-1")));
    store.pods.apply(applied("chat-0", with_cost("sts-1")));
    assert_eq!(store.state().pods.len(), 1);
    store.variants.apply(applied("chat", claim_on("apps", "StatefulSet")));
    list(&mut store.stateful_sets, target("sts-1"));
    assert!(store.state().pods.is_empty(), "a StatefulSet removes its last pod");
}

/// A pod that owns nothing or a StatefulSet, on a node with H100, with 8 GPUs.
fn gpu_pod(uid: &str, owner: &str) -> WatchedPod {
    let gpus = Some(PodGpus { node: "a".into(), count: 8, claims: None });
    WatchedPod { uid: uid.into(), gpus, ..pod(owner, Phase::Ready) }
}

/// The node `a` has 8 GPUs, and its label names them.
fn list_nodes(store: &mut ClusterStore) {
    store.nodes.apply(Event::InitApply((ObjectKey::new("", "a"), Some(gpus(Some("H100"), 0)))));
    store.nodes.apply(Event::InitDone);
}

/// The GPUs of H100 that are in use elsewhere.
fn elsewhere(store: &ClusterStore) -> u32 {
    store.state().view.elsewhere.get("H100").copied().unwrap_or_default()
}

/// `chat` is a LeaderWorkerSet of two groups of two pods with 8 GPUs each, of which the second lacks its worker.
fn leader_worker_set() -> ClusterStore {
    let mut store = cluster();
    store.variants.apply(applied("chat", claim_on("leaderworkerset.x-k8s.io", "LeaderWorkerSet")));
    let template = Template { gpus: Some(16), ..Template::default() };
    list(&mut store.leader_worker_sets, ScaleTarget { group_size: Some(2), template, ..target("lws-1") });
    let owned = |uid: &str, owner: &str| ScaleTarget { owner: Some(owner.into()), ..target(uid) };
    list(&mut store.stateful_sets, owned("leaders", "lws-1"));
    for (name, owner) in [("chat-0", "p-0"), ("chat-1", "p-1"), ("web-0", "p-9")] {
        store
            .stateful_sets
            .apply(Ok(applied(name, owned(&format!("workers-{owner}"), owner))), Instant::now());
    }
    for (name, uid, owner) in [
        ("chat-0", "p-0", "leaders"),
        ("chat-0-1", "p-0-1", "workers-p-0"),
        ("chat-1", "p-1", "leaders"),
        ("web-0", "p-9", "leaders-of-web"),
        ("web-0-1", "p-9-1", "workers-p-9"),
    ] {
        store.pods.apply(applied(name, gpu_pod(uid, owner)));
    }
    list_nodes(&mut store);
    store
}

#[test]
fn a_group_of_a_leader_worker_set_is_one_replica_whose_leader_is_scraped() {
    let store = leader_worker_set();
    let view = store.state().view;
    let variant = &view.variants[0];
    assert_eq!(pod_names(variant), ["chat-0", "chat-1"]);
    let phases: Vec<_> = variant.pods.iter().map(|pod| pod.phase).collect();
    assert_eq!(phases, [Phase::Ready, Phase::Starting], "the second group lacks its worker");
    let scraped: Vec<_> = view.endpoints.iter().map(|endpoint| endpoint.pod.as_str()).collect();
    assert_eq!(scraped, ["chat-0"]);
    assert_eq!(elsewhere(&store), 16, "workers are pods of the variant too, and those of web are not");
}

#[test]
fn a_pod_that_only_claims_to_be_of_a_leader_worker_set_is_none_of_its() {
    let mut store = leader_worker_set();
    // Its owner exists and is not owned by the set, is of another namespace, or does not exist.
    store.stateful_sets.apply(Ok(applied("own", target("own"))), Instant::now());
    store.pods.apply(applied("chat-7", gpu_pod("p-7", "own")));
    store.pods.apply(Event::Apply((ObjectKey::new("tenant", "x"), Some(gpu_pod("p-8", "leaders")))));
    store.pods.apply(applied("chat-8", gpu_pod("p-8", "nobody")));
    assert_eq!(elsewhere(&store), 40);
    assert_eq!(store.state().view.variants[0].pods.len(), 2);
}

#[test]
fn a_pod_of_another_namespace_that_names_an_owner_here_is_no_replica() {
    let mut store = cluster();
    for owner in ["rs-1", "d-1"] {
        let key = ObjectKey::new("tenant", owner);
        store.pods.apply(Event::Apply((key, Some(pod(owner, Phase::Ready)))));
    }
    assert_eq!(pod_names(&store.state().view.variants[0]), ["chat-1-a", "chat-1-b"]);
}

#[test]
fn pods_that_a_variant_has_beyond_its_replicas_do_not_hide_their_gpus() {
    let mut store = cluster();
    list_nodes(&mut store);
    // Two replicas of two GPUs each count as the variant's.
    for (index, hidden) in (0..4_u32).zip([4, 12, 20, 28]) {
        store.pods.apply(applied(&format!("more-{index}"), gpu_pod("", "rs-1")));
        assert_eq!(elsewhere(&store), hidden);
    }
    let mut mislabelled = target("d-1");
    mislabelled.accelerator = Some("A100".into());
    store.deployments.apply(applied("chat", mislabelled));
    assert_eq!(elsewhere(&store), 32, "none of them is counted as an H100");
}

#[test]
fn pods_that_the_status_of_a_deployment_does_not_count_yet_are_not_in_use_elsewhere() {
    let mut store = cluster();
    list_nodes(&mut store);
    store.pods.apply(applied("starting", gpu_pod("", "rs-1")));
    let mut ordered = target("d-1");
    ordered.scale.spec = Replicas::new(4);
    store.deployments.apply(applied("chat", ordered.clone()));
    assert_eq!(elsewhere(&store), 0, "8 GPUs are in use, and four replicas of two are requested");
    ordered.scale = Scale { spec: Replicas::new(2), current: Replicas::new(4), ..ordered.scale };
    store.deployments.apply(applied("chat", ordered));
    assert_eq!(elsewhere(&store), 0, "a rollout runs surge pods");
}

#[test]
fn a_selector_that_finds_every_pod_hides_no_gpus() {
    let mut store = cluster();
    store.variants.apply(applied("chat", claim_on("tenant.example", "Everything")));
    list_nodes(&mut store);
    for index in 0..4 {
        store.pods.apply(applied(&format!("web-{index}"), gpu_pod(&format!("p-{index}"), "rs-9")));
    }
    assert_eq!(elsewhere(&store), 32);
    let selected = (0..4).map(|index| format!("p-{index}").into_boxed_str()).collect();
    let everything = ScaleTarget { selected: Some(selected), ..target("e-1") };
    assert!(store.apply_read(read_key("tenant.example", "Everything"), Ok(Some(everything)), Instant::now()));
    assert_eq!(elsewhere(&store), 28, "two replicas of two GPUs");
}

#[test]
fn a_replica_without_a_template_has_the_gpus_of_its_largest_pod_and_without_pods_an_unknown_number() {
    let mut store = cluster();
    store.variants.apply(applied("chat", claim_on("argoproj.io", "Rollout")));
    let selected = ["p-0", "p-1", "p-2"].map(Box::from);
    let template = Template { gpus: None, ..Template::default() };
    let rollout = ScaleTarget { selected: Some(selected.into()), template, ..target("r-1") };
    store.apply_read(read_key("argoproj.io", "Rollout"), Ok(Some(rollout)), Instant::now());
    let gpus = |store: &ClusterStore| store.state().view.variants[0].template.gpus;
    assert_eq!(gpus(&store), None);
    let pending = WatchedPod { uid: "p-0".into(), ..pod("x", Phase::Pending) };
    store.pods.apply(applied("p-0", pending.clone()));
    assert_eq!(gpus(&store), None, "what it requests is not known before it has a node");
    store.pods.apply(applied("p-0", WatchedPod { phase: Phase::Starting, ..pending }));
    assert_eq!(gpus(&store), Some(1), "at least one, as with a template");
    store.pods.apply(applied("p-1", gpu_pod("p-1", "x")));
    assert_eq!(gpus(&store), Some(8));
}

#[test]
fn a_kind_that_is_not_listed_yet_holds_up_nobody_and_its_targets_do_not_count_as_missing() {
    let mut store = cluster();
    store.variants.apply(Event::InitDone);
    store.variants.apply(applied("chat", claim_on("leaderworkerset.x-k8s.io", "LeaderWorkerSet")));
    store.deployments.apply(Event::InitDone);
    store.replica_sets.apply(Event::InitDone);
    store.pods.apply(Event::InitDone);
    store.ignores_exclusions = true;
    let problem = |store: &ClusterStore| {
        let view = store.state().view;
        assert!(view.synced);
        (view.variants[0].scale.is_some(), view.variants[0].target_problem.clone())
    };
    list(&mut store.stateful_sets, target("sts-1"));
    let now = Instant::now();
    let listing = "the LeaderWorkerSets of the cluster are being listed; wait for that";
    assert_eq!(problem(&store), (false, Some(listing.into())));
    let failed = |cause: &str, is_not_served| Err(WatchProblem { cause: cause.into(), is_not_served });
    assert!(store.leader_worker_sets.apply(failed("they may not be listed", false), now));
    assert_eq!(problem(&store), (false, Some("they may not be listed".into())));
    assert!(!store.leader_worker_sets.apply(failed("they may not be listed", false), now), "nothing new");
    list(&mut store.leader_worker_sets, target("lws-1"));
    assert_eq!(problem(&store), (true, None));
    store.leader_worker_sets.apply(failed("no answer", false), now);
    assert_eq!(problem(&store), (true, None), "what is known stays known while the watch fails");
    store.leader_worker_sets.apply(Ok(Event::Delete((key("chat"), None))), now);
    assert_eq!(problem(&store), (false, None), "it is listed, and not there");
    store.leader_worker_sets.apply(failed("there is no such kind", true), now);
    assert_eq!(problem(&store), (false, Some("there is no such kind".into())));
}

/// The key of a target `llm/chat` that is read.
fn read_key(group: &str, kind: &str) -> TargetKey {
    let target = TargetRef { group: group.into(), kind: kind.into(), name: "chat".into() };
    TargetKey { namespace: "llm".into(), target }
}

/// A store whose variant `chat` is on a Rollout, and an answer with that.
fn rollout() -> (ClusterStore, TargetAnswer) {
    let mut store = cluster();
    store.variants.apply(applied("chat", claim_on("argoproj.io", "Rollout")));
    for (name, uid) in [("ghost", "p-1"), ("web-1-a", "p-2")] {
        store.pods.apply(applied(name, WatchedPod { uid: uid.into(), ..pod("x", Phase::Ready) }));
    }
    // A pod of the same name as one that was selected is another one.
    store.pods.apply(applied("gone", WatchedPod { uid: "p-9".into(), ..pod("x", Phase::Ready) }));
    let selected = ["p-1", "p-2", "p-3"].map(Box::from);
    (store, Ok(Some(ScaleTarget { selected: Some(selected.into()), ..target("r-1") })))
}

/// The answer of a failed read.
fn failed_read(is_not_served: bool) -> TargetAnswer {
    Err(WatchProblem { cause: "no answer".into(), is_not_served })
}

#[test]
fn a_target_of_another_kind_has_the_pods_that_its_selector_finds_and_as_many_ready_as_these() {
    let (mut store, answer) = rollout();
    let state = |store: &ClusterStore| store.state().view.variants[0].clone();
    assert!(state(&store).target_problem.unwrap().contains("not been read yet"));
    assert!(store.apply_read(read_key("argoproj.io", "Rollout"), answer, Instant::now()));
    let variant = state(&store);
    assert_eq!(pod_names(&variant), ["ghost", "web-1-a"]);
    assert_eq!(variant.scale.map(|scale| scale.ready), Some(Replicas::new(2)));
}

#[test]
fn a_target_that_cannot_be_read_keeps_its_scale_until_that_is_too_old() {
    let (mut store, answer) = rollout();
    let (begin, max_stale) = (Instant::now(), Duration::from_secs(300));
    let key = || read_key("argoproj.io", "Rollout");
    store.apply_read(key(), answer, begin);
    assert!(!store.apply_read(key(), failed_read(false), begin + Duration::from_secs(5)));
    assert!(!store.expire(begin + max_stale, max_stale));
    assert!(store.state().view.variants[0].scale.is_some());
    assert!(store.expire(begin + max_stale + Duration::from_secs(1), max_stale));
    let variant = store.state().view.variants[0].clone();
    assert_eq!(variant.scale, None);
    assert_eq!(variant.target_problem.as_deref(), Some("it was last read more than 300 s ago: no answer"));
}

#[test]
fn that_an_object_was_missing_says_nothing_once_reads_fail() {
    let (mut store, _) = rollout();
    let key = || read_key("argoproj.io", "Rollout");
    let state = |store: &ClusterStore| store.state().view.variants[0].clone();
    assert!(store.apply_read(key(), Ok(None), Instant::now()));
    assert_eq!((state(&store).scale, state(&store).target_problem), (None, None));
    assert!(store.apply_read(key(), failed_read(false), Instant::now()));
    assert_eq!(state(&store).target_problem.as_deref(), Some("no answer"));
}

#[test]
fn the_objects_of_a_kind_that_is_gone_are_not_known() {
    let (mut store, answer) = rollout();
    let key = || read_key("argoproj.io", "Rollout");
    store.apply_read(key(), answer, Instant::now());
    assert!(store.apply_read(key(), failed_read(true), Instant::now()));
    assert_eq!(store.state().view.variants[0].target_problem.as_deref(), Some("no answer"));
}

#[test]
fn targets_that_cannot_be_watched_for_too_long_are_unknown_until_they_are_listed_again() {
    let mut store = cluster();
    store.variants.apply(applied("chat", claim_on("apps", "StatefulSet")));
    list(&mut store.stateful_sets, target("sts-1"));
    let (begin, max_stale) = (Instant::now(), Duration::from_secs(300));
    let is_known = |store: &ClusterStore| store.state().view.variants[0].scale.is_some();
    for seconds in [0, 200, 400] {
        let problem = WatchProblem { cause: "no answer".into(), is_not_served: false };
        let now = begin + Duration::from_secs(seconds);
        store.stateful_sets.apply(Err(problem), now);
        assert_eq!(store.expire(now, max_stale), seconds == 400);
        assert_eq!(is_known(&store), seconds < 400, "at {seconds} s");
    }
    store.stateful_sets.apply(Ok(Event::Init), begin);
    assert!(!is_known(&store), "the list may fail too");
    list(&mut store.stateful_sets, target("sts-1"));
    assert!(is_known(&store));
}

#[test]
fn after_a_restart_nothing_is_decided_before_the_targets_that_variants_name_are_known_or_cannot_be() {
    let synced = |store: &ClusterStore| store.state().view.synced;
    let begun = |claim| {
        let (mut store, _) = rollout();
        store.variants.apply(Event::InitDone);
        store.deployments.apply(Event::InitDone);
        store.replica_sets.apply(Event::InitDone);
        store.pods.apply(Event::InitDone);
        store.variants.apply(applied("chat", claim));
        (store.ignores_exclusions, store.awaits_targets) = (true, true);
        assert!(!synced(&store), "its number would be withdrawn");
        store
    };
    let mut read = begun(claim_on("argoproj.io", "Rollout"));
    read.apply_read(read_key("argoproj.io", "Rollout"), failed_read(false), Instant::now());
    assert!(synced(&read), "more is not to be known");
    let mut watched = begun(claim_on("leaderworkerset.x-k8s.io", "LeaderWorkerSet"));
    list(&mut watched.leader_worker_sets, target("lws-1"));
    assert!(!synced(&watched), "its pods are found through StatefulSets");
    list(&mut watched.stateful_sets, target("sts-1"));
    assert!(synced(&watched));
    let mut late = begun(claim_on("apps", "StatefulSet"));
    late.awaits_targets = false;
    assert!(synced(&late), "it was awaited for long enough");
}
