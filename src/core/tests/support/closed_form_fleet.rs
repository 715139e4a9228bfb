//! Model servers by closed forms, with an HPA in front and pods that take time to start: quick enough for hours of load in a
//! test. No single requests: those are in `sim`.

use std::collections::VecDeque;

use jiff::{SignedDuration, Timestamp};
use wva_core::decision::{Reason, Verdict};
use wva_core::hpa::{Behavior, Counts, Hpa, Kind, MetricTarget, Settings, Tolerance, milli, propose};
use wva_core::memory::Memory;
use wva_core::model::Analyzer;
use wva_core::model::{Bounds, Role, TargetRef, Variant};
use wva_core::snapshot::{
    ModelGroup, Phase, Replica, Sample, Scale, Signal, Signals, SourceHealth, Template, VariantState,
};
use wva_core::units::{Cost, Replicas};
use wva_core::{GroupId, Outcome, Policy, Snapshot, VariantId, decide, observe};
use wva_sim::Rng;

/// Seconds between two scrapes, and between two decisions.
pub(crate) const SCRAPE: i64 = 5;
/// Samples that are kept of each series.
const SAMPLES: usize = 14;
/// How long a pod takes to start, seconds.
const START: i64 = 95;

pub(crate) fn at(seconds: i64) -> Timestamp {
    Timestamp::constant(1_800_000_000, 0) + SignedDuration::from_secs(seconds)
}

/// Gauges and counters, in the order of [`Signal`].
const SIGNALS: [Signal; 12] = [
    Signal::KvUsage,
    Signal::Waiting,
    Signal::Running,
    Signal::KvCapacity,
    Signal::PromptTokens,
    Signal::GenerationTokens,
    Signal::InterTokenLatencySum,
    Signal::InterTokenLatencyCount,
    Signal::TimeToFirstTokenSum,
    Signal::TimeToFirstTokenCount,
    Signal::RequestGenerationTokensSum,
    Signal::RequestGenerationTokensCount,
];

/// A pod: how many requests are in it, and what it has counted.
#[derive(Debug, Clone)]
pub(crate) struct Pod {
    name: String,
    created: i64,
    ready: i64,
    running: f64,
    waiting: f64,
    totals: [f64; 8],
    samples: VecDeque<(i64, [f64; 12])>,
}

/// What requests come, and what the servers are like.
#[derive(Debug, Clone, Copy)]
pub(crate) struct World {
    pub(crate) prompt: f64,
    pub(crate) output: f64,
    /// Seconds of a step: empty, a prompt token, a sequence, a full cache.
    pub(crate) step: [f64; 4],
    pub(crate) cache: f64,
    /// Requests come at equal distances.
    pub(crate) even: bool,
    /// Share of the scrapes of a pod that fail.
    pub(crate) loss: f64,
}

impl Default for World {
    /// Requests of 4000 and 1000 tokens; the accelerator of the published comparison: 2.99 requests/s a replica.
    fn default() -> Self {
        let step = [5.5e-3, 24e-6, 1e-5, 18.24e-3];
        Self { prompt: 4000.0, output: 1000.0, step, cache: 480_000.0, even: false, loss: 0.0 }
    }
}

impl World {
    /// A, g and the most sequences.
    fn terms(&self) -> (f64, f64, f64) {
        let [base, prompt, sequence, cache] = self.step;
        let share = (self.prompt + self.output / 2.0) / self.cache;
        let each = prompt * self.prompt + self.output * (sequence + cache * share);
        (self.output * base, each, (0.9 / share).min(256.0))
    }
}

/// One variant of one model.
#[derive(Debug, Clone)]
pub(crate) struct Plant {
    pub(crate) world: World,
    pub(crate) now: i64,
    pub(crate) spec: u32,
    pub(crate) bounds: Bounds,
    pub(crate) policy: Policy,
    pub(crate) memory: Memory,
    pub(crate) source: SourceHealth,
    pub(crate) pods: Vec<Pod>,
    /// Pods that no node has room for.
    pub(crate) nowhere: bool,
    /// What was decided, one after the other.
    pub(crate) targets: Vec<u32>,
    hpa: Hpa,
    rng: Rng,
    made: u32,
}

