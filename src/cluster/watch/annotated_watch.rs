//! Watches of the HPAs and ScaledObjects that annotations make variants, and of ScaledObjects that are paused. The right to list
//! them may be missing, and KEDA may be absent, arrive later or go: nothing fails, and what is absent is looked for without a word.

use std::time::Duration;

use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt, future};
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use kube::api::Api;
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Error, Event, watcher};
use tokio::time::sleep;

use super::annotated::{Autoscaler, watched_autoscaler};
use super::annotated_objects::{AnnotatedObjects, ListFailure, WatchedAutoscaler};
use super::kind_store::StoreEvent;
use super::object_store::ClusterStore;
use super::partial_objects::ParseGuard;
use super::store_events::{Change, guarded, store_event};
use super::watch_health::{WatchHealth, backoff};
use crate::cluster::objects::VariantKind;

/// How often a kind that does not exist is looked for.
const LOOKUP_INTERVAL: Duration = Duration::from_secs(30);
/// The same before the first list, when the first decision waits for it.
const FIRST_LOOKUP_INTERVAL: Duration = Duration::from_secs(2);
/// Objects in one page of a list. Most are not kept, and an object may have 1 MB.
const PAGE_SIZE: u32 = 50;
/// What to check when the API server refuses a list.
const HINT: &str = "allow the service account to list and watch them (the chart's ClusterRole does), or switch them off \
                    (--annotated-autoscalers=false, the chart's value annotatedAutoscalers)";

/// The changes of the store by HPAs and ScaledObjects; in one namespace, or in all. `with_reads`: also by how HPAs read numbers.
pub(super) fn annotated_changes(
    client: &kube::Client,
    namespace: Option<&str>,
    config: &watcher::Config,
    with_reads: bool,
) -> [BoxStream<'static, Change>; 2] {
    let of_kind = |kind, with_reads, resource: &ApiResource| {
        let api = match namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, resource),
            None => Api::all_with(client.clone(), resource),
        };
        events(kind, with_reads, api, config.clone().page_size(PAGE_SIZE))
    };
    let hpas = ApiResource::erase::<HorizontalPodAutoscaler>(&());
    let scaled_objects = GroupVersionKind::gvk("keda.sh", "v1alpha1", "ScaledObject");
    let scaled_objects = ApiResource::from_gvk_with_plural(&scaled_objects, "scaledobjects");
    [
        changes(of_kind(VariantKind::HorizontalPodAutoscaler, with_reads, &hpas), |store| &mut store.hpas),
        changes(of_kind(VariantKind::ScaledObject, false, &scaled_objects), |store| {
            &mut store.scaled_objects
        }),
    ]
}

fn changes(
    events: impl Stream<Item = Result<StoreEvent<WatchedAutoscaler>, ListFailure>> + Send + 'static,
    objects: fn(&mut ClusterStore) -> &mut AnnotatedObjects,
) -> BoxStream<'static, Change> {
    events
        .map(move |event| Box::new(move |store: &mut ClusterStore| objects(store).apply(event)) as Change)
        .boxed()
}

/// The events of a kind, and why there are none.
fn events(
    kind: VariantKind,
    with_reads: bool,
    api: Api<ParseGuard<Autoscaler>>,
    config: watcher::Config,
) -> impl Stream<Item = Result<StoreEvent<WatchedAutoscaler>, ListFailure>> + Send {
    let resource = match kind {
        VariantKind::ScaledObject => "ScaledObjects",
        _ => "HorizontalPodAutoscalers",
    };
    let mut convert = guarded(resource, move |object| watched_autoscaler(kind, with_reads, object));
    let mut health = WatchHealth::new(resource, HINT);
    let mut is_absent = false;
    let watch = AnnotatedWatch::new(kind, api, config);
    let next = |mut watch: AnnotatedWatch| async move { Some((watch.next().await?, watch)) };
    let events = stream::unfold(watch, next);
    events.filter_map(move |event| {
        future::ready(match event {
            Ok(event) => {
                // A list begins, and may still fail.
                if !matches!(event, Event::Init) {
                    is_absent = false;
                    health.report_recovery();
                }
                Some(Ok(store_event(event, &mut convert)))
            }
            Err(error) => {
                let failure = list_failure(kind, &error);
                match failure {
                    Some(ListFailure::NotServed) => {
                        is_absent = true;
                        health.forget_failure();
                    }
                    // Without an answer, the kind counts as absent as before.
                    Some(ListFailure::Unanswered) if is_absent => {}
                    _ => health.report_failure(&error),
                }
                failure.map(Err)
            }
        })
    })
}

/// Why a list or a watch could not begin; `None` for a watch that merely ended.
fn list_failure(kind: VariantKind, error: &Error) -> Option<ListFailure> {
    let (Error::InitialListFailed(cause) | Error::WatchStartFailed(cause)) = error else { return None };
    let code = if let kube::Error::Api(status) = cause { status.code } else { 0 };
    Some(match code {
        // Every cluster has HPAs.
        404 if kind == VariantKind::ScaledObject => ListFailure::NotServed,
        401 | 403 => ListFailure::Refused,
        _ => ListFailure::Unanswered,
    })
}

/// A watch of a kind, which may not exist.
struct AnnotatedWatch {
    kind: VariantKind,
    api: Api<ParseGuard<Autoscaler>>,
    config: watcher::Config,
    events: BoxStream<'static, watcher::Result<Event<ParseGuard<Autoscaler>>>>,
    /// How long to wait until a kind that does not exist is looked for again.
    lookup_in: Option<Duration>,
    /// A list ended, or its kind has been looked for twice.
    is_known: bool,
}

impl AnnotatedWatch {
    fn new(kind: VariantKind, api: Api<ParseGuard<Autoscaler>>, config: watcher::Config) -> Self {
        let events = Self::begin(&api, &config);
        Self { kind, api, config, events, lookup_in: None, is_known: false }
    }

    fn begin(
        api: &Api<ParseGuard<Autoscaler>>,
        config: &watcher::Config,
    ) -> BoxStream<'static, watcher::Result<Event<ParseGuard<Autoscaler>>>> {
        watcher(api.clone(), config.clone()).backoff(backoff()).boxed()
    }

    async fn next(&mut self) -> Option<watcher::Result<Event<ParseGuard<Autoscaler>>>> {
        if let Some(wait) = self.lookup_in.take() {
            sleep(wait).await;
            // Listed anew: the watch would continue from a version at which the kind did not exist, or had other objects.
            self.events = Self::begin(&self.api, &self.config);
        }
        let event = self.events.next().await?;
        match &event {
            Ok(Event::InitDone) => self.is_known = true,
            Err(error) if list_failure(self.kind, error) == Some(ListFailure::NotServed) => {
                let was_known = std::mem::replace(&mut self.is_known, true);
                self.lookup_in = Some(if was_known { LOOKUP_INTERVAL } else { FIRST_LOOKUP_INTERVAL });
            }
            _ => {}
        }
        Some(event)
    }
}
