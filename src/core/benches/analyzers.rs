//! How long a decision takes by analyzer, of a model with two replicas: `cargo bench -p wva-core --bench analyzers -- --quick`.
//!
//! Every model is at its look. The times are of one thread. A snapshot is what the program has where Prometheus is its
//! source: of the series, those that the policy needs (`wva_core::required_signals`), as far back as it asks for, which is a scrape
//! more than decisions look back; and the names of the snapshot before.
#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a benchmark may fail like a test; its macros document nothing"
)]

mod fleet;

use std::cell::LazyCell;
use std::hint::black_box;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use jiff::{SignedDuration, Timestamp};
use smol_str::{SmolStr, format_smolstr};
use wva_core::memory::GroupMemory;
use wva_core::model::{Analyzer, ClassTarget, LatencyTargets, ServiceClass};
use wva_core::snapshot::{ModelGroup, Sample, Signal, Signals};
use wva_core::{GroupId, Memory, Policy, RequiredSignals, Snapshot, decide, observe, required_signals};

use fleet::{SCRAPE, START, measure};

const SIZES: [u32; 3] = [1, 100, 10_000];
/// Every namespace serves its own: one class of service is for all.
const MODEL: &str = "meta-llama/Llama-3.1-8B-Instruct";
/// What Prometheus is asked for where a policy looks no further back than peaks, at this distance of scrapes.
const LEAST: SignedDuration = SignedDuration::from_secs(75);

/// Gauges, each always the same.
const GAUGES: [(Signal, f64); 4] = [
    (Signal::KvUsage, 0.62),
    (Signal::Waiting, 1.0),
    (Signal::Running, 12.0),
    (Signal::KvCapacity, 400_000.0),
];

/// The same of a scheduler.
const QUEUE: [(Signal, f64); 2] = [(Signal::SchedulerQueueSize, 0.0), (Signal::SchedulerQueueBytes, 0.0)];

/// Counters, by what they grow a second: three requests of 1000 tokens, half of which are in the cache, and 200 generated, 12 in a step.
const COUNTERS: [(Signal, f64); 14] = [
    (Signal::PromptTokens, 3000.0),
    (Signal::RequestPromptTokensSum, 3000.0),
    (Signal::RequestPromptTokensCount, 3.0),
    (Signal::RequestGenerationTokensSum, 600.0),
    (Signal::RequestGenerationTokensCount, 3.0),
    (Signal::GenerationTokens, 600.0),
    (Signal::EngineSteps, 50.0),
    (Signal::InterTokenLatencySum, 12.0),
    (Signal::InterTokenLatencyCount, 600.0),
    (Signal::TimeToFirstTokenSum, 0.3),
    (Signal::TimeToFirstTokenCount, 3.0),
    (Signal::PrefixCacheHits, 1500.0),
    (Signal::PrefixCacheQueries, 3000.0),
    (Signal::SchedulerAttempts, 3.0),
];

/// Those of `gauges` and `counters` that are needed, as far back as Prometheus is asked.
fn signals(
    now: Timestamp,
    needs: &RequiredSignals,
    gauges: &[(Signal, f64)],
    counters: &[(Signal, f64)],
) -> Signals {
    let mut signals = Signals::default();
    let looked = needs.window.get();
    let back = if looked > 0.0 { looked + SCRAPE.as_secs_f64() } else { LEAST.as_secs_f64() };
    let times = || {
        let times = (0..).map(|scrape| now - SignedDuration::from_secs(4) - SCRAPE * scrape);
        times.take_while(|at| now.duration_since(*at).as_secs_f64() < back)
    };
    let mut add = |signal: Signal, value: &dyn Fn(Timestamp) -> f64| {
        if needs.signals.contains(&signal) {
            // Schedulers are scraped at their own times.
            let before = SignedDuration::from_secs(if signal == Signal::SchedulerAttempts { 7 } else { 0 });
            signals.add(signal, times().map(|at| Sample { at: at - before, value: value(at - before) }));
        }
    };
    gauges.iter().for_each(|(signal, value)| add(*signal, &|_| *value));
    for (signal, growth) in counters {
        add(*signal, &|at| {
            let since = at.duration_since(START - SignedDuration::from_hours(1)).as_secs_f64();
            // Not quite evenly, as nothing is.
            growth * (since + (since * 0.7).sin())
        });
    }
    signals
}

