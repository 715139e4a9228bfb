//! How long a decision takes, by the number of variants: `cargo bench -p wva-core --bench decide -- --quick`.
//!
//! Every group is at its look: the analyzer runs, which is the longest way through. The times are of one thread.
#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a benchmark may fail like a test; its macros document nothing"
)]

mod fleet;

use std::collections::BTreeSet;
use std::hint::black_box;

use criterion::{BatchSize, Bencher, Criterion, criterion_group, criterion_main};
use jiff::{SignedDuration, Timestamp};
use wva_core::check::check;
use wva_core::decision::{Reason, Verdict};
use wva_core::model::Analyzer;
use wva_core::snapshot::{Sample, Signal, Signals};
use wva_core::{Decision, GroupId, Memory, Policy, Snapshot, decide, observe};

use fleet::{SCRAPE, START, variant};

const SIZES: [u32; 4] = [100, 1_000, 10_000, 100_000];

/// Samples of each signal: what a window of 75 s holds at a scrape every 15 s.
const SAMPLES: i32 = 5;

/// Which of the three values of [`SIGNALS`] neither asks for more nor allows fewer.
const IN_BETWEEN: u32 = 2;

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

fn signals(load: usize, now: Timestamp) -> Signals {
    let mut signals = Signals::default();
    for (signal, values) in SIGNALS {
        signals.add(signal, samples(values[load], now));
    }
    signals
}

/// `size` variants at `now`, in groups of one, two and three; `load` says which values a group shows.
fn fleet(size: u32, now: Timestamp, load: impl Fn(u32) -> u32) -> Snapshot {
    let mut groups = Vec::new();
    let mut left = size;
    for index in 0..size {
        let wide = (index % 3 + 1).min(left);
        if wide == 0 {
            break;
        }
        left -= wide;
        let (namespace, model) = (index % 100, format!("meta-llama/Llama-3.1-8B-Instruct-{index}"));
        let id = GroupId::new(format!("team-{namespace}"), model);
        let signals = signals(usize::try_from(load(index)).unwrap(), now);
        let of_position = |position| {
            let name = format!("llama-3-1-8b-instruct-{index}-{position}");
            variant(&id, &name, 10.0 + f64::from(position), &signals)
        };
        let variants = (0..wide).map(of_position).collect();
        let mut scheduler = Signals::default();
        scheduler.add(Signal::SchedulerQueueSize, samples(0.0, now));
        groups.push((id, variants, scheduler));
    }
    fleet::snapshot(now, groups.into_iter())
}

/// `snapshot` a cycle later, with the load of `fleet`: as in the program, it shares its names with the one before.
fn later(mut snapshot: Snapshot, fleet: Snapshot) -> Snapshot {
    snapshot.now = fleet.now;
    for (group, measured) in snapshot.groups.values_mut().zip(fleet.groups.into_values()) {
        group.scheduler = measured.scheduler;
        for (state, measured) in group.variants.iter_mut().zip(measured.variants) {
            for (pod, measured) in state.pods.iter_mut().zip(measured.pods) {
                pod.engines = measured.engines;
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
    fleet::measure(criterion, name, &SIZES, warm, run);
}

/// V1, the analyzer with the least arithmetic: what is measured is everything around it.
fn policy() -> Policy {
    fleet::policy(Analyzer::SaturationPercent)
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
