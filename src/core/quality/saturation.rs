//! Whether a fleet is saturated: the evidence of the safety net above every analyzer. It uses waiting requests, the KV cache and the
//! scheduler's queue, and nothing that was learned.

use jiff::Timestamp;

use super::freshness::{MAX_SCRAPE_DELAY, PEAK_WINDOW, fresh_limit, judged_engines};
use crate::snapshot::{Phase, Pod, Sample, Series, Signal, Signals};
use crate::units::Seconds;

/// Every scrape of this window must show saturation: one minute, four scrapes of the usual 15 s.
pub(crate) const SATURATED_WINDOW: Seconds = PEAK_WINDOW;

/// Fewer scrapes do not make a window.
const MIN_SCRAPES: usize = 2;

/// An engine with this many waiting requests is saturated, whatever its KV usage. One or two wait for the next step of any busy
/// engine; V1 and the endpoint picker use five as their queue threshold too.
const MIN_WAITING: f64 = 5.0;

/// With the KV cache this full, a single waiting request waits for blocks, and others are about to be preempted.
const MIN_KV_USAGE: f64 = 0.95;

/// Pods without evidence for each saturated one: a fleet of which more than two thirds are unknown is not called saturated.
const MAX_UNKNOWN_PER_SATURATED: u32 = 2;

/// How many ready pods of a fleet are saturated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SaturatedPods {
    /// Saturated in every scrape of the window.
    pub(crate) saturated: u32,
    /// Ready, measured or not.
    pub(crate) ready: u32,
    /// None of them shows waiting requests: they run as many as they can.
    pub(crate) inferred: bool,
}

/// What the scrapes of the window say about an engine, a pod or a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pressure {
    /// Saturated in every scrape.
    Saturated,
    /// Some scrape shows room.
    Calm,
    /// Nothing is known: no samples, too old, too few, or not a whole window yet.
    Unknown,
}

/// Whether the fleet of `pods` is saturated: every ready pod of which anything is known is, and these are at least a third. `ready` is
/// the number of ready pods that the scale targets count.
///
/// A pod without evidence (a dead exporter, a renamed series, its first minute) neither makes a fleet saturated nor prevents it: it
/// may have room, but what is known of the others stands for it, as for everything that may raise a number. One scrape of one
/// pod with room prevents it, because requests can go there.
///
/// `without_queue` gives, for a pod whose queue is distrusted, whether the rest of its signals says that it is full (`None`: unknown).
pub(crate) fn saturated_pods<'a>(
    pods: impl IntoIterator<Item = &'a Pod>,
    ready: u32,
    without_queue: impl Fn(&Pod) -> Option<Option<bool>>,
    now: Timestamp,
) -> Option<SaturatedPods> {
    let (mut saturated, mut listed, mut inferred) = (0_u32, 0_u32, true);
    for pod in pods.into_iter().filter(|pod| pod.phase == Phase::Ready) {
        listed = listed.saturating_add(1);
        let without_queue = without_queue(pod);
        let pressure = match without_queue {
            None => pod_pressure(pod, now),
            Some(Some(true)) => Pressure::Saturated,
            Some(Some(false)) => Pressure::Calm,
            Some(None) => Pressure::Unknown,
        };
        match pressure {
            Pressure::Calm => return None,
            Pressure::Saturated => {
                saturated += 1;
                inferred &= without_queue.is_some();
            }
            Pressure::Unknown => {}
        }
    }
    let ready = ready.max(listed);
    let are_enough_known = ready - saturated <= MAX_UNKNOWN_PER_SATURATED * saturated;
    (saturated > 0 && are_enough_known).then_some(SaturatedPods { saturated, ready, inferred })
}

/// The scheduler has held requests in every scrape of the window.
pub(crate) fn is_queue_never_empty(scheduler: &Signals, now: Timestamp) -> bool {
    let pressure_of = |_, queue: Sample| if queue.value > 0.0 { Pressure::Saturated } else { Pressure::Calm };
    window_pressure(scheduler, Signal::SchedulerQueueSize, now, pressure_of) == Pressure::Saturated
}

/// A pod is saturated if each of its engines is, as far as anything is known of it.
fn pod_pressure(pod: &Pod, now: Timestamp) -> Pressure {
    let mut found = Pressure::Unknown;
    for (_, signals) in judged_engines(pod) {
        match window_pressure(signals, Signal::Waiting, now, engine_pressure) {
            Pressure::Calm => return Pressure::Calm,
            Pressure::Saturated => found = Pressure::Saturated,
            Pressure::Unknown => {}
        }
    }
    found
}

