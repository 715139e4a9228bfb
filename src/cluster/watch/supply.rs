//! Limits that objects of the cluster set for some variants: ResourceQuotas, closed queues of Kueue, and the nodes that their pods
//! may be placed on. Pure.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use smol_str::{SmolStr, format_smolstr};
use wva_core::model::VariantId;
use wva_core::snapshot::{Scale, VariantLimit, VariantState};
use wva_core::units::Replicas;

use super::inventory::{NodeGpus, NodeIndex, PodGpus};
use super::kind_store::ObjectStore;
use super::placement::Placement;
use super::pods::JoinedPod;
use super::scale_target::{ScaleTarget, TargetKind};
use super::supply_objects::{ClosedQueue, WatchedQuota};
use super::template::GPU_RESOURCES;
use crate::cluster::objects::ObjectKey;

/// Most sets of rules that are compared with every node. A fleet has a handful; a tenant may write thousands, and for further ones the
/// scheduler alone says where pods fit.
pub(super) const MAX_PLACEMENTS: usize = 128;

/// A variant whose scale target is known.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SuppliedVariant<'a> {
    pub(crate) state: &'a VariantState,
    pub(crate) target: &'a ScaleTarget,
    pub(crate) pods: &'a [JoinedPod<'a>],
}

impl SuppliedVariant<'_> {
    fn id(&self) -> &VariantId {
        &self.state.variant.id
    }

    /// The GPUs that a quota counts as used by it. Whoever writes its counts shares the quota, so there is nobody to deceive.
    fn gpus_in_quota(&self) -> u32 {
        gpus_of(self.state, self.state.scale.map(most_replicas))
    }
}

/// The GPUs that count as those of a variant among what pods use.
pub(super) fn own_gpus(state: &VariantState) -> u32 {
    let replicas = match TargetKind::of(&state.variant.target) {
        // Their controllers delete pods beyond `spec`.
        TargetKind::Deployment | TargetKind::StatefulSet => state.scale.map(most_replicas),
        // Whoever owns the object may write its counts.
        TargetKind::LeaderWorkerSet | TargetKind::Scalable => state.scale.map(Scale::base),
    };
    gpus_of(state, replicas)
}

/// A status follows the pods: it may lag behind a start or a surge.
fn most_replicas(scale: Scale) -> Replicas {
    scale.spec.max(scale.current)
}

fn gpus_of(state: &VariantState, replicas: Option<Replicas>) -> u32 {
    replicas.map_or(0, Replicas::get).saturating_mul(state.template.gpus.unwrap_or_default())
}

/// The limits that ResourceQuotas set: of several for one resource of a namespace, the tightest. What a quota counts as used is its own
/// number: that of its variants, and the rest is of others.
pub(crate) fn quota_limits(
    quotas: &ObjectStore<WatchedQuota>,
    variants: &[SuppliedVariant<'_>],
) -> Vec<VariantLimit> {
    let mut limits: BTreeMap<(&str, &str), VariantLimit> = BTreeMap::new();
    let mut by_namespace: BTreeMap<&str, Vec<&SuppliedVariant<'_>>> = BTreeMap::new();
    if quotas.iter().next().is_some() {
        for variant in variants {
            by_namespace.entry(&variant.id().namespace).or_default().push(variant);
        }
    }
    for (ObjectKey { namespace, name }, quota) in quotas.iter() {
        let own = by_namespace.get(&**namespace).map_or(&[][..], Vec::as_slice);
        for (index, resource) in GPU_RESOURCES.iter().enumerate() {
            let Some(gpus) = quota.gpus[index] else { continue };
            let uses = |variant: &&&SuppliedVariant<'_>| {
                variant.target.gpus.is_some_and(|by_resource| by_resource[index] > 0)
            };
            let of_variants = own.iter().filter(uses).map(|variant| variant.gpus_in_quota());
            let of_variants = of_variants.fold(0, u32::saturating_add);
            let limit = VariantLimit {
                limit: SmolStr::new_static(VariantLimit::RESOURCE_QUOTA),
                key: format_smolstr!("{resource} in {namespace}/{name}"),
                gpus: gpus.hard,
                elsewhere: gpus.used.saturating_sub(of_variants),
                variants: own.iter().filter(uses).map(|variant| variant.id().clone()).collect(),
            };
            let room = |limit: &VariantLimit| i64::from(limit.gpus) - i64::from(limit.elsewhere);
            match limits.entry((namespace, resource)) {
                Entry::Occupied(other) if room(other.get()) <= room(&limit) => {}
                Entry::Occupied(mut other) => *other.get_mut() = limit,
                Entry::Vacant(none) => _ = none.insert(limit),
            }
        }
    }
    limits.into_values().filter(|limit| !limit.variants.is_empty()).collect()
}

