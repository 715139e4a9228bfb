//! The ConfigMaps that say what decisions are tuned by: in our own namespace, and, of some names, in any. What they say is
//! not understood here.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::{BoxStream, SelectAll};
use k8s_openapi::api::core::v1::{ConfigMap, ObjectReference};
use kube::Resource;
use kube::api::Api;
use kube::runtime::watcher::watcher;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::cluster_watch::{key, steps};
use super::object_store::{Step, Table};
use super::watch_health::config;

/// How long changes are gathered: what one `kubectl apply` changes is seen at once.
const DEBOUNCE: Duration = Duration::from_millis(100);
/// What is read of a ConfigMap in another namespace than ours, in bytes and entries. Anybody may make one, in as many
/// namespaces as he has, and each entry becomes a whole policy.
const MOST_ELSEWHERE: usize = 64 * 1024;
const MOST_ENTRIES_ELSEWHERE: usize = 300;
/// The next step when they cannot be listed.
const HINT: &str =
    "check that the service account may list and watch them by name (the chart's values configMaps.*)";

/// What to watch.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// Our own namespace.
    pub home: String,
    /// The only other namespace to look at; all of them when `None`.
    pub namespace: Option<String>,
    /// Names that count in our namespace only.
    pub at_home: Vec<String>,
    /// Names that count in every namespace.
    pub anywhere: Vec<String>,
}

/// A ConfigMap.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// Its entries by key, or why they are not read.
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
    pub found: BTreeMap<(String, String), Found>,
}

/// The newest state: any number of readers.
pub type ConfigMapReader = watch::Receiver<Arc<ConfigMaps>>;

/// The watches; [`ConfigMapWatch::run`] them in a task.
pub struct ConfigMapWatch {
    client: kube::Client,
    settings: Settings,
    newest: watch::Sender<Arc<ConfigMaps>>,
}

/// One watch's step.
type Change = (usize, Step<Found>);

impl ConfigMapWatch {
    /// Watches that have not started, and where to read what they see.
    #[must_use]
    pub fn new(client: kube::Client, settings: Settings) -> (Self, ConfigMapReader) {
        let (newest, reader) = watch::channel(Arc::default());
        (Self { client, settings, newest }, reader)
    }

    /// Watches until cancelled.
    pub async fn run(self, cancel: CancellationToken) {
        let mut changes = self.changes();
        let mut tables: Vec<Table<Found>> = changes.iter().map(|_| Table::default()).collect();
        let mut due: Option<Instant> = None;
        loop {
            let at = due.unwrap_or_else(Instant::now);
            tokio::select! {
                () = cancel.cancelled() => return,
                () = sleep_until(at), if due.is_some() => {
                    self.newest.send_replace(Arc::new(together(&tables)));
                    due = None;
                }
                Some((number, step)) = changes.next() => {
                    if tables.get_mut(number).is_some_and(|table| table.apply(step)) {
                        due.get_or_insert_with(|| Instant::now() + DEBOUNCE);
                    }
                }
            }
        }
    }

    /// A watch a name and place, each by the field selector of its name: so rights can be given by name.
    fn changes(&self) -> SelectAll<BoxStream<'static, Change>> {
        let Settings { home, namespace, at_home, anywhere } = &self.settings;
        let mut places: Vec<(&String, Option<&String>)> =
            at_home.iter().map(|name| (name, Some(home))).collect();
        for name in anywhere {
            match namespace {
                None => places.push((name, None)),
                Some(other) if other == home => places.push((name, Some(home))),
                Some(other) => places.extend([(name, Some(home)), (name, Some(other))]),
            }
        }
        let streams = places.into_iter().enumerate().map(|(number, (name, place))| {
            let api: Api<ConfigMap> = match place {
                Some(place) => Api::namespaced(self.client.clone(), place),
                None => Api::all(self.client.clone()),
            };
            let by_name = config().fields(&format!("metadata.name={name}"));
            let home = home.clone();
            let keep = move |map: ConfigMap| (key(&map.metadata), Some(found(map, &home)));
            steps("ConfigMaps", HINT, watcher(api, by_name), keep).map(move |step| (number, step)).boxed()
        });
        futures::stream::select_all(streams)
    }
}

fn together(tables: &[Table<Found>]) -> ConfigMaps {
    let all = tables.iter().flat_map(Table::iter);
    let found =
        all.map(|((namespace, name), found)| ((namespace.to_string(), name.to_string()), found.clone()));
    ConfigMaps { listed: tables.iter().all(Table::has_listed), found: found.collect() }
}

fn found(map: ConfigMap, home: &str) -> Found {
    let elsewhere = map.metadata.namespace.as_deref() != Some(home);
    let object = map.object_ref(&());
    let entries = map.data.unwrap_or_default();
    let bytes: usize = entries.iter().map(|(key, text)| key.len() + text.len()).sum();
    let entries = if elsewhere && (bytes > MOST_ELSEWHERE || entries.len() > MOST_ENTRIES_ELSEWHERE) {
        Err(format!(
            "it has {} entries and {bytes} bytes: at most {MOST_ENTRIES_ELSEWHERE} and {MOST_ELSEWHERE} are read outside namespace {home}",
            entries.len()
        ))
    } else {
        Ok(Arc::new(entries))
    };
    Found { entries, object }
}
