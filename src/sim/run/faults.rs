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

    /// Changes `values` of `signals`, scraped of `pod` at `now_s`. NaN is no sample.
    pub(super) fn apply_to_pod(
        &mut self,
        pod: ScrapedPod,
        now_s: f64,
        signals: &[Signal],
        values: &mut [f64],
    ) {
        for active in self.faults.iter_mut().filter(|active| active.fault.share.includes(pod.serial)) {
            active.apply(pod, now_s, signals, values);
        }
    }

    /// Changes `values` of `signals`, scraped of the scheduler at `now_s`.
    pub(super) fn apply_to_scheduler(&mut self, now_s: f64, signals: &[Signal], values: &mut [f64]) {
        let is_of_scheduler = |fault: &Fault| {
            matches!(fault.signals, FaultSignals::Of(_)) && fault.share == FaultShare::AllPods
        };
        for active in self.faults.iter_mut().filter(|active| is_of_scheduler(&active.fault)) {
            active.apply(SCHEDULER, now_s, signals, values);
        }
    }
}

impl ActiveFault {
    fn apply(&mut self, pod: ScrapedPod, now_s: f64, signals: &[Signal], values: &mut [f64]) {
        let Self { fault, histories, rolled } = self;
        let from_s = fault.from.as_secs_f64();
        let history = histories.entry(pod.serial).or_insert_with(|| {
            let mut onset_s = from_s;
            if fault.kind == FaultKind::Renamed && pod.created_s < from_s {
                onset_s += ROLLOUT_INTERVAL_S * f64::from(*rolled);
                *rolled += 1;
            }
            let none = vec![None; signals.len()];
            SignalHistory { onset_s, last: none.clone(), frozen: none, offset: vec![0.0; signals.len()] }
        });
        let is_active = history.onset_s <= now_s && now_s < fault.until.as_secs_f64();
        let kind = is_active.then_some(fault.kind);
        for (index, (signal, value)) in signals.iter().zip(values).enumerate() {
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
            Some(FaultKind::Halved | FaultKind::Doubled) | None => {
                let factor = active.and_then(FaultKind::factor).unwrap_or(1.0);
                if signal.is_counter() {
                    // A counter never falls back: what was added or left out stays so after the fault.
                    self.offset[index] += (factor - 1.0) * (value - last.unwrap_or(0.0));
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

    const SIGNALS: [Signal; 3] = [Signal::Running, Signal::KvUsage, Signal::PromptTokens];

    fn fault(kind: FaultKind, signals: FaultSignals, share: FaultShare) -> Fault {
        Fault { kind, signals, share, from: Duration::from_secs(100), until: Duration::from_secs(200) }
    }

    /// What a pod shows every 50 s. It runs 8 requests and one more each time, uses 0.7 of its cache, and computes 10 prompt
    /// tokens a second.
    fn scrapes(fault: Fault, serial: u64) -> Vec<[f64; 3]> {
        let mut faults = ActiveFaults::new(&[fault]);
        let scrape = |step: u32| {
            let now_s = 50.0 * f64::from(step);
            let mut values = [8.0 + f64::from(step), 0.7, 10.0 * now_s];
            faults.apply_to_pod(ScrapedPod { serial, created_s: -1.0 }, now_s, &SIGNALS, &mut values);
            values
        };
        (0..6).map(scrape).collect()
    }

    fn column(rows: &[[f64; 3]], index: usize) -> Vec<f64> {
        rows.iter().map(|row| row[index]).collect()
    }

    #[test]
    fn a_signal_that_is_gone_has_no_samples_until_it_is_back() {
        let running = FaultSignals::Of(Signal::Running);
        let rows = scrapes(fault(FaultKind::Gone, running, FaultShare::AllPods), 1);
        assert!(rows[2][0].is_nan() && rows[3][0].is_nan());
        assert_eq!(column(&[rows[1], rows[4], rows[5]], 0), [9.0, 12.0, 13.0]);
        assert!(rows.iter().all(|row| !row[1].is_nan() && !row[2].is_nan()), "the others stay");
    }

    #[test]
    fn a_frozen_signal_repeats_what_it_showed_before_and_then_shows_the_truth() {
        let rows = scrapes(fault(FaultKind::Frozen, FaultSignals::All, FaultShare::AllPods), 1);
        assert_eq!(column(&rows, 0), [8.0, 9.0, 9.0, 9.0, 12.0, 13.0]);
        assert_eq!(column(&rows, 2), [0.0, 500.0, 500.0, 500.0, 2000.0, 2500.0]);
    }

    #[test]
    fn a_counter_grows_by_half_or_twice_as_fast_and_never_falls() {
        let halved = scrapes(fault(FaultKind::Halved, FaultSignals::Counters, FaultShare::AllPods), 1);
        assert_eq!(column(&halved, 2), [0.0, 500.0, 750.0, 1000.0, 1500.0, 2000.0]);
        assert_eq!(column(&halved, 1), [0.7; 6], "a gauge is no counter");
        let doubled = scrapes(fault(FaultKind::Doubled, FaultSignals::All, FaultShare::AllPods), 1);
        assert_eq!(column(&doubled, 2), [0.0, 500.0, 1500.0, 2500.0, 3000.0, 3500.0]);
        assert_eq!(column(&doubled, 0), [8.0, 9.0, 20.0, 22.0, 12.0, 13.0]);
        assert_eq!(column(&doubled, 1), [0.7, 0.7, 1.0, 1.0, 0.7, 0.7], "a share is at most 1");
    }

    #[test]
    fn a_share_of_pods_is_the_first_every_second_or_all() {
        let hit =
            |share, serial| scrapes(fault(FaultKind::Gone, FaultSignals::All, share), serial)[2][0].is_nan();
        assert_eq!([1, 2, 3].map(|serial| hit(FaultShare::OnePod, serial)), [true, false, false]);
        assert_eq!([1, 2, 3].map(|serial| hit(FaultShare::HalfOfPods, serial)), [true, false, true]);
        assert_eq!([1, 2, 3].map(|serial| hit(FaultShare::AllPods, serial)), [true, true, true]);
    }

    #[test]
    fn a_rolling_update_renames_pod_by_pod_and_those_that_come_later_at_once() {
        let update = fault(FaultKind::Renamed, FaultSignals::All, FaultShare::AllPods);
        let mut faults = ActiveFaults::new(&[update]);
        let mut gone = |pod, now_s| {
            let mut values = [1.0; 3];
            faults.apply_to_pod(pod, now_s, &SIGNALS, &mut values);
            values[0].is_nan()
        };
        let [first, second, new] =
            [(1, -1.0), (2, -1.0), (3, 110.0)].map(|(serial, created_s)| ScrapedPod { serial, created_s });
        assert!(!gone(first, 90.0) && !gone(second, 90.0));
        assert!(gone(first, 120.0) && !gone(second, 120.0) && gone(new, 120.0));
        assert!(gone(first, 130.0) && gone(second, 130.0));
        assert!(!gone(first, 200.0) && !gone(second, 200.0) && !gone(new, 200.0));
    }

    #[test]
    fn the_scheduler_is_affected_only_where_it_is_named_and_for_all() {
        let is_affected = |signals, share| {
            let mut values = [5.0];
            let mut faults = ActiveFaults::new(&[fault(FaultKind::Doubled, signals, share)]);
            faults.apply_to_scheduler(150.0, &[Signal::SchedulerQueueSize], &mut values);
            values[0] > 5.0
        };
        let own = FaultSignals::Of(Signal::SchedulerQueueSize);
        assert!(is_affected(own, FaultShare::AllPods));
        assert!(
            !is_affected(own, FaultShare::OnePod) && !is_affected(FaultSignals::All, FaultShare::AllPods)
        );
    }
}
