//! The watches: API server → [`ClusterStore`] → the newest [`ClusterState`]. An object that cannot be parsed, or a resource
//! that is not installed yet, stops none of them.

use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, BoxStream, SelectAll};
use futures::{Stream, StreamExt, future};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::Api;
use kube::core::{ApiResource, NamespaceResourceScope, Resource, error_boundary::InvalidObject};
use kube::runtime::watcher::{Error, watcher};
use smol_str::SmolStr;
use tokio::sync::watch;
use tokio::time::{Instant, interval, sleep_until};
use tokio_util::sync::CancellationToken;
use wva_core::model::Variant;

use super::annotated_watch::annotated_changes;
use super::called_reads::CalledReader;
use super::called_trigger::ScalerService;
use super::convert::{
    invalid_variant, model_settings, notices, own_status, readable_model, readable_target, variant_id,
};
use super::inventory::NodeGpus;
use super::kind_store::{ObjectStore, StoreEvent};
use super::object_store::{ClusterState, ClusterStore, Unreadable};
use super::partial_objects::{
    ParseGuard, PartialNamespace, PartialNode, PartialPod, PartialReplicaSet, controller,
};
use super::pod_join::ReplicaSetOwner;
use super::pods::WatchedPod;
use super::pool_watch::{pool_changes, service_changes};
use super::store_events::{Change, changes_by, guarded, guarded_events, store_event, store_events};
use super::supply_watch::{slice_changes, supply_changes};
use super::target_api::{scale_target, target_api};
use super::target_watch::{TargetWatches, relisting_watcher};
use super::watch_health::{watch_config, watch_results};
use crate::cluster::crd::{CONTROLLER_INSTANCE_LABEL, VariantAutoscaling};
use crate::cluster::objects::{CalledObjects, ObjectKey, VariantKind, VariantObject};
use crate::cluster::timer::{DEBOUNCE_WINDOW, sleep_until_due};
use crate::engine::{Cluster, ClusterView};

/// How long the first state waits for what the service account may lack the right to, or what may be absent: namespaces, annotated
/// objects, nodes where they are a limit, and scale targets other than Deployments. After that no namespace counts as excluded, no
/// object counts as annotated if that list is refused (if it fails in another way, the first state waits on), there is no inventory,
/// and variants whose target is not known have no number.
const OPTIONAL_LIST_TIMEOUT: Duration = Duration::from_secs(10);
/// Annotation of a namespace whose variants are ignored, with the value `true`.
const EXCLUDE_ANNOTATION: &str = "wva.llmd.ai/exclude";
/// Pods that have ended serve nothing: the API server leaves them out.
const LIVE_PODS: &str = "status.phase!=Succeeded,status.phase!=Failed";
/// What to check when a built-in resource cannot be listed.
const RBAC_HINT: &str = "check that the service account may list and watch them";

/// How often it is checked whether a scale target has not been confirmed for too long.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(5);

/// One part in so many of the time is spent on rebuilds at most: that of 10,000 variants takes tens of milliseconds, and their statuses change
/// all the time.
const MAX_REBUILD_SHARE: u32 = 20;
/// Changes are never gathered for longer, so that one slow rebuild hides nothing from the next evaluation. Far shorter than a written
/// status counts as stored without being seen.
const MAX_REBUILD_INTERVAL: Duration = Duration::from_secs(1);

/// What to watch.
#[derive(Debug, Clone)]
pub struct WatchSettings {
    /// Only this namespace; all of them when `None`.
    pub namespace: Option<String>,
    /// Only variants whose label `wva.llmd.ai/controller-instance` has this value; all of them when `None`.
    pub controller_instance: Option<String>,
    /// Only nodes whose labels match this selector; all of them when `None`.
    pub node_selector: Option<String>,
    /// Keep what it takes to write the deletion cost of pods.
    pub deletion_cost: bool,
    /// HPAs and ScaledObjects make variants too, where annotations say so.
    pub annotated: bool,
    /// Find the variants that HPAs read with targets of the type `Value` only.
    pub value_targets: bool,
    /// How long a scale target that may be absent stays known while the API server does not confirm it.
    pub max_stale: Duration,
    /// KEDA's calls make variants of ScaledObjects that name no other Service as their scaler; of all where it is not known.
    pub service: Option<ScalerService>,
}

impl Default for WatchSettings {
    fn default() -> Self {
        Self {
            namespace: None,
            controller_instance: None,
            node_selector: None,
            deletion_cost: false,
            annotated: false,
            value_targets: false,
            max_stale: Duration::from_secs_f64(wva_core::Policy::default().max_stale.get()),
            service: None,
        }
    }
}

/// The newest state of the cluster: any number of readers.
#[derive(Debug, Clone)]
pub struct ClusterReader {
    newest: watch::Receiver<Arc<ClusterState>>,
}

