//! Integration tests: one binary, no cluster.

mod cluster;
