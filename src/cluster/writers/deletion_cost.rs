//! Writes `controller.kubernetes.io/pod-deletion-cost` on pods of variants that shrink, so that their ReplicaSet takes those with
//! the least in flight first: only while this instance holds the lease, and few at a time. Which ones these are is in
//! `wva_core::pod_deletion_order`.

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
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use wva_core::pod_deletion_order::DeletionOrder;

use super::status_writer::{FIELD_MANAGER, REQUEST_TIMEOUT, WriteError};
use crate::cluster::objects::{DELETION_COST_ANNOTATION, MarkedPod};
use crate::cluster::watch::ClusterReader;
use crate::cluster::watch::object_store::Observed;
use crate::cluster::watch::watch_health::Told;
use crate::engine::{Leadership, Origin, Published};

/// The cost of the pod that goes first; the next one's is one more. Below zero, so that a pod without a word of ours, and with it
/// every pod of which nothing is known, goes after all of them.
const FIRST: i32 = -1000;
/// How long a pod is left alone after a write, and twice as long after each further one: loads change with every evaluation, the
/// HPA looks every 15 s and by default waits for 300 s before it shrinks, and where its own minimum is above the number it never
/// does. When it does after those 300 s, an order is 90 s old at the most.
const EVERY: Duration = Duration::from_secs(30);
/// The longest of these, and how long a pod is left alone whose annotation is somebody else's: whoever set it meant it.
const LONGEST: Duration = Duration::from_secs(300);
/// Writes at a time.
const CONCURRENCY: usize = 8;
/// The pause after them: at most 100 writes a second.
const PAUSE: Duration = Duration::from_millis(80);
/// Writes after one evaluation. With one in 5 s that is 20 a second, a fifth of what statuses may take.
const MOST: usize = 100;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

/// What became of writes.
#[derive(Debug, Clone, Default)]
pub struct DeletionCostMetrics {
    writes: Family<ResultLabel, Counter>,
}

impl DeletionCostMetrics {
    /// A fresh family, registered in `registry`.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let help = "Writes of the annotation pod-deletion-cost by what became of them: set, removed, left (the pod is gone or \
                    the annotation somebody else's), failed";
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
    rests: Rests,
    told: Told,
}

/// Pods that are left alone, by uid.
type Rests = HashMap<Arc<str>, Rest>;

/// For how long a pod is left alone.
#[derive(Debug, Clone, Copy)]
struct Rest {
    from: Instant,
    lasts: Duration,
}

impl Rest {
    fn is_over(&self, now: Instant) -> bool {
        now >= self.from + self.lasts
    }

    /// It is so long ago that the next one is a first one.
    fn is_forgotten(&self, now: Instant) -> bool {
        now >= self.from + 2 * self.lasts
    }
}

/// An annotation to be written, or removed.
#[derive(Debug)]
struct Work {
    namespace: SmolStr,
    pod: MarkedPod,
    cost: Option<i32>,
}

impl WriteError {
    /// Deleted, made anew under the same name, or with an annotation of somebody else's.
    const fn is_theirs(&self) -> bool {
        matches!(self, Self::Api(kube::Error::Api(status)) if status.code == 404 || status.code == 409)
    }

    /// What it has in common with the same trouble of other pods.
    fn kind(&self) -> String {
        match self {
            Self::Api(kube::Error::Api(status)) => status.code.to_string(),
            Self::Api(_) | Self::Timeout => "no answer".into(),
        }
    }
}

impl DeletionCostWriter {
    /// A writer that has not started. `cluster` has to be told to keep what it needs
    /// ([`crate::cluster::watch::Settings::deletion_cost`]).
    #[must_use]
    pub fn new(
        client: kube::Client,
        cluster: ClusterReader,
        published: watch::Receiver<Arc<Published>>,
        leadership: watch::Receiver<Leadership>,
        metrics: DeletionCostMetrics,
    ) -> Self {
        let (rests, told) = (Rests::default(), Told::default());
        Self { client, cluster, published, leadership, metrics, rests, told }
    }

    /// Writes after every new result until cancelled.
    pub async fn run(mut self, cancel: CancellationToken) {
        while let Some(Ok(())) = cancel.run_until_cancelled(self.published.changed()).await {
            let published = self.published.borrow_and_update().clone();
            if published.origin == Origin::Computed {
                cancel.run_until_cancelled(self.pass(&published)).await;
            }
        }
    }

