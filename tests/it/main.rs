//! Integration tests: one binary, no cluster.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]

mod api_server;
mod chart;
mod check;
mod cluster;
mod collect;
mod demo;
mod engine;
mod engine_faults;
mod fuzz;
mod learned_models;
mod migrate;
mod otlp;
mod record;
mod serve;
mod simulate;
mod tidy;
