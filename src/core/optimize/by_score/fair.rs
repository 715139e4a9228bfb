//! Sharing without upstream's defects. A model's weight is what it needs in GPUs, times priority and scores, so that models
//! and analyzers of different units can be compared; a turn serves a share of every need, so that priority decides who is
//! served and not how much is needed; needs are kept until they are covered; all limits are asked for every replica.

use super::super::rescale::{Rescale, apply};
use super::super::shrink::shrink;
use super::super::step::grow;
use super::super::vote::{ByRole, Votes};
use super::super::work::{Work, quantity};
use super::super::{Request, Step};
use super::{MOST_TURNS, Shared, Turn, running, target};
use crate::limit::{Free, Ledger, Limit};
use crate::model::{Compat, Role};
use crate::units::float;

/// A model that takes part.
struct Model<'a> {
    work: Work<'a>,
    need: Vec<ByRole>,
    /// What is left of its weight; 0 when it takes no part any more.
    left: f64,
}

pub(super) fn optimize(requests: &[Request], limits: &[Limit], rescale: &Rescale) -> Shared {
    let compat = Compat::Corrected;
    // Sums and ties follow the names, not the order of the input.
    let mut order: Vec<usize> = (0..requests.len()).collect();
    order.sort_by(|a, b| requests[*a].id.cmp(&requests[*b].id));
    let mut works: Vec<Work<'_>> = order.iter().map(|at| Work::new(&requests[*at])).collect();
    let running = running(order.iter().map(|at| &requests[*at]));
    let mut free = Free::of(limits, &running, false);
    let mut ledger = Ledger::new(limits, running);
    let handled = apply(&mut works, &mut free, rescale, &mut ledger, compat);
    let mut models: Vec<Model<'_>> = Vec::new();
    for (at, mut work) in works.into_iter().enumerate() {
        let mut votes = Votes::of(&mut work, compat);
        let open = votes.any_need() && !handled.contains(&at);
        if !open && !handled.contains(&at) {
            shrink(&mut work, &mut votes, compat);
        }
        let left = if open { weight(&work, &votes.need) } else { 0.0 };
        models.push(Model { work, need: votes.need, left });
    }
    let turns = share(&mut models, &mut ledger);
    let mut plans: Vec<_> =
        order.into_iter().zip(models.into_iter().map(|model| model.work.plan())).collect();
    plans.sort_by_key(|(at, _)| *at);
    Shared { plans: plans.into_iter().map(|(_, plan)| plan).collect(), turns }
}

fn share(models: &mut [Model<'_>], ledger: &mut Ledger<'_>) -> Vec<Turn> {
    let mut turns = Vec::new();
    loop {
        let active: Vec<usize> = (0..models.len()).filter(|at| models[*at].left > 0.0).collect();
        // The first of the largest.
        let most = active.iter().copied().reduce(|a, b| if models[b].left > models[a].left { b } else { a });
        let Some(most) = most else { return turns };
        let count = f64::from(crate::units::count(active.len()));
        let mean = active.iter().map(|at| models[*at].left).sum::<f64>() / count;
        let model = &mut models[most];
        let left = model.left;
        // After very many turns everybody is served in full, one after the other, and that is it.
        let last = turns.len() >= MOST_TURNS;
        let target = if last { left } else { target(left, mean, active.len()) };
        turns.push(Turn { id: model.work.request.id.clone(), left, mean, target });
        model.work.steps.push(Step::Turn { left, mean, target });
        let grown = grow(&mut model.work, &mut model.need, (target / left).clamp(0.0, 1.0), ledger);
        model.left = if grown == 0 || last { 0.0 } else { weight(&model.work, &model.need) };
    }
}

/// What is needed in GPUs of the most efficient variants, by priority and score; without these where that is 0.
fn weight(work: &Work<'_>, needs: &[ByRole]) -> f64 {
    let (mut scored, mut largest): (f64, f64) = (0.0, 0.0);
    for (at, need) in needs.iter().enumerate() {
        let all: f64 = need.iter().map(|(role, need)| gpus(work, at, role, need)).sum();
        scored += quantity(all * quantity(work.request.findings[at].score));
        largest = largest.max(all);
    }
    let weight = quantity(quantity(work.request.priority) * scored);
    if weight > 0.0 { weight } else { quantity(largest) }
}

fn gpus(work: &Work<'_>, finding: usize, role: Role, need: f64) -> f64 {
    let row = &work.capacity[finding];
    let able = work.by_efficiency(role, Compat::Corrected).into_iter().find(|at| row[*at] > 0.0);
    able.map_or(0.0, |at| quantity(need / row[at] * float(work.request.candidates[at].gpus())))
}
