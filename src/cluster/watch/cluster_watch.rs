//! The watches: API server → tables → the newest [`Observed`]. Never stops for an object it cannot read, nor for a
//! resource that is not installed yet.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, BoxStream, SelectAll};
use futures::{Stream, StreamExt};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::Api;
use kube::core::{NamespaceResourceScope, Resource, error_boundary::InvalidObject};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use wva_core::model::Variant;

use super::convert::{Target, invalid, stored_status, variant_id};
use super::inventory::Gpus;
use super::object_store::{Observed, OwnedSet, Step, Table, Tables};
use super::partial_objects::{
    Guarded, LeanDeployment, LeanNamespace, LeanNode, LeanPod, LeanReplicaSet, controller_uid,
};
use super::pods::SeenPod;
use super::watch_health::{Trouble, backoff, config};
use crate::cluster::crd::{CONTROLLER_INSTANCE_LABEL, VariantAutoscaling};
use crate::cluster::objects::{Key, VariantObject};
use crate::cluster::text::plain;
use crate::engine::{Cluster, ClusterView};

/// How long changes are gathered before the view is made anew: at most 10 rebuilds a second, and a change is seen long
/// before the next evaluation (5 s).
const DEBOUNCE: Duration = Duration::from_millis(100);
/// How long the first view waits for the namespaces, and where the nodes are a limit for these: as long as for other lists that the start can do without. Who may not
/// list them, since its rights are older than this program, has none excluded.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest text in the log of why an object cannot be read: it may repeat what its author wrote.
const MAX_ERROR_BYTES: usize = 512;
/// Annotation of a namespace whose variants are to be left alone, with the value `true`.
const EXCLUDE: &str = "wva.llmd.ai/exclude";
/// Pods that have ended serve nothing: the API server leaves them out.
const LIVE_PODS: &str = "status.phase!=Succeeded,status.phase!=Failed";

/// What to watch.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// Only this namespace; all of them when `None`.
    pub namespace: Option<String>,
    /// Only variants whose label `wva.llmd.ai/controller-instance` has this value; all of them when `None`.
    pub controller_instance: Option<String>,
    /// Only nodes whose labels match this selector; all of them when `None`.
    pub node_selector: Option<String>,
    /// Keep of the pods what it takes to write their deletion cost.
    pub deletion_cost: bool,
}

/// The newest state of the cluster: any number of readers.
#[derive(Debug, Clone)]
pub struct ClusterReader {
    newest: watch::Receiver<Arc<Observed>>,
}

impl ClusterReader {
    /// The newest state.
    #[must_use]
    pub fn observed(&self) -> Arc<Observed> {
        self.newest.borrow().clone()
    }

    /// Wakes at every change.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<Arc<Observed>> {
        self.newest.clone()
    }
}

impl Cluster for ClusterReader {
    fn view(&self) -> Arc<ClusterView> {
        self.newest.borrow().view.clone()
    }
}

/// The watches; [`ClusterWatch::run`] them in a task.
pub struct ClusterWatch {
    client: kube::Client,
    settings: Settings,
    /// Whether anybody wants to know what the nodes have.
    inventory: watch::Receiver<bool>,
    newest: watch::Sender<Arc<Observed>>,
}

impl ClusterWatch {
    /// Watches that have not started, and where to read what they see.
    #[must_use]
    pub fn new(client: kube::Client, settings: Settings) -> (Self, ClusterReader) {
        let (sender, newest) = watch::channel(Arc::default());
        let (_, inventory) = watch::channel(false);
        (Self { client, settings, inventory, newest: sender }, ClusterReader { newest })
    }

    /// With the nodes, for as long as `wanted` says so.
    #[must_use]
    pub fn with_inventory(self, wanted: watch::Receiver<bool>) -> Self {
        Self { inventory: wanted, ..self }
    }

    /// Watches until cancelled.
    pub async fn run(mut self, cancel: CancellationToken) {
        let mut changes = self.changes();
        let mut nodes = stream::pending().boxed();
        self.inventory.mark_changed();
        // Who watches one namespace has been told which: an annotation does not take it away again.
        let mut tables = Tables { none_excluded: self.settings.namespace.is_some(), ..Tables::default() };
        let patience = Instant::now() + PATIENCE;
        let mut nodes_patience = patience;
        let mut rebuild_at: Option<Instant> = None;
        loop {
            let due = rebuild_at.unwrap_or_else(Instant::now);
            tokio::select! {
                () = cancel.cancelled() => return,
                () = sleep_until(patience), if !tables.none_excluded => {
                    tables.none_excluded = true;
                    rebuild_at.get_or_insert_with(Instant::now);
                }
                () = sleep_until(due), if rebuild_at.is_some() => {
                    self.newest.send_replace(Arc::new(tables.observed()));
                    rebuild_at = None;
                }
                wanted = next(&mut self.inventory) => {
                    nodes = if wanted { self.nodes() } else { stream::pending().boxed() };
                    (tables.nodes, tables.awaits_nodes) = (Table::default(), wanted);
                    nodes_patience = Instant::now() + PATIENCE;
                    // At once: an evaluation before that would not know of the limit.
                    rebuild_at = Some(Instant::now());
                }
                () = sleep_until(nodes_patience), if tables.awaits_nodes => {
                    // Who may not list them has no inventory; what is decided without it says so.
                    tables.awaits_nodes = false;
                    rebuild_at.get_or_insert_with(Instant::now);
                }
                Some(change) = changes.next() => {
                    if change.apply(&mut tables) {
                        rebuild_at.get_or_insert_with(|| Instant::now() + DEBOUNCE);
                    }
                }
                Some(step) = nodes.next() => {
                    if tables.nodes.apply(step) {
                        rebuild_at.get_or_insert_with(|| Instant::now() + DEBOUNCE);
                    }
                }
            }
        }
    }

