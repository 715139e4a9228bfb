//! Fleets as the program sees them: Deployments of two pods that have been Ready for hours.

use std::cell::LazyCell;

use criterion::{Bencher, BenchmarkId, Criterion, Throughput};
use jiff::{SignedDuration, Timestamp};
use smol_str::{SmolStr, format_smolstr};
use wva_core::model::{Analyzer, Bounds, TargetRef, Variant};
use wva_core::snapshot::{ModelGroup, Phase, Pod, Scale, Signals, SourceHealth, VariantState};
use wva_core::units::{Cost, Replicas};
use wva_core::{GroupId, Memory, Policy, Snapshot, VariantId};

/// As in the program: what is decided is full of names, and a quarter of the time goes into making them.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

pub(crate) const SCRAPE: SignedDuration = SignedDuration::from_secs(15);
pub(crate) const START: Timestamp = Timestamp::constant(1_800_000_000, 0);
const REPLICAS: u32 = 2;

/// A variant whose pods all show `signals`.
pub(crate) fn variant(group: &GroupId, name: &str, cost: f64, signals: &Signals) -> VariantState {
    let count = Replicas::new(REPLICAS);
    let replica = |pod| Pod {
        name: format_smolstr!("{name}-7d9f8c6b5d-x2x4{pod}"),
        phase: Phase::Ready,
        created: START - SignedDuration::from_hours(5),
        ready_since: Some(START - SignedDuration::from_hours(4)),
        engines: [(SmolStr::new_static("0"), signals.clone())].into(),
    };
    let id = VariantId::new(group.namespace.clone(), name);
    let variant = Variant {
        cost: Cost::new(cost).unwrap(),
        bounds: Bounds { min: Replicas::ONE, max: Some(Replicas::new(20)) },
        accelerator: Some("H100".into()),
        ..Variant::new(id, group.model.clone(), TargetRef::deployment(name))
    };
    VariantState {
        scale: Some(Scale { spec: count, current: count, ready: count }),
        last_status: Some(count),
        ..VariantState::new(variant, (0..REPLICAS).map(replica).collect())
    }
}

pub(crate) fn snapshot(
    now: Timestamp,
    groups: impl Iterator<Item = (GroupId, Vec<VariantState>, Signals)>,
) -> Snapshot {
    let group =
        |(id, variants, scheduler)| (id, ModelGroup { source: SourceHealth::Complete, variants, scheduler });
    Snapshot::new(now, groups.map(group).collect())
}

/// The default policy with another analyzer.
pub(crate) fn policy(analyzer: Analyzer) -> Policy {
    let mut policy = Policy::default();
    policy.global.default.analyzer = analyzer;
    policy
}

/// Measures `run` at each of `sizes`, with what `world` makes for it: once, and not at all where a filter leaves it out.
pub(crate) fn measure(
    criterion: &mut Criterion,
    name: &str,
    sizes: &[u32],
    world: impl Fn(u32) -> (Snapshot, Memory),
    run: impl Fn(&mut Bencher<'_>, &Snapshot, &Memory),
) {
    let mut group = criterion.benchmark_group(name);
    for size in sizes {
        let world = LazyCell::new(|| world(*size));
        group.throughput(Throughput::Elements(u64::from(*size)));
        group.bench_function(BenchmarkId::from_parameter(size), |bench| {
            let (snapshot, memory) = &*world;
            run(bench, snapshot, memory);
        });
    }
    group.finish();
}
