//! Analyzers: pure functions from observations to a finding, one file or folder each.

pub mod finding;
pub mod inferno;
pub mod queueing;
pub mod rate;
pub mod saturation_percent;
pub mod saturation_token;
pub mod scale_from_zero;
pub mod score;
pub mod threshold;
pub mod throughput;
pub mod weighted;
