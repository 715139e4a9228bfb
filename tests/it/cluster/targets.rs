//! Scale targets of every kind, as an API server has them or does not.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use tokio::time::sleep;
use wva_core::snapshot::VariantState;

use super::*;

/// The API server's answer to a request; `None` for an empty list.
type ApiAnswer = Option<(u16, Value)>;

/// The watches of a cluster with the variant `llm/chat` on a target of this kind.
fn watched(
    version: &str,
    kind: &str,
    mut script: impl FnMut(&ApiRequest) -> ApiAnswer + Send + 'static,
) -> ClusterReader {
    let mut variant = variant();
    variant["spec"]["scaleTargetRef"] = json!({ "apiVersion": version, "kind": kind, "name": "chat" });
    let (client, writes) = server(move |request| match request.path.as_str() {
        _ if request.is_watch() => None,
        "/apis/llmd.ai/v1alpha1/variantautoscalings" => list(json!([variant])),
        _ => script(request).or_else(|| list(json!([]))),
    });
    discard(writes);
    watch_cluster(client, WatchSettings::default())
}

/// The variant once everything is synced and it is as expected.
async fn once(reader: &ClusterReader, is_expected: impl Fn(&VariantState) -> bool) -> VariantState {
    let state = super::once(reader, |state| state.view.variants.first().is_some_and(&is_expected)).await;
    state.view.variants[0].clone()
}

fn has_problem(variant: &VariantState, text: &str) -> bool {
    variant.target_problem.as_ref().is_some_and(|problem| problem.contains(text))
}

/// The object `chat` with two replicas, of which one is ready.
fn chat(spec: Value) -> Value {
    let metadata = json!({ "namespace": "llm", "name": "chat", "uid": "t-1", "resourceVersion": "1" });
    json!({ "metadata": metadata, "spec": spec, "status": { "replicas": 2, "readyReplicas": 1 } })
}

/// What the object of this uid owns.
fn owned_by(owner: &str) -> Value {
    json!([{ "apiVersion": "apps/v1", "kind": "StatefulSet", "name": owner, "uid": owner, "controller": true }])
}

