//! Model servers in closed form, with an HPA and with pods that take time to start: quick enough for hours of load in a test.
//! Single requests are not simulated here but in `sim`.

use std::collections::VecDeque;

use wva_core::hpa::Behavior;
use wva_sim::Rng;

use super::fixture::TestHpa;
use super::prelude::*;

/// Seconds between two scrapes, and between two decisions.
pub(crate) const SCRAPE: i64 = 5;
/// Samples kept of each series.
const SAMPLES: usize = 14;
/// How long a pod takes to start, seconds.
const START: i64 = 95;

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

/// A pod: its requests, and its counters.
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

/// The requests, and the speed and size of the servers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Workload {
    pub(crate) prompt: f64,
    pub(crate) output: f64,
    /// Seconds that a step takes: when empty, per prompt token, per sequence, and more with a full cache.
    pub(crate) step: [f64; 4],
    pub(crate) cache: f64,
    /// Requests arrive at equal intervals.
    pub(crate) even: bool,
    /// Share of each pod's scrapes that fail.
    pub(crate) loss: f64,
}

impl Default for Workload {
    /// Requests of 4000 and 1000 tokens; the accelerator of the published comparison: 2.99 requests/s per replica.
    fn default() -> Self {
        let step = [5.5e-3, 24e-6, 1e-5, 18.24e-3];
        Self { prompt: 4000.0, output: 1000.0, step, cache: 480_000.0, even: false, loss: 0.0 }
    }
}

impl Workload {
    /// The fixed seconds of a request, its seconds for each sequence that runs, and the maximum of sequences.
    fn terms(&self) -> (f64, f64, f64) {
        let [base, prompt, sequence, cache] = self.step;
        let share = (self.prompt + self.output / 2.0) / self.cache;
        let per_sequence = prompt * self.prompt + self.output * (sequence + cache * share);
        (self.output * base, per_sequence, (0.9 / share).min(256.0))
    }
}

/// One variant of one model.
#[derive(Debug, Clone)]
pub(crate) struct ClosedFormFleet {
    pub(crate) workload: Workload,
    pub(crate) now: i64,
    pub(crate) spec: u32,
    pub(crate) bounds: Bounds,
    pub(crate) policy: Policy,
    pub(crate) memory: Memory,
    pub(crate) source: SourceHealth,
    pub(crate) pods: Vec<Pod>,
    /// No node has room for new pods.
    pub(crate) nowhere: bool,
    /// The decided numbers, oldest first.
    pub(crate) targets: Vec<u32>,
    hpa: TestHpa,
    rng: Rng,
    created: u32,
}

impl ClosedFormFleet {
    pub(crate) fn new(workload: Workload, replicas: u32, seed: u64) -> Self {
        let bounds = Bounds { min: Replicas::ONE, max: Some(Replicas::new(200)) };
        let mut fleet = Self {
            workload,
            now: 0,
            spec: replicas,
            bounds,
            policy: policy_of(Analyzer::Rate),
            memory: Memory::default(),
            source: SourceHealth::Complete,
            pods: Vec::new(),
            nowhere: false,
            targets: Vec::new(),
            hpa: TestHpa::new(200, Behavior::default()),
            rng: Rng::new(seed),
            created: 0,
        };
        (0..replicas).for_each(|_| fleet.create(-START));
        fleet
    }

    fn create(&mut self, created: i64) {
        self.created += 1;
        let name = format!("llama-{:03}", self.created);
        let ready = if self.nowhere { i64::MAX } else { created + START };
        let samples = VecDeque::new();
        self.pods.push(Pod { name, created, ready, running: 0.0, waiting: 0.0, totals: [0.0; 8], samples });
    }

    /// Serves `rate` requests/s for one scrape interval; then every Ready pod is scraped.
    pub(crate) fn serve(&mut self, rate: f64) {
        let (before, seconds) = (self.now, SCRAPE as f64);
        self.now += SCRAPE;
        let ready = self.pods.iter().filter(|pod| pod.ready <= before).count() as f64;
        for pod in self.pods.iter_mut().filter(|pod| pod.ready <= before) {
            let mean = rate * seconds / ready;
            let arrivals = if self.workload.even { mean } else { poisson(&mut self.rng, mean) };
            pod.serve(&self.workload, arrivals, seconds);
            if self.rng.unit() >= self.workload.loss {
                pod.scrape(self.now, &self.workload);
            }
        }
    }

