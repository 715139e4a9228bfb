//! Arbitrary snapshots, memories and policies, with which properties of whole decisions are tested.

use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use smol_str::format_smolstr;
use wva_core::model::{InvalidVariant, LimitPolicy, ModelPolicy, Power, Scope, Stability, StepLimit};
use wva_core::name_map::NameMap;

use super::prelude::*;

pub(crate) const NOW: Timestamp = Timestamp::constant(1_800_000_000, 0);
const NAMES: [&str; 4] = ["a", "b", "c", "d"];

fn ago(seconds: i64) -> Timestamp {
    NOW - SignedDuration::from_secs(seconds)
}

fn any_count() -> impl Strategy<Value = Replicas> {
    prop_oneof![3 => 0_u32..7, 1 => 8_u32..33].prop_map(Replicas::new)
}

/// Ages: mostly those at which something changes, and some after a clock was set back.
fn age() -> impl Strategy<Value = i64> {
    prop_oneof![4 => 0_i64..20, 4 => 25_i64..65, 4 => 290_i64..310, 4 => 0_i64..5000, 1 => -4000_i64..0]
}

fn source() -> impl Strategy<Value = SourceHealth> {
    prop_oneof![
        4 => Just(SourceHealth::Complete),
        1 => Just(SourceHealth::Partial { warnings: vec!["a store is missing".into()] }),
        1 => Just(SourceHealth::Down { cause: "connection refused".into() }),
    ]
}

fn series(values: impl Strategy<Value = f64> + 'static) -> BoxedStrategy<Vec<Sample>> {
    (prop_oneof![3 => 0_i64..20, 1 => age()], prop_oneof![Just(5_i64), Just(15), Just(60)], vec(values, 0..4))
        .prop_map(|(newest, gap, values)| {
            let sample = |(back, value)| Sample { at: ago(newest + gap * back), value };
            (0_i64..).zip(values).map(sample).collect()
        })
        .boxed()
}

/// KV usage, queue, running requests, and answers.
const GAUGES: [Signal; 4] =
    [Signal::KvUsage, Signal::Waiting, Signal::Running, Signal::TimeToFirstTokenCount];

fn signals() -> BoxedStrategy<Signals> {
    let zero_or = |max: f64| prop_oneof![1 => Just(0.0), 2 => 0.0..max];
    let odd = (
        series(zero_or(1.0)),
        series(zero_or(9.0)),
        series(zero_or(4.0)),
        series(prop_oneof![Just(0.0), Just(7.0)]),
    )
        .prop_map(|(kv, waiting, running, done)| [kv, waiting, running, done]);
    let healthy = |values| Just(healthy(values));
    prop_oneof![
        3 => odd,
        1 => healthy([0.0, 0.0, 0.0, 9.0]),
        3 => healthy([0.2, 1.0, 2.0, 9.0]),
        1 => healthy([0.9, 6.0, 9.0, 9.0]),
    ]
    .prop_flat_map(|gauges| (Just(gauges), work()))
    .prop_map(|(gauges, work)| {
        let mut signals = Signals::default();
        let all = work.into_iter().chain(GAUGES.into_iter().zip(gauges));
        all.for_each(|(signal, samples)| signals.add(signal, samples));
        signals
    })
    .boxed()
}

/// An engine that is scraped without gaps and shows these values.
fn healthy(values: [f64; 4]) -> [Vec<Sample>; 4] {
    values.map(|value| (0..4).map(|back| Sample { at: ago(5 + 15 * back), value }).collect())
}

/// What the analyzers of capacity read besides: the cache's size, and counters that each grow at some rate; or nothing.
fn work() -> BoxedStrategy<Vec<(Signal, Vec<Sample>)>> {
    let counters = [
        Signal::RequestPromptTokensSum,
        Signal::RequestPromptTokensCount,
        Signal::RequestGenerationTokensSum,
        Signal::RequestGenerationTokensCount,
        Signal::InterTokenLatencySum,
        Signal::PromptTokens,
        Signal::GenerationTokens,
        Signal::InterTokenLatencyCount,
        Signal::TimeToFirstTokenSum,
        Signal::TimeToFirstTokenCount,
        Signal::SchedulerAttempts,
    ];
    let rates = vec(prop_oneof![1 => Just(0.0), 4 => 0.01..500.0], counters.len());
    let capacity = prop_oneof![1 => Just(0.0), 4 => 1000.0..500_000.0];
    let some = (rates, capacity).prop_map(move |(rates, capacity)| {
        let grown = |rate: f64| {
            (0..20).map(move |back: i32| Sample {
                at: ago(i64::from(5 + 15 * back)),
                value: rate * f64::from(15 * (20 - back)),
            })
        };
        let counters = counters.into_iter().zip(rates).map(|(signal, rate)| (signal, grown(rate).collect()));
        let capacity = (Signal::KvCapacity, std::vec![Sample { at: ago(5), value: capacity }]);
        counters.chain([capacity]).collect()
    });
    prop_oneof![1 => Just(Vec::new()), 3 => some].boxed()
}

