//! Moves GPUs between models of one accelerator by priority, if together they need more than there is.

use std::collections::{BTreeMap, BTreeSet};

use smol_str::{SmolStr, ToSmolStr};

use super::OptimizerStep;
use super::plan_builder::{PlanBuilder, quantity};
use super::removal::Remove;
use super::water_fill::{Share, demand_gpus, split, water_fill};
use crate::limit::{FreeGpus, Ledger, UNLIMITED};
use crate::model::Role;
use crate::units::{Replicas, to_f64};

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Rescale {
    /// Among models of namespaces without a quota of their own.
    pub cluster: bool,
    /// Within these namespaces, for those that have one.
    pub namespaces: BTreeSet<SmolStr>,
}

impl Rescale {
    fn is_on(&self, namespace: &str, has_quota: bool) -> bool {
        if has_quota { self.namespaces.contains(namespace) } else { self.cluster }
    }
}

/// Accelerator and namespace; the namespace is empty for the cluster.
type Scope = (SmolStr, SmolStr);

/// Sets the targets of the models that compete for an accelerator, and returns their indices. Additions are taken from `free` and fit into
/// `ledger`. GPUs that are released are free only in the next cycle, because pods use them until they are gone.
pub(crate) fn apply(
    builders: &mut [PlanBuilder<'_>],
    free: &mut FreeGpus,
    rescale: &Rescale,
    ledger: &mut Ledger<'_>,
    remove: Remove,
) -> BTreeSet<usize> {
    let mut rescaled = BTreeSet::new();
    for ((accelerator, namespace), members) in competing(builders, free, rescale) {
        let left = if namespace.is_empty() { &free.cluster } else { &free.namespaces[&namespace] };
        let left = left.get(&accelerator).copied().unwrap_or(0);
        if left < 0 || left == UNLIMITED {
            continue;
        }
        let fleets: Vec<Fleet> =
            members.iter().map(|member| Fleet::new(&builders[*member], &accelerator)).collect();
        let used: i64 = fleets.iter().map(|fleet| sum(&fleet.used)).fold(0, i64::saturating_add);
        let demand: i64 = fleets.iter().map(|fleet| sum(&fleet.demand)).fold(0, i64::saturating_add);
        let budget = left.saturating_add(used);
        if demand <= budget {
            continue;
        }
        let cluster = free.cluster.get(&accelerator).copied().unwrap_or(UNLIMITED);
        // GPUs that may be added now: those that the namespace may use and the cluster has.
        let available = if namespace.is_empty() { left } else { left.min(cluster) };
        let mut addable = available;
        let shares: Vec<Share> = members
            .iter()
            .zip(&fleets)
            .map(|(member, fleet)| fleet.share(&builders[*member], budget))
            .collect();
        let filled = water_fill(&shares, budget);
        for index in by_priority(&shares) {
            let Share { demand, floor, cap, .. } = shares[index];
            let gpus = filled.targets.get(&shares[index].id).copied().unwrap_or(0);
            let is_over_budget = filled.is_over_budget;
            let builder = &mut builders[members[index]];
            builder.steps.push(OptimizerStep::Rescaled { budget, demand, floor, cap, gpus, is_over_budget });
            addable -= fleets[index].resize(builder, gpus, addable, ledger, remove);
        }
        charge(free, &namespace, &accelerator, available - addable);
        rescaled.extend(members);
    }
    rescaled
}

fn sum(by_role: &BTreeMap<Role, i64>) -> i64 {
    by_role.values().copied().fold(0, i64::saturating_add)
}

fn by_priority(shares: &[Share]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..shares.len()).collect();
    order.sort_by(|left, right| {
        let by_priority = shares[*right].priority.total_cmp(&shares[*left].priority);
        by_priority.then_with(|| shares[*left].id.cmp(&shares[*right].id))
    });
    order
}

