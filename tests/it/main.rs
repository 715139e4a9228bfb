//! Integration tests: one binary, no cluster.

mod engine;
mod tidy;
