//! Maximum and minimum over a sliding window of time, in as few numbers as possible: each stored maximum is later and lower than the one
//! before, because what is earlier and lower never counts again.

use serde::{Deserialize, Serialize};

use super::numeric::{is_default, six_digits};
use crate::moment::Moment;

/// Values within one slot of this many seconds are merged, which bounds the number of values in a window.
const SLOT_SECONDS: i64 = 5;

/// More than this time without a value, seconds, is a gap: nothing is known of it.
const MAX_GAP: f64 = 60.0;

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct WindowMaximum {
    /// Since when there has been a value at least every minute.
    #[serde(skip_serializing_if = "is_default")]
    since: Option<Moment>,
    /// Time of the last value.
    #[serde(skip_serializing_if = "is_default")]
    last: Option<Moment>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    points: Vec<(Moment, f64)>,
}

impl WindowMaximum {
    pub(crate) fn push(&mut self, at: Moment, value: f64, window: f64) {
        let is_gap = self.last.is_none_or(|last| last > at || last.until(at) > MAX_GAP);
        if is_gap || self.since.is_none() {
            self.since = Some(at);
        }
        self.last = Some(at);
        self.points.retain(|(then, high)| then.until(at) <= window && *high > value && *then <= at);
        match self.points.last_mut() {
            // The maximum of the slot, with the time of its newest value.
            Some((then, _)) if then.slot(SLOT_SECONDS) == at.slot(SLOT_SECONDS) => *then = at,
            _ => self.points.push((at, value)),
        }
    }

    pub(crate) fn reach(&self, now: Moment) -> f64 {
        self.since.map_or(0.0, |since| since.until(now))
    }

    /// The maximum of the `window` seconds before `now`.
    pub(crate) fn highest(&self, now: Moment, window: f64) -> Option<f64> {
        self.points.iter().find(|(then, _)| then.until(now) <= window).map(|(_, high)| *high)
    }

    /// Seconds from `now` until the maximum of a window of `window` seconds falls to `limit`.
    pub(crate) fn seconds_until_below(&self, now: Moment, window: f64, limit: f64) -> f64 {
        let last = self.points.iter().rev().find(|(_, high)| *high > limit);
        last.map_or(0.0, |(then, _)| (window - then.until(now)).max(0.0))
    }

    /// The part that is kept over a restart: at most `max_points` values, of which the last are merged into one that is as high as the
    /// first and as recent as the last of them. The window is no longer known to be without gaps.
    pub(crate) fn compacted(&self, max_points: usize) -> Self {
        let mut points: Vec<_> = self.points.iter().map(|(then, high)| (*then, six_digits(*high))).collect();
        while points.len() > max_points.max(1) {
            let (younger, _) = points.remove(points.len() - 1);
            if let Some((then, _)) = points.last_mut() {
                *then = younger;
            }
        }
        Self { since: None, last: None, points }
    }

    pub(crate) fn not_after(&mut self, now: Moment) {
        let clamp = |at: &mut Option<Moment>| *at = at.map(|at| at.min(now));
        clamp(&mut self.since);
        clamp(&mut self.last);
        self.points.iter_mut().for_each(|(then, _)| *then = (*then).min(now));
    }
}

/// The minimum of a window: the maximum of the negated values.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct WindowMinimum(WindowMaximum);

impl WindowMinimum {
    pub(crate) fn push(&mut self, at: Moment, value: f64, window: f64) {
        self.0.push(at, -value, window);
    }

    pub(crate) fn reach(&self, now: Moment) -> f64 {
        self.0.reach(now)
    }

    pub(crate) fn lowest(&self, now: Moment, window: f64) -> Option<f64> {
        self.0.highest(now, window).map(|high| -high)
    }

    pub(crate) fn not_after(&mut self, now: Moment) {
        self.0.not_after(now);
    }
}