impl ClusterReader {
    /// The newest state.
    #[must_use]
    pub fn state(&self) -> Arc<ClusterState> {
        self.newest.borrow().clone()
    }

    /// Wakes at every change.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<Arc<ClusterState>> {
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
    settings: WatchSettings,
    /// True while a limit is what the nodes have.
    needs_nodes: watch::Receiver<bool>,
    /// The ScaledObjects that KEDA calls for.
    called: Option<CalledObjects>,
    newest: watch::Sender<Arc<ClusterState>>,
}

impl ClusterWatch {
    /// Watches that have not started, and where to read the state.
    #[must_use]
    pub fn new(client: kube::Client, settings: WatchSettings) -> (Self, ClusterReader) {
        let (sender, newest) = watch::channel(Arc::default());
        let (_, needs_nodes) = watch::channel(false);
        (Self { client, settings, needs_nodes, called: None, newest: sender }, ClusterReader { newest })
    }

    /// Watches the nodes too, for as long as `needs_nodes` is true.
    #[must_use]
    pub fn with_inventory(self, needs_nodes: watch::Receiver<bool>) -> Self {
        Self { needs_nodes, ..self }
    }

    /// Reads these ScaledObjects too, which KEDA's calls make variants; `None` before it is known which ones these are.
    #[must_use]
    pub fn with_called(self, called: CalledObjects) -> Self {
        Self { called: Some(called), ..self }
    }

    /// Watches until cancelled.
    pub async fn run(mut self, cancel: CancellationToken) {
        let mut changes = self.changes();
        let mut watches_services = false;
        let mut targets = TargetWatches::new(self.client.clone(), self.settings.namespace.clone());
        let mut nodes = stream::pending().boxed();
        self.needs_nodes.mark_changed();
        let mut store = self.empty_store();
        let mut nodes_deadline = Instant::now() + OPTIONAL_LIST_TIMEOUT;
        let (mut lists_deadline, mut targets_deadline): (Option<Instant>, Option<Instant>) = (None, None);
        let mut expiry = interval(EXPIRY_INTERVAL);
        let (mut rebuild_at, mut debounce): (Option<Instant>, _) = (None, DEBOUNCE_WINDOW);
        loop {
            tokio::select! {
                () = cancel.cancelled() => return,
                () = sleep_until_due(lists_deadline), if !store.ignores_refusals => {
                    store.end_optional_waits();
                    rebuild_at = Some(Instant::now());
                }
                () = sleep_until_due(rebuild_at) => {
                    let started = Instant::now();
                    let state = store.state();
                    debounce = rebuild_interval(started.elapsed());
                    let is_changed = targets.follow(&state.view.variants, &mut store);
                    changes.extend(self.needed_services(&store, &mut watches_services));
                    lists_deadline = lists_deadline.or_else(|| begin_wait(&mut store));
                    if store.knows_variants() {
                        targets_deadline.get_or_insert_with(|| Instant::now() + OPTIONAL_LIST_TIMEOUT);
                    }
                    store.end_waits(state.view.synced);
                    self.newest.send_replace(Arc::new(state));
                    rebuild_at = is_changed.then(|| Instant::now() + debounce);
                }
                () = sleep_until_due(targets_deadline), if store.awaits_targets => {
                    store.awaits_targets = false;
                    rebuild_at = Some(Instant::now());
                }
                now = expiry.tick() => {
                    if store.expire(now, self.settings.max_stale) {
                        rebuild_at = Some(now);
                    }
                }
                needed = next_value(&mut self.needs_nodes) => {
                    nodes = if needed { self.nodes() } else { stream::pending().boxed() };
                    store.forget_nodes();
                    store.awaits_nodes = needed;
                    nodes_deadline = Instant::now() + OPTIONAL_LIST_TIMEOUT;
                    // Without delay: an evaluation before that would not know of the limit.
                    rebuild_at = Some(Instant::now());
                }
                () = sleep_until(nodes_deadline), if store.awaits_nodes => {
                    // Decisions made without an inventory say so.
                    store.awaits_nodes = false;
                    rebuild_at = Some(Instant::now());
                }
                Some(change) = next_change(&mut changes, &mut targets) => {
                    if change(&mut store) {
                        rebuild_at.get_or_insert_with(|| Instant::now() + debounce);
                    }
                }
                Some(change) = nodes.next() => {
                    if change(&mut store) {
                        rebuild_at.get_or_insert_with(|| Instant::now() + debounce);
                    }
                }
            }
        }
    }

