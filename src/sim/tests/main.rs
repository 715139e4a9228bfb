//! Policies of the core in closed loop with the simulator.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests may fail like tests")]

#[allow(dead_code, reason = "shared with the tests of the core")]
#[path = "../../core/tests/support/cases.rs"]
mod cases;
mod faults;
mod matrix;
mod oracle;
mod peers;
mod physics;
mod pods;
mod published;
mod refusals;
mod supply;
