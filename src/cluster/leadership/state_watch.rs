//! Which state objects exist: whoever writes them learns that somebody deleted one, and writes it again.

use std::collections::BTreeSet;

use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::core::PartialObjectMeta;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{Event, watcher};
use tokio::time::Instant;

use super::state_store::StateStore;
use crate::cluster::watch::watch_health::{Trouble, backoff, config};

/// What the API server says about which objects exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Existence {
    /// These are all there are, when it was asked for.
    Listed(BTreeSet<String>, Instant),
    /// The object of this name was written.
    Written(String),
    /// It was deleted.
    Deleted(String),
}

/// Every change of what exists, and all that does whenever the watch is begun anew. Never ends; only the names are read.
pub(crate) fn existence(store: &StateStore) -> impl Stream<Item = Existence> + Send + use<> {
    let config = config().labels(&store.every_kind());
    let events = watcher(store.names(), config).backoff(backoff());
    let hint = "check that the service account may list and watch ConfigMaps in the release namespace; until then one that \
                somebody deletes is written again when its content changes";
    let mut trouble = Trouble::new("the names of state objects", hint);
    let mut list = List { asked: Instant::now(), names: BTreeSet::new() };
    events.filter_map(move |event| {
        let existence = match event {
            Ok(event) => {
                trouble.over();
                list.take(event)
            }
            Err(error) => {
                trouble.tell(&error);
                None
            }
        };
        std::future::ready(existence)
    })
}

/// A list that is being read.
struct List {
    asked: Instant,
    names: BTreeSet<String>,
}

impl List {
    /// Takes a step of the watch; what it says.
    fn take(&mut self, event: Event<PartialObjectMeta<ConfigMap>>) -> Option<Existence> {
        let name = |map: PartialObjectMeta<ConfigMap>| map.metadata.name.unwrap_or_default();
        match event {
            Event::Init => (self.asked, self.names) = (Instant::now(), BTreeSet::new()),
            Event::InitApply(map) => drop(self.names.insert(name(map))),
            Event::InitDone => return Some(Existence::Listed(std::mem::take(&mut self.names), self.asked)),
            Event::Apply(map) => return Some(Existence::Written(name(map))),
            Event::Delete(map) => return Some(Existence::Deleted(name(map))),
        }
        None
    }
}
