//! Writes `controller.kubernetes.io/pod-deletion-cost` on pods of variants that shrink, so that their ReplicaSet removes the
//! pods with the fewest requests in flight first: only while this instance is the leader, and few at a time. `wva_core`
//! computes the order.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, Patch, PatchParams};
use kube::core::PartialObjectMeta;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use serde_json::json;
use smol_str::SmolStr;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use wva_core::pod_deletion_order::DeletionOrder;

use crate::cluster::objects::{DELETION_COST_ANNOTATION, PodWithCost};
use crate::cluster::requests::{FIELD_MANAGER, LogOnce, RequestError, bounded};
use crate::cluster::watch::{ClusterReader, ClusterState};
use crate::engine::{Leadership, Origin, Published};

/// The cost of the pod that goes first; the next one's is one more. Below zero, because a pod without the annotation has
/// cost 0 and must go after all of these.
const FIRST_COST: i32 = -1000;
/// How long a pod is left alone after the first write; twice as long after each further one. Load changes with every
/// evaluation, but the HPA looks every 15 s, by default waits 300 s before it shrinks, and never shrinks below its own
/// minimum. With this back-off an order is at most 90 s old after those 300 s.
const MIN_BACKOFF: Duration = Duration::from_secs(30);
/// The longest such wait, and that for a pod whose annotation another field manager set.
const MAX_BACKOFF: Duration = Duration::from_secs(300);
/// Writes at a time.
const MAX_CONCURRENT_WRITES: usize = 8;
/// The pause after that many writes: at most 100 writes a second.
const BATCH_INTERVAL: Duration = Duration::from_millis(80);
/// Most writes after one evaluation. With one evaluation in 5 s that is 20 a second, a fifth of what statuses may take.
const MAX_WRITES: usize = 100;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

/// Counts writes by their result.
#[derive(Debug, Clone, Default)]
pub struct DeletionCostMetrics {
    writes: Family<ResultLabel, Counter>,
}

impl DeletionCostMetrics {
    /// A new family, registered in `registry`.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let help = "Writes of the annotation pod-deletion-cost by result: set, removed, left (the pod is gone, or another \
                    field manager owns the annotation), failed";
        registry.register("wva_pod_deletion_cost_writes", help, metrics.writes.clone());
        metrics
    }
}

/// Keeps annotations in step with decisions. [`DeletionCostWriter::run`] it in a task.
pub struct DeletionCostWriter {
    client: kube::Client,
    cluster: ClusterReader,
    published: watch::Receiver<Arc<Published>>,
    leadership: watch::Receiver<Leadership>,
    metrics: DeletionCostMetrics,
    backoffs: PodBackoffs,
    logged: LogOnce,
}

/// Pods that are left alone, by uid.
type PodBackoffs = HashMap<Arc<str>, PodBackoff>;

/// For how long a pod is left alone.
#[derive(Debug, Clone, Copy)]
struct PodBackoff {
    since: Instant,
    duration: Duration,
}

impl PodBackoff {
    fn is_over(&self, now: Instant) -> bool {
        now >= self.since + self.duration
    }

    /// True when the next wait is [`MIN_BACKOFF`] again.
    fn is_expired(&self, now: Instant) -> bool {
        now >= self.since + 2 * self.duration
    }
}

/// What is to become of the cost of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CostChange {
    Set(i32),
    Remove,
}

/// A change that is to be written.
#[derive(Debug)]
struct CostUpdate {
    namespace: SmolStr,
    pod: PodWithCost,
    change: CostChange,
}

impl DeletionCostWriter {
    /// A writer that has not started. `cluster` must keep the deletion costs of pods
    /// ([`crate::cluster::WatchSettings::deletion_cost`]).
    #[must_use]
    pub fn new(
        client: kube::Client,
        cluster: ClusterReader,
        published: watch::Receiver<Arc<Published>>,
        leadership: watch::Receiver<Leadership>,
        metrics: DeletionCostMetrics,
    ) -> Self {
        let backoffs = PodBackoffs::default();
        Self { client, cluster, published, leadership, metrics, backoffs, logged: LogOnce::default() }
    }

    /// Writes after every new result until cancelled.
    pub async fn run(mut self, cancel: CancellationToken) {
        while let Some(Ok(())) = cancel.run_until_cancelled(self.published.changed()).await {
            let published = self.published.borrow_and_update().clone();
            if published.origin == Origin::Computed {
                cancel.run_until_cancelled(self.write_all(published)).await;
            }
        }
    }

    /// Writes what differs. Stops when the lease is lost, and after a batch with an error: it mostly concerns every pod.
    async fn write_all(&mut self, published: Arc<Published>) {
        let now = Instant::now();
        self.backoffs.retain(|_, backoff| !backoff.is_expired(now));
        let updates = updates(&published, &self.cluster.state(), &self.backoffs, now);
        drop(published); // the writes may take minutes
        for batch in updates.chunks(MAX_CONCURRENT_WRITES) {
            if !self.leadership.borrow().is_mine() {
                return;
            }
            let results = join_all(batch.iter().map(|update| self.write(update))).await;
            let failures =
                batch.iter().zip(results).filter(|(update, result)| !self.record(update, result)).count();
            if failures > 0 {
                return;
            }
            sleep(BATCH_INTERVAL).await;
        }
    }

