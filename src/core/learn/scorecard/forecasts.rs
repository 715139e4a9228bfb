//! Forecasts of the demand on a role, held until they are due.

use serde::{Deserialize, Serialize};

use super::score::PredictionScore;
use crate::learn::arrivals::ArrivalBin;
use crate::learn::numeric::is_default;
use crate::moment::Moment;
use crate::quality::CONTRADICTION_DELAY;
use crate::report::Prediction;
use crate::units::{count, to_f32};

/// Arrivals are counted over this many seconds around the time a forecast is for: long enough for a mean, short against a start-up.
const WINDOW: f64 = 60.0;
/// A forecast is compared this long after its time, seconds. What was counted from signals that turn out to be contradicted is dropped by
/// then, and every scrape has come.
const MATCH_DELAY: f64 = WINDOW / 2.0 + CONTRADICTION_DELAY.get();
/// At least this many seconds lie between two forecasts.
const MIN_INTERVAL: f64 = 60.0;
/// Forecasts that are held: with a start-up of 95 s, one a minute. With longer ones they are further apart.
const MAX_PENDING: usize = 4;
/// The window is covered if at most this many seconds of it are not: times are rounded.
const MAX_UNCOVERED: f64 = 0.5;

/// Forecasts of one role's demand, and how earlier ones turned out.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct DemandForecasts {
    #[serde(skip_serializing_if = "is_default")]
    score: PredictionScore,
    /// Forecasts that could not be compared: the arrivals were not measured, or the clock jumped.
    #[serde(skip_serializing_if = "is_default")]
    unmatched: u32,
    /// How far ahead the last forecast was, seconds.
    #[serde(skip_serializing_if = "is_default")]
    ahead: f32,
    /// Forecasts, requests/s, with the times they are for, oldest first. Not kept over a restart.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pending: Vec<(Moment, f32)>,
}

impl DemandForecasts {
    /// Holds the forecast of `rate` requests/s in `horizon` seconds, unless the last one is too recent. The second of the same moment
    /// changes nothing.
    pub(crate) fn hold(&mut self, now: Moment, rate: f64, horizon: f64) {
        let due = now.plus(horizon);
        let slots = f64::from(count(MAX_PENDING));
        let interval = MIN_INTERVAL.max((horizon + MATCH_DELAY) / slots);
        let is_next = self.pending.last().is_none_or(|(last, _)| last.plus(interval) <= due);
        if !is_next || self.pending.len() >= MAX_PENDING || !rate.is_finite() {
            return;
        }
        // The usual vector would grow to four at once, which an idle model with a long start-up does not need.
        self.pending.reserve_exact(1);
        self.pending.push((due, to_f32(rate)));
        self.ahead = to_f32(horizon);
    }

    /// Compares forecasts that are due with the arrivals of `bins`. If these do not cover the time completely, nothing is known of it, and
    /// the forecast is dropped.
    pub(super) fn match_due(&mut self, bins: &[ArrivalBin], now: Moment) {
        let Self { score, unmatched, pending, .. } = self;
        pending.retain(|(due, rate)| {
            if now < due.plus(MATCH_DELAY) {
                return true;
            }
            match measured_rate(bins, *due) {
                Some(measured) => score.add(f64::from(*rate), measured),
                None => *unmatched = unmatched.saturating_add(1),
            }
            false
        });
    }

    /// The clock was set back to `now`: forecasts made after that are for other times than they say.
    pub(crate) fn not_after(&mut self, now: Moment) {
        let latest = now.plus(f64::from(self.ahead) + 1.0);
        if self.pending.iter().any(|(due, _)| *due > latest) {
            self.unmatched = self.unmatched.saturating_add(count(self.pending.len()));
            self.pending.clear();
        }
    }

    /// The part that is kept over a restart.
    pub(crate) fn compacted(&self) -> Self {
        Self { pending: Vec::new(), ..self.clone() }
    }

    pub(super) fn figures(&self) -> Prediction {
        self.score.figures(self.unmatched)
    }

    /// How far ahead the last forecast was, seconds.
    pub(super) fn seconds_ahead(&self) -> Option<f64> {
        (self.ahead > 0.0).then(|| f64::from(self.ahead))
    }

    #[cfg(test)]
    pub(super) fn pending(&self) -> &[(Moment, f32)] {
        &self.pending
    }
}

/// The mean arrival rate around `due`, requests/s; `None` where it was not measured completely.
fn measured_rate(bins: &[ArrivalBin], due: Moment) -> Option<f64> {
    let (from, to) = (due.plus(-WINDOW / 2.0), due.plus(WINDOW / 2.0));
    let (mut seconds, mut arrivals) = (0.0, 0.0);
    for bin in bins {
        let overlap = bin.end.plus(-bin.seconds).max(from).until(bin.end.min(to));
        if overlap <= 0.0 {
            continue;
        }
        if !bin.is_complete() {
            return None;
        }
        seconds += overlap;
        arrivals += bin.count().arrivals * overlap / bin.seconds;
    }
    // A request that was counted twice, as held and as arrived, is subtracted in the next bin.
    (seconds >= WINDOW - MAX_UNCOVERED).then(|| (arrivals / seconds).max(0.0))
}
