//! Integration tests: one binary, no cluster.

mod demo;
mod collect;
mod cluster;
mod engine;
mod serve;
mod tidy;
