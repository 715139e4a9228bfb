//! How many requests arrived in each of the last stretches of time, from pods that are read at different moments and now
//! and then not at all.
//!
//! Each growth of a pod's counters is spread evenly over the time it took, so a reading that comes late fills the
//! stretches it was missed in. Where some pods have not been read yet, their part is taken from the level that is known.

use serde::{Deserialize, Serialize};

use super::change_point::ArrivalCount;
use super::is_default;
use crate::moment::Moment;

/// Stretches are kept this long, seconds: a mean over them has a relative error of `sqrt(1/(600 λ))`, 2.9 % at 2 requests/s.
pub(super) const WINDOW: f64 = 600.0;

/// A stretch is at least this long, seconds: a scrape of 5 s that comes a little early still makes one. At most
/// `WINDOW / SHORTEST` = 150 are kept.
const SHORTEST: f64 = 4.0;

/// A hole in the readings beyond this, seconds, is not bridged: who was not read for so long is read anew.
pub(super) const HOLE: f64 = 60.0;

/// What a pod that shows nothing gets is judged by what the others got in about so long, seconds: a minute has many arrivals.
const LATELY: f64 = 60.0;

/// One stretch of time. A row of numbers where it is stored, since there are many.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(from = "Row", into = "Row")]
pub struct ArrivalBin {
    /// When it ended.
    pub end: Moment,
    /// Its length, seconds.
    pub seconds: f64,
    /// Arrivals that were counted.
    pub known: f64,
    /// Pods that were read, each as far as its readings cover the stretch.
    pub seen: f64,
    /// Pods that served, each as far as it served.
    pub expected: f64,
    /// Arrivals at a pod that was not read, as far as one can tell.
    pub each: f64,
}

type Row = (Moment, f64, f64, f64, f64, f64);

impl From<Row> for ArrivalBin {
    fn from((end, seconds, known, seen, expected, each): Row) -> Self {
        Self { end, seconds, known, seen, expected, each }
    }
}

impl From<ArrivalBin> for Row {
    fn from(own: ArrivalBin) -> Self {
        (own.end, own.seconds, own.known, own.seen, own.expected, own.each)
    }
}

impl ArrivalBin {
    fn start(&self) -> Moment {
        self.end.plus(-self.seconds)
    }

    /// All pods were read over all of it, but for rounding.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.seen >= self.expected - 0.01
    }

    /// Its arrivals, those of pods that were not read estimated.
    #[must_use]
    pub fn count(&self) -> ArrivalCount {
        let arrivals = self.known + (self.expected - self.seen).max(0.0) * self.each;
        ArrivalCount { seconds: self.seconds, arrivals }
    }
}

/// The stretch that has not ended yet.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(from = "(Moment, f64, f64)", into = "(Moment, f64, f64)")]
struct Open {
    start: Moment,
    known: f64,
    /// Pods × seconds.
    covered: f64,
}

impl From<(Moment, f64, f64)> for Open {
    fn from((start, known, covered): (Moment, f64, f64)) -> Self {
        Self { start, known, covered }
    }
}

impl From<Open> for (Moment, f64, f64) {
    fn from(own: Open) -> Self {
        (own.start, own.known, own.covered)
    }
}

/// What the gateway held.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Queue {
    /// When it was read.
    pub read: Moment,
    /// Requests.
    pub held: f64,
}

/// Arrivals of the last ten minutes.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Arrivals {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    bins: Vec<ArrivalBin>,
    #[serde(skip_serializing_if = "Option::is_none")]
    open: Option<Open>,
    /// Requests that the gateway held at the last end of a stretch.
    #[serde(skip_serializing_if = "is_default")]
    held: Option<f64>,
    #[serde(skip_serializing_if = "is_default")]
    lately: Option<Lately>, // what pods that are not counted are judged by
}

/// What was counted lately, the older the less.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Lately {
    until: Moment,
    arrivals: f64,
    /// Pods × seconds.
    covered: f64,
}

impl Lately {
    /// With a stretch that ended at `until`.
    fn with(before: Option<Self>, open: Open, until: Moment) -> Self {
        let kept = |own: Self| (-own.until.until(until).max(0.0) / LATELY).exp();
        let (kept, own) =
            before.map_or((0.0, Self { until, arrivals: 0.0, covered: 0.0 }), |own| (kept(own), own));
        Self {
            until,
            arrivals: own.arrivals.mul_add(kept, open.known.max(0.0)),
            covered: own.covered.mul_add(kept, open.covered),
        }
    }
}

