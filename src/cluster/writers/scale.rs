//! Writes the scale of variants that were woken, where that is enabled: from zero to the published number, and nothing else. Only while
//! this instance is the leader in the term in which the number was published, and only a scale that nobody has changed meanwhile.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use kube::core::ApiResource;
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use wva_core::decision::Verdict;
use wva_core::model::{Variant, VariantId};
use wva_core::units::Replicas;

use crate::cluster::crd::PAUSED;
use crate::cluster::requests::{FIELD_MANAGER, LogOnce, RequestError, bounded};
use crate::cluster::watch::{ClusterReader, ClusterState, scale_resource};
use crate::engine::{Board, Leadership, Origin, Published, Term};
use crate::telemetry::WakeMetrics;

/// Writes at a time.
const MAX_CONCURRENT_WRITES: usize = 32;
/// How long a variant that was woken is tried to be scaled: as long as its number waits for it.
const MAX_PENDING: Duration = Duration::from_secs(300);
/// How often a scale is read and written while others change it.
const MAX_ATTEMPTS: usize = 3;
/// What to check when the API server refuses a write.
const HINT: &str = "allow the service account to get and patch scale subresources (the chart's value wakeDirectly; for other kinds \
                    targets.extraRules), or disable --wake-directly";

/// Scales woken variants. [`ScaleWriter::run`] it in a task.
pub struct ScaleWriter {
    client: kube::Client,
    cluster: ClusterReader,
    board: Board,
    published: watch::Receiver<Arc<Published>>,
    leadership: watch::Receiver<Leadership>,
    metrics: WakeMetrics,
    logged: Mutex<LogOnce>,
}

/// How a write ended without a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Written {
    Scaled,
    /// Somebody has scaled it or pauses it, it is gone, or another instance decides.
    Left,
}

/// The variants that were woken and are still at zero, each with the time at which its number was first seen.
#[derive(Default)]
struct Woken(BTreeMap<VariantId, Instant>);

/// A write that is due.
struct Due {
    term: Term,
    variant: Variant,
    replicas: Replicas,
    since: Instant,
}

impl Woken {
    /// What `published` makes due, while the watches know `state`; `woken` are the variants that it and earlier results have woken. A
    /// variant that was woken stays due until it runs, its number is 0, or its time is over, so that a write that failed is tried again with each evaluation.
    fn follow(
        &mut self,
        (published, woken): (&Published, &BTreeSet<VariantId>),
        state: &ClusterState,
        now: Instant,
    ) -> Vec<Due> {
        let mut due = Vec::new();
        let before = std::mem::take(&mut self.0);
        let (Origin::Computed, Some(term)) = (published.origin, &published.term) else { return due };
        for (id, decision) in &published.decisions {
            let Verdict::Target(target) = &decision.verdict else { continue };
            let since = match before.get(id) {
                Some(since) if now - *since < MAX_PENDING => *since,
                None if woken.contains(id) => now,
                _ => continue,
            };
            // The scale target may be another one since.
            let is_decided = state.view.revisions.get(id) == published.revisions.get(id);
            let known = state
                .view
                .variant(id)
                .filter(|_| is_decided)
                .filter(|known| known.scale.is_some_and(|scale| scale.spec == Replicas::ZERO));
            if let Some(known) = known.filter(|_| target.desired > Replicas::ZERO) {
                self.0.insert(id.clone(), since);
                due.push(Due {
                    term: term.clone(),
                    variant: known.variant.clone(),
                    replicas: target.desired,
                    since,
                });
            }
        }
        due
    }
}

impl ScaleWriter {
    /// A writer that has not started.
    #[must_use]
    pub fn new(
        client: kube::Client,
        cluster: ClusterReader,
        board: Board,
        leadership: watch::Receiver<Leadership>,
        metrics: WakeMetrics,
    ) -> Self {
        let published = board.subscribe();
        Self { client, cluster, board, published, leadership, metrics, logged: Mutex::default() }
    }

