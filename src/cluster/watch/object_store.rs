//! Watched objects → what an evaluation sees. Pure: the stores of all kinds, and the joins over them.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use kube::runtime::watcher::Event;
use smol_str::SmolStr;
use tokio::time::Instant;
use wva_core::model::{Variant, VariantId};
use wva_core::name_map::NameMap;
use wva_core::snapshot::{Phase, Pod, Scale, VariantLimit, VariantState};
use wva_core::units::Replicas;

use super::annotated::WatchedAutoscaler;
use super::autoscalers::{AutoscalerVerdict, Autoscalers, VerdictContext};
use super::called_objects::CalledStore;
use super::claims::{claims, split_by_validity};
use super::convert::stored_replicas;
use super::devices::{ClaimedGpus, SliceGpus};
use super::inference_pool::{PoolJoin, WatchedPool};
use super::inventory::{NodeGpus, NodeIndex, PodGpus, add_excess, inventory, oldest_unlabelled};
use super::kind_store::{ObjectStore, StoreEvent};
use super::known_targets::{KnownTarget, OptionalTargets, TargetAnswer, TargetKey, UNREAD};
use super::labels::LabelSet;
use super::optional_objects::OptionalObjects;
use super::pod_join::{ObjectUid, PodJoin, ReplicaSetOwner};
use super::pods::{JoinedPod, WatchedPod, groups};
use super::scale_target::{ScaleTarget, TargetKind};
use super::supply::{SuppliedVariant, node_limits, own_gpus, queue_limits, quota_limits};
use super::supply_objects::{ClosedQueue, WatchedQuota};
use super::value_targets::multiplier;
use super::variant_objects::VariantObjects;
use super::vertical::WatchedVertical;
use crate::cluster::objects::{Bystander, ObjectKey, PodWithCost, VariantKind, VariantObject};
use crate::engine::{ClusterView, Endpoint, Revision};

mod scalers;

/// The pods of scale targets.
type PodsByTarget<'a> = HashMap<ObjectUid<'a>, Vec<JoinedPod<'a>>>;

/// Everything that is watched.
#[derive(Debug, Default)]
pub(crate) struct ClusterStore {
    pub(crate) variants: ObjectStore<Arc<VariantObject>>,
    pub(crate) hpas: OptionalObjects<WatchedAutoscaler>,
    pub(crate) scaled_objects: OptionalObjects<WatchedAutoscaler>,
    /// ScaledObjects that KEDA's calls make variants.
    pub(crate) called: CalledStore,
    /// Nothing is decided before these are read, for the same reason as with annotated ones.
    pub(crate) awaits_called: bool,
    /// VerticalPodAutoscalers that restart pods. Nothing waits for them.
    pub(crate) verticals: OptionalObjects<WatchedVertical>,
    /// Nothing is decided before the annotated objects are listed: without them their numbers would be forgotten. False once
    /// something has been decided.
    pub(crate) awaits_annotated: bool,
    /// Which variants HPAs read with targets of the type `Value` only is to be found.
    pub(crate) finds_value_targets: bool,
    /// Nothing waits any longer for annotated objects that may not be listed.
    pub(crate) ignores_refusals: bool,
    pub(crate) deployments: ObjectStore<ScaleTarget>,
    pub(crate) stateful_sets: OptionalTargets,
    pub(crate) leader_worker_sets: OptionalTargets,
    /// The targets of other kinds that variants name.
    pub(crate) scalables: BTreeMap<TargetKey, KnownTarget>,
    /// Nothing is decided before the targets that variants name are known or cannot be: their numbers would be withdrawn.
    pub(crate) awaits_targets: bool,
    pub(crate) replica_sets: ObjectStore<ReplicaSetOwner>,
    pub(crate) pods: ObjectStore<WatchedPod>,
    /// InferencePools of the group `inference.networking.k8s.io`, and of `inference.networking.x-k8s.io`. Nothing waits for them.
    pub(crate) pools: OptionalObjects<WatchedPool>,
    pub(crate) x_pools: OptionalObjects<WatchedPool>,
    /// The selectors of Services; empty unless there are pools.
    pub(crate) services: OptionalObjects<LabelSet>,
    /// ResourceQuotas that limit GPUs.
    pub(crate) quotas: OptionalObjects<WatchedQuota>,
    /// LocalQueues of Kueue that admit nothing, of `v1beta2` and of `v1beta1`.
    pub(crate) queues: OptionalObjects<ClosedQueue>,
    pub(crate) earlier_queues: OptionalObjects<ClosedQueue>,
    /// The GPUs of the templates of resource claims.
    pub(crate) claim_templates: OptionalObjects<ClaimedGpus>,
    /// The GPUs that drivers publish, and the nodes. Empty unless a limit is what the nodes have.
    pub(crate) slices: OptionalObjects<SliceGpus>,
    pub(crate) nodes: ObjectStore<NodeGpus>,
    /// Since when the nodes cannot be read, and whether that is for too long.
    pub(super) nodes_failed_at: Option<Instant>,
    pub(super) is_inventory_stale: bool,
    /// Nothing is decided before the nodes are listed: without them the limit would be ignored.
    pub(crate) awaits_nodes: bool,
    /// The namespaces whose variants are ignored.
    pub(crate) excluded: ObjectStore<()>,
    /// The controller instance of this installation.
    pub(crate) controller_instance: Option<SmolStr>,
    /// Nothing waits for the namespaces: they could not be listed in time, or only one is watched.
    pub(crate) ignores_exclusions: bool,
}

