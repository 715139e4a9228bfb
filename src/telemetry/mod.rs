//! Logging, and metric families about wva itself.

mod api_requests;
mod config;
mod errors;
mod fallback;
mod logging;
mod metrics;
mod rules;
mod state;
mod wake;
mod work_queue;

pub use api_requests::ApiRequestMetrics;
pub use config::ConfigMetrics;
pub use errors::ErrorMetrics;
pub use fallback::FallbackMetrics;
pub use logging::init as init_logging;
pub use metrics::{EvaluationMetrics, build_info};
pub use rules::{RuleCounts, RuleMetricFamilies};
pub use state::StateMetrics;
pub use wake::WakeMetrics;
pub use work_queue::{QueueMetrics, WorkQueueMetrics};
