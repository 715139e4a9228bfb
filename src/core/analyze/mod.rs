//! Analyzers: pure functions from observations to a finding, one file each.

pub mod finding;
pub mod saturation_percent;
pub mod scale_from_zero;
pub mod score;
pub mod threshold;
pub mod throughput;
pub mod weighted;
