//! Evaluations kept, read back, decided again and explained: files, the served snapshots, and the commands.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

mod commands;
mod earlier_versions;
mod examples;
mod explained;
mod files;
mod keeper;
mod lines;
pub(crate) mod material;
mod served;
