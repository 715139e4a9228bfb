//! Integration tests: one binary, no cluster.
