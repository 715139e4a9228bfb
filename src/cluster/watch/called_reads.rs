//! Reads the ScaledObjects that KEDA calls for, one by one: nothing is listed or watched, so the right to `get` them suffices.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{self, BoxStream, FuturesUnordered};
use futures::{FutureExt, StreamExt};
use kube::api::Api;
use kube::core::{ApiResource, GroupVersionKind};
use smol_str::{SmolStr, format_smolstr};
use tokio::sync::watch;
use tokio::time::Instant;
use wva_core::model::TargetRef;

use super::annotated::{Autoscaler, called_object};
use super::called_objects::{CalledAnswer, NoVariant};
use super::called_trigger::ScalerService;
use super::known_targets::TargetKey;
use super::optional_watch::api_of;
use super::partial_objects::ParseGuard;
use super::read_queue::{Outcome, ReadQueue};
use super::store_events::Change;
use super::target_api::{is_missing, problem};
use crate::cluster::crd::CONTROLLER_INSTANCE_LABEL;
use crate::cluster::objects::ObjectKey;
use crate::cluster::requests::{RequestError, bounded};
use crate::cluster::timer::sleep_until_due;

/// Time between two reads of an object, as of a scale target: until then, a workload that the ScaledObject does not scale any more lends its
/// number to the next one. Of many objects it is longer, so that there are at most so many reads in a second.
const READ_INTERVAL: Duration = Duration::from_secs(5);
const READS_PER_SECOND: u32 = 50;
/// Time between the starts of two reads: 2,000 take 10 s, which the first decision waits for.
const START_INTERVAL: Duration = Duration::from_millis(5);
/// What to do when a read is refused.
const RBAC_HINT: &str = "allow the service account to get scaledobjects of keda.sh (the chart's value externalScaler.enabled does)";

/// Which ScaledObjects are noted; `None` before that is known.
pub(super) type Noted = watch::Receiver<Option<Arc<BTreeSet<ObjectKey>>>>;

/// Reads the ScaledObjects that are noted.
pub(super) struct CalledReader {
    client: kube::Client,
    resource: ApiResource,
    controller_instance: Option<SmolStr>,
    service: Option<ScalerService>,
    noted: Noted,
    queue: ReadQueue,
    /// When each was read last.
    answered_at: BTreeMap<ObjectKey, Instant>,
    max_stale: Duration,
    next_start: Instant,
    reads: FuturesUnordered<BoxFuture<'static, (TargetKey, CalledAnswer)>>,
}

impl CalledReader {
    pub(super) fn new(
        client: &kube::Client,
        (controller_instance, service): (Option<SmolStr>, Option<ScalerService>),
        max_stale: Duration,
        mut noted: Noted,
    ) -> Self {
        let kind = GroupVersionKind::gvk("keda.sh", "v1alpha1", "ScaledObject");
        noted.mark_changed();
        Self {
            client: client.clone(),
            resource: ApiResource::from_gvk_with_plural(&kind, "scaledobjects"),
            controller_instance,
            service,
            noted,
            queue: ReadQueue::default(),
            answered_at: BTreeMap::new(),
            max_stale,
            next_start: Instant::now(),
            reads: FuturesUnordered::new(),
        }
    }

