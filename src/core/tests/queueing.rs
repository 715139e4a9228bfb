//! What holds for every queue, every filter and every split of accelerators.

use crate::tests::support::cases;
use crate::tests::support::prelude::*;
use proptest::collection::vec;
use proptest::prelude::*;
use smol_str::{ToSmolStr, format_smolstr};
use wva_core::analyze::inferno::allocation::{Allocation, AllocationChoice, AllocationRequest};
use wva_core::analyze::inferno::{System, data};
use wva_core::analyze::queueing::learn::{Parameters, learn};
use wva_core::analyze::queueing::model::{Limits, Model, Performance, RequestLengths, Service, Unsolvable};
use wva_core::analyze::queueing::sizing::{Size, Targets};
use wva_core::analyze::queueing::tuner::{Environment, Filter, Start, guess};
use wva_core::analyze::queueing::{LatencyObservation, QueueingSettings, VariantLoad};
use wva_core::arithmetic::analyze_queueing as analyze;
use wva_core::units::Requests;
use wva_core::upstream::greedy::{BestEffort, solve};

fn service() -> impl Strategy<Value = Service> {
    let parameters = (0.5..50.0_f32, 0.001..0.2_f32, 0.000_01..0.01_f32);
    parameters.prop_map(|(alpha, beta, gamma)| Service { alpha, beta, gamma })
}

fn lengths() -> impl Strategy<Value = RequestLengths> {
    (prop_oneof![1 => Just(0.0_f32), 5 => 1.0..4000.0_f32], 1.0..1000.0_f32)
        .prop_map(|(input, output)| RequestLengths { input, output })
}

fn limits() -> impl Strategy<Value = Limits> {
    (2_u32..24, 0_u32..30).prop_map(|(batch, queue)| Limits { batch, queue })
}

fn model() -> impl Strategy<Value = Model> {
    (service(), lengths(), limits())
        .prop_map(|(service, lengths, limits)| Model::new(service, lengths, limits).unwrap())
}

/// Anything positive, however small or large.
fn positive() -> impl Strategy<Value = f32> {
    (-120.0..120.0_f32).prop_map(f32::exp2)
}

/// Anything at all.
fn odd() -> impl Strategy<Value = f64> {
    prop_oneof![4 => 0.0..100.0, 1 => any::<f64>(), 1 => Just(0.0), 1 => Just(f64::NAN)]
}

fn finite(at: &Performance) -> bool {
    let Performance { throughput, response, wait, in_service, prefill, itl, ttft, rho, max_rate } = *at;
    let all = [throughput, response, wait, in_service, prefill, itl, ttft, rho, max_rate];
    all.iter().all(|figure| figure.is_finite())
}

fn environment() -> impl Strategy<Value = Environment> {
    let lengths =
        (1.0..4000.0_f32, 1.0..1000.0_f32).prop_map(|(input, output)| RequestLengths { input, output });
    (1.0..2000.0_f32, lengths, 1_u32..16, 1.0..2000.0_f32, 1.0..200.0_f32)
        .prop_map(|(rate, lengths, batch, ttft, itl)| Environment { rate, lengths, batch, ttft, itl })
}

/// Latencies some way between those without and with all load, so that most can be reached.
fn between(model: &mut Model, part: f32) -> Targets {
    let max = model.max_rate();
    let (low, high) = (model.analyze(max * 0.002).unwrap(), model.analyze(max * 0.999).unwrap());
    let at = |low: f32, high: f32| low + part * (high - low);
    Targets::latency(at(low.ttft, high.ttft), at(low.itl, high.itl)).unwrap()
}

