//! The fault matrix: analyzers under faults of their signals in the closed loop, each against its own run without the fault.
#![allow(clippy::unwrap_used, reason = "fixed scenarios and policies that fail at once, or never")]
#![allow(dead_code, reason = "the test and the example use different parts")]

pub(crate) mod cases;
pub(crate) mod compare;
pub(crate) mod policies;

use wva_core::model::Analyzer;
use wva_core::snapshot::Signal;
use wva_core::units::Replicas;
use wva_sim::{Controller, Fault, FaultKind, FaultShare, FaultSignals, PinnedReplicas, Run, simulate};

use self::cases::Case;
use self::compare::{Beside, Comparison, Reference, Timeline};

/// Signals of the scheduler: with a share of pods they have nothing to do.
const OF_THE_SCHEDULER: [Signal; 2] = [Signal::SchedulerQueueSize, Signal::SchedulerQueueBytes];

/// Runs without a fault that tell what chance alone does: each analyzer meets about two hundred faults under each load, so what
/// chance does once in forty runs happens in five of them.
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

    /// How the run with the fault, `bent`, compares with `own`, the one without. Only where that alone is not enough is it held
    /// against `others`, runs without it and with other seeds: their span is wider. And only where nothing but the number in the
    /// end is wrong, that is held against a run without the fault that had as many replicas when the fault ended.
    pub(crate) fn compared<O: AsRef<[Timeline]>>(
        &self,
        bent: &Timeline,
        own: &Timeline,
        others: impl FnOnce() -> O,
    ) -> Comparison {
        let alone = Comparison::of(&self.reference(own, &[]), bent);
        if alone.holds() {
            return alone;
        }
        let all = Comparison::of(&self.reference(own, others().as_ref()), bent);
        let all = Comparison { beside: Beside::Seeds, ..all };
        if all.broken().len() != 1 {
            return all;
        }
        let same = self.fixed(bent.at_end_of_fault());
        all.or_same_number(&Comparison::of(&self.reference(&same, &[]), bent))
    }

    /// The run without the fault in which somebody sets the number to `replicas` until the fault would end.
    pub(crate) fn fixed(&self, replicas: u32) -> Timeline {
        let mut scenario = self.case.scenario();
        let from = cases::FAULT_UNTIL.saturating_sub(cases::FIXED_FOR);
        scenario.variants[0].pinned =
            Some(PinnedReplicas { replicas: Replicas::new(replicas), from, until: cases::FAULT_UNTIL });
        let controller = policies::controller(self.analyzer, self.case.view);
        Timeline::new(&simulate(&scenario, &controller, self.seed, |_| {}).unwrap(), self.case.replicas())
    }

    /// What it is compared with: `own`, the run without the fault, and `others`, the same with other seeds.
    pub(crate) fn reference(&self, own: &Timeline, others: &[Timeline]) -> Reference {
        let reference = Reference::new(own, others);
        if self.is_blind() { reference.blind() } else { reference }
    }

    /// The run with the fault.
    pub(crate) fn bent(&self) -> Timeline {
        let controller = policies::controller(self.analyzer, self.case.view);
        Timeline::new(&play(self.case, &controller, &[self.fault()], self.seed), self.case.replicas())
    }

    /// Those without it and with other seeds, the same for every seed.
    pub(crate) fn others(&self) -> Vec<Timeline> {
        (1..=OTHER_SEEDS).map(|index| self.free_with(1 + 1000 * index)).collect()
    }

    /// Decisions of the run without the fault at which something that an engine showed was not believed.
    pub(crate) fn doubted_without_fault(&self) -> u32 {
        play(self.case, &policies::controller(self.analyzer, self.case.view), &[], self.seed)
            .contradicted_decisions
    }

    /// The run without the fault.
    pub(crate) fn free(&self) -> Timeline {
        self.free_with(self.seed)
    }

    fn free_with(&self, seed: u64) -> Timeline {
        let run = play(self.case, &policies::controller(self.analyzer, self.case.view), &[], seed);
        Timeline::new(&run, self.case.replicas())
    }

    /// Nothing that is told of any pod is true.
    fn is_blind(&self) -> bool {
        self.signals == FaultSignals::All && self.share == FaultShare::AllPods
    }
}

/// Plays `case` under `controller` with `faults`.
pub(crate) fn play(case: Case, controller: &Controller, faults: &[Fault], seed: u64) -> Run {
    let mut scenario = case.scenario();
    scenario.faults.extend_from_slice(faults);
    simulate(&scenario, controller, seed, |_| {}).unwrap()
}

/// The signals, and sets of them, whose faults `analyzer` can feel.
pub(crate) fn signals(analyzer: Analyzer) -> Vec<FaultSignals> {
    let read = policies::signals(analyzer);
    let single = Signal::ALL.into_iter().filter(|signal| read.contains(signal)).map(FaultSignals::Of);
    let counters = read.iter().any(|signal| signal.is_counter());
    let sets = [counters.then_some(FaultSignals::Counters), Some(FaultSignals::All)];
    single.chain(sets.into_iter().flatten()).collect()
}

/// The shares of pods that a fault of `signals` can have.
pub(crate) fn shares(signals: FaultSignals) -> &'static [FaultShare] {
    match signals {
        FaultSignals::Of(signal) if OF_THE_SCHEDULER.contains(&signal) => &FaultShare::ALL[2..],
        _ => &FaultShare::ALL,
    }
}

/// What happens to `signals` where the outcome can be another than that of what is listed before. Where all of them show half
/// or twice as much, that is the true picture of a pod with another load, and no fault.
pub(crate) fn kinds(signals: FaultSignals) -> &'static [FaultKind] {
    if signals == FaultSignals::All { &FaultKind::ALL[..3] } else { &FaultKind::ALL }
}

/// The name of `signals` in tables.
pub(crate) fn name(signals: FaultSignals) -> String {
    match signals {
        FaultSignals::Of(signal) => format!("{signal:?}"),
        FaultSignals::Counters => "all counters".into(),
        FaultSignals::All => "all signals".into(),
    }
}