    /// The Services, once there are pools that name some.
    fn needed_services(
        &self,
        store: &ClusterStore,
        is_watched: &mut bool,
    ) -> Option<BoxStream<'static, Change>> {
        let is_new = store.has_pools() && !std::mem::replace(is_watched, true);
        is_new.then(|| service_changes(&self.client, self.settings.namespace.as_deref()))
    }

    fn empty_store(&self) -> ClusterStore {
        ClusterStore {
            // With one namespace configured, an annotation does not exclude it.
            ignores_exclusions: self.settings.namespace.is_some(),
            awaits_targets: true,
            awaits_annotated: self.settings.annotated,
            awaits_called: self.called.is_some(),
            finds_value_targets: self.settings.value_targets,
            controller_instance: self.settings.controller_instance.as_deref().map(SmolStr::from),
            ..ClusterStore::default()
        }
    }

    fn changes(&self) -> SelectAll<BoxStream<'static, Change>> {
        let instance = self.settings.controller_instance.as_ref();
        let selector = instance.map(|value| format!("{CONTROLLER_INSTANCE_LABEL}={value}"));
        let variants = selector.iter().fold(watch_config(), |config, labels| config.labels(labels));
        let crd_hint = "install the definition: kubectl apply -f crds/llmd.ai_variantautoscalings.yaml";
        let annotated = variants.clone();
        let variants =
            guarded_events("VariantAutoscalings", crd_hint, watcher(self.api(), variants), variant_object);
        let deployments = ApiResource::erase::<Deployment>(&());
        let deployments = target_api(&self.client, self.settings.namespace.as_deref(), &deployments);
        let deployments = watcher(deployments, watch_config());
        let deployments = guarded_events("Deployments", RBAC_HINT, deployments, scale_target);
        let with_deletion_cost = self.settings.deletion_cost;
        let pods = watcher(self.api(), watch_config().fields(LIVE_PODS));
        let pods = guarded_events("Pods", RBAC_HINT, pods, move |pod| watched_pod(pod, with_deletion_cost));
        let replica_sets = watcher(self.api::<PartialReplicaSet>(), watch_config());
        let replica_sets = store_events("ReplicaSets", RBAC_HINT, replica_sets, |set: PartialReplicaSet| {
            (ObjectKey::of(&set.metadata), replica_set_owner(&set))
        });
        let mut changes = stream::select_all([
            changes_by(variants, |store, event| store.variants.apply(event)),
            changes_by(deployments, |store, event| store.deployments.apply(event)),
            changes_by(replica_sets, |store, event| store.replica_sets.apply(event)),
            changes_by(pods, |store, event| store.pods.apply(event)),
        ]);
        let namespace = self.settings.namespace.as_deref();
        changes.extend(pool_changes(&self.client, namespace));
        changes.extend(supply_changes(&self.client, namespace));
        if self.settings.annotated {
            changes.extend(annotated_changes(
                &self.client,
                namespace,
                &annotated,
                self.settings.value_targets,
            ));
        }
        if let Some(called) = self.called.clone() {
            let instance = self.settings.controller_instance.as_deref().map(SmolStr::from);
            let settings = (instance, self.settings.service.clone());
            changes
                .push(CalledReader::new(&self.client, settings, self.settings.max_stale, called.0).changes());
        }
        if self.settings.namespace.is_none() {
            let namespaces = self.excluded_namespaces();
            changes.push(changes_by(namespaces, |store, event| apply_exclusion(&mut store.excluded, event)));
        }
        changes
    }

    fn excluded_namespaces(&self) -> impl Stream<Item = StoreEvent<()>> + Send + use<> {
        let hint = "update the chart's ClusterRole; until then no namespace is excluded";
        let namespaces = watcher(Api::<PartialNamespace>::all(self.client.clone()), watch_config());
        store_events("Namespaces", hint, namespaces, |namespace: PartialNamespace| {
            (ObjectKey::of(&namespace.metadata), is_excluded(&namespace.metadata).then_some(()))
        })
    }

    /// The nodes, and the GPUs that drivers publish.
    fn nodes(&self) -> BoxStream<'static, Change> {
        let selector = self.settings.node_selector.iter();
        let config = selector.fold(watch_config(), |config, labels| config.labels(labels));
        let hint = "grant it with the chart's value limits.inventory, or remove enableLimiter from the saturation ConfigMap";
        let nodes = Api::<ParseGuard<PartialNode>>::all(self.client.clone());
        let mut convert = guarded("Nodes", |node| node.ok().as_ref().and_then(NodeGpus::from_node));
        let events = watch_results(relisting_watcher(nodes, config), "Nodes", hint);
        let events = events.filter_map(move |event| {
            future::ready(match event {
                Ok(event) => Some(Ok(store_event(event, &mut convert))),
                Err(Error::InitialListFailed(_) | Error::WatchStartFailed(_)) => Some(Err(Unreadable)),
                Err(_) => None,
            })
        });
        let nodes = events.map(|event| -> Change {
            Box::new(move |store: &mut ClusterStore| store.apply_nodes(event, Instant::now()))
        });
        stream::select(nodes, slice_changes(&self.client)).boxed()
    }

    fn api<K: Resource<DynamicType = (), Scope = NamespaceResourceScope>>(&self) -> Api<K> {
        match &self.settings.namespace {
            Some(namespace) => Api::namespaced(self.client.clone(), namespace),
            None => Api::all(self.client.clone()),
        }
    }
}

