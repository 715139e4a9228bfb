//! One model at a time, without limits: adds the cheapest capacity, removes the dearest replicas. Source: algorithm
//! reference §7.4.
//!
//! What it promises by default: in each role, the replicas it adds carry the role's share of every need that anyone can
//! carry, and no other replicas that do so within the maxima cost less (see [`super::cheapest`] for the bound on work).

use super::cover::{Choice, cheapest};
use super::shrink::shrink;
use super::step::{Picker, upstream};
use super::vote::Votes;
use super::work::Work;
use super::{Plan, Request, Step};
use crate::model::{Compat, Role};

/// One plan a request, in the same order; each is independent of the others.
#[must_use]
pub fn optimize(requests: &[Request], compat: Compat) -> Vec<Plan> {
    requests.iter().map(|request| optimize_one(request, compat)).collect()
}

pub(crate) fn optimize_one(request: &Request, compat: Compat) -> Plan {
    let mut work = Work::new(request);
    let mut votes = Votes::of(&mut work, compat);
    if !votes.any_need() {
        shrink(&mut work, &mut votes, compat);
    } else if compat.is_upstream() {
        let roles = votes.roles.clone();
        let mut remaining = vec![0.0; votes.need.len()];
        upstream(&mut work, &roles, &mut votes.need, &mut remaining, &mut Cheapest { compat });
    } else {
        cover(&mut work, &votes);
    }
    work.plan()
}

/// The most efficient variant below its maximum.
struct Cheapest {
    compat: Compat,
}

impl Picker for Cheapest {
    fn pick(&mut self, work: &Work<'_>, role: Role) -> Option<(usize, i64)> {
        let all = work.by_efficiency(role, self.compat).into_iter().map(|at| (at, work.headroom(at)));
        all.into_iter().find(|(_, headroom)| *headroom > 0)
    }

    fn commit(&mut self, _: &Work<'_>, _: usize, _: i64) {}
}

/// The needs of a role that somebody can carry, and who.
struct Task {
    role: Role,
    candidates: Vec<usize>,
    needs: Vec<f64>,
    choices: Vec<Choice>,
    /// The share of the needs that the maxima allow, 0 to 1.
    share: f64,
}

fn cover(work: &mut Work<'_>, votes: &Votes) {
    let tasks: Vec<Task> = votes.roles.iter().filter_map(|role| task(work, votes, *role)).collect();
    // Prefill beyond what decode can follow, or the other way round, would serve nobody.
    let share = tasks.iter().map(|task| task.share).fold(1.0, f64::min);
    for task in tasks {
        if task.share <= 0.0 {
            work.steps.push(Step::Blocked { role: task.role });
        }
        let needs: Vec<f64> = task.needs.iter().map(|need| need * share).collect();
        let Some(cover) = cheapest(&needs, &task.choices) else { continue };
        let counts: Vec<_> = task.candidates.iter().copied().zip(cover.counts).collect();
        for (candidate, count) in &counts {
            work.add(*candidate, *count);
        }
        let added = work.added(&counts);
        let (cost, exact) = (cover.cost, cover.exact);
        work.steps.push(Step::Covered { role: task.role, share, added, cost, exact });
    }
}

fn task(work: &Work<'_>, votes: &Votes, role: Role) -> Option<Task> {
    let candidates = work.by_efficiency(role, Compat::Corrected);
    let wanted = votes.need.iter().map(|need| need.of(role)).zip(&work.capacity);
    let able = wanted.filter(|(need, row)| *need > 0.0 && candidates.iter().any(|at| row[*at] > 0.0));
    let (needs, rows): (Vec<f64>, Vec<&Vec<f64>>) = able.unzip();
    let choice = |at: &usize| Choice {
        cost: work.request.candidates[*at].cost.get(),
        capacity: rows.iter().map(|row| row[*at]).collect(),
        most: work.headroom(*at),
    };
    let choices: Vec<Choice> = candidates.iter().map(choice).collect();
    let most =
        |at: usize| choices.iter().map(|one| one.capacity[at] * crate::units::float(one.most)).sum::<f64>();
    let share = needs.iter().enumerate().map(|(at, need)| most(at) / need).fold(1.0, f64::min);
    (!needs.is_empty()).then_some(Task { role, candidates, needs, choices, share })
}
