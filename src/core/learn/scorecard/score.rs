//! Predictions of one quantity against what was measured.

use serde::{Deserialize, Serialize};

use crate::report::{Prediction, PredictionError};
use crate::units::to_f32;

/// The mean is over about this many predictions: with one forecast a minute, over the last hour.
const MEMORY_LENGTH: f64 = 50.0;

/// A smaller mean, in its unit, is that of a quantity which was zero for so long that nothing can be said in relation to it.
const MIN_MEASURED: f32 = 1e-6;

/// No quantity that is predicted is larger, and all sums of such numbers are finite.
const MAX_VALUE: f64 = 1e30;

/// Predictions of one quantity against what was measured: exponentially weighted means in the quantity's unit, which are plain means until
/// [`MEMORY_LENGTH`] predictions were compared. 16 bytes; 24 bits are more digits than anybody reads.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(from = "(f32, f32, f32, u32)", into = "(f32, f32, f32, u32)")]
pub(crate) struct PredictionScore {
    /// Predicted minus measured.
    error: f32,
    /// The amount of that.
    absolute: f32,
    measured: f32,
    /// Predictions that were compared.
    count: u32,
}

impl From<(f32, f32, f32, u32)> for PredictionScore {
    fn from((error, absolute, measured, count): (f32, f32, f32, u32)) -> Self {
        Self { error, absolute, measured, count }
    }
}

impl From<PredictionScore> for (f32, f32, f32, u32) {
    fn from(PredictionScore { error, absolute, measured, count }: PredictionScore) -> Self {
        (error, absolute, measured, count)
    }
}

impl PredictionScore {
    /// Adds a prediction and what was measured, both at least 0 and in the same unit. Anything else is no measurement and counts nothing.
    pub(super) fn add(&mut self, predicted: f64, measured: f64) {
        if ![predicted, measured].iter().all(|value| (0.0..=MAX_VALUE).contains(value)) {
            return;
        }
        self.count = self.count.saturating_add(1);
        let weight = 1.0 / f64::from(self.count).min(MEMORY_LENGTH);
        let error = predicted - measured;
        let parts =
            [(&mut self.error, error), (&mut self.absolute, error.abs()), (&mut self.measured, measured)];
        for (mean, value) in parts {
            *mean = to_f32(f64::from(*mean) + weight * (value - f64::from(*mean)));
        }
    }

    /// The figures, with the number of predictions that could not be compared.
    pub(super) fn figures(&self, unmatched: u32) -> Prediction {
        let share = |mean: f32| f64::from(mean) / f64::from(self.measured);
        let error = (self.measured >= MIN_MEASURED)
            .then(|| PredictionError { mean_absolute: share(self.absolute), bias: share(self.error) });
        Prediction { matched: self.count, unmatched, error }
    }
}
