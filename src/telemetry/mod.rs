//! Logging, and metric families about wva itself.

mod config;
mod logging;
mod metrics;
mod state;

pub use config::ConfigMetrics;
pub use logging::init as init_logging;
pub use metrics::{EvaluationMetrics, build_info};
pub use state::StateMetrics;
