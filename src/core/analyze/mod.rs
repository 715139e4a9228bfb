//! Analyzers: pure functions from observations to a finding, one file or folder each.

pub(crate) mod finding;
pub(crate) mod inferno;
pub(crate) mod input_rules;
pub(crate) mod queueing;
pub(crate) mod rate;
pub(crate) mod saturation_percent;
pub(crate) mod saturation_token;
pub(crate) mod scale_from_zero;
pub(crate) mod score;
pub(crate) mod threshold;
pub(crate) mod throughput;
pub(crate) mod weighted;
