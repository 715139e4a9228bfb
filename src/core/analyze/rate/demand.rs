//! The demand on a role when a pod that is ordered now serves: requests/s, and the requests that wait by then.

use super::capacity::ReplicaCapacity;
use crate::learn::ArrivalLevel;

/// Steps of the backlog forecast; each is a few seconds, short against the time that a request stays.
const FORECAST_STEPS: u32 = 40;

/// The demand on a role, requests/s.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Demand {
    pub level: ArrivalLevel,
    /// F: how much the counts vary, compared with a Poisson process.
    pub dispersion: f64,
    /// H: seconds from a change of the load to a pod that serves it.
    pub horizon: f64,
    pub forecast: f64,
    pub certain: f64,
    /// The part of the level that is certain, without its trend: a trend is no surge.
    pub surge: f64,
    /// The share of it, 0 to 0.5, that is refused: requests that arrive and never wait.
    pub refused_share: f64,
}

impl Demand {
    /// From a level, and the dispersion of the counts that it was computed from.
    pub(crate) fn new(level: ArrivalLevel, dispersion: f64, horizon: f64, refused_share: f64) -> Self {
        let ArrivalLevel { rate, slope, seconds } = level;
        // A falling trend is not followed: the forecast would remove replicas that are still needed. A rising one is followed to at most twice
        // the rate, because no straight line holds for longer. What is refused has doubled the rate at most already: together they may
        // not make more of what is admitted, which alone is not a claim.
        let most = 2.0 * rate * (1.0 - refused_share);
        let forecast = if slope > 0.0 { (rate + slope * horizon).min(most) } else { rate };
        // The standard error of a rate that was counted over `seconds`: the variance of a count is F times its mean.
        let error = (dispersion * rate / seconds.max(1.0)).sqrt();
        let surge = rate - error - slope.max(0.0) * horizon;
        Self { level, dispersion, horizon, forecast, certain: forecast - error, surge, refused_share }
    }

    /// Refused requests/s of the level.
    pub(crate) fn refused(&self) -> f64 {
        self.level.rate * self.refused_share
    }

    /// The part of the forecast that is admitted: what is refused until the pods that are ordered now serve does not wait for them.
    pub(crate) fn admitted_forecast(&self) -> f64 {
        self.forecast * (1.0 - self.refused_share)
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct PodCapacity {
    pub capacity: ReplicaCapacity,
    /// Seconds until it serves; 0 if it does already.
    pub ready_in: f64,
}

/// Requests in the role at the end of `horizon` seconds, if there are `now` of them and `arriving` arrive each second. A fluid approximation in
/// which each serving pod runs a share of them in proportion to its maximum of sequences.
pub(crate) fn requests_at_horizon(now: f64, arriving: f64, pods: &[PodCapacity], horizon: f64) -> f64 {
    let step = horizon / f64::from(FORECAST_STEPS);
    let mut inside = now;
    for index in 0..FORECAST_STEPS {
        let passed = f64::from(index) * step;
        let serving = || pods.iter().filter(|pod| pod.ready_in <= passed).map(|pod| &pod.capacity);
        let slots: f64 = serving().map(|capacity| capacity.max_sequences).sum();
        let finished: f64 =
            serving().map(|capacity| capacity.rate_at(inside * capacity.max_sequences / slots)).sum();
        inside = (inside + (arriving - finished) * step).max(0.0);
    }
    inside
}