    /// Follows what is published until cancelled.
    pub async fn run(self, cancel: CancellationToken) {
        let mut published = self.published.clone();
        let this = Arc::new(self);
        let mut woken = Woken::default();
        let mut writing: BTreeSet<VariantId> = BTreeSet::new();
        let mut waiting: VecDeque<Due> = VecDeque::new();
        let mut writes: FuturesUnordered<BoxFuture<'static, VariantId>> = FuturesUnordered::new();
        loop {
            while writes.len() < MAX_CONCURRENT_WRITES
                && let Some(due) = waiting.pop_front()
            {
                if writing.insert(due.variant.id.clone()) {
                    let this = Arc::clone(&this);
                    writes.push(async move { this.write(due).await }.boxed());
                }
            }
            tokio::select! {
                () = cancel.cancelled() => return,
                Some(id) = writes.next() => {
                    writing.remove(&id);
                }
                changed = published.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    let newest = published.borrow_and_update().clone();
                    let state = this.cluster.state();
                    waiting = woken.follow((&newest, &this.board.take_woken()), &state, Instant::now()).into();
                }
            }
        }
    }

    async fn write(&self, Due { term, variant, replicas, since }: Due) -> VariantId {
        let written = self.scale(&term, &variant, replicas).await;
        if written.as_ref().is_ok_and(|written| *written == Written::Scaled) {
            self.metrics.scaled(since.elapsed());
        }
        self.report(&variant, replicas, &written);
        variant.id
    }

    async fn scale(
        &self,
        term: &Term,
        variant: &Variant,
        replicas: Replicas,
    ) -> Result<Written, RequestError> {
        if self.is_paused(variant) {
            return Ok(Written::Left);
        }
        let Some(resource) = scale_resource(&self.client, &variant.target).await else {
            return Ok(Written::Left);
        };
        let mut attempts = 0;
        loop {
            attempts += 1;
            match self.try_scale(term, variant, replicas, &resource).await {
                Err(error) if error.is_conflict() && attempts < MAX_ATTEMPTS => {}
                Err(error) if error.is_not_found() => return Ok(Written::Left),
                written => return written,
            }
        }
    }

    async fn try_scale(
        &self,
        term: &Term,
        variant: &Variant,
        replicas: Replicas,
        resource: &ApiResource,
    ) -> Result<Written, RequestError> {
        let name = variant.target.name.as_str();
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), &variant.id.namespace, resource);
        let scale = bounded(api.get_scale(name)).await?;
        // The API server leaves out a 0.
        let current = scale.spec.and_then(|spec| spec.replicas).unwrap_or_default();
        if current != 0 || !self.is_mine(term) {
            return Ok(Written::Left);
        }
        // With the version that was read, so that nothing is written over what somebody has set meanwhile.
        let patch = json!({
            "metadata": { "resourceVersion": scale.metadata.resource_version },
            "spec": { "replicas": replicas.get() },
        });
        let parameters = PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..PatchParams::default() };
        bounded(api.patch_scale(name, &parameters, &Patch::Merge(patch))).await?;
        Ok(Written::Scaled)
    }

    /// True while this instance decides in `term`.
    fn is_mine(&self, term: &Term) -> bool {
        let leadership = self.leadership.borrow();
        leadership.is_mine() && leadership.term().as_ref() == Some(term)
    }

    /// A person has paused what scales it, or that is not known.
    fn is_paused(&self, variant: &Variant) -> bool {
        let state = self.cluster.state();
        let object = state.objects.get(&variant.id);
        let is_noticed =
            object.is_some_and(|object| object.notices.iter().any(|notice| notice.reason == PAUSED));
        !state.knows_pauses || is_noticed || state.pauses.contains_key(&variant.id)
    }

    fn report(&self, variant: &Variant, replicas: Replicas, written: &Result<Written, RequestError>) {
        let (id, target) = (&variant.id, variant.target.to_string());
        match written {
            Ok(Written::Scaled) => {
                if self.logged.lock().clear() {
                    tracing::info!("scale subresources can be written again");
                }
                tracing::info!(variant = %id, target, replicas = replicas.get(), "scaled from zero");
            }
            Ok(Written::Left) => {
                self.metrics.scale_written("left");
                tracing::debug!(variant = %id, target, "its scale is left as it is");
            }
            Err(error) => {
                self.metrics.scale_written("failed");
                // The same error of other objects has other names in its text.
                let kind = error.code().map_or_else(|| "no answer".to_owned(), |code| code.to_string());
                if self.logged.lock().is_new(&kind) {
                    let error = error.with_hint(HINT);
                    tracing::warn!(variant = %id, target, error, "cannot scale a woken variant; its autoscaler does");
                }
            }
        }
    }
}
