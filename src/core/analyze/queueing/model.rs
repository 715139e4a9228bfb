//! One replica as a queue: how long an iteration, a prompt and a generated token take with n requests in the batch, and the latencies that
//! follow from a request rate.
//!
//! Service times are f32, in the order in which upstream computes them, so that results agree with upstream's to the bit. Source:
//! WVA 526ce85 (2026-06), `pkg/analyzer/queueanalyzer.go`.

use serde::{Deserialize, Serialize};

use super::birth_death::{Chain, Occupancy};
use crate::units::{OutOfRange, at_least_zero, to_f32, to_f64};

/// The service times of a model on an accelerator: the three parameters that the tuner learns.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Service {
    /// An iteration's fixed part, ms.
    pub alpha: f32,
    /// Computing one token, ms.
    pub beta: f32,
    /// Reading one token of the cache, ms.
    pub gamma: f32,
}

impl Service {
    /// Fails for a parameter that is negative or not finite.
    pub fn new(alpha: f32, beta: f32, gamma: f32) -> Result<Self, OutOfRange> {
        at_least_zero("alpha", alpha.into())?;
        at_least_zero("beta", beta.into())?;
        at_least_zero("gamma", gamma.into())?;
        Ok(Self { alpha, beta, gamma })
    }
}

/// The mean request.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RequestLengths {
    /// Tokens of its prompt, at least 0.
    pub input: f32,
    /// Tokens generated for it, at least 0; a queue has a solution from 1 on.
    pub output: f32,
}

impl RequestLengths {
    /// Fails for a length that is negative or not finite.
    pub fn new(input: f32, output: f32) -> Result<Self, OutOfRange> {
        at_least_zero("input tokens", input.into())?;
        at_least_zero("output tokens", output.into())?;
        Ok(Self { input, output })
    }
}

/// The times of one service and one kind of request. What does not depend on n is computed once.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ServiceTimes {
    alpha: f32,
    /// What one more request in the batch adds to an iteration.
    slope: f32,
    /// What a prompt adds to the iteration it is in.
    prompt: f32,
    beta: f32,
    /// γ·(I + O/2): reading a request's own cache.
    own: f32,
    lengths: RequestLengths,
}

impl ServiceTimes {
    pub(crate) fn new(service: Service, lengths: RequestLengths) -> Self {
        let Service { alpha, beta, gamma } = service;
        let RequestLengths { input, output } = lengths;
        // Tokens computed for a request in each of its O + 1 iterations, on average, and tokens it holds in the cache.
        let computed = (input + output) / (output + 1.0);
        let resident = input + output / 2.0;
        let slope = beta * computed + gamma * resident;
        Self { alpha, slope, prompt: (beta + gamma) * input, beta, own: gamma * resident, lengths }
    }

    /// T(n): one iteration with `n` requests, ms.
    pub(crate) fn iteration(&self, n: f32) -> f32 {
        self.alpha + n * self.slope
    }

    /// The prompt of one request, ms; 0 without a prompt.
    pub(crate) fn prefill(&self, n: f32) -> f32 {
        if self.lengths.input > 0.0 { self.iteration(n) + self.prompt } else { 0.0 }
    }

    /// One generated token, ms.
    pub(crate) fn decode(&self, n: f32) -> f32 {
        self.iteration(n) + self.beta + self.own
    }

    /// μ(n): requests finished per ms with `n` in service.
    fn rate(&self, n: f32) -> f32 {
        n / (self.prefill(n) + self.lengths.output * self.decode(n))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    /// N: in the batch at once, at least 1.
    pub batch: u32,
    /// Waiting behind it.
    pub queue: u32,
}

impl Limits {
    /// N if no engine shows its own: vLLM's default, and upstream's constant.
    pub(crate) const DEFAULT_BATCH: u32 = 256;
    /// The queue that sizing allows (upstream's constant).
    pub(crate) const SIZING_QUEUE: u32 = 100;
    /// A model holds at most this many requests, N + queue: 16 MiB of states.
    pub(crate) const MAX_REQUESTS: u32 = 1 << 20;

    /// For sizing: a fixed queue.
    pub(crate) const fn sizing(batch: u32) -> Self {
        Self { batch, queue: Self::SIZING_QUEUE }
    }

