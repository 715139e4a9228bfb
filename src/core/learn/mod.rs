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

pub use arrivals::{Arrivals, Bin};
pub use change_point::{Count, Level, THRESHOLD, level};
pub use counter_snapshot::{Counters, Frame, Gauges, Growth};
pub use dispersion::Dispersion;
pub use ingest::fold;
pub use knowledge::{Knowledge, Pod, Replaced, RoleKnowledge, VariantKnowledge};
pub use occupancy::{Occupancy, StepTokens};
pub use rollback::Past;
pub use start_up::{LEAD, StartUps, Starts, starts_of};
pub use step_time::{Fit, Sample as StepSample, StepTime};
pub use surge::Surges;
pub use token_shape::{Sizes, TokenShape};
pub use window_extrema::{Highs, Lows};

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
