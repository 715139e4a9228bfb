//! One variant and all that may happen to it, for tests over time; and parts of which other tests build their fleets.

use smol_str::ToSmolStr;
use wva_core::hpa::{AtZero, Behavior, Counts, Hpa, Kind, MetricTarget, Settings, Tolerance, milli, propose};

use super::prelude::*;

pub(crate) fn at(seconds: i64) -> Timestamp {
    Timestamp::constant(1_800_000_000, 0) + SignedDuration::from_secs(seconds)
}

/// The model `m`, which nearly all tests use.
pub(crate) fn group_id() -> GroupId {
    GroupId::new("default", "m")
}

pub(crate) fn id(name: &str) -> VariantId {
    VariantId::new("default", name)
}

/// A Ready pod with one engine; with none if there are no `signals`.
pub(crate) fn ready_pod(name: impl Into<SmolStr>, signals: Signals) -> Pod {
    let engine = Some(signals).filter(|signals| !signals.is_empty());
    Pod {
        name: name.into(),
        phase: Phase::Ready,
        created: at(-900),
        ready_since: Some(at(-800)),
        engines: engine.map(|engine| ("0".into(), engine)).into_iter().collect(),
    }
}

/// A variant with these pods, all of which its scale object counts.
pub(crate) fn variant_state(name: &str, pods: Vec<Pod>) -> VariantState {
    let all = Replicas::new(count(pods.len()));
    let cost = Cost::new(10.0).unwrap();
    let variant = Variant { cost, ..Variant::new(id(name), "m", TargetRef::deployment(name)) };
    let scale = Some(Scale { spec: all, current: all, ready: ready(&pods) });
    VariantState { scale, ..VariantState::new(variant, pods) }
}

fn ready(pods: &[Pod]) -> Replicas {
    Replicas::new(count(pods.iter().filter(|pod| pod.phase == Phase::Ready).count()))
}

/// Makes the scale object of a variant count its Ready pods.
pub(crate) fn count_ready(state: &mut VariantState) {
    let ready = ready(&state.pods);
    state.scale = state.scale.map(|scale| Scale { ready, ..scale });
}

/// A model whose source is complete, and whose scheduler shows nothing.
pub(crate) fn model_group(variants: Vec<VariantState>) -> ModelGroup {
    ModelGroup { source: SourceHealth::Complete, variants, scheduler: Signals::default() }
}

pub(crate) fn snapshot_of(now: Timestamp, group: ModelGroup) -> Snapshot {
    Snapshot::new(now, [(group_id(), group)].into())
}

/// The first group of a snapshot.
pub(crate) fn group_of(snapshot: &mut Snapshot) -> &mut ModelGroup {
    snapshot.groups.values_mut().next().unwrap()
}

pub(crate) fn states(snapshot: &Snapshot) -> impl Iterator<Item = &VariantState> {
    snapshot.groups.values().flat_map(|group| &group.variants)
}

pub(crate) fn states_mut(snapshot: &mut Snapshot) -> impl Iterator<Item = &mut VariantState> {
    snapshot.groups.values_mut().flat_map(|group| &mut group.variants)
}

pub(crate) fn engines_mut(snapshot: &mut Snapshot) -> impl Iterator<Item = &mut Signals> {
    states_mut(snapshot).flat_map(|state| &mut state.pods).flat_map(|pod| pod.engines.values_mut())
}

/// Removes the series of signals that are not to be kept.
pub(crate) fn retain(signals: &mut Signals, is_kept: impl Fn(Signal) -> bool) {
    let whole = std::mem::take(signals);
    for (signal, series) in whole.iter().filter(|(signal, _)| is_kept(*signal)) {
        signals.add(signal, series.iter());
    }
}

/// A class that promises latencies for the model `m`.
pub(crate) fn premium(latency: LatencyTargets) -> Vec<ServiceClass> {
    let targets = vec![ClassTarget { model: "m".into(), latency }];
    vec![ServiceClass { name: "Premium".into(), priority: 1, targets }]
}

/// Observes and decides, and asserts that no rule is broken and that no model panicked.
pub(crate) fn evaluate(snapshot: &Snapshot, memory: Memory, policy: &Policy) -> Outcome {
    let outcome = decide(snapshot, &observe(snapshot, memory), policy);
    assert_eq!(outcome.report.violations, []);
    assert_eq!(outcome.report.failed, []);
    outcome
}

pub(crate) fn number_of(verdict: &Verdict) -> Option<Replicas> {
    match verdict {
        Verdict::Target(target) => Some(target.desired),
        Verdict::Unknown(_) => None,
    }
}

/// The number decided for a variant.
pub(crate) fn target_of<'a>(outcome: &'a Outcome, name: &str) -> &'a Target {
    match &outcome.decisions[&id(name)].verdict {
        Verdict::Target(target) => target,
        Verdict::Unknown(unknown) => panic!("{name}: {}", unknown.explanation),
    }
}

/// The numbers of all variants, by name.
pub(crate) fn numbers_of(outcome: &Outcome) -> Vec<u32> {
    outcome.decisions.keys().map(|id| target_of(outcome, &id.name).desired.get()).collect()
}

