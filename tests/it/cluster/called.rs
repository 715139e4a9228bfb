//! ScaledObjects that KEDA's calls make variants: noted by one instance, shared through a ConfigMap, read one by one.

use tokio::time::sleep;
use wva::cluster::{CallRegister, ClusterState};

use super::*;
use crate::api_server::ApiServer;

const SCALED_OBJECTS: &str = "/apis/keda.sh/v1alpha1/scaledobjects";
const CALLS: &str = "/api/v1/namespaces/wva/configmaps/wva-state-calls-0";

/// A ScaledObject whose trigger names a model.
fn scaled_object(name: &str, target: &str) -> Value {
    let metadata = json!({ "scalerAddress": "wva:9443", "modelID": "org/m", "variantCost": "2.5" });
    json!({
        "apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject",
        "metadata": { "namespace": "llm", "name": name, "creationTimestamp": "2026-01-01T00:00:00Z" },
        "spec": {
            "scaleTargetRef": { "name": target }, "minReplicaCount": 1, "maxReplicaCount": 6,
            "triggers": [{ "type": "external-push", "metadata": metadata }],
        },
    })
}

/// An instance of wva, as far as calls go.
struct Instance {
    register: CallRegister,
    reader: ClusterReader,
    stop: CancellationToken,
}

impl Instance {
    fn start(api: &ApiServer, change: impl FnOnce(&mut WatchSettings)) -> Self {
        let mut settings = WatchSettings::default();
        change(&mut settings);
        let register = CallRegister::new(Arc::new(SystemClock), settings.namespace.clone());
        let (watches, reader) = ClusterWatch::new(api.client(), settings);
        let stop = CancellationToken::new();
        spawn(watches.with_called(register.subscribe()).run(stop.clone()));
        spawn(register.clone().run(state_store(api.client()), stop.clone()));
        Self { register, reader, stop }
    }

    async fn once(&self, is_expected: impl Fn(&ClusterState) -> bool) -> Arc<ClusterState> {
        once(&self.reader, is_expected).await
    }

    /// Why the ScaledObject makes no variant of its own.
    async fn refusal(&self, name: &str) -> String {
        let id = VariantId::new("llm", name);
        let is_refused = |state: &ClusterState| {
            state
                .called
                .get(&id)
                .is_some_and(|verdict| verdict.as_ref().is_err_and(|cause| !cause.contains("not been read")))
        };
        let state = self.once(is_refused).await;
        state.called[&id].clone().unwrap_err().to_string()
    }
}