impl Arrivals {
    /// Counting begins at `at`, if it has not begun.
    pub fn begin(&mut self, at: Moment) {
        self.open.get_or_insert(Open { start: at, known: 0.0, covered: 0.0 });
    }

    /// Counting begins anew at `at`, when the gateway held `held`.
    pub fn restart(&mut self, at: Moment, held: Option<f64>) {
        self.open = Some(Open { start: at, known: 0.0, covered: 0.0 });
        self.held = held;
    }

    /// Arrivals at one pod between two of its readings.
    pub fn add(&mut self, from: Moment, to: Moment, arrivals: f64) {
        self.begin(from);
        let (Some(open), seconds) = (&mut self.open, from.until(to)) else { return };
        if seconds <= 0.0 {
            return;
        }
        let late = from.max(open.start).until(to);
        open.covered += late;
        open.known += arrivals * late / seconds;
        for bin in self.bins.iter_mut().rev() {
            if bin.end <= from {
                break;
            }
            let overlap = bin.start().max(from).until(bin.end.min(to));
            bin.known += arrivals * overlap / seconds;
            bin.seen += overlap / bin.seconds;
        }
    }

    /// A round of readings ends at `at`: so ends the stretch, when it is long enough. `served` says how many pods served
    /// from a moment to another, as seconds × pods; `held` what the gateway holds; `level` is the rate known so far, of which
    /// pods that were not read yet have their part. Without it they are taken to get what the others get.
    pub fn close(
        &mut self,
        at: Moment,
        held: Option<Queue>,
        level: Option<f64>,
        served: impl Fn(Moment, Moment) -> f64,
    ) {
        let Some(open) = self.open else { return };
        let seconds = open.start.until(at);
        // What has left the queue has begun in a pod: who is counted there without the queue being read since looks like an arrival.
        let holds = held.is_some_and(|queue| queue.held > 0.0) || self.held.is_some_and(|held| held > 0.0);
        let unread = held.is_some_and(|queue| queue.read <= open.start);
        if seconds < SHORTEST || (holds && unread && seconds < HOLE) {
            return;
        }
        let held = held.map(|queue| queue.held);
        let (seen, expected) = (open.covered / seconds, served(open.start, at) / seconds);
        self.open = Some(Open { start: at, known: 0.0, covered: 0.0 });
        let queued = held.zip(self.held).map_or(0.0, |(now, before)| now - before);
        self.held = held.or(self.held);
        // Nobody was read, although somebody served: this stretch says nothing.
        if seen <= 0.0 && expected > 0.0 {
            return;
        }
        let lately = Lately::with(self.lately, open, at);
        self.lately = Some(lately);
        let alike = if lately.covered > 0.0 { lately.arrivals / lately.covered * seconds } else { 0.0 };
        let each = level.map_or(alike, |level| if expected > 0.0 { level * seconds / expected } else { 0.0 });
        self.bins.push(ArrivalBin { end: at, seconds, known: open.known + queued, seen, expected, each });
        self.bins.retain(|bin| bin.end.until(at) < WINDOW);
    }

    /// When the last stretch ended, or counting began.
    #[must_use]
    pub fn ended(&self) -> Option<Moment> {
        self.open.map(|open| open.start)
    }

    /// Oldest first.
    #[must_use]
    pub fn bins(&self) -> &[ArrivalBin] {
        &self.bins
    }

    /// Oldest first.
    #[must_use]
    pub fn counts(&self) -> Vec<ArrivalCount> {
        self.bins.iter().map(ArrivalBin::count).collect()
    }

    /// Forgets what was counted after `at`, and counts on from now.
    pub fn forget_after(&mut self, at: Moment) {
        self.bins.retain(|bin| bin.end <= at);
        self.lately = None;
        if let Some(open) = &mut self.open {
            (open.known, open.covered) = (0.0, 0.0);
        }
    }

    /// Forgets what is later than `latest`: the clock was set back.
    pub fn not_after(&mut self, latest: Moment) {
        self.bins.retain(|bin| bin.end <= latest);
        self.open = self.open.filter(|open| open.start <= latest);
        self.lately = self.lately.filter(|lately| lately.until <= latest);
    }
}
