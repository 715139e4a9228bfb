//! Shares free GPUs among models, in the findings' own units. Source: WVA v0.9,
//! `internal/engines/pipeline/greedy_score_optimizer.go`.
//!
//! Defects: a target in units of priority times need is compared with needs; what is cut off is forgotten; both roles of a round may use the same
//! GPUs.

use std::collections::BTreeMap;

use smol_str::SmolStr;

use super::cost_aware::{self, Picker};
use super::{Tree, limiter};
use crate::analyze::finding::Finding;
use crate::limit::{Budget, FreeGpus, Ledger, Limit, UNLIMITED};
use crate::model::Role;
use crate::optimize::by_score::{MAX_ROUNDS, SharedPlans, SharingRound, current_usage, most_starved};
use crate::optimize::plan_builder::{PlanBuilder, quantity};
use crate::optimize::rescale::{self, Rescale};
use crate::optimize::votes::ByRole;
use crate::optimize::{OptimizerStep, Request};
use crate::units::truncated_i64;

struct Model<'a> {
    builder: PlanBuilder<'a>,
    roles: Vec<Role>,
    /// By finding: what the whole model misses.
    missing: Vec<f64>,
    remaining: f64,
}

/// One plan for each request. Each model is planned alone without limits (in June's tree there are then no free GPUs), and where none of them
/// is upstream's: the others are applied to its plan.
pub(crate) fn optimize(requests: &[Request], limits: &[Limit], rescale: &Rescale, tree: Tree) -> SharedPlans {
    let has_gpus = |limit: &Limit| matches!(limit.budget, Budget::Inventory(_) | Budget::Quota(_));
    let is_june_without_limits = tree == Tree::June && limits.is_empty();
    if !is_june_without_limits && !limits.iter().any(has_gpus) {
        let plans = requests.iter().map(|request| cost_aware::optimize(request, tree)).collect();
        return SharedPlans { plans, rounds: Vec::new() };
    }
    let free = limiter::free_gpus(limits, &current_usage(requests));
    share_free_gpus(requests, free, rescale, tree)
}

/// One plan for each request, with these `free` GPUs.
pub(crate) fn share_free_gpus(
    requests: &[Request],
    mut free: FreeGpus,
    rescale: &Rescale,
    tree: Tree,
) -> SharedPlans {
    let mut builders: Vec<PlanBuilder<'_>> = requests.iter().map(PlanBuilder::with_ties_as_given).collect();
    let mut unlimited = Ledger::new(&[], []);
    let rescaled = rescale::apply(&mut builders, &mut free, rescale, &mut unlimited, cost_aware::remove);
    let mut models: Vec<Model<'_>> = Vec::new();
    for (index, mut builder) in builders.into_iter().enumerate() {
        let findings = &builder.request.findings;
        let missing = findings.iter().map(|finding| quantity(finding.total.required)).collect();
        let votes = cost_aware::votes(&mut builder);
        let mut remaining = 0.0;
        if rescaled.contains(&index) {
            // Its targets are set.
        } else if votes.has_need() {
            remaining = weight(&builder, &votes.need);
        } else {
            cost_aware::remove_spare(&mut builder, &votes, tree);
        }
        models.push(Model { builder, roles: votes.roles, missing, remaining });
    }
    let rounds = share(&mut models, &mut free);
    SharedPlans { plans: models.into_iter().map(|model| model.builder.build()).collect(), rounds }
}

/// Priority times the sum of score times need; the largest need if that is 0.
fn weight(builder: &PlanBuilder<'_>, need: &[ByRole]) -> f64 {
    let scored = builder.request.findings.iter().zip(need);
    let sum: f64 = scored.map(|(finding, need)| need.values().sum::<f64>() * quantity(finding.score)).sum();
    let weight = quantity(builder.request.priority) * sum;
    let largest = need.iter().flat_map(ByRole::values).fold(0.0, f64::max);
    if weight > 0.0 { weight } else { largest }
}