/// Of which nothing was measured yet.
fn fleet(size: u32) -> Snapshot {
    let group = |index| {
        let id = GroupId::new(format!("team-{index}"), MODEL);
        let name = format_smolstr!("llama-3-1-8b-instruct-{index}");
        let variant = fleet::variant(&id, &name, 10.0, &Signals::default());
        (id, vec![variant], Signals::default())
    };
    fleet::snapshot(START, (0..size).map(group))
}

/// `fleet` at `now`, with what the program would know of it under `policy`.
fn measured(fleet: &Snapshot, now: Timestamp, policy: &Policy) -> Snapshot {
    let variants = fleet.groups.values().flat_map(|group| &group.variants).map(|state| &state.variant);
    let needs = required_signals(policy, variants);
    let mut snapshot = Snapshot { now, ..fleet.clone() };
    for group in snapshot.groups.values_mut() {
        group.scheduler = signals(now, &needs, &QUEUE, &[]);
        let pods = group.variants.iter_mut().flat_map(|state| &mut state.pods);
        for engine in pods.flat_map(|pod| pod.engines.values_mut()) {
            *engine = signals(now, &needs, &GAUGES, &COUNTERS);
        }
    }
    snapshot
}

fn later(fleet: &Snapshot, memory: Memory, now: Timestamp, policy: &Policy) -> Memory {
    let snapshot = measured(fleet, now, policy);
    decide(&snapshot, &observe(&snapshot, memory), policy).memory
}

fn policy(analyzer: Analyzer) -> Policy {
    let mut policy = fleet::policy(analyzer);
    let latency = LatencyTargets { ttft_ms: 500.0, itl_ms: 50.0 };
    policy.global.default.queueing.targets = Some(latency);
    let targets = vec![ClassTarget { model: MODEL.into(), latency }];
    policy.service_classes = vec![ServiceClass { name: "Premium".into(), priority: 1, targets }];
    policy
}

fn benchmarks(criterion: &mut Criterion) {
    for analyzer in Analyzer::ALL {
        let policy = policy(analyzer);
        // Learned once: what is measured is a cycle like any other.
        let world = |size| {
            let fleet = fleet(size);
            let learn = |memory, cycle| later(&fleet, memory, START + SCRAPE * cycle, &policy);
            let memory = (0..3).fold(Memory::default(), learn);
            let snapshot = measured(&fleet, START + SCRAPE * 3, &policy);
            let memory = observe(&snapshot, memory);
            (snapshot, memory)
        };
        measure(criterion, analyzer.as_str(), &SIZES, world, |bench, snapshot, memory| {
            bench.iter_with_large_drop(|| decide(black_box(snapshot), black_box(memory), &policy));
        });
    }
}

/// What the rate policy takes of a processor at every scrape: it learns from the new samples of every pod, and decides with ten
/// minutes of arrivals, of which every model has some that vary.
fn rate_with_what_it_learns(criterion: &mut Criterion) {
    const FAST: SignedDuration = SignedDuration::from_secs(5);
    let policy = policy(Analyzer::Rate);
    let learned = LazyCell::new(|| {
        let fleet = fleet(1);
        let learn = |memory, cycle| later(&fleet, memory, START + FAST * cycle, &policy);
        (0..130).fold(Memory::default(), learn)
    });
    let world = |size| {
        let snapshot = measured(&fleet(size), START + FAST * 130, &policy);
        let first = learned.groups.values().next().unwrap();
        let of = |(id, group): (&GroupId, &ModelGroup)| {
            (id.clone(), renamed(first, &group.variants[0].variant.id.name))
        };
        let memory = Memory { groups: snapshot.groups.iter().map(of).collect(), ..Memory::default() };
        (snapshot, memory)
    };
    measure(criterion, "rate, learned and decided", &SIZES, world, |bench, snapshot, memory| {
        let decided = |memory| decide(black_box(snapshot), &observe(black_box(snapshot), memory), &policy);
        bench.iter_batched(|| memory.clone(), decided, BatchSize::PerIteration);
    });
}

/// The memory of one model as that of another, whose only variant is called `name`.
fn renamed(memory: &GroupMemory, name: &SmolStr) -> GroupMemory {
    let text = serde_json::to_string(memory).unwrap();
    serde_json::from_str(&text.replace("llama-3-1-8b-instruct-0", name)).unwrap()
}

criterion_group!(analyzers, benchmarks, rate_with_what_it_learns);
criterion_main!(analyzers);
