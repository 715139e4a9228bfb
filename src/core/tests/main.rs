//! Tests of the core's public interface, as one program, so that their shared parts are compiled once.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests may fail like tests")]

mod support;

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
mod regressions;
mod required_signals;
mod saturated;
mod scenarios;
mod steady;
mod timeline;
mod unschedulable;
mod vectors;
