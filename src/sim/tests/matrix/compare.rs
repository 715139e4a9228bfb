//! Compares a run with a fault with the same run without it.

use wva_core::units::Replicas;
use wva_sim::Run;

use super::cases::{END, FAULT_FROM, FAULT_UNTIL, MAX_REPLICAS, RECOVERED};

/// By how many replicas the number may be below the one without the fault, at any time from the fault on.
const MAX_FEWER: f64 = 1.0;
/// Replica-hours as a multiple of those without the fault.
const MAX_HOURS: f64 = 1.5;
/// Additional reversals.
const MAX_REVERSALS: f64 = 2.0;
/// By how many replicas the number may differ after recovery.
const MAX_AWAY: f64 = 1.0;
/// Seconds by which a number may come earlier: one evaluation.
const MAX_EARLIER_S: usize = 15;
/// Seconds by which a number may come later: a minute of evidence for an analyzer without its signals, a scrape, and an evaluation.
const MAX_LATER_S: usize = 90;

/// The numbers of a run, second by second from the start of the fault.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Timeline {
    /// The number that wva published; where there was none, the last one.
    pub(crate) published: Vec<u32>,
    /// `spec.replicas`, written by the HPA.
    pub(crate) spec: Vec<u32>,
    /// Changes of `spec.replicas` in the other direction than the change before.
    pub(crate) reversals: u32,
    /// Share of requests within the objectives.
    pub(crate) within_slo: f64,
}

/// How far two runs differ, by each criterion.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Comparison {
    /// The most replicas by which the run with the fault has fewer.
    pub(crate) fewer: f64,
    /// When, seconds after the start.
    pub(crate) fewer_at_s: usize,
    /// Seconds in which it had too few.
    pub(crate) fewer_for_s: usize,
    /// Replica-hours from the start of the fault to the end, as a multiple.
    pub(crate) hours: f64,
    /// Additional reversals.
    pub(crate) reversals: f64,
    /// The largest difference after recovery, replicas with the sign.
    pub(crate) away: f64,
    /// The runs it is compared with.
    pub(crate) baseline: Baseline,
    /// Percentage points by which fewer requests were within the objectives. Shown, not judged.
    pub(crate) slo_loss: f64,
}

/// The runs without a fault that a run with one is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Baseline {
    /// Its own.
    #[default]
    Own,
    /// Its own and those with other seeds.
    Seeds,
    /// For the number at the end only: a run in which an operator sets the number to what it is when the fault ends.
    SameNumber,
}

impl Timeline {
    /// The timeline of a run that starts with `replicas`.
    pub(crate) fn new(run: &Run, replicas: u32) -> Self {
        let sum = |numbers: &[Option<Replicas>]| -> Option<u32> {
            numbers.iter().map(|number| number.map(Replicas::get)).sum()
        };
        let published =
            run.published.iter().filter_map(|published| Some((published.at_s, sum(&published.numbers)?)));
        let written = run.writes.iter().map(|write| (write.at_s, write.to));
        let from_s = FAULT_FROM.as_secs_f64();
        let mut reversals = 0;
        for pair in run.writes.windows(2).filter(|pair| pair[1].at_s >= from_s) {
            reversals += u32::from((pair[0].to > pair[0].from) != (pair[1].to > pair[1].from));
        }
        Self {
            published: by_second(published, replicas),
            spec: by_second(written, replicas),
            reversals,
            within_slo: run.slo_attainment,
        }
    }

    /// `spec.replicas` when the fault ends.
    pub(crate) fn spec_at_end_of_fault(&self) -> u32 {
        self.spec[seconds(FAULT_UNTIL) - seconds(FAULT_FROM)]
    }

    /// The most replicas by which a removal leaves fewer than `fault_free` has, within the time tolerance.
    pub(crate) fn removed_below(&self, fault_free: &Self) -> u32 {
        let min = Reference::new(fault_free, &[]).min;
        let mut highest = 0;
        let mut fewer = 0;
        for (number, min) in self.spec.iter().zip(min) {
            highest = highest.max(*number);
            if *number < highest {
                fewer = fewer.max(min.saturating_sub(*number));
            }
        }
        fewer
    }