/// An event of the watch of nodes, or that they cannot be read.
pub(super) type NodeEvent = Result<StoreEvent<NodeGpus>, Unreadable>;

/// A list or a watch has failed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Unreadable;

/// The cluster at one moment.
#[derive(Debug, Clone, Default)]
pub struct ClusterState {
    /// For the engine.
    pub view: Arc<ClusterView>,
    /// The objects behind it, for the status writer.
    pub objects: BTreeMap<VariantId, Arc<VariantObject>>,
    /// Annotated objects that make no variant.
    pub bystanders: Vec<Bystander>,
    /// Which pause of a ScaledObject keeps the scale target of a VariantAutoscaling from following its number, for people.
    pub pauses: BTreeMap<VariantId, Arc<str>>,
    /// Whether all ScaledObjects are known.
    pub knows_pauses: bool,
    /// The ScaledObjects that KEDA calls for, each with why no number is its own, if so.
    pub called: BTreeMap<VariantId, Result<(), SmolStr>>,
    /// The autoscalers that read a number.
    pub(crate) autoscalers: Autoscalers,
    /// The pods of variants; empty unless their deletion costs are written.
    pub pods: BTreeMap<VariantId, Vec<PodWithCost>>,
}

impl ClusterState {
    /// Whether the autoscalers that scale the target of a variant, which an object of this kind makes, follow its number; `None` if none
    /// is known and there may be some.
    pub(crate) fn autoscaler(
        &self,
        variant: (&VariantId, VariantKind),
        context: VerdictContext<'_>,
    ) -> Option<AutoscalerVerdict> {
        self.autoscalers.verdict(variant, &self.view, context)
    }
}

