//! What the analyzer learns about a model: plain data, less than 2 KiB for each variant.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use super::input::{RequestShape, ThroughputObservation};
use super::latency_line::{FULL, LatencyLine};
use crate::analyze::finding::LIVE_CYCLES;
use crate::moment::may_lower;
use crate::units::{Seconds, to_f64};

/// Seconds between two tokens of an empty engine, before a line was fitted (upstream's constant, as those below).
pub(crate) const DEFAULT_INTERCEPT: f64 = 0.006;
/// Only usages in this range are used for the line: below it an engine is idle, and above it it preempts requests.
const KV_RANGE: std::ops::RangeInclusive<f64> = 0.15..=0.85;
const MAX_POINTS: usize = 20;
const MAX_POINT_AGE: Seconds = Seconds::whole(30 * 60);
const MIN_POINTS: usize = 10;
const MIN_KV_SPREAD: f64 = 0.30;
const MAX_VARIANT_AGE: Seconds = Seconds::whole(60 * 60);
/// From this usage on, the generation rate is compared with the line.
const MIN_VERIFIED_KV: f64 = 0.30;
/// A measured rate may differ from the line's by this many percent.
const MAX_MISMATCH_PERCENT: f64 = 15.0;
const MAX_MISMATCHES: u8 = 3;

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ThroughputMemory {
    /// By variant name.
    pub variants: BTreeMap<SmolStr, Calibration>,
    /// When the analyzer last had an informative result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub informative: Option<Timestamp>,
}

impl ThroughputMemory {
    /// Drops variants without observations for an hour.
    pub(crate) fn forget(&mut self, now: Timestamp) {
        self.variants
            .retain(|_, calibration| Seconds::between(calibration.last_seen, now) <= MAX_VARIANT_AGE);
    }

    /// Replaces times after `now` by `now` where ages are counted from them.
    pub(crate) fn not_after(&mut self, now: Timestamp) {
        self.informative = self.informative.map(|at| at.min(now));
        for calibration in self.variants.values_mut() {
            calibration.intercept_at = calibration.intercept_at.map(|at| at.min(now));
        }
    }

    pub(crate) fn calibration(&mut self, variant: &str, now: Timestamp) -> &mut Calibration {
        self.variants.entry(variant.into()).or_insert_with(|| Calibration::new(now))
    }

    /// The last informative result is at most three periods old.
    pub fn is_live(&self, now: Timestamp, period: Seconds) -> bool {
        self.informative.is_some_and(|at| Seconds::between(at, now).get() <= LIVE_CYCLES * period.get())
    }
}

/// One point of the window, stored without field names because there are twenty of them for each variant.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(from = "(i64, f64, f64)", into = "(i64, f64, f64)")]
struct Point {
    /// Milliseconds since the epoch.
    at: i64,
    /// KV-cache usage, 0 to 1.
    kv: f64,
    /// Seconds between two tokens.
    latency: f64,
}

impl From<(i64, f64, f64)> for Point {
    fn from((at, kv, latency): (i64, f64, f64)) -> Self {
        Self { at, kv, latency }
    }
}

