//! Logs and our own metric families.

mod logging;
mod metrics;

pub use logging::init as init_logging;
pub use metrics::{EvaluationMetrics, build_info};
