//! Tests of the core as a whole.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests may fail like tests")]

pub(crate) mod support;

mod analyzers;
mod check;
mod crowd;
mod gaps;
mod guards;
mod huge;
mod limits;
mod optimize;
mod pods;
mod properties;
mod queueing;
mod rate;
mod real_engines;
mod refused;
mod regressions;
mod required_signals;
mod saturated;
mod scenarios;
mod scorecard;
mod sleep;
mod steady;
mod timeline;
mod unknown_targets;
mod unschedulable;
mod vectors;
