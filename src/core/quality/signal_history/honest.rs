//! Engines that tell the truth about workloads of very different kinds: what they do is no contradiction.
#![allow(clippy::expect_used, reason = "helpers of tests may fail like tests")]

use std::collections::VecDeque;

use smol_str::format_smolstr;

use super::tests::{assess_and_remember, at, with_pod};
use super::*;
use crate::model::Analyzer;
use crate::snapshot::Signals;
use wva_sim::Rng;

/// Tokens in the KV cache of one engine.
const CACHE: f64 = 400_000.0;
/// Requests that it runs at once.
const SEQUENCES: usize = 256;
/// Prompt tokens that one step computes at most.
const CHUNK: f64 = 8192.0;
/// When a workload changes, seconds.
const CHANGE: f64 = 1200.0;
/// And how long it is looked at, seconds.
const END: f64 = 2400.0;

/// One request: tokens of its prompt, how many of these others hold already, tokens still to generate, and those after which its
/// client gives up.
#[derive(Clone, Copy)]
struct Request {
    prompt: f64,
    shared: f64,
    left: f64,
    generated: f64,
    patience: f64,
}

/// What comes at a second to one engine.
#[derive(Clone, Copy)]
struct Load {
    /// Requests a second.
    rate: f64,
    prompt: f64,
    shared: f64,
    answer: f64,
    /// Tokens that a step generates for each request: above 1 with speculative decoding.
    accepted: f64,
    /// The share of clients that give up, and within how many tokens of their answer.
    impatient: (f64, f64),
}

type Workload = fn(f64, &mut Rng) -> Load;

/// Continuous batching: a step computes the prompts that are new and a token or more for each running request.
struct Engine {
    running: Vec<Request>,
    waiting: VecDeque<Request>,
    counted: [f64; Signal::ALL.len()],
    second: f64,
}

impl Engine {
    fn count(&mut self, signal: Signal, more: f64) {
        self.counted[signal.index()] += more;
    }

    fn held(&self) -> f64 {
        self.running.iter().map(|request| request.prompt - request.shared + request.generated).sum()
    }

    fn step(&mut self, accepted: f64, rng: &mut Rng) {
        let mut seconds = 0.02 + 0.0002 * self.running.len() as f64;
        let mut budget = CHUNK;
        while self.running.len() < SEQUENCES && budget > 0.0 && self.held() <= 0.95 * CACHE {
            let Some(mut request) = self.waiting.pop_front() else { break };
            let computed = request.prompt - request.shared;
            budget -= computed;
            seconds += computed * 0.000_03;
            self.count(Signal::PromptTokens, request.prompt);
            self.count(Signal::PrefixCacheQueries, request.prompt);
            self.count(Signal::PrefixCacheHits, request.shared);
            self.count(Signal::TimeToFirstTokenCount, 1.0);
            self.count(Signal::TimeToFirstTokenSum, seconds);
            self.count(Signal::GenerationTokens, 1.0);
            (request.generated, request.left) = (1.0, request.left - 1.0);
            self.running.push(request);
        }
        self.count(Signal::EngineSteps, f64::from(!self.running.is_empty()));
        self.second += seconds;
        for place in 0..self.running.len() {
            let guessed = accepted.floor() + f64::from(rng.unit() < accepted.fract());
            let request = &mut self.running[place];
            let got = guessed.min(request.left.max(0.0));
            (request.generated, request.left) = (request.generated + got, request.left - got);
            if got > 0.0 {
                self.count(Signal::GenerationTokens, got);
                self.count(Signal::InterTokenLatencyCount, 1.0);
                self.count(Signal::InterTokenLatencySum, seconds);
            }
        }
        let (left, finished): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.running).into_iter().partition(|request| request.left > 0.0);
        self.running = left.into_iter().filter(|request| request.generated < request.patience).collect();
        for request in finished {
            self.count(Signal::RequestGenerationTokensCount, 1.0);
            self.count(Signal::RequestGenerationTokensSum, request.generated);
            self.count(Signal::RequestPromptTokensCount, 1.0);
            self.count(Signal::RequestPromptTokensSum, request.prompt);
        }
    }

    fn shows(&self, signal: Signal) -> f64 {
        match signal {
            Signal::Running => self.running.len() as f64,
            Signal::Waiting => self.waiting.len() as f64,
            Signal::KvUsage => self.held() / CACHE,
            Signal::KvCapacity => CACHE,
            _ => self.counted[signal.index()],
        }
    }
}

