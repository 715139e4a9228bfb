//! Which state objects are there: whoever writes them learns that somebody deleted one, and writes it again.

use std::collections::BTreeSet;

use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::core::PartialObjectMeta;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{Event, watcher};
use tokio::time::Instant;

use super::state::StateStore;
use super::trouble::{Trouble, backoff, config};

/// What was seen to be missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Missing {
    /// The object of this name is gone.
    Named(String),
    /// Every object but these, when it was asked for.
    AllBut(BTreeSet<String>, Instant),
}

impl Missing {
    /// True when the object of this name, which was last written then, is missing.
    pub(crate) fn has(&self, name: &str, written: Instant) -> bool {
        match self {
            Self::Named(gone) => gone == name,
            Self::AllBut(there, asked) => written < *asked && !there.contains(name),
        }
    }
}

/// What is missing, whenever something is, and what a new list does not have. Never ends; only the names are read.
pub(crate) fn missing(store: &StateStore) -> impl Stream<Item = Missing> + Send + use<> {
    let config = config().labels(&store.every_kind());
    let events = watcher(store.names(), config).backoff(backoff());
    let hint = "check that the service account may list and watch ConfigMaps in the release namespace; until then one that \
                somebody deletes is written again when its content changes";
    let mut trouble = Trouble::new("the names of state objects", hint);
    let mut list = List { asked: Instant::now(), there: BTreeSet::new() };
    events.filter_map(move |event| {
        let missing = match event {
            Ok(event) => {
                trouble.over();
                list.take(event)
            }
            Err(error) => {
                trouble.tell(&error);
                None
            }
        };
        std::future::ready(missing)
    })
}

/// A list that is being read.
struct List {
    asked: Instant,
    there: BTreeSet<String>,
}

impl List {
    /// Takes a step of the watch; what is missing after it.
    fn take(&mut self, event: Event<PartialObjectMeta<ConfigMap>>) -> Option<Missing> {
        let name = |map: PartialObjectMeta<ConfigMap>| map.metadata.name.unwrap_or_default();
        match event {
            Event::Init => (self.asked, self.there) = (Instant::now(), BTreeSet::new()),
            Event::InitApply(map) => drop(self.there.insert(name(map))),
            Event::InitDone => return Some(Missing::AllBut(std::mem::take(&mut self.there), self.asked)),
            Event::Apply(_) => {}
            Event::Delete(map) => return Some(Missing::Named(name(map))),
        }
        None
    }
}
