//! Arrivals of the last ten minutes in bins of time, from engines that are read at different times and sometimes not at all.
//!
//! The growth of an engine's counters is spread evenly over the time between its readings, so that a late reading fills the bins in
//! which it was missing. While some engines have not been read yet, their share is taken from the known arrival rate.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::change_point::ArrivalCount;
use super::numeric::{decay, is_default};
use crate::moment::Moment;

/// Bins are kept for this long, seconds: a mean over them has a relative error of `sqrt(1/(600 λ))`, 2.9 % at 2 requests/s.
pub(super) const WINDOW: f64 = 600.0;

/// A bin is at least this long, seconds: a scrape of 5 s that comes a little early still makes one. So at most
/// `WINDOW / MIN_BIN` = 150 are kept.
const MIN_BIN: f64 = 4.0;

/// A longer gap between readings, seconds, is not bridged: counting starts anew.
pub(super) const MAX_READING_GAP: f64 = 60.0;

/// Time constant, seconds, of the rate by which unread engines are estimated if no arrival rate is known: a minute has many arrivals.
const RECENT_TIME_CONSTANT: f64 = 60.0;

/// One period of time. Stored as an array, because there are many.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(from = "Row", into = "Row")]
pub struct ArrivalBin {
    /// End of the period.
    pub end: Moment,
    /// Its length, seconds.
    pub seconds: f64,
    /// Counted arrivals.
    pub known: f64,
    /// Engines that were read, each weighted by the share of the period that its readings cover.
    pub read: f64,
    /// Engines that served, each weighted by the share of the period.
    pub expected: f64,
    /// Estimated arrivals at an engine that was not read.
    pub(crate) per_unread: f64,
    /// Requests of `known` that were refused.
    pub(crate) refused: f64,
}

/// The fields in their order. Earlier versions did not store refused requests, and neither does a period without any.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Row {
    Admitted((Moment, f64, f64, f64, f64, f64)),
    WithRefused((Moment, f64, f64, f64, f64, f64, f64)),
}

impl From<Row> for ArrivalBin {
    fn from(row: Row) -> Self {
        let (end, seconds, known, read, expected, per_unread, refused) = match row {
            Row::Admitted((end, seconds, known, read, expected, per_unread)) => {
                (end, seconds, known, read, expected, per_unread, 0.0)
            }
            Row::WithRefused(row) => row,
        };
        Self { end, seconds, known, read, expected, per_unread, refused }
    }
}

impl From<ArrivalBin> for Row {
    fn from(bin: ArrivalBin) -> Self {
        let ArrivalBin { end, seconds, known, read, expected, per_unread, refused } = bin;
        if refused > 0.0 {
            Self::WithRefused((end, seconds, known, read, expected, per_unread, refused))
        } else {
            Self::Admitted((end, seconds, known, read, expected, per_unread))
        }
    }
}

impl ArrivalBin {
    pub(super) fn start(&self) -> Moment {
        self.end.plus(-self.seconds)
    }

    /// All engines were read over the whole period, but for rounding.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.read >= self.expected - 0.01
    }

    /// Its arrivals, estimated for engines that were not read.
    #[must_use]
    pub fn count(&self) -> ArrivalCount {
        let arrivals = self.known + (self.expected - self.read).max(0.0) * self.per_unread;
        ArrivalCount { seconds: self.seconds, arrivals }
    }
}

/// The bin that has not ended yet.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(from = "(Moment, f64, f64)", into = "(Moment, f64, f64)")]
struct Open {
    start: Moment,
    known: f64,
    /// Engines × seconds that readings cover.
    covered: f64,
}

impl From<(Moment, f64, f64)> for Open {
    fn from((start, known, covered): (Moment, f64, f64)) -> Self {
        Self { start, known, covered }
    }
}

impl From<Open> for (Moment, f64, f64) {
    fn from(open: Open) -> Self {
        (open.start, open.known, open.covered)
    }
}

/// Requests that arrived at an engine between two readings.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EngineArrivals {
    /// All of them. Below 0 where one was counted twice.
    pub all: f64,
    /// Those of them that it refused.
    pub refused: f64,
}

impl EngineArrivals {
    /// Requests of which it refused none, as far as is known.
    pub(crate) const fn admitted(all: f64) -> Self {
        Self { all, refused: 0.0 }
    }
}

/// Requests that the gateway held.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Queue {
    /// Time of the reading.
    pub read: Moment,
    /// Number of requests.
    pub held: f64,
}

/// Arrivals of the last ten minutes.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Arrivals {
    /// Shared, because a decision copies what was learned and does not change these.
    #[serde(skip_serializing_if = "is_default")]
    bins: Arc<Vec<ArrivalBin>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    open: Option<Open>,
    /// Requests that were refused since the last bin ended.
    #[serde(skip_serializing_if = "is_default")]
    open_refused: f64,
    /// Requests that the gateway held at the end of the last bin.
    #[serde(skip_serializing_if = "is_default")]
    held: Option<f64>,
    /// By which engines that are not counted are estimated.
    #[serde(rename = "lately", skip_serializing_if = "is_default")]
    recent: Option<RecentArrivals>,
}

/// Decaying sums of arrivals and of the time in which they were counted.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct RecentArrivals {
    until: Moment,
    arrivals: f64,
    /// Engines × seconds that readings cover.
    covered: f64,
}

impl RecentArrivals {
    /// `before` with a bin that ended at `until`.
    fn with(before: Option<Self>, open: Open, until: Moment) -> Self {
        let before = before.unwrap_or(Self { until, arrivals: 0.0, covered: 0.0 });
        let remaining = decay(before.until.until(until), RECENT_TIME_CONSTANT);
        Self {
            until,
            arrivals: before.arrivals.mul_add(remaining, open.known.max(0.0)),
            covered: before.covered.mul_add(remaining, open.covered),
        }
    }
}