proptest! {
    #![proptest_config(cases::quick())]

    #[test]
    fn positive_parameters_give_a_number_or_a_reason(
        parts in prop::array::uniform6(positive()), limits in limits(), target in positive(),
    ) {
        let [alpha, beta, gamma, input, output, rate] = parts;
        let (service, lengths) = (Service::new(alpha, beta, gamma).unwrap(), RequestLengths::new(input, output).unwrap());
        if let Ok(mut model) = Model::new(service, lengths, limits) {
            if let Ok(at) = model.analyze(rate) {
                prop_assert!(finite(&at), "{at:?}");
            }
            if let Ok(size) = model.size(Targets::latency(target, target).unwrap()) {
                prop_assert!(finite(&size.at), "{size:?}");
            }
        }
    }

    #[test]
    fn the_capacity_meets_the_targets_and_one_per_cent_more_does_not(mut model in model(), part in 0.0..1.2_f32) {
        let targets = between(&mut model, part);
        let Size { rate_ttft, rate_itl, at, .. } = model.size(targets).unwrap();
        prop_assert!(at.ttft <= targets.ttft * 1.001 && at.itl <= targets.itl * 1.001, "{at:?} {targets:?}");
        let more = rate_ttft.min(rate_itl) * 1.01;
        match model.analyze(more) {
            Ok(at) => prop_assert!(at.ttft > targets.ttft * 0.9999 || at.itl > targets.itl * 0.9999, "{at:?}"),
            Err(error) => prop_assert!(matches!(error, Unsolvable::AboveMaximum { .. }), "{error}"),
        }
    }

    #[test]
    fn tighter_targets_never_raise_the_capacity(mut model in model(), part in 0.0..1.0_f32, tighter in 0.2..1.0_f32) {
        let loose = between(&mut model, part);
        let tight = Targets { ttft: loose.ttft * tighter, itl: loose.itl * tighter, ..loose };
        let capacity = model.size(loose).unwrap().at.throughput;
        match model.size(tight) {
            Ok(size) => prop_assert!(size.at.throughput <= capacity * 1.0001, "{} > {capacity}", size.at.throughput),
            Err(error) => prop_assert!(matches!(error, Unsolvable::Unreachable(_)), "{error}"),
        }
    }

    #[test]
    fn the_unit_of_time_is_irrelevant(
        service in service(), lengths in lengths(), limits in limits(), part in 0.0..1.2_f32, power in -4_i16..7,
    ) {
        let factor = f32::from(power).exp2();
        let Service { alpha, beta, gamma } = service;
        let slower = Service { alpha: alpha * factor, beta: beta * factor, gamma: gamma * factor };
        let mut model = Model::new(service, lengths, limits).unwrap();
        let targets = between(&mut model, part);
        let longer = Targets { ttft: targets.ttft * factor, itl: targets.itl * factor, ..targets };
        let at = model.size(targets).unwrap().at;
        let scaled = Model::new(slower, lengths, limits).unwrap().size(longer).unwrap().at;
        let near = |a: f32, b: f32| (a - b).abs() <= 1e-4 * a.abs();
        prop_assert!(near(at.throughput, scaled.throughput * factor), "{at:?} {scaled:?}");
        prop_assert!(near(at.itl * factor, scaled.itl) && near(at.ttft * factor, scaled.ttft), "{at:?} {scaled:?}");
    }

    #[test]
    fn more_load_never_takes_fewer_replicas_and_the_unit_of_money_is_irrelevant(
        service in service(), part in 0.1..1.0_f32, load in 1.0..60_000.0_f32, more in 0.0..60_000.0_f32, power in -3_i16..9,
    ) {
        let model = || Model::new(service, RequestLengths { input: 512.0, output: 128.0 }, Limits { batch: 16, queue: 160 });
        let targets = between(&mut model().unwrap(), part);
        let solved = |arrival: f32, factor: f32| {
            let system = one_server(service, targets, arrival, 40.0 * factor);
            system.solve().remove("v").unwrap()
        };
        let (less, more) = (solved(load, 1.0), solved(load + more, 1.0));
        prop_assert!(more.replicas >= less.replicas && more.cost >= less.cost, "{less:?} {more:?}");
        let factor = f32::from(power).exp2();
        let dearer = solved(load, factor);
        prop_assert_eq!((dearer.replicas, dearer.cost.to_bits()), (less.replicas, (less.cost * factor).to_bits()));
    }

    #[test]
    fn a_filter_stays_in_its_bounds_and_a_refused_step_changes_nothing(
        environments in vec(environment(), 1..4), guessed in any::<bool>(),
    ) {
        let first = environments[0];
        let tokens = (f64::from(first.lengths.input), f64::from(first.lengths.output));
        let guess = guess(f64::from(first.ttft), f64::from(first.itl), tokens.0, tokens.1);
        let start = guess.filter(|_| guessed).map_or_else(Start::unknown, Start::guessed);
        if let Ok(mut filter) = Filter::new(&start, &first) {
            for environment in &environments {
                let before = filter.clone();
                let step = filter.step(environment);
                let bounds = start.low.iter().zip(&start.high);
                prop_assert!(filter.state.iter().zip(bounds).all(|(own, (low, high))| low <= own && own <= high));
                prop_assert!(filter.covariance.iter().flatten().all(|value| value.is_finite()));
                prop_assert!(step.accepted || filter == before);
            }
        }
    }

    #[test]
    fn no_type_of_accelerator_is_given_out_beyond_its_count(
        requests in vec((0_u32..4, vec((0_u8..4, 0_u32..6, 0_u64..4, -50.0..50.0_f32), 0..4)), 0..6),
        counts in prop::array::uniform3(0_u64..20), policy in 0_usize..4, delayed in any::<bool>(),
    ) {
        // Type 3 is an unknown accelerator.
        let available: BTreeMap<SmolStr, u64> = (0_u8..3).map(|kind| kind.to_smolstr()).zip(counts).collect();
        let choice = |(kind, replicas, units, value): (u8, u32, u64, f32)| {
            let allocation = Allocation {
                accelerator: kind.to_smolstr(), replicas: Replicas::new(replicas), cost: value, value, ..Allocation::default()
            };
            AllocationChoice { allocation, kind: (kind < 3).then(|| kind.to_smolstr()), units }
        };
        let requests: Vec<AllocationRequest> = requests.into_iter().enumerate().map(|(index, (priority, choices))| {
            AllocationRequest { server: format_smolstr!("s{index}"), priority, choices: choices.into_iter().map(choice).collect() }
        }).collect();
        let policy = ["None", "PriorityExhaustive", "PriorityRoundRobin", "RoundRobin"][policy];
        let granted = solve(&requests, &available, BestEffort::from_name(policy), delayed);
        let mut least = available.clone();
        for (server, allocation) in &granted.allocations {
            let request = requests.iter().find(|request| request.server == *server).unwrap();
            let of_kind = request.choices.iter().filter(|choice| choice.allocation.accelerator == allocation.accelerator);
            let wants = |choice: &&AllocationChoice| choice.allocation.replicas >= allocation.replicas;
            let units = of_kind.filter(wants).map(|choice| choice.units).min();
            prop_assert!(units.is_some(), "{server} has more than it wanted: {allocation:?}");
            let left = least.get_mut(&allocation.accelerator).unwrap();
            *left = left.checked_sub(units.unwrap() * u64::from(allocation.replicas.get())).unwrap();
        }
        prop_assert!(granted.left.iter().all(|(kind, left)| *left <= least[kind]), "{granted:?}");
    }
}