fn pod() -> BoxedStrategy<Pod> {
    let phase = prop_oneof![
        12 => Just(Phase::Ready),
        1 => Just(Phase::Pending),
        1 => Just(Phase::Unschedulable),
        1 => Just(Phase::Starting),
        1 => Just(Phase::Terminating),
    ];
    let engines = prop_oneof![
        6 => signals().prop_map(|engine| [(SmolStr::new_static("0"), engine)].into()),
        1 => btree_map(prop_oneof![Just(SmolStr::new_static("0")), Just(SmolStr::new_static("1"))], signals(), 0..3),
    ];
    (phase, age(), engines)
        .prop_map(|(phase, age, engines)| {
            let ready_since = (phase == Phase::Ready).then(|| ago(age / 2));
            let engines = engines.into();
            Pod { name: SmolStr::default(), phase, created: ago(age), ready_since, engines }
        })
        .boxed()
}

/// Mostly a scale object that counts these pods.
fn scale(pods: &[Pod]) -> impl Strategy<Value = Option<Scale>> + use<> {
    let pods = |is_counted: fn(Phase) -> bool| {
        Replicas::new(count(pods.iter().filter(|pod| is_counted(pod.phase)).count()))
    };
    let (all, ready) = (pods(|phase| phase != Phase::Terminating), pods(|phase| phase == Phase::Ready));
    let true_scale = Scale { spec: all, current: all, ready };
    let any = (any_count(), any_count(), any_count());
    let any = any.prop_map(|(spec, current, ready)| Scale { spec, current, ready });
    prop_oneof![12 => Just(Some(true_scale)), 4 => any.prop_map(Some), 1 => Just(None)]
}

fn state(name: &'static str) -> BoxedStrategy<VariantState> {
    let alike = (pod(), 9_usize..26).prop_map(|(pod, pods)| std::iter::repeat_n(pod, pods).collect());
    let pods = prop_oneof![5 => vec(pod(), 0..5), 1 => alike];
    let rest = pods.prop_flat_map(|pods| (scale(&pods), Just(pods)));
    let bounds = (
        prop_oneof![2 => Just(0_u32), 1 => 0_u32..4],
        prop_oneof![4 => Just(None), 2 => (0_u32..6).prop_map(Some), 1 => (9_u32..25).prop_map(Some)],
    );
    let role = prop_oneof![4 => Just(Role::Both), 1 => Just(Role::Prefill), 1 => Just(Role::Decode)];
    let cost = prop_oneof![Just(0.0), Just(5.0), Just(20.0)];
    let accelerator = prop_oneof![4 => Just(Some("H100")), 1 => Just(Some("A100")), 1 => Just(None)];
    // With few sequences, so that the running requests may not fit into fewer replicas; or without that argument.
    let few = (1_i64..20).prop_map(|max_sequences| EngineParameters {
        max_sequences,
        has_max_sequences: true,
        ..EngineParameters::defaults(Engine::Vllm)
    });
    let of_any = prop_oneof![Just(Engine::Vllm), Just(Engine::Sglang)].prop_map(EngineParameters::defaults);
    let engine = option::of(prop_oneof![3 => few, 1 => of_any]);
    let woken_by = prop_oneof![3 => Just(None), 1 => Just(Some("a proxy"))];
    (rest, bounds, (role, woken_by), (cost, accelerator, 1_u32..3, engine), option::of(any_count()))
        .prop_map(move |((scale, mut pods), (min, max), (role, woken_by), of_pod, last_status)| {
            let (cost, accelerator, gpus, engine) = of_pod;
            for (index, pod) in pods.iter_mut().enumerate() {
                pod.name = format_smolstr!("{name}-{index}");
            }
            let mut state = variant_state(name, pods);
            state.variant.cost = Cost::new(cost).unwrap();
            state.variant.bounds = Bounds { min: Replicas::new(min), max: max.map(Replicas::new) };
            state.variant.accelerator = accelerator.map(Into::into);
            state.variant.role = role;
            state.variant.woken_by = woken_by.map(SmolStr::new_static);
            VariantState { scale, last_status, template: Template { gpus: Some(gpus), engine }, ..state }
        })
        .boxed()
}

