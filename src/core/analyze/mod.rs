//! Analyzers: pure functions from observations to a finding, one file or folder each.

#![allow(
    missing_docs,
    reason = "public for the tests of this package only: a doc says what a name and a type do not"
)]

pub mod finding;
pub mod inferno;
pub(crate) mod input_rules;
pub mod queueing;
pub mod rate;
pub mod saturation_percent;
pub mod saturation_token;
pub mod scale_from_zero;
pub mod score;
pub mod threshold;
pub mod throughput;
pub mod weighted;
