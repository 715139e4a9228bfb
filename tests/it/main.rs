//! Integration tests: one binary, no cluster.

mod cluster;
mod engine;
mod tidy;