pub(crate) fn group() -> BoxedStrategy<ModelGroup> {
    let variants = prop_oneof![
        state("a").prop_map(|a| vec![a]),
        (state("a"), state("b")).prop_map(|(a, b)| vec![a, b]),
        (state("a"), state("b"), state("c")).prop_map(|(a, b, c)| vec![a, b, c]),
    ];
    let scheduler = option::of(series(prop_oneof![Just(0.0), Just(3.0)]));
    (source(), variants, scheduler)
        .prop_map(|(source, variants, queue)| {
            let mut scheduler = Signals::default();
            scheduler.add(Signal::SchedulerQueueSize, queue.unwrap_or_default());
            ModelGroup { source, variants, scheduler }
        })
        .boxed()
}

fn remembered() -> BoxedStrategy<VariantMemory> {
    let moment = || option::of(age().prop_map(ago));
    (prop_oneof![Just(None), any_count().prop_map(Some)], moment(), moment(), moment())
        .prop_map(|(target, target_since, evidence, blind_since)| VariantMemory {
            target,
            target_since: target.and(target_since),
            evidence,
            blind_since,
            ..VariantMemory::default()
        })
        .boxed()
}

pub(crate) fn memory() -> BoxedStrategy<Memory> {
    let moment = || option::of(age().prop_map(ago));
    let variants = btree_map(select(&NAMES[..]).prop_map(SmolStr::new_static), remembered(), 0..4);
    (moment(), moment(), moment(), variants)
        .prop_map(|(cycle_at, idle_since, observed_at, variants)| {
            let variants = NameMap::from(variants);
            let group = GroupMemory { cycle_at, idle_since, observed_at, variants, ..GroupMemory::default() };
            Memory { groups: [(group_id(), group)].into(), ..Memory::default() }
        })
        .boxed()
}

fn sleeping(enabled: bool) -> Scope {
    let scale_to_zero = Some(ScaleToZero { enabled, retention: Seconds::whole(60) });
    Scope { default: ModelPolicy { scale_to_zero, ..ModelPolicy::default() }, ..Scope::default() }
}

pub(crate) fn policy() -> impl Strategy<Value = Policy> {
    (any::<bool>(), prop_oneof![Just(0_u32), Just(15)]).prop_map(|(enabled, cycle)| Policy {
        cycle: Seconds::whole(cycle),
        max_stale: Seconds::whole(300),
        global: sleeping(enabled),
        ..Policy::default()
    })
}

/// Any analyzer, with or without stability rules and limits.
pub(crate) fn any_policy() -> impl Strategy<Value = Policy> {
    let analyzer = prop_oneof![1 => Just(Analyzer::Rate), 8 => select(&Analyzer::ALL[..])];
    let secondary =
        option::of(Just(SecondaryAnalyzer { analyzer: Analyzer::Throughput, score: 1.0, utilisation: None }));
    (policy(), analyzer, secondary, stability(), limits(), latency()).prop_map(
        |(mut policy, analyzer, secondary, stability, limits, latency)| {
            let model = &mut policy.global.default;
            *model = ModelPolicy {
                analyzer,
                stability,
                secondary: secondary.into_iter().collect(),
                ..model.clone()
            };
            model.queueing.targets = latency;
            let service_classes = latency.map(premium).unwrap_or_default();
            // With several cycles at one moment a sample would count several times.
            Policy { cycle: Seconds::whole(15), limits, service_classes, ..policy }
        },
    )
}

/// The same, with upstream's arithmetic or the default.
pub(crate) fn anyones_policy() -> impl Strategy<Value = Policy> {
    let compat = prop_oneof![Just(Compat::Corrected), Just(Compat::Upstream), Just(Compat::UpstreamJune)];
    (any_policy(), compat).prop_map(|(policy, compat)| Policy { compat, ..policy })
}

fn latency() -> impl Strategy<Value = Option<LatencyTargets>> {
    option::of((50.0..5000.0, 5.0..200.0).prop_map(|(ttft_ms, itl_ms)| LatencyTargets { ttft_ms, itl_ms }))
}

