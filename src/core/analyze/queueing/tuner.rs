//! An extended Kalman filter that tracks α, β, γ of one variant by the latencies of its replicas. Source: WVA 526ce85 (2026-06),
//! `internal/engines/analyzers/queueingmodel/tuner`.

use serde::{Deserialize, Serialize};

use super::matrix::{Mat3, Vec3, add, apply, diagonal, dot, inverse, is_symmetric, scale, sum};
use super::model::{Limits, Model, RequestLengths, Service, Unsolvable};
use crate::units::to_f32;

/// One observation of a replica: its load, and the latencies under it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Environment {
    /// Requests a minute.
    pub rate: f32,
    /// The mean request. Stored as `shape`.
    #[serde(rename = "shape")]
    pub lengths: RequestLengths,
    /// N.
    pub batch: u32,
    /// Time to first token, ms. Unlike in sizing without the first token's own iteration.
    pub ttft: f32,
    /// Time between tokens, ms.
    pub itl: f32,
}

impl Environment {
    /// `None` unless all that a filter needs is above 0.
    pub fn validated(self) -> Option<Self> {
        let needed = [self.rate, self.lengths.input, self.lengths.output, self.ttft, self.itl];
        let all = needed.into_iter().all(|value| value.is_finite() && value > 0.0);
        (all && self.batch > 0).then_some(self)
    }

    pub(crate) fn predict(&self, state: Vec3) -> Result<[f64; 2], Unsolvable> {
        let [alpha, beta, gamma] = state;
        let service = Service::new(to_f32(alpha), to_f32(beta), to_f32(gamma))?;
        let mut model = Model::new(service, self.lengths, Limits::long(self.batch))?;
        let at = model.analyze(self.rate / 60.0)?;
        // Without the first token's own iteration, as the latencies of an environment are measured.
        Ok([f64::from(at.wait + at.prefill), f64::from(at.itl)])
    }

    /// How TTFT and ITL change with each parameter, by central differences.
    pub(crate) fn jacobian(&self, state: Vec3) -> Option<[Vec3; 2]> {
        let mut ttft = [0.0; 3];
        let mut itl = [0.0; 3];
        for (index, (ttft_slope, itl_slope)) in ttft.iter_mut().zip(&mut itl).enumerate() {
            let mut up = state;
            let mut down = state;
            let mut step = DERIVATIVE_STEP;
            if let (Some(up), Some(down)) = (up.get_mut(index), down.get_mut(index)) {
                if up.abs() > 0.0 {
                    step *= up.abs();
                }
                *up += step;
                *down -= step;
            }
            let [ttft_up, itl_up] = self.predict(up).ok()?;
            let [ttft_down, itl_down] = self.predict(down).ok()?;
            *ttft_slope = (ttft_up - ttft_down) / (2.0 * step);
            *itl_slope = (itl_up - itl_down) / (2.0 * step);
        }
        Some([ttft, itl])
    }

    pub(crate) fn latencies(&self) -> [f64; 2] {
        [f64::from(self.ttft), f64::from(self.itl)]
    }
}

/// Where a filter starts, and the bounds within which it stays.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Start {
    /// α, β, γ.
    pub state: Vec3,
    pub low: Vec3,
    pub high: Vec3,
    /// The covariance of its error; `None` is the process noise.
    pub covariance: Option<Mat3>,
}

/// α, β, γ if nothing better is known, ms (upstream's constants).
pub(crate) const DEFAULT_STATE: Vec3 = [5.0, 0.05, 0.000_05];

impl Start {
    /// At a guess, within a hundredth and a hundred times of it.
    pub(crate) fn guessed(state: Vec3) -> Self {
        let (low, high) = bounds(state);
        Self { state, low, high, covariance: None }
    }

    /// At the default, within its bounds.
    pub(crate) fn unknown() -> Self {
        Self::guessed(DEFAULT_STATE)
    }

    /// At what was learned before, within the bounds of the default.
    pub(crate) fn stored(service: Service, covariance: Option<Mat3>) -> Self {
        let (low, high) = bounds(DEFAULT_STATE);
        Self { state: state_of(service), low, high, covariance }
    }
}

pub(crate) fn bounds(state: Vec3) -> (Vec3, Vec3) {
    (scale(state, 0.01), scale(state, 100.0))
}

pub(crate) fn state_of(service: Service) -> Vec3 {
    [f64::from(service.alpha), f64::from(service.beta), f64::from(service.gamma)]
}