impl ClusterStore {
    /// Joins scale targets and pods to variants.
    pub(crate) fn state(&self) -> ClusterState {
        let excluded: BTreeSet<SmolStr> = self.excluded.iter().map(|(key, ())| (&*key.name).into()).collect();
        let VariantObjects { objects, aliases, bystanders } = self.variant_objects(&excluded);
        let claims = claims(&objects);
        let (variants, invalid) = split_by_validity(&objects, &claims);
        let pauses = self.pauses(&variants);
        let (pods, other_pods) = self.pods_by_target(&variants);
        let mut with_cost = BTreeMap::new();
        let followers = bystanders.iter().map(|bystander| &bystander.id);
        let annotated = objects.iter().filter(|(_, object)| object.kind.is_annotated());
        let synced = self.has_synced() && !variants.iter().any(|(variant, _)| self.awaits(variant));
        let revisions = objects.iter().map(|(id, object)| (id.clone(), revision(object))).collect();
        let mut view = ClusterView {
            synced,
            claims,
            invalid,
            excluded,
            revisions: Arc::new(revisions),
            followers: followers.filter(|id| aliases.contains_key(id)).cloned().collect(),
            annotated: annotated.map(|(id, _)| id.clone()).collect(),
            aliases,
            ..ClusterView::default()
        };
        let node_index = self.nodes.has_listed().then(|| self.count_nodes(&mut view, other_pods));
        let mut supplied = Vec::with_capacity(variants.len());
        let (read_types, mut multipliers) = (self.read_types(&view.aliases), BTreeMap::new());
        let mut pools = PoolJoin::new([&self.pools.objects, &self.x_pools.objects]);
        view.variants.reserve_exact(variants.len());
        view.endpoints.reserve_exact(pods.values().map(Vec::len).sum());
        for (variant, object) in variants {
            let target = self.target(variant);
            let found = target.as_ref().ok().copied().flatten();
            let uid = found.map(|target| (variant.id.namespace.as_str(), &*target.uid));
            let pods = uid.and_then(|uid| pods.get(&uid)).map_or(&[][..], Vec::as_slice);
            pools.add(&variant.id, found, pods);
            let costs = if variant.target.is_deployment() { deletion_costs(pods) } else { Vec::new() };
            if !costs.is_empty() {
                with_cost.insert(variant.id.clone(), costs);
            }
            let replicas = replicas(found, pods);
            if read_types.as_ref().is_some_and(|types| types.are_value(variant)) {
                multipliers.insert(variant.id.clone(), multiplier(pods));
            }
            view.endpoints.extend(replicas.iter().filter_map(|(key, pod)| endpoint(key, pod)));
            let state = self.variant_state(variant, object, target, pods, &replicas);
            if let Some(index) = &node_index {
                let in_use = index.in_use(pods.iter().filter_map(|joined| joined.pod.gpus.as_ref()));
                count_excess(&mut view, in_use, &state);
            }
            view.variants.push(state);
            supplied.push((found, pods));
        }
        view.limits = self.limits(&view.variants, supplied, node_index.as_ref()).into();
        let autoscalers = self.autoscalers(&view);
        view.value_targets = self.value_targets(multipliers);
        view.pools = pools.finish(&self.services.objects, &self.pods, &self.deployments);
        let knows_pauses = self.scaled_objects.is_known(false);
        let view = Arc::new(view);
        let (called, pods) = (self.called_verdicts(&objects, &view.aliases, &bystanders), with_cost);
        ClusterState { view, objects, bystanders, pauses, knows_pauses, called, autoscalers, pods }
    }

