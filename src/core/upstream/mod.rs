//! Upstream's arithmetic with its defects: whole functions of llm-d's workload-variant-autoscaler (WVA) that give other numbers than the default
//! algorithms. [`crate::arithmetic`] chooses between the two, and test vectors compare these with upstream.
//!
//! Each file names upstream's source. If a function differs between versions, a [`Tree`] says which one applies.

#![allow(
    missing_docs,
    reason = "public for the tests of this package only: a doc says what a name and a type do not"
)]

pub mod by_score;
pub mod cost_aware;
pub mod inferno;
pub(crate) mod inputs;
pub mod limiter;
pub mod queueing;
pub mod rebalance;
pub mod saturation_percent;
pub mod saturation_token;
pub mod scale_from_zero;
pub mod throughput;

use crate::model::Compat;

/// A source tree of upstream's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tree {
    /// The main branch of 2026-06 (commit 526ce85), which counts pods where v0.9 counts engines.
    June,
    /// Release v0.9 (2026-08).
    August,
}

impl Tree {
    /// The tree that `compat` asks for; `None` for the default arithmetic.
    pub const fn from_compat(compat: Compat) -> Option<Self> {
        match compat {
            Compat::Corrected => None,
            Compat::Upstream => Some(Self::August),
            Compat::UpstreamJune => Some(Self::June),
        }
    }
}