impl Plant {
    pub(crate) fn new(world: World, replicas: u32, seed: u64) -> Self {
        let bounds = Bounds { min: Replicas::ONE, max: Some(Replicas::new(200)) };
        let mut policy = Policy::default();
        policy.global.default.analyzer = Analyzer::Rate;
        let settings = Settings {
            min: bounds.min,
            max: Replicas::new(200),
            behavior: Some(Behavior::default()),
            at_zero: wva_core::hpa::AtZero::default(),
        };
        let mut plant = Self {
            world,
            now: 0,
            spec: replicas,
            bounds,
            policy,
            memory: Memory::default(),
            source: SourceHealth::Complete,
            pods: Vec::new(),
            nowhere: false,
            targets: Vec::new(),
            hpa: Hpa::new(settings),
            rng: Rng::new(seed),
            made: 0,
        };
        (0..replicas).for_each(|_| plant.create(-START));
        plant
    }

    pub(crate) fn id() -> VariantId {
        VariantId::new("default", "llama")
    }

    pub(crate) fn group() -> GroupId {
        GroupId::new("default", "m")
    }

    fn create(&mut self, created: i64) {
        self.made += 1;
        let name = format!("llama-{:03}", self.made);
        let ready = if self.nowhere { i64::MAX } else { created + START };
        let samples = VecDeque::new();
        self.pods.push(Pod { name, created, ready, running: 0.0, waiting: 0.0, totals: [0.0; 8], samples });
    }

    /// Serves `rate` requests a second for one scrape interval, and lets every ready pod be scraped.
    pub(crate) fn serve(&mut self, rate: f64) {
        let (before, seconds) = (self.now, SCRAPE as f64);
        self.now += SCRAPE;
        let ready = self.pods.iter().filter(|pod| pod.ready <= before).count() as f64;
        for pod in self.pods.iter_mut().filter(|pod| pod.ready <= before) {
            let mean = rate * seconds / ready;
            let arrivals = if self.world.even { mean } else { poisson(&mut self.rng, mean) };
            pod.serve(&self.world, arrivals, seconds);
            if self.rng.unit() >= self.world.loss {
                pod.scrape(self.now, &self.world);
            }
        }
    }

    /// A look that nobody follows. The number that was decided, if there is one.
    pub(crate) fn decide_without_hpa(&mut self) -> Option<u32> {
        let outcome = self.look();
        self.memory = outcome.memory.clone();
        let Verdict::Target(target) = &outcome.decisions[&Self::id()].verdict else { return None };
        self.targets.push(target.desired.get());
        Some(target.desired.get())
    }

    /// A look and what an HPA makes of it every 15 s. The number that was decided, if there is one.
    pub(crate) fn decide(&mut self) -> Option<u32> {
        let wanted = self.decide_without_hpa()?;
        if self.now % 15 == 0 {
            let current = Replicas::new(self.spec);
            let counts = Counts { spec: current, status: current, ready: current };
            let one = MetricTarget { kind: Kind::AverageValue, milli: 1000 };
            let proposal = propose(&[milli(f64::from(wanted))], one, counts, Tolerance::default());
            self.spec = self.hpa.step(at(self.now), current, proposal).get();
            self.follow();
        }
        Some(wanted)
    }

    /// Pods are made and taken away until there are as many as the scale object asks for: the youngest go first.
    pub(crate) fn follow(&mut self) {
        while self.pods.len() > self.spec as usize {
            self.pods.pop();
        }
        while self.pods.len() < self.spec as usize {
            self.create(self.now);
        }
    }

    pub(crate) fn look(&self) -> Outcome {
        let snapshot = self.snapshot();
        let outcome = decide(&snapshot, &observe(&snapshot, self.memory.clone()), &self.policy);
        assert_eq!(outcome.report.violations, []);
        assert_eq!(outcome.report.failed, []);
        outcome
    }

    /// What would be decided now, and why.
    pub(crate) fn verdict(&self) -> (u32, Reason, String) {
        match &self.look().decisions[&Self::id()].verdict {
            Verdict::Target(target) => (target.desired.get(), target.reason, target.explanation.to_string()),
            Verdict::Unknown(unknown) => panic!("{}", unknown.explanation),
        }
    }

