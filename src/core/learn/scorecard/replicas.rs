//! Predictions about the replicas of a variant: what an engine carries, against what it does while requests wait in it, and how long a
//! start takes.

use serde::{Deserialize, Serialize};

use super::score::PredictionScore;
use crate::learn::counter_snapshot::Growth;
use crate::learn::numeric::is_default;
use crate::model::Role;
use crate::report::Prediction;
use crate::units::{to_f32, truncated_u32};

/// Requests have waited for this long, seconds, before throughput is counted: what finishes earlier was started with fewer beside it.
const SETTLING_SECONDS: u8 = 60;
/// A claim is compared when an engine should have finished this many requests: chance is then within a tenth.
const MIN_CLAIMED: f32 = 100.0;
/// Fewer waiting requests are no queue.
const MIN_WAITING: f64 = 1.0;

/// Predictions about the replicas of one variant, and how they turned out.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ReplicaPredictions {
    #[serde(skip_serializing_if = "is_default")]
    capacity: PredictionScore,
    #[serde(rename = "start", skip_serializing_if = "is_default")]
    start_up: PredictionScore,
    /// The expected start-up time, seconds. Not kept over a restart, nor what follows.
    #[serde(skip_serializing_if = "is_default")]
    expected: Option<f32>,
    /// The throughput of a saturated engine that was last claimed while none was, requests/s.
    #[serde(skip_serializing_if = "is_default")]
    claim: Option<f32>,
    /// Requests that saturated engines should have finished since the last comparison.
    #[serde(skip_serializing_if = "is_default")]
    claimed: f32,
    /// Requests that they finished.
    #[serde(skip_serializing_if = "is_default")]
    finished: f32,
}

impl ReplicaPredictions {
    /// A start is expected to take `seconds` from now on.
    pub(crate) fn expect_start(&mut self, seconds: f64) {
        self.expected = Some(to_f32(seconds));
    }

    /// A pod took `seconds` to start.
    pub(crate) fn started(&mut self, seconds: f64) {
        if let Some(expected) = self.expected {
            self.start_up.add(f64::from(expected), seconds);
        }
    }

    /// Claims that a saturated engine finishes `rate` requests/s. A claim that is being compared stays: later ones know the answer.
    pub(crate) fn claim(&mut self, rate: f64, is_saturated: bool) {
        if !is_saturated || self.claim.is_none() {
            self.claim = Some(to_f32(rate)).filter(|rate| rate.is_finite());
        }
    }

    /// Adds what an engine of `role` did between two readings. Requests have been waiting in it for `saturated_for` seconds (at most 255)
    /// until the first. Returns the same for the second: 0 without a queue.
    pub(crate) fn observe(&mut self, role: Role, growth: &Growth, saturated_for: u8) -> u8 {
        if growth.before.waiting < MIN_WAITING || growth.after.waiting < MIN_WAITING {
            return 0;
        }
        let (counted, seconds) = (&growth.counted, growth.seconds());
        // An engine that only computes prompts has finished a request with its first token.
        let finished = if role == Role::Prefill { counted.firsts } else { counted.finished };
        if let Some(claim) = self.claim.filter(|_| saturated_for >= SETTLING_SECONDS && finished.is_finite())
        {
            self.claimed += to_f32(f64::from(claim) * seconds);
            self.finished += to_f32(finished);
            if self.claimed >= MIN_CLAIMED {
                self.capacity.add(f64::from(self.claimed), f64::from(self.finished));
                self.discard_claim();
            }
        }
        saturated_for.saturating_add(u8::try_from(truncated_u32(seconds)).unwrap_or(u8::MAX))
    }

    /// Forgets what was counted, and the claim: a signal was contradicted, or the claim was compared.
    pub(crate) fn discard_claim(&mut self) {
        (self.claim, self.claimed, self.finished) = (None, 0.0, 0.0);
    }

    /// The part that is kept over a restart.
    pub(crate) fn compacted(&self) -> Self {
        Self { capacity: self.capacity, start_up: self.start_up, ..Self::default() }
    }

    pub(super) fn capacity(&self) -> Prediction {
        self.capacity.figures(0)
    }

    pub(super) fn start_up(&self) -> Prediction {
        self.start_up.figures(0)
    }
}
