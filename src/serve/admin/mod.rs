//! For operators: health, this server's metrics, and the inputs of the last decisions.

pub(crate) mod health;
mod metrics;
pub(crate) mod snapshots;
mod state;

pub(crate) use health::Health;
pub(crate) use metrics::{BoardMetrics, ReplicaChanges};
pub(crate) use state::{AdminState, metrics};
