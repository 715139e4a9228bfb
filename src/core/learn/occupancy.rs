//! Mean share of the KV cache that a running sequence holds, and mean tokens that a step gives it. Both are ratios of decaying sums over the
//! engines of a variant.

use serde::{Deserialize, Serialize};

use super::counter_snapshot::Growth;
use super::numeric::{decay, is_default, six_digits};

/// Time constant of occupancy, seconds. Each engine's reading decays the common sums, so it is multiplied by the number of engines.
const OCCUPANCY_TIME_CONSTANT: f64 = 120.0;
/// Fewer running sequences say little about their mean.
const MIN_RUNNING: f64 = 4.0;
/// Time constant of step tokens, seconds.
const STEPS_TIME_CONSTANT: f64 = 300.0;
/// Up to this ratio a step gives each sequence one token, and the counters differ by chance.
const MAX_SINGLE_TOKEN: f64 = 1.05;

/// Integrals over time of KV usage and of running sequences.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Occupancy {
    #[serde(skip_serializing_if = "is_default")]
    usage: f64,
    #[serde(skip_serializing_if = "is_default")]
    running: f64,
}

impl Occupancy {
    pub(crate) fn learn(&mut self, growth: &Growth, engines: f64) {
        if growth.after.running < MIN_RUNNING {
            return;
        }
        let seconds = growth.seconds();
        let remaining = decay(seconds, OCCUPANCY_TIME_CONSTANT * engines.max(1.0));
        self.usage = self.usage * remaining + growth.after.usage * seconds;
        self.running = self.running * remaining + growth.after.running * seconds;
    }

    pub(crate) fn compacted(&self) -> Self {
        Self { usage: six_digits(self.usage), running: six_digits(self.running) }
    }

    /// Mean share of the KV cache for each running sequence, 0 to 1.
    pub(crate) fn share(&self) -> Option<f64> {
        (self.running > 0.0 && self.usage > 0.0).then(|| self.usage / self.running)
    }
}

/// Generated tokens, and the steps that gave them, counted for each sequence.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct StepTokens {
    #[serde(skip_serializing_if = "is_default")]
    tokens: f64,
    #[serde(skip_serializing_if = "is_default")]
    steps: f64,
}

impl StepTokens {
    pub(crate) fn learn(&mut self, growth: &Growth, engines: f64) {
        let steps = growth.counted.gaps + growth.counted.firsts;
        // NaN, where a counter was not read, fails these comparisons too.
        if !(steps > 0.0 && growth.counted.generated > 0.0) {
            return;
        }
        let remaining = decay(growth.seconds(), STEPS_TIME_CONSTANT * engines.max(1.0));
        self.tokens = self.tokens * remaining + growth.counted.generated;
        self.steps = self.steps * remaining + steps;
    }

    pub(crate) fn compacted(&self) -> Self {
        Self { tokens: six_digits(self.tokens), steps: six_digits(self.steps) }
    }

    /// Tokens that a step gives a sequence: 1, or more with speculative decoding.
    pub(crate) fn per_step(&self) -> f64 {
        let per_step = if self.steps > 0.0 { self.tokens / self.steps } else { 1.0 };
        if per_step > MAX_SINGLE_TOKEN { per_step } else { 1.0 }
    }
}
