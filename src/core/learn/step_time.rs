//! How long one step of an engine takes: `a + b·P + c·n + d·u` seconds for P prompt tokens computed in it, n running sequences and KV
//! usage u. It is fitted to inter-token latencies as they come, so that the capacity of a replica is known without saturating it.
//!
//! The fit minimises the relative squared error, with a ridge towards what hardware does, so that an engine that has only been seen in
//! one state still gets all four terms. Only sums are stored (14 numbers), which decay over half an hour.

use std::array::from_fn;

use serde::{Deserialize, Serialize};

use super::numeric::{decay, is_default, six_digits};
use crate::moment::Moment;

/// Time constant, seconds: 360 scrapes of 5 s. It follows a slow drift, and bridges a quiet quarter of an hour.
const TIME_CONSTANT: f64 = 1800.0;

/// Prior of a prompt token, as a share of an empty step: a decode step reads all weights once, and a prompt token costs 2 operations
/// for each weight. While it reads a weight of two bytes, an H100 does 989e12/3.35e12 = 295 token operations, an A100 156 and an
/// H200 206; 200 with the efficiency that is reached.
const PROMPT_SHARE: f64 = 1.0 / 200.0;
/// Prior of a running sequence, as a share of an empty step: the geometric mean of a vLLM that computes on a CPU core (0.06), one with
/// the steps of an accelerator (0.002), two A100 as measured (0.024) and the two computed for an H100 (0.0018, 0.0016).
const SEQUENCE_SHARE: f64 = 0.006;
/// Prior of a full KV cache, as a share of an empty step: it is read in every step, and is between one and four times as large as
/// the weights.
const CACHE_SHARE: f64 = 3.0;

/// Weight of the ridge against samples: 0.003 equals the first sample of a term that is 5 % of a step. That is how well a prior is
/// known: terms of real engines differ from it by factors, and samples from the fit by 3 to 10 %. The empty step is part of every
/// sample, so it needs less. With 33 times as much, three minutes of samples hardly moved a term.
const RIDGE: [f64; 4] = [0.001, 0.003, 0.003, 0.003];
/// How far a term may be from its prior, as a factor.
const MIN_FACTOR: f64 = 0.05;
const MAX_FACTOR: f64 = 20.0;
/// The relative standard error of a sample, seconds per second: residuals of real engines are 3 to 10 %.
const SAMPLE_ERROR: f64 = 0.05;
/// Rounds of coordinate descent where a term is at the end of its range. It begins near the solution, because where the terms vary together,
/// as under any ordinary load, it would take thousands of rounds from afar.
const ROUNDS: u32 = 60;

/// The terms of a step time, seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct StepTime {
    /// An empty step.
    pub(crate) base: f64,
    /// For each prompt token computed.
    pub(crate) prompt_token: f64,
    /// For each running sequence.
    pub(crate) sequence: f64,
    /// With a full KV cache.
    pub(crate) full_cache: f64,
}

impl StepTime {
    /// Of an engine that only computes prompts, `prompt_token` seconds for each token: that includes everything else in a step.
    pub(crate) const fn from_prompt_token(prompt_token: f64) -> Self {
        Self { base: 0.0, prompt_token, sequence: 0.0, full_cache: 0.0 }
    }
}

/// How uncertain the terms of a step time are: the covariances of base, prompt token, sequence and full cache, seconds².
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct StepTimeError([[f64; 4]; 4]);

impl StepTimeError {
    /// The standard error, seconds, of a time that consists of so many of each term.
    pub(crate) fn of(&self, weights: [f64; 4]) -> f64 {
        let rows = self.0.iter().zip(weights);
        let variance: f64 = rows.map(|(row, weight)| weight * dot(row, &weights)).sum();
        variance.max(0.0).sqrt()
    }
}

fn dot(left: &[f64; 4], right: &[f64; 4]) -> f64 {
    left.iter().zip(right).map(|(left, right)| left * right).sum()
}