/// The pressure on an engine in one scrape, by its waiting requests and the KV usage at that time.
fn engine_pressure(kv: Series<'_>, waiting: Sample) -> Pressure {
    if waiting.value >= MIN_WAITING {
        return Pressure::Saturated;
    }
    if waiting.value <= 0.0 {
        return Pressure::Calm;
    }
    match kv.iter().rev().filter(is_valid).find(|usage| usage.at <= waiting.at) {
        Some(usage) if usage.value >= MIN_KV_USAGE => Pressure::Saturated,
        Some(_) => Pressure::Calm,
        None => Pressure::Unknown,
    }
}

/// The pressure over the window, where `scrape_pressure` gives that of one scrape of `signal` and the series of KV usage. The newest
/// scrape is read first: of a fleet that is not saturated nothing else is read.
fn window_pressure<'s>(
    signals: &'s Signals,
    signal: Signal,
    now: Timestamp,
    scrape_pressure: impl Fn(Series<'s>, Sample) -> Pressure,
) -> Pressure {
    let Some(newest) = signals.newest(signal) else { return Pressure::Unknown };
    let interval = signals.interval();
    let age = |at| Seconds::between(at, now);
    let fresh = fresh_limit(interval);
    if age(newest.at) > fresh {
        return Pressure::Unknown;
    }
    // A slow scrape leaves fewer than two samples in a minute.
    let window = SATURATED_WINDOW.max(fresh);
    let kv = signals.get(Signal::KvUsage);
    let (mut scrapes, mut oldest, mut is_known) = (0, Seconds::ZERO, true);
    let is_in_window = |sample: &Sample| age(sample.at) <= window;
    for sample in signals.get(signal).iter().rev().take_while(is_in_window).filter(is_valid) {
        match scrape_pressure(kv, sample) {
            Pressure::Calm => return Pressure::Calm,
            Pressure::Saturated => {}
            Pressure::Unknown => is_known = false,
        }
        scrapes += 1;
        oldest = age(sample.at);
    }
    // To within one scrape of the far end of the window.
    let is_covered = oldest.get() >= window.get() - interval.get() - MAX_SCRAPE_DELAY.get();
    if is_known && is_covered && scrapes >= MIN_SCRAPES { Pressure::Saturated } else { Pressure::Unknown }
}

