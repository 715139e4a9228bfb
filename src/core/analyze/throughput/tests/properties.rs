//! What holds for every input.

use super::*;

/// Anything a metric source may hand over, and worse.
fn odd() -> impl Strategy<Value = f64> {
    let wild = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 0.0, 1e-300, 1e300, f64::MAX];
    prop_oneof![6 => 0.0..1.0_f64, 3 => 0.0..5000.0_f64, 1 => prop::sample::select(wild.to_vec())]
}

fn odd_replica() -> impl Strategy<Value = ThroughputObservation> {
    let capacity = prop_oneof![Just(0_i64), Just(-1), Just(i64::MAX), 1_i64..2_000_000];
    (any::<bool>(), capacity, vec(odd(), 8)).prop_map(|(stale, capacity, values)| ThroughputObservation {
        stale: stale && values[0] > 0.7,
        capacity,
        kv: values[0],
        latency: values[1],
        prompt: values[2],
        generated: values[3],
        hits: values[4],
        arriving: values[5],
        finished: values[6],
        generating: values[7],
    })
}

/// What real servers say: on a line, with some noise, of similar requests.
fn real_engine() -> impl Strategy<Value = ThroughputObservation> {
    (0.05..0.95_f64, 0.9..1.1_f64, 0.0..3.0_f64).prop_map(|(kv, noise, finished)| {
        let exact = engine(kv);
        let (latency, prompt) = (exact.latency * noise, exact.prompt * noise);
        ThroughputObservation { latency, prompt, finished, ..exact }
    })
}

fn with_roles(engines: Vec<Vec<ThroughputObservation>>, roles: &[usize]) -> Vec<ThroughputVariant> {
    let role =
        |index: usize| [Role::Both, Role::Decode, Role::Prefill][roles.get(index).copied().unwrap_or(0) % 3];
    let build =
        |(index, engines)| ThroughputVariant { role: role(index), ..variant(&format!("v{index}"), engines) };
    engines.into_iter().enumerate().map(build).collect()
}

/// What is found of a model at first sight.
fn first(arrival: f64, variants: Vec<ThroughputVariant>) -> Finding {
    Model::new(Compat::Corrected).analyze(0, Some(arrival), variants).finding
}

proptest! {
    #![proptest_config(crate::tests::support::cases::quick())]

    #[test]
    fn a_fit_finds_the_line_that_points_lie_on(
        slope in 1e-6..1.0_f64, intercept in 0.0..0.1_f64, kvs in vec(0.0..1.0_f64, 10..20),
    ) {
        let points = || kvs.iter().chain(&[0.2, 0.8]).map(|kv| (*kv, slope * kv + intercept));
        for line in [LatencyLine::fit(points()), LatencyLine::fit_from(intercept, points())] {
            let line = line.unwrap();
            prop_assert!((line.slope - slope).abs() < 1e-12 && (line.intercept - intercept).abs() < 1e-12);
        }
    }

    #[test]
    fn no_input_gives_a_capacity_or_a_total_that_is_not_a_number_or_negative(
        cycles in vec((vec(vec(odd_replica(), 0..4), 0..3), odd(), 0.0..100.0_f64), 1..4),
        roles in vec(0_usize..3, 3), upstream: bool,
    ) {
        let mut model = Model::new(if upstream { Compat::Upstream } else { Compat::Corrected });
        for (step, (engines, arrival, queue)) in (0_i64..).zip(cycles) {
            let mut input = input(15 * step, Some(arrival), with_roles(engines, &roles));
            input.queue = Requests::new(queue).unwrap();
            let found = analyze(&input, &mut model.memory, model.compat).finding;
            for variant in &found.variants {
                let VariantCapacity { per_replica, demand, .. } = variant;
                prop_assert!(per_replica.is_finite() && *per_replica > 0.0 && *demand >= 0.0);
            }
            for totals in found.roles.values().chain([&found.total]) {
                let all = [totals.supply, totals.anticipated, totals.demand, totals.required, totals.spare];
                prop_assert!(all.iter().all(|value| *value >= 0.0), "{totals:?}");
            }
        }
        let stored = serde_json::to_string(&model.memory).unwrap();
        prop_assert_eq!(serde_json::from_str::<ThroughputMemory>(&stored).unwrap(), model.memory);
    }

    #[test]
    fn the_roles_share_the_demand_of_the_model_and_prefill_gets_none(
        engines in vec(vec(real_engine(), 1..4), 1..4), roles in vec(0_usize..3, 3), arrival in 0.0..100.0_f64,
    ) {
        let found = first(arrival, with_roles(engines, &roles));
        let sum = |value: fn(&Totals) -> f64| found.roles.values().map(value).sum::<f64>();
        if !found.roles.is_empty() {
            prop_assert!(near(sum(|totals| totals.demand), found.total.demand));
            prop_assert!(near(sum(|totals| totals.supply), found.total.supply));
        }
        prop_assert!(found.roles.get(&Role::Prefill).is_none_or(|totals| totals.demand == 0.0));
    }

    #[test]
    fn the_order_of_variants_and_replicas_does_not_matter(
        engines in vec(vec(real_engine(), 1..7), 1..4), arrival in 0.0..100.0_f64,
    ) {
        let variants = with_roles(engines, &[]);
        let mut turned: Vec<ThroughputVariant> = variants.iter().rev().cloned().collect();
        turned.iter_mut().for_each(|variant| variant.engines.reverse());
        let (a, b) = (first(arrival, variants).total, first(arrival, turned).total);
        prop_assert!(near(a.supply, b.supply) && near(a.demand, b.demand), "{a:?} {b:?}");
        prop_assert!(near(a.required, b.required) && near(a.spare, b.spare), "{a:?} {b:?}");
    }

    /// Below the ten replicas whose points at one moment make a line of their own.
    #[test]
    fn twice_the_fleet_with_twice_the_requests_misses_and_spares_twice_as_much(
        engines in vec(real_engine(), 1..5), arrival in 0.0..100.0_f64, queue in 0.0..50.0_f64,
    ) {
        let total = |engines: Vec<ThroughputObservation>, times: f64| {
            let mut input = input(0, Some(arrival * times), vec![variant("v", engines)]);
            input.queue = Requests::new(queue * times).unwrap();
            analyze(&input, &mut ThroughputMemory::default(), Compat::Corrected).finding.total
        };
        let (single, double) = (total(engines.clone(), 1.0), total([engines.clone(), engines].concat(), 2.0));
        let is_double = |value: fn(&Totals) -> f64| near(2.0 * value(&single), value(&double));
        prop_assert!(is_double(|totals| totals.supply) && is_double(|totals| totals.demand), "{single:?} {double:?}");
        prop_assert!(is_double(|totals| totals.required) && is_double(|totals| totals.spare), "{single:?} {double:?}");
    }

    #[test]
    fn more_requests_never_miss_less_or_spare_more(
        engines in vec(real_engine(), 1..7), arrival in 0.1..100.0_f64, more in 0.0..100.0_f64,
    ) {
        let total = |arrival| first(arrival, vec![variant("v", engines.clone())]).total;
        let (fewer, more) = (total(arrival), total(arrival + more));
        prop_assert!(more.required >= fewer.required && more.spare <= fewer.spare);
    }
}
