//! Events of watches → changes of the store. An object that cannot be parsed stops no watch.

use std::fmt::Debug;

use futures::stream::BoxStream;
use futures::{Stream, StreamExt};
use kube::core::Resource;
use kube::core::error_boundary::InvalidObject;
use kube::runtime::watcher::{self, Event};
use serde::de::DeserializeOwned;

use super::kind_store::StoreEvent;
use super::object_store::ClusterStore;
use super::partial_objects::ParseGuard;
use super::watch_health::watch_events;
use crate::cluster::objects::ObjectKey;
use wva_core::text::plain;

/// Longest parse error in the log: it may repeat what the object's author wrote.
const MAX_ERROR_BYTES: usize = 512;

/// A change of the store; true when something visible changed.
pub(crate) type Change = Box<dyn FnOnce(&mut ClusterStore) -> bool + Send>;

/// The changes that `apply` makes of `events`.
pub(crate) fn changes_by<V: Send + 'static>(
    events: impl Stream<Item = StoreEvent<V>> + Send + 'static,
    apply: fn(&mut ClusterStore, StoreEvent<V>) -> bool,
) -> BoxStream<'static, Change> {
    events.map(move |event| Box::new(move |store: &mut ClusterStore| apply(store, event)) as Change).boxed()
}

/// The events of a watch whose objects may fail to parse: `convert` gets these too.
pub(crate) fn guarded_events<K, V>(
    resource: &'static str,
    hint: &'static str,
    events: impl Stream<Item = watcher::Result<Event<ParseGuard<K>>>> + Send + 'static,
    convert: impl FnMut(Result<K, InvalidObject>) -> Option<V> + Send + 'static,
) -> impl Stream<Item = StoreEvent<V>> + Send
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    V: Send + 'static,
{
    store_events(resource, hint, events, guarded(resource, convert))
}

/// `convert`, for objects that may fail to parse.
pub(crate) fn guarded<K, V>(
    resource: &'static str,
    mut convert: impl FnMut(Result<K, InvalidObject>) -> Option<V>,
) -> impl FnMut(ParseGuard<K>) -> (ObjectKey, Option<V>)
where
    K: Resource,
{
    let mut logged = false;
    move |ParseGuard(object)| {
        let metadata = object.as_ref().map_or_else(|invalid| &invalid.metadata, Resource::meta);
        let key = ObjectKey::of(metadata);
        if let Err(invalid) = &object
            && !std::mem::replace(&mut logged, true)
        {
            let ObjectKey { namespace, name } = &key;
            let error = plain(&invalid.error, MAX_ERROR_BYTES);
            tracing::warn!(%namespace, %name, error, "cannot parse an object of {resource}; further ones are not logged");
        }
        (key, convert(object))
    }
}

/// The events of a watch, with what is kept of each object.
pub(crate) fn store_events<K, V>(
    resource: &'static str,
    hint: &'static str,
    events: impl Stream<Item = watcher::Result<Event<K>>> + Send + 'static,
    mut convert: impl FnMut(K) -> (ObjectKey, Option<V>) + Send + 'static,
) -> impl Stream<Item = StoreEvent<V>> + Send
where
    K: Send + 'static,
    V: Send + 'static,
{
    watch_events(events, resource, hint).map(move |event| store_event(event, &mut convert))
}

/// An event, with what is kept of its object.
pub(crate) fn store_event<K, V>(
    event: Event<K>,
    convert: &mut impl FnMut(K) -> (ObjectKey, Option<V>),
) -> StoreEvent<V> {
    match event {
        Event::Init => Event::Init,
        Event::InitDone => Event::InitDone,
        Event::InitApply(object) => Event::InitApply(convert(object)),
        Event::Apply(object) => Event::Apply(convert(object)),
        Event::Delete(object) => Event::Delete(convert(object)),
    }
}
