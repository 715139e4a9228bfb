//! How long a decision takes, by the number of variants: `cargo bench -p wva-core --bench decide -- --quick`.
//!
//! Every group is at its look: the analyzer runs, which is the longest way through. The times are of one thread.
#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a benchmark may fail like a test; its macros document nothing"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::hint::black_box;

use criterion::{BatchSize, Bencher, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use jiff::{SignedDuration, Timestamp};
use smol_str::{SmolStr, format_smolstr};
use wva_core::check::check;
use wva_core::decision::{Reason, Verdict};
use wva_core::model::{Analyzer, Bounds, Role, TargetRef, Variant};
use wva_core::snapshot::{
    ModelGroup, Phase, Replica, Sample, Scale, Signal, Signals, SourceHealth, Template, VariantState,
};
use wva_core::units::{Cost, Replicas};
use wva_core::{Decision, GroupId, Memory, Policy, Snapshot, VariantId, decide, observe};

/// As in the program: what is decided is full of names, and a quarter of the time goes into making them.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const SIZES: [u32; 4] = [100, 1_000, 10_000, 100_000];

/// Pods of each variant, and samples of each of their signals: what a window of 75 s holds at a scrape every 15 s.
const PODS: u32 = 2;
const SAMPLES: i32 = 5;
const SCRAPE: SignedDuration = SignedDuration::from_secs(15);

/// Which of the three values of [`SIGNALS`] neither asks for more nor allows fewer.
const IN_BETWEEN: u32 = 2;

const START: Timestamp = Timestamp::constant(1_800_000_000, 0);

/// What is asked of an engine under the default policy (`wva_core::required_signals`), and its values in a group that is saturated,
/// calm or in between.
const SIGNALS: [(Signal, [f64; 3]); 2] =
    [(Signal::KvUsage, [0.78, 0.21, 0.62]), (Signal::Waiting, [4.0, 0.0, 1.0])];

fn samples(value: f64, now: Timestamp) -> impl Iterator<Item = Sample> {
    let sample = move |back: i32| Sample {
        at: now - SignedDuration::from_secs(4) - SCRAPE * back,
        value: value - value * 0.01 * f64::from(back),
    };
    (0..SAMPLES).rev().map(sample)
}

fn replica(variant: &str, pod: u32, load: usize, now: Timestamp) -> Replica {
    let mut signals = Signals::default();
    for (signal, values) in SIGNALS {
        signals.add(signal, samples(values[load], now));
    }
    let since = START - SignedDuration::from_hours(5);
    Replica {
        pod: format_smolstr!("{variant}-7d9f8c6b5d-x2x4{pod}"),
        phase: Phase::Ready,
        created: since,
        ready_since: Some(since + SignedDuration::from_mins(4)),
        engines: [(SmolStr::new_static("0"), signals)].into(),
    }
}

fn variant(group: &GroupId, name: &str, position: u32, load: usize, now: Timestamp) -> VariantState {
    let count = Replicas::new(PODS);
    VariantState {
        variant: Variant {
            id: VariantId::new(group.namespace.clone(), name),
            model: group.model.clone(),
            target: TargetRef { kind: "Deployment".into(), name: name.into() },
            cost: Cost::new(10.0 + f64::from(position)).unwrap(),
            bounds: Bounds { min: Replicas::ONE, max: Some(Replicas::new(20)) },
            accelerator: Some("H100".into()),
            role: Role::Both,
        },
        scale: Some(Scale { spec: count, current: count, ready: count }),
        replicas: (0..PODS).map(|pod| replica(name, pod, load, now)).collect(),
        last_status: Some(count),
        template: Template::default(),
    }
}

/// `size` variants at `now`, in groups of one, two and three; `load` says which values a group shows.
fn fleet(size: u32, now: Timestamp, load: impl Fn(u32) -> u32) -> Snapshot {
    let mut groups = BTreeMap::new();
    let mut left = size;
    for index in 0..size {
        let wide = (index % 3 + 1).min(left);
        left -= wide;
        if wide == 0 {
            break;
        }
        let load = usize::try_from(load(index)).unwrap();
        let id = GroupId::new(
            format!("team-{}", index % 100),
            format!("meta-llama/Llama-3.1-8B-Instruct-{index}"),
        );
        let name = |position| format!("llama-3-1-8b-instruct-{index}-{position}");
        let variants = (0..wide).map(|position| variant(&id, &name(position), position, load, now)).collect();
        let mut scheduler = Signals::default();
        scheduler.add(Signal::SchedulerQueueSize, samples(0.0, now));
        groups.insert(id, ModelGroup { source: SourceHealth::Complete, variants, scheduler });
    }
    Snapshot { now, groups, invalid: Vec::new(), inventory: None, elsewhere: [].into(), unlabelled: None }
}

/// `snapshot` a cycle later, with the load of `fleet`: as in the program, it shares its names with the one before.
fn later(mut snapshot: Snapshot, fleet: Snapshot) -> Snapshot {
    snapshot.now = fleet.now;
    for (group, measured) in snapshot.groups.values_mut().zip(fleet.groups.into_values()) {
        group.scheduler = measured.scheduler;
        for (one, measured) in group.variants.iter_mut().zip(measured.variants) {
            for (replica, measured) in one.replicas.iter_mut().zip(measured.replicas) {
                replica.engines = measured.engines;
            }
        }
    }
    snapshot
}

/// A fleet of which a third is saturated, a third calm and a third in between, and what is remembered of it from the
/// cycle before, when all of it was in between.
fn warm(size: u32) -> (Snapshot, Memory) {
    let before = fleet(size, START, |_| IN_BETWEEN);
    let memory = decide(&before, &observe(&before, Memory::default()), &policy()).memory;
    let snapshot = later(before, fleet(size, START + SCRAPE, |index| index / 3 % 3));
    let memory = observe(&snapshot, memory);
    let outcome = decide(&snapshot, &memory, &policy());
    let reasons: BTreeSet<Reason> = outcome.decisions.values().filter_map(reason).collect();
    assert_eq!(reasons, [Reason::ScaleUp, Reason::ScaleDown, Reason::Steady].into(), "what is measured");
    (snapshot, memory)
}

fn reason(decision: &Decision) -> Option<Reason> {
    if let Verdict::Target(target) = &decision.verdict { Some(target.reason) } else { None }
}

fn measure(criterion: &mut Criterion, name: &str, run: impl Fn(&mut Bencher<'_>, &Snapshot, &Memory)) {
    let mut group = criterion.benchmark_group(name);
    for size in SIZES {
        group.throughput(Throughput::Elements(u64::from(size)));
        group.bench_function(BenchmarkId::from_parameter(size), |bench| {
            let (snapshot, memory) = warm(size);
            run(bench, &snapshot, &memory);
        });
    }
    group.finish();
}

/// V1, the analyzer with the least arithmetic: what is measured is the house around it.
fn policy() -> Policy {
    let mut policy = Policy::default();
    policy.global.default.analyzer = Analyzer::SaturationPercent;
    policy
}

fn benchmarks(criterion: &mut Criterion) {
    let policy = policy();
    measure(criterion, "decide", |bench, snapshot, memory| {
        // What is decided lives on until the next decision: its end is not timed.
        bench.iter_with_large_drop(|| decide(black_box(snapshot), black_box(memory), &policy));
    });
    measure(criterion, "observe", |bench, snapshot, memory| {
        let fold = |memory| observe(black_box(snapshot), memory);
        bench.iter_batched(|| memory.clone(), fold, BatchSize::PerIteration);
    });
    measure(criterion, "check", |bench, snapshot, memory| {
        let decisions = decide(snapshot, memory, &policy).decisions;
        bench.iter(|| check(black_box(snapshot), memory, &policy, &decisions));
    });
}

criterion_group!(decisions, benchmarks);
criterion_main!(decisions);