    /// A change of the store for each read, and where others are noted.
    pub(super) fn changes(self) -> BoxStream<'static, Change> {
        let next = |mut reader: Self| async move { Some((reader.next().await, reader)) };
        stream::unfold(self, next).boxed()
    }

    async fn next(&mut self) -> Change {
        loop {
            let due = self.start_due();
            tokio::select! {
                Some((key, answer)) = self.reads.next() => {
                    let object = ObjectKey::new(&key.namespace, &key.target.name);
                    let is_answered = !answer.as_ref().is_err_and(|problem| problem.is_unanswered);
                    let outcome = if is_answered { Outcome::Answered } else { Outcome::Failed };
                    let answer = self.unless_old(&object, answer);
                    self.queue.finish(key, outcome, Instant::now());
                    return Box::new(move |store| store.called.apply(&object, answer));
                }
                () = sleep_until_due(due) => {}
                noted = next_noted(&mut self.noted) => {
                    self.answered_at.retain(|object, _| noted.contains(object));
                    let count = u32::try_from(noted.len()).unwrap_or(u32::MAX);
                    self.queue.set_interval(READ_INTERVAL.max(Duration::from_secs(1) * count / READS_PER_SECOND));
                    self.queue.follow(&noted.iter().map(key).collect(), Instant::now());
                    return Box::new(move |store| store.called.follow(&noted));
                }
            }
        }
    }

    /// What was read so long ago that no number may rest on it is not known any more.
    fn unless_old(&mut self, object: &ObjectKey, answer: CalledAnswer) -> CalledAnswer {
        let now = Instant::now();
        match answer {
            Err(NoVariant { cause, is_unanswered: true }) => {
                let read_at = self.answered_at.get(object);
                let is_unanswered = read_at.is_none_or(|at| now.duration_since(*at) <= self.max_stale);
                Err(NoVariant { cause, is_unanswered })
            }
            answer => {
                self.answered_at.insert(object.clone(), now);
                answer
            }
        }
    }

    /// Starts the reads that are due, and says when the next one is.
    fn start_due(&mut self) -> Option<Instant> {
        let now = Instant::now();
        if now < self.next_start {
            return Some(self.next_start);
        }
        match self.queue.next(now) {
            Err(due) => due,
            Ok(key) => {
                let api = api_of(&self.client, Some(key.namespace.as_str()), &self.resource);
                self.reads
                    .push(read(api, key, self.controller_instance.clone(), self.service.clone()).boxed());
                self.next_start = now + START_INTERVAL;
                Some(self.next_start)
            }
        }
    }
}

/// Others that are noted; never resolves once nobody can note any.
async fn next_noted(noted: &mut Noted) -> Arc<BTreeSet<ObjectKey>> {
    loop {
        if noted.changed().await.is_err() {
            return std::future::pending().await;
        }
        if let Some(objects) = noted.borrow_and_update().clone() {
            return objects;
        }
    }
}

fn key(object: &ObjectKey) -> TargetKey {
    let target =
        TargetRef { group: "keda.sh".into(), kind: "ScaledObject".into(), name: (&*object.name).into() };
    TargetKey { namespace: (&*object.namespace).into(), target }
}

async fn read(
    api: Api<ParseGuard<Autoscaler>>,
    key: TargetKey,
    controller_instance: Option<SmolStr>,
    service: Option<ScalerService>,
) -> (TargetKey, CalledAnswer) {
    let answer = match bounded(api.get(&key.target.name)).await {
        Ok(ParseGuard(object)) => {
            let metadata =
                object.as_ref().map_or_else(|invalid| &invalid.metadata, |object| &object.metadata);
            let label = metadata.labels.as_ref().and_then(|labels| labels.get(CONTROLLER_INSTANCE_LABEL));
            let is_ours =
                controller_instance.as_ref().is_none_or(|own| label.is_some_and(|label| label == own));
            match called_object(object, service.as_ref()) {
                _ if !is_ours => Err(answered(format_smolstr!(
                    "it is not of this installation: give it the label {CONTROLLER_INSTANCE_LABEL} of that, or call another one"
                ))),
                made => made.map(Arc::new).map_err(answered),
            }
        }
        Err(error) => Err(failed(&error, &key.target.name)),
    };
    (key, answer)
}

fn answered(cause: SmolStr) -> NoVariant {
    NoVariant { cause, is_unanswered: false }
}

fn failed(error: &RequestError, name: &str) -> NoVariant {
    match error {
        RequestError::Api(cause) if is_missing(cause, name) => {
            answered(SmolStr::new_static("there is no such object"))
        }
        RequestError::Api(cause) => {
            NoVariant { cause: problem(cause, "ScaledObjects", RBAC_HINT).cause, is_unanswered: true }
        }
        RequestError::Timeout(_) => {
            NoVariant { cause: format_smolstr!("{error}; it is tried again"), is_unanswered: true }
        }
    }
}
