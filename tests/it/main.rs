//! Integration tests: one binary, no cluster.

mod collect;
mod engine;
mod serve;
mod tidy;