    /// Decides without an HPA that follows, and returns the number, if there is one.
    pub(crate) fn decide_without_hpa(&mut self) -> Option<u32> {
        let outcome = self.outcome();
        self.memory = outcome.memory.clone();
        let number = number_of(&outcome.decisions[&World::id()].verdict)?.get();
        self.targets.push(number);
        Some(number)
    }

    /// Decides, with an HPA that reads the number every 15 s, and returns the number, if there is one.
    pub(crate) fn decide(&mut self) -> Option<u32> {
        let desired = self.decide_without_hpa()?;
        if self.now % 15 == 0 {
            self.spec = self.hpa.sync(self.now, self.spec, desired);
            self.follow();
        }
        Some(desired)
    }

    /// Creates or deletes pods until there are as many as the scale object asks for; the youngest go first.
    pub(crate) fn follow(&mut self) {
        while self.pods.len() > self.spec as usize {
            self.pods.pop();
        }
        while self.pods.len() < self.spec as usize {
            self.create(self.now);
        }
    }

    pub(crate) fn outcome(&self) -> Outcome {
        evaluate(&self.snapshot(), self.memory.clone(), &self.policy)
    }

    /// The number that would be decided now, and why.
    pub(crate) fn verdict(&self) -> (u32, Reason, String) {
        let outcome = self.outcome();
        let target = target_of(&outcome, "llama");
        (target.desired.get(), target.reason, target.explanation.to_string())
    }

    /// Serves and decides for `seconds` at `rate` requests/s.
    pub(crate) fn run(&mut self, rate: f64, seconds: i64) {
        for _ in 0..seconds / SCRAPE {
            self.serve(rate);
            self.decide();
        }
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let pods = self.pods.iter().map(|pod| self.replica(pod)).collect();
        let mut state = variant_state("llama", pods);
        state.variant.bounds = self.bounds;
        state.scale = state.scale.map(|scale| Scale { spec: Replicas::new(self.spec), ..scale });
        let mut group = ModelGroup { source: self.source.clone(), ..model_group(vec![state]) };
        group.scheduler.add(Signal::SchedulerQueueSize, [Sample { at: at(self.now), value: 0.0 }]);
        snapshot_of(at(self.now), group)
    }

    fn replica(&self, pod: &Pod) -> wva_core::snapshot::Pod {
        let is_ready = pod.ready <= self.now;
        let waits = if self.nowhere { Phase::Unschedulable } else { Phase::Starting };
        let is_down = matches!(self.source, SourceHealth::Down { .. });
        let shown = if is_ready && !is_down { pod.signals() } else { Signals::default() };
        wva_core::snapshot::Pod {
            phase: if is_ready { Phase::Ready } else { waits },
            created: at(pod.created),
            ready_since: is_ready.then(|| at(pod.ready)),
            ..ready_pod(pod.name.as_str(), shown)
        }
    }

    /// How often the decided number changed from second `from` on, and how often the direction of its changes.
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
    /// Requests enter while there is room, and leave at the rate at which as many of them are served. The steps are so short that
    /// the counters fit the running requests.
    fn serve(&mut self, workload: &Workload, arrivals: f64, seconds: f64) {
        const STEPS: u32 = 20;
        for _ in 0..STEPS {
            self.step(workload, arrivals / f64::from(STEPS), seconds / f64::from(STEPS));
        }
    }

    fn step(&mut self, workload: &Workload, arrivals: f64, seconds: f64) {
        let (fixed, per_sequence, max_sequences) = workload.terms();
        let started = (self.waiting + arrivals).min((max_sequences - self.running).max(0.0));
        self.waiting += arrivals - started;
        self.running += started;
        let sequences = self.running;
        let done = (sequences / (fixed + sequences * per_sequence) * seconds).min(sequences);
        self.running -= done;
        let tokens = done * workload.output;
        let first = workload.step[1] * workload.prompt + 0.02;
        let prompts = started * workload.prompt;
        let grown = [prompts, tokens, sequences * seconds, tokens, started * first, started, tokens, done];
        self.totals.iter_mut().zip(grown).for_each(|(total, grown)| *total += grown);
    }

    fn scrape(&mut self, now: i64, workload: &Workload) {
        let share = (workload.prompt + workload.output / 2.0) / workload.cache;
        let gauges = [(self.running * share).min(1.0), self.waiting, self.running, workload.cache];
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

    /// Forgets the samples, as when the clock jumps.
    pub(crate) fn forget_samples(&mut self) {
        self.samples.clear();
    }

    /// Restarts the process: its counters begin at 0, and its requests are lost.
    pub(crate) fn restart(&mut self) {
        (self.totals, self.running, self.waiting) = ([0.0; 8], 0.0, 0.0);
    }
}