/// An engine that was busy between two readings.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct StepSample {
    /// Mean step time, seconds, above 0.
    pub(crate) step: f64,
    /// Prompt tokens computed in each step.
    pub(crate) prompt: f64,
    pub(crate) running: f64,
    pub(crate) usage: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct StepTimeFit {
    /// `Σ x xᵀ / T²`, its upper triangle row by row.
    #[serde(skip_serializing_if = "is_default")]
    squares: [f64; 10],
    /// `Σ x / T`.
    #[serde(skip_serializing_if = "is_default")]
    products: [f64; 4],
    /// The shortest step time ever seen, seconds.
    #[serde(skip_serializing_if = "is_default")]
    shortest: Option<f64>,
    #[serde(skip_serializing_if = "is_default")]
    at: Option<Moment>,
}

/// Index of element (row, column) of the symmetric matrix in its stored triangle.
const fn index(row: usize, column: usize) -> usize {
    let (row, column) = if row <= column { (row, column) } else { (column, row) };
    row * (7 - row) / 2 + column
}

impl StepTimeFit {
    pub(crate) const fn learned_at(&self) -> Option<Moment> {
        self.at
    }

    /// Adds a sample of readings that ended at `at`.
    pub(crate) fn learn(&mut self, at: Moment, sample: &StepSample) {
        let StepSample { step, prompt, running, usage } = *sample;
        if !(step > 0.0 && [step, prompt, running, usage].into_iter().all(f64::is_finite)) {
            return;
        }
        let remaining = self.at.map_or(1.0, |before| decay(before.until(at), TIME_CONSTANT));
        self.at = self.at.max(Some(at));
        // Divided by the step time: the error is relative.
        let x = [1.0 / step, prompt / step, running / step, usage / step];
        for (row, left) in x.iter().enumerate() {
            for (column, right) in x.iter().enumerate().skip(row) {
                let sum = &mut self.squares[index(row, column)];
                *sum = *sum * remaining + left * right;
            }
            self.products[row] = self.products[row] * remaining + left;
        }
        self.shortest = Some(self.shortest.map_or(step, |shortest| shortest.min(step)));
    }

    /// The terms that fit the samples best; `None` without samples. `prompt_token` is the least time to first token for each prompt
    /// token that was seen, if any, seconds: a prompt token costs no more.
    pub(crate) fn solve(&self, prompt_token: Option<f64>) -> Option<StepTime> {
        let prior = self.prior(prompt_token)?;
        // Solved for factors of the prior, to which the ridge pulls: those of the prior itself are 1.
        let target = from_fn(|term| prior[term] * self.products[term] + RIDGE[term]);
        let factors = factors(&self.curvature(&prior), target);
        let [base, prompt_token, sequence, full_cache] = [0, 1, 2, 3].map(|term| factors[term] * prior[term]);
        Some(StepTime { base, prompt_token, sequence, full_cache })
    }

    fn prior(&self, prompt_token: Option<f64>) -> Option<[f64; 4]> {
        let base = self.shortest?;
        let by_weights = base * PROMPT_SHARE;
        let prompt_token = prompt_token.map_or(by_weights, |least| least.min(by_weights));
        Some([base, prompt_token, base * SEQUENCE_SHARE, base * CACHE_SHARE])
    }

    /// How uncertain what [`Self::solve`] finds is: by the curvature of what it minimises.
    pub(crate) fn error(&self, prompt_token: Option<f64>) -> Option<StepTimeError> {
        let prior = self.prior(prompt_token)?;
        // Sums that were rounded when they were stored may describe no curvature at all. Then only the ridge is known.
        let covariance =
            inverse(self.curvature(&prior)).unwrap_or_else(|| diagonal(|term| 1.0 / RIDGE[term]));
        let scaled = |row: usize, column: usize| {
            SAMPLE_ERROR * SAMPLE_ERROR * prior[row] * prior[column] * covariance[row][column]
        };
        Some(StepTimeError(from_fn(|row| from_fn(|column| scaled(row, column)))))
    }