fn is_valid(sample: &Sample) -> bool {
    sample.value.is_finite() && sample.value >= 0.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::SignedDuration;

    const NOW: Timestamp = Timestamp::constant(1_800_000_000, 0);

    /// Samples 15 s apart, the newest 2 s old, newest first.
    fn series(signals: &mut Signals, signal: Signal, values: &[f64]) {
        let at = |back: usize| NOW - SignedDuration::from_secs(2 + 15 * i64::try_from(back).unwrap());
        signals.add(
            signal,
            values.iter().enumerate().map(|(back, value)| Sample { at: at(back), value: *value }),
        );
    }

    fn pod(engines: &[(&[f64], &[f64])]) -> Pod {
        let engine = |(rank, (kv, waiting)): (usize, &(&[f64], &[f64]))| {
            let mut signals = Signals::default();
            series(&mut signals, Signal::KvUsage, kv);
            series(&mut signals, Signal::Waiting, waiting);
            (smol_str::ToSmolStr::to_smolstr(&rank), signals)
        };
        let engines = engines.iter().enumerate().map(engine).collect();
        let created = NOW - SignedDuration::from_secs(900);
        Pod { name: "p".into(), phase: Phase::Ready, created, ready_since: Some(created), engines }
    }

    fn alone(kv: &[f64], waiting: &[f64]) -> bool {
        saturated_pods(&[pod(&[(kv, waiting)])], 1, |_| None, NOW).is_some()
    }

    const QUEUED: ([f64; 4], [f64; 4]) = ([0.5; 4], [5.0; 4]);
    const FULL: ([f64; 4], [f64; 4]) = ([0.95; 4], [1.0; 4]);

    #[test]
    fn a_queue_of_five_or_a_full_cache_with_one_waiting_is_saturated_for_a_minute_only() {
        assert!(alone(&QUEUED.0, &QUEUED.1) && alone(&FULL.0, &FULL.1));
        assert!(alone(&[0.5, 0.99, 0.5, 0.96], &[5.0, 1.0, 7.0, 4.0]), "either, scrape by scrape");
        assert!(
            !alone(&[0.5; 4], &[4.9; 4]) && !alone(&[0.949; 4], &[1.0; 4]) && !alone(&[1.0; 4], &[0.0; 4])
        );
        for room in 0..4 {
            let mut waiting = QUEUED.1;
            waiting[room] = 4.0;
            assert!(!alone(&QUEUED.0, &waiting), "room in scrape {room}");
        }
        assert!(
            alone(&QUEUED.0, &[5.0, 5.0, 5.0, 5.0, 0.0]),
            "what was more than a minute ago does not count"
        );
    }

    #[test]
    fn one_sample_or_half_a_minute_is_no_minute() {
        assert!(!alone(&[], &[9.0]) && !alone(&[], &[9.0, 9.0]) && alone(&[], &[9.0, 9.0, 9.0, 9.0]));
        let late = |newest: i64| {
            let mut signals = Signals::default();
            let at = |back: i64| NOW - SignedDuration::from_secs(newest + 15 * back);
            signals.add(Signal::Waiting, (0..6).map(|back| Sample { at: at(back), value: 9.0 }));
            window_pressure(&signals, Signal::Waiting, NOW, engine_pressure)
        };
        assert_eq!([late(30), late(31)], [Pressure::Saturated, Pressure::Unknown]);
    }

    #[test]
    fn a_scrape_once_a_minute_is_enough_with_two_of_them() {
        let mut signals = Signals::default();
        let at = |back: i64| NOW - SignedDuration::from_secs(10 + 60 * back);
        signals.add(Signal::SchedulerQueueSize, (0..2).map(|back| Sample { at: at(back), value: 1.0 }));
        assert!(is_queue_never_empty(&signals, NOW));
        signals.add(
            Signal::SchedulerQueueSize,
            [Sample { at: at(0) + SignedDuration::from_secs(5), value: 0.0 }],
        );
        assert!(!is_queue_never_empty(&signals, NOW));
    }

    #[test]
    fn an_unmeasured_pod_neither_saturates_a_fleet_nor_hides_its_saturation() {
        let (queued, unknown, calm) =
            (pod(&[(&QUEUED.0, &QUEUED.1)]), pod(&[(&[0.99; 4], &[])]), pod(&[(&[], &[0.0])]));
        let fleet = |pods: &[&Pod], ready| saturated_pods(pods.iter().copied(), ready, |_| None, NOW);
        assert_eq!(
            fleet(&[&queued, &unknown], 2),
            Some(SaturatedPods { saturated: 1, ready: 2, inferred: false })
        );
        assert!(
            fleet(&[&queued, &unknown, &unknown], 3).is_some(),
            "those that are measured stand for the others"
        );
        assert_eq!(
            fleet(&[&queued, &unknown, &unknown, &unknown], 4),
            None,
            "more than two thirds say nothing"
        );
        assert_eq!(fleet(&[&queued], 4), None, "pods that are counted and not listed are unknown too");
        assert_eq!(fleet(&[&unknown], 1), None);
        assert_eq!(fleet(&[&queued, &calm], 2), None, "one scrape with room is room");
        assert_eq!(fleet(&[], 0), None);
        let starting = Pod { phase: Phase::Starting, ..calm };
        assert!(fleet(&[&queued, &starting], 1).is_some(), "only Ready pods count");
    }

    #[test]
    fn each_engine_of_a_pod_is_saturated_or_the_pod_is_not() {
        let engines = |second: (&[f64], &[f64])| pod(&[(&QUEUED.0, &QUEUED.1), second]);
        assert!(saturated_pods(&[engines((&QUEUED.0, &QUEUED.1))], 1, |_| None, NOW).is_some());
        assert!(saturated_pods(&[engines((&[0.2; 4], &[0.0; 4]))], 1, |_| None, NOW).is_none());
    }

    #[test]
    fn what_is_no_number_is_no_evidence() {
        assert!(
            !alone(&[f64::NAN; 4], &[1.0; 4]) && !alone(&[], &[f64::INFINITY; 4]) && !alone(&[], &[-9.0; 4])
        );
        assert!(alone(&[f64::NAN; 4], &[5.0; 4]));
    }
}
