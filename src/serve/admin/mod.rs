//! For operators: health, this server's metrics, and the inputs of the last decisions.

mod decision_counts;
pub(crate) mod health;
mod metrics;
pub(crate) mod snapshots;
mod state;

pub(crate) use decision_counts::DecisionCounts;
pub(crate) use health::Health;
pub(crate) use metrics::BoardMetrics;
pub(crate) use state::{AdminState, metrics};