    /// Writes what differs. Ends early when the lease is lost, or with the first trouble: that is mostly every pod's.
    async fn pass(&mut self, published: &Published) {
        let now = Instant::now();
        self.rests.retain(|_, rest| !rest.is_forgotten(now));
        let work = work(published, &self.cluster.observed(), &self.rests, now);
        for batch in work.chunks(CONCURRENCY) {
            if !self.leadership.borrow().is_mine() {
                return;
            }
            let results = join_all(batch.iter().map(|work| self.write(work))).await;
            let failures =
                batch.iter().zip(results).filter(|(work, result)| !self.note(work, result)).count();
            if failures > 0 {
                return;
            }
            sleep(PAUSE).await;
        }
    }

    /// By server-side apply, without force: an annotation that somebody else wrote stays as it is, and only ours is removed.
    async fn write(&self, work: &Work) -> Result<(), WriteError> {
        let api: Api<PartialObjectMeta<Pod>> = Api::namespaced(self.client.clone(), &work.namespace);
        let patch = Patch::Apply(body(work));
        let parameters = PatchParams::apply(FIELD_MANAGER);
        let answer = timeout(REQUEST_TIMEOUT, api.patch(&work.pod.pod, &parameters, &patch)).await;
        answer.map_err(|_| WriteError::Timeout)?.map(|_| ()).map_err(WriteError::from)
    }

    /// Counts, remembers and tells what became of a write; false when it failed.
    fn note(&mut self, work: &Work, result: &Result<(), WriteError>) -> bool {
        let now = Instant::now();
        let before = self.rests.get(&work.pod.mark.uid);
        let next = before.map_or(EVERY, |rest| (2 * rest.lasts).min(LONGEST));
        let (lasts, label) = match result {
            Ok(()) if work.cost.is_some() => (next, "set"),
            Ok(()) => (next, "removed"),
            Err(error) if error.is_theirs() => (LONGEST, "left"),
            Err(_) => (EVERY, "failed"),
        };
        self.rests.insert(work.pod.mark.uid.clone(), Rest { from: now, lasts });
        self.metrics.writes.get_or_create(&ResultLabel { result: label }).inc();
        let (namespace, pod) = (&work.namespace, &work.pod.pod);
        match result {
            Err(error) if error.is_theirs() => {
                tracing::debug!(%namespace, %pod, %error, "the annotation {DELETION_COST_ANNOTATION} is left as it is");
            }
            Err(error) => {
                if self.told.is_news(&error.kind()) {
                    tracing::warn!(%namespace, %pod, %error, "cannot write the annotation {DELETION_COST_ANNOTATION}: allow the service \
                        account to patch pods (the chart's value podDeletionCost), or do without it; trying again");
                }
                return false;
            }
            Ok(()) if self.told.over() => {
                tracing::info!("writing the annotation {DELETION_COST_ANNOTATION} again")
            }
            Ok(()) => {}
        }
        true
    }
}

/// What differs and is not to be left alone: pods that are to go and do not say so yet, then those whose place has changed, then
/// those that stay.
fn work(published: &Published, observed: &Observed, rests: &Rests, now: Instant) -> Vec<Work> {
    let mut work = Vec::new();
    for (id, victims) in &published.victims {
        for pod in observed.pods.get(id).into_iter().flatten() {
            if let Some(cost) = wanted(victims, &pod.pod)
                && cost != pod.mark.cost
                && (cost.is_some() || pod.mark.cost.is_some_and(is_ours))
                && rests.get(&pod.mark.uid).is_none_or(|rest| rest.is_over(now))
            {
                work.push(Work { namespace: id.namespace.clone(), pod: pod.clone(), cost });
            }
        }
    }
    work.sort_by_key(|one| (one.cost.is_none(), one.pod.mark.cost.is_some()));
    work.truncate(MOST);
    work
}

/// The cost that a pod is to have, if any; `None` when nothing is to be said of it.
fn wanted(victims: &DeletionOrder, pod: &SmolStr) -> Option<Option<i32>> {
    let place = victims.first.iter().position(|one| one == pod);
    let cost = place.map(|place| i32::try_from(place).map_or(-1, |place| (FIRST + place).min(-1)));
    (cost.is_some() || !victims.unknown.contains(pod)).then_some(cost)
}

/// A cost that this writes. What is in a pod's template, or another controller's, is seldom below zero.
fn is_ours(cost: i32) -> bool {
    (FIRST..0).contains(&cost)
}

fn body(work: &Work) -> serde_json::Value {
    let annotations = work.cost.map(|cost| json!({ DELETION_COST_ANNOTATION: cost.to_string() }));
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": work.namespace, "name": work.pod.pod, "uid": &*work.pod.mark.uid,
            "annotations": annotations.unwrap_or_else(|| json!({})),
        },
    })
}
