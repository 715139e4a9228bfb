//! The largest surge that a model has recently shown within the time a pod takes to start: its surge reserve is sized by it. Loads are in
//! replicas, so that a surge also holds for requests of other sizes. It is a share of the load before it, because what makes a load
//! grow (more users, a busier hour) makes it grow by a factor.

use serde::{Deserialize, Serialize};

use super::numeric::{is_default, six_digits};
use super::window_extrema::WindowMinimum;
use crate::moment::Moment;

/// Half-life of a surge, seconds: long compared with the wait before a removal, short compared with a day.
const HALF_LIFE: f64 = 3600.0;
/// Maximum surge: a doubling.
const MAX_SURGE: f64 = 1.0;
/// Loads have to be known for at least this long, seconds.
const MIN_HISTORY: f64 = 30.0;
/// A smaller load, replicas, counts as this: compared with nothing everything is a surge.
const MIN_LOAD: f64 = 0.25;

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Surges {
    /// The largest, as a share of the load before it.
    #[serde(skip_serializing_if = "is_default")]
    largest: f64,
    #[serde(skip_serializing_if = "is_default")]
    at: Option<Moment>,
    /// Loads of the last horizon.
    #[serde(skip_serializing_if = "is_default")]
    loads: WindowMinimum,
}

impl Surges {
    /// Adds the load `now`, in replicas. `untrended` is the part of it that is no trend, as the trend has a forecast of its own;
    /// `horizon` is the time until a pod ordered now would serve, seconds. A surge is only learned when `is_certain`, that is when
    /// the load has lasted long enough.
    pub(crate) fn learn(&mut self, now: Moment, horizon: f64, load: f64, untrended: f64, is_certain: bool) {
        let passed = self.at.map_or(0.0, |at| at.until(now));
        self.largest *= (-passed / HALF_LIFE).exp2();
        self.at = Some(now);
        self.loads.push(now, load, horizon);
        let Some(low) = self.loads.lowest(now, horizon).filter(|_| is_certain) else { return };
        if self.loads.reach(now) >= MIN_HISTORY {
            let surge = (untrended - low.max(0.0)) / low.max(MIN_LOAD);
            self.largest = self.largest.max(surge.min(MAX_SURGE));
        }
    }

    /// The largest surge, as a share of the load before it, 0 to 1.
    pub(crate) fn largest(&self) -> f64 {
        self.largest
    }

    pub(crate) fn compacted(&self) -> Self {
        Self { largest: six_digits(self.largest), at: self.at, loads: WindowMinimum::default() }
    }

    pub(crate) fn not_after(&mut self, now: Moment) {
        self.at = self.at.map(|at| at.min(now));
        self.loads.not_after(now);
    }
}
