//! Upstream's arithmetic with its defects: whole functions of llm-d's workload-variant-autoscaler (WVA) that give other numbers than the default
//! algorithms. [`crate::arithmetic`] chooses between the two, and test vectors compare these with upstream.
//!
//! Each file names upstream's source. If a function differs between versions, a [`Tree`] says which one applies.

pub(crate) mod by_score;
pub(crate) mod cost_aware;
#[cfg(test)]
pub(crate) mod greedy;
pub(crate) mod inferno;
pub(crate) mod inputs;
pub(crate) mod limiter;
pub(crate) mod queueing;
#[cfg(test)]
pub(crate) mod rebalance;
#[cfg(test)]
pub(crate) mod saturation_percent;
pub(crate) mod saturation_token;
pub(crate) mod scale_from_zero;
pub(crate) mod throughput;

use crate::model::Compat;

/// A source tree of upstream's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tree {
    /// The main branch of 2026-06 (commit 526ce85), which counts pods where v0.9 counts engines.
    June,
    /// Release v0.9 (2026-08).
    August,
}

impl Tree {
    /// The tree that `compat` asks for; `None` for the default arithmetic.
    pub(crate) const fn from_compat(compat: Compat) -> Option<Self> {
        match compat {
            Compat::Corrected => None,
            Compat::Upstream => Some(Self::August),
            Compat::UpstreamJune => Some(Self::June),
        }
    }
}
