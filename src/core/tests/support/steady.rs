//! Pods that have long served the same rate each, in closed form, whatever is decided about them.

use super::prelude::*;

/// The name of the variant that has no replicas.
pub(crate) const IDLE: &str = "idle";

/// Seconds between two scrapes, and between two evaluations.
pub(crate) const SCRAPE: i64 = 15;

/// The seconds at which a signal was scraped.
pub(crate) fn scrapes(now: i64) -> impl Iterator<Item = i64> {
    (0..21).map(move |back| now - 2 - SCRAPE * back)
}

/// A fleet with one pod for each rate; a pod without a rate has no series.
pub(crate) struct Steady {
    pub(crate) world: World,
    pub(crate) rates: Vec<Option<f64>>,
    /// The factor by which a token takes longer than before.
    pub(crate) slower: f64,
    /// Whether the model has another variant, without replicas.
    pub(crate) has_idle_variant: bool,
    /// A gauge's value that the first pod shows in its newest scrape only.
    pub(crate) spike: Option<(Signal, f64)>,
}

impl Steady {
    /// A fleet with latency targets, so that the analyzers of latency decide too.
    pub(crate) fn new(analyzer: Analyzer, rates: &[Option<f64>]) -> Self {
        let mut world = World { policy: policy_of(analyzer), ..World::new(count(rates.len())) };
        let latency = LatencyTargets { ttft_ms: 400.0, itl_ms: 20.0 };
        world.policy.global.default.queueing.targets = Some(latency);
        world.policy.service_classes = premium(latency);
        Self { world, rates: rates.to_vec(), slower: 1.0, has_idle_variant: false, spike: None }
    }

    fn snapshot(&self) -> Snapshot {
        let mut snapshot = self.world.snapshot();
        let group = group_of(&mut snapshot);
        for (index, (pod, rate)) in group.variants[0].pods.iter_mut().zip(&self.rates).enumerate() {
            let spike = self.spike.filter(|_| index == 0);
            let engine = |rate: &f64| ("0".into(), engine(self.world.now, *rate, self.slower, spike));
            pod.engines = rate.iter().map(engine).collect();
        }
        if self.has_idle_variant {
            let mut idle = variant_state(IDLE, Vec::new());
            idle.variant.bounds.min = Replicas::ZERO;
            group.variants.push(idle);
            group.sort();
        }
        snapshot
    }

    /// The number at the next scrape; no HPA follows it.
    pub(crate) fn number(&mut self) -> u32 {
        self.world.now += SCRAPE;
        match self.world.decide(&self.snapshot()) {
            Verdict::Target(target) => target.desired.get(),
            Verdict::Unknown(unknown) => panic!("{}", unknown.explanation),
        }
    }

    /// The numbers at the next scrapes.
    pub(crate) fn numbers(&mut self, scrapes: usize) -> Vec<u32> {
        (0..scrapes).map(|_| self.number()).collect()
    }
}

/// The requests that run at `rate` requests/s with 1000 prompt tokens and 200 generated ones. A token takes 10 ms, and half a
/// millisecond more for each running request; the first token takes 0.1 s. These times are multiplied by `slower`.
fn running(rate: f64, slower: f64) -> f64 {
    (0.1 + 2.0 * slower) * rate / (1.0 - 0.1 * slower * rate)
}

/// The signals of an engine that has long served `rate` requests/s, with tokens `slower` than usual, except for a `spike` in its
/// newest scrape.
fn engine(now: i64, rate: f64, slower: f64, spike: Option<(Signal, f64)>) -> Signals {
    let runs = running(rate, slower);
    let token = 0.01 + 0.0005 * runs;
    // Counters, and the amount that each request adds.
    let values = [
        (Signal::KvUsage, 0.011 * runs),
        (Signal::Waiting, 0.0),
        (Signal::Running, runs),
        (Signal::KvCapacity, 1e5),
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
    let mut signals = Signals::default();
    for (signal, value) in values {
        let spike = spike.filter(|(of, _)| *of == signal).map(|(_, value)| value);
        let shown = |second: i64| match spike {
            Some(value) if second == now - 2 => value,
            // They count from an hour before the first scrape.
            _ if signal.is_counter() => value * rate * (3600 + second) as f64,
            _ => value,
        };
        signals.add(signal, scrapes(now).map(|second| Sample { at: at(second), value: shown(second) }));
    }
    signals
}