    fn changes(&self) -> SelectAll<BoxStream<'static, Change>> {
        let instance = self.settings.controller_instance.as_ref();
        let selector = instance.map(|value| format!("{CONTROLLER_INSTANCE_LABEL}={value}"));
        let variants = selector.iter().fold(config(), |config, labels| config.labels(labels));
        let hint = "install the definition: kubectl apply -f crds/llmd.ai_variantautoscalings.yaml";
        let variants = guarded("VariantAutoscalings", hint, watcher(self.api(), variants), variant_object);
        let deployments = guarded("Deployments", HINT, watcher(self.api(), config()), target);
        let marks = self.settings.deletion_cost;
        let keep = move |pod| seen_pod(pod, marks);
        let pods = guarded("Pods", HINT, watcher(self.api(), config().fields(LIVE_PODS)), keep);
        let sets = watcher(self.api::<LeanReplicaSet>(), config());
        let sets = steps("ReplicaSets", HINT, sets, |set: LeanReplicaSet| {
            let key = key(&set.metadata);
            (key, owned_set(&set))
        });
        let mut all = stream::select_all([
            variants.map(Change::Variants).boxed(),
            deployments.map(Change::Deployments).boxed(),
            sets.map(Change::ReplicaSets).boxed(),
            pods.map(Change::Pods).boxed(),
        ]);
        if self.settings.namespace.is_none() {
            all.push(self.excluded().map(Change::Excluded).boxed());
        }
        all
    }

    /// The namespaces that are to be left alone.
    fn excluded(&self) -> impl Stream<Item = Step<()>> + Send + use<> {
        let hint =
            "update the chart's ClusterRole; until then the annotation wva.llmd.ai/exclude is not seen";
        let namespaces = watcher(Api::<LeanNamespace>::all(self.client.clone()), config());
        steps("Namespaces", hint, namespaces, |namespace: LeanNamespace| {
            (key(&namespace.metadata), is_excluded(&namespace.metadata).then_some(()))
        })
    }

    fn nodes(&self) -> BoxStream<'static, Step<Gpus>> {
        let selector = self.settings.node_selector.iter();
        let config = selector.fold(config(), |config, labels| config.labels(labels));
        let hint = "allow it with the chart's value limits.inventory, or take enableLimiter out of the saturation ConfigMap";
        let nodes = watcher(Api::<Guarded<LeanNode>>::all(self.client.clone()), config);
        guarded("Nodes", hint, nodes, |node| node.ok().as_ref().and_then(Gpus::of)).boxed()
    }

    fn api<K: Resource<DynamicType = (), Scope = NamespaceResourceScope>>(&self) -> Api<K> {
        match &self.settings.namespace {
            Some(namespace) => Api::namespaced(self.client.clone(), namespace),
            None => Api::all(self.client.clone()),
        }
    }
}

/// The next value, once there is one. Never, when nobody can say any more.
async fn next(wanted: &mut watch::Receiver<bool>) -> bool {
    match wanted.changed().await {
        Ok(()) => *wanted.borrow_and_update(),
        Err(_) => std::future::pending().await,
    }
}

/// The next step when a built-in resource cannot be listed.
const HINT: &str = "check that the service account may list and watch them";

enum Change {
    Variants(Step<Arc<VariantObject>>),
    Deployments(Step<Target>),
    ReplicaSets(Step<OwnedSet>),
    Pods(Step<SeenPod>),
    Excluded(Step<()>),
}

impl Change {
    fn apply(self, tables: &mut Tables) -> bool {
        match self {
            Self::Variants(step) => tables.variants.apply(step),
            Self::Deployments(step) => tables.deployments.apply(step),
            Self::ReplicaSets(step) => tables.replica_sets.apply(step),
            Self::Pods(step) => tables.pods.apply(step),
            Self::Excluded(step) => exclude(&mut tables.excluded, step),
        }
    }
}

