//! Watches the ConfigMaps that configure decisions: those of the release namespace, also under the names that WVA gave them, and
//! some names in every namespace. Their content is not interpreted here.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::StreamExt;
use futures::stream::{BoxStream, SelectAll};
use k8s_openapi::api::core::v1::{ConfigMap, ObjectReference};
use kube::Resource;
use kube::api::Api;
use kube::runtime::watcher::watcher;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::kind_store::{ObjectStore, StoreEvent};
use super::store_events::store_events;
use super::watch_health::watch_config;
use crate::cluster::objects::{ObjectKey, STATE_LABEL};
use crate::cluster::timer::{DEBOUNCE_WINDOW, sleep_until_due};
use crate::config::policy_config::ConfigMapKind;

/// Bounds of a ConfigMap outside the release namespace. Any tenant may create them, in all of its namespaces, and each entry
/// becomes a whole policy.
const MAX_TENANT_BYTES: usize = 64 * 1024;
const MAX_TENANT_ENTRIES: usize = 300;
/// What to check when they cannot be listed.
const RBAC_HINT: &str =
    "check that the service account may list and watch them by name (the chart's values configMaps.*)";
/// What to check when the ConfigMaps of the release namespace cannot be listed.
const RELEASE_RBAC_HINT: &str = "check that the service account may list and watch all ConfigMaps of its own namespace, or set the \
                                 name of each with its flag (wva serve --help)";

/// ConfigMaps of the release namespace in one answer of a list: each may have 1 MiB, whatever it is for.
const RELEASE_PAGE_SIZE: u32 = 20;

/// Which ConfigMaps to watch.
#[derive(Debug, Clone, Default)]
pub struct ConfigMapSelection {
    /// The release namespace.
    pub release_namespace: String,
    /// The only other namespace to watch; all of them when `None`.
    pub watch_namespace: Option<String>,
    /// Names that count in the release namespace only.
    pub release_names: Vec<String>,
    /// Names that count in every namespace.
    pub names: Vec<String>,
    /// Kinds that count in the release namespace also under the names that WVA gave them.
    pub found_by_known_names: Vec<ConfigMapKind>,
}

impl ConfigMapSelection {
    /// Whether a ConfigMap of the release namespace counts only for a name that WVA gave it.
    fn is_found(&self, name: &str) -> bool {
        let is_watched_by_name = self.release_names.iter().chain(&self.names).any(|own| own == name);
        !is_watched_by_name && self.found_by_known_names.iter().any(|kind| kind.names().is_of_wva(name))
    }
}

/// A ConfigMap.
#[derive(Debug, Clone, PartialEq)]
pub struct WatchedConfigMap {
    /// Its entries by key, or why they are ignored.
    pub entries: Result<Arc<BTreeMap<String, String>>, String>,
    /// For events about it.
    pub(crate) object: ObjectReference,
}

/// The ConfigMaps that exist.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ConfigMaps {
    /// True when every watch has listed once.
    pub listed: bool,
    /// By namespace and name.
    pub maps: BTreeMap<(String, String), WatchedConfigMap>,
}

/// The newest state: any number of readers.
pub type ConfigMapReader = watch::Receiver<Arc<ConfigMaps>>;

/// The watches; [`ConfigMapWatch::run`] them in a task.
pub struct ConfigMapWatch {
    client: kube::Client,
    selection: ConfigMapSelection,
    newest: watch::Sender<Arc<ConfigMaps>>,
}

/// An event, and the index of the watch it is from.
type Change = (usize, StoreEvent<WatchedConfigMap>);

impl ConfigMapWatch {
    /// Watches that have not started, and where to read the ConfigMaps.
    #[must_use]
    pub fn new(client: kube::Client, selection: ConfigMapSelection) -> (Self, ConfigMapReader) {
        let (newest, reader) = watch::channel(Arc::default());
        (Self { client, selection, newest }, reader)
    }

