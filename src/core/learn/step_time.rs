//! How long one step of a serving process takes: `a + b·P + c·n + d·u` seconds for P prompt tokens computed in it, n running
//! sequences and a share u of the KV cache in use. Fitted to inter-token latencies as they come, so nothing has to saturate
//! before it is known what a replica can carry.
//!
//! Least squares of the relative error with a ridge towards what hardware does: a process that has only been seen in one
//! state still gets all four terms. Only sums are kept (14 numbers), and they are forgotten over half an hour.

use serde::{Deserialize, Serialize};

use super::{is_default, kept, short};
use crate::moment::Moment;

/// Forgetting, seconds: 360 scrapes, enough for a slow drift, and it bridges a quiet quarter of an hour.
const SPAN: f64 = 1800.0;

/// Of an empty step: a decode step reads all weights once, and a prompt token costs 2 operations a weight. An H100 does
/// 989e12/3.35e12 = 295 of them while it reads one weight of two bytes, an A100 156, an H200 206; 200 after efficiencies.
const PROMPT_SHARE: f64 = 1.0 / 200.0;
/// Of an empty step: 256 sequences cost 0.4 of it to schedule and sample.
const SEQUENCE_SHARE: f64 = 0.0015;
/// Of an empty step: a full cache is read in every step, and it has between the size of the weights and four times that.
const CACHE_SHARE: f64 = 3.0;

/// What the ridge weighs against samples: 0.1 is 40 samples of a term that is 5 % of a step. The empty step is in every
/// sample and needs less.
const RIDGE: [f64; 4] = [0.02, 0.1, 0.1, 0.1];
/// How far a term may be from its prior, as a factor.
const RANGE: (f64, f64) = (0.05, 20.0);
/// Rounds of coordinate descent; a strictly convex function of four variables settles in a few tens.
const ROUNDS: u32 = 60;

/// The terms of a step, seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepTime {
    /// Of an empty step.
    pub base: f64,
    /// For each prompt token computed.
    pub prompt_token: f64,
    /// For each running sequence.
    pub sequence: f64,
    /// With a full KV cache.
    pub full_cache: f64,
}

impl StepTime {
    /// Of a process that does nothing but prompts, `prompt_token` seconds a token: what a step costs beside is in that.
    #[must_use]
    pub const fn of_prompts(prompt_token: f64) -> Self {
        Self { base: 0.0, prompt_token, sequence: 0.0, full_cache: 0.0 }
    }
}

/// One look at a process that was busy between two readings.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// Mean seconds of a step, above 0.
    pub step: f64,
    /// Prompt tokens computed a step.
    pub prompt: f64,
    /// Sequences running.
    pub running: f64,
    /// Share of the KV cache in use.
    pub usage: f64,
}

/// What is learned of the steps of one variant.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StepTimeFit {
    /// `Σ x xᵀ / T²`, its upper triangle row by row.
    #[serde(skip_serializing_if = "is_default")]
    squares: [f64; 10],
    /// `Σ x / T`.
    #[serde(skip_serializing_if = "is_default")]
    products: [f64; 4],
    /// The shortest step ever seen, seconds.
    #[serde(skip_serializing_if = "is_default")]
    shortest: Option<f64>,
    /// When the sums were last added to.
    #[serde(skip_serializing_if = "is_default")]
    at: Option<Moment>,
}

/// Where element (row, column) of the triangle is.
const fn place(row: usize, column: usize) -> usize {
    let (row, column) = if row <= column { (row, column) } else { (column, row) };
    row * (7 - row) / 2 + column
}

impl StepTimeFit {
    /// When the last sample was taken in.
    #[must_use]
    pub const fn learned_at(&self) -> Option<Moment> {
        self.at
    }

    /// Takes in a sample of the readings that ended at `at`.
    pub fn learn(&mut self, at: Moment, sample: &Sample) {
        let Sample { step, prompt, running, usage } = *sample;
        if !(step > 0.0 && [step, prompt, running, usage].into_iter().all(f64::is_finite)) {
            return;
        }
        let kept = self.at.map_or(1.0, |before| kept(before.until(at), SPAN));
        self.at = self.at.max(Some(at));
        let x = [1.0 / step, prompt / step, running / step, usage / step];
        for (row, one) in x.iter().enumerate() {
            for (column, other) in x.iter().enumerate().skip(row) {
                let sum = &mut self.squares[place(row, column)];
                *sum = *sum * kept + one * other;
            }
            self.products[row] = self.products[row] * kept + one;
        }
        self.shortest = Some(self.shortest.map_or(step, |shortest| shortest.min(step)));
    }

    /// The terms that explain what was seen; `None` when nothing was. `prompt_token` is the least time to first token that
    /// was seen, by prompt token, when one was: a prompt token costs no more.
    #[must_use]
    pub fn solve(&self, prompt_token: Option<f64>) -> Option<StepTime> {
        let base = self.shortest?;
        let by_weights = base * PROMPT_SHARE;
        let prior = [
            base,
            prompt_token.map_or(by_weights, |seen| seen.min(by_weights)),
            base * SEQUENCE_SHARE,
            base * CACHE_SHARE,
        ];
        let mut factors = [1.0; 4];
        for _ in 0..ROUNDS {
            for own in 0..4 {
                let others: f64 = (0..4)
                    .filter(|other| *other != own)
                    .map(|other| self.squares[place(own, other)] * factors[other] * prior[other])
                    .sum();
                let pull = prior[own] * (self.products[own] - others) + RIDGE[own];
                let push = self.squares[place(own, own)] * prior[own] * prior[own] + RIDGE[own];
                factors[own] = (pull / push).clamp(RANGE.0, RANGE.1);
            }
        }
        let [base, prompt_token, sequence, full_cache] = [0, 1, 2, 3].map(|own| factors[own] * prior[own]);
        Some(StepTime { base, prompt_token, sequence, full_cache })
    }

    /// What is worth keeping over a restart.
    #[must_use]
    pub fn kept(&self) -> Self {
        let (squares, products) = (self.squares.map(short), self.products.map(short));
        Self { squares, products, shortest: self.shortest.map(short), at: self.at }
    }

    /// Makes the moments that are after `now` be now.
    pub fn not_after(&mut self, now: Moment) {
        self.at = self.at.map(|at| at.min(now));
    }
}
