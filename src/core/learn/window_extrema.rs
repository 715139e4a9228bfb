//! The highest and the lowest value of a window of time, in as few numbers as that takes: of highs, each is later and lower
//! than the one before, since what is earlier and lower will never count.

use serde::{Deserialize, Serialize};

use super::{is_default, short};
use crate::moment::Moment;

/// Values of one slot of this many seconds are one: the window then has a bounded number of them.
const SLOT: i64 = 5;

/// A longer time without a value, seconds, is a hole: nobody knows what was in it.
const HOLE: f64 = 60.0;

/// The highs of a window.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct WindowMaximum {
    /// Since when there is a value at least every minute.
    #[serde(skip_serializing_if = "is_default")]
    since: Option<Moment>,
    /// The last value's time.
    #[serde(skip_serializing_if = "is_default")]
    last: Option<Moment>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    points: Vec<(Moment, f64)>,
}

impl WindowMaximum {
    /// Takes in `value` at `at` and forgets what is older than `window` seconds then.
    pub fn push(&mut self, at: Moment, value: f64, window: f64) {
        let hole = self.last.is_none_or(|last| last > at || last.until(at) > HOLE);
        if hole || self.since.is_none() {
            self.since = Some(at);
        }
        self.last = Some(at);
        self.points.retain(|(then, high)| then.until(at) <= window && *high > value && *then <= at);
        match self.points.last_mut() {
            // The slot's highest, a little younger than it is.
            Some((then, _)) if then.slot(SLOT) == at.slot(SLOT) => *then = at,
            _ => self.points.push((at, value)),
        }
    }

    /// Seconds back from `now` over which every value is known.
    #[must_use]
    pub fn reach(&self, now: Moment) -> f64 {
        self.since.map_or(0.0, |since| since.until(now))
    }

    /// The highest value of the last `window` seconds before `now`.
    #[must_use]
    pub fn highest(&self, now: Moment, window: f64) -> Option<f64> {
        self.points.iter().find(|(then, _)| then.until(now) <= window).map(|(_, high)| *high)
    }

    /// Seconds from `now` until nothing above `limit` is in a window of `window` seconds any more.
    #[must_use]
    pub fn gone_in(&self, now: Moment, window: f64, limit: f64) -> f64 {
        let last = self.points.iter().rev().find(|(_, high)| *high > limit);
        last.map_or(0.0, |(then, _)| (window - then.until(now)).max(0.0))
    }

    /// What is worth keeping over a restart: at most `most` values, each rather too high and too young than the other way
    /// round. What the window holds is not known to be all any more.
    #[must_use]
    pub fn kept(&self, most: usize) -> Self {
        let mut points: Vec<_> = self.points.iter().map(|(then, high)| (*then, short(*high))).collect();
        while points.len() > most.max(1) {
            let (younger, _) = points.remove(points.len() - 1);
            if let Some((then, _)) = points.last_mut() {
                *then = younger;
            }
        }
        Self { since: None, last: None, points }
    }

    /// Moves what is later than `now` to now: the clock was set back.
    pub fn not_after(&mut self, now: Moment) {
        let clamp = |at: &mut Option<Moment>| *at = at.map(|at| at.min(now));
        clamp(&mut self.since);
        clamp(&mut self.last);
        self.points.iter_mut().for_each(|(then, _)| *then = (*then).min(now));
    }
}

/// The lows of a window.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct WindowMinimum(WindowMaximum);

impl WindowMinimum {
    /// Takes in `value` at `at` and forgets what is older than `window` seconds then.
    pub fn push(&mut self, at: Moment, value: f64, window: f64) {
        self.0.push(at, -value, window);
    }

    /// Seconds back from `now` over which every value is known.
    #[must_use]
    pub fn reach(&self, now: Moment) -> f64 {
        self.0.reach(now)
    }

    /// The lowest value of the last `window` seconds before `now`.
    #[must_use]
    pub fn lowest(&self, now: Moment, window: f64) -> Option<f64> {
        self.0.highest(now, window).map(|high| -high)
    }

    /// Moves what is later than `now` to now: the clock was set back.
    pub fn not_after(&mut self, now: Moment) {
        self.0.not_after(now);
    }
}
