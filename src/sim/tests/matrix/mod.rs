//! The fault matrix: analyzers under faults of their signals in closed loop, each compared with its own run without the fault.
#![allow(clippy::unwrap_used, reason = "fixed scenarios and policies that fail at once, or never")]
#![allow(dead_code, reason = "the test and the example use different parts")]

pub(crate) mod cases;
pub(crate) mod compare;
pub(crate) mod policies;

use std::fmt::Debug;

use wva_core::model::Analyzer;
use wva_core::snapshot::Signal;
use wva_core::units::Replicas;
use wva_sim::{Controller, Fault, FaultKind, FaultShare, FaultSignals, PinnedReplicas, Run, simulate};

use self::cases::Case;
use self::compare::{Baseline, Comparison, Reference, Timeline};

/// Signals of the scheduler, to which a share of pods does not apply.
const SCHEDULER_SIGNALS: [Signal; 2] = [Signal::SchedulerQueueSize, Signal::SchedulerQueueBytes];

/// Signals that stay 0 under every load of the matrix, because no server of it refuses a request. `refusals` has their faults.
const UNUSED_SIGNALS: [Signal; 1] = [Signal::RefusedRequests];

/// Runs without a fault that show what randomness alone does. Each analyzer meets about two hundred faults under each load, so that
/// what happens once in forty runs happens in five of them.
const OTHER_SEEDS: u64 = 39;

/// One fault of one analyzer's signals under one load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Cell {
    pub(crate) analyzer: Analyzer,
    pub(crate) signals: FaultSignals,
    pub(crate) kind: FaultKind,
    pub(crate) share: FaultShare,
    pub(crate) case: Case,
    pub(crate) seed: u64,
}

impl Cell {
    fn fault(&self) -> Fault {
        let Self { signals, kind, share, .. } = *self;
        Fault { kind, signals, share, from: cases::FAULT_FROM, until: cases::FAULT_UNTIL }
    }

    /// Compares `faulty`, the run with the fault, with `own`, the run without it. If that breaks a criterion, it is compared with
    /// the wider span of `others`, runs without the fault and with other seeds. If then only the number after recovery is off, that
    /// is compared with a run without the fault in which an operator sets the number to that of `faulty`.
    pub(crate) fn compared<O: AsRef<[Timeline]>>(
        &self,
        faulty: &Timeline,
        own: &Timeline,
        others: impl FnOnce() -> O,
    ) -> Comparison {
        let alone = Comparison::new(&self.reference(own, &[]), faulty);
        if alone.holds() {
            return alone;
        }
        let all = Comparison::new(&self.reference(own, others().as_ref()), faulty);
        let all = Comparison { baseline: Baseline::Seeds, ..all };
        if all.broken().len() != 1 {
            return all;
        }
        let same = self.pinned(faulty.spec_at_end_of_fault());
        all.or_same_number(&Comparison::new(&self.reference(&same, &[]), faulty))
    }

    /// The run without the fault in which an operator sets the number to `replicas` until the fault would end.
    pub(crate) fn pinned(&self, replicas: u32) -> Timeline {
        let mut scenario = self.case.scenario();
        let from = cases::FAULT_UNTIL.saturating_sub(cases::PINNED_DURATION);
        scenario.variants[0].pinned =
            Some(PinnedReplicas { replicas: Replicas::new(replicas), from, until: cases::FAULT_UNTIL });
        let controller = policies::controller(self.analyzer, self.case.view);
        Timeline::new(&simulate(&scenario, &controller, self.seed, |_| {}), self.case.replicas())
    }

    /// The reference of `own`, the run without the fault, and `others`, the same with other seeds.
    pub(crate) fn reference(&self, own: &Timeline, others: &[Timeline]) -> Reference {
        let reference = Reference::new(own, others);
        if self.is_blind() { reference.blind() } else { reference }
    }

    /// The run with the fault.
    pub(crate) fn faulty(&self) -> Timeline {
        Timeline::new(&self.play(&[self.fault()]), self.case.replicas())
    }

    /// The runs without the fault and with other seeds, the same for every seed.
    pub(crate) fn fault_free_with_other_seeds(&self) -> Vec<Timeline> {
        (1..=OTHER_SEEDS).map(|index| Self { seed: 1 + 1000 * index, ..*self }.fault_free()).collect()
    }

    /// Decisions of the run without the fault at which some signal of an engine was contradicted by another.
    pub(crate) fn contradicted_without_fault(&self) -> u32 {
        self.play(&[]).contradicted_decisions
    }

    /// The run without the fault.
    pub(crate) fn fault_free(&self) -> Timeline {
        Timeline::new(&self.play(&[]), self.case.replicas())
    }

    fn play(&self, faults: &[Fault]) -> Run {
        play(self.case, &policies::controller(self.analyzer, self.case.view), faults, self.seed)
    }

    /// No signal of any pod is true.
    fn is_blind(&self) -> bool {
        self.signals == FaultSignals::All && self.share == FaultShare::All
    }
}

/// Simulates `case` under `controller` with `faults`.
pub(crate) fn play(case: Case, controller: &Controller, faults: &[Fault], seed: u64) -> Run {
    let mut scenario = case.scenario();
    scenario.faults.extend_from_slice(faults);
    simulate(&scenario, controller, seed, |_| {})
}

/// The signals, and sets of them, whose faults affect `analyzer`.
pub(crate) fn signals(analyzer: Analyzer) -> Vec<FaultSignals> {
    let read = policies::signals(analyzer);
    let is_used = |signal: &Signal| read.contains(signal) && !UNUSED_SIGNALS.contains(signal);
    let single = Signal::ALL.into_iter().filter(is_used).map(FaultSignals::Of);
    let counters = read.iter().any(|signal| signal.is_counter());
    let sets = [counters.then_some(FaultSignals::Counters), Some(FaultSignals::All)];
    single.chain(sets.into_iter().flatten()).collect()
}

/// The shares of pods that a fault of `signals` can have.
pub(crate) fn shares(signals: FaultSignals) -> &'static [FaultShare] {
    match signals {
        FaultSignals::Of(signal) if SCHEDULER_SIGNALS.contains(&signal) => &FaultShare::ALL[2..],
        _ => &FaultShare::ALL,
    }
}

/// The kinds of faults of `signals`. All signals halved or doubled are the true picture of a pod with another load, and no fault.
pub(crate) fn kinds(signals: FaultSignals) -> &'static [FaultKind] {
    if signals == FaultSignals::All { &FaultKind::ALL[..3] } else { &FaultKind::ALL }
}

/// The name of a load, a fault or a share of pods in tables.
pub(crate) fn word(value: impl Debug) -> String {
    format!("{value:?}").to_lowercase()
}

/// The name of `signals` in tables.
pub(crate) fn name(signals: FaultSignals) -> String {
    match signals {
        FaultSignals::Of(signal) => format!("{signal:?}"),
        FaultSignals::Counters => "all counters".into(),
        FaultSignals::All => "all signals".into(),
    }
}