/// A Ready pod of the namespace `llm`, whose uid is its name.
fn pod(name: &str, owner: &str) -> Value {
    let owners = owned_by(owner);
    let ready = json!([{ "type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:01:00Z" }]);
    json!({
        "metadata": {
            "namespace": "llm", "name": name, "uid": name, "ownerReferences": owners,
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": { "nodeName": "n" }, "status": { "podIP": "10.0.0.1", "conditions": ready },
    })
}

fn names(variant: &VariantState) -> Vec<&str> {
    variant.pods.iter().map(|pod| pod.name.as_str()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_stateful_set_is_scaled_and_a_missing_right_is_named() {
    let is_allowed = Arc::new(AtomicBool::new(false));
    let allowed = is_allowed.clone();
    let reader = watched("", "StatefulSet", move |request| match request.path.as_str() {
        "/apis/apps/v1/statefulsets" if allowed.load(Ordering::SeqCst) => {
            list(json!([chat(json!({ "replicas": 2 }))]))
        }
        "/apis/apps/v1/statefulsets" => Some(status(403, "Forbidden")),
        "/api/v1/pods" => list(json!([pod("chat-0", "t-1"), pod("web-0", "t-2")])),
        _ => None,
    });
    let variant =
        once(&reader, |variant| has_problem(variant, "allow the service account to list and watch")).await;
    assert_eq!(variant.scale, None);
    is_allowed.store(true, Ordering::SeqCst);
    let variant = once(&reader, |variant| variant.scale.is_some()).await;
    assert_eq!((names(&variant), variant.target_problem.as_deref()), (vec!["chat-0"], None));
}

#[tokio::test(start_paused = true)]
async fn leader_worker_sets_that_are_installed_later_are_found_without_a_restart() {
    let (is_installed, lists) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let (installed, counted) = (is_installed.clone(), lists.clone());
    let stateful_set = |uid: &str, owner: &str| {
        let metadata =
            json!({ "namespace": "llm", "name": uid, "uid": uid, "ownerReferences": owned_by(owner) });
        json!({ "metadata": metadata, "spec": {} })
    };
    let sets = json!([stateful_set("leaders", "t-1"), stateful_set("workers-0", "chat-0")]);
    let reader = watched("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", move |request| {
        match request.path.as_str() {
            "/apis/leaderworkerset.x-k8s.io/v1/leaderworkersets" => {
                counted.fetch_add(1, Ordering::SeqCst);
                let spec =
                    json!({ "replicas": 2, "leaderWorkerTemplate": { "size": 2, "workerTemplate": {} } });
                if installed.load(Ordering::SeqCst) { list(json!([chat(spec)])) } else { not_found() }
            }
            "/apis/apps/v1/statefulsets" => list(sets.clone()),
            "/api/v1/pods" => list(json!([pod("chat-0", "leaders"), pod("chat-0-1", "workers-0")])),
            _ => None,
        }
    });
    let missing = "the API server serves no LeaderWorkerSets: install LeaderWorkerSet";
    once(&reader, |variant| has_problem(variant, missing)).await;
    sleep(Duration::from_secs(60)).await;
    let count = lists.load(Ordering::SeqCst);
    assert!((3..=12).contains(&count), "{count} lists in a minute");
    is_installed.store(true, Ordering::SeqCst);
    let variant = once(&reader, |variant| variant.scale.is_some()).await;
    assert_eq!(names(&variant), ["chat-0"], "a group is one replica");
}

/// What an API server that has Argo's Rollouts answers about them.
fn rollouts(request: &ApiRequest, is_served: bool) -> ApiAnswer {
    let version = json!({ "groupVersion": "argoproj.io/v1alpha1", "version": "v1alpha1" });
    let resource = |name: &str, kind: &str| json!({ "name": name, "singularName": "", "namespaced": true, "kind": kind, "verbs": ["get"] });
    let meta = |name: &str| json!({ "metadata": { "namespace": "llm", "name": name, "uid": name, "resourceVersion": "1" } });
    let path = request.path.as_str();
    let body = match path {
        "/apis" => {
            let group = json!({ "name": "argoproj.io", "versions": [version], "preferredVersion": version });
            let groups = if is_served { json!([group]) } else { json!([]) };
            json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": groups })
        }
        "/apis/argoproj.io/v1alpha1" => json!({
            "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "argoproj.io/v1alpha1",
            "resources": [resource("rollouts", "Rollout"), resource("rollouts/scale", "Scale")],
        }),
        "/apis/argoproj.io/v1alpha1/namespaces/llm/rollouts/chat" => {
            let containers = json!([{ "resources": { "limits": { "nvidia.com/gpu": "4" } } }]);
            chat(json!({ "replicas": 7, "template": { "spec": { "containers": containers } } }))
        }
        "/apis/argoproj.io/v1alpha1/namespaces/llm/rollouts/chat/scale" => json!({
            "apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": { "namespace": "llm", "name": "chat" },
            "spec": { "replicas": 3 }, "status": { "replicas": 2, "selector": "app=chat,tier in (a,b)" },
        }),
        "/api/v1/namespaces/llm/pods" => {
            assert!(
                request.query.contains("labelSelector=app%3Dchat%2Ctier+in+%28a%2Cb%29"),
                "{}",
                request.query
            );
            return list(json!([meta("chat-x"), meta("chat-y")]));
        }
        "/api/v1/pods" => {
            return list(json!([pod("chat-x", "s-1"), pod("web-0", "s-2")]));
        }
        _ => return None,
    };
    Some((200, body))
}

#[tokio::test(start_paused = true)]
async fn any_kind_with_a_scale_subresource_is_found_by_discovery() {
    let reader = watched("argoproj.io/v1", "Rollout", |request| rollouts(request, true));
    let variant = once(&reader, |variant| variant.scale.is_some()).await;
    let scale = variant.scale.unwrap();
    assert_eq!(
        (scale.spec.get(), scale.current.get(), scale.ready.get()),
        (3, 2, 1),
        "of the scale and its pods"
    );
    assert_eq!((names(&variant), variant.template.gpus), (vec!["chat-x"], Some(4)));
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_is_not_served_is_named_and_looked_up_again() {
    let (is_installed, lookups) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let (installed, counted) = (is_installed.clone(), lookups.clone());
    let reader = watched("argoproj.io/v1alpha1", "Rollout", move |request| {
        counted.fetch_add(u32::from(request.path == "/apis"), Ordering::SeqCst);
        rollouts(request, installed.load(Ordering::SeqCst))
    });
    once(&reader, |variant| has_problem(variant, "serves no Rollout (argoproj.io) with a scale subresource"))
        .await;
    sleep(Duration::from_secs(300)).await;
    let count = lookups.load(Ordering::SeqCst);
    assert!((5..=12).contains(&count), "{count} look-ups in 5 minutes");
    is_installed.store(true, Ordering::SeqCst);
    once(&reader, |variant| variant.scale.is_some()).await;
}

#[tokio::test(start_paused = true)]
async fn a_right_that_is_missing_for_a_kind_is_named() {
    let reader = watched("argoproj.io/v1alpha1", "Rollout", |request| {
        if request.path.ends_with("/scale") {
            Some(status(403, "Forbidden"))
        } else {
            rollouts(request, true)
        }
    });
    once(&reader, |variant| has_problem(variant, "the chart's value targets.extraRules")).await;
}

/// A 404 about the object `chat` itself.
fn no_object() -> ApiAnswer {
    let (code, mut status) = status(404, "NotFound");
    status["details"] = json!({ "name": "chat", "group": "argoproj.io", "kind": "rollouts" });
    Some((code, status))
}

#[tokio::test(start_paused = true)]
async fn only_a_404_that_names_the_object_says_that_it_does_not_exist() {
    let names_it = Arc::new(AtomicBool::new(false));
    let named = names_it.clone();
    let reader = watched("argoproj.io/v1alpha1", "Rollout", move |request| {
        if request.path.ends_with("/rollouts/chat") {
            if named.load(Ordering::SeqCst) { no_object() } else { not_found() }
        } else {
            rollouts(request, true)
        }
    });
    once(&reader, |variant| has_problem(variant, "serves no Rollout (argoproj.io)")).await;
    names_it.store(true, Ordering::SeqCst);
    once(&reader, |variant| variant.scale.is_none() && variant.target_problem.is_none()).await;
}

#[tokio::test(start_paused = true)]
async fn the_first_state_has_the_targets_that_variants_name() {
    for (version, kind) in [("apps/v1", "StatefulSet"), ("argoproj.io/v1alpha1", "Rollout")] {
        let reader = watched(version, kind, |request| match request.path.as_str() {
            "/apis/apps/v1/statefulsets" => list(json!([chat(json!({ "replicas": 2 }))])),
            _ => rollouts(request, true),
        });
        let first =
            timeout(Duration::from_secs(60), until(&reader, |state| state.view.synced)).await.unwrap();
        assert!(first.view.variants[0].scale.is_some(), "{kind}: its number would be withdrawn");
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_state_waits_ten_seconds_for_a_target_that_nobody_answers_about() {
    let begin = Instant::now();
    let reader = watched("argoproj.io/v1alpha1", "Rollout", |request| match request.path.as_str() {
        "/apis" => Some(status(503, "ServiceUnavailable")),
        _ => None,
    });
    once(&reader, |variant| has_problem(variant, "has not been read yet")).await;
    assert!((9..=11).contains(&begin.elapsed().as_secs()), "{:?}", begin.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_comes_back_is_listed_anew_before_its_objects_count() {
    // 0: it is there; 1: it is gone; 2: it is back, with another object.
    let step = Arc::new(AtomicU32::new(0));
    let current = step.clone();
    let mut variant = variant();
    variant["spec"]["scaleTargetRef"] =
        json!({ "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "chat" });
    let (client, writes) =
        server(move |request| match (request.path.as_str(), current.load(Ordering::SeqCst)) {
            ("/apis/apps/v1/statefulsets", 1) => not_found(),
            // The watch breaks, and is to go on from where it was.
            ("/apis/apps/v1/statefulsets", 0) if request.is_watch() => {
                let (_, error) = status(500, "InternalError");
                Some((200, json!({ "type": "ERROR", "object": error })))
            }
            _ if request.is_watch() => None,
            ("/apis/apps/v1/statefulsets", 0) => list(json!([chat(json!({ "replicas": 2 }))])),
            ("/apis/llmd.ai/v1alpha1/variantautoscalings", _) => list(json!([variant])),
            _ => list(json!([])),
        });
    discard(writes);
    let reader = watch_cluster(client, WatchSettings::default());
    once(&reader, |variant| variant.scale.is_some()).await;
    step.store(1, Ordering::SeqCst);
    once(&reader, |variant| has_problem(variant, "serves no StatefulSets")).await;
    step.store(2, Ordering::SeqCst);
    let variant = once(&reader, |variant| variant.target_problem.is_none()).await;
    assert_eq!(variant.scale, None, "the list does not have it");
}