/// The number promised for a variant: the remembered one, or else the published one.
pub(crate) fn promised(state: &VariantState, memory: &Memory) -> Option<Replicas> {
    let remembered = memory.groups.values().find_map(|group| group.variants.get(&state.variant.id.name));
    let target = remembered.and_then(|remembered| remembered.target);
    target.or(state.last_status.filter(|last| *last > Replicas::ZERO))
}

/// An HPA with the default tolerance, whose metric is the wanted number of replicas.
#[derive(Debug, Clone)]
pub(crate) struct TestHpa(Hpa);

impl TestHpa {
    pub(crate) fn new(max: u32, behavior: Behavior) -> Self {
        let (min, max) = (Replicas::ONE, Replicas::new(max));
        Self(Hpa::new(Settings { min, max, behavior: Some(behavior), at_zero: AtZero::Reads }))
    }

    /// The replicas that it asks for while `running` run.
    pub(crate) fn sync(&mut self, now: i64, running: u32, desired: u32) -> u32 {
        let spec = Replicas::new(running);
        let counts = Counts { spec, status: spec, ready: spec };
        let target = MetricTarget { kind: Kind::AverageValue, milli: 1000 };
        let proposal = propose(&[milli(f64::from(desired))], target, counts, Tolerance::default());
        self.0.step(at(now), spec, proposal).get()
    }
}

/// One variant, `llama`, and all that may happen to it.
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
    /// Pods of a rolling update in addition to the wanted ones.
    pub(crate) surge: u32,
    /// Engines of each pod.
    pub(crate) engines: u32,
    /// Whether the scheduler's queue is measured.
    pub(crate) queued: bool,
    /// Samples of each series, 15 s apart.
    pub(crate) samples: i64,
}

impl World {
    /// V1 decides: its arithmetic is the simplest to follow.
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
            policy: policy_of(Analyzer::SaturationPercent),
            memory: Memory::default(),
            surge: 0,
            engines: 1,
            queued: true,
            samples: 5,
        }
    }

    /// The same with this KV usage and queue in every pod.
    pub(crate) fn with_load(running: u32, load: (f64, f64)) -> Self {
        Self { load, ..Self::new(running) }
    }

    /// The same with another analyzer.
    pub(crate) fn by(analyzer: Analyzer, running: u32, load: (f64, f64)) -> Self {
        Self { policy: policy_of(analyzer), ..Self::with_load(running, load) }
    }

    /// A single replica that may be removed after so many seconds without requests.
    pub(crate) fn that_may_sleep(retention: u32) -> Self {
        let mut world = Self { min: 0, ..Self::new(1) };
        let retention = Seconds::whole(retention);
        world.policy.global.default.scale_to_zero = Some(ScaleToZero { enabled: true, retention });
        world
    }

    pub(crate) fn id() -> VariantId {
        id("llama")
    }

    fn signals(&self) -> Signals {
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
            let sample = |back| Sample { at: at(self.now - 2 - 15 * back), value };
            signals.add(signal, (0..self.samples).map(sample));
        }
        signals
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let engine = |rank: u32| (rank.to_smolstr(), self.signals());
        let pod = |index| Pod {
            engines: (0..self.engines).map(engine).filter(|(_, signals)| !signals.is_empty()).collect(),
            ..ready_pod(format!("llama-{index}"), Signals::default())
        };
        let mut state = variant_state("llama", (0..self.running + self.surge).map(pod).collect());
        state.variant.bounds = Bounds { min: Replicas::new(self.min), max: self.max.map(Replicas::new) };
        let spec = Replicas::new(self.running);
        state.scale = state.scale.map(|scale| Scale { spec, ..scale });
        let mut group = ModelGroup { source: self.source.clone(), ..model_group(vec![state]) };
        let queue = self.queued.then(|| Sample { at: at(self.now - 2), value: self.held });
        group.scheduler.add(Signal::SchedulerQueueSize, queue);
        snapshot_of(at(self.now), group)
    }

    /// The outcome for `snapshot`, which is not remembered.
    pub(crate) fn outcome(&self, snapshot: &Snapshot) -> Outcome {
        evaluate(snapshot, self.memory.clone(), &self.policy)
    }

    /// The outcome for `snapshot`, which is remembered.
    pub(crate) fn decide(&mut self, snapshot: &Snapshot) -> Verdict {
        let mut outcome = evaluate(snapshot, std::mem::take(&mut self.memory), &self.policy);
        self.memory = outcome.memory;
        outcome.decisions.remove(&Self::id()).unwrap().verdict
    }

    /// One evaluation, `later` seconds after the last one.
    pub(crate) fn evaluate(&mut self, later: i64) -> Verdict {
        self.now += later;
        self.decide(&self.snapshot())
    }

    pub(crate) fn target(&mut self, later: i64) -> Target {
        match self.evaluate(later) {
            Verdict::Target(target) => target,
            Verdict::Unknown(unknown) => panic!("{}", unknown.explanation),
        }
    }

    pub(crate) fn number(&mut self, later: i64) -> u32 {
        self.target(later).desired.get()
    }

    pub(crate) fn reason(&mut self, later: i64) -> Reason {
        self.target(later).reason
    }
}

/// The default policy with another analyzer.
pub(crate) fn policy_of(analyzer: Analyzer) -> Policy {
    let mut policy = Policy::default();
    policy.global.default.analyzer = analyzer;
    policy
}
