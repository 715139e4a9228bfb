//! One model at a time, without limits. Source: WVA v0.9, `internal/engines/pipeline/cost_aware_optimizer.go` and
//! `analyzer_helpers.go`.

use super::Tree;
use crate::analyze::finding::{Finding, Totals};
use crate::model::Role;
use crate::optimize::growth::{MAX_ROUNDS, Pick, replicas_for};
use crate::optimize::plan_builder::{PlanBuilder, quantity};
use crate::optimize::removal::{SpareBudget, most_expensive_first, remove_in_order};
use crate::optimize::votes::{ByRole, Votes};
use crate::optimize::{OptimizerStep, Plan, Request};
use crate::units::{to_f64, truncated_i64};

pub(crate) fn optimize(request: &Request, tree: Tree) -> Plan {
    let mut builder = PlanBuilder::with_ties_as_given(request);
    let mut votes = votes(&mut builder);
    if votes.has_need() {
        let roles = votes.roles.clone();
        let mut remaining = vec![0.0; votes.need.len()];
        grow(&mut builder, &roles, &mut votes.need, &mut remaining, &mut MostEfficient);
    } else {
        remove_spare(&mut builder, &votes, tree);
    }
    builder.build()
}

/// The most efficient variant below its maximum.
struct MostEfficient;

impl Picker for MostEfficient {
    fn pick(&mut self, builder: &PlanBuilder<'_>, role: Role) -> Option<(usize, i64)> {
        let candidates = builder.by_efficiency(role).into_iter();
        candidates.map(|index| (index, builder.headroom(index))).find(|(_, headroom)| *headroom > 0)
    }

    fn commit(&mut self, _: &PlanBuilder<'_>, _: usize, _: i64) {}
}

/// What the findings say about the roles that they name, whether the model has these roles or not.
pub(super) fn votes(builder: &mut PlanBuilder<'_>) -> Votes {
    let findings = &builder.request.findings;
    let need: Vec<ByRole> =
        findings.iter().map(|finding| stated(finding, |totals| totals.required)).collect();
    let spare = findings.iter().map(|finding| stated(finding, |totals| totals.spare)).collect();
    let roles = Role::ALL.into_iter().filter(|role| need.iter().any(|need| need.has(*role))).collect();
    let votes = Votes { roles, need, spare };
    votes.report(builder);
    votes
}

/// A finding's values by role. A finding without roles counts for [`Role::Both`].
pub(super) fn stated(finding: &Finding, value: impl Fn(&Totals) -> f64) -> ByRole {
    if finding.roles.is_empty() {
        return [(Role::Both, quantity(value(&finding.total)))].into_iter().collect();
    }
    finding.roles.iter().map(|(role, totals)| (*role, quantity(value(totals)))).collect()
}

/// Removes in every role what all live findings can spare (in June's tree: all findings, live or not). A finding that says nothing about a role
/// vetoes its removals.
pub(super) fn remove_spare(builder: &mut PlanBuilder<'_>, votes: &Votes, tree: Tree) {
    let findings = &builder.request.findings;
    let is_judge = |finding: &usize| findings[*finding].live || tree == Tree::June;
    let judges: Vec<usize> = (0..findings.len()).filter(is_judge).collect();
    for role in builder.roles() {
        let has_spare = |finding: &usize| votes.spare[*finding].get(role) > 0.0;
        if judges.is_empty() || !judges.iter().all(has_spare) {
            builder.steps.push(OptimizerStep::Kept { role });
            continue;
        }
        let mut budget = SpareBudget::new(builder, votes, role, judges.clone());
        remove(builder, role, &mut |candidate, removed| budget.take(candidate, removed));
    }
}

/// Removes replicas of `role`. Defects: capacities of different units are added up to order the variants, and only the last variant in that order
/// keeps a replica for the role.
pub(super) fn remove(builder: &mut PlanBuilder<'_>, role: Role, allowed: &mut dyn FnMut(usize, i64) -> i64) {
    let order = most_expensive_first(builder, role, |_, _| 1.0);
    remove_in_order(builder, &order, |position| position + 1 == order.len(), allowed);
}

/// Chooses the variants that grow, and keeps their budgets.
pub(super) trait Picker {
    /// A variant of `role`, and how many more replicas it may get.
    fn pick(&mut self, builder: &PlanBuilder<'_>, role: Role) -> Option<(usize, i64)>;
    fn commit(&mut self, builder: &PlanBuilder<'_>, candidate: usize, replicas: i64);
}

/// Adds replicas in all roles together. Defects: every role needs a pick, even if it misses nothing; every need is reduced by the capacity in the
/// first finding's unit.
///
/// `remaining` is, by finding, what the whole model misses.
pub(super) fn grow(
    builder: &mut PlanBuilder<'_>,
    roles: &[Role],
    need: &mut [ByRole],
    remaining: &mut [f64],
    picker: &mut dyn Picker,
) {
    for _ in 0..MAX_ROUNDS {
        if !need.iter().any(|need| roles.iter().any(|role| need.get(*role) > 0.0)) {
            return;
        }
        let Some(picks) = picks(builder, roles, need, picker) else { return };
        let carried = |pick: &Pick| to_f64(pick.max) * builder.anchor(pick.candidate) / pick.demand;
        let shares = picks.iter().map(|pick| if pick.demand > 0.0 { carried(pick) } else { 1.0 });
        let share = shares.fold(f64::MAX, f64::min);
        let counts: Vec<i64> = picks.iter().map(|pick| count(builder, pick, share)).collect();
        if share <= 0.0 || counts.iter().all(|count| *count <= 0) {
            return;
        }
        for (pick, count) in picks.iter().zip(&counts) {
            builder.add(pick.candidate, *count);
            let carried = to_f64(*count) * builder.anchor(pick.candidate);
            for need in &mut *need {
                need.set(pick.role, (need.get(pick.role) - carried).max(0.0));
            }
            picker.commit(builder, pick.candidate, *count);
        }
        let of_role = |role| picks.iter().position(|pick| pick.role == role);
        if let Some(index) = of_role(Role::Prefill).or_else(|| of_role(Role::Both)) {
            for (left, row) in remaining.iter_mut().zip(&builder.capacity) {
                *left = (*left - to_f64(counts[index]) * row[picks[index].candidate]).max(0.0);
            }
        }
        let counts: Vec<(usize, i64)> = picks.iter().map(|pick| pick.candidate).zip(counts).collect();
        let added = builder.additions(&counts);
        builder.steps.push(OptimizerStep::Added { share, added });
    }
}

/// One variant for every role; `None` if a role has none.
fn picks(
    builder: &mut PlanBuilder<'_>,
    roles: &[Role],
    need: &[ByRole],
    picker: &mut dyn Picker,
) -> Option<Vec<Pick>> {
    let mut picks = Vec::new();
    for role in roles.iter().copied() {
        let Some((candidate, max)) = picker.pick(builder, role) else {
            builder.steps.push(OptimizerStep::Blocked { role });
            return None;
        };
        let max = replicas_for(builder, need, role, candidate, 1.0).min(max);
        let demand = need.iter().map(|need| need.get(role)).fold(0.0, f64::max);
        picks.push(Pick { role, candidate, max, demand });
    }
    Some(picks)
}

/// Replicas that carry `share` of the pick's demand, at least one if it may have one.
fn count(builder: &PlanBuilder<'_>, pick: &Pick, share: f64) -> i64 {
    let per_replica = builder.anchor(pick.candidate);
    if per_replica <= 0.0 || pick.demand <= 0.0 {
        return 0;
    }
    truncated_i64((share * pick.demand / per_replica).floor()).max(pick.max.min(1))
}
