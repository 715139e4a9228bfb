//! One serving process: how old its samples are, and the peaks V1 reads from them.

use jiff::Timestamp;
use smol_str::SmolStr;

use super::load::latest;
use super::{FRESH_AT_LEAST, LATE_SCRAPE, PEAK_WINDOW, STALE_AT_LEAST};
use crate::snapshot::{Replica, Sample, Signal, Signals};
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
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reading {
    /// How far it can be trusted.
    pub freshness: Freshness,
    /// The newest sample of a signal V1 needs.
    pub newest: Option<Timestamp>,
    /// The scrape interval observed. See [`interval_of`].
    pub interval: Seconds,
    /// Peak KV-cache usage of the window, 0 when only the queue is known.
    pub kv: f64,
    /// Peak waiting requests of the window, without the fraction; 0 when only the KV cache is known.
    pub queue: u32,
}

/// What V1 cannot do without.
const NEEDED: [Signal; 2] = [Signal::KvUsage, Signal::Waiting];

/// The engines of `replica` that are judged. Some series come without the name of their engine and make up one of
/// their own; it is no engine while another one shows what V1 needs.
pub fn engines_of(replica: &Replica) -> impl Iterator<Item = (&SmolStr, &Signals)> {
    let needed = |signals: &Signals| NEEDED.iter().any(|signal| signals.newest(*signal).is_some());
    let known = replica.engines.values().any(needed);
    replica.engines.iter().filter(move |(_, signals)| !known || needed(signals))
}

/// Judges `signals` at `now`; they are of a pod that serves since `ready_since`.
#[must_use]
pub fn read(signals: &Signals, ready_since: Timestamp, now: Timestamp) -> Reading {
    let interval = interval_of(signals);
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
    // A slow scrape leaves no sample in the usual window; a fresh engine always has one in this.
    let limit = fresh_limit(interval);
    let window = if limit > PEAK_WINDOW { limit } else { PEAK_WINDOW };
    let peak = |signal| {
        let recent = latest(signals.get(signal), window, now);
        recent.iter().map(|sample| sample.value).fold(0.0, f64::max)
    };
    Reading { freshness, newest, interval, kv: peak(Signal::KvUsage), queue: whole(peak(Signal::Waiting)) }
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

fn grade(newest: Option<Sample>, interval: Seconds, now: Timestamp) -> Freshness {
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

/// The scrape interval observed: the median gap between the sample times of the longer of the two series V1 needs.
/// Zero while there are fewer than two samples.
#[must_use]
pub fn interval_of(signals: &Signals) -> Seconds {
    let longest = NEEDED.map(|signal| signals.get(signal)).into_iter().max_by_key(|series| series.len());
    median_gap(longest.unwrap_or_default())
}

/// The median gap between the times of `series`: one missed scrape does not change it.
#[must_use]
pub fn median_gap(series: &[Sample]) -> Seconds {
    let gaps = series.windows(2).map(|pair| pair[1].at.duration_since(pair[0].at));
    // What more than half of them are is the median, and scrapes are mostly that regular.
    let Some(usual) = gaps.clone().next_back() else { return Seconds::ZERO };
    let among = gaps.len();
    let usual = if 2 * gaps.clone().filter(|gap| *gap == usual).count() > among {
        usual
    } else {
        *gaps.collect::<Vec<_>>().select_nth_unstable(among / 2).1
    };
    Seconds::of(usual)
}
