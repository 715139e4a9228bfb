//! Integration tests: one binary, no cluster.

mod cluster;
mod collect;
mod engine;
mod serve;
mod tidy;
