//! What `observe` learns from the samples of a model's pods: how long a step takes, how many requests arrive and when that
//! changed, how large they are, how long a pod takes to start, and which surges have come. Decides nothing: that is
//! `analyze::rate`. Every sample counts once, with its own time, however often and in whatever company it is seen.

mod arrivals;
mod change_point;
mod counter_snapshot;
mod dispersion;
mod ingest;
mod knowledge;
mod occupancy;
mod rollback;
mod start_up;
mod step_time;
mod surge;
mod token_shape;
mod window_extrema;

pub use arrivals::{ArrivalBin, Arrivals};
pub use change_point::{ArrivalCount, ArrivalLevel, MIN_LIKELIHOOD_RATIO, level};
pub use counter_snapshot::{CounterSnapshot, Counters, Gauges, Growth};
pub use dispersion::Dispersion;
pub use ingest::ingest;
pub use knowledge::{ModelKnowledge, Pod, ReplacedPods, RoleKnowledge, VariantKnowledge};
pub use occupancy::{Occupancy, StepTokens};
pub use rollback::Rollback;
pub use start_up::{LEAD, ObservedStarts, StartUpTimes, start_up_times};
pub use step_time::{Sample as StepSample, StepTime, StepTimeFit};
pub use surge::Surges;
pub use token_shape::{RequestSizes, TokenShape};
pub use window_extrema::{WindowMaximum, WindowMinimum};

/// What is left of a sum after `seconds`, when it loses a factor e in `span` seconds.
pub(crate) fn kept(seconds: f64, span: f64) -> f64 {
    (-seconds.max(0.0) / span).exp()
}

/// `value` with six digits: what is kept over a restart need not be longer.
fn short(value: f64) -> f64 {
    let digits = 10_f64.powf(5.0 - value.abs().log10().floor());
    let rounded = (value * digits).round() / digits;
    if rounded.is_finite() { rounded } else { value }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[cfg(test)]
mod tests;
