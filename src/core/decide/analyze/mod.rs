//! The analyzers, called with what a decision knows.

pub(crate) mod capacity;
pub(crate) mod latency;
pub(crate) mod rate;
pub(crate) mod saturation_percent;
pub(crate) mod score;
pub(crate) mod sequences;
pub(crate) mod stand_in;
