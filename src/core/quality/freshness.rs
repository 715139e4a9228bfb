//! How old the samples of one engine are, and its peaks of the last minute.

use jiff::Timestamp;
use smol_str::SmolStr;

use crate::snapshot::{Pod, Rows, Sample, Signal, Signals};
use crate::units::{Seconds, truncated_u32};

/// A sample is fresh for at least this long: two scrapes of the usual 15 s.
pub const MIN_FRESH_LIMIT: Seconds = Seconds::whole(30);

/// A sample is not stale for at least this long: four scrapes of the usual 15 s.
pub(crate) const MIN_STALE_LIMIT: Seconds = Seconds::whole(60);

/// How late a scrape may be without leaving a gap at the far end of the peak window: a third of the usual 15 s.
pub(super) const MAX_SCRAPE_DELAY: Seconds = Seconds::whole(5);

/// Peaks are taken over this window, as in upstream's queries (`max_over_time(…[1m])`).
pub(super) const PEAK_WINDOW: Seconds = Seconds::whole(60);

/// How long after a signal becomes wrong it may take until it is found to be contradicted: a minute and two scrapes of 15 s.
pub(crate) const CONTRADICTION_DELAY: Seconds = Seconds::whole(90);

/// How old the newest sample is, by what may be concluded from it. In order of trust.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Freshness {
    /// Every required signal is at most [`fresh_limit`] old.
    Fresh,
    /// Between the two limits, or one of the signals is missing, or the peak window is not covered yet: may raise a number,
    /// never lower it.
    Aging,
    /// Older than [`stale_limit`]: says nothing any more.
    Stale,
    /// No sample at all.
    Absent,
}

/// KV-cache usage and queue of one engine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EngineReading<'a> {
    pub(crate) freshness: Freshness,
    pub(crate) newest: Option<Timestamp>,
    pub(crate) recent: Rows<'a>,
    /// Peak KV-cache usage of the window, 0 to 1; 0 when only the queue is known.
    pub(crate) kv: f64,
    /// Peak waiting requests of the window, truncated; 0 when only the KV cache is known.
    pub(crate) queue: u32,
}

/// What every analyzer requires.
const REQUIRED: [Signal; 2] = [Signal::KvUsage, Signal::Waiting];

/// The engines of `pod` that are judged. Series without an engine label form an engine of their own, which is
/// left out while another one shows the required signals.
pub fn judged_engines(pod: &Pod) -> impl Iterator<Item = (&SmolStr, &Signals)> {
    let has_required = |signals: &Signals| REQUIRED.iter().any(|signal| signals.newest(*signal).is_some());
    let is_any_complete = pod.engines.values().any(has_required);
    pod.engines.iter().filter(move |(_, signals)| !is_any_complete || has_required(signals))
}

/// Grades `signals` at `now`; their pod has been ready since `ready_since`.
pub(crate) fn read_engine(signals: &Signals, ready_since: Timestamp, now: Timestamp) -> EngineReading<'_> {
    let interval = signals.interval();
    let grades = REQUIRED.map(|signal| grade(signals.newest(signal), interval, now));
    let newest = REQUIRED.iter().filter_map(|signal| signals.newest(*signal)).map(|sample| sample.at).max();
    let freshness = match grades {
        [Freshness::Absent, Freshness::Absent] => Freshness::Absent,
        // The missing signal reads as 0, so the other one may raise a number and not lower it.
        [Freshness::Absent, present] | [present, Freshness::Absent] => present.max(Freshness::Aging),
        // One stale signal does not keep the other from raising a number.
        [kv, queue] if kv.max(queue) == Freshness::Stale => kv.min(queue).max(Freshness::Aging),
        [kv, queue] => kv.max(queue),
    };
    let freshness = if covers_peak_window(signals, interval, ready_since, now) {
        freshness
    } else {
        freshness.max(Freshness::Aging)
    };
    let recent = peak_rows(signals, now);
    let peak = |signal| recent.get(signal).highest().map_or(0.0, |peak| peak.max(0.0));
    let (kv, queue) = (peak(Signal::KvUsage), truncated_u32(peak(Signal::Waiting)));
    EngineReading { freshness, newest, recent, kv, queue }
}

/// The scrapes of the peak window. A slow scrape leaves no sample in the usual minute; within the fresh limit a fresh engine always
/// has one.
pub(super) fn peak_rows(signals: &Signals, now: Timestamp) -> Rows<'_> {
    signals.rows().since(PEAK_WINDOW.max(fresh_limit(signals.interval())).before(now))
}

/// Both series reach back over the peak window, or to when the pod became ready, to within one scrape. They do not after a start of this
/// program or a change of leader, and the peak of one sample is none.
fn covers_peak_window(signals: &Signals, interval: Seconds, ready_since: Timestamp, now: Timestamp) -> bool {
    let window = Seconds::between(ready_since, now).min(PEAK_WINDOW);
    let required_age = window.get() - interval.get() - MAX_SCRAPE_DELAY.get();
    let oldest = |signal| signals.get(signal).first().map(|oldest| Seconds::between(oldest.at, now).get());
    REQUIRED.iter().all(|signal| oldest(*signal).is_some_and(|age| age >= required_age))
}

pub(super) fn grade(newest: Option<Sample>, interval: Seconds, now: Timestamp) -> Freshness {
    let Some(newest) = newest else { return Freshness::Absent };
    let age = Seconds::between(newest.at, now);
    if age <= fresh_limit(interval) {
        Freshness::Fresh
    } else if age <= stale_limit(interval) {
        Freshness::Aging
    } else {
        Freshness::Stale
    }
}

/// Up to this age a sample is fresh: two scrape intervals, at least 30 s.
pub(crate) fn fresh_limit(interval: Seconds) -> Seconds {
    scaled(interval, 2.0, MIN_FRESH_LIMIT)
}

/// Beyond this age a sample is stale: four scrape intervals, at least `MIN_STALE_LIMIT`.
#[must_use]
pub fn stale_limit(interval: Seconds) -> Seconds {
    scaled(interval, 4.0, MIN_STALE_LIMIT)
}

fn scaled(interval: Seconds, factor: f64, minimum: Seconds) -> Seconds {
    Seconds::new(interval.get() * factor).map_or(minimum, |limit| limit.max(minimum))
}
