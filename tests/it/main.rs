//! Integration tests: one binary, no cluster.

mod collect;
mod cluster;
mod engine;
mod serve;
mod tidy;