/// What an engine shows under `workload` every `interval` seconds; SGLang's, without `steps`, counts none.
fn shown(workload: Workload, interval: f64, seed: u64, steps: bool) -> Vec<(f64, Vec<(Signal, f64)>)> {
    let rng = &mut Rng::new(seed);
    let counted = [0.0; Signal::ALL.len()];
    let mut engine = Engine { running: Vec::new(), waiting: VecDeque::new(), counted, second: 0.0 };
    let (mut next, mut scrapes) = (0.0, Vec::new());
    let of_engines = |signal: &Signal| *signal < Signal::Asleep || (steps && *signal == Signal::EngineSteps);
    while engine.second < END {
        let Load { accepted, .. } = workload(engine.second, &mut rng.clone());
        engine.step(accepted, rng);
        while next <= engine.second {
            let Load { rate, prompt, shared, answer, impatient, .. } = workload(next, rng);
            if rate > 0.0 {
                let (share, tokens) = impatient;
                let gives_up = share > 0.0 && rng.unit() < share;
                let patience = if gives_up { tokens * rng.unit() } else { f64::INFINITY };
                engine.waiting.push_back(Request { prompt, shared, left: answer, generated: 0.0, patience });
            }
            next += if rate > 0.0 { rng.exponential() / rate } else { 0.5 };
        }
        let due = scrapes.len() as f64 * interval;
        if engine.second >= due {
            let values =
                Signal::ALL.into_iter().filter(of_engines).map(|signal| (signal, engine.shows(signal)));
            scrapes.push((due, values.collect()));
        }
    }
    scrapes
}

/// The share of looks at `pods` engines at which something was not believed, and what.
fn distrusted(
    analyzer: Analyzer,
    workload: Workload,
    interval: f64,
    pods: u64,
    steps: bool,
) -> (f64, SignalSet) {
    let all: Vec<_> = (0..pods).map(|pod| shown(workload, interval, 1 + pod, steps)).collect();
    let mut signals = vec![Signals::default(); all.len()];
    let (mut history, mut looks, mut what) = (SignalHistory::default(), 0.0, SignalSet::NONE);
    let count = all.iter().map(Vec::len).min().expect("engines");
    for (look, (second, _)) in all[0].iter().enumerate().take(count) {
        let scraped = at(0) + SignedDuration::from_secs_f64(*second);
        let now = scraped + SignedDuration::from_secs(1);
        let mut state = with_pod(Signals::default());
        let engine = state.template.engine.as_mut().expect("an engine's arguments");
        engine.max_sequences = i64::try_from(SEQUENCES).expect("few");
        let template = state.pods.remove(0);
        for (index, own) in signals.iter_mut().enumerate() {
            own.slide(scraped, Seconds::whole(600).before(now), 200, all[index][look].1.iter().copied());
            let engines = [("0".into(), own.clone())].into();
            state.pods.push(Pod { name: format_smolstr!("p{index}"), engines, ..template.clone() });
        }
        let (found, after) = assess_and_remember(analyzer, &state, &history, now);
        history = after;
        looks += f64::from(u8::from(!found.is_empty()));
        what = what.with(found);
    }
    (looks / count as f64, what)
}

fn load(rate: f64, prompt: f64, answer: f64) -> Load {
    Load { rate, prompt, shared: 0.0, answer: answer.max(1.0), accepted: 1.0, impatient: (0.0, 0.0) }
}

fn lognormal(rng: &mut Rng, mean: f64) -> f64 {
    mean * (rng.normal() - 0.5).exp()
}

