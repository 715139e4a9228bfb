//! What holds for every snapshot, memory and policy, however odd.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests may fail like tests")]

use jiff::{SignedDuration, Timestamp};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use proptest::test_runner::Config;
use smol_str::{SmolStr, format_smolstr};
use wva_core::analyze::finding::Analyzer;
use wva_core::by_name::ByName;
use wva_core::decision::Verdict;
use wva_core::memory::{GroupMemory, Memory, VariantMemory};
use wva_core::model::{
    Beside, Bounds, InvalidVariant, LimitPolicy, ModelPolicy, Power, Quota, Role, ScaleToZero, Scope,
    Stability, StepLimit, TargetRef, Variant,
};
use wva_core::snapshot::{
    ModelGroup, Phase, Replica, Sample, Scale, Signal, Signals, SourceHealth, Template, VariantState,
};
use wva_core::units::{Cost, Replicas, Seconds};
use wva_core::{GroupId, Outcome, Policy, Snapshot, VariantId, decide, observe};

const NOW: Timestamp = Timestamp::constant(1_800_000_000, 0);
const NAMES: [&str; 4] = ["a", "b", "c", "d"];

fn ago(seconds: i64) -> Timestamp {
    NOW - SignedDuration::from_secs(seconds)
}

fn count() -> impl Strategy<Value = Replicas> {
    prop_oneof![3 => 0_u32..7, 1 => 8_u32..33].prop_map(Replicas::new)
}

/// Mostly the ages where something changes, and some after a clock was set back.
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

fn signals() -> BoxedStrategy<Signals> {
    let zero_or = |most: f64| prop_oneof![1 => Just(0.0), 2 => 0.0..most];
    let odd = (
        series(zero_or(1.0)),
        series(zero_or(9.0)),
        series(zero_or(4.0)),
        series(prop_oneof![Just(0.0), Just(7.0)]),
    );
    prop_oneof![3 => odd, 1 => healthy(0.0, 0.0, 0.0), 3 => healthy(0.2, 1.0, 2.0), 1 => healthy(0.9, 6.0, 9.0)]
        .prop_flat_map(|parts| (Just(parts), work()))
        .prop_map(|((kv, waiting, running, done), work)| {
            let mut signals = Signals::default();
            work.into_iter().for_each(|(signal, samples)| signals.add(signal, samples));
            signals.add(Signal::KvUsage, kv);
            signals.add(Signal::Waiting, waiting);
            signals.add(Signal::Running, running);
            signals.add(Signal::TimeToFirstTokenCount, done);
            signals
        })
        .boxed()
}