    /// Replica-seconds of `spec.replicas`.
    fn replica_seconds(&self) -> f64 {
        self.spec.iter().map(|number| f64::from(*number)).sum()
    }

    /// `replicas` all the time.
    pub(crate) fn fixed(replicas: u32) -> Self {
        let numbers = by_second(std::iter::empty(), replicas);
        Self { published: numbers.clone(), spec: numbers, reversals: 0, within_slo: 1.0 }
    }

    /// The same timeline without its removals.
    pub(crate) fn without_removals(&self) -> Self {
        let running_max = |numbers: &[u32]| -> Vec<u32> {
            let mut max = 0;
            let running = numbers.iter().map(|number| {
                max = max.max(*number);
                max
            });
            running.collect()
        };
        let [published, spec] = [&self.published, &self.spec].map(|numbers| running_max(numbers));
        Self { published, spec, reversals: 0, ..self.clone() }
    }
}

/// The number of each second from the start of the fault to the end.
fn by_second(changes: impl Iterator<Item = (f64, u32)>, first: u32) -> Vec<u32> {
    let mut changes = changes.peekable();
    let mut number = first;
    let mut at = |second: u64| {
        while let Some((_, next)) = changes.next_if(|(at_s, _)| *at_s <= second as f64) {
            number = next;
        }
        number
    };
    (0..END.as_secs()).map(&mut at).skip(seconds(FAULT_FROM)).collect()
}

fn seconds(duration: std::time::Duration) -> usize {
    usize::try_from(duration.as_secs()).unwrap()
}

/// The span of runs without a fault, by second.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Reference {
    /// The lowest published number within the time tolerance.
    min: Vec<u32>,
    /// The highest number, published or written by the HPA, within the time tolerance.
    max: Vec<u32>,
    /// The number published when the fault starts.
    first: u32,
    /// The most replica-seconds.
    replica_seconds: f64,
    /// The most reversals.
    reversals: f64,
    within_slo: f64,
    /// No true signal was available during the fault.
    is_blind: bool,
}

impl Reference {
    /// The reference of the run with the cell's own seed. Runs with other seeds count as well if they break the criteria without
    /// any fault: a policy that oscillates is compared with the span of its oscillation.
    pub(crate) fn new(own: &Timeline, others: &[Timeline]) -> Self {
        let single = Self::span(&[own]);
        if others.iter().all(|run| Comparison::new(&single, run).holds()) {
            return single;
        }
        let all: Vec<&Timeline> = std::iter::once(own).chain(others).collect();
        Self::span(&all)
    }

    /// The span of `runs`, of which the first is the cell's own. Several runs oscillate, and a fault may shift the phase: after
    /// recovery any number they have had since the fault is allowed, as the load is the same.
    fn span(runs: &[&Timeline]) -> Self {
        let [ended, recovered] = [FAULT_UNTIL, RECOVERED].map(|at| seconds(at) - seconds(FAULT_FROM));
        let around = |numbers: &[u32], second: usize, pick: fn(u32, u32) -> u32| {
            let from = if runs.len() > 1 && second >= recovered {
                ended
            } else {
                second.saturating_sub(MAX_LATER_S)
            };
            let until = (second + MAX_EARLIER_S + 1).min(numbers.len());
            numbers[from..until].iter().copied().reduce(pick).unwrap()
        };
        let by_second = |numbers: fn(&Timeline) -> [&[u32]; 2], pick: fn(u32, u32) -> u32| -> Vec<u32> {
            let at = |second| {
                let all = runs.iter().flat_map(|run| numbers(run));
                all.map(|numbers| around(numbers, second, pick)).reduce(pick).unwrap()
            };
            (0..runs[0].published.len()).map(at).collect()
        };
        let max = |figure: fn(&Timeline) -> f64| runs.iter().map(|run| figure(run)).fold(0.0, f64::max);
        Self {
            min: by_second(|run| [&run.published, &run.published], u32::min),
            max: by_second(|run| [&run.published, &run.spec], u32::max),
            first: runs[0].published[0],
            replica_seconds: max(Timeline::replica_seconds),
            reversals: max(|run| f64::from(run.reversals)),
            within_slo: runs[0].within_slo,
            is_blind: false,
        }
    }