impl Arrivals {
    /// Starts counting at `at`, unless that has started.
    pub fn begin(&mut self, at: Moment) {
        self.open.get_or_insert(Open { start: at, known: 0.0, covered: 0.0 });
    }

    /// Restarts counting at `at`, when the gateway held `held` requests.
    pub fn restart(&mut self, at: Moment, held: Option<f64>) {
        self.open = Some(Open { start: at, known: 0.0, covered: 0.0 });
        self.open_refused = 0.0;
        self.held = held;
    }

    /// Adds the arrivals at one engine between two of its readings.
    pub fn add(&mut self, from: Moment, to: Moment, arrivals: EngineArrivals) {
        self.begin(from);
        let Some(open) = &mut self.open else { return };
        let seconds = from.until(to);
        if seconds <= 0.0 {
            return;
        }
        let overlap = from.max(open.start).until(to);
        open.covered += overlap;
        open.known += arrivals.all * overlap / seconds;
        self.open_refused += arrivals.refused * overlap / seconds;
        if self.bins.last().is_none_or(|bin| bin.end <= from) {
            return; // and shares the bins on
        }
        for bin in Arc::make_mut(&mut self.bins).iter_mut().rev() {
            if bin.end <= from {
                break;
            }
            let overlap = bin.start().max(from).until(bin.end.min(to));
            bin.known += arrivals.all * overlap / seconds;
            bin.refused += arrivals.refused * overlap / seconds;
            bin.read += overlap / bin.seconds;
        }
    }

    /// Ends the open bin at `at`, the end of a round of readings, if it is long enough. `served` gives the engines × seconds that served
    /// between two times; `held` is what the gateway holds; `level` is the known arrival rate, requests/s, of which unread engines
    /// get their share. Without it they get as much as the others recently did.
    pub fn close(
        &mut self,
        at: Moment,
        held: Option<Queue>,
        level: Option<f64>,
        served: impl Fn(Moment, Moment) -> f64,
    ) {
        let Some(open) = self.open else { return };
        let seconds = open.start.until(at);
        // A request that leaves the queue starts in an engine. If it is counted there before the queue is read again, it looks like an
        // arrival, so the bin stays open until then.
        let is_queue_in_use =
            held.is_some_and(|queue| queue.held > 0.0) || self.held.is_some_and(|held| held > 0.0);
        let is_queue_unread = held.is_some_and(|queue| queue.read <= open.start);
        if seconds < MIN_BIN || (is_queue_in_use && is_queue_unread && seconds < MAX_READING_GAP) {
            return;
        }
        let held = held.map(|queue| queue.held);
        let read = open.covered / seconds;
        let expected = served(open.start, at) / seconds;
        self.open = Some(Open { start: at, known: 0.0, covered: 0.0 });
        let refused = std::mem::take(&mut self.open_refused);
        // Requests that the gateway holds have arrived and not started yet.
        let queue_growth = held.zip(self.held).map_or(0.0, |(now, before)| now - before);
        self.held = held.or(self.held);
        // No engine was read although some served: nothing is known of this period.
        if read <= 0.0 && expected > 0.0 {
            return;
        }
        let recent = RecentArrivals::with(self.recent, open, at);
        self.recent = Some(recent);
        let per_read = if recent.covered > 0.0 { recent.arrivals / recent.covered * seconds } else { 0.0 };
        let per_unread =
            level.map_or(per_read, |level| if expected > 0.0 { level * seconds / expected } else { 0.0 });
        let known = open.known + queue_growth;
        let bins = Arc::make_mut(&mut self.bins);
        bins.reserve_exact(1); // a copy is made for each evaluation, and would double
        bins.push(ArrivalBin { end: at, seconds, known, read, expected, per_unread, refused });
        bins.retain(|bin| bin.end.until(at) < WINDOW);
    }

    /// When the last bin ended, or counting started.
    #[must_use]
    pub fn ended(&self) -> Option<Moment> {
        self.open.map(|open| open.start)
    }

    /// The bins, oldest first.
    #[must_use]
    pub fn bins(&self) -> &[ArrivalBin] {
        &self.bins
    }

    /// The arrivals of each bin, oldest first.
    #[must_use]
    pub fn counts(&self) -> Vec<ArrivalCount> {
        self.bins.iter().map(ArrivalBin::count).collect()
    }

    /// Drops what was counted after `at`, and goes on counting from now.
    pub(crate) fn forget_after(&mut self, at: Moment) {
        if self.bins.iter().any(|bin| bin.end > at) {
            Arc::make_mut(&mut self.bins).retain(|bin| bin.end <= at);
        }
        self.recent = None;
        if let Some(open) = &mut self.open {
            open.known = 0.0;
            open.covered = 0.0;
            self.open_refused = 0.0;
        }
    }

    /// Drops what was known by `at`.
    pub(super) fn forget_until(&mut self, at: Moment) {
        Arc::make_mut(&mut self.bins).retain(|bin| bin.start() >= at);
        self.recent = None;
    }

    /// Drops what is later than `latest`: the clock was set back.
    pub fn not_after(&mut self, latest: Moment) {
        if self.bins.iter().any(|bin| bin.end > latest) {
            Arc::make_mut(&mut self.bins).retain(|bin| bin.end <= latest);
        }
        self.open = self.open.filter(|open| open.start <= latest);
        if self.open.is_none() {
            self.open_refused = 0.0;
        }
        self.recent = self.recent.filter(|recent| recent.until <= latest);
    }
}
