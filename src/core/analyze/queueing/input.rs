//! The input of the analyzer: the variants of a model, what their engines show, and the settings.

use smol_str::SmolStr;

use super::sizing::{DEFAULT_MULTIPLIER, Targets};
use crate::model::Role;
use crate::units::{Cost, Replicas, Seconds, count};

/// The measurements of one engine; 0 is unknown, except for arrivals.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct LatencyObservation {
    /// Requests/s that the scheduler sends it; `None` is unknown, which upstream takes for 0.
    pub arrival: Option<f64>,
    pub input: f64,
    pub output: f64,
    /// Mean time to first token, s.
    pub ttft: f64,
    /// Mean time between tokens, s.
    pub itl: f64,
    /// Most requests in its batch.
    pub batch: u32,
}

impl LatencyObservation {
    /// Its arrivals, requests/s; 0 if they are not a valid rate.
    pub(crate) fn rate(&self) -> f64 {
        self.arrival.filter(|rate| rate.is_finite() && *rate > 0.0).unwrap_or(0.0)
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct VariantLoad {
    pub name: SmolStr,
    pub role: Role,
    pub accelerator: Option<SmolStr>,
    pub cost: Cost,
    pub ready: Replicas,
    pub pending: Replicas,
    /// One for each engine, in order.
    pub observations: Vec<LatencyObservation>,
}

impl VariantLoad {
    /// The arrivals of some of its replicas are not known, so that its demand may be higher.
    pub(super) fn is_partial(&self) -> bool {
        let measured = self.observations.iter().filter(|observation| observation.arrival.is_some());
        count(measured.count()) < self.ready.get().max(count(self.observations.len()))
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct QueueingSettings {
    /// The user's targets for this model, TTFT and ITL; `None` infers them.
    pub targets: Option<Targets>,
    /// m: how much longer an iteration may be than an empty replica's; a value not above 1 is the default.
    pub multiplier: f64,
    /// Learn from this cycle's observations.
    pub tuning: bool,
    /// Utilisation to scale up at; 0 or less never does.
    pub up: f64,
    /// Utilisation to scale down below; 0 or less never does.
    pub down: f64,
    pub score: f64,
    /// The scheduler's queue should drain within this time, beside what arrives; 0 ignores the queue.
    pub drain: Seconds,
}

impl Default for QueueingSettings {
    fn default() -> Self {
        Self {
            targets: None,
            multiplier: DEFAULT_MULTIPLIER,
            tuning: true,
            up: 0.85,
            down: 0.70,
            score: 1.0,
            // Two sync periods of an HPA: a backlog that stays calls for replicas, and a burst that is gone by the next cycle does not.
            drain: Seconds::whole(30),
        }
    }
}
