//! For operators: health, this server's metrics, and the inputs of the last decisions.

mod board_metrics;
pub(crate) mod health;
mod replica_changes;
pub(crate) mod snapshots;
mod state;

pub(crate) use board_metrics::BoardMetrics;
pub(crate) use health::Health;
pub(crate) use replica_changes::ReplicaChanges;
pub(crate) use state::{AdminState, metrics};
