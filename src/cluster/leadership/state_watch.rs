//! Watches which state objects exist, so that a deleted one is written again.

use std::collections::BTreeSet;

use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::{Event, watcher};
use tokio::time::Instant;

use super::state_store::StateStore;
use crate::cluster::watch::watch_health::{watch_config, watch_events};

/// A change of which objects exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Existence {
    /// Exactly these existed when the list was requested.
    Listed(BTreeSet<String>, Instant),
    /// The object of this name was written.
    Written(String),
    /// The object of this name was deleted.
    Deleted(String),
}

/// Every change, and the whole list whenever the watch starts anew. Never ends; only metadata is read.
pub(crate) fn watch_existence(store: &StateStore) -> impl Stream<Item = Existence> + Send + use<> {
    let config = watch_config().labels(&store.selector_of_all());
    let events = watcher(store.metadata_api(), config);
    let hint = "check that the service account may list and watch ConfigMaps in the release namespace; until then a deleted \
                one is written again only when its content changes";
    let mut list = PartialList { requested: Instant::now(), names: BTreeSet::new() };
    watch_events(events, "the names of state objects", hint)
        .filter_map(move |event| std::future::ready(list.apply(event)))
}

/// A list that is being received.
struct PartialList {
    requested: Instant,
    names: BTreeSet<String>,
}

impl PartialList {
    /// Applies an event of the watch; the change it makes, if any.
    fn apply(&mut self, event: Event<PartialObjectMeta<ConfigMap>>) -> Option<Existence> {
        let name = |map: PartialObjectMeta<ConfigMap>| map.metadata.name.unwrap_or_default();
        match event {
            Event::Init => *self = Self { requested: Instant::now(), names: BTreeSet::new() },
            Event::InitApply(map) => drop(self.names.insert(name(map))),
            Event::InitDone => {
                return Some(Existence::Listed(std::mem::take(&mut self.names), self.requested));
            }
            Event::Apply(map) => return Some(Existence::Written(name(map))),
            Event::Delete(map) => return Some(Existence::Deleted(name(map))),
        }
        None
    }
}
