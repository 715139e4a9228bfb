//! One replica as a queue: what a rate of requests makes of its latencies (algorithm reference §5.2).

use serde::{Deserialize, Serialize};

use super::birth_death::{Chain, Occupancy};
use super::service_time::{Service, ServiceTimes, Shape};
use crate::model::Compat;
use crate::units::{OutOfRange, float};

/// How many requests a replica holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// N: in the batch at once, at least 1.
    pub batch: u32,
    /// Waiting behind it.
    pub queue: u32,
}

impl Limits {
    /// N where no replica tells its own.
    pub const DEFAULT_BATCH: u32 = 256;
    /// The queue that sizing allows.
    pub const SIZING_QUEUE: u32 = 100;
    /// A model holds at most this many requests, N + queue: 16 MiB of states.
    pub const MOST: u32 = 1 << 20;

    /// For sizing: the reference's fixed queue.
    #[must_use]
    pub const fn sizing(batch: u32) -> Self {
        Self { batch, queue: Self::SIZING_QUEUE }
    }

    /// For the tuner and the legacy solver: ten times the batch.
    #[must_use]
    pub const fn long(batch: u32) -> Self {
        Self { batch, queue: batch.saturating_mul(10) }
    }
}

/// Why a rate or a target has no answer.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Unsolvable {
    /// A rate that is 0, negative or not a number.
    #[error("rate {0} is not above 0")]
    NoRate(f32),
    /// More than the model can carry.
    #[error("rate {rate} is above the maximum {max_rate}")]
    AboveMaximum {
        /// What was asked for, requests/s.
        rate: f32,
        /// The most it can carry, requests/s.
        max_rate: f32,
    },
    /// Even the smallest load misses the target.
    #[error("{0} target is below the reachable range")]
    Unreachable(&'static str),
    /// A parameter out of its range.
    #[error(transparent)]
    OutOfRange(#[from] OutOfRange),
    /// The parameters are in range, the numbers that follow from them are not finite, or 0.
    #[error("the service rates are not finite and above 0")]
    NoServiceRate,
    /// A stored covariance that cannot be one.
    #[error("the covariance is not finite and symmetric")]
    Asymmetric,
    /// Upstream refuses a model with room for a single request.
    #[error("room for one request only")]
    SingleState,
}

/// What a model says of one rate. Times in ms, rates in requests/s.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Performance {
    /// Requests finished; below the rate when some are lost.
    pub throughput: f32,
    /// From arrival to the last token.
    pub response: f32,
    /// Of that, before the batch.
    pub wait: f32,
    /// Mean requests in the batch.
    pub in_service: f32,
    /// The prompt's iteration.
    pub prefill: f32,
    /// Time between tokens, ITL.
    pub itl: f32,
    /// Time to the first token: wait, prompt and one token.
    pub ttft: f32,
    /// Use of the batch, 0 to 1.
    pub rho: f32,
    /// The most the model can carry.
    pub max_rate: f32,
}

/// A solvable queue. λ_min and λ_max leave a thousandth of the range at its ends.
#[derive(Debug, Clone)]
pub struct Model {
    times: ServiceTimes,
    batch: f32,
    chain: Chain,
    /// Least and most, requests/s.
    pub(super) range: (f32, f32),
}

const MARGIN: f32 = 0.001;

impl Model {
    /// # Errors
    /// When `limits` or the output length are out of range, or no finite service rates follow from the parameters.
    pub fn new(service: Service, shape: Shape, limits: Limits, compat: Compat) -> Result<Self, Unsolvable> {
        let output = f64::from(shape.output);
        if !(output.is_finite() && output >= 1.0) {
            let allowed = "finite and at least 1";
            return Err(OutOfRange { unit: "output tokens", value: output, allowed }.into());
        }
        let states = limits.batch.saturating_add(limits.queue);
        if limits.batch == 0 || states > Limits::MOST {
            let (value, allowed) = (f64::from(limits.batch), "at least 1, with its queue at most 1048576");
            return Err(OutOfRange { unit: "batch", value, allowed }.into());
        }
        // Upstream tests 1 - p₀ of the solution before, 1 at first, against K, and never gets to a second one.
        if states == 1 && compat.is_upstream() {
            return Err(Unsolvable::SingleState);
        }
        let times = ServiceTimes::new(service, shape);
        let rates: Vec<f32> = (1..=limits.batch).map(|n| times.rate(of(n))).collect();
        let usable = |rate: &f32| rate.is_normal() && *rate > 0.0;
        let (Some(first), Some(last), true) = (rates.first(), rates.last(), rates.iter().all(usable)) else {
            return Err(Unsolvable::NoServiceRate);
        };
        let range = (first * MARGIN * 1000.0, last * (1.0 - MARGIN) * 1000.0);
        let states = usize::try_from(states).unwrap_or(usize::MAX);
        let chain = Chain::new(rates.into_iter().map(f64::from).collect(), states);
        Ok(Self { times, batch: of(limits.batch), chain, range })
    }

    /// The most the model can carry, requests/s.
    #[must_use]
    pub const fn max_rate(&self) -> f32 {
        self.range.1
    }

    /// Mean generated tokens of a request.
    #[must_use]
    pub const fn output(&self) -> f32 {
        self.times.shape.output
    }

    /// What `rate` requests/s make of the replica.
    ///
    /// # Errors
    /// When `rate` is not above 0 or above the maximum.
    pub fn analyze(&mut self, rate: f32) -> Result<Performance, Unsolvable> {
        if rate.is_nan() || rate <= 0.0 {
            return Err(Unsolvable::NoRate(rate));
        }
        let max_rate = self.max_rate();
        if rate > max_rate {
            return Err(Unsolvable::AboveMaximum { rate, max_rate });
        }
        self.solve(rate / 1000.0)
    }

    /// The same for `lambda` requests per ms, without the test of the range.
    fn solve(&mut self, lambda: f32) -> Result<Performance, Unsolvable> {
        let [found, _] = self.solve_both([lambda, lambda]);
        found
    }

    /// Two at once, in hardly more time than one.
    pub(super) fn solve_both(&mut self, lambda: [f32; 2]) -> [Result<Performance, Unsolvable>; 2] {
        if let Some(bad) = lambda.iter().find(|one| !(one.is_finite() && **one > 0.0)) {
            return [Err(Unsolvable::NoRate(*bad)), Err(Unsolvable::NoRate(*bad))];
        }
        let [one, other] = self.chain.solve(lambda.map(f64::from));
        let [first, second] = lambda;
        [self.performance(first, one), self.performance(second, other)]
    }

    fn performance(&self, lambda: f32, found: Occupancy) -> Result<Performance, Unsolvable> {
        let (in_service, in_system) = (found.in_service as f32, found.in_system as f32);
        let throughput = lambda * (1.0 - found.full as f32);
        let response = in_system / throughput;
        let serving = in_service / throughput;
        let wait = (response - serving).max(0.0);
        let prefill = self.times.prefill(in_service);
        let itl = (serving - prefill) / self.output();
        let ttft = wait + prefill + itl;
        let rho = (in_service / self.batch).clamp(0.0, 1.0);
        let (throughput, max_rate) = (throughput * 1000.0, self.max_rate());
        if !(ttft.is_finite() && throughput.is_finite()) {
            return Err(Unsolvable::NoServiceRate);
        }
        Ok(Performance { throughput, response, wait, in_service, prefill, itl, ttft, rho, max_rate })
    }
}

/// A count as f32: exact up to 2²⁴, the nearest above.
pub(in crate::analyze) fn of(count: u32) -> f32 {
    float(i64::from(count)) as f32
}