impl From<Point> for (i64, f64, f64) {
    fn from(point: Point) -> Self {
        (point.at, point.kv, point.latency)
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    #[serde(rename = "seen")]
    last_seen: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    shape: Option<RequestShape>,
    /// What a new shape is compared with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reference: Option<RequestShape>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    window: Vec<Point>,
    /// Of the last line that was fitted to a window. It belongs to the hardware, and outlives the window.
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
            last_seen: now,
            shape: None,
            reference: None,
            window: Vec::new(),
            intercept: None,
            intercept_at: None,
            mismatches: 0,
        }
    }

    pub(crate) fn shape(&self) -> Option<RequestShape> {
        self.shape
    }

    /// Adds what the healthy engines show now.
    pub(super) fn observe(&mut self, now: Timestamp, healthy: &[&ThroughputObservation]) {
        // Also if no engine is healthy and nothing is added: without points and without a healthy engine there is no line.
        self.prune(now);
        // The reference stays while there are points, so that a slow change is noticed too.
        let keeps_reference = !self.window.is_empty();
        self.take_in(now, healthy, keeps_reference);
    }

    /// Adds the points of the healthy engines. A shape that differs from the reference clears the window; the new shape becomes the
    /// reference unless `keeps_reference` and the window was not cleared.
    pub(crate) fn take_in(
        &mut self,
        now: Timestamp,
        healthy: &[&ThroughputObservation],
        keeps_reference: bool,
    ) {
        self.last_seen = now;
        let Some(shape) = RequestShape::mean(healthy.iter().copied()) else { return };
        if self.reference.is_some_and(|reference| shape.differs(reference)) {
            self.restart();
        }
        if !keeps_reference || self.window.is_empty() {
            self.reference = Some(shape);
        }
        self.shape = Some(shape);
        let at = now.as_millisecond();
        let usable = healthy.iter().filter(|engine| KV_RANGE.contains(&engine.kv));
        self.window.extend(usable.map(|engine| Point { at, kv: engine.kv, latency: engine.latency }));
        self.window.drain(..self.window.len().saturating_sub(MAX_POINTS));
        self.prune(now);
    }

    fn prune(&mut self, now: Timestamp) {
        let at = now.as_millisecond();
        let max_age = MAX_POINT_AGE.get() * 1000.0;
        self.window.retain(|point| to_f64(at.saturating_sub(point.at)) <= max_age);
    }

    /// The line and how it was found; `None` if neither the window nor the healthy engines give one.
    pub(super) fn line(
        &mut self,
        now: Timestamp,
        healthy: &[&ThroughputObservation],
    ) -> Option<(LatencyLine, Tier)> {
        if let Some(line) = self.fit_window(now) {
            return Some((line, Tier::Fitted));
        }
        let default = || line_through(DEFAULT_INTERCEPT, healthy);
        let Some(line) = self.intercept.and_then(|intercept| line_through(intercept, healthy)) else {
            // An intercept above all measured latencies is wrong.
            self.intercept = None;
            return default().map(|line| (line, Tier::Default));
        };
        // An old intercept may raise a number and not lower it: the default intercept replaces it if replicas carry less with that.
        let is_slower = |default: &LatencyLine| default.at(FULL) > line.at(FULL);
        let is_old = !may_lower(self.intercept_at, now);
        let slower = if is_old { default().filter(is_slower) } else { None };
        Some(slower.map_or((line, Tier::Pinned), |line| (line, Tier::Default)))
    }

    /// The line of the window, whose intercept is remembered; `None` if its points are too few or too alike.
    pub(crate) fn fit_window(&mut self, now: Timestamp) -> Option<LatencyLine> {
        if !self.is_ready() {
            return None;
        }
        let line = LatencyLine::fit(self.window.iter().map(|point| (point.kv, point.latency)))?;
        self.intercept = Some(line.intercept);
        self.intercept_at = Some(now);
        Some(line)
    }

    pub(crate) fn intercept(&self) -> Option<f64> {
        self.intercept
    }

    fn is_ready(&self) -> bool {
        let kvs = || self.window.iter().map(|point| point.kv);
        let low = kvs().fold(f64::INFINITY, f64::min);
        let high = kvs().fold(f64::NEG_INFINITY, f64::max);
        self.window.len() >= MIN_POINTS && high - low >= MIN_KV_SPREAD
    }

    /// Compares the rates that `line` predicts with the measured ones. After three mismatches in a row the window is cleared; the present
    /// result stays.
    pub(crate) fn verify(
        &mut self,
        line: LatencyLine,
        shape: RequestShape,
        healthy: &[&ThroughputObservation],
    ) {
        let is_wrong = |engine: &&ThroughputObservation| {
            let predicted = engine.predicted_rate(line, shape);
            let error = (predicted - engine.generating).abs() / engine.generating * 100.0;
            engine.generating > 0.0
                && engine.kv >= MIN_VERIFIED_KV
                && predicted > 0.0
                && error > MAX_MISMATCH_PERCENT
        };
        if !healthy.iter().any(is_wrong) {
            self.mismatches = 0;
            return;
        }
        self.mismatches = self.mismatches.saturating_add(1);
        if self.mismatches >= MAX_MISMATCHES {
            self.restart();
        }
    }

    fn restart(&mut self) {
        self.window.clear();
        self.mismatches = 0;
    }
}

/// The line from `intercept` that fits what the healthy engines show.
pub(crate) fn line_through(intercept: f64, healthy: &[&ThroughputObservation]) -> Option<LatencyLine> {
    LatencyLine::fit_from(intercept, healthy.iter().map(|engine| (engine.kv, engine.latency)))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tier {
    /// By the points of the window.
    Fitted,
    /// By the intercept of the last fitted line.
    Pinned,
    /// By the default intercept.
    Default,
}

impl Tier {
    /// As in upstream's reports.
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::Fitted => "T1-ols",
            Self::Pinned => "T2-pinned",
            Self::Default => "T2-default",
        }
    }
}