pub(crate) fn key(metadata: &ObjectMeta) -> Key {
    let text = |name: &Option<String>| name.as_deref().unwrap_or_default().into();
    (text(&metadata.namespace), text(&metadata.name))
}

/// The steps of a watch whose objects may be unreadable: `keep` gets these too.
fn guarded<K, V>(
    what: &'static str,
    hint: &'static str,
    events: impl Stream<Item = watcher::Result<Event<Guarded<K>>>> + Send + 'static,
    mut keep: impl FnMut(Result<K, InvalidObject>) -> Option<V> + Send + 'static,
) -> impl Stream<Item = Step<V>> + Send
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
    V: Send + 'static,
{
    let mut told = false;
    steps(what, hint, events, move |Guarded(object)| {
        let metadata = object.as_ref().map_or_else(|invalid| &invalid.metadata, Resource::meta);
        let key = key(metadata);
        if let Err(invalid) = &object
            && !std::mem::replace(&mut told, true)
        {
            let (namespace, name) = &key;
            let error = plain(&invalid.error, MAX_ERROR_BYTES);
            tracing::warn!(%namespace, %name, error, "an unreadable object among the {what}; told once");
        }
        (key, keep(object))
    })
}

/// The steps of a watch, with back-off; what goes wrong is told once, until it works again.
pub(crate) fn steps<K, V>(
    what: &'static str,
    hint: &'static str,
    events: impl Stream<Item = watcher::Result<Event<K>>> + Send + 'static,
    mut keep: impl FnMut(K) -> (Key, Option<V>) + Send + 'static,
) -> impl Stream<Item = Step<V>> + Send
where
    K: Send + 'static,
    V: Send + 'static,
{
    let mut trouble = Trouble::new(what, hint);
    events.backoff(backoff()).filter_map(move |event| {
        let step = match event {
            Ok(event) => {
                if !matches!(event, Event::Init) {
                    trouble.over();
                }
                Some(step(event, &mut keep))
            }
            Err(error) => {
                trouble.tell(&error);
                None
            }
        };
        std::future::ready(step)
    })
}

fn step<K, V>(event: Event<K>, keep: &mut impl FnMut(K) -> (Key, Option<V>)) -> Step<V> {
    match event {
        Event::Init => Step::Init,
        Event::InitDone => Step::Done,
        Event::InitApply(object) => {
            let (key, value) = keep(object);
            Step::Listed(key, value)
        }
        Event::Apply(object) => {
            let (key, value) = keep(object);
            Step::Put(key, value)
        }
        Event::Delete(object) => Step::Gone(keep(object).0),
    }
}

fn variant_object(object: Result<VariantAutoscaling, InvalidObject>) -> Option<Arc<VariantObject>> {
    let (metadata, variant, status) = match object {
        Ok(object) => {
            let variant = Variant::try_from(&object);
            (object.metadata, variant, Some(stored_status(object.status.unwrap_or_default())))
        }
        Err(unreadable) => {
            let id = variant_id(&unreadable.metadata);
            let problem =
                format!("the object cannot be read ({}): correct the field it names", unreadable.error);
            (unreadable.metadata, Err(invalid(id, &problem)), None)
        }
    };
    Some(Arc::new(VariantObject {
        uid: metadata.uid.unwrap_or_default(),
        generation: metadata.generation.unwrap_or_default(),
        variant,
        status,
    }))
}

/// Takes a step, and tells which namespaces are left alone now if these are others than before.
fn exclude(table: &mut Table<()>, step: Step<()>) -> bool {
    let names = |table: &Table<()>| table.iter().map(|((_, name), ())| name.clone()).collect::<Vec<_>>();
    let before = names(table);
    let changed = table.apply(step);
    let now = names(table);
    if now != before {
        tracing::info!(namespaces = ?now, "left alone are the namespaces with the annotation {EXCLUDE}");
    }
    changed
}

fn is_excluded(metadata: &ObjectMeta) -> bool {
    let annotation = metadata.annotations.as_ref().and_then(|all| all.get(EXCLUDE));
    annotation.is_some_and(|value| value == "true")
}

/// A Deployment that is being deleted is no target any more.
fn target(object: Result<LeanDeployment, InvalidObject>) -> Option<Target> {
    let deployment = object.ok().filter(|deployment| deployment.metadata.deletion_timestamp.is_none());
    deployment.as_ref().map(Target::from)
}

fn seen_pod(object: Result<LeanPod, InvalidObject>, marks: bool) -> Option<SeenPod> {
    let pod = object.ok()?;
    let seen = SeenPod::of(&pod)?;
    Some(if marks { seen.marked(&pod.metadata) } else { seen })
}

fn owned_set(set: &LeanReplicaSet) -> Option<OwnedSet> {
    let uid = set.metadata.uid.as_deref()?.into();
    Some(OwnedSet { uid, owner: controller_uid(&set.metadata, "Deployment")? })
}