    /// By server-side apply without force: an annotation of another field manager stays, and only ours is removed.
    async fn write(&self, update: &CostUpdate) -> Result<(), RequestError> {
        let api: Api<PartialObjectMeta<Pod>> = Api::namespaced(self.client.clone(), &update.namespace);
        let patch = Patch::Apply(body(update));
        let parameters = PatchParams::apply(FIELD_MANAGER);
        bounded(api.patch(&update.pod.name, &parameters, &patch)).await.map(drop)
    }

    /// Counts and logs the result of a write; false when it failed.
    fn record(&mut self, update: &CostUpdate, result: &Result<(), RequestError>) -> bool {
        let CostUpdate { namespace, pod: PodWithCost { name: pod, stored }, change } = update;
        let before = self.backoffs.get(&stored.uid);
        let next = before.map_or(MIN_BACKOFF, |backoff| (2 * backoff.duration).min(MAX_BACKOFF));
        // Deleted, recreated under the same name, or annotated by another field manager.
        let is_left = |error: &RequestError| error.is_not_found() || error.is_conflict();
        let (duration, label) = match result {
            Ok(()) => match change {
                CostChange::Set(_) => (next, "set"),
                CostChange::Remove => (next, "removed"),
            },
            Err(error) if is_left(error) => (MAX_BACKOFF, "left"),
            Err(_) => (MIN_BACKOFF, "failed"),
        };
        self.backoffs.insert(stored.uid.clone(), PodBackoff { since: Instant::now(), duration });
        self.metrics.writes.get_or_create(&ResultLabel { result: label }).inc();
        match result {
            Err(error) if is_left(error) => {
                tracing::debug!(%namespace, %pod, %error, "the annotation {DELETION_COST_ANNOTATION} is left as it is");
                true
            }
            Err(error) => {
                // The same error of other pods has other names in its text.
                let kind = error.code().map_or_else(|| "no answer".to_owned(), |code| code.to_string());
                if self.logged.is_new(&kind) {
                    tracing::warn!(%namespace, %pod, %error, "cannot write the annotation {DELETION_COST_ANNOTATION}: allow \
                        the service account to patch pods (the chart's value podDeletionCost), or disable it; retrying");
                }
                false
            }
            Ok(()) => {
                if self.logged.clear() {
                    tracing::info!("writing the annotation {DELETION_COST_ANNOTATION} again");
                }
                true
            }
        }
    }
}

/// What differs and is due: first pods that are to go and have no cost yet, then pods whose place has changed, then those
/// that stay.
fn updates(
    published: &Published,
    state: &ClusterState,
    backoffs: &PodBackoffs,
    now: Instant,
) -> Vec<CostUpdate> {
    let mut updates = Vec::new();
    for (id, order) in &published.deletion_orders {
        for pod in state.pods.get(id).into_iter().flatten() {
            if let Some(change) = cost_change(order, pod)
                && backoffs.get(&pod.stored.uid).is_none_or(|backoff| backoff.is_over(now))
            {
                updates.push(CostUpdate { namespace: id.namespace.clone(), pod: pod.clone(), change });
            }
        }
    }
    updates.sort_by_key(|update| (update.change == CostChange::Remove, update.pod.stored.cost.is_some()));
    updates.truncate(MAX_WRITES);
    updates
}

/// What is to become of the cost of `pod`; `None` when it stays as it is.
fn cost_change(order: &DeletionOrder, pod: &PodWithCost) -> Option<CostChange> {
    let stored = pod.stored.cost;
    if let Some(place) = order.first.iter().position(|name| *name == pod.name) {
        let cost = i32::try_from(place).map_or(-1, |place| (FIRST_COST + place).min(-1));
        return (stored != Some(cost)).then_some(CostChange::Set(cost));
    }
    let is_removed = stored.is_some_and(is_own_cost) && !order.unknown.contains(&pod.name);
    is_removed.then_some(CostChange::Remove)
}

/// True for a cost that is written here. One from a pod template or another controller is seldom below zero.
fn is_own_cost(cost: i32) -> bool {
    (FIRST_COST..0).contains(&cost)
}

/// With the uid, so that a later pod of the same name is never written to, and nothing is created.
fn body(update: &CostUpdate) -> serde_json::Value {
    // An apply without the annotation removes the one that this field manager owns.
    let annotations = match update.change {
        CostChange::Set(cost) => json!({ DELETION_COST_ANNOTATION: cost.to_string() }),
        CostChange::Remove => json!({}),
    };
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": update.namespace, "name": update.pod.name, "uid": &*update.pod.stored.uid,
            "annotations": annotations,
        },
    })
}