fn stability() -> impl Strategy<Value = Stability> {
    let seconds = || prop_oneof![2 => Just(0_u32), 1 => 0_u32..400].prop_map(Seconds::whole);
    let step = || {
        option::of(
            (0_u32..4, 0.0..100.0)
                .prop_map(|(replicas, percent)| StepLimit { replicas: Replicas::new(replicas), percent }),
        )
    };
    (seconds(), seconds(), step(), step(), seconds()).prop_map(
        |(up_window, down_window, up_step, down_step, dwell)| Stability {
            up_window,
            down_window,
            up_step,
            down_step,
            dwell,
            ..Stability::default()
        },
    )
}

fn limits() -> impl Strategy<Value = LimitPolicy> {
    let of_types = |gpus| -> BTreeMap<SmolStr, i64> { [("H100".into(), gpus), ("A100".into(), 3)].into() };
    let quota = (-1_i64..40, any::<bool>()).prop_map(move |(gpus, by_namespace)| {
        if by_namespace {
            let namespace_quotas = [("default".into(), of_types(gpus))].into();
            Quota::Namespace { name: SmolStr::default(), namespace_quotas, exclude: Vec::new() }
        } else {
            Quota::Cluster { name: SmolStr::default(), quotas: of_types(gpus) }
        }
    });
    let power = (0.0..40_000.0).prop_map(|watts| Power { watts, per_gpu: [("H100".into(), 700.0)].into() });
    let spend = (0.0..400.0).prop_map(|cost| Cost::new(cost).unwrap());
    let switches = (any::<bool>(), any::<bool>(), any::<bool>());
    (switches, vec(quota, 0..2), option::of(power), option::of(spend)).prop_map(
        |((inventory, fail_closed, rescale), quotas, power, spend)| LimitPolicy {
            inventory,
            fail_closed,
            quotas,
            power,
            spend,
            rescale,
            ..LimitPolicy::default()
        },
    )
}

pub(crate) fn snapshot() -> BoxedStrategy<Snapshot> {
    let types = prop_oneof![Just(vec!["H100"]), Just(vec!["h100"]), Just(vec!["H100", "A100"])];
    let there = (types, 0_u32..40)
        .prop_map(|(types, gpus)| types.into_iter().map(|name| (SmolStr::new_static(name), gpus)).collect());
    let elsewhere = prop_oneof![2 => Just(None), 1 => (1_u32..9).prop_map(Some)]
        .prop_map(|gpus| gpus.map(|gpus| (SmolStr::new_static("H100"), gpus)).into_iter().collect());
    let unlabelled = prop_oneof![3 => Just(None), 1 => Just(Some(SmolStr::new_static("node")))];
    (group(), option::of(there), elsewhere, unlabelled)
        .prop_map(|(group, inventory, elsewhere, unlabelled)| {
            let invalid = vec![InvalidVariant::new(id("broken"), "no model".into())];
            Snapshot { invalid, inventory, elsewhere, unlabelled, ..snapshot_of(NOW, group) }
        })
        .boxed()
}

/// The same snapshot, in which everything happens `by` later.
pub(crate) fn later(snapshot: &Snapshot, by: SignedDuration) -> Snapshot {
    let mut later = snapshot.clone();
    later.now += by;
    for group in later.groups.values_mut() {
        postpone(&mut group.scheduler, by);
        for pod in group.variants.iter_mut().flat_map(|state| &mut state.pods) {
            pod.created += by;
            pod.ready_since = pod.ready_since.map(|at| at + by);
            pod.engines.values_mut().for_each(|engine| postpone(engine, by));
        }
    }
    later
}

fn postpone(signals: &mut Signals, by: SignedDuration) {
    let mut later = Signals::default();
    for (signal, samples) in signals.iter() {
        later.add(signal, samples.iter().map(|sample| Sample { at: sample.at + by, ..sample }));
    }
    *signals = later;
}

/// The same memory, in which everything happened `by` later.
pub(crate) fn remembered_later(memory: &Memory, by: SignedDuration) -> Memory {
    let mut later = memory.clone();
    let postpone = |at: &mut Option<Timestamp>| *at = at.map(|at| at + by);
    for group in later.groups.values_mut() {
        [&mut group.cycle_at, &mut group.idle_since, &mut group.observed_at].into_iter().for_each(postpone);
        for own in group.variants.values_mut() {
            [&mut own.target_since, &mut own.evidence, &mut own.blind_since].into_iter().for_each(postpone);
        }
    }
    later
}
