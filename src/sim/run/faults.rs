//! Bends what is seen as the faults of a scenario say.

use std::collections::BTreeMap;

use crate::fault::{Fault, FaultKind, FaultShare, FaultSignals};
use wva_core::snapshot::Signal;

/// Seconds between two pods of a rolling update.
const ROLL_S: f64 = 30.0;
/// The scheduler's place among the pods, whose serials begin with 1.
const SCHEDULER: u64 = 0;

/// The faults of a run, with what was last told truly of whom.
#[derive(Debug)]
pub(super) struct Faults {
    faults: Vec<Bend>,
}

/// One fault.
#[derive(Debug)]
struct Bend {
    fault: Fault,
    /// By the pod's serial.
    seen: BTreeMap<u64, Seen>,
    /// Pods of the fleet that a rolling update has reached, or will.
    rolled: u32,
}

/// Of one pod, by the places of its signals.
#[derive(Debug)]
struct Seen {
    /// When the fault reaches it.
    onset_s: f64,
    /// Last true values.
    last: Vec<Option<f64>>,
    /// What a frozen signal shows.
    held: Vec<Option<f64>>,
    /// What a counter has been told too much, or too little.
    offset: Vec<f64>,
}

impl Faults {
    pub(super) fn new(faults: &[Fault]) -> Self {
        let bend = |fault: &Fault| Bend { fault: *fault, seen: BTreeMap::new(), rolled: 0 };
        Self { faults: faults.iter().map(bend).collect() }
    }

    /// Bends `values` of `signals`, seen at `now_s` of the pod `serial` that was made at `created_s`. NaN is no sample.
    pub(super) fn of_pod(
        &mut self,
        (serial, created_s): (u64, f64),
        now_s: f64,
        signals: &[Signal],
        values: &mut [f64],
    ) {
        for bend in self.faults.iter_mut().filter(|bend| bend.fault.share.has(serial)) {
            bend.apply((serial, created_s), now_s, signals, values);
        }
    }

    /// The same of the scheduler.
    pub(super) fn of_scheduler(&mut self, now_s: f64, signals: &[Signal], values: &mut [f64]) {
        let own = |fault: &Fault| {
            matches!(fault.signals, FaultSignals::Of(_)) && fault.share == FaultShare::AllPods
        };
        for bend in self.faults.iter_mut().filter(|bend| own(&bend.fault)) {
            bend.apply((SCHEDULER, 0.0), now_s, signals, values);
        }
    }
}

impl Bend {
    fn apply(&mut self, (serial, created_s): (u64, f64), now_s: f64, signals: &[Signal], values: &mut [f64]) {
        let Self { fault, seen, rolled } = self;
        let (from_s, until_s) = (fault.from.as_secs_f64(), fault.until.as_secs_f64());
        let seen = seen.entry(serial).or_insert_with(|| {
            let mut onset_s = from_s;
            if fault.kind == FaultKind::Renamed && created_s < from_s {
                onset_s += ROLL_S * f64::from(*rolled);
                *rolled += 1;
            }
            let none = vec![None; signals.len()];
            Seen { onset_s, last: none.clone(), held: none, offset: vec![0.0; signals.len()] }
        });
        let active = seen.onset_s <= now_s && now_s < until_s;
        for (place, (signal, value)) in signals.iter().zip(values).enumerate() {
            if fault.signals.has(*signal) && !value.is_nan() {
                *value = seen.bend((fault.kind, active), *signal, place, *value);
            }
        }
    }
}