    /// `seconds` at `rate` requests a second.
    pub(crate) fn run(&mut self, rate: f64, seconds: i64) {
        for _ in 0..seconds / SCRAPE {
            self.serve(rate);
            self.decide();
        }
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let ready = self.pods.iter().filter(|pod| pod.ready <= self.now).count();
        let count = |pods: usize| Replicas::new(u32::try_from(pods).unwrap());
        let scale =
            Scale { spec: Replicas::new(self.spec), current: count(self.pods.len()), ready: count(ready) };
        let state = VariantState {
            variant: Variant {
                id: Self::id(),
                model: "m".into(),
                target: TargetRef { kind: "Deployment".into(), name: "llama".into() },
                cost: Cost::new(10.0).unwrap(),
                bounds: self.bounds,
                accelerator: None,
                role: Role::Both,
            },
            scale: Some(scale),
            replicas: self.pods.iter().map(|pod| self.replica(pod)).collect(),
            last_status: None,
            template: Template::default(),
        };
        let mut scheduler = Signals::default();
        scheduler.add(Signal::SchedulerQueueSize, [Sample { at: at(self.now), value: 0.0 }]);
        let group = ModelGroup { source: self.source.clone(), variants: vec![state], scheduler };
        Snapshot {
            now: at(self.now),
            groups: [(Self::group(), group)].into(),
            invalid: vec![],
            inventory: None,
            elsewhere: [].into(),
            unlabelled: None,
        }
    }

    fn replica(&self, pod: &Pod) -> Replica {
        let serving = pod.ready <= self.now;
        let waits = if self.nowhere { Phase::Unschedulable } else { Phase::Starting };
        let down = matches!(self.source, SourceHealth::Down { .. });
        let seen = serving && !pod.samples.is_empty() && !down;
        Replica {
            pod: pod.name.as_str().into(),
            phase: if serving { Phase::Ready } else { waits },
            created: at(pod.created),
            ready_since: serving.then(|| at(pod.ready)),
            engines: seen.then(|| ("0".into(), pod.signals())).into_iter().collect(),
        }
    }

    /// Changes of the decided number from second `from` on: how many, and how many of direction.
    pub(crate) fn moves(&self, from: i64) -> (usize, usize) {
        let late = &self.targets[usize::try_from(from / SCRAPE).unwrap()..];
        let steps: Vec<bool> =
            late.windows(2).filter(|pair| pair[0] != pair[1]).map(|pair| pair[1] > pair[0]).collect();
        (steps.len(), steps.windows(2).filter(|pair| pair[0] != pair[1]).count())
    }
}

/// Arrivals of a Poisson process of `mean` arrivals.
pub(crate) fn poisson(rng: &mut Rng, mean: f64) -> f64 {
    let (mut passed, mut arrivals) = (rng.exponential(), 0.0);
    while passed < mean {
        passed += rng.exponential();
        arrivals += 1.0;
    }
    arrivals
}

impl Pod {
    /// Requests enter while there is room, and leave at the rate that so many of them are worked off with: in steps so short that
    /// what is counted and what runs belong together.
    fn serve(&mut self, world: &World, arrivals: f64, seconds: f64) {
        const STEPS: u32 = 20;
        for _ in 0..STEPS {
            self.step(world, arrivals / f64::from(STEPS), seconds / f64::from(STEPS));
        }
    }

    fn step(&mut self, world: &World, arrivals: f64, seconds: f64) {
        let (fixed, each, most) = world.terms();
        let started = (self.waiting + arrivals).min((most - self.running).max(0.0));
        self.waiting += arrivals - started;
        self.running += started;
        let sequences = self.running;
        let done = (sequences / (fixed + sequences * each) * seconds).min(sequences);
        self.running -= done;
        let tokens = done * world.output;
        let first = world.step[1] * world.prompt + 0.02;
        let prompts = started * world.prompt;
        let grown = [prompts, tokens, sequences * seconds, tokens, started * first, started, tokens, done];
        self.totals.iter_mut().zip(grown).for_each(|(total, grown)| *total += grown);
    }

    fn scrape(&mut self, now: i64, world: &World) {
        let share = (world.prompt + world.output / 2.0) / world.cache;
        let gauges = [(self.running * share).min(1.0), self.waiting, self.running, world.cache];
        let mut values = [0.0; 12];
        values.iter_mut().zip(gauges.into_iter().chain(self.totals)).for_each(|(own, value)| *own = value);
        self.samples.push_back((now, values));
        if self.samples.len() > SAMPLES {
            self.samples.pop_front();
        }
    }

    fn signals(&self) -> Signals {
        let mut signals = Signals::default();
        for (place, signal) in SIGNALS.into_iter().enumerate() {
            let sample = |(then, values): &(i64, [f64; 12])| Sample { at: at(*then), value: values[place] };
            signals.add(signal, self.samples.iter().map(sample));
        }
        signals
    }

    /// The process was restarted: it counts from 0, and what it had is lost.
    pub(crate) fn restart(&mut self) {
        (self.totals, self.running, self.waiting) = ([0.0; 8], 0.0, 0.0);
    }
}