/// The models that may compete, by accelerator and scope. A model whose variants use several accelerators, or an unknown one, does not.
fn competing(
    builders: &[PlanBuilder<'_>],
    free: &FreeGpus,
    rescale: &Rescale,
) -> BTreeMap<Scope, Vec<usize>> {
    let mut scopes: BTreeMap<Scope, Vec<usize>> = BTreeMap::new();
    for (index, builder) in builders.iter().enumerate() {
        let namespace = &builder.request.id.namespace;
        let has_quota = free.namespaces.contains_key(namespace);
        let candidates = builder.request.candidates.iter();
        let types: BTreeSet<&SmolStr> =
            candidates.filter_map(|candidate| candidate.accelerator.as_ref()).collect();
        let only = types.first().filter(|_| types.len() == 1 && !builder.request.findings.is_empty());
        if let Some(only) = only.filter(|_| rescale.is_on(namespace, has_quota)) {
            let scope = if has_quota { namespace.clone() } else { SmolStr::default() };
            scopes.entry(((*only).clone(), scope)).or_default().push(index);
        }
    }
    scopes
}

fn charge(free: &mut FreeGpus, namespace: &str, accelerator: &str, spent: i64) {
    let of_cluster = free.cluster.get_mut(accelerator).filter(|left| **left != UNLIMITED);
    let of_namespace = free.namespaces.get_mut(namespace).and_then(|types| types.get_mut(accelerator));
    for left in of_cluster.into_iter().chain(of_namespace) {
        *left -= spent;
    }
}

/// A model's variants on one accelerator, in GPUs by role.
struct Fleet {
    used: BTreeMap<Role, i64>,
    demand: BTreeMap<Role, i64>,
    floor: BTreeMap<Role, i64>,
    /// The sum of its maxima; `None` if a variant has none.
    max: Option<i64>,
}

impl Fleet {
    fn new(builder: &PlanBuilder<'_>, accelerator: &str) -> Self {
        let mut fleet =
            Self { used: BTreeMap::new(), demand: BTreeMap::new(), floor: BTreeMap::new(), max: Some(0) };
        let candidates = &builder.request.candidates;
        let is_on_it = |index: &usize| candidates[*index].accelerator.as_deref() == Some(accelerator);
        for candidate in (0..candidates.len()).filter(is_on_it).map(|index| &candidates[index]) {
            let gpus = |replicas: Replicas| i64::from(replicas.get()).saturating_mul(candidate.gpus());
            for (by_role, replicas) in
                [(&mut fleet.used, candidate.current), (&mut fleet.floor, candidate.bounds.min)]
            {
                let sum = by_role.entry(candidate.role).or_insert(0);
                *sum = sum.saturating_add(gpus(replicas));
            }
            fleet.max = fleet.max.zip(candidate.bounds.max).map(|(sum, max)| sum.saturating_add(gpus(max)));
        }
        for role in fleet.used.keys().copied() {
            let cheapest = builder.by_efficiency(role).into_iter().find(is_on_it);
            let demand = cheapest.map_or(0, |index| {
                demand_gpus(demand_of(builder, role), builder.anchor(index), candidates[index].gpus())
            });
            fleet.demand.insert(role, demand);
        }
        fleet
    }

    fn share(&self, builder: &PlanBuilder<'_>, budget: i64) -> Share {
        let floor = sum(&self.floor);
        Share {
            id: builder.request.id.to_smolstr(),
            priority: builder.request.priority,
            demand: total_demand(builder),
            floor,
            cap: sum(&self.demand).min(self.max.unwrap_or(budget)).max(floor),
        }
    }

    /// Moves `builder` to `gpus` by whole replicas, and adds at most `addable` GPUs. Returns the GPUs added.
    fn resize(
        &self,
        builder: &mut PlanBuilder<'_>,
        gpus: i64,
        addable: i64,
        ledger: &mut Ledger<'_>,
        remove: Remove,
    ) -> i64 {
        let roles: Vec<Role> = self.used.keys().copied().collect();
        let mut added = 0;
        for (role, target) in split(gpus, &roles, &self.demand, &self.used, &self.floor) {
            let used = self.used.get(&role).copied().unwrap_or(0);
            let candidates = &builder.request.candidates;
            if target < used {
                let mut surplus = used - target;
                remove(builder, role, &mut |candidate, removed| {
                    let gpus = candidates[candidate].gpus();
                    surplus = surplus.saturating_sub(removed.saturating_mul(gpus));
                    surplus.max(0) / gpus
                });
            } else {
                added += add_gpus(builder, role, (target - used).min(addable - added), ledger);
            }
        }
        added
    }
}

/// Adds whole replicas of at most `gpus` GPUs, the most efficient first. Returns the GPUs they take.
fn add_gpus(builder: &mut PlanBuilder<'_>, role: Role, gpus: i64, ledger: &mut Ledger<'_>) -> i64 {
    let mut spent = 0;
    for candidate in builder.by_efficiency(role) {
        let per_replica = builder.request.candidates[candidate].gpus();
        let proposed = ((gpus - spent).max(0) / per_replica).min(builder.headroom(candidate));
        let (room, binding) = ledger.room(&builder.footprint(candidate));
        if room < proposed {
            builder.hold_back(candidate, proposed, room, binding);
        }
        let count = proposed.min(room);
        if count > 0 {
            builder.add(candidate, count);
            ledger.take(&builder.footprint(candidate), count);
            spent += count * per_replica;
            let share = to_f64(spent) / to_f64(gpus);
            let added = builder.additions(&[(candidate, count)]);
            builder.steps.push(OptimizerStep::Added { share, added });
        }
    }
    spent
}

fn total_demand(builder: &PlanBuilder<'_>) -> f64 {
    builder.request.findings.first().map_or(0.0, |anchor| quantity(anchor.total.demand))
}

/// The demand of a role; that of the model for [`Role::Both`], and for a role that the first finding does not name.
fn demand_of(builder: &PlanBuilder<'_>, role: Role) -> f64 {
    let anchor = builder.request.findings.first().filter(|_| role != Role::Both);
    let of_role = anchor.and_then(|anchor| anchor.roles.get(&role));
    of_role.map_or_else(|| total_demand(builder), |totals| quantity(totals.demand))
}
