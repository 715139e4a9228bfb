//! The cheapest replicas that cover a need, exactly: branch and bound over the counts of the variants.
//!
//! Choices are tried in their order, each from the largest useful count down to none. So the first answer is the greedy one, and
//! of equally cheap answers the first in that order stays.

use crate::units::{to_f64, truncated_i64};

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Choice {
    /// What a replica costs, at least 0.
    pub cost: f64,
    /// The capacity of a replica, one number for each need, at least 0.
    pub capacity: Vec<f64>,
    /// The most replicas of it that may be added.
    pub max: i64,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Cover {
    /// Replicas, one number for each choice.
    pub counts: Vec<i64>,
    pub cost: f64,
    /// Nothing cheaper exists: the search came to its end.
    pub is_cheapest: bool,
}

/// Counts that are tried before the search settles for the best cover so far: about 1 ms.
const MAX_TRIALS: u32 = 5_000;
/// Choices among which the search backtracks; later ones are filled greedily. Each level is a nested call, and a thread's stack of 2 MiB holds
/// thousands of them.
const MAX_DEPTH: usize = 256;
/// Share of a need, or of a cost, that counts as a rounding error.
const ROUNDING: f64 = 1e-9;

struct Search<'a> {
    /// Those with a maximum above 0.
    choices: Vec<&'a Choice>,
    tolerance: Vec<f64>,
    /// By choice and need: the least cost of capacity among this choice and those after it.
    rates: Vec<Vec<f64>>,
    counts: Vec<i64>,
    best: Option<(f64, Vec<i64>)>,
    trials: u32,
    /// Nothing was left out.
    is_complete: bool,
}

/// The counts of `choices` that carry all `needs`, each at least 0, at the least cost; `None` if even their maxima carry less.
///
/// After 5,000 trials the best cover so far is the answer. It is at least as good as the greedy one, which for one need without
/// maxima costs at most one replica of the first choice more than the optimum, if choices are in the order of cost by capacity.
pub(crate) fn cheapest_cover(needs: &[f64], choices: &[Choice]) -> Option<Cover> {
    let open: Vec<usize> = (0..choices.len()).filter(|index| choices[*index].max > 0).collect();
    let mut rates = vec![vec![f64::INFINITY; needs.len()]];
    for choice in open.iter().rev().map(|index| &choices[*index]) {
        let rate = |capacity: &f64| if *capacity > 0.0 { choice.cost / capacity } else { f64::INFINITY };
        let later = rates.last().into_iter().flatten();
        let least =
            choice.capacity.iter().map(rate).zip(later).map(|(rate, later)| rate.min(*later)).collect();
        rates.push(least);
    }
    rates.reverse();
    let mut search = Search {
        choices: open.iter().map(|index| &choices[*index]).collect(),
        tolerance: needs.iter().map(|need| need * ROUNDING).collect(),
        rates,
        counts: vec![0; open.len()],
        best: None,
        trials: 0,
        is_complete: true,
    };
    search.descend(0, needs, 0.0);
    let is_cheapest = search.is_complete && search.trials < MAX_TRIALS;
    let (cost, found) = search.best?;
    let mut counts = vec![0; choices.len()];
    open.into_iter().zip(found).for_each(|(index, count)| counts[index] = count);
    Some(Cover { counts, cost, is_cheapest })
}

impl Search<'_> {
    /// Finds the cheapest way to carry `left` with the choices from `at` on.
    fn descend(&mut self, at: usize, left: &[f64], cost: f64) {
        if self.is_covered(left, cost) || at == self.choices.len() {
            return;
        }
        if at >= MAX_DEPTH || self.trials >= MAX_TRIALS {
            self.fill(at, left.to_vec(), cost);
            return;
        }
        let mut count = self.max_useful(at, left);
        let mut before = f64::INFINITY;
        loop {
            self.trials = self.trials.saturating_add(1);
            let (rest, spent) = self.with(at, count, left, cost);
            let least = spent + self.least_cost(at + 1, &rest);
            if self.beats(least) {
                self.counts[at] = count;
                self.descend(at + 1, &rest, spent);
                self.counts[at] = 0;
            } else if least >= before && self.best.is_some() {
                // The lower bound is convex in the count: once it rises, it does not fall again.
                break;
            }
            before = least;
            if count == 0 || self.trials >= MAX_TRIALS {
                break;
            }
            count -= 1;
        }
    }

    /// Carries `left` greedily with the choices from `from` on, and gives up once that cannot beat the best cover.
    fn fill(&mut self, from: usize, mut left: Vec<f64>, mut cost: f64) {
        self.is_complete = false;
        for at in from..self.choices.len() {
            self.trials = self.trials.saturating_add(1);
            let count = self.max_useful(at, &left);
            (left, cost) = self.with(at, count, &left, cost);
            self.counts[at] = count;
            if !self.beats(cost + self.least_cost(at + 1, &left)) || self.is_covered(&left, cost) {
                break;
            }
        }
        self.counts[from..].fill(0);
    }

    /// Nothing is left to carry. The counts then become the best cover if they cost less.
    fn is_covered(&mut self, left: &[f64], cost: f64) -> bool {
        let covered = left.iter().zip(&self.tolerance).all(|(left, tolerance)| left <= tolerance);
        if covered && self.beats(cost) {
            self.best = Some((cost, self.counts.clone()));
        }
        covered
    }

    /// The largest count of the choice at `at` that is of use for `left`, within its maximum.
    fn max_useful(&self, at: usize, left: &[f64]) -> i64 {
        let choice = self.choices[at];
        let needs = left.iter().zip(&choice.capacity).zip(&self.tolerance);
        let needs = needs.filter(|((_, capacity), _)| **capacity > 0.0);
        let counts = needs.map(|((left, capacity), rounding)| ((left - rounding) / capacity).ceil());
        counts.map(|count| truncated_i64(count).max(0)).max().unwrap_or(0).min(choice.max)
    }

    /// What is left to carry, and what is spent, with `count` of the choice at `at`.
    fn with(&self, at: usize, count: i64, left: &[f64], cost: f64) -> (Vec<f64>, f64) {
        let choice = self.choices[at];
        let rest = left.iter().zip(&choice.capacity);
        let rest = rest.map(|(left, capacity)| (left - capacity * to_f64(count)).max(0.0)).collect();
        (rest, cost + choice.cost * to_f64(count))
    }

    /// A lower bound of the cost of carrying `left` with the choices from `at` on: what the dearest need costs alone.
    fn least_cost(&self, at: usize, left: &[f64]) -> f64 {
        let missing = left.iter().zip(&self.tolerance).zip(&self.rates[at]);
        let costs = missing
            .map(|((left, rounding), rate)| if left > rounding { (left - rounding) * rate } else { 0.0 });
        costs.fold(0.0, f64::max)
    }

    fn beats(&self, cost: f64) -> bool {
        let worth = |best: f64| best - ROUNDING * best.max(1.0);
        cost.is_finite() && self.best.as_ref().is_none_or(|(best, _)| cost < worth(*best))
    }
}
