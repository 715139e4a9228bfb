//! Integration tests: one binary, no cluster.

mod demo;
mod engine;
mod tidy;
