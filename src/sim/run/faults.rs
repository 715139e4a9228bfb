//! Applies the faults of a scenario to scraped values.

use std::collections::BTreeMap;

use wva_core::snapshot::Signal;

use crate::fault::{Fault, FaultKind, FaultShare, FaultSignals};

/// Seconds between two pods of a rolling update.
const ROLLOUT_INTERVAL_S: f64 = 30.0;
/// The scheduler, among the serials of pods, which begin with 1.
const SCHEDULER: ScrapedPod = ScrapedPod { serial: 0, created_s: 0.0 };

/// The source of scraped values.
#[derive(Debug, Clone, Copy)]
pub(super) struct ScrapedPod {
    pub(super) serial: u64,
    pub(super) created_s: f64,
}

/// The faults of a run.
#[derive(Debug)]
pub(super) struct ActiveFaults {
    faults: Vec<ActiveFault>,
}

#[derive(Debug)]
struct ActiveFault {
    fault: Fault,
    /// By the pod's serial.
    histories: BTreeMap<u64, SignalHistory>,
    /// Pods that the rolling update has reached, or will reach.
    rolled: u32,
}

/// What was scraped of one pod, by the index of the signal.
#[derive(Debug)]
struct SignalHistory {
    /// When the fault reaches the pod, seconds.
    onset_s: f64,
    /// Last true values.
    last: Vec<Option<f64>>,
    /// What a frozen signal shows.
    frozen: Vec<Option<f64>>,
    /// By how much a counter is too high, or too low.
    offset: Vec<f64>,
}

impl ActiveFaults {
    pub(super) fn new(faults: &[Fault]) -> Self {
        let active = |fault: &Fault| ActiveFault { fault: *fault, histories: BTreeMap::new(), rolled: 0 };
        Self { faults: faults.iter().map(active).collect() }
    }

    /// Changes `values`, scraped of `pod` at `now_s`. NaN is no sample.
    pub(super) fn apply_to_pod(&mut self, pod: ScrapedPod, now_s: f64, values: &mut [(Signal, f64)]) {
        for active in self.faults.iter_mut().filter(|active| active.fault.share.includes(pod.serial)) {
            active.apply(pod, now_s, values);
        }
    }

    /// Changes `values`, scraped of the scheduler at `now_s`.
    pub(super) fn apply_to_scheduler(&mut self, now_s: f64, values: &mut [(Signal, f64)]) {
        let is_of_scheduler =
            |fault: &Fault| matches!(fault.signals, FaultSignals::Of(_)) && fault.share == FaultShare::All;
        for active in self.faults.iter_mut().filter(|active| is_of_scheduler(&active.fault)) {
            active.apply(SCHEDULER, now_s, values);
        }
    }
}

impl ActiveFault {
    fn apply(&mut self, pod: ScrapedPod, now_s: f64, values: &mut [(Signal, f64)]) {
        let Self { fault, histories, rolled } = self;
        let from_s = fault.from.as_secs_f64();
        let history = histories.entry(pod.serial).or_insert_with(|| {
            let mut onset_s = from_s;
            if fault.kind == FaultKind::Renamed && pod.created_s < from_s {
                onset_s += ROLLOUT_INTERVAL_S * f64::from(*rolled);
                *rolled += 1;
            }
            let none = vec![None; values.len()];
            SignalHistory { onset_s, last: none.clone(), frozen: none, offset: vec![0.0; values.len()] }
        });
        let is_active = history.onset_s <= now_s && now_s < fault.until.as_secs_f64();
        let kind = is_active.then_some(fault.kind);
        for (index, (signal, value)) in values.iter_mut().enumerate() {
            if fault.signals.includes(*signal) && !value.is_nan() {
                *value = history.reported(kind, *signal, index, *value);
            }
        }
    }
}

