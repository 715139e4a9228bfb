//! One model at a time, without limits: adds the cheapest capacity, removes the most expensive replicas.
//!
//! In each role, the added replicas carry the role's share of every need that a variant can carry, and no other replicas that do
//! so within the maxima cost less (see [`cheapest_cover`] for the bound on work).

use super::cheapest_cover::{Choice, cheapest_cover};
use super::plan_builder::PlanBuilder;
use super::removal::remove_spare;
use super::votes::Votes;
use super::{OptimizerStep, Plan, Request};
use crate::model::Role;
use crate::units::to_f64;

/// The plan of one request. It depends on no other one.
pub(crate) fn optimize(request: &Request) -> Plan {
    let mut builder = PlanBuilder::new(request);
    let votes = Votes::attribute(&mut builder);
    if votes.has_need() {
        cover_needs(&mut builder, &votes);
    } else {
        remove_spare(&mut builder, &votes);
    }
    builder.build()
}

/// The needs of a role that its variants can carry.
struct RoleNeeds {
    role: Role,
    candidates: Vec<usize>,
    needs: Vec<f64>,
    /// One for each candidate.
    choices: Vec<Choice>,
    /// The share of the needs that the maxima allow, 0 to 1.
    share: f64,
}

fn cover_needs(builder: &mut PlanBuilder<'_>, votes: &Votes) {
    let roles: Vec<RoleNeeds> =
        votes.roles.iter().filter_map(|role| needs_of(builder, votes, *role)).collect();
    // Prefill capacity beyond what decode can follow would serve nobody, and vice versa: all roles get the same share.
    let share = roles.iter().map(|role| role.share).fold(1.0, f64::min);
    for RoleNeeds { role, candidates, needs, choices, share: own_share } in roles {
        if own_share <= 0.0 {
            builder.steps.push(OptimizerStep::Blocked { role });
        }
        let needs: Vec<f64> = needs.iter().map(|need| need * share).collect();
        let Some(cover) = cheapest_cover(&needs, &choices) else { continue };
        let counts: Vec<(usize, i64)> = candidates.into_iter().zip(cover.counts).collect();
        for (candidate, count) in &counts {
            builder.add(*candidate, *count);
        }
        let added = builder.additions(&counts);
        let is_cheapest = cover.is_cheapest;
        builder.steps.push(OptimizerStep::Covered { role, share, added, cost: cover.cost, is_cheapest });
    }
}

/// `None` if nothing is missing in `role` that its variants could carry.
fn needs_of(builder: &PlanBuilder<'_>, votes: &Votes, role: Role) -> Option<RoleNeeds> {
    let candidates = builder.by_efficiency(role);
    let needs = votes.need.iter().map(|need| need.get(role)).zip(&builder.capacity);
    let needs = needs.filter(|(need, row)| *need > 0.0 && candidates.iter().any(|index| row[*index] > 0.0));
    let (needs, rows): (Vec<f64>, Vec<&Vec<f64>>) = needs.unzip();
    if needs.is_empty() {
        return None;
    }
    let choice = |candidate: &usize| Choice {
        cost: builder.request.candidates[*candidate].cost.get(),
        capacity: rows.iter().map(|row| row[*candidate]).collect(),
        max: builder.headroom(*candidate),
    };
    let choices: Vec<Choice> = candidates.iter().map(choice).collect();
    let reachable =
        |need: usize| choices.iter().map(|choice| choice.capacity[need] * to_f64(choice.max)).sum::<f64>();
    let share = needs.iter().enumerate().map(|(index, need)| reachable(index) / need).fold(1.0, f64::min);
    Some(RoleNeeds { role, candidates, needs, choices, share })
}