/// α, β, γ from one observation, as if nine tenths of an iteration were its fixed part (upstream's guess). `None` if one of them
/// would not be above 0. Times in ms, lengths in tokens.
pub(crate) fn guess(ttft: f64, itl: f64, input: f64, output: f64) -> Option<Vec3> {
    let alpha = 0.9 * itl;
    let both = (ttft - alpha) / input;
    let share = input + (output + 1.0) / 2.0 - 1.0;
    if !(both >= 0.0 && share > 0.0) {
        return None;
    }
    let gamma = ((itl - alpha) - both) / share;
    let state = [alpha, both - gamma, gamma];
    state.iter().all(|value| value.is_finite() && *value > 0.0).then_some(state)
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct FilterStep {
    /// α, β, γ after it.
    pub state: Vec3,
    /// TTFT and ITL as predicted, ms; `None` if the model has no solution.
    pub predicted: Option<[f64; 2]>,
    /// The observation less the prediction, ms.
    pub innovation: Option<[f64; 2]>,
    /// The normalised innovation squared: how unlikely that is.
    pub nis: Option<f64>,
    /// The state follows the observation.
    pub accepted: bool,
}

/// The 97.5 % quantile of χ² with two degrees of freedom. An observation that is less likely is rejected.
pub(crate) const MAX_NIS: f64 = 7.378;
/// Standard error of a state in one step, a part of its value; of an observation it is the half width of the 95 % interval.
const RELATIVE_ERROR: f64 = 0.05;
/// Standard deviations in the half width of a 95 % interval.
const QUANTILE_95: f64 = 1.96;
/// The step of a numerical derivative, a part of the value.
const DERIVATIVE_STEP: f64 = 0.01;

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Filter {
    /// α, β, γ, within the bounds.
    pub state: Vec3,
    /// P, the covariance of their error.
    pub covariance: Mat3,
    /// Q, the covariance of their change in a step.
    pub process: Mat3,
    /// R, the variances of TTFT and ITL.
    pub noise: [f64; 2],
    low: Vec3,
    high: Vec3,
}

impl Filter {
    /// A filter at `start` whose noise is that of the `first` observation. Fails if the covariance is not symmetric, or the model has
    /// no solution for the two.
    pub(crate) fn new(start: &Start, first: &Environment) -> Result<Self, Unsolvable> {
        let process = process_noise(start.state);
        let covariance = start.covariance.unwrap_or(process);
        if !is_symmetric(covariance) {
            return Err(Unsolvable::Asymmetric);
        }
        first.predict(start.state)?;
        let noise = first.latencies().map(|value| square(RELATIVE_ERROR / QUANTILE_95) * square(value));
        let Start { low, high, .. } = *start;
        let state = clamp(start.state, low, high);
        Ok(Self { state, covariance, process, noise, low, high })
    }

    /// Follows one observation. A step that is rejected, or for which the model has no solution, leaves the filter as it was.
    pub(crate) fn step(&mut self, observed: &Environment) -> FilterStep {
        let state = self.state;
        let covariance = self.covariance;
        let mut step = FilterStep { state, predicted: None, innovation: None, nis: None, accepted: false };
        if self.follow(observed, &mut step).is_some() {
            step.accepted = true;
            step.state = self.state;
        } else {
            self.state = state;
            self.covariance = covariance;
        }
        step
    }

    /// Prediction and update; `None` for a step that does not count.
    fn follow(&mut self, observed: &Environment, step: &mut FilterStep) -> Option<()> {
        let state = clamp(self.state, self.low, self.high);
        let covariance = sum(self.covariance, self.process);
        let predicted = observed.predict(state).ok()?;
        step.predicted = Some(predicted);
        let [[z1, z2], [h1, h2]] = [observed.latencies(), predicted];
        let [y1, y2] = [z1 - h1, z2 - h2];
        step.innovation = Some([y1, y2]);
        let [ttft, itl] = observed.jacobian(state)?;
        // PHᵀ, and S = HPHᵀ + R.
        let [left, right] = [apply(covariance, ttft), apply(covariance, itl)];
        let [r1, r2] = self.noise;
        let spread = [[dot(ttft, left) + r1, dot(ttft, right)], [dot(itl, left), dot(itl, right) + r2]];
        let [[a, b], [c, d]] = inverse(spread)?;
        let nis = y1 * (a * y1 + b * y2) + y2 * (c * y1 + d * y2);
        step.nis = nis.is_finite().then_some(nis);
        let gains = [add(scale(left, a), scale(right, c)), add(scale(left, b), scale(right, d))];
        let [gain1, gain2] = gains;
        let moved = add(state, add(scale(gain1, y1), scale(gain2, y2)));
        self.state = clamp(moved, self.low, self.high);
        self.covariance = shrunk(covariance, gains, [ttft, itl]);
        let is_finite = moved.iter().chain(self.covariance.iter().flatten()).all(|value| value.is_finite());
        let is_positive = self.state.iter().all(|value| *value > 0.0);
        (is_finite && is_positive && nis < MAX_NIS).then_some(())
    }
}

/// Q: a standard error of a twentieth.
pub(crate) fn process_noise(state: Vec3) -> Mat3 {
    diagonal(state.map(|value| square(RELATIVE_ERROR * value)))
}

/// (I − GH)·P, with the columns of G and the rows of H.
fn shrunk(p: Mat3, [gain1, gain2]: [Vec3; 2], [row1, row2]: [Vec3; 2]) -> Mat3 {
    let identity = diagonal([1.0, 1.0, 1.0]);
    let [p1, p2, p3] = p;
    let mut left = identity;
    for ((row, g1), g2) in left.iter_mut().zip(gain1).zip(gain2) {
        *row = add(*row, scale(add(scale(row1, g1), scale(row2, g2)), -1.0));
    }
    left.map(|[a, b, c]| add(add(scale(p1, a), scale(p2, b)), scale(p3, c)))
}

fn clamp(state: Vec3, low: Vec3, high: Vec3) -> Vec3 {
    let [[a, b, c], [la, lb, lc], [ha, hb, hc]] = [state, low, high];
    [a.max(la).min(ha), b.max(lb).min(hb), c.max(lc).min(hc)]
}

fn square(value: f64) -> f64 {
    value * value
}
