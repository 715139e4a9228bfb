//! Targets that come and go beside the variant that names them: watches, evaluations and statuses together.

use futures::future::BoxFuture;
use wva::cluster::StatusWriter;
use wva::engine::{Clock, Collected, Engine, MetricSource, Parts, Restored, Scope, SourceError, Term};
use wva::telemetry::EvaluationMetrics;
use wva_core::Policy;

use super::*;
use crate::api_server::ApiServer;

const VARIANT: &str = "/apis/llmd.ai/v1alpha1/namespaces/llm/variantautoscalings/chat";
const DEPLOYMENT: &str = "/apis/apps/v1/namespaces/llm/deployments/chat";

/// A source that answers, and has no series.
struct Silent;

impl MetricSource for Silent {
    fn collect<'a>(&'a self, _: &'a Scope) -> BoxFuture<'a, Result<Collected, SourceError>> {
        Box::pin(async { Ok(Collected::default()) })
    }
}

/// The program around an API server.
struct Program {
    api: ApiServer,
    cluster: ClusterReader,
    engine: Arc<Engine>,
    stop: CancellationToken,
}

impl Drop for Program {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Program {
    async fn start(api: ApiServer) -> Self {
        let (watches, cluster) = ClusterWatch::new(api.client(), WatchSettings::default());
        let (board, leadership, stop) = (Board::new(), watch::Sender::new(held()), CancellationToken::new());
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let parts = Parts {
            cluster: Arc::new(cluster.clone()),
            source: Arc::new(Silent),
            clock,
            board: board.clone(),
            leadership: leadership.subscribe(),
            metrics: EvaluationMetrics::register(&mut Registry::default()),
        };
        let engine = Arc::new(Engine::new(parts, Policy::default()));
        engine.take_over(Restored::default(), Term { lease: "l-1".into(), epoch: 1 });
        let (results, lease) = (board.subscribe(), leadership.subscribe());
        let writer =
            StatusWriter::new(api.client(), cluster.clone(), results, lease, "a".into(), |_| Vec::new());
        spawn(watches.run(stop.clone()));
        let stopped = stop.clone();
        spawn(async move {
            writer.run(stopped).await;
            drop(leadership);
        });
        timeout(WRITE_TIMEOUT, cluster.subscribe().wait_for(|state| state.view.synced))
            .await
            .unwrap()
            .unwrap();
        api.until_watched().await;
        Self { api, cluster, engine, stop }
    }

    /// Waits until the variant has a target or has none, decides, and waits for that in the status: status and reason of
    /// `TargetResolved`, and the number.
    async fn decide(&self, has_target: bool) -> (String, Option<u64>) {
        let mut states = self.cluster.subscribe();
        let is_seen = states.wait_for(|state| {
            state.view.variants.first().is_some_and(|state| state.scale.is_some() == has_target)
        });
        drop(timeout(WRITE_TIMEOUT, is_seen).await.expect("the watch shows it").unwrap());
        self.engine.evaluate().await;
        let expected = if has_target { "True" } else { "False" };
        self.api
            .until(WRITE_TIMEOUT, |api| {
                let status = &api.get(VARIANT)?["status"];
                let conditions = status["conditions"].as_array()?;
                let condition = conditions.iter().find(|condition| condition["type"] == "TargetResolved")?;
                let reason = condition["reason"].as_str()?.to_owned();
                let number = status["desiredOptimizedAlloc"]["numReplicas"].as_u64();
                (condition["status"] == expected).then_some((reason, number))
            })
            .await
    }

    fn event_reasons(&self) -> Vec<String> {
        let events = self.api.writes("/apis/events.k8s.io/v1/namespaces/llm/events");
        events.iter().filter_map(|event| Some(event.body["reason"].as_str()?.to_owned())).collect()
    }

    async fn has_event(&self, reason: &str) {
        let is_written = |_: &ApiServer| self.event_reasons().iter().any(|own| own == reason).then_some(());
        self.api.until(WRITE_TIMEOUT, is_written).await;
    }
}

/// A Deployment with two replicas, none of them Ready.
fn deployment(uid: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": { "namespace": "llm", "name": "chat", "uid": uid },
        "spec": { "replicas": 2, "selector": { "matchLabels": { "app": "chat" } }, "template": { "spec": { "containers": [] } } },
        "status": { "replicas": 2 }
    })
}

/// An API server with the variant `llm/chat`, whose status has a number, and nothing else.
fn with_variant() -> ApiServer {
    let api = ApiServer::new();
    let mut variant = variant();
    variant["status"] = json!({ "desiredOptimizedAlloc": { "accelerator": "H100", "numReplicas": 3 } });
    api.put(VARIANT, variant);
    api
}

#[tokio::test]
async fn a_variant_that_was_created_before_its_target_is_decided_about_once_it_is_there() {
    let program = Program::start(with_variant()).await;
    assert_eq!(program.decide(false).await.0, "TargetNotFound");
    program.has_event("TargetNotFound").await;
    program.api.put(DEPLOYMENT, deployment("d-1"));
    assert_eq!(program.decide(true).await, ("TargetFound".to_owned(), Some(3)));
    program.has_event("TargetFound").await;
}

#[tokio::test]
async fn a_target_that_is_deleted_and_created_again_keeps_the_number_of_its_variant() {
    let api = with_variant();
    api.put(DEPLOYMENT, deployment("d-1"));
    let program = Program::start(api).await;
    assert_eq!(program.decide(true).await, ("TargetFound".to_owned(), Some(3)));
    for uid in ["d-2", "d-3"] {
        program.api.delete(DEPLOYMENT);
        assert_eq!(program.decide(false).await, ("TargetNotFound".to_owned(), Some(3)), "{uid}");
        program.has_event("TargetNotFound").await;
        program.api.put(DEPLOYMENT, deployment(uid));
        assert_eq!(program.decide(true).await, ("TargetFound".to_owned(), Some(3)), "{uid}");
    }
    let found = program.event_reasons().iter().filter(|reason| *reason == "TargetFound").count();
    assert!(found >= 1, "{:?}", program.event_reasons());
}

#[tokio::test]
async fn a_variant_that_is_created_again_gets_its_status_at_once() {
    let api = with_variant();
    api.put(DEPLOYMENT, deployment("d-1"));
    let program = Program::start(api).await;
    assert_eq!(program.decide(true).await, ("TargetFound".to_owned(), Some(3)));
    program.api.delete(VARIANT);
    let mut created = variant();
    created["metadata"]["uid"] = json!("u-2");
    program.api.put(VARIANT, created);
    let chat = VariantId::new("llm", "chat");
    let mut states = program.cluster.subscribe();
    let is_seen = states.wait_for(|state| state.objects.get(&chat).is_some_and(|object| object.uid == "u-2"));
    drop(timeout(WRITE_TIMEOUT, is_seen).await.expect("the watch shows it").unwrap());
    assert_eq!(
        program.decide(true).await,
        ("TargetFound".to_owned(), Some(3)),
        "its memory is that of its name"
    );
}
