//! `wva simulate` as people use it: files, traces, commands.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

mod calibrated;
mod commands;
mod defaults;
mod files;
mod traces;
