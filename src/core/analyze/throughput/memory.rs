//! What is learned of a model from one look to the next: plain data, below 2 KiB a variant.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::line::{Line, fit, fit_from};
use super::shape::Shape;
use super::{DEFAULT_INTERCEPT, FULL, Observation, Tier};
use crate::model::Compat;
use crate::moment::may_lower;
use crate::units::Seconds;
use smol_str::SmolStr;

/// Usages outside say nothing of the line: below it is idle, above it is preempting. Source: algorithm reference §4.1.
const KV_RANGE: std::ops::RangeInclusive<f64> = 0.15..=0.85;

/// Points kept. Source: algorithm reference §4.1, as all below.
const WINDOW: usize = 20;
/// Older points are dropped.
const WINDOW_AGE: Seconds = Seconds::whole(30 * 60);
/// Fewer points are not fitted.
const ENOUGH: usize = 10;
/// Points that differ less in usage are not fitted.
const ENOUGH_SPREAD: f64 = 0.30;
/// A variant that was not seen for longer is forgotten.
const FORGOTTEN: Seconds = Seconds::whole(60 * 60);
/// A rate of generation is compared with the line from this usage on.
const VERIFIED_FROM: f64 = 0.30;
/// Percent that a measured rate may differ from the line's.
const MISMATCH: f64 = 15.0;
/// Mismatches in a row that clear the window.
const MISMATCHES: u8 = 3;

/// What is remembered of one model.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Memory {
    /// By variant name.
    pub variants: BTreeMap<SmolStr, Calibration>,
    /// When the analyzer last had something to say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub informative: Option<Timestamp>,
}

impl Memory {
    /// Drops the variants that have not been seen for an hour.
    pub(super) fn forget(&mut self, now: Timestamp) {
        self.variants.retain(|_, one| Seconds::between(one.seen, now) <= FORGOTTEN);
    }

    /// Makes the moments from which ages are counted that are after `now` be now.
    pub(crate) fn not_after(&mut self, now: Timestamp) {
        self.informative = self.informative.map(|at| at.min(now));
        for calibration in self.variants.values_mut() {
            calibration.intercept_at = calibration.intercept_at.map(|at| at.min(now));
        }
    }

    pub(super) fn of(&mut self, variant: &str, now: Timestamp) -> &mut Calibration {
        self.variants.entry(variant.into()).or_insert_with(|| Calibration::new(now))
    }

    /// The last informative result is at most three periods old. Source: algorithm reference §4.5.
    #[must_use]
    pub fn live(&self, now: Timestamp, period: Seconds) -> bool {
        self.informative.is_some_and(|at| Seconds::between(at, now).get() <= 3.0 * period.get())
    }
}

/// One point of the window: milliseconds since the epoch, KV-cache usage, seconds between two tokens. Without names, as
/// twenty of them are stored for each variant.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Point(i64, f64, f64);

/// What is remembered of one variant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    seen: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    shape: Option<Shape>,
    /// What a new shape is compared with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reference: Option<Shape>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    window: Vec<Point>,
    /// Of the last line fitted to a window: it belongs to the hardware and outlives the window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    intercept: Option<f64>,
    /// When it was last fitted. Earlier versions did not store it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    intercept_at: Option<Timestamp>,
    #[serde(default)]
    mismatches: u8,
}

impl Calibration {
    fn new(now: Timestamp) -> Self {
        Self {
            seen: now,
            shape: None,
            reference: None,
            window: Vec::new(),
            intercept: None,
            intercept_at: None,
            mismatches: 0,
        }
    }

    /// The average request as last seen.
    pub(super) fn shape(&self) -> Option<Shape> {
        self.shape
    }