    /// Watches until cancelled.
    pub async fn run(self, cancel: CancellationToken) {
        let mut changes = self.changes();
        let mut stores: Vec<ObjectStore<WatchedConfigMap>> =
            changes.iter().map(|_| ObjectStore::default()).collect();
        let mut merge_at: Option<Instant> = None;
        loop {
            tokio::select! {
                () = cancel.cancelled() => return,
                () = sleep_until_due(merge_at) => {
                    self.newest.send_replace(Arc::new(merge(&stores)));
                    merge_at = None;
                }
                Some((index, event)) = changes.next() => {
                    if stores.get_mut(index).is_some_and(|store| store.apply(event)) {
                        merge_at.get_or_insert_with(|| Instant::now() + DEBOUNCE_WINDOW);
                    }
                }
            }
        }
    }

    /// One watch for each name and namespace, with a field selector for the name, so that RBAC can grant it by name; and one of the
    /// release namespace, if its ConfigMaps may have names that are not known before.
    fn changes(&self) -> SelectAll<BoxStream<'static, Change>> {
        let ConfigMapSelection { release_namespace, watch_namespace, release_names, names, .. } =
            &self.selection;
        let mut watches: Vec<(&String, Option<&String>)> =
            release_names.iter().map(|name| (name, Some(release_namespace))).collect();
        for name in names {
            match watch_namespace {
                None => watches.push((name, None)),
                Some(namespace) => {
                    watches.push((name, Some(release_namespace)));
                    if namespace != release_namespace {
                        watches.push((name, Some(namespace)));
                    }
                }
            }
        }
        let by_name = watches.into_iter().map(|(name, namespace)| {
            let api: Api<ConfigMap> = match namespace {
                Some(namespace) => Api::namespaced(self.client.clone(), namespace),
                None => Api::all(self.client.clone()),
            };
            let by_name = watch_config().fields(&format!("metadata.name={name}"));
            let release_namespace = release_namespace.clone();
            let convert =
                move |map: ConfigMap| (ObjectKey::of(&map.metadata), Some(watched(map, &release_namespace)));
            store_events("ConfigMaps", RBAC_HINT, watcher(api, by_name), convert).boxed()
        });
        let streams = by_name.chain(self.found_in_release_namespace()).enumerate();
        futures::stream::select_all(
            streams.map(|(index, events)| events.map(move |event| (index, event)).boxed()),
        )
    }

    /// The watch of the release namespace, of all ConfigMaps but state, which is large and changes all the time.
    fn found_in_release_namespace(&self) -> Option<BoxStream<'static, StoreEvent<WatchedConfigMap>>> {
        let selection = self.selection.clone();
        if selection.found_by_known_names.is_empty() {
            return None;
        }
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), &selection.release_namespace);
        let not_state = watch_config().labels(&format!("!{STATE_LABEL}")).page_size(RELEASE_PAGE_SIZE);
        let convert = move |map: ConfigMap| {
            let key = ObjectKey::of(&map.metadata);
            let is_found = selection.is_found(&key.name);
            (key, is_found.then(|| watched(map, &selection.release_namespace)))
        };
        Some(store_events("ConfigMaps", RELEASE_RBAC_HINT, watcher(api, not_state), convert).boxed())
    }
}

fn merge(stores: &[ObjectStore<WatchedConfigMap>]) -> ConfigMaps {
    let maps = stores
        .iter()
        .flat_map(ObjectStore::iter)
        .map(|(key, map)| ((key.namespace.to_string(), key.name.to_string()), map.clone()));
    ConfigMaps { listed: stores.iter().all(ObjectStore::has_listed), maps: maps.collect() }
}

/// What is kept of a ConfigMap.
pub(crate) fn watched(map: ConfigMap, release_namespace: &str) -> WatchedConfigMap {
    let is_tenant = map.metadata.namespace.as_deref() != Some(release_namespace);
    let object = map.object_ref(&());
    let entries = map.data.unwrap_or_default();
    let bytes: usize = entries.iter().map(|(key, text)| key.len() + text.len()).sum();
    let entries = if is_tenant && (bytes > MAX_TENANT_BYTES || entries.len() > MAX_TENANT_ENTRIES) {
        Err(format!(
            "it has {} entries and {bytes} bytes; outside namespace {release_namespace} at most {MAX_TENANT_ENTRIES} entries \
             and {MAX_TENANT_BYTES} bytes are read",
            entries.len()
        ))
    } else {
        Ok(Arc::new(entries))
    };
    WatchedConfigMap { entries, object }
}
