//! Moves GPUs between models of one accelerator by priority when together they want more than there is. Source: algorithm
//! reference §7.6.

mod fill;
mod share;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::Step;
use super::shrink::shed;
use super::work::{Work, quantity};
use crate::limit::{Free, Ledger, UNLIMITED};
use crate::model::{Compat, Role};
use crate::units::float;
use smol_str::{SmolStr, ToSmolStr};

pub use fill::{Filled, Share, water_fill};
pub use share::{demand_gpus, split};

/// Where rescaling is on.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Rescale {
    /// Among models of namespaces without a quota of their own.
    pub cluster: bool,
    /// Within these namespaces, for those that have one.
    pub namespaces: BTreeSet<SmolStr>,
}

impl Rescale {
    fn on(&self, namespace: &str, has_quota: bool) -> bool {
        if has_quota { self.namespaces.contains(namespace) } else { self.cluster }
    }
}

/// Accelerator and namespace; the namespace is empty for the cluster.
type Group = (SmolStr, SmolStr);

/// Sets the targets of the models that compete for an accelerator, and returns which they are. What is added comes out of
/// `free` and fits into `ledger`; what is released is nobody's before the next cycle.
pub(super) fn apply(
    works: &mut [Work<'_>],
    free: &mut Free,
    rescale: &Rescale,
    ledger: &mut Ledger<'_>,
    compat: Compat,
) -> BTreeSet<usize> {
    let mut handled = BTreeSet::new();
    for ((accelerator, scope), members) in groups(works, free, rescale) {
        let left = if scope.is_empty() { &free.cluster } else { &free.namespaces[&scope] };
        let left = left.get(&accelerator).copied().unwrap_or(0);
        if left < 0 || left == UNLIMITED {
            continue;
        }
        let fleets: Vec<Fleet> =
            members.iter().map(|at| Fleet::of(&works[*at], &accelerator, compat)).collect();
        let running: i64 = fleets.iter().map(Fleet::running).fold(0, i64::saturating_add);
        let budget = left.saturating_add(running);
        if fleets.iter().map(Fleet::demand).fold(0, i64::saturating_add) <= budget {
            continue;
        }
        let shares: Vec<Share> =
            members.iter().zip(&fleets).map(|(at, one)| one.share(&works[*at], budget)).collect();
        let filled = water_fill(&shares, budget);
        let cluster = free.cluster.get(&accelerator).copied().unwrap_or(UNLIMITED);
        let mut fillable = if scope.is_empty() { left } else { left.min(cluster) };
        let before = fillable;
        let mut order: Vec<usize> = (0..members.len()).collect();
        order.sort_by(|a, b| {
            let priority = |at: usize| works[members[at]].request.priority;
            priority(*b).total_cmp(&priority(*a)).then_with(|| shares[*a].id.cmp(&shares[*b].id))
        });
        for at in order {
            let gpus = filled.targets.get(&shares[at].id).copied().unwrap_or(0);
            let work = &mut works[members[at]];
            let Share { demand, floor, cap, .. } = shares[at];
            work.steps.push(Step::Rescaled { budget, demand, floor, cap, gpus, over: filled.over });
            fleets[at].drive(work, gpus, &mut fillable, ledger, compat);
        }
        charge(free, &scope, &accelerator, before - fillable);
        handled.extend(members);
    }
    handled
}

/// The models that may compete, by accelerator and scope. One whose variants are on several types, or on none, may not.
fn groups(works: &[Work<'_>], free: &Free, rescale: &Rescale) -> BTreeMap<Group, Vec<usize>> {
    let mut groups: BTreeMap<Group, Vec<usize>> = BTreeMap::new();
    for (at, work) in works.iter().enumerate() {
        let namespace = &work.request.id.namespace;
        let has_quota = free.namespaces.contains_key(namespace);
        let types: BTreeSet<&SmolStr> =
            work.request.candidates.iter().filter_map(|one| one.accelerator.as_ref()).collect();
        let only = types.first().filter(|_| types.len() == 1 && !work.request.findings.is_empty());
        if let Some(only) = only.filter(|_| rescale.on(namespace, has_quota)) {
            let scope = if has_quota { namespace.clone() } else { SmolStr::default() };
            groups.entry(((*only).clone(), scope)).or_default().push(at);
        }
    }
    groups
}

fn charge(free: &mut Free, scope: &str, accelerator: &str, spent: i64) {
    let cluster = free.cluster.get_mut(accelerator).filter(|left| **left != UNLIMITED);
    let namespace = free.namespaces.get_mut(scope).and_then(|types| types.get_mut(accelerator));
    for left in cluster.into_iter().chain(namespace) {
        *left -= spent;
    }
}

/// A model's variants on one accelerator, in GPUs by role.
struct Fleet {
    running: BTreeMap<Role, i64>,
    demand: BTreeMap<Role, i64>,
    floor: BTreeMap<Role, i64>,
    /// What its maxima allow in all; `None` without one.
    most: Option<i64>,
}

impl Fleet {
    fn of(work: &Work<'_>, accelerator: &str, compat: Compat) -> Self {
        let mut fleet =
            Self { running: BTreeMap::new(), demand: BTreeMap::new(), floor: BTreeMap::new(), most: Some(0) };
        let on_it = |at: usize| work.request.candidates[at].accelerator.as_deref() == Some(accelerator);
        for (_, one) in work.request.candidates.iter().enumerate().filter(|(at, _)| on_it(*at)) {
            let gpus = |count: crate::units::Replicas| i64::from(count.get()).saturating_mul(one.gpus());
            for (map, more) in [(&mut fleet.running, one.current), (&mut fleet.floor, one.bounds.min)] {
                let sum = map.entry(one.role).or_insert(0);
                *sum = sum.saturating_add(gpus(more));
            }
            let both = fleet.most.zip(one.bounds.max);
            fleet.most = both.map(|(sum, max)| sum.saturating_add(gpus(max)));
        }
        for role in fleet.running.keys().copied() {
            let cheapest = work.by_efficiency(role, compat).into_iter().find(|at| on_it(*at));
            let wanted = cheapest.map_or(0, |at| {
                demand_gpus(demand_of(work, role), work.anchor(at), work.request.candidates[at].gpus())
            });
            fleet.demand.insert(role, wanted);
        }
        fleet
    }

    fn running(&self) -> i64 {
        self.running.values().copied().fold(0, i64::saturating_add)
    }

    fn demand(&self) -> i64 {
        self.demand.values().copied().fold(0, i64::saturating_add)
    }

    fn share(&self, work: &Work<'_>, budget: i64) -> Share {
        let floor = self.floor.values().copied().fold(0, i64::saturating_add);
        Share {
            id: work.request.id.to_smolstr(),
            priority: work.request.priority,
            demand: total_demand(work),
            floor,
            cap: self.demand().min(self.most.unwrap_or(budget)).max(floor),
        }
    }

    /// Moves `work` to `gpus`, by whole replicas; what is added comes out of `fillable`.
    fn drive(
        &self,
        work: &mut Work<'_>,
        gpus: i64,
        fillable: &mut i64,
        ledger: &mut Ledger<'_>,
        compat: Compat,
    ) {
        let roles: Vec<Role> = self.running.keys().copied().collect();
        let targets = split(gpus, &roles, &self.demand, &self.running, &self.floor);
        for (role, target) in targets {
            let running = self.running.get(&role).copied().unwrap_or(0);
            let candidates = &work.request.candidates;
            if target < running {
                let mut over = running - target;
                shed(work, role, compat, &mut |at, taken| {
                    over = over.saturating_sub(taken.saturating_mul(candidates[at].gpus()));
                    over.max(0) / candidates[at].gpus()
                });
            } else {
                let want = (target - running).min(*fillable);
                *fillable -= fill(work, role, want, ledger, compat);
            }
        }
    }
}

/// Adds whole replicas worth at most `want` GPUs, the most efficient first; returns the GPUs they take.
fn fill(work: &mut Work<'_>, role: Role, want: i64, ledger: &mut Ledger<'_>, compat: Compat) -> i64 {
    let mut spent = 0;
    for at in work.by_efficiency(role, compat) {
        let each = work.request.candidates[at].gpus();
        let wanted = ((want - spent).max(0) / each).min(work.headroom(at));
        let (room, by) = ledger.room(&work.footprint(at));
        if room < wanted {
            work.hold_back(at, wanted, room, by);
        }
        let count = wanted.min(room);
        let added = work.added(&[(at, count)]);
        if count > 0 {
            work.add(at, count);
            ledger.take(&work.footprint(at), count);
            spent += count * each;
            work.steps.push(Step::Grew { share: float(spent) / float(want), added });
        }
    }
    spent
}

fn total_demand(work: &Work<'_>) -> f64 {
    work.request.findings.first().map_or(0.0, |anchor| quantity(anchor.total.demand))
}

/// The demand of a role; that of the model for [`Role::Both`] and for a role the first finding is silent about.
fn demand_of(work: &Work<'_>, role: Role) -> f64 {
    let anchor = work.request.findings.first().filter(|_| role != Role::Both);
    let of_role = anchor.and_then(|anchor| anchor.roles.get(&role));
    of_role.map_or_else(|| total_demand(work), |totals| quantity(totals.demand))
}
