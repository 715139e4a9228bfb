//! Watches of kinds whose list may be refused, and that may be absent, arrive later or go: nothing fails, and what is absent is
//! looked for without a word.

use std::fmt::Debug;
use std::time::Duration;

use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt, future};
use kube::Resource;
use kube::api::Api;
use kube::core::error_boundary::InvalidObject;
use kube::core::{ApiResource, DynamicResourceScope};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Error, Event, watcher};
use serde::de::DeserializeOwned;
use tokio::time::sleep;

use super::kind_store::StoreEvent;
use super::object_store::ClusterStore;
use super::optional_objects::{ListFailure, OptionalObjects};
use super::partial_objects::ParseGuard;
use super::store_events::{Change, guarded, store_event};
use super::watch_health::{WatchHealth, backoff};

/// How often a kind that does not exist is looked for.
const LOOKUP_INTERVAL: Duration = Duration::from_secs(30);
/// The same before the first list, when the first decision may wait for it.
const FIRST_LOOKUP_INTERVAL: Duration = Duration::from_secs(2);
/// Objects in one page of a list. Most are not kept, and an object may have 1 MB.
const PAGE_SIZE: u32 = 50;

/// A kind that is watched.
#[derive(Debug, Clone, Copy)]
pub(super) struct WatchedKind {
    /// Its objects, for people.
    pub(super) resource: &'static str,
    /// What to check when the API server refuses a list.
    pub(super) hint: &'static str,
    /// False for a kind that every cluster has.
    pub(super) may_be_absent: bool,
}

/// The events of a kind, with what is kept of each object, and why there are none.
pub(super) fn optional_events<K, V>(
    kind: WatchedKind,
    api: Api<ParseGuard<K>>,
    config: watcher::Config,
    convert: impl FnMut(Result<K, InvalidObject>) -> Option<V> + Send + 'static,
) -> impl Stream<Item = Result<StoreEvent<V>, ListFailure>> + Send
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    V: Send + 'static,
{
    let WatchedKind { resource, hint, may_be_absent } = kind;
    let mut convert = guarded(resource, convert);
    let mut health = WatchHealth::new(resource, hint);
    let mut is_absent = false;
    let watch = OptionalWatch::new(may_be_absent, api, config.page_size(PAGE_SIZE));
    let next = |mut watch: OptionalWatch<K>| async move { Some((watch.next().await?, watch)) };
    stream::unfold(watch, next).filter_map(move |event| {
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
                let failure = list_failure(may_be_absent, &error);
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

/// The changes of the store by `events`.
pub(super) fn optional_changes<V: PartialEq + Send + 'static>(
    events: impl Stream<Item = Result<StoreEvent<V>, ListFailure>> + Send + 'static,
    objects: fn(&mut ClusterStore) -> &mut OptionalObjects<V>,
) -> BoxStream<'static, Change> {
    events
        .map(move |event| Box::new(move |store: &mut ClusterStore| objects(store).apply(event)) as Change)
        .boxed()
}

/// The objects of a kind; in one namespace, or in all.
pub(super) fn api_of<K: Resource<DynamicType = ApiResource, Scope = DynamicResourceScope>>(
    client: &kube::Client,
    namespace: Option<&str>,
    resource: &ApiResource,
) -> Api<ParseGuard<K>> {
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, resource),
        None => Api::all_with(client.clone(), resource),
    }
}

/// Why a list or a watch could not begin; `None` for a watch that merely ended.
fn list_failure(may_be_absent: bool, error: &Error) -> Option<ListFailure> {
    let (Error::InitialListFailed(cause) | Error::WatchStartFailed(cause)) = error else { return None };
    let code = if let kube::Error::Api(status) = cause { status.code } else { 0 };
    Some(match code {
        404 if may_be_absent => ListFailure::NotServed,
        401 | 403 => ListFailure::Refused,
        _ => ListFailure::Unanswered,
    })
}

/// A watch of a kind, which may not exist.
struct OptionalWatch<K> {
    may_be_absent: bool,
    api: Api<ParseGuard<K>>,
    config: watcher::Config,
    events: BoxStream<'static, watcher::Result<Event<ParseGuard<K>>>>,
    /// How long to wait until a kind that does not exist is looked for again.
    lookup_in: Option<Duration>,
    /// A list ended, or its kind has been looked for twice.
    is_known: bool,
}

impl<K: Resource + Clone + DeserializeOwned + Debug + Send + 'static> OptionalWatch<K> {
    fn new(may_be_absent: bool, api: Api<ParseGuard<K>>, config: watcher::Config) -> Self {
        let events = Self::begin(&api, &config);
        Self { may_be_absent, api, config, events, lookup_in: None, is_known: false }
    }

    fn begin(
        api: &Api<ParseGuard<K>>,
        config: &watcher::Config,
    ) -> BoxStream<'static, watcher::Result<Event<ParseGuard<K>>>> {
        watcher(api.clone(), config.clone()).backoff(backoff()).boxed()
    }

    async fn next(&mut self) -> Option<watcher::Result<Event<ParseGuard<K>>>> {
        if let Some(wait) = self.lookup_in.take() {
            sleep(wait).await;
            // Listed anew: the watch would continue from a version at which the kind did not exist, or had other objects.
            self.events = Self::begin(&self.api, &self.config);
        }
        let event = self.events.next().await?;
        match &event {
            Ok(Event::InitDone) => self.is_known = true,
            Err(error) if list_failure(self.may_be_absent, error) == Some(ListFailure::NotServed) => {
                let was_known = std::mem::replace(&mut self.is_known, true);
                self.lookup_in = Some(if was_known { LOOKUP_INTERVAL } else { FIRST_LOOKUP_INTERVAL });
            }
            _ => {}
        }
        Some(event)
    }
}