impl Seen {
    /// What is seen of `signal` while it truly is `value`.
    fn bend(&mut self, (kind, active): (FaultKind, bool), signal: Signal, place: usize, value: f64) -> f64 {
        let last = self.last[place].replace(value);
        match kind {
            FaultKind::Gone | FaultKind::Renamed if active => f64::NAN,
            FaultKind::Frozen if active => *self.held[place].get_or_insert(last.unwrap_or(value)),
            FaultKind::Gone | FaultKind::Renamed | FaultKind::Frozen => value,
            FaultKind::Halved | FaultKind::Doubled => {
                let factor = kind.factor().filter(|_| active).unwrap_or(1.0);
                if signal.is_counter() {
                    self.offset[place] += (factor - 1.0) * (value - last.unwrap_or(0.0));
                    value + self.offset[place]
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

    /// What is seen of a pod every 50 s: it runs 8 requests, uses 0.7 of its cache, and computes 10 prompt tokens a second.
    fn seen(fault: Fault, serial: u64) -> Vec<[f64; 3]> {
        let mut faults = Faults::new(&[fault]);
        let look = |step: u32| {
            let now_s = 50.0 * f64::from(step);
            let mut values = [8.0 + f64::from(step), 0.7, 10.0 * now_s];
            faults.of_pod((serial, -1.0), now_s, &SIGNALS, &mut values);
            values
        };
        (0..6).map(look).collect()
    }

    fn of(rows: &[[f64; 3]], place: usize) -> Vec<f64> {
        rows.iter().map(|row| row[place]).collect()
    }

    #[test]
    fn a_signal_that_is_gone_has_no_samples_until_it_is_back() {
        let one = FaultSignals::Of(Signal::Running);
        let rows = seen(fault(FaultKind::Gone, one, FaultShare::AllPods), 1);
        assert!(rows[2][0].is_nan() && rows[3][0].is_nan());
        assert_eq!(of(&[rows[1], rows[4], rows[5]], 0), [9.0, 12.0, 13.0]);
        assert!(rows.iter().all(|row| !row[1].is_nan() && !row[2].is_nan()), "the others stay");
    }

    #[test]
    fn a_frozen_signal_repeats_what_it_showed_before_and_then_shows_the_truth() {
        let rows = seen(fault(FaultKind::Frozen, FaultSignals::All, FaultShare::AllPods), 1);
        assert_eq!(of(&rows, 0), [8.0, 9.0, 9.0, 9.0, 12.0, 13.0]);
        assert_eq!(of(&rows, 2), [0.0, 500.0, 500.0, 500.0, 2000.0, 2500.0]);
    }

    #[test]
    fn a_counter_grows_by_half_or_twice_as_fast_and_never_falls() {
        let halved = seen(fault(FaultKind::Halved, FaultSignals::Counters, FaultShare::AllPods), 1);
        assert_eq!(of(&halved, 2), [0.0, 500.0, 750.0, 1000.0, 1500.0, 2000.0]);
        assert_eq!(of(&halved, 1), [0.7; 6], "a gauge is no counter");
        let doubled = seen(fault(FaultKind::Doubled, FaultSignals::All, FaultShare::AllPods), 1);
        assert_eq!(of(&doubled, 2), [0.0, 500.0, 1500.0, 2500.0, 3000.0, 3500.0]);
        assert_eq!(of(&doubled, 0), [8.0, 9.0, 20.0, 22.0, 12.0, 13.0]);
        assert_eq!(of(&doubled, 1), [0.7, 0.7, 1.0, 1.0, 0.7, 0.7], "a share is at most 1");
    }

    #[test]
    fn a_share_of_pods_is_the_first_every_second_or_all() {
        let hit =
            |share, serial| seen(fault(FaultKind::Gone, FaultSignals::All, share), serial)[2][0].is_nan();
        assert_eq!([1, 2, 3].map(|serial| hit(FaultShare::OnePod, serial)), [true, false, false]);
        assert_eq!([1, 2, 3].map(|serial| hit(FaultShare::HalfOfPods, serial)), [true, false, true]);
        assert_eq!([1, 2, 3].map(|serial| hit(FaultShare::AllPods, serial)), [true, true, true]);
    }

    #[test]
    fn a_rolling_update_renames_pod_by_pod_and_those_that_come_later_at_once() {
        let update = fault(FaultKind::Renamed, FaultSignals::All, FaultShare::AllPods);
        let mut faults = Faults::new(&[update]);
        let mut gone = |pod, now_s| {
            let mut values = [1.0; 3];
            faults.of_pod(pod, now_s, &SIGNALS, &mut values);
            values[0].is_nan()
        };
        let (first, second, new) = ((1, -1.0), (2, -1.0), (3, 110.0));
        assert!(!gone(first, 90.0) && !gone(second, 90.0));
        assert!(gone(first, 120.0) && !gone(second, 120.0) && gone(new, 120.0));
        assert!(gone(first, 130.0) && gone(second, 130.0));
        assert!(!gone(first, 200.0) && !gone(second, 200.0) && !gone(new, 200.0));
    }

    #[test]
    fn the_scheduler_is_bent_only_where_it_is_named_and_for_all() {
        let bent = |signals, share| {
            let mut values = [5.0];
            let mut faults = Faults::new(&[fault(FaultKind::Doubled, signals, share)]);
            faults.of_scheduler(150.0, &[Signal::SchedulerQueueSize], &mut values);
            values[0] > 5.0
        };
        let own = FaultSignals::Of(Signal::SchedulerQueueSize);
        assert!(bent(own, FaultShare::AllPods));
        assert!(!bent(own, FaultShare::OnePod) && !bent(FaultSignals::All, FaultShare::AllPods));
    }
}
