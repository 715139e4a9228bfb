//! Pods that have served so many requests a second each for long, by closed forms and whatever is decided about them.

use wva_core::decision::Verdict;
use wva_core::model::{Analyzer, ClassTarget, LatencyTargets, ServiceClass};
use wva_core::snapshot::{Sample, Scale, Signal, Signals};
use wva_core::units::Replicas;
use wva_core::{Snapshot, decide, observe};

use super::fixture::{World, at};

/// The name of the variant that has no replicas.
pub(crate) const IDLE: &str = "idle";

/// Seconds between two scrapes, and between two looks.
pub(crate) const SCRAPE: i64 = 15;

/// A fleet of one pod for each rate; of one without a rate there is no series.
pub(crate) struct Steady {
    pub(crate) world: World,
    pub(crate) rates: Vec<Option<f64>>,
    /// By how much a token takes longer than it did.
    pub(crate) slower: f64,
    /// The model has another variant, which has no replicas.
    pub(crate) has_idle_variant: bool,
    /// What the first pod shows of a gauge in the newest scrape alone.
    pub(crate) spike: Option<(Signal, f64)>,
}

impl Steady {
    /// Latencies are promised, so that the analyzers of latency decide too.
    pub(crate) fn new(analyzer: Analyzer, rates: &[Option<f64>]) -> Self {
        let mut world = World::new(u32::try_from(rates.len()).unwrap());
        world.policy.global.default.analyzer = analyzer;
        let latency = LatencyTargets { ttft_ms: 400.0, itl_ms: 20.0 };
        world.policy.global.default.queueing.targets = Some(latency);
        let targets = vec![ClassTarget { model: "m".into(), latency }];
        world.policy.service_classes = vec![ServiceClass { name: "Premium".into(), priority: 1, targets }];
        Self { world, rates: rates.to_vec(), slower: 1.0, has_idle_variant: false, spike: None }
    }

    fn snapshot(&self) -> Snapshot {
        let mut snapshot = self.world.snapshot();
        let variants = snapshot.groups.values_mut().flat_map(|group| &mut group.variants);
        let replicas = variants.flat_map(|state| &mut state.replicas);
        for (index, (replica, rate)) in replicas.zip(&self.rates).enumerate() {
            let spike = self.spike.filter(|_| index == 0);
            let engine = |rate: &f64| ("0".into(), engine(self.world.now, *rate, self.slower, spike));
            replica.engines = rate.iter().map(engine).collect();
        }
        for group in snapshot.groups.values_mut().filter(|_| self.has_idle_variant) {
            let mut idle = group.variants[0].clone();
            (idle.variant.id.name, idle.variant.target.name) = (IDLE.into(), IDLE.into());
            idle.variant.bounds.min = Replicas::ZERO;
            (idle.scale, idle.replicas) = (
                idle.scale.map(|_| Scale {
                    spec: Replicas::ZERO,
                    current: Replicas::ZERO,
                    ready: Replicas::ZERO,
                }),
                Vec::new(),
            );
            group.variants.push(idle);
            group.sort();
        }
        snapshot
    }

    /// The number at the next scrape, which nobody follows.
    pub(crate) fn number(&mut self) -> u32 {
        self.world.now += SCRAPE;
        let snapshot = self.snapshot();
        let memory = observe(&snapshot, std::mem::take(&mut self.world.memory));
        let outcome = decide(&snapshot, &memory, &self.world.policy);
        assert_eq!((&outcome.report.violations, &outcome.report.failed), (&vec![], &vec![]));
        self.world.memory = outcome.memory;
        match &outcome.decisions[&World::id()].verdict {
            Verdict::Target(target) => target.desired.get(),
            Verdict::Unknown(unknown) => panic!("{}", unknown.explanation),
        }
    }
}

/// Requests of 1000 tokens and 200 generated. A token takes 10 ms, and half a millisecond more for each request that runs, so that
/// this many run at `rate` requests a second; the first token takes 0.1 s. All that where a token is not `slower` than usual.
fn running(rate: f64, slower: f64) -> f64 {
    (0.1 + 2.0 * slower) * rate / (1.0 - 0.1 * slower * rate)
}

/// What an engine shows that has served `rate` requests a second for long, each token `slower` than usual, but for a `spike` in the
/// newest scrape.
fn engine(now: i64, rate: f64, slower: f64, spike: Option<(Signal, f64)>) -> Signals {
    let runs = running(rate, slower);
    let token = 0.01 + 0.0005 * runs;
    let gauges = [
        (Signal::KvUsage, 0.011 * runs),
        (Signal::Waiting, 0.0),
        (Signal::Running, runs),
        (Signal::KvCapacity, 1e5),
    ];
    let counters = [
        (Signal::PromptTokens, 1000.0),
        (Signal::GenerationTokens, 200.0),
        (Signal::RequestPromptTokensSum, 1000.0),
        (Signal::RequestPromptTokensCount, 1.0),
        (Signal::RequestGenerationTokensSum, 200.0),
        (Signal::RequestGenerationTokensCount, 1.0),
        (Signal::InterTokenLatencySum, 200.0 * token * slower),
        (Signal::InterTokenLatencyCount, 200.0),
        (Signal::TimeToFirstTokenSum, 0.1),
        (Signal::TimeToFirstTokenCount, 1.0),
        (Signal::SchedulerAttempts, 1.0),
    ];
    let times = || (0..21).map(|back| now - 2 - SCRAPE * back);
    let mut signals = Signals::default();
    for (signal, value) in gauges {
        let spike = spike.filter(|(of, _)| *of == signal).map(|(_, value)| value);
        let newest = |second: i64| spike.filter(|_| second == now - 2);
        let sample = |second| Sample { at: at(second), value: newest(second).unwrap_or(value) };
        signals.add(signal, times().map(sample));
    }
    for (signal, of_each) in counters {
        // From an hour before the first scrape on.
        let grown = |second: i64| of_each * rate * (3600 + second) as f64;
        signals.add(signal, times().map(|second| Sample { at: at(second), value: grown(second) }));
    }
    signals
}
