//! How predictions turned out, as figures for metrics and explanations.

use serde::{Deserialize, Serialize};

/// How the predictions about a variant and its role turned out.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Scorecard {
    /// Forecasts of the demand on its role, against the arrival rate in the minute around their time.
    pub demand: Prediction,
    /// How far ahead the last forecast of demand was, seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds_ahead: Option<f64>,
    /// The claimed throughput of a saturated engine, against the measured one.
    pub capacity: Prediction,
    /// The expected start-up time, against that of each pod that started.
    pub start_up: Prediction,
}

/// Predictions of one quantity.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Prediction {
    /// Predictions that were compared with what was measured.
    pub matched: u32,
    /// Predictions that could not be compared, because nothing trustworthy was measured.
    pub unmatched: u32,
    /// `None` before the first comparison, and while all that was measured is 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<PredictionError>,
}

/// The error of predictions as shares of the mean that was measured; exponentially weighted over about the last 50.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PredictionError {
    /// Mean amount of the error, at least 0.
    pub mean_absolute: f64,
    /// Mean error: above 0 if predictions are too high.
    pub bias: f64,
}

impl Scorecard {
    /// The predictions by the names that metrics give their quantities.
    #[must_use]
    pub fn by_quantity(&self) -> [(&'static str, Prediction); 3] {
        [("demand", self.demand), ("capacity", self.capacity), ("startup", self.start_up)]
    }
}
