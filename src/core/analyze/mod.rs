//! Analyzers: pure functions from observations to a finding, one file or folder each.

pub mod finding;
pub mod saturation_percent;
pub mod saturation_token;