/// One server of one class on one accelerator.
fn one_server(service: Service, targets: Targets, arrival: f32, cost: f32) -> System {
    let (model, kind): (SmolStr, SmolStr) = ("m".into(), "A100".into());
    System {
        accelerators: vec![data::Accelerator {
            name: kind.clone(),
            kind: kind.clone(),
            multiplicity: 1,
            cost,
        }],
        performance: vec![data::PerformanceProfile {
            model: model.clone(),
            accelerator: kind,
            units: 1,
            max_batch: 16,
            at_tokens: 128,
            service,
        }],
        classes: vec![data::ServiceLevel::new("Premium", 1, vec![(model.clone(), targets)]).unwrap()],
        servers: vec![data::Server {
            name: "v".into(),
            class: "Premium".into(),
            model,
            load: data::ServerLoad { arrival, input: 512, output: 128 },
            min: Replicas::ZERO,
            max_batch: 0,
            keep_accelerator: false,
            current: None,
        }],
    }
}

/// A variant of so many replicas that serve and start.
fn load_of(
    name: SmolStr,
    role: Role,
    [ready, pending]: [u32; 2],
    observations: Vec<LatencyObservation>,
) -> VariantLoad {
    VariantLoad {
        name,
        role,
        accelerator: None,
        cost: Cost::ZERO,
        ready: Replicas::new(ready),
        pending: Replicas::new(pending),
        observations,
    }
}

