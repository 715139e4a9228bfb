//! Integration tests: one binary, no cluster.

mod collect;