    /// The curvature of what [`Self::solve`] minimises, in factors of the `prior`.
    fn curvature(&self, prior: &[f64; 4]) -> [[f64; 4]; 4] {
        let ridge = diagonal(|term| RIDGE[term]);
        from_fn(|row| {
            from_fn(|column| {
                self.squares[index(row, column)] * prior[row] * prior[column] + ridge[row][column]
            })
        })
    }

    pub(crate) fn compacted(&self) -> Self {
        Self {
            squares: self.squares.map(six_digits),
            products: self.products.map(six_digits),
            shortest: self.shortest.map(six_digits),
            at: self.at,
        }
    }

    pub(crate) fn not_after(&mut self, now: Moment) {
        self.at = self.at.map(|at| at.min(now));
    }
}

/// The factors within their range that minimise the error with this `curvature`. They are exact where all are inside of it. Otherwise one
/// after the other is fixed at the end that it passes, the farthest first, and coordinate descent corrects what that leaves.
fn factors(curvature: &[[f64; 4]; 4], target: [f64; 4]) -> [f64; 4] {
    let in_range = |factor: f64| factor.clamp(MIN_FACTOR, MAX_FACTOR);
    let mut fixed = [None; 4];
    let mut factors = [1.0; 4];
    while let Some(free) = minimum(curvature, &target, &fixed) {
        factors = free.map(in_range);
        let distance = |term: usize| (free[term] - factors[term]).abs();
        let outside = (0..4).filter(|term| fixed[*term].is_none() && distance(*term) > 0.0);
        match outside.max_by(|left, right| distance(*left).total_cmp(&distance(*right))) {
            Some(term) => fixed[term] = Some(factors[term]),
            None if fixed == [None; 4] => return factors,
            None => break,
        }
    }
    for _ in 0..ROUNDS {
        for term in 0..4 {
            let others = dot(&curvature[term], &factors) - curvature[term][term] * factors[term];
            factors[term] = in_range((target[term] - others) / curvature[term][term]);
        }
    }
    factors
}

/// Where the error is least, ranges aside, with some factors fixed; `None` where that is not determined.
fn minimum(curvature: &[[f64; 4]; 4], target: &[f64; 4], fixed: &[Option<f64>; 4]) -> Option<[f64; 4]> {
    let is_free = |term: usize| fixed[term].is_none();
    let matrix = from_fn(|row| {
        from_fn(|column| match row == column {
            true if !is_free(row) => 1.0,
            false if !is_free(row) || !is_free(column) => 0.0,
            _ => curvature[row][column],
        })
    });
    let known = fixed.map(|factor| factor.unwrap_or(0.0));
    let target = from_fn(|term| fixed[term].unwrap_or_else(|| target[term] - dot(&curvature[term], &known)));
    let found = inverse(matrix)?.map(|row| dot(&row, &target));
    found.iter().all(|factor| factor.is_finite()).then_some(found)
}

fn diagonal(value: impl Fn(usize) -> f64) -> [[f64; 4]; 4] {
    from_fn(|row| from_fn(|column| if row == column { value(row) } else { 0.0 }))
}

/// The inverse of a symmetric positive definite matrix, by Gauss-Jordan elimination; without pivoting, which such a matrix does not need.
/// `None` for a matrix that is not positive definite.
fn inverse(mut matrix: [[f64; 4]; 4]) -> Option<[[f64; 4]; 4]> {
    let mut inverse = diagonal(|_| 1.0);
    for pivot in 0..4 {
        if matrix[pivot][pivot].is_nan() || matrix[pivot][pivot] <= 0.0 {
            return None;
        }
        let factors = matrix.map(|row| row[pivot]);
        for sides in [&mut matrix, &mut inverse] {
            let scaled = sides[pivot].map(|value| value / factors[pivot]);
            *sides = from_fn(|row| {
                if row == pivot {
                    return scaled;
                }
                from_fn(|column| sides[row][column] - factors[row] * scaled[column])
            });
        }
    }
    Some(inverse)
}