fn load(name: usize) -> impl Strategy<Value = VariantLoad> {
    let figures = (proptest::option::of(odd()), prop::array::uniform4(odd()), 0_u32..16);
    let observation = figures.prop_map(|(arrival, [input, output, ttft, itl], batch)| LatencyObservation {
        arrival,
        input,
        output,
        ttft,
        itl,
        batch,
    });
    let role = prop_oneof![Just(Role::Both), Just(Role::Prefill), Just(Role::Decode)];
    (role, 0_u32..4, 0_u32..3, vec(observation, 0..3)).prop_map(
        move |(role, ready, pending, observations)| {
            load_of(format_smolstr!("v{name}"), role, [ready, pending], observations)
        },
    )
}

proptest! {
    #![proptest_config(cases::quick())]

    #[test]
    fn an_analysis_of_anything_is_finite_and_never_below_zero(
        loads in (load(0), load(1)), multiplier in odd(), drain in 0_u32..60, upstream in any::<bool>(),
    ) {
        let compat = if upstream { Compat::Upstream } else { Compat::Corrected };
        let loads = [loads.0, loads.1];
        let settings = QueueingSettings { multiplier, drain: Seconds::whole(drain), ..QueueingSettings::default() };
        let mut known = BTreeMap::new();
        for _ in 0..3 {
            let analysis = analyze(&loads, Requests::new(5.0).unwrap(), &known, &settings, compat);
            known = analysis.learned;
            if let Ok(finding) = analysis.finding {
                for sums in finding.roles.values().chain([&finding.total]) {
                    let all = [sums.supply, sums.anticipated, sums.demand, sums.required, sums.spare];
                    prop_assert!(all.iter().all(|value| value.is_finite() && *value >= 0.0), "{sums:?}");
                }
            }
        }
    }

    #[test]
    fn more_requests_never_miss_less_or_spare_more(
        service in service(), rate in 0.1..30.0_f64, more in 0.0..30.0_f64, replicas in 1_u32..5, queued in 0.0..50.0_f64,
    ) {
        let parameters = Parameters { service, covariance: [[0.0; 3]; 3], nis: None, rejections: 0, window: Vec::new(), earlier: Vec::new(), learned_at: None };
        let known = BTreeMap::from([(SmolStr::new_static("v"), parameters)]);
        let total = |rate: f64| {
            let arrival = Some(rate / f64::from(replicas));
            let observation = LatencyObservation { arrival, input: 512.0, output: 128.0, ttft: 0.1, itl: 0.02, batch: 16 };
            let load = load_of("v".into(), Role::Both, [replicas, 0], vec![observation; replicas as usize]);
            let settings = QueueingSettings { tuning: false, ..QueueingSettings::default() };
            let queued = Requests::new(queued).unwrap();
            analyze(&[load], queued, &known, &settings, Compat::Corrected).finding.unwrap().total
        };
        let (fewer, more) = (total(rate), total(rate + more));
        prop_assert!(more.required >= fewer.required && more.spare <= fewer.spare, "{fewer:?} {more:?}");
    }

    #[test]
    fn what_is_learned_is_within_its_bounds(cycles in vec(vec(environment(), 1..3), 1..6)) {
        let mut learned: Option<Parameters> = None;
        for now in cycles {
            learned = learn(learned.as_ref(), &now);
            if let Some(Parameters { service, window, .. }) = &learned {
                let Service { alpha, beta, gamma } = *service;
                prop_assert!((0.0499..=500.1).contains(&alpha), "{service:?}");
                prop_assert!((0.000_499..=5.001).contains(&beta), "{service:?}");
                prop_assert!((4.99e-7..=0.005_001).contains(&gamma), "{service:?}");
                prop_assert!(window.len() <= 8);
            }
        }
    }
}
