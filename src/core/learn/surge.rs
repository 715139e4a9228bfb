//! The largest surge that this model has lately shown within the time a pod takes to start: what its reserve should be
//! prepared for. Loads are in replicas, so that what is learned holds for requests of other sizes too; a surge is a share of the
//! load before it, since what makes a fleet's load grow (more users, a busier hour) makes it grow by a factor.

use serde::{Deserialize, Serialize};

use super::window_extrema::WindowMinimum;
use super::{is_default, short};
use crate::moment::Moment;

/// Seconds after which half of a surge is forgotten: long against the wait before a removal, short against a day.
const HALF_LIFE: f64 = 3600.0;
/// The most that is learned: a doubling.
const MOST: f64 = 1.0;
/// Less history than this, seconds, shows no surge.
const HISTORY: f64 = 30.0;
/// A load below this, replicas, counts as this: from nothing everything is a surge.
const LEAST: f64 = 0.25;

/// Surges of one role of a model.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Surges {
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
    /// Takes in a load: `known` replicas of which at least `surely` are a surge and no trend, `horizon` seconds before a pod
    /// ordered now would serve. `certain` is whether the load has lasted long enough to say so.
    pub fn learn(&mut self, now: Moment, horizon: f64, (known, surely): (f64, f64), certain: bool) {
        let passed = self.at.map_or(0.0, |at| at.until(now));
        self.largest *= (-passed / HALF_LIFE).exp2();
        self.at = Some(now);
        self.loads.push(now, known, horizon);
        let Some(low) = self.loads.lowest(now, horizon).filter(|_| certain) else { return };
        if self.loads.reach(now) >= HISTORY {
            let surge = (surely - low.max(0.0)) / low.max(LEAST);
            self.largest = self.largest.max(surge.min(MOST));
        }
    }

    /// The largest surge, as a share of the load before it, 0 to 1.
    #[must_use]
    pub fn largest(&self) -> f64 {
        self.largest
    }

    /// What is worth keeping over a restart.
    #[must_use]
    pub fn kept(&self) -> Self {
        Self { largest: short(self.largest), at: self.at, loads: WindowMinimum::default() }
    }

    /// Makes the moments that are after `now` be now.
    pub fn not_after(&mut self, now: Moment) {
        self.at = self.at.map(|at| at.min(now));
        self.loads.not_after(now);
    }
}