/// What analyzers of capacity read beside: the cache's size, and counters that grow at some rate each, or nothing.
fn work() -> BoxedStrategy<Vec<(Signal, Vec<Sample>)>> {
    let counters = [
        Signal::RequestPromptTokensSum,
        Signal::RequestPromptTokensCount,
        Signal::RequestGenerationTokensSum,
        Signal::RequestGenerationTokensCount,
        Signal::InterTokenLatencySum,
        Signal::InterTokenLatencyCount,
        Signal::TimeToFirstTokenSum,
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

type Parts = (Vec<Sample>, Vec<Sample>, Vec<Sample>, Vec<Sample>);

/// An engine that is scraped as it should be and shows these values.
fn healthy(kv: f64, waiting: f64, running: f64) -> BoxedStrategy<Parts> {
    let steady = |value: f64| (0..4).map(|back| Sample { at: ago(5 + 15 * back), value }).collect::<Vec<_>>();
    Just((steady(kv), steady(waiting), steady(running), steady(9.0))).boxed()
}

fn replica() -> BoxedStrategy<Replica> {
    let phase = prop_oneof![
        12 => Just(Phase::Ready),
        1 => Just(Phase::Pending),
        1 => Just(Phase::Unschedulable),
        1 => Just(Phase::Starting),
        1 => Just(Phase::Terminating),
    ];
    let engines = prop_oneof![
        6 => signals().prop_map(|one| [(SmolStr::new_static("0"), one)].into()),
        1 => btree_map(prop_oneof![Just(SmolStr::new_static("0")), Just(SmolStr::new_static("1"))], signals(), 0..3),
    ];
    (phase, age(), engines)
        .prop_map(|(phase, age, engines)| {
            let ready_since = (phase == Phase::Ready).then(|| ago(age / 2));
            Replica {
                pod: SmolStr::default(),
                phase,
                created: ago(age),
                ready_since,
                engines: engines.into(),
            }
        })
        .boxed()
}

fn scale(replicas: &[Replica]) -> impl Strategy<Value = Option<Scale>> + use<> {
    let (all, ready) = (
        u32::try_from(replicas.iter().filter(|one| one.phase != Phase::Terminating).count()).unwrap(),
        u32::try_from(replicas.iter().filter(|one| one.phase == Phase::Ready).count()).unwrap(),
    );
    let true_scale =
        Scale { spec: Replicas::new(all), current: Replicas::new(all), ready: Replicas::new(ready) };
    let any = (count(), count(), count()).prop_map(|(spec, current, ready)| Scale { spec, current, ready });
    prop_oneof![12 => Just(Some(true_scale)), 4 => any.prop_map(Some), 1 => Just(None)]
}

fn state(name: &'static str) -> BoxedStrategy<VariantState> {
    let alike = (replica(), 9_usize..26).prop_map(|(one, pods)| std::iter::repeat_n(one, pods).collect());
    let replicas = prop_oneof![5 => vec(replica(), 0..5), 1 => alike];
    let rest = replicas.prop_flat_map(|replicas| (scale(&replicas), Just(replicas)));
    let bounds = (
        prop_oneof![2 => Just(0_u32), 1 => 0_u32..4],
        prop_oneof![4 => Just(None), 2 => (0_u32..6).prop_map(Some), 1 => (9_u32..25).prop_map(Some)],
    );
    let role = prop_oneof![3 => Just(Role::Both), 1 => Just(Role::Prefill)];
    let cost = prop_oneof![Just(0.0), Just(5.0), Just(20.0)];
    (rest, bounds, role, cost, proptest::option::of(count()))
        .prop_map(move |((scale, mut replicas), (min, max), role, cost, last_status)| {
            for (index, replica) in replicas.iter_mut().enumerate() {
                replica.pod = format_smolstr!("{name}-{index}");
            }
            let variant = Variant {
                id: VariantId::new("default", name),
                model: "m".into(),
                target: TargetRef { kind: "Deployment".into(), name: name.into() },
                cost: Cost::new(cost).unwrap(),
                bounds: Bounds { min: Replicas::new(min), max: max.map(Replicas::new) },
                accelerator: None,
                role,
            };
            VariantState { variant, scale, replicas, last_status, template: Template::default() }
        })
        .boxed()
}

fn group() -> BoxedStrategy<ModelGroup> {
    let variants = prop_oneof![
        state("a").prop_map(|a| vec![a]),
        (state("a"), state("b")).prop_map(|(a, b)| vec![a, b]),
        (state("a"), state("b"), state("c")).prop_map(|(a, b, c)| vec![a, b, c]),
    ];
    let scheduler = proptest::option::of(series(prop_oneof![Just(0.0), Just(3.0)]));
    (source(), variants, scheduler)
        .prop_map(|(source, variants, queue)| {
            let mut scheduler = Signals::default();
            scheduler.add(Signal::SchedulerQueueSize, queue.unwrap_or_default());
            ModelGroup { source, variants, scheduler }
        })
        .boxed()
}

fn remembered() -> BoxedStrategy<VariantMemory> {
    let moment = || proptest::option::of(age().prop_map(ago));
    (prop_oneof![Just(None), count().prop_map(Some)], moment(), moment(), moment())
        .prop_map(|(target, target_since, evidence, blind_since)| VariantMemory {
            target,
            target_since: target.and(target_since),
            evidence,
            blind_since,
            ..VariantMemory::default()
        })
        .boxed()
}

fn memory() -> BoxedStrategy<Memory> {
    let moment = || proptest::option::of(age().prop_map(ago));
    let variants =
        btree_map(proptest::sample::select(&NAMES[..]).prop_map(SmolStr::new_static), remembered(), 0..4);
    (moment(), moment(), moment(), variants)
        .prop_map(|(cycle_at, idle_since, observed_at, variants)| {
            let group = GroupMemory {
                cycle_at,
                idle_since,
                observed_at,
                learned: None,
                variants: ByName::from(variants),
            };
            Memory { groups: [(GroupId::new("default", "m"), group)].into(), ..Memory::default() }
        })
        .boxed()
}

fn sleeping(enabled: bool) -> Scope {
    let scale_to_zero = Some(ScaleToZero { enabled, retention: Seconds::whole(60) });
    Scope { default: ModelPolicy { scale_to_zero, ..ModelPolicy::default() }, ..Scope::default() }
}

fn policy() -> impl Strategy<Value = Policy> {
    (any::<bool>(), prop_oneof![Just(0_u32), Just(15)]).prop_map(|(enabled, cycle)| Policy {
        cycle: Seconds::whole(cycle),
        max_stale: Seconds::whole(300),
        global: sleeping(enabled),
        ..Policy::default()
    })
}

/// Any analyzer, with rules of stability and limits or without.
fn any_policy() -> impl Strategy<Value = Policy> {
    let analyzer = prop_oneof![
        Just(Analyzer::SaturationPercent),
        Just(Analyzer::Saturation),
        Just(Analyzer::Throughput),
        Just(Analyzer::QueueingModel),
        Just(Analyzer::Threshold),
        Just(Analyzer::Weighted),
        Just(Analyzer::Inferno),
    ];
    let beside =
        proptest::option::of(Just(Beside { analyzer: Analyzer::Throughput, score: 1.0, utilisation: None }));
    (policy(), analyzer, beside, stability(), limits()).prop_map(
        |(mut policy, analyzer, beside, stability, limits)| {
            let model = &mut policy.global.default;
            *model =
                ModelPolicy { analyzer, stability, beside: beside.into_iter().collect(), ..model.clone() };
            // Several looks at one moment would count a sample several times.
            Policy { cycle: Seconds::whole(15), limits, ..policy }
        },
    )
}

fn stability() -> impl Strategy<Value = Stability> {
    let seconds = || prop_oneof![2 => Just(0_u32), 1 => 0_u32..400].prop_map(Seconds::whole);
    let step = || {
        proptest::option::of(
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
    let quota = (-1_i64..12)
        .prop_map(|gpus| Quota::Cluster { name: SmolStr::default(), quotas: [("H100".into(), gpus)].into() });
    let power = (0.0..9000.0).prop_map(|watts| Power { watts, per_gpu: [("H100".into(), 700.0)].into() });
    let spend = (0.0..200.0).prop_map(|cost| Cost::new(cost).unwrap());
    (any::<bool>(), vec(quota, 0..2), proptest::option::of(power), proptest::option::of(spend), any::<bool>())
        .prop_map(|(inventory, quotas, power, spend, rescale)| LimitPolicy {
            inventory,
            quotas,
            power,
            spend,
            rescale,
            ..LimitPolicy::default()
        })
}

fn snapshot() -> BoxedStrategy<Snapshot> {
    group()
        .prop_map(|group| Snapshot {
            now: NOW,
            groups: [(GroupId::new("default", "m"), group)].into(),
            invalid: vec![InvalidVariant {
                id: VariantId::new("default", "broken"),
                problem: "no model".into(),
            }],
            inventory: None,
        })
        .boxed()
}

fn evaluate(snapshot: &Snapshot, memory: &Memory, policy: &Policy) -> Outcome {
    decide(snapshot, &observe(snapshot, memory.clone()), policy)
}

fn numbers(outcome: &Outcome) -> Vec<(&VariantId, Option<Replicas>)> {
    let number = |verdict: &Verdict| match verdict {
        Verdict::Target(target) => Some(target.desired),
        Verdict::Unknown(_) => None,
    };
    outcome.decisions.iter().map(|(id, decision)| (id, number(&decision.verdict))).collect()
}

fn promised(state: &VariantState, memory: &Memory) -> Option<Replicas> {
    let remembered = memory.groups.values().find_map(|group| group.variants.get(&state.variant.id.name));
    remembered.and_then(|one| one.target).or(state.last_status.filter(|last| *last > Replicas::ZERO))
}

/// 256 cases each, or as many as `PROPTEST_CASES` says.
fn config() -> Config {
    Config { failure_persistence: None, ..Config::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn the_checker_never_has_to_refuse(snapshot in snapshot(), memory in memory(), policy in any_policy()) {
        let outcome = evaluate(&snapshot, &memory, &policy);
        prop_assert_eq!(&outcome.report.violations, &vec![], "{:#?}", outcome.decisions);
    }

    #[test]
    fn every_variant_has_exactly_one_decision(snapshot in snapshot(), memory in memory(), policy in any_policy()) {
        let outcome = evaluate(&snapshot, &memory, &policy);
        let states = snapshot.groups.values().flat_map(|group| &group.variants);
        let mut wanted: Vec<VariantId> = states.map(|state| state.variant.id.clone()).collect();
        wanted.push(VariantId::new("default", "broken"));
        wanted.sort();
        prop_assert_eq!(outcome.decisions.into_keys().collect::<Vec<_>>(), wanted);
    }

    #[test]
    fn numbers_stay_within_their_bounds(snapshot in snapshot(), memory in memory(), policy in any_policy()) {
        let outcome = evaluate(&snapshot, &memory, &policy);
        for state in snapshot.groups.values().flat_map(|group| &group.variants) {
            if let Verdict::Target(target) = &outcome.decisions[&state.variant.id].verdict {
                let Bounds { min, max } = state.variant.bounds;
                prop_assert!(target.desired >= min);
                prop_assert!(max.is_none_or(|max| target.desired <= max.max(min)));
            }
        }
    }

    #[test]
    fn blindness_never_shrinks(snapshot in snapshot(), memory in memory(), policy in any_policy(), warned in any::<bool>()) {
        let mut snapshot = snapshot;
        for group in snapshot.groups.values_mut() {
            group.source = if warned {
                SourceHealth::Partial { warnings: vec!["cut".into()] }
            } else {
                SourceHealth::Down { cause: "no answer".into() }
            };
        }
        let outcome = evaluate(&snapshot, &memory, &policy);
        for state in snapshot.groups.values().flat_map(|group| &group.variants) {
            if let (Verdict::Target(target), Some(promised)) =
                (&outcome.decisions[&state.variant.id].verdict, promised(state, &memory))
            {
                prop_assert!(target.desired >= state.variant.bounds.clamp(promised));
            }
        }
    }

    #[test]
    fn a_second_read_gives_the_same_number(snapshot in snapshot(), memory in memory(), policy in any_policy()) {
        let first = evaluate(&snapshot, &memory, &policy);
        let second = evaluate(&snapshot, &first.memory, &policy);
        // A moved bound is a new wish for pods, so an error may become a number; a number never becomes another.
        for (before, after) in numbers(&first).into_iter().zip(numbers(&second)) {
            prop_assert!(before.1.is_none() || before == after, "{:?} then {:?}", before, after);
        }
    }

    #[test]
    fn the_same_input_gives_the_same_bytes(snapshot in snapshot(), memory in memory(), policy in any_policy()) {
        let bytes = |memory: &Memory| serde_json::to_string(&evaluate(&snapshot, memory, &policy)).unwrap();
        let restored: Memory = serde_json::from_str(&serde_json::to_string(&memory).unwrap()).unwrap();
        prop_assert_eq!(bytes(&memory), bytes(&restored));
    }

    #[test]
    fn the_order_of_variants_is_irrelevant(snapshot in snapshot(), memory in memory(), policy in any_policy()) {
        let mut reversed = snapshot.clone();
        reversed.groups.values_mut().for_each(|group| group.variants.reverse());
        let (one, other) = (evaluate(&snapshot, &memory, &policy), evaluate(&reversed, &memory, &policy));
        prop_assert_eq!(numbers(&one), numbers(&other));
    }

    #[test]
    fn other_groups_are_irrelevant(one in group(), other in group(), memory in memory(), policy in policy()) {
        let id = GroupId::new("default", "m");
        let mut elsewhere = other;
        for state in &mut elsewhere.variants {
            state.variant.id.namespace = "elsewhere".into();
        }
        let alone = Snapshot { now: NOW, groups: [(id.clone(), one.clone())].into(), invalid: vec![], inventory: None };
        let both = [(id, one), (GroupId::new("elsewhere", "m"), elsewhere)].into();
        let both = Snapshot { now: NOW, groups: both, invalid: vec![], inventory: None };
        let (alone, both) = (evaluate(&alone, &memory, &policy), evaluate(&both, &memory, &policy));
        for (id, decision) in &alone.decisions {
            prop_assert_eq!(decision, &both.decisions[id]);
        }
    }

    #[test]
    fn a_running_zero_was_measured(snapshot in snapshot(), memory in memory(), policy in policy()) {
        let outcome = evaluate(&snapshot, &memory, &policy);
        let group = snapshot.groups.values().next().unwrap();
        for state in &group.variants {
            let zero = matches!(&outcome.decisions[&state.variant.id].verdict,
                Verdict::Target(target) if target.desired == Replicas::ZERO);
            let runs = state.scale.is_some_and(|scale| scale.spec > Replicas::ZERO);
            if zero && runs && state.variant.bounds.max != Some(Replicas::ZERO) {
                prop_assert!(policy.global.default.scale_to_zero.is_some_and(|policy| policy.enabled));
                prop_assert_eq!(&group.source, &SourceHealth::Complete);
                prop_assert!(group.variants.iter().all(|one| one.variant.bounds.min == Replicas::ZERO));
            }
        }
    }

    #[test]
    fn what_is_added_never_exceeds_a_limit(snapshot in snapshot(), memory in memory(), policy in any_policy()) {
        let outcome = evaluate(&snapshot, &memory, &policy);
        let states: Vec<_> = snapshot.groups.values().flat_map(|group| &group.variants).collect();
        let (mut cost, mut added) = (0.0, 0.0);
        for state in states {
            let base = state.scale.map_or(Replicas::ZERO, Scale::base);
            let promised = promised(state, &memory).unwrap_or(Replicas::ZERO);
            // A minimum is a promise, what is held asks for nothing, a running variant keeps one, and so does a model
            // that may not sleep.
            let sleeps = policy.global.default.scale_to_zero.is_some_and(|policy| policy.enabled);
            let runs = !sleeps || state.scale.is_some_and(|scale| scale.spec > Replicas::ZERO);
            let due = base.max(state.variant.bounds.min).max(promised).max(Replicas::new(u32::from(runs)));
            if let Verdict::Target(target) = &outcome.decisions[&state.variant.id].verdict {
                let each = state.variant.cost.get();
                cost += each * f64::from(target.desired.max(base).get());
                added += each * f64::from(target.desired.above(due).get());
            }
        }
        if let Some(spend) = policy.limits.spend && added > 0.0 {
            prop_assert!(cost <= spend.get() + 1e-6, "{} of {}", cost, spend.get());
        }
    }
}
