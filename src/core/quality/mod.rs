//! What measurements mean: zero, absent, stale and broken are four different things, and only a measured zero may lower a
//! number. What is decided from that is in `analyze` and `decide`.
//!
//! By layer: `freshness` grades the samples of one engine; `plausibility` finds signals that contradict each other, with the help
//! of `signal_history`; `engine_assessment` combines both; `load` reads an engine's load; `coverage` summarises the variants
//! that are decided together. `saturation` and `remaining_capacity` serve the two guards above every analyzer.

pub(crate) mod analyzer_signals;
mod baseline_deviation;
mod coverage;
mod derived_metrics;
mod engine_assessment;
mod flow_balance;
mod freshness;
mod history_update;
mod load;
mod plausibility;
mod pods;
mod remaining_capacity;
mod sample_window;
mod saturation;
mod signal_history;
#[cfg(test)]
mod tests;

pub use coverage::EnginePeaks;
pub(crate) use coverage::{
    AllowedMoves, AssessedVariant, CoverageState, VariantCoverage, assess_coverage, assess_variant,
    coverage_state, is_distrusted_on_most_engines,
};
pub(crate) use engine_assessment::EngineAssessor;
pub(crate) use freshness::{
    CONTRADICTION_DELAY, EngineReading, Freshness, MIN_STALE_LIMIT, fresh_limit, read_engine,
};
pub use freshness::{MIN_FRESH_LIMIT, judged_engines, stale_limit};
pub(crate) use load::{EngineLoad, SIZE_WINDOW, used_tokens};
pub(crate) use plausibility::shown_signals;
pub use pods::mark_sleepers;
pub(crate) use pods::{OVERDUE_FACTOR, PodOutlook, count_lost_and_failing, is_growth_futile};
pub use remaining_capacity::{RemainingCapacity, Shortfall};
pub(crate) use saturation::{SATURATED_WINDOW, SaturatedPods, is_queue_never_empty, saturated_pods};
pub use signal_history::SignalHistory;
pub(crate) use signal_history::engine_key;