    /// Takes in what the healthy replicas say now. Source: algorithm reference §4.2.
    pub(super) fn observe(&mut self, now: Timestamp, healthy: &[&Observation], compat: Compat) {
        self.seen = now;
        let at = now.as_millisecond();
        // Also where nothing healthy is seen, and so nothing is added: without points or a healthy replica there is no line, so that
        // the shape, which only they bring, counts no longer either.
        if !compat.is_upstream() {
            self.prune(at);
        }
        let Some(shape) = Shape::mean(healthy.iter().copied()) else { return };
        if self.reference.is_some_and(|reference| shape.differs(reference)) {
            self.restart();
        }
        // Upstream moves the reference along, so that a slow change of any size goes unnoticed.
        if compat.is_upstream() || self.window.is_empty() {
            self.reference = Some(shape);
        }
        self.shape = Some(shape);
        let usable = healthy.iter().filter(|one| KV_RANGE.contains(&one.kv));
        self.window.extend(usable.map(|one| Point(at, one.kv, one.latency)));
        self.window.drain(..self.window.len().saturating_sub(WINDOW));
        self.prune(at);
    }

    /// Drops the points that are too old at `at`, milliseconds since the epoch.
    fn prune(&mut self, at: i64) {
        let oldest = WINDOW_AGE.get() * 1000.0;
        self.window.retain(|point| crate::units::float(at.saturating_sub(point.0)) <= oldest);
    }

    /// The line and how it was found; `None` when neither the window nor this look gives one. Source: algorithm
    /// reference §4.3.
    pub(super) fn line(
        &mut self,
        now: Timestamp,
        healthy: &[&Observation],
        compat: Compat,
    ) -> Option<(Line, Tier)> {
        let fitted = self.ready().then(|| fit(self.window.iter().map(|point| (point.1, point.2)))).flatten();
        if let Some(line) = fitted {
            (self.intercept, self.intercept_at) = (Some(line.intercept), Some(now));
            return Some((line, Tier::Fitted));
        }
        let points = healthy.iter().map(|replica| (replica.kv, replica.latency));
        let line_from = |intercept| fit_from(intercept, points.clone());
        if let Some(line) = self.intercept.and_then(line_from) {
            // One that is too old counts where replicas carry less with it than without: it may raise a number, and not lower it.
            let old = !compat.is_upstream() && !may_lower(self.intercept_at, now);
            let slower = |default: &Line| default.at(FULL) > line.at(FULL);
            let without = old.then(|| line_from(DEFAULT_INTERCEPT)).flatten().filter(slower);
            return Some(without.map_or((line, Tier::Pinned), |line| (line, Tier::Default)));
        }
        // An intercept above all that is measured now was never one. Upstream then knows nothing until it fits another line.
        if !compat.is_upstream() {
            self.intercept = None;
        }
        let default = self.intercept.is_none().then(|| line_from(DEFAULT_INTERCEPT)).flatten();
        default.map(|line| (line, Tier::Default))
    }

    fn ready(&self) -> bool {
        let (low, high) =
            self.window.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), point| {
                (low.min(point.1), high.max(point.1))
            });
        self.window.len() >= ENOUGH && high - low >= ENOUGH_SPREAD
    }

    /// Compares the rates that `line` and the shape predict with the measured ones; a window that is wrong three times
    /// in a row is cleared. This look's result stays as it is. Source: algorithm reference §4.4.
    pub(super) fn verify(&mut self, line: Line, shape: Shape, healthy: &[&Observation]) {
        let wrong = |one: &&Observation| {
            let predicted = one.generating_at(line, shape);
            let error = (predicted - one.generating).abs() / one.generating * 100.0;
            one.generating > 0.0 && one.kv >= VERIFIED_FROM && predicted > 0.0 && error > MISMATCH
        };
        if !healthy.iter().any(wrong) {
            self.mismatches = 0;
            return;
        }
        self.mismatches = self.mismatches.saturating_add(1);
        if self.mismatches >= MISMATCHES {
            self.restart();
        }
    }

    fn restart(&mut self) {
        self.window.clear();
        self.mismatches = 0;
    }
}
