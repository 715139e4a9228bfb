//! Integration tests: one binary, no cluster.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]

mod chart;
mod cluster;
mod cluster_certificates;
mod cluster_checks;
mod cluster_crashes;
mod cluster_deletion_cost;
mod cluster_events;
mod cluster_repairs;
mod cluster_state;
mod cluster_store;
mod collect;
mod demo;
mod engine;
mod engine_faults;
mod fuzz;
mod record;
mod serve;
mod simulate;
mod tidy;
