//! Upstream's arithmetic, defects included: whole functions of llm-d's workload-variant-autoscaler (WVA) that give other numbers
//! than the default algorithms. [`crate::arithmetic`] chooses between the two; test vectors compare these with upstream.
//!
//! Each file names upstream's source. Where a function has two behaviours, a [`Tree`] says which.

#![allow(
    missing_docs,
    reason = "public for the tests of this package only: a doc says what a name and a type do not"
)]

pub mod by_score;
pub mod cost_aware;
pub mod inferno;
pub mod inferno_greedy;
pub mod limiter;
pub mod queueing;
pub mod rebalance;
pub mod saturation_percent;
pub mod saturation_token;
pub mod scale_from_zero;
pub mod throughput;
mod tree;

pub use tree::Tree;
