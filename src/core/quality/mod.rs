//! What an observation means: zero, absent, stale and broken are four different things, and only a measured zero may
//! lower a number. Not what is decided from it: that is `analyze` and `decide`.
//!
//! `engine` judges one serving process, [`Coverage`] a set of variants that are decided together, `saturated` whether such a set
//! has no room left.

pub mod analyzer_signals;
mod baseline_deviation;
mod coverage;
mod derived_metrics;
mod engine_assessment;
mod flow_balance;
mod freshness;
mod load;
mod plausibility;
mod pods;
mod remaining_capacity;
mod sample_window;
mod saturation;
mod signal_history;
#[cfg(test)]
mod tests;

pub use coverage::{AllowedMoves, Coverage, CoverageState, EnginePeaks, VariantCoverage, look};
pub(crate) use coverage::{AssessedVariant, assess_variant, coverage_state, most_contradict};
pub(crate) use engine_assessment::EngineAssessor;
pub use freshness::{EngineReading, Freshness, fresh_limit, judged_engines, read_engine, stale_limit};
pub use load::{EngineLoad, RATE_WINDOW, SIZE_WINDOW, used};
pub use plausibility::shown;
pub use pods::{OVERDUE, Prospect, is_full, lost_and_failing, mark_sleepers};
pub use remaining_capacity::{RemainingCapacity, Shortfall};
pub use saturation::{SATURATED_WINDOW, SaturatedPods, queue_never_empties, saturated};
pub use signal_history::SignalHistory;

use crate::units::Seconds;

/// A sample is fresh for at least this long: two scrapes of the usual 15 s.
pub const FRESH_AT_LEAST: Seconds = Seconds::whole(30);

/// A sample is not stale for at least this long: four scrapes of the usual 15 s.
pub const STALE_AT_LEAST: Seconds = Seconds::whole(60);

/// How late a scrape may be without leaving a hole at the far end of the peak window: a third of the usual 15 s.
pub const LATE_SCRAPE: Seconds = Seconds::whole(5);

/// V1 looks at peaks of this window, as upstream's queries do (`max_over_time(…[1m])`).
pub const PEAK_WINDOW: Seconds = Seconds::whole(60);
