//! What `observe` learns from the samples of a model's pods: step times, the arrival rate and when it changed, request sizes, start-up
//! times and surges. What is decided from that is in `analyze::rate`. Each sample counts once, with its own time, however often it is
//! seen and whatever else is seen with it.

mod arrivals;
mod change_point;
mod counter_snapshot;
mod dispersion;
mod gauged;
mod ingest;
mod knowledge;
mod numeric;
mod occupancy;
mod refusals;
mod rollback;
mod scorecard;
mod start_up;
mod step_time;
mod surge;
#[cfg(test)]
mod tests;
mod token_shape;
mod window_extrema;

pub(crate) use change_point::{ArrivalLevel, current_level};
pub(crate) use ingest::ingest;
pub(crate) use knowledge::{ModelKnowledge, RoleKnowledge, VariantKnowledge};
pub(crate) use rollback::Rollback;
pub(crate) use start_up::{LEAD, ObservedStarts, StartUpTimes, median_start, start_up_times};
pub(crate) use step_time::{StepTime, StepTimeError};
#[cfg(test)]
pub(crate) use {
    arrivals::{ArrivalBin, Arrivals, EngineArrivals},
    change_point::ArrivalCount,
    counter_snapshot::{Counters, Gauges, Growth},
    dispersion::Dispersion,
    step_time::{StepSample, StepTimeFit},
    surge::Surges,
    token_shape::{RequestSizes, TokenShape},
    window_extrema::WindowMaximum,
};
