//! How long a decision takes by analyzer, of a model with two replicas: `cargo bench -p wva-core --bench analyzers -- --quick`.
//!
//! Every model is at its look. The times are of one thread.
#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a benchmark may fail like a test; its macros document nothing"
)]

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use jiff::{SignedDuration, Timestamp};
use smol_str::{SmolStr, format_smolstr};
use wva_core::analyze::finding::Analyzer;
use wva_core::model::{Bounds, ClassTarget, LatencyTargets, Role, ServiceClass, TargetRef, Variant};
use wva_core::snapshot::{
    ModelGroup, Phase, Replica, Sample, Scale, Signal, Signals, SourceHealth, Template, VariantState,
};
use wva_core::units::{Cost, Replicas};
use wva_core::{GroupId, Memory, Policy, Snapshot, VariantId, decide, observe};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const SIZES: [u32; 3] = [1, 100, 10_000];
const REPLICAS: u32 = 2;
/// Every namespace serves its own: one class of service is for all.
const MODEL: &str = "meta-llama/Llama-3.1-8B-Instruct";
const SCRAPE: SignedDuration = SignedDuration::from_secs(15);
const START: Timestamp = Timestamp::constant(1_800_000_000, 0);

/// Gauges, each always the same.
const GAUGES: [(Signal, f64); 4] = [
    (Signal::KvUsage, 0.62),
    (Signal::Waiting, 1.0),
    (Signal::Running, 12.0),
    (Signal::KvCapacity, 400_000.0),
];

/// Counters, by what they grow a second: three requests of 1000 tokens and 200 generated.
const COUNTERS: [(Signal, f64); 10] = [
    (Signal::RequestPromptTokensSum, 3000.0),
    (Signal::RequestPromptTokensCount, 3.0),
    (Signal::RequestGenerationTokensSum, 600.0),
    (Signal::RequestGenerationTokensCount, 3.0),
    (Signal::GenerationTokens, 600.0),
    (Signal::InterTokenLatencySum, 12.0),
    (Signal::InterTokenLatencyCount, 600.0),
    (Signal::TimeToFirstTokenSum, 0.3),
    (Signal::TimeToFirstTokenCount, 3.0),
    (Signal::SchedulerAttempts, 3.0),
];

fn signals(now: Timestamp) -> Signals {
    let mut signals = Signals::default();
    let series = |each: f64, grows: bool| {
        (0..21).rev().map(move |back: i32| {
            let at = now - SignedDuration::from_secs(4) - SCRAPE * back;
            let since = at.duration_since(START - SignedDuration::from_hours(1)).as_secs_f64();
            Sample { at, value: if grows { each * since } else { each } }
        })
    };
    GAUGES.iter().for_each(|(signal, value)| signals.add(*signal, series(*value, false)));
    COUNTERS.iter().for_each(|(signal, each)| signals.add(*signal, series(*each, true)));
    signals
}

fn fleet(size: u32, now: Timestamp) -> Snapshot {
    let engines = || [(SmolStr::new_static("0"), signals(now))].into();
    let count = Replicas::new(REPLICAS);
    let replica = |name: &str, pod| Replica {
        pod: format_smolstr!("{name}-7d9f8c6b5d-x2x4{pod}"),
        phase: Phase::Ready,
        created: START - SignedDuration::from_hours(5),
        ready_since: Some(START - SignedDuration::from_hours(4)),
        engines: engines(),
    };
    let group = |index| {
        let id = GroupId::new(format!("team-{index}"), MODEL);
        let name = format_smolstr!("llama-3-1-8b-instruct-{index}");
        let state = VariantState {
            variant: Variant {
                id: VariantId::new(id.namespace.clone(), name.clone()),
                model: id.model.clone(),
                target: TargetRef { kind: "Deployment".into(), name: name.clone() },
                cost: Cost::new(10.0).unwrap(),
                bounds: Bounds { min: Replicas::ONE, max: Some(Replicas::new(20)) },
                accelerator: Some("H100".into()),
                role: Role::Both,
            },
            scale: Some(Scale { spec: count, current: count, ready: count }),
            replicas: (0..REPLICAS).map(|pod| replica(&name, pod)).collect(),
            last_status: Some(count),
            template: Template::default(),
        };
        let mut scheduler = Signals::default();
        scheduler.add(Signal::SchedulerQueueSize, [Sample { at: now, value: 0.0 }]);
        (id, ModelGroup { source: SourceHealth::Complete, variants: vec![state], scheduler })
    };
    Snapshot {
        now,
        groups: (0..size).map(group).collect(),
        invalid: Vec::new(),
        inventory: None,
        elsewhere: [].into(),
    }
}

fn policy(analyzer: Analyzer) -> Policy {
    let mut policy = Policy::default();
    policy.global.default.analyzer = analyzer;
    let latency = LatencyTargets { ttft_ms: 500.0, itl_ms: 50.0 };
    policy.global.default.queueing.targets = Some(latency);
    let targets = vec![ClassTarget { model: MODEL.into(), latency }];
    policy.service_classes = vec![ServiceClass { name: "Premium".into(), priority: 1, targets }];
    policy
}

fn benchmarks(criterion: &mut Criterion) {
    let analyzers = [
        Analyzer::SaturationPercent,
        Analyzer::Saturation,
        Analyzer::Throughput,
        Analyzer::QueueingModel,
        Analyzer::Threshold,
        Analyzer::Weighted,
        Analyzer::Inferno,
    ];
    for analyzer in analyzers {
        let (mut group, policy) = (criterion.benchmark_group(analyzer.as_str()), policy(analyzer));
        for size in SIZES {
            // Learned once: what is measured is a cycle like any other.
            let memory = (0..3).fold(Memory::default(), |memory, cycle| {
                let snapshot = fleet(size, START + SCRAPE * cycle);
                decide(&snapshot, &observe(&snapshot, memory), &policy).memory
            });
            let snapshot = fleet(size, START + SCRAPE * 3);
            let memory = observe(&snapshot, memory);
            group.throughput(Throughput::Elements(u64::from(size)));
            group.bench_function(BenchmarkId::from_parameter(size), |bench| {
                bench.iter_with_large_drop(|| decide(black_box(&snapshot), black_box(&memory), &policy));
            });
        }
        group.finish();
    }
}

criterion_group!(analyzers, benchmarks);
criterion_main!(analyzers);
