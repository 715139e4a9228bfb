//! One variant and everything that happens to it, for tests that play it through time.

use jiff::{SignedDuration, Timestamp};
use smol_str::ToSmolStr;
use wva_core::decision::{Reason, Verdict};
use wva_core::memory::Memory;
use wva_core::model::{Analyzer, Bounds, Role, TargetRef, Variant};
use wva_core::snapshot::{
    ModelGroup, Phase, Replica, Sample, Scale, Signal, Signals, SourceHealth, Template, VariantState,
};
use wva_core::units::{Cost, Replicas};
use wva_core::{GroupId, Policy, Snapshot, VariantId, decide, observe};

pub(crate) fn at(seconds: i64) -> Timestamp {
    Timestamp::constant(1_800_000_000, 0) + SignedDuration::from_secs(seconds)
}

/// One variant and everything that happens to it.
pub(crate) struct World {
    pub(crate) now: i64,
    pub(crate) running: u32,
    pub(crate) min: u32,
    pub(crate) max: Option<u32>,
    pub(crate) source: SourceHealth,
    /// KV usage and queue of every pod.
    pub(crate) load: (f64, f64),
    pub(crate) requests: f64,
    pub(crate) held: f64,
    pub(crate) policy: Policy,
    pub(crate) memory: Memory,
    /// Pods of a rolling update beside the wanted ones.
    pub(crate) surge: u32,
    /// Serving processes of a pod.
    pub(crate) engines: u32,
    /// The scheduler's queue is measured.
    pub(crate) queued: bool,
    /// Samples of each series, 15 s apart.
    pub(crate) samples: i64,
}

impl World {
    pub(crate) fn new(running: u32) -> Self {
        Self {
            now: 0,
            running,
            min: 1,
            max: None,
            source: SourceHealth::Complete,
            load: (0.5, 1.0),
            requests: 1.0,
            held: 0.0,
            policy: percent(),
            memory: Memory::default(),
            surge: 0,
            engines: 1,
            queued: true,
            samples: 5,
        }
    }

    pub(crate) fn id() -> VariantId {
        VariantId::new("default", "llama")
    }

    pub(crate) fn signals(&self) -> Signals {
        let mut signals = Signals::default();
        if matches!(self.source, SourceHealth::Down { .. }) {
            return signals;
        }
        let values = [
            (Signal::KvUsage, self.load.0),
            (Signal::Waiting, self.load.1),
            (Signal::Running, if self.load.0 > 0.0 { 1.0 } else { 0.0 }),
            (Signal::TimeToFirstTokenCount, self.requests),
        ];
        for (signal, value) in values {
            signals.add(
                signal,
                (0..self.samples).map(|back| Sample { at: at(self.now - 2 - 15 * back), value }),
            );
        }
        signals
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let (count, all) = (Replicas::new(self.running), self.running + self.surge);
        let replica = |index| Replica {
            pod: format!("llama-{index}").into(),
            phase: Phase::Ready,
            created: at(-900),
            ready_since: Some(at(-800)),
            engines: (0..self.engines)
                .map(|rank| (rank.to_smolstr(), self.signals()))
                .filter(|(_, signals)| !signals.is_empty())
                .collect(),
        };
        let state = VariantState {
            variant: Variant {
                id: Self::id(),
                model: "m".into(),
                target: TargetRef { kind: "Deployment".into(), name: "llama".into() },
                cost: Cost::new(10.0).unwrap(),
                bounds: Bounds { min: Replicas::new(self.min), max: self.max.map(Replicas::new) },
                accelerator: None,
                role: Role::Both,
            },
            scale: Some(Scale { spec: count, current: Replicas::new(all), ready: Replicas::new(all) }),
            replicas: (0..all).map(replica).collect(),
            last_status: None,
            template: Template::default(),
        };
        let mut scheduler = Signals::default();
        let queue = self.queued.then(|| Sample { at: at(self.now - 2), value: self.held });
        scheduler.add(Signal::SchedulerQueueSize, queue);
        let group = ModelGroup { source: self.source.clone(), variants: vec![state], scheduler };
        Snapshot {
            now: at(self.now),
            groups: [(GroupId::new("default", "m"), group)].into(),
            invalid: vec![],
            inventory: None,
            elsewhere: [].into(),
            unlabelled: None,
        }
    }

    /// One evaluation, `later` seconds after the last one.
    pub(crate) fn evaluate(&mut self, later: i64) -> Verdict {
        self.now += later;
        let snapshot = self.snapshot();
        let memory = observe(&snapshot, std::mem::take(&mut self.memory));
        let mut outcome = decide(&snapshot, &memory, &self.policy);
        assert_eq!(outcome.report.violations, []);
        assert_eq!(outcome.report.failed, []);
        self.memory = outcome.memory;
        outcome.decisions.remove(&Self::id()).unwrap().verdict
    }

    pub(crate) fn number(&mut self, later: i64) -> u32 {
        match self.evaluate(later) {
            Verdict::Target(target) => target.desired.get(),
            Verdict::Unknown(unknown) => panic!("{}", unknown.explanation),
        }
    }

    pub(crate) fn reason(&mut self, later: i64) -> Reason {
        match self.evaluate(later) {
            Verdict::Target(target) => target.reason,
            Verdict::Unknown(unknown) => panic!("{}", unknown.explanation),
        }
    }
}

/// V1 decides: its arithmetic is the simplest to follow.
pub(crate) fn percent() -> Policy {
    let mut policy = Policy::default();
    policy.global.default.analyzer = Analyzer::SaturationPercent;
    policy
}