/// A limit of nothing for the variants of each closed queue.
pub(crate) fn queue_limits(
    queues: [&ObjectStore<ClosedQueue>; 2],
    variants: &[SuppliedVariant<'_>],
) -> Vec<VariantLimit> {
    let mut closed: BTreeMap<SmolStr, BTreeSet<VariantId>> = BTreeMap::new();
    for variant in variants {
        let (id, Some(name)) = (variant.id(), &variant.target.queue) else { continue };
        if let Some(ClosedQueue { reason }) = queues.iter().find_map(|queues| queues.get(&id.namespace, name))
        {
            let key = format_smolstr!("{}/{name} ({reason})", id.namespace);
            closed.entry(key).or_default().insert(id.clone());
        }
    }
    let limit = |(key, variants)| VariantLimit {
        limit: SmolStr::new_static(VariantLimit::CLOSED_QUEUE),
        key,
        gpus: 0,
        elsewhere: 0,
        variants,
    };
    closed.into_iter().map(limit).collect()
}

/// Limits for variants whose pods may not be placed on each node that has their accelerator. `pods` are those of everybody.
pub(crate) fn node_limits<'a>(
    nodes: &NodeIndex<'_>,
    pods: impl Iterator<Item = &'a PodGpus>,
    variants: &[SuppliedVariant<'_>],
) -> Vec<VariantLimit> {
    let mut by_rules: BTreeMap<(&Placement, Option<String>), Vec<&SuppliedVariant<'_>>> = BTreeMap::new();
    for variant in variants {
        if let Some(placement) = &variant.target.placement {
            let accelerator =
                variant.state.variant.accelerator.as_ref().map(|name| name.to_ascii_lowercase());
            by_rules.entry((placement, accelerator)).or_default().push(variant);
        }
    }
    let in_use = nodes.by_node(pods);
    let of_rules = by_rules.into_iter().take(MAX_PLACEMENTS);
    of_rules
        .filter_map(|((placement, accelerator), variants)| {
            node_limit(nodes, &in_use, (placement, accelerator.as_deref()), &variants)
        })
        .collect()
}

/// `None` where every node with the accelerator is suitable, or none has it: the inventory says all about these.
fn node_limit(
    nodes: &NodeIndex<'_>,
    in_use: &HashMap<&str, u32>,
    (placement, accelerator): (&Placement, Option<&str>),
    variants: &[&SuppliedVariant<'_>],
) -> Option<VariantLimit> {
    let is_same = |node: &NodeGpus| {
        let same = |own: &str| node.accelerator.as_ref().is_some_and(|name| name.eq_ignore_ascii_case(own));
        accelerator.is_none_or(same)
    };
    let (suitable, others): (Vec<_>, Vec<_>) = nodes
        .nodes()
        .filter(|(_, node)| is_same(node))
        .partition(|(_, node)| placement.accepts(&node.traits));
    if others.is_empty() {
        return None;
    }
    let names: BTreeSet<&str> = suitable.iter().map(|(name, _)| *name).collect();
    let there = suitable.iter().map(|(_, node)| node.count).fold(0, u32::saturating_add);
    let used = names.iter().filter_map(|name| in_use.get(name)).copied().fold(0, u32::saturating_add);
    let (mut own, mut away) = (0_u32, 0_u32);
    for variant in variants {
        let used = nodes.by_node(variant.pods.iter().filter_map(|joined| joined.pod.gpus.as_ref()));
        let on = |is_suitable: bool| {
            let there = used.iter().filter(|(node, _)| names.contains(*node) == is_suitable);
            there.map(|(_, gpus)| *gpus).fold(0, u32::saturating_add)
        };
        let counted = own_gpus(variant.state);
        let own_used = on(true).min(counted);
        own = own.saturating_add(own_used);
        // They count as used although they are on no suitable node: a taint came later.
        away = away.saturating_add(on(false).min(counted - own_used));
    }
    let first = variants.first()?.id();
    let of = variants.first()?.state.variant.accelerator.as_deref().unwrap_or("any accelerator");
    Some(VariantLimit {
        limit: SmolStr::new_static(VariantLimit::SUITABLE_NODES),
        key: match variants.len() {
            1 => format_smolstr!("{of} for {first}"),
            count => format_smolstr!("{of} for {first} and {} more", count - 1),
        },
        // Where there are none, a node autoscaler may still add some: the policy tells it from some that are full.
        gpus: if there == 0 { 0 } else { there.saturating_add(away) },
        elsewhere: used.saturating_sub(own),
        variants: variants.iter().map(|variant| variant.id().clone()).collect(),
    })
}
