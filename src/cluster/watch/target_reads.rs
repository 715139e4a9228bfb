//! Scale targets of kinds that are known at run time only. The API server says which kinds it serves with a scale subresource
//! (`served_kinds`); the objects that variants name are read (`read_queue` says when), with their scale and the pods that its
//! selector finds, as the HPA controller does. Nothing is listed or watched, so the right to `get` them suffices.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{self, BoxStream, FuturesUnordered};
use futures::{FutureExt, StreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use kube::core::ApiResource;
use smol_str::format_smolstr;
use tokio::sync::watch;
use tokio::time::Instant;
use wva_core::model::TargetRef;

use super::known_targets::{TargetAnswer, TargetKey, WatchProblem};
use super::partial_objects::{ParseGuard, PartialTarget, TargetSpec, TargetStatus};
use super::read_queue::{Outcome, ReadQueue};
use super::scale_target::{ScaleTarget, scale};
use super::served_kinds::{GroupKind, Lookup, ServedKinds, look_up, not_served};
use super::store_events::Change;
use super::target_api::{is_missing, problem, target_api};
use crate::cluster::requests::{RequestError, bounded};
use crate::cluster::timer::sleep_until_due;

/// Time between the starts of two reads: at most 50 objects a second, with three requests each, however many variants name.
const START_INTERVAL: Duration = Duration::from_millis(20);
/// Most objects of a namespace: several times what it has. Each keeps the uids of its pods, at most 6 MB in all.
pub(super) const MAX_TARGETS_OF_NAMESPACE: usize = 100;
/// Most pods of one object. The rest is not seen.
const MAX_PODS: u32 = 1000;
/// What to do when a read is refused.
const RBAC_HINT: &str =
    "allow the service account to get the object and its scale (the chart's value targets.extraRules)";

/// Reads the objects that are wanted.
pub(super) struct TargetReader {
    client: kube::Client,
    wanted: watch::Receiver<BTreeSet<TargetKey>>,
    /// The kinds of the wanted objects.
    named: BTreeSet<GroupKind>,
    kinds: ServedKinds,
    lookup: Option<BoxFuture<'static, Lookup>>,
    queue: ReadQueue,
    next_start: Instant,
    reads: FuturesUnordered<BoxFuture<'static, (TargetKey, TargetAnswer)>>,
}

impl TargetReader {
    pub(super) fn new(client: kube::Client, wanted: watch::Receiver<BTreeSet<TargetKey>>) -> Self {
        Self {
            client,
            wanted,
            named: BTreeSet::new(),
            kinds: ServedKinds::default(),
            lookup: None,
            queue: ReadQueue::default(),
            next_start: Instant::now(),
            reads: FuturesUnordered::new(),
        }
    }

    /// A change of the store for each read.
    pub(super) fn changes(self) -> BoxStream<'static, Change> {
        let next = |mut reader: Self| async move { Some((reader.next().await, reader)) };
        stream::unfold(self, next).boxed()
    }

    async fn next(&mut self) -> Change {
        loop {
            let due = match self.start_due() {
                Ok(change) => return change,
                Err(due) => due,
            };
            tokio::select! {
                Some((key, answer)) = self.reads.next() => return self.finish(key, answer),
                lookup = next_lookup(&mut self.lookup) => {
                    let changed = self.kinds.apply(lookup, &self.named);
                    self.queue.hurry(&changed, Instant::now());
                }
                () = sleep_until_due(due) => {}
                () = next_wanted(&mut self.wanted) => {
                    let wanted = self.wanted.borrow_and_update();
                    self.named = wanted.iter().map(|key| (key.target.group.clone(), key.target.kind.clone())).collect();
                    self.queue.follow(&wanted, Instant::now());
                }
            }
        }
    }

    /// Starts the requests that are due, and says when the next one is. An answer that needs no request is returned at once.
    fn start_due(&mut self) -> Result<Change, Option<Instant>> {
        let now = Instant::now();
        let mut lookup_due = self.kinds.due(&self.named, now).filter(|_| self.lookup.is_none());
        if lookup_due.is_some_and(|due| due <= now) {
            self.kinds.begin(now);
            self.lookup = Some(look_up(self.client.clone(), self.named.clone()).boxed());
            lookup_due = None;
        }
        let read_due = loop {
            if now < self.next_start {
                break Some(self.next_start);
            }
            match self.queue.next(now) {
                Err(due) => break due,
                Ok(key) => match self.kinds.find(&key.target).map(Result::<&ApiResource, _>::cloned) {
                    // The look-up hurries them.
                    None => self.queue.finish(key, Outcome::Failed, now),
                    Some(Err(problem)) => return Ok(self.finish(key, Err(problem))),
                    Some(Ok(resource)) => {
                        self.reads.push(read(self.client.clone(), key, resource).boxed());
                        self.next_start = now + START_INTERVAL;
                    }
                },
            }
        };
        Err(lookup_due.into_iter().chain(read_due).min())
    }

    fn finish(&mut self, key: TargetKey, answer: TargetAnswer) -> Change {
        let outcome = if answer.is_ok() { Outcome::Answered } else { Outcome::Failed };
        if answer.as_ref().is_err_and(|problem| problem.is_not_served) {
            self.kinds.doubt();
        }
        self.queue.finish(key.clone(), outcome, Instant::now());
        Box::new(move |store| store.apply_read(key, answer, Instant::now()))
    }
}