    fn variant_state(
        &self,
        variant: &Variant,
        object: &VariantObject,
        target: Result<Option<&ScaleTarget>, SmolStr>,
        pods: &[JoinedPod<'_>],
        replicas: &[(&ObjectKey, Cow<'_, WatchedPod>)],
    ) -> VariantState {
        let mut variant = variant.clone();
        let (target, target_problem) = match target {
            Ok(target) => (target, None),
            Err(problem) => (None, Some(problem)),
        };
        if let Some(target) = target {
            variant.role = target.role;
            variant.accelerator = target.accelerator.as_deref().map(SmolStr::from).or(variant.accelerator);
        }
        let claims = &self.claim_templates.objects;
        let template = target.map(|target| target.replica_template(&variant.id.namespace, pods, claims));
        let alloc = object.status.as_ref().and_then(|status| status.desired_optimized_alloc.as_ref());
        VariantState {
            variant,
            scale: target.map(|target| counts(target, replicas)),
            target_problem,
            pods: replicas.iter().map(|(key, pod)| replica(key, pod)).collect(),
            last_status: alloc.and_then(|alloc| stored_replicas(alloc.num_replicas)),
            unschedulable: pods
                .iter()
                .find_map(|joined| joined.pod.unschedulable.as_deref())
                .map(SmolStr::from),
            template: template.unwrap_or_default(),
        }
    }

    /// Counts the GPUs of the nodes, and those that pods of no variant use.
    fn count_nodes(&self, view: &mut ClusterView, other_pods: Vec<&PodGpus>) -> NodeIndex<'_> {
        let index = NodeIndex::new(&self.nodes, &self.slices.objects, &self.claim_templates.objects);
        view.is_inventory_stale = self.is_inventory_stale;
        view.inventory = Some(inventory(index.nodes().map(|(_, gpus)| gpus)));
        view.elsewhere = index.in_use(other_pods.into_iter());
        view.unlabelled = oldest_unlabelled(index.nodes());
        index
    }

    /// The limits that objects set for `variants`, with their targets and pods in the same order.
    fn limits(
        &self,
        variants: &[VariantState],
        supplied: Vec<(Option<&ScaleTarget>, &[JoinedPod<'_>])>,
        nodes: Option<&NodeIndex<'_>>,
    ) -> Vec<VariantLimit> {
        let supplied = variants.iter().zip(supplied);
        let supplied: Vec<_> = supplied
            .filter_map(|(state, (target, pods))| Some(SuppliedVariant { state, target: target?, pods }))
            .collect();
        let mut limits = quota_limits(&self.quotas.objects, &supplied);
        limits.extend(queue_limits([&self.queues.objects, &self.earlier_queues.objects], &supplied));
        if let Some(nodes) = nodes {
            let pods = self.pods.iter().filter_map(|(_, pod)| pod.gpus.as_ref());
            limits.extend(node_limits(nodes, pods, &supplied));
        }
        limits
    }

    /// True while there are InferencePools, which name Services.
    pub(super) fn has_pools(&self) -> bool {
        [&self.pools, &self.x_pools].into_iter().any(|pools| pools.objects.iter().next().is_some())
    }

    /// Applies the answer to a read of a scale target; true when something visible changed.
    pub(crate) fn apply_read(&mut self, key: TargetKey, answer: TargetAnswer, now: Instant) -> bool {
        self.scalables.entry(key).or_default().update(answer, now)
    }

    /// Applies an event of the watch of nodes; true when something visible changed. What is known stays known while the watch fails.
    pub(super) fn apply_nodes(&mut self, event: NodeEvent, now: Instant) -> bool {
        match event {
            Err(Unreadable) => {
                self.nodes_failed_at.get_or_insert(now);
                false
            }
            // A list begins, and may still fail.
            Ok(event @ Event::Init) => self.nodes.apply(event),
            Ok(event) => {
                self.nodes_failed_at = None;
                let was_stale = std::mem::take(&mut self.is_inventory_stale);
                self.nodes.apply(event) || was_stale
            }
        }
    }

    /// Nodes are watched anew, or no longer.
    pub(super) fn forget_nodes(&mut self) {
        (self.nodes, self.nodes_failed_at, self.is_inventory_stale) = (ObjectStore::default(), None, false);
        self.slices = OptionalObjects::default();
    }

    /// Forgets the scale targets that nothing has confirmed for longer than `max_stale`; true when something visible changed.
    pub(crate) fn expire(&mut self, now: Instant, max_stale: Duration) -> bool {
        let mut is_changed = self.stateful_sets.expire(now, max_stale);
        if self.nodes_failed_at.is_some_and(|since| now.duration_since(since) > max_stale) {
            is_changed |= !std::mem::replace(&mut self.is_inventory_stale, true);
        }
        is_changed |= self.leader_worker_sets.expire(now, max_stale);
        for known in self.scalables.values_mut() {
            is_changed |= known.expire(now, max_stale);
        }
        is_changed
    }

    /// The scale target of a variant: `None` if it does not exist, or why that is not known.
    pub(super) fn target(&self, variant: &Variant) -> Result<Option<&ScaleTarget>, SmolStr> {
        let Variant { id: VariantId { namespace, .. }, target, .. } = variant;
        match TargetKind::of(target) {
            TargetKind::Deployment => Ok(self.deployments.get(namespace, &target.name)),
            TargetKind::StatefulSet => self.stateful_sets.find(namespace, target),
            TargetKind::LeaderWorkerSet => {
                let found = self.leader_worker_sets.find(namespace, target)?;
                // Without these its pods would seem to be missing.
                self.stateful_sets.known("StatefulSet")?;
                Ok(found)
            }
            TargetKind::Scalable => {
                self.scalables.get(&key(variant)).map_or_else(|| Err(UNREAD), KnownTarget::find)
            }
        }
    }

    /// Nothing is decided before the target of `variant` has been read.
    fn awaits(&self, variant: &Variant) -> bool {
        self.awaits_targets
            && match TargetKind::of(&variant.target) {
                TargetKind::Deployment => false,
                TargetKind::StatefulSet => self.stateful_sets.is_unread(),
                TargetKind::LeaderWorkerSet => {
                    self.leader_worker_sets.is_unread() || self.stateful_sets.is_unread()
                }
                TargetKind::Scalable => {
                    self.scalables.get(&key(variant)).is_none_or(|known| *known == KnownTarget::Unread)
                }
            }
    }

    /// True when all that nothing is decided without has been listed once, or is no longer waited for.
    fn has_synced(&self) -> bool {
        let devices = || self.slices.is_known(true) && self.claim_templates.is_known(true);
        let nodes = !self.awaits_nodes || (self.nodes.has_listed() && devices());
        let exclusions = self.excluded.has_listed() || self.ignores_exclusions;
        self.has_required() && self.knows_variants() && nodes && exclusions
    }

    /// True when every kind that cannot be absent has been listed once.
    pub(super) fn has_required(&self) -> bool {
        self.variants.has_listed()
            && self.deployments.has_listed()
            && self.replica_sets.has_listed()
            && self.pods.has_listed()
    }

    /// The pauses of the scale targets of VariantAutoscalings that decide; of several of one target, the first by name.
    fn pauses(&self, variants: &[(&Variant, &VariantObject)]) -> BTreeMap<VariantId, Arc<str>> {
        let mut pauses = BTreeMap::new();
        for (key, object) in self.scaled_objects.objects.iter() {
            if let Some(pause) = &object.pause {
                pauses.entry((&*key.namespace, &pause.target)).or_insert(&pause.note);
            }
        }
        let of_variant = |(variant, object): &(&Variant, &VariantObject)| {
            let note = pauses.get(&(variant.id.namespace.as_str(), &variant.target))?;
            (!object.kind.is_annotated()).then(|| (variant.id.clone(), Arc::clone(note)))
        };
        if pauses.is_empty() { BTreeMap::new() } else { variants.iter().filter_map(of_variant).collect() }
    }

    /// True when the objects that make variants have been listed once, or are no longer waited for.
    pub(super) fn knows_variants(&self) -> bool {
        let is_known = |objects: &OptionalObjects<WatchedAutoscaler>| objects.is_known(self.ignores_refusals);
        let annotated = !self.awaits_annotated || (is_known(&self.hpas) && is_known(&self.scaled_objects));
        let called = !self.awaits_called || self.called.is_known();
        self.variants.has_listed() && annotated && called
    }

    /// The pods of the variants by their scale target, and the GPUs of all other pods.
    fn pods_by_target<'a>(
        &'a self,
        variants: &[(&'a Variant, &VariantObject)],
    ) -> (PodsByTarget<'a>, Vec<&'a PodGpus>) {
        let mut join = PodJoin::default();
        for (variant, _) in variants {
            if let Ok(Some(target)) = self.target(variant) {
                join.add_target(&variant.id.namespace, target);
            }
        }
        join.add_replica_sets(&self.replica_sets);
        if let Ok(sets) = self.stateful_sets.known("StatefulSet") {
            join.add_groups(sets, &self.pods);
        }
        let (mut pods, mut others) = (PodsByTarget::new(), Vec::new());
        for (key, pod) in self.pods.iter() {
            match join.join(key, pod) {
                Some((target, joined)) => pods.entry(target).or_default().push(joined),
                None => others.extend(&pod.gpus),
            }
        }
        (pods, others)
    }
}

/// The key of a target that is read by its name.
fn key(variant: &Variant) -> TargetKey {
    TargetKey { namespace: variant.id.namespace.clone(), target: variant.target.clone() }
}

/// Counts what the pods of a variant use, `in_use`, beyond what a limit counts as the variant's.
fn count_excess(view: &mut ClusterView, in_use: BTreeMap<SmolStr, u32>, state: &VariantState) {
    // In a cluster with one accelerator, a replica on an unknown one is on that.
    let mut names = view.inventory.iter().flat_map(BTreeMap::keys);
    let only = names.next().filter(|_| names.next().is_none()).cloned();
    let accelerator = state.variant.accelerator.clone().or(only);
    add_excess(&mut view.elsewhere, in_use, accelerator.as_deref(), own_gpus(state));
}

/// The replicas of a target: its pods, or its groups of pods.
fn replicas<'a>(
    target: Option<&ScaleTarget>,
    pods: &[JoinedPod<'a>],
) -> Vec<(&'a ObjectKey, Cow<'a, WatchedPod>)> {
    match target.and_then(|target| target.group_size) {
        Some(size) => groups(pods, size),
        None => pods.iter().map(|joined| (joined.key, Cow::Borrowed(joined.pod))).collect(),
    }
}

fn revision(object: &VariantObject) -> Revision {
    Revision { uid: object.uid.as_str().into(), generation: object.generation }
}

/// The pods whose deletion cost can be written; one that is terminating needs none.
fn deletion_costs(pods: &[JoinedPod<'_>]) -> Vec<PodWithCost> {
    let staying = pods.iter().filter(|joined| joined.pod.phase != Phase::Terminating);
    let with_cost = staying.filter_map(|JoinedPod { key, pod, .. }| {
        Some(PodWithCost { name: (&*key.name).into(), stored: pod.deletion_cost.as_deref()?.clone() })
    });
    with_cost.collect()
}

/// The counts of a target. A scale subresource does not say how many replicas are ready.
fn counts(target: &ScaleTarget, replicas: &[(&ObjectKey, Cow<'_, WatchedPod>)]) -> Scale {
    if target.selected.is_none() {
        return target.scale;
    }
    let ready = replicas.iter().filter(|(_, pod)| pod.phase == Phase::Ready).count();
    Scale { ready: Replicas::new(u32::try_from(ready).unwrap_or(u32::MAX)), ..target.scale }
}

fn replica(key: &ObjectKey, pod: &WatchedPod) -> Pod {
    Pod {
        name: (&*key.name).into(),
        phase: pod.phase,
        created: pod.created,
        ready_since: pod.ready_since,
        engines: NameMap::default(),
    }
}

/// Where the metrics of a Ready pod are. Other pods refuse connections, or answer before they serve.
fn endpoint(key: &ObjectKey, pod: &WatchedPod) -> Option<Endpoint> {
    let address = pod.address.as_ref().filter(|_| pod.phase == Phase::Ready)?;
    Some(Endpoint {
        namespace: key.namespace.to_string(),
        pod: key.name.to_string(),
        ip: address.ip,
        port: address.port,
        path: address.path.as_deref().map(str::to_owned),
    })
}

#[cfg(test)]
mod tests;