    /// For the tuner and the legacy solver: ten times the batch.
    pub(crate) const fn long(batch: u32) -> Self {
        Self { batch, queue: batch.saturating_mul(10) }
    }
}

/// Why there is no solution for a model, a rate or a target.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub(crate) enum Unsolvable {
    /// A rate that is 0, negative or not a number.
    #[error("rate {0} is not above 0")]
    NoRate(f32),
    #[error("rate {rate} is above the maximum {max_rate}")]
    AboveMaximum { rate: f32, max_rate: f32 },
    /// Even the smallest load misses the target.
    #[error("{0} target is below the reachable range")]
    Unreachable(&'static str),
    #[error(transparent)]
    OutOfRange(#[from] OutOfRange),
    /// The parameters are in range, but the numbers that follow from them are 0 or not finite.
    #[error("the service rates are not finite and above 0")]
    NoServiceRate,
    /// A stored covariance matrix is invalid.
    #[error("the covariance is not finite and symmetric")]
    Asymmetric,
    /// Upstream rejects a model with room for a single request.
    #[cfg(test)]
    #[error("room for one request only")]
    SingleState,
}

/// The latencies of a model at one rate. Times in ms, rates in requests/s.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Performance {
    /// Requests finished; below the rate when some are lost.
    pub throughput: f32,
    /// From arrival to the last token.
    pub response: f32,
    /// Of that, before the batch.
    pub wait: f32,
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
pub(crate) struct Model {
    times: ServiceTimes,
    batch: f32,
    chain: Chain,
    /// Requests/s.
    pub(super) min_rate: f32,
    /// Requests/s.
    pub(super) max_rate: f32,
}

/// The part of the range that is left out at each end, where latencies are numerically unstable (upstream's constant).
const RANGE_MARGIN: f32 = 0.001;

impl Model {
    /// Fails if `limits` or the output length are out of range, or no finite service rates follow from the parameters.
    pub(crate) fn new(service: Service, lengths: RequestLengths, limits: Limits) -> Result<Self, Unsolvable> {
        let output = f64::from(lengths.output);
        if !(output.is_finite() && output >= 1.0) {
            let allowed = "finite and at least 1";
            return Err(OutOfRange { unit: "output tokens", value: output, allowed }.into());
        }
        let states = limits.batch.saturating_add(limits.queue);
        if limits.batch == 0 || states > Limits::MAX_REQUESTS {
            let value = f64::from(limits.batch);
            let allowed = "at least 1, with its queue at most 1048576";
            return Err(OutOfRange { unit: "batch", value, allowed }.into());
        }
        let times = ServiceTimes::new(service, lengths);
        let rates: Vec<f32> = (1..=limits.batch).map(|n| times.rate(single_count(n))).collect();
        let is_usable = |rate: &f32| rate.is_normal() && *rate > 0.0;
        let (Some(first), Some(last), true) = (rates.first(), rates.last(), rates.iter().all(is_usable))
        else {
            return Err(Unsolvable::NoServiceRate);
        };
        let min_rate = first * RANGE_MARGIN * 1000.0;
        let max_rate = last * (1.0 - RANGE_MARGIN) * 1000.0;
        let states = usize::try_from(states).unwrap_or(usize::MAX);
        let chain = Chain::new(rates.into_iter().map(f64::from).collect(), states);
        Ok(Self { times, batch: single_count(limits.batch), chain, min_rate, max_rate })
    }

    #[cfg(test)]
    pub(crate) const fn max_rate(&self) -> f32 {
        self.max_rate
    }

    pub(crate) const fn output(&self) -> f32 {
        self.times.lengths.output
    }

    /// The latencies of the replica at `rate` requests/s, which has to be above 0 and at most the maximum.
    pub(crate) fn analyze(&mut self, rate: f32) -> Result<Performance, Unsolvable> {
        if rate.is_nan() || rate <= 0.0 {
            return Err(Unsolvable::NoRate(rate));
        }
        let max_rate = self.max_rate;
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

    /// Solves for two rates at once, which takes little longer than one (see [`Chain`]).
    pub(super) fn solve_both(&mut self, lambda: [f32; 2]) -> [Result<Performance, Unsolvable>; 2] {
        if let Some(bad) = lambda.iter().find(|lambda| !(lambda.is_finite() && **lambda > 0.0)) {
            return [Err(Unsolvable::NoRate(*bad)), Err(Unsolvable::NoRate(*bad))];
        }
        let [first, second] = self.chain.solve(lambda.map(f64::from));
        let [lambda_first, lambda_second] = lambda;
        [self.performance(lambda_first, first), self.performance(lambda_second, second)]
    }

    fn performance(&self, lambda: f32, found: Occupancy) -> Result<Performance, Unsolvable> {
        let in_service = to_f32(found.in_service);
        // Little's law: the number in the system divided by the rate at which they leave is the time spent there.
        let throughput = lambda * (1.0 - to_f32(found.full));
        let response = to_f32(found.in_system) / throughput;
        let serving = in_service / throughput;
        let wait = (response - serving).max(0.0);
        let prefill = self.times.prefill(in_service);
        let itl = (serving - prefill) / self.output();
        let ttft = wait + prefill + itl;
        let rho = (in_service / self.batch).clamp(0.0, 1.0);
        let throughput = throughput * 1000.0;
        let max_rate = self.max_rate;
        if !(ttft.is_finite() && throughput.is_finite()) {
            return Err(Unsolvable::NoServiceRate);
        }
        Ok(Performance { throughput, response, wait, in_service, prefill, itl, ttft, rho, max_rate })
    }
}

/// A count as f32: exact up to 2²⁴, the nearest above.
pub(crate) fn single_count(count: u32) -> f32 {
    to_f32(to_f64(i64::from(count)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parameter_that_is_negative_or_not_a_number_is_named() {
        let error = Service::new(1.0, -0.5, 0.0).unwrap_err();
        assert_eq!(error.to_string(), "beta -0.5 is out of range: must be finite and at least 0");
        assert_eq!(Service::new(1.0, 0.0, f32::NAN).unwrap_err().unit, "gamma");
        assert_eq!(RequestLengths::new(f32::INFINITY, 1.0).unwrap_err().unit, "input tokens");
        assert_eq!(RequestLengths::new(1.0, -1.0).unwrap_err().unit, "output tokens");
    }
}
