//! The cheapest replicas that cover a need, exactly: branch and bound over the counts of the variants.
//!
//! Choices are tried in their order, each from as many as could be of use down to none, so the first answer is the greedy
//! one, and of equally cheap answers the first in that order stays.

use crate::units::{float, signed};

/// A variant that may be part of the answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// What a replica costs, at least 0.
    pub cost: f64,
    /// What a replica can carry, one number for each need, at least 0.
    pub capacity: Vec<f64>,
    /// How many there may be at most.
    pub most: i64,
}

/// An answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Cover {
    /// Replicas, one number for each choice.
    pub counts: Vec<i64>,
    /// What they cost.
    pub cost: f64,
    /// Nothing cheaper exists: the search came to its end.
    pub exact: bool,
}

/// Counts that are looked at before the search settles for the best so far: about 1 ms.
const MOST_LOOKS: u32 = 5_000;
/// Choices among which the search goes back: what the others add is the greedy rest. Each is a call within a call, and a
/// thread's stack of 2 MiB holds thousands of them.
const MAX_DEPTH: usize = 256;
/// Share of a need, or of a cost, that is rounding.
const ROUNDING: f64 = 1e-9;

struct Search<'a> {
    /// Those of which there may be any.
    choices: Vec<&'a Choice>,
    tolerance: Vec<f64>,
    /// By choice and need: the least cost of capacity among this choice and those after it.
    rates: Vec<Vec<f64>>,
    counts: Vec<i64>,
    best: Option<(f64, Vec<i64>)>,
    looks: u32,
    /// Nothing was left out.
    exact: bool,
}

/// The counts of `choices` that carry all `needs` at the least cost; `None` when even all there may be carry less.
///
/// Needs are at least 0. After 5,000 looks the best so far is the answer; that is at least the greedy one, which for one
/// need without maxima costs at most one replica of the first choice more than the optimum when choices are in the order
/// of cost by capacity.
#[must_use]
pub fn cheapest(needs: &[f64], choices: &[Choice]) -> Option<Cover> {
    let open: Vec<usize> = (0..choices.len()).filter(|at| choices[*at].most > 0).collect();
    let mut rates = vec![vec![f64::INFINITY; needs.len()]];
    for choice in open.iter().rev().map(|at| &choices[*at]) {
        let rate = |each: &f64| if *each > 0.0 { choice.cost / each } else { f64::INFINITY };
        let after = rates.last().into_iter().flatten();
        let least = choice.capacity.iter().map(rate).zip(after).map(|(own, after)| own.min(*after)).collect();
        rates.push(least);
    }
    rates.reverse();
    let mut search = Search {
        choices: open.iter().map(|at| &choices[*at]).collect(),
        tolerance: needs.iter().map(|need| need * ROUNDING).collect(),
        rates,
        counts: vec![0; open.len()],
        best: None,
        looks: 0,
        exact: true,
    };
    search.look(0, needs, 0.0);
    let exact = search.exact && search.looks < MOST_LOOKS;
    let (cost, found) = search.best?;
    let mut counts = vec![0; choices.len()];
    open.into_iter().zip(found).for_each(|(at, count)| counts[at] = count);
    Some(Cover { counts, cost, exact })
}

impl Search<'_> {
    /// The best way to carry `left` with the choices from `at` on.
    fn look(&mut self, at: usize, left: &[f64], cost: f64) {
        if self.is_covered(left, cost) || at == self.choices.len() {
            return;
        }
        if at >= MAX_DEPTH || self.looks >= MOST_LOOKS {
            self.fill(at, left.to_vec(), cost);
            return;
        }
        let mut count = self.useful(at, left);
        let mut before = f64::INFINITY;
        loop {
            self.looks = self.looks.saturating_add(1);
            let (rest, spent) = self.with(at, count, left, cost);
            let least = spent + self.least(at + 1, &rest);
            if self.beats(least) {
                self.counts[at] = count;
                self.look(at + 1, &rest, spent);
                self.counts[at] = 0;
            } else if least >= before && self.best.is_some() {
                // The bound is convex in the count: once it rises it goes on rising.
                break;
            }
            before = least;
            if count == 0 || self.looks >= MOST_LOOKS {
                break;
            }
            count -= 1;
        }
    }

    /// The greedy way to carry `left` with the choices from `from` on, unless it cannot be better than the best.
    fn fill(&mut self, from: usize, mut left: Vec<f64>, mut cost: f64) {
        self.exact = false;
        for at in from..self.choices.len() {
            self.looks = self.looks.saturating_add(1);
            let count = self.useful(at, &left);
            (left, cost) = self.with(at, count, &left, cost);
            self.counts[at] = count;
            if !self.beats(cost + self.least(at + 1, &left)) || self.is_covered(&left, cost) {
                break;
            }
        }
        self.counts[from..].fill(0);
    }

    /// Nothing is left; then this is the best so far if it costs less.
    fn is_covered(&mut self, left: &[f64], cost: f64) -> bool {
        let covered = left.iter().zip(&self.tolerance).all(|(left, tolerance)| left <= tolerance);
        if covered && self.beats(cost) {
            self.best = Some((cost, self.counts.clone()));
        }
        covered
    }

    /// How many of the choice at `at` are of use for `left`, and may be.
    fn useful(&self, at: usize, left: &[f64]) -> i64 {
        let choice = self.choices[at];
        let useful = left.iter().zip(&choice.capacity).zip(&self.tolerance);
        let useful = useful.filter(|((_, each), _)| **each > 0.0);
        let useful = useful.map(|((left, each), rounding)| signed(((left - rounding) / each).ceil()).max(0));
        useful.max().unwrap_or(0).min(choice.most)
    }

    /// What is left, and what is spent, with so many of the choice at `at`.
    fn with(&self, at: usize, count: i64, left: &[f64], cost: f64) -> (Vec<f64>, f64) {
        let choice = self.choices[at];
        let rest = left.iter().zip(&choice.capacity);
        let rest = rest.map(|(left, each)| (left - each * float(count)).max(0.0)).collect();
        (rest, cost + choice.cost * float(count))
    }

    /// No way to carry `left` with the choices from `at` on costs less.
    fn least(&self, at: usize, left: &[f64]) -> f64 {
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
