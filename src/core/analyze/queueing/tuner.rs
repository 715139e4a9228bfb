//! An extended Kalman filter that follows α, β, γ of one variant by what its replicas show (algorithm reference §5.5).

use serde::{Deserialize, Serialize};

use super::matrix::{Mat3, Vec3, add, apply, diagonal, dot, inverse, scale, sum, symmetric};
use super::model::{Limits, Model, Unsolvable};
use super::service_time::{Service, Shape};
use crate::model::Compat;

/// One replica at work: a load and the latencies it made.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Environment {
    /// Requests a minute.
    pub rate: f32,
    /// The mean request.
    pub shape: Shape,
    /// N.
    pub batch: u32,
    /// Time to first token, ms. Unlike in sizing without the first token's own iteration.
    pub ttft: f32,
    /// Time between tokens, ms.
    pub itl: f32,
}

impl Environment {
    /// The environment, when all that a filter needs is above 0.
    #[must_use]
    pub fn valid(self) -> Option<Self> {
        let needed = [self.rate, self.shape.input, self.shape.output, self.ttft, self.itl];
        let all = needed.into_iter().all(|value| value.is_finite() && value > 0.0);
        (all && self.batch > 0).then_some(self)
    }

    /// The latencies that `state` predicts.
    pub(super) fn predict(&self, state: Vec3, compat: Compat) -> Result<[f64; 2], Unsolvable> {
        let [alpha, beta, gamma] = state;
        let service = Service::new(alpha as f32, beta as f32, gamma as f32)?;
        let mut model = Model::new(service, self.shape, Limits::long(self.batch), compat)?;
        let at = model.analyze(self.rate / 60.0)?;
        Ok([f64::from(at.wait + at.prefill), f64::from(at.itl)])
    }

    /// How TTFT and ITL change with each parameter, by central differences.
    pub(super) fn jacobian(&self, state: Vec3, compat: Compat) -> Option<[Vec3; 2]> {
        let (mut ttft, mut itl) = ([0.0; 3], [0.0; 3]);
        for (index, (slope1, slope2)) in ttft.iter_mut().zip(&mut itl).enumerate() {
            let (mut up, mut down, mut step) = (state, state, STEP);
            if let (Some(up), Some(down)) = (up.get_mut(index), down.get_mut(index)) {
                if up.abs() > 0.0 {
                    step *= up.abs();
                }
                *up += step;
                *down -= step;
            }
            let [more1, more2] = self.predict(up, compat).ok()?;
            let [less1, less2] = self.predict(down, compat).ok()?;
            *slope1 = (more1 - less1) / (2.0 * step);
            *slope2 = (more2 - less2) / (2.0 * step);
        }
        Some([ttft, itl])
    }

    pub(super) fn observed(&self) -> [f64; 2] {
        [f64::from(self.ttft), f64::from(self.itl)]
    }
}

/// Where a filter starts, and the bounds it stays in.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Start {
    /// α, β, γ.
    pub state: Vec3,
    /// Least of each.
    pub low: Vec3,
    /// Most of each.
    pub high: Vec3,
    /// What is known of its error; `None` is as much as the process noise.
    pub covariance: Option<Mat3>,
}

/// α, β, γ where nothing better is known, ms.
pub const DEFAULT_STATE: Vec3 = [5.0, 0.05, 0.000_05];

impl Start {
    /// At a guess, within a hundredth and a hundred times of it.
    #[must_use]
    pub fn guessed(state: Vec3) -> Self {
        let (low, high) = bounds(state);
        Self { state, low, high, covariance: None }
    }

    /// At the default, within its bounds.
    #[must_use]
    pub fn unknown() -> Self {
        Self::guessed(DEFAULT_STATE)
    }

    /// At what was learned before, within the bounds of the default.
    #[must_use]
    pub fn stored(service: Service, covariance: Option<Mat3>) -> Self {
        let (low, high) = bounds(DEFAULT_STATE);
        Self { state: coverage_state(service), low, high, covariance }
    }
}

/// A hundredth and a hundred times of each.
pub(super) fn bounds(state: Vec3) -> (Vec3, Vec3) {
    (scale(state, 0.01), scale(state, 100.0))
}