    /// The reference without any true signal. No policy can follow an unobserved load: until recovery the number at the start of
    /// the fault is enough, and the backlog may take more replicas. HPAs keep the higher number for their stabilization window,
    /// so that after recovery the published number is judged.
    pub(crate) fn blind(mut self) -> Self {
        self.is_blind = true;
        let until = seconds(RECOVERED) - seconds(FAULT_FROM);
        self.min[..until].iter_mut().for_each(|min| *min = (*min).min(self.first));
        let after = seconds(FAULT_UNTIL) - seconds(FAULT_FROM);
        self.max[after..until].iter_mut().for_each(|max| *max = (*max).max(MAX_REPLICAS));
        self
    }
}

impl Comparison {
    /// Compares `faulty`, a run with a fault, with `reference`.
    pub(crate) fn new(reference: &Reference, faulty: &Timeline) -> Self {
        let mut fewer = 0.0;
        let mut fewer_at = 0;
        let mut fewer_for_s = 0;
        let mut away = 0.0_f64;
        let recovered = seconds(RECOVERED) - seconds(FAULT_FROM);
        for (second, number) in faulty.spec.iter().enumerate() {
            let [number, min, max] = [*number, reference.min[second], reference.max[second]].map(f64::from);
            fewer_for_s += usize::from(min - number > MAX_FEWER);
            if min - number > fewer {
                fewer = min - number;
                fewer_at = second;
            }
            let number = if reference.is_blind { f64::from(faulty.published[second]) } else { number };
            let difference = number - number.clamp(min, max);
            if second >= recovered && difference.abs() > away.abs() {
                away = difference;
            }
        }
        Self {
            fewer,
            fewer_at_s: fewer_at + seconds(FAULT_FROM),
            fewer_for_s,
            hours: faulty.replica_seconds() / reference.replica_seconds.max(1.0),
            reversals: f64::from(faulty.reversals) - reference.reversals,
            away,
            baseline: Baseline::Own,
            slo_loss: 100.0 * (reference.within_slo - faulty.within_slo),
        }
    }

    pub(crate) fn holds(&self) -> bool {
        self.broken().is_empty()
    }

    /// Replaces the difference after recovery by that of `same`, the comparison with a run that was set to the same number, if it
    /// is smaller: what a policy keeps of a number without any fault is no effect of the fault.
    pub(crate) fn or_same_number(self, same: &Self) -> Self {
        if same.away.abs() >= self.away.abs() {
            return self;
        }
        Self { away: same.away, baseline: Baseline::SameNumber, ..self }
    }

    /// The broken criteria, each with its excess and text.
    pub(crate) fn broken(&self) -> Vec<(f64, String)> {
        let all = [
            (self.fewer - MAX_FEWER, format!("−{}", self.fewer)),
            ((self.hours - MAX_HOURS) * 4.0, format!("{:.1}×", self.hours)),
            ((self.reversals - MAX_REVERSALS) / 2.0, format!("{}↕", self.reversals)),
            (self.away.abs() - MAX_AWAY, format!("{:+}…", self.away)),
        ];
        all.into_iter().filter(|(excess, _)| *excess > 0.0).collect()
    }

    /// The sum of the excesses; 0 when it holds.
    pub(crate) fn badness(&self) -> f64 {
        self.broken().iter().map(|(excess, _)| excess).sum()
    }

    /// The text of its cell in the table.
    pub(crate) fn cell_text(&self) -> String {
        let broken = self.broken();
        if broken.is_empty() {
            return "ok".into();
        }
        broken.into_iter().map(|(_, text)| text).collect::<Vec<_>>().join(" ")
    }
}
