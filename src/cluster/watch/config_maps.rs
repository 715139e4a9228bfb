//! Watches the ConfigMaps that configure decisions: those of the release namespace, and some names in every namespace. Their
//! content is not interpreted here.

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
use crate::cluster::objects::ObjectKey;
use crate::cluster::timer::{DEBOUNCE_WINDOW, sleep_until_due};

/// Bounds of a ConfigMap outside the release namespace. Any tenant may create them, in all of its namespaces, and each entry
/// becomes a whole policy.
const MAX_TENANT_BYTES: usize = 64 * 1024;
const MAX_TENANT_ENTRIES: usize = 300;
/// What to check when they cannot be listed.
const RBAC_HINT: &str =
    "check that the service account may list and watch them by name (the chart's values configMaps.*)";

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

    /// One watch for each name and namespace, with a field selector for the name, so that RBAC can grant it by name.
    fn changes(&self) -> SelectAll<BoxStream<'static, Change>> {
        let ConfigMapSelection { release_namespace, watch_namespace, release_names, names } = &self.selection;
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
        let streams = watches.into_iter().enumerate().map(|(index, (name, namespace))| {
            let api: Api<ConfigMap> = match namespace {
                Some(namespace) => Api::namespaced(self.client.clone(), namespace),
                None => Api::all(self.client.clone()),
            };
            let by_name = watch_config().fields(&format!("metadata.name={name}"));
            let release_namespace = release_namespace.clone();
            let convert =
                move |map: ConfigMap| (ObjectKey::of(&map.metadata), Some(watched(map, &release_namespace)));
            let events = store_events("ConfigMaps", RBAC_HINT, watcher(api, by_name), convert);
            events.map(move |event| (index, event)).boxed()
        });
        futures::stream::select_all(streams)
    }
}

fn merge(stores: &[ObjectStore<WatchedConfigMap>]) -> ConfigMaps {
    let maps = stores
        .iter()
        .flat_map(ObjectStore::iter)
        .map(|(key, map)| ((key.namespace.to_string(), key.name.to_string()), map.clone()));
    ConfigMaps { listed: stores.iter().all(ObjectStore::has_listed), maps: maps.collect() }
}

fn watched(map: ConfigMap, release_namespace: &str) -> WatchedConfigMap {
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