/// Workloads that change once, and what they are.
const CHANGES: [(&str, Workload); 10] = [
    ("reasoning, prompts of 400 and then 200 tokens", |second, rng| {
        let prompt = if second < CHANGE { 400.0 } else { 200.0 };
        load(0.25, prompt * (0.8 + 0.4 * rng.unit()), 4000.0 * (0.9 + 0.2 * rng.unit()))
    }),
    ("at most 400 and then 800 tokens for an answer", |second, rng| {
        load(3.0, 500.0 * rng.exponential(), if second < CHANGE { 400.0 } else { 800.0 })
    }),
    ("a system prompt that all share, of 2000 and then 4000 tokens", |second, rng| {
        let shared = if second < CHANGE { 2000.0 } else { 4000.0 };
        let own = load(0.5, shared + 200.0 * rng.unit(), 3000.0 * (0.8 + 0.4 * rng.unit()));
        Load { shared, ..own }
    }),
    ("prompts of 1000 and then 2500 tokens", |second, rng| {
        let prompt = if second < CHANGE { 1000.0 } else { 2500.0 };
        load(3.0, prompt * (0.7 + 0.6 * rng.unit()), 300.0 * (0.5 + rng.unit()))
    }),
    ("speculation of which 1.5 and then 0.5 tokens a step are accepted", |second, rng| {
        let own = load(0.8, 800.0 * (0.5 + rng.unit()), 600.0 * rng.exponential());
        Load { accepted: if second < CHANGE { 2.5 } else { 1.5 }, ..own }
    }),
    ("a gateway that sends no more", |second, rng| {
        let rate = if second < CHANGE { 0.8 } else { 0.0 };
        load(rate, 300.0 * (0.8 + 0.4 * rng.unit()), 1500.0 * rng.exponential())
    }),
    ("clients of whom none and then seven of ten give up", |second, rng| {
        let own = load(2.0, 1500.0 * (0.5 + rng.unit()), 600.0 * rng.exponential());
        Load { impatient: (if second < CHANGE { 0.0 } else { 0.7 }, 200.0), ..own }
    }),
    ("clients of whom half and then nine of ten give up", |second, rng| {
        let own = load(1.0, 6000.0 * (0.5 + rng.unit()), 400.0 * (0.5 + rng.unit()));
        Load { impatient: (if second < CHANGE { 0.5 } else { 0.9 }, 200.0), ..own }
    }),
    ("clients of whom none and then four of ten give up, late", |second, rng| {
        let own = load(0.8, lognormal(rng, 200.0), lognormal(rng, 2000.0));
        Load { impatient: (if second < CHANGE { 0.0 } else { 0.4 }, 2500.0), ..own }
    }),
    ("fifteen long prompts at once", |second, rng| {
        let many = (CHANGE..CHANGE + 15.0).contains(&second);
        let (rate, prompt) = if many { (1.5, 6000.0) } else { (0.6, 800.0) };
        load(rate, prompt * (0.8 + 0.4 * rng.unit()), 2500.0 * (0.9 + 0.2 * rng.unit()))
    }),
];

const STATIONARY: [(&str, Workload); 3] = [
    ("exponential sizes, 0.8 requests/s", |_, rng| {
        load(0.8, 1.0 + 800.0 * rng.exponential(), 400.0 * rng.exponential())
    }),
    ("lognormal sizes, 0.8 requests/s", |_, rng| load(0.8, lognormal(rng, 800.0), lognormal(rng, 400.0))),
    ("lognormal sizes, 4 requests/s", |_, rng| load(4.0, lognormal(rng, 800.0), lognormal(rng, 400.0))),
];

/// What is distrusted under `workload`, as a share of looks, by whom and of whom it is looked at most.
fn most_doubted(workload: Workload) -> (f64, SignalSet) {
    let looks = [
        (Analyzer::Throughput, 15.0, 4, true),
        (Analyzer::Rate, 5.0, 4, true),
        (Analyzer::Rate, 5.0, 1, false),
        (Analyzer::SaturationPercent, 15.0, 4, true),
        (Analyzer::Saturation, 15.0, 4, false),
    ];
    let distrusted =
        looks.map(|(analyzer, interval, pods, steps)| distrusted(analyzer, workload, interval, pods, steps));
    distrusted
        .into_iter()
        .fold((0.0, SignalSet::NONE), |(most, all), (share, what)| (share.max(most), all.with(what)))
}

#[test]
fn sudden_changes_of_the_workload_contradict_nothing() {
    for (name, workload) in CHANGES {
        let (share, what) = most_doubted(workload);
        assert!(what.is_empty(), "{name}: {what:?} in {:.1} % of looks", 100.0 * share);
    }
}

#[test]
fn steady_workloads_of_any_size_distribution_are_rarely_contradicted() {
    for (name, workload) in STATIONARY {
        let (share, what) = most_doubted(workload);
        assert!(share <= 0.05, "{name}: {what:?} in {:.1} % of looks", 100.0 * share);
    }
}
