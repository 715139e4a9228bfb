//! Removal of spare replicas, the most expensive first.

use super::OptimizerStep;
use super::plan_builder::{PlanBuilder, quantity};
use super::votes::Votes;
use crate::model::Role;
use crate::units::{to_f64, truncated_i64};

/// Removes replicas from the variants of a role. Its last argument is told how many of a candidate were removed, and returns how many more may
/// be.
pub(crate) type Remove = fn(&mut PlanBuilder<'_>, Role, &mut dyn FnMut(usize, i64) -> i64);

/// Removes in every role what all live findings can spare. A finding that says nothing about a role has no vote there, and a role without votes
/// stays as it is.
pub(super) fn remove_spare(builder: &mut PlanBuilder<'_>, votes: &Votes) {
    let findings = &builder.request.findings;
    for role in builder.roles() {
        let live: Vec<usize> = (0..findings.len()).filter(|finding| findings[*finding].live).collect();
        let mut voters = live.iter().filter(|finding| votes.spare[**finding].has(role)).peekable();
        let is_unanimous =
            voters.peek().is_some() && voters.all(|finding| votes.spare[*finding].get(role) > 0.0);
        if !is_unanimous {
            builder.steps.push(OptimizerStep::Kept { role });
            continue;
        }
        let mut budget = SpareBudget::new(builder, votes, role, live);
        remove(builder, role, &mut |candidate, removed| budget.take(candidate, removed));
    }
}

/// What each finding can still spare in a role, while replicas are removed from it.
pub(crate) struct SpareBudget {
    capacity: Vec<Vec<f64>>,
    /// By finding.
    spare: Vec<f64>,
    limiting: Vec<usize>,
}

impl SpareBudget {
    pub(crate) fn new(builder: &PlanBuilder<'_>, votes: &Votes, role: Role, limiting: Vec<usize>) -> Self {
        let spare = votes.spare.iter().map(|spare| spare.get(role)).collect();
        Self { capacity: builder.capacity.clone(), spare, limiting }
    }

    /// Notes that `removed` replicas of `candidate` are gone; returns how many more of it may go.
    pub(crate) fn take(&mut self, candidate: usize, removed: i64) -> i64 {
        for (row, spare) in self.capacity.iter().zip(&mut self.spare) {
            *spare = (*spare - to_f64(removed) * row[candidate]).max(0.0);
        }
        let knowing = self.limiting.iter().filter(|finding| self.capacity[**finding][candidate] > 0.0);
        // Rounded down: one more replica would take more than can be spared.
        let whole =
            knowing.map(|finding| (self.spare[*finding] / self.capacity[*finding][candidate]).floor());
        whole.map(truncated_i64).min().unwrap_or(0)
    }
}

/// Removes replicas of `role`, but not the last one.
pub(super) fn remove(builder: &mut PlanBuilder<'_>, role: Role, allowed: &mut dyn FnMut(usize, i64) -> i64) {
    // Findings have different units: each counts as a share of the largest replica's capacity.
    let order = most_expensive_first(builder, role, |row, candidates| {
        candidates.iter().map(|candidate| row[*candidate]).fold(0.0, f64::max)
    });
    remove_in_order(builder, &order, |_| true, allowed);
}

/// Removes what `allowed` allows of each candidate in `order`, down to its minimum. A candidate at a position for which `keeps_one` is true keeps
/// one replica if no other candidate of `order` has any.
pub(crate) fn remove_in_order(
    builder: &mut PlanBuilder<'_>,
    order: &[usize],
    keeps_one: impl Fn(usize) -> bool,
    allowed: &mut dyn FnMut(usize, i64) -> i64,
) {
    for (position, candidate) in order.iter().copied().enumerate() {
        let target = builder.targets[candidate];
        let removable = target - i64::from(builder.request.candidates[candidate].bounds.min.get());
        if builder.anchor(candidate) <= 0.0 || removable <= 0 {
            continue;
        }
        let max = allowed(candidate, 0);
        let mut removed = max.min(removable);
        let is_alone = order.iter().all(|sibling| *sibling == candidate || builder.targets[*sibling] <= 0);
        if keeps_one(position) && is_alone {
            removed = removed.min(target - 1);
        }
        if removed > 0 {
            builder.targets[candidate] -= removed;
            allowed(candidate, removed);
            let variant = builder.name(candidate);
            builder.steps.push(OptimizerStep::Removed { variant, allowed: max, removed });
        }
    }
}

/// The candidates of `role`: the highest cost first, then the smallest capacity, then the name. The capacity is the sum over all
/// findings of score times capacity in units of `unit(row, candidates)`.
pub(crate) fn most_expensive_first(
    builder: &PlanBuilder<'_>,
    role: Role,
    unit: impl Fn(&[f64], &[usize]) -> f64,
) -> Vec<usize> {
    let candidates = &builder.request.candidates;
    let mut order: Vec<usize> = builder.candidates_of(role).collect();
    let units: Vec<f64> = builder.capacity.iter().map(|row| unit(row, &order)).collect();
    let capacity = |candidate: usize| {
        let rows = builder.request.findings.iter().zip(&builder.capacity).zip(&units);
        let known = rows.filter(|(_, unit)| **unit > 0.0);
        known.map(|((finding, row), unit)| quantity(finding.score) * row[candidate] / unit).sum::<f64>()
    };
    order.sort_by(|left, right| {
        let by_cost = candidates[*right].cost.get().total_cmp(&candidates[*left].cost.get());
        by_cost
            .then_with(|| capacity(*left).total_cmp(&capacity(*right)))
            .then_with(|| candidates[*left].name.cmp(&candidates[*right].name))
    });
    order
}
