//! What a running sequence holds of the KV cache on average, and how many tokens one step gives it. Both are sums over a
//! variant's pods that are forgotten.

use serde::{Deserialize, Serialize};

use super::counter_snapshot::Growth;
use super::{is_default, kept, short};

/// Occupancy is forgotten over this time, seconds, by all pods of a variant together.
const OCCUPANCY_SPAN: f64 = 120.0;
/// A pod with fewer running sequences says little of their mean.
const OCCUPIED_FROM: f64 = 4.0;
/// Tokens of a step are forgotten over this time, seconds.
const STEPS_SPAN: f64 = 300.0;
/// Below this a step gives each sequence one token, and the counters differ by chance.
const SEVERAL_FROM: f64 = 1.05;

/// Shares of the KV cache and sequences, each × seconds.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Occupancy {
    #[serde(skip_serializing_if = "is_default")]
    usage: f64,
    #[serde(skip_serializing_if = "is_default")]
    running: f64,
}

impl Occupancy {
    /// Takes in one pod of a variant that has `pods`.
    pub fn learn(&mut self, growth: &Growth, pods: f64) {
        if growth.after.running < OCCUPIED_FROM {
            return;
        }
        let seconds = growth.seconds();
        let kept = kept(seconds, OCCUPANCY_SPAN * pods.max(1.0));
        self.usage = self.usage * kept + growth.after.usage * seconds;
        self.running = self.running * kept + growth.after.running * seconds;
    }

    /// What is worth keeping over a restart.
    #[must_use]
    pub fn kept(&self) -> Self {
        Self { usage: short(self.usage), running: short(self.running) }
    }

    /// Share of the KV cache that one running sequence holds, 0 to 1.
    #[must_use]
    pub fn share(&self) -> Option<f64> {
        (self.running > 0.0 && self.usage > 0.0).then(|| self.usage / self.running)
    }
}

/// Tokens generated, and steps that gave some, counted by sequence.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StepTokens {
    #[serde(skip_serializing_if = "is_default")]
    tokens: f64,
    #[serde(skip_serializing_if = "is_default")]
    steps: f64,
}

impl StepTokens {
    /// Takes in one pod of a variant that has `pods`.
    pub fn learn(&mut self, growth: &Growth, pods: f64) {
        let steps = growth.counted.gaps + growth.counted.firsts;
        // Also where one of them was not read.
        if !(steps > 0.0 && growth.counted.generated > 0.0) {
            return;
        }
        let kept = kept(growth.seconds(), STEPS_SPAN * pods.max(1.0));
        self.tokens = self.tokens * kept + growth.counted.generated;
        self.steps = self.steps * kept + steps;
    }

    /// What is worth keeping over a restart.
    #[must_use]
    pub fn kept(&self) -> Self {
        Self { tokens: short(self.tokens), steps: short(self.steps) }
    }

    /// Tokens that a step gives a sequence, at least 1: more with speculation.
    #[must_use]
    pub fn each(&self) -> f64 {
        let each = if self.steps > 0.0 { self.tokens / self.steps } else { 1.0 };
        if each > SEVERAL_FROM { each } else { 1.0 }
    }
}
