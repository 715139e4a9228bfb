//! Shares what limits leave among all models that need more, the most starved first.
//!
//! A model's weight is the GPUs that it needs, times its priority and its analyzers' scores, so that models and analyzers with different units can
//! be compared. A round covers a share of every need of one model. Priority decides which model is served, and does not change how much it
//! needs. Needs remain until they are covered, and every replica is checked against all limits.

use super::growth::grow;
use super::plan_builder::{PlanBuilder, quantity};
use super::removal::{remove, remove_spare};
use super::rescale::{self, Rescale};
use super::votes::{ByRole, Votes};
use super::{OptimizerStep, Plan, Request, cost_aware};
use crate::limit::{Footprint, FreeGpus, Ledger, Limit};
use crate::model::{GroupId, Role};
use crate::units::{count, to_f64};

/// The plans of all models, and how capacity was shared among them.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SharedPlans {
    pub plans: Vec<Plan>,
    pub rounds: Vec<SharingRound>,
}

/// One round: the most starved model may fill `target`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SharingRound {
    pub id: GroupId,
    /// Its remaining weight: GPUs times priority and score; in upstream's arithmetic a need in the findings' units instead of GPUs.
    pub remaining: f64,
    /// The mean of the remaining weights of all models that still need something.
    pub mean: f64,
    pub target: f64,
}

/// Rounds at most. Each round, except a model's last, adds a replica.
pub(crate) const MAX_ROUNDS: usize = 10_000;

struct Model<'a> {
    builder: PlanBuilder<'a>,
    need: Vec<ByRole>,
    /// Its remaining weight; 0 if it no longer takes part.
    remaining: f64,
}

/// One plan for each request. Without limits there is nothing to share, and each model is planned alone.
pub(crate) fn optimize(requests: &[Request], limits: &[Limit], rescale: &Rescale) -> SharedPlans {
    if limits.is_empty() {
        let plans = requests.iter().map(cost_aware::optimize).collect();
        return SharedPlans { plans, rounds: Vec::new() };
    }
    // Sums of floats and ties must not depend on the order of the input, so models are visited by name.
    let mut order: Vec<usize> = (0..requests.len()).collect();
    order.sort_by(|left, right| requests[*left].id.cmp(&requests[*right].id));
    let mut builders: Vec<PlanBuilder<'_>> =
        order.iter().map(|index| PlanBuilder::new(&requests[*index])).collect();
    let usage = current_usage(order.iter().map(|index| &requests[*index]));
    let mut free = FreeGpus::new(limits, &usage);
    let mut ledger = Ledger::new(limits, usage);
    let rescaled = rescale::apply(&mut builders, &mut free, rescale, &mut ledger, remove);
    let mut models: Vec<Model<'_>> = Vec::new();
    for (index, mut builder) in builders.into_iter().enumerate() {
        let votes = Votes::attribute(&mut builder);
        let mut remaining = 0.0;
        if rescaled.contains(&index) {
            // Its targets are set.
        } else if votes.has_need() {
            remaining = weight(&builder, &votes.need);
        } else {
            remove_spare(&mut builder, &votes);
        }
        models.push(Model { builder, need: votes.need, remaining });
    }
    let rounds = share(&mut models, &mut ledger);
    let mut plans: Vec<(usize, Plan)> =
        order.into_iter().zip(models.into_iter().map(|model| model.builder.build())).collect();
    plans.sort_by_key(|(index, _)| *index);
    SharedPlans { plans: plans.into_iter().map(|(_, plan)| plan).collect(), rounds }
}

fn share(models: &mut [Model<'_>], ledger: &mut Ledger<'_>) -> Vec<SharingRound> {
    let mut rounds = Vec::new();
    loop {
        let weights: Vec<f64> = models.iter().map(|model| model.remaining).collect();
        let Some(starved) = most_starved(&weights) else { return rounds };
        let model = &mut models[starved.model];
        let remaining = model.remaining;
        // After this many rounds each model is served in full, one after the other, so that the loop ends.
        let is_last = rounds.len() >= MAX_ROUNDS;
        let target = if is_last { remaining } else { starved.target() };
        let mean = starved.mean;
        rounds.push(SharingRound { id: model.builder.request.id.clone(), remaining, mean, target });
        model.builder.steps.push(OptimizerStep::Round { remaining, mean, target });
        let share = (target / remaining).clamp(0.0, 1.0);
        let added = grow(&mut model.builder, &mut model.need, share, ledger);
        model.remaining = if added == 0 || is_last { 0.0 } else { weight(&model.builder, &model.need) };
    }
}

/// The model with the largest remaining weight, among all that still need something.
pub(crate) struct Starved {
    pub(crate) model: usize,
    remaining: f64,
    pub(crate) mean: f64,
    active: u32,
}

/// `None` if no weight is above 0. Of equal ones it is the first.
pub(crate) fn most_starved(weights: &[f64]) -> Option<Starved> {
    let active: Vec<usize> = (0..weights.len()).filter(|index| weights[*index] > 0.0).collect();
    let larger = |left: usize, right: usize| if weights[right] > weights[left] { right } else { left };
    let model = active.iter().copied().reduce(larger)?;
    let active_count = count(active.len());
    let mean = active.iter().map(|index| weights[*index]).sum::<f64>() / f64::from(active_count);
    Some(Starved { model, remaining: weights[model], mean, active: active_count })
}

impl Starved {
    /// What it may fill in one round: down to the mean; everything if it is alone; and its part of the mean if all are equal.
    pub(crate) fn target(&self) -> f64 {
        let kept = match self.active {
            0 | 1 => 0.0,
            _ if self.remaining <= self.mean => self.mean - self.remaining / f64::from(self.active),
            _ => self.mean,
        };
        self.remaining - kept
    }
}

/// The needs in GPUs of the most efficient variants, times priority and score; or without these factors if that is 0.
fn weight(builder: &PlanBuilder<'_>, needs: &[ByRole]) -> f64 {
    let mut scored = 0.0_f64;
    let mut largest = 0.0_f64;
    for (finding, need) in needs.iter().enumerate() {
        let gpus: f64 = need.iter().map(|(role, need)| gpus_for(builder, finding, role, need)).sum();
        scored += quantity(gpus * quantity(builder.request.findings[finding].score));
        largest = largest.max(gpus);
    }
    let weight = quantity(quantity(builder.request.priority) * scored);
    if weight > 0.0 { weight } else { quantity(largest) }
}

fn gpus_for(builder: &PlanBuilder<'_>, finding: usize, role: Role, need: f64) -> f64 {
    let capacity = &builder.capacity[finding];
    let able = builder.by_efficiency(role).into_iter().find(|candidate| capacity[*candidate] > 0.0);
    able.map_or(0.0, |candidate| {
        quantity(need / capacity[candidate] * to_f64(builder.request.candidates[candidate].gpus()))
    })
}

pub(crate) fn current_usage<'a>(
    requests: impl IntoIterator<Item = &'a Request>,
) -> Vec<(Footprint<'a>, i64)> {
    let candidates = requests.into_iter().flat_map(|request| {
        let namespace = &request.id.namespace;
        request.candidates.iter().map(move |candidate| (namespace, candidate))
    });
    candidates
        .map(|(namespace, candidate)| (candidate.footprint(namespace), i64::from(candidate.current.get())))
        .collect()
}
