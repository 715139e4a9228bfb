//! Analyzers: pure functions from observations to a finding, one file each.

pub mod finding;
pub mod inferno;
pub mod queueing;
pub mod saturation_percent;
