//! What `observe` learns from the samples of a model's pods: step times, the arrival rate and when it changed, request sizes, start-up
//! times and surges. What is decided from that is in `analyze::rate`. Each sample counts once, with its own time, however often it is
//! seen and whatever else is seen with it.

mod arrivals;
mod change_point;
mod counter_snapshot;
mod dispersion;
mod ingest;
mod knowledge;
mod numeric;
mod occupancy;
mod rollback;
mod start_up;
mod step_time;
mod surge;
#[cfg(test)]
mod tests;
mod token_shape;
mod window_extrema;

pub use arrivals::{ArrivalBin, Arrivals};
pub use change_point::{ArrivalCount, ArrivalLevel, current_level};
pub use counter_snapshot::{CounterSnapshot, Counters, Gauges, Growth};
pub use dispersion::Dispersion;
pub use ingest::ingest;
pub use knowledge::{LastReading, ModelKnowledge, RoleKnowledge, VariantKnowledge};
pub use occupancy::{Occupancy, StepTokens};
pub use rollback::Rollback;
pub use start_up::{LEAD, ObservedStarts, ReplacedPods, StartUpTimes, start_up_times};
pub use step_time::{StepSample, StepTime, StepTimeFit};
pub use surge::Surges;
pub use token_shape::{RequestSizes, TokenShape};
pub use window_extrema::{WindowMaximum, WindowMinimum};