fn names(state: &ClusterState) -> Vec<&str> {
    state.view.variants.iter().map(|state| state.variant.id.name.as_str()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_call_alone_makes_a_variant_of_every_instance_and_a_restart_keeps_it() {
    let api = ApiServer::new();
    api.put_in(SCALED_OBJECTS, scaled_object("chat-scaler", "chat"));
    let (leader, follower) = (Instance::start(&api, |_| {}), Instance::start(&api, |_| {}));
    assert!(names(&*leader.once(|_| true).await).is_empty(), "nobody called");
    follower.register.note("llm", "chat-scaler", Vec::new).unwrap();
    for instance in [&follower, &leader] {
        let state = instance.once(|state| names(state) == ["chat-scaler"]).await;
        let variant = &state.view.variants[0].variant;
        assert_eq!(
            (variant.model.as_str(), variant.cost.get(), variant.target.name.as_str()),
            ("org/m", 2.5, "chat")
        );
        assert_eq!((variant.bounds.min.get(), variant.bounds.max.unwrap().get()), (1, 6));
        assert_eq!(
            state.view.aliases[&VariantId::new("llm", "chat")],
            "chat-scaler",
            "and by its target's name"
        );
        assert_eq!(state.called[&VariantId::new("llm", "chat-scaler")], Ok(()));
    }
    api.until(Duration::from_secs(5), |api| api.get(CALLS)).await;
    leader.stop.cancel();
    follower.stop.cancel();
    let restarted = Instance::start(&api, |_| {});
    let state = restarted.once(|_| true).await;
    assert_eq!(names(&state), ["chat-scaler"], "nothing was decided without it");
}

#[tokio::test(start_paused = true)]
async fn a_changed_scaled_object_is_read_again_and_a_deleted_one_makes_no_variant() {
    let api = ApiServer::new();
    let path = "/apis/keda.sh/v1alpha1/namespaces/llm/scaledobjects/chat";
    api.put_in(SCALED_OBJECTS, scaled_object("chat", "chat"));
    let instance = Instance::start(&api, |_| {});
    instance.register.note("llm", "chat", Vec::new).unwrap();
    instance.once(|state| names(state) == ["chat"]).await;
    api.change(path, |object| object["spec"]["maxReplicaCount"] = json!(9));
    let is_nine = |state: &ClusterState| {
        state.view.variants.iter().any(|state| state.variant.bounds.max.is_some_and(|max| max.get() == 9))
    };
    instance.once(is_nine).await;
    api.change(path, |object| object["spec"]["triggers"][0]["type"] = json!("cron"));
    assert!(instance.refusal("chat").await.contains("has modelID in its metadata"));
    api.delete(path);
    instance.once(|state| names(state).is_empty()).await;
    sleep(Duration::from_secs(40)).await;
    assert_eq!(instance.refusal("chat").await, "there is no such object");
}

#[tokio::test(start_paused = true)]
async fn a_second_owner_of_a_workload_is_refused_and_gets_the_number_of_the_first() {
    let api = ApiServer::new();
    api.put_in("/apis/llmd.ai/v1alpha1/variantautoscalings", variant());
    let mut older = scaled_object("older", "web");
    older["metadata"]["creationTimestamp"] = json!("2020-01-01T00:00:00Z");
    let mut annotated = scaled_object("annotated", "web");
    annotated["metadata"]["annotations"] = json!({ "llm-d.ai/managed": "true", "llm-d.ai/model-id": "m" });
    for object in [scaled_object("second", "chat"), older, annotated] {
        api.put_in(SCALED_OBJECTS, object);
    }
    let instance = Instance::start(&api, |settings| settings.annotated = true);
    for name in ["second", "older"] {
        instance.register.note("llm", name, Vec::new).unwrap();
    }
    let state = instance.once(|state| state.bystanders.len() == 2).await;
    assert_eq!(names(&state), ["annotated", "chat"]);
    for (name, decider) in [("second", "chat"), ("older", "annotated")] {
        assert_eq!(state.view.aliases[&VariantId::new("llm", name)], decider);
        assert_eq!(state.called[&VariantId::new("llm", name)], Ok(()), "with the number of {decider}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_scaled_object_with_the_name_of_another_workloads_variant_got_its_number() {
    let api = ApiServer::new();
    api.put_in("/apis/llmd.ai/v1alpha1/variantautoscalings", variant());
    api.put_in(SCALED_OBJECTS, scaled_object("chat", "web"));
    let instance = Instance::start(&api, |_| {});
    instance.register.note("llm", "chat", Vec::new).unwrap();
    let refusal = instance.refusal("chat").await;
    assert!(refusal.starts_with("VariantAutoscaling llm/chat has the name of this object"), "{refusal}");
}

#[tokio::test(start_paused = true)]
async fn only_what_this_installation_is_responsible_for_becomes_a_variant() {
    let api = ApiServer::new();
    api.put_in(SCALED_OBJECTS, scaled_object("chat", "chat"));
    let instance = Instance::start(&api, |settings| {
        settings.controller_instance = Some("blue".into());
        settings.namespace = Some("llm".into());
    });
    instance.register.note("llm", "chat", Vec::new).unwrap();
    assert!(instance.refusal("chat").await.contains("wva.llmd.ai/controller-instance"));
    let refused = instance.register.note("other", "chat", Vec::new).unwrap_err();
    assert_eq!(refused, "only namespace llm is watched (--watch-namespace)");
}

#[tokio::test(start_paused = true)]
async fn a_configmap_that_cannot_be_written_keeps_no_variant_from_the_instance_that_was_called() {
    let api = ApiServer::new();
    api.put_in(SCALED_OBJECTS, scaled_object("chat", "chat"));
    api.forbid("/api/v1/namespaces/wva/configmaps");
    let instance = Instance::start(&api, |_| {});
    instance.register.note("llm", "chat", Vec::new).unwrap();
    instance.once(|state| names(state) == ["chat"]).await;
    assert!(api.get(CALLS).is_none());
    api.permit();
    api.until(Duration::from_secs(30), |api| api.get(CALLS)).await;
    api.delete(CALLS);
    api.until(Duration::from_secs(30), |api| api.get(CALLS)).await;
}