/// The result of the look-up; never resolves while there is none.
async fn next_lookup(lookup: &mut Option<BoxFuture<'static, Lookup>>) -> Lookup {
    let Some(running) = lookup else { return std::future::pending().await };
    let result = running.await;
    *lookup = None;
    result
}

/// Waits until other objects are wanted; for ever once nobody can want any.
async fn next_wanted(wanted: &mut watch::Receiver<BTreeSet<TargetKey>>) {
    if wanted.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

async fn read(client: kube::Client, key: TargetKey, resource: ApiResource) -> (TargetKey, TargetAnswer) {
    let answer = read_target(&client, &key, &resource).await;
    (key, answer)
}

/// An object with its scale and the uids of its pods; `None` when it does not exist.
async fn read_target(client: &kube::Client, key: &TargetKey, resource: &ApiResource) -> TargetAnswer {
    let TargetKey { namespace, target } = key;
    let TargetRef { kind, name, .. } = target;
    let api = target_api(client, Some(namespace.as_str()), resource);
    let object = match bounded(api.get(name)).await {
        Ok(ParseGuard(object)) => object,
        Err(error) => return not_read(error, target),
    };
    // What the kind has in place of a pod template cannot always be read as one.
    let object = object.unwrap_or_else(|invalid| PartialTarget {
        metadata: invalid.metadata,
        spec: TargetSpec::default(),
        status: TargetStatus::default(),
    });
    if object.metadata.deletion_timestamp.is_some() {
        return Ok(None);
    }
    let subresource = match bounded(api.get_scale(name)).await {
        Ok(subresource) => subresource,
        Err(error) => return not_read(error, target),
    };
    let status = subresource.status.unwrap_or_default();
    let Some(selector) = status.selector.filter(|selector| !selector.is_empty()) else {
        let cause = format_smolstr!(
            "the scale of the {kind} has no status.selector, so its pods cannot be found: its definition must set \
             labelSelectorPath"
        );
        return Err(WatchProblem { cause, is_not_served: false });
    };
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let parameters = ListParams::default().labels(&selector).limit(MAX_PODS);
    let pods = bounded(pods.list_metadata(&parameters)).await.map_err(|error| refused(error, kind))?;
    let uids = pods.items.into_iter().filter_map(|pod| pod.metadata.uid.map(String::into_boxed_str));
    // The API server leaves out a 0.
    let requested = subresource.spec.and_then(|spec| spec.replicas).unwrap_or_default();
    Ok(Some(ScaleTarget {
        scale: scale(requested, status.replicas, 0),
        selected: Some(uids.collect()),
        group_size: None,
        ..ScaleTarget::from(&object)
    }))
}

/// The answer where an object or its scale could not be read. A 404 that names the object is about it; any other is about its
/// kind.
fn not_read(error: RequestError, target: &TargetRef) -> TargetAnswer {
    if let RequestError::Api(cause) = &error
        && is_missing(cause, &target.name)
    {
        return Ok(None);
    }
    Err(if error.is_not_found() { not_served(target) } else { refused(error, &target.kind) })
}

fn refused(error: RequestError, kind: &str) -> WatchProblem {
    match error {
        RequestError::Api(error) => problem(&error, kind, RBAC_HINT),
        RequestError::Timeout(_) => {
            WatchProblem { cause: format_smolstr!("{error}; it is tried again"), is_not_served: false }
        }
    }
}