impl SignalHistory {
    /// What `signal` shows under the active fault, if any, while its true value is `value`.
    fn reported(&mut self, active: Option<FaultKind>, signal: Signal, index: usize, value: f64) -> f64 {
        let last = self.last[index].replace(value);
        match active {
            Some(FaultKind::Gone | FaultKind::Renamed) => f64::NAN,
            Some(FaultKind::Frozen) => *self.frozen[index].get_or_insert(last.unwrap_or(value)),
            Some(FaultKind::Halved | FaultKind::Doubled | FaultKind::Claimed) | None => {
                let factor = active.and_then(FaultKind::factor).unwrap_or(1.0);
                if signal.is_counter() {
                    // A counter never falls back: what was added or left out stays so after the fault.
                    self.offset[index] += (factor - 1.0) * (value - last.unwrap_or(0.0));
                    self.offset[index] +=
                        if active == Some(FaultKind::Claimed) { FaultKind::CLAIM } else { 0.0 };
                    value + self.offset[index]
                } else if signal == Signal::KvUsage {
                    (value * factor).min(1.0)
                } else {
                    value * factor
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn fault(kind: FaultKind, signals: FaultSignals, share: FaultShare) -> Fault {
        Fault { kind, signals, share, from: Duration::from_secs(100), until: Duration::from_secs(200) }
    }

    /// What the first pod shows every 50 s of running requests, cache usage and prompt tokens. It runs 8 requests and one more
    /// each time, uses 0.7 of its cache, and computes 10 prompt tokens a second.
    fn scrapes(kind: FaultKind, signals: FaultSignals) -> [Vec<f64>; 3] {
        let mut faults = ActiveFaults::new(&[fault(kind, signals, FaultShare::All)]);
        let mut shown = [const { Vec::new() }; 3];
        for step in 0..6_u8 {
            let now_s = 50.0 * f64::from(step);
            let mut values = [
                (Signal::Running, 8.0 + f64::from(step)),
                (Signal::KvUsage, 0.7),
                (Signal::PromptTokens, 10.0 * now_s),
            ];
            faults.apply_to_pod(ScrapedPod { serial: 1, created_s: -1.0 }, now_s, &mut values);
            for (row, (_, value)) in shown.iter_mut().zip(values) {
                row.push(value);
            }
        }
        shown
    }

    #[test]
    fn a_signal_that_is_gone_has_no_samples_until_it_is_back() {
        let [running, usage, tokens] = scrapes(FaultKind::Gone, FaultSignals::Of(Signal::Running));
        assert!(running[2].is_nan() && running[3].is_nan());
        assert_eq!([&running[1..2], &running[4..]].concat(), [9.0, 12.0, 13.0]);
        assert!(usage.iter().chain(&tokens).all(|value| !value.is_nan()), "the others stay");
    }

    #[test]
    fn a_frozen_signal_repeats_what_it_showed_before_and_then_shows_the_truth() {
        let [running, _, tokens] = scrapes(FaultKind::Frozen, FaultSignals::All);
        assert_eq!(running, [8.0, 9.0, 9.0, 9.0, 12.0, 13.0]);
        assert_eq!(tokens, [0.0, 500.0, 500.0, 500.0, 2000.0, 2500.0]);
    }

    #[test]
    fn a_counter_grows_by_half_or_twice_as_fast_and_never_falls() {
        let [_, usage, tokens] = scrapes(FaultKind::Halved, FaultSignals::Counters);
        assert_eq!(tokens, [0.0, 500.0, 750.0, 1000.0, 1500.0, 2000.0]);
        assert_eq!(usage, [0.7; 6], "a gauge is no counter");
        let [running, usage, tokens] = scrapes(FaultKind::Doubled, FaultSignals::All);
        assert_eq!(tokens, [0.0, 500.0, 1500.0, 2500.0, 3000.0, 3500.0]);
        assert_eq!(running, [8.0, 9.0, 20.0, 22.0, 12.0, 13.0]);
        assert_eq!(usage, [0.7, 0.7, 1.0, 1.0, 0.7, 0.7], "a share is at most 1");
    }

    #[test]
    fn a_share_of_pods_is_the_first_every_second_or_all() {
        for (share, expected) in [
            (FaultShare::One, [true, false, false]),
            (FaultShare::Half, [true, false, true]),
            (FaultShare::All, [true, true, true]),
        ] {
            assert_eq!([1, 2, 3].map(|serial| share.includes(serial)), expected, "{share:?}");
        }
        let mut faults = ActiveFaults::new(&[fault(FaultKind::Gone, FaultSignals::All, FaultShare::One)]);
        let mut values = [(Signal::Running, 1.0)];
        faults.apply_to_pod(ScrapedPod { serial: 2, created_s: -1.0 }, 150.0, &mut values);
        assert!(!values[0].1.is_nan(), "another pod");
    }

    #[test]
    fn a_rolling_update_renames_pod_by_pod_and_those_that_come_later_at_once() {
        let update = fault(FaultKind::Renamed, FaultSignals::All, FaultShare::All);
        let mut faults = ActiveFaults::new(&[update]);
        let mut gone = |now_s| {
            [(1, -1.0), (2, -1.0), (3, 110.0)].map(|(serial, created_s)| {
                let mut values = [(Signal::Running, 1.0)];
                faults.apply_to_pod(ScrapedPod { serial, created_s }, now_s, &mut values);
                values[0].1.is_nan()
            })
        };
        assert_eq!(gone(90.0), [false, false, false]);
        assert_eq!(gone(120.0), [true, false, true]);
        assert_eq!(gone(130.0), [true, true, true]);
        assert_eq!(gone(200.0), [false, false, false]);
    }

    #[test]
    fn the_scheduler_is_affected_only_where_it_is_named_and_for_all() {
        let own = FaultSignals::Of(Signal::SchedulerQueueSize);
        for (signals, share, is_affected) in [
            (own, FaultShare::All, true),
            (own, FaultShare::One, false),
            (FaultSignals::All, FaultShare::All, false),
        ] {
            let mut values = [(Signal::SchedulerQueueSize, 5.0)];
            let mut faults = ActiveFaults::new(&[fault(FaultKind::Doubled, signals, share)]);
            faults.apply_to_scheduler(150.0, &mut values);
            assert_eq!(values[0].1 > 5.0, is_affected, "{signals:?} {share:?}");
        }
    }
}