pub(super) fn coverage_state(service: Service) -> Vec3 {
    [f64::from(service.alpha), f64::from(service.beta), f64::from(service.gamma)]
}

/// α, β, γ from one observation, as if nine tenths of an iteration were its fixed part. `None` when one of them would
/// not be above 0. Times in ms, lengths in tokens.
#[must_use]
pub fn guess(ttft: f64, itl: f64, input: f64, output: f64) -> Option<Vec3> {
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

/// What one step did.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    /// α, β, γ after it.
    pub state: Vec3,
    /// TTFT and ITL as predicted, ms; `None` where the model has no answer.
    pub predicted: Option<[f64; 2]>,
    /// What was seen less what was predicted, ms.
    pub innovation: Option<[f64; 2]>,
    /// How unlikely that is: the normalised innovation squared.
    pub nis: Option<f64>,
    /// The state follows the observation.
    pub accepted: bool,
}

/// The 97.5 % point of χ² with two degrees of freedom: from there on an observation is too unlikely to follow.
pub const GATE: f64 = 7.378;
/// Standard error assumed of a state and, by the 95 % quantile, of an observation; a part of the value.
const ERROR: f64 = 0.05;
const QUANTILE: f64 = 1.96;
/// The step of a derivative, a part of the value.
const STEP: f64 = 0.01;

/// A filter at work.
#[derive(Debug, Clone, PartialEq)]
pub struct Filter {
    /// α, β, γ, within the bounds.
    pub state: Vec3,
    /// P, what is known of their error.
    pub covariance: Mat3,
    /// Q, what they may change in a step.
    pub process: Mat3,
    /// R, the error of TTFT and ITL.
    pub noise: [f64; 2],
    low: Vec3,
    high: Vec3,
    compat: Compat,
}

impl Filter {
    /// A filter at `start` whose noise is that of the `first` observation.
    ///
    /// # Errors
    /// When the covariance is not symmetric, or the start has no answer to the first observation.
    pub fn new(start: &Start, first: &Environment, compat: Compat) -> Result<Self, Unsolvable> {
        let process = process_noise(start.state);
        let covariance = start.covariance.unwrap_or(process);
        if !symmetric(covariance) {
            return Err(Unsolvable::Asymmetric);
        }
        first.predict(start.state, compat)?;
        let noise = first.observed().map(|value| square(ERROR / QUANTILE) * square(value));
        let Start { low, high, .. } = *start;
        let state = clamp(start.state, low, high);
        Ok(Self { state, covariance, process, noise, low, high, compat })
    }

    /// Follows one observation. A step that is refused, or that the model has no answer for, leaves all as it was.
    pub fn step(&mut self, seen: &Environment) -> Step {
        let before = (self.state, self.covariance);
        let mut step =
            Step { state: self.state, predicted: None, innovation: None, nis: None, accepted: false };
        if self.follow(seen, &mut step).is_some() {
            step.accepted = true;
            step.state = self.state;
        } else {
            (self.state, self.covariance) = before;
        }
        step
    }

    /// Prediction and update; `None` for a step that does not count.
    fn follow(&mut self, seen: &Environment, step: &mut Step) -> Option<()> {
        let state = clamp(self.state, self.low, self.high);
        let covariance = sum(self.covariance, self.process);
        let predicted = seen.predict(state, self.compat).ok()?;
        step.predicted = Some(predicted);
        let [[z1, z2], [h1, h2]] = [seen.observed(), predicted];
        let [y1, y2] = [z1 - h1, z2 - h2];
        step.innovation = Some([y1, y2]);
        let [ttft, itl] = seen.jacobian(state, self.compat)?;
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
        let sound = moved.iter().chain(self.covariance.iter().flatten()).all(|value| value.is_finite());
        let positive = self.state.iter().all(|value| *value > 0.0);
        (sound && positive && nis < GATE).then_some(())
    }
}

/// Q: a standard error of a twentieth.
pub(super) fn process_noise(state: Vec3) -> Mat3 {
    diagonal(state.map(|value| square(ERROR * value)))
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