fn share(models: &mut [Model<'_>], free: &mut FreeGpus) -> Vec<SharingRound> {
    let mut rounds = Vec::new();
    while rounds.len() < MAX_ROUNDS {
        let gpus = free.cluster.values().copied().fold(0, i64::saturating_add);
        let weights: Vec<f64> = models.iter().map(|model| model.remaining).collect();
        let Some(starved) = most_starved(&weights).filter(|_| gpus != 0) else { break };
        let model = &mut models[starved.model];
        let remaining = model.remaining;
        let target = starved.target();
        let mean = starved.mean;
        rounds.push(SharingRound { id: model.builder.request.id.clone(), remaining, mean, target });
        model.builder.steps.push(OptimizerStep::Round { remaining, mean, target });
        if target > 0.0 {
            model.allocate(target, free);
        }
        if model.remaining >= remaining || model.remaining > mean {
            model.remaining = -1.0;
        }
    }
    rounds
}

impl Model<'_> {
    /// What is missing now. A finding with roles forgets what was added; one without roles does not.
    fn needs(&self) -> Vec<ByRole> {
        let need = |(finding, missing): (&Finding, &f64)| {
            if finding.roles.is_empty() {
                [(Role::Both, *missing)].into_iter().collect()
            } else {
                cost_aware::stated(finding, |totals| totals.required)
            }
        };
        self.builder.request.findings.iter().zip(&self.missing).map(need).collect()
    }

    fn allocate(&mut self, target: f64, free: &mut FreeGpus) {
        let mut need = self.needs();
        need.iter_mut().for_each(|need| *need = need.map(|value| value.min(target)));
        let namespace = &self.builder.request.id.namespace;
        let usable = usable_gpus(free, namespace);
        let mut picker = WithFreeGpus { target, left: usable.clone() };
        cost_aware::grow(&mut self.builder, &self.roles, &mut need, &mut self.missing, &mut picker);
        for (name, before) in usable {
            let spent = before.saturating_sub(picker.left.get(&name).copied().unwrap_or(before));
            let of_cluster = free.cluster.get_mut(&name).filter(|left| **left != UNLIMITED);
            let of_namespace = free.namespaces.get_mut(namespace).and_then(|types| types.get_mut(&name));
            for left in of_cluster.into_iter().chain(of_namespace.filter(|left| **left >= 0)) {
                *left = left.saturating_sub(spent.max(0));
            }
        }
        let need = if self.roles == [Role::Both] { self.needs() } else { need };
        self.remaining = weight(&self.builder, &need);
    }
}

/// The GPUs that a model in `namespace` may use. In a namespace with a quota these are only the listed ones.
fn usable_gpus(free: &FreeGpus, namespace: &str) -> BTreeMap<SmolStr, i64> {
    let Some(quota) = free.namespaces.get(namespace) else { return free.cluster.clone() };
    let usable = quota.iter().map(|(name, quota)| {
        let cluster = free.cluster.get(name).copied().unwrap_or(UNLIMITED);
        (name.clone(), if *quota < 0 { cluster } else { cluster.min(*quota) })
    });
    usable.collect()
}

/// The most efficient variant with a free accelerator, up to the target.
struct WithFreeGpus {
    target: f64,
    left: BTreeMap<SmolStr, i64>,
}

impl WithFreeGpus {
    fn accelerator(builder: &PlanBuilder<'_>, candidate: usize) -> SmolStr {
        builder.request.candidates[candidate].accelerator.clone().unwrap_or_default()
    }
}

impl Picker for WithFreeGpus {
    fn pick(&mut self, builder: &PlanBuilder<'_>, role: Role) -> Option<(usize, i64)> {
        let room = |candidate: usize| {
            let gpus = builder.request.candidates[candidate].gpus();
            let free = self.left.get(&Self::accelerator(builder, candidate)).copied().unwrap_or(0);
            let proposed = truncated_i64((self.target / builder.anchor(candidate)).ceil());
            (candidate, proposed.min(free.div_euclid(gpus)).min(builder.headroom(candidate)))
        };
        builder.by_efficiency(role).into_iter().map(room).find(|(_, room)| *room > 0)
    }

    fn commit(&mut self, builder: &PlanBuilder<'_>, candidate: usize, replicas: i64) {
        let gpus = replicas.saturating_mul(builder.request.candidates[candidate].gpus());
        let left = self.left.entry(Self::accelerator(builder, candidate)).or_insert(0);
        *left = left.saturating_sub(gpus);
    }
}