/// How long changes are gathered after a rebuild that took `took`.
fn rebuild_interval(took: Duration) -> Duration {
    (took * MAX_REBUILD_SHARE).clamp(DEBOUNCE_WINDOW, MAX_REBUILD_INTERVAL)
}

/// The next change of the watches that are always needed, or of those that variants need.
async fn next_change(
    changes: &mut SelectAll<BoxStream<'static, Change>>,
    targets: &mut TargetWatches,
) -> Option<Change> {
    tokio::select! {
        Some(change) = changes.next() => Some(change),
        Some(change) = targets.next() => Some(change),
        else => None,
    }
}

/// The next value; never resolves once the sender is gone.
async fn next_value(receiver: &mut watch::Receiver<bool>) -> bool {
    match receiver.changed().await {
        Ok(()) => *receiver.borrow_and_update(),
        Err(_) => std::future::pending().await,
    }
}

/// What is kept of a VariantAutoscaling.
pub(crate) fn variant_object(
    object: Result<VariantAutoscaling, InvalidObject>,
) -> Option<Arc<VariantObject>> {
    let settings = object.as_ref().ok().and_then(model_settings);
    let model = object.as_ref().ok().and_then(readable_model);
    let target = object.as_ref().ok().and_then(readable_target);
    let (metadata, variant, status, notices) = match object {
        Ok(object) => {
            let (variant, notices) = (Variant::try_from(&object), notices(&object.spec));
            (object.metadata, variant, Some(own_status(object.status.unwrap_or_default())), notices)
        }
        Err(invalid) => {
            let id = variant_id(&invalid.metadata);
            let problem =
                format!("the object cannot be parsed ({}): correct the field it names", invalid.error);
            (invalid.metadata, Err(invalid_variant(id, &problem)), None, Vec::new())
        }
    };
    Some(Arc::new(VariantObject {
        kind: VariantKind::VariantAutoscaling,
        is_called: false,
        uid: metadata.uid.unwrap_or_default(),
        created: metadata.creation_timestamp.map_or(Timestamp::UNIX_EPOCH, |time| time.0),
        generation: metadata.generation.unwrap_or_default(),
        notices,
        settings,
        model,
        target,
        variant,
        status,
    }))
}

/// How long other lists are waited for, once the required ones are there. A refusal before that may be one of an API server that
/// refused everything: it does not count.
fn begin_wait(store: &mut ClusterStore) -> Option<Instant> {
    store.has_required().then(|| {
        store.hpas.forget_refusal();
        store.scaled_objects.forget_refusal();
        Instant::now() + OPTIONAL_LIST_TIMEOUT
    })
}

/// Applies an event, and logs the excluded namespaces when they have changed.
fn apply_exclusion(excluded: &mut ObjectStore<()>, event: StoreEvent<()>) -> bool {
    let names =
        |excluded: &ObjectStore<()>| excluded.iter().map(|(key, ())| key.name.clone()).collect::<Vec<_>>();
    let before = names(excluded);
    let changed = excluded.apply(event);
    let now = names(excluded);
    if now != before {
        tracing::info!(namespaces = ?now, "variants in namespaces with the annotation {EXCLUDE_ANNOTATION} are ignored");
    }
    changed
}

pub(super) fn is_excluded(metadata: &ObjectMeta) -> bool {
    let annotation =
        metadata.annotations.as_ref().and_then(|annotations| annotations.get(EXCLUDE_ANNOTATION));
    annotation.is_some_and(|value| value == "true")
}

fn watched_pod(object: Result<PartialPod, InvalidObject>, with_deletion_cost: bool) -> Option<WatchedPod> {
    let pod = object.ok()?;
    let watched = WatchedPod::from_pod(&pod)?;
    Some(if with_deletion_cost { watched.with_deletion_cost(&pod.metadata) } else { watched })
}

fn replica_set_owner(set: &PartialReplicaSet) -> Option<ReplicaSetOwner> {
    let uid = set.metadata.uid.as_deref()?.into();
    let deployment = controller(&set.metadata).filter(|owner| owner.kind == "Deployment")?;
    Some(ReplicaSetOwner { uid, deployment: deployment.uid.as_str().into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_rebuild_is_followed_by_fewer_and_never_hides_changes_for_long() {
        let after = |millis| rebuild_interval(Duration::from_millis(millis)).as_millis();
        assert_eq!([0, 5, 30, 10_000].map(after), [100, 100, 600, 1_000]);
    }
}
