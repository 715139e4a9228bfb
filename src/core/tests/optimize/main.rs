//! Optimizers and limits: where the default differs from upstream, and what holds for every input.
#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

#[allow(dead_code, reason = "shared by several tests")]
#[path = "../support/cases.rs"]
mod cases;
mod corrected;
mod fleet;
mod properties;
mod removals;
mod rescaled;
mod turns;
