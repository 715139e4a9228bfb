//! From findings to numbers of replicas.

pub mod rebalance;
