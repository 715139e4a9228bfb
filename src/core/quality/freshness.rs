//! One serving process: how old its samples are, and the peaks V1 reads from them.

use jiff::Timestamp;
use smol_str::SmolStr;

use super::load::{longer, peak};
use super::{FRESH_AT_LEAST, LATE_SCRAPE, PEAK_WINDOW, STALE_AT_LEAST};
use crate::snapshot::{Replica, Rows, Sample, Signal, Signals};
use crate::units::{Seconds, whole};

/// How old the newest sample is, in steps of what may be concluded. In order of trust.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Freshness {
    /// At most the fresh limit old, in every signal V1 needs.
    Fresh,
    /// Between the limits, or one of the signals is missing, or the peaks of the window are not known yet: may raise a
    /// number, never lower it.
    Aging,
    /// Older than the stale limit: says nothing any more.
    Stale,
    /// No sample at all.
    Absent,
}

/// What one engine's samples say.
#[derive(Debug, Clone, Copy)]
pub struct EngineReading<'a> {
    /// How far it can be trusted.
    pub freshness: Freshness,
    /// The newest sample of a signal V1 needs.
    pub newest: Option<Timestamp>,
    /// The scrapes of the window of the peaks.
    pub recent: Rows<'a>,
    /// Peak KV-cache usage of the window, 0 when only the queue is known.
    pub kv: f64,
    /// Peak waiting requests of the window, without the fraction; 0 when only the KV cache is known.
    pub queue: u32,
}

/// What V1 cannot do without.
const NEEDED: [Signal; 2] = [Signal::KvUsage, Signal::Waiting];

/// The engines of `replica` that are judged. Some series come without the name of their engine and make up one of
/// their own; it is no engine while another one shows what V1 needs.
pub fn judged_engines(replica: &Replica) -> impl Iterator<Item = (&SmolStr, &Signals)> {
    let needed = |signals: &Signals| NEEDED.iter().any(|signal| signals.newest(*signal).is_some());
    let known = replica.engines.values().any(needed);
    replica.engines.iter().filter(move |(_, signals)| !known || needed(signals))
}

/// Judges `signals` at `now`; they are of a pod that serves since `ready_since`.
#[must_use]
pub fn read_engine(signals: &Signals, ready_since: Timestamp, now: Timestamp) -> EngineReading<'_> {
    let interval = signals.interval();
    let grades = NEEDED.map(|signal| grade(signals.newest(signal), interval, now));
    let newest = NEEDED.iter().filter_map(|signal| signals.newest(*signal)).map(|sample| sample.at).max();
    let freshness = match grades {
        [Freshness::Absent, Freshness::Absent] => Freshness::Absent,
        // The other one is missing: it reads as 0, so what is here may raise a number but not lower it.
        [Freshness::Absent, known] | [known, Freshness::Absent] => known.max(Freshness::Aging),
        [kv, queue] => either_is_enough(kv, queue),
    };
    let freshness = if reaches_back(signals, interval, ready_since, now) {
        freshness
    } else {
        freshness.max(Freshness::Aging)
    };
    let recent = recent(signals, now);
    let peak = |signal| peak(recent.get(signal)).map_or(0.0, |peak| peak.max(0.0));
    let (kv, queue) = (peak(Signal::KvUsage), whole(peak(Signal::Waiting)));
    EngineReading { freshness, newest, recent, kv, queue }
}

/// The scrapes of the window of the peaks. A slow scrape leaves no sample in the usual one; a fresh engine always has one
/// in this.
pub(super) fn recent(signals: &Signals, now: Timestamp) -> Rows<'_> {
    signals.rows().since(longer(PEAK_WINDOW, fresh_limit(signals.interval())).before(now))
}

/// Both series go back over the window of the peaks, or to when the pod began to serve: to within one scrape of it.
/// After a start of this program or a new holder of the lease they do not, and one sample is no peak.
fn reaches_back(signals: &Signals, interval: Seconds, ready_since: Timestamp, now: Timestamp) -> bool {
    let served = Seconds::between(ready_since, now);
    let window = if served < PEAK_WINDOW { served } else { PEAK_WINDOW };
    let least = window.get() - interval.get() - LATE_SCRAPE.get();
    let back = |signal| signals.get(signal).first().map(|oldest| Seconds::between(oldest.at, now).get());
    NEEDED.iter().all(|signal| back(*signal).is_some_and(|back| back >= least))
}

/// Two signals of one process: with one of them stale the other still may raise a number.
fn either_is_enough(kv: Freshness, queue: Freshness) -> Freshness {
    if kv.max(queue) == Freshness::Stale { kv.min(queue).max(Freshness::Aging) } else { kv.max(queue) }
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

/// Up to this age a sample is fresh: two scrapes, at least [`FRESH_AT_LEAST`].
#[must_use]
pub fn fresh_limit(interval: Seconds) -> Seconds {
    scaled(interval, 2.0, FRESH_AT_LEAST)
}

/// Beyond this age a sample is stale: four scrapes, at least [`STALE_AT_LEAST`].
#[must_use]
pub fn stale_limit(interval: Seconds) -> Seconds {
    scaled(interval, 4.0, STALE_AT_LEAST)
}

fn scaled(interval: Seconds, factor: f64, least: Seconds) -> Seconds {
    Seconds::new(interval.get() * factor).map_or(least, |limit| if limit > least { limit } else { least })
}
