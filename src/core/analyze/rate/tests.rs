//! The formulas by their published values, the fleet test by hand, and what an evaluation does with it.

use proptest::prelude::*;

use super::demand::Demand;
use super::*;
use crate::learn::{
    ArrivalLevel, EngineArrivals, RequestSizes, RoleKnowledge, StepSample, StepTime, StepTimeError,
    VariantKnowledge,
};
use crate::model::{Bounds, RatePolicy, Role};
use crate::moment::Moment;
use crate::units::{Cost, Replicas, Seconds};

/// The accelerator of the published comparison: 5.5 ms a step, 24 µs a prompt token, 10 µs a sequence, 38 ns a token of a
/// cache of 480,000.
fn engine() -> EngineModel {
    let step = StepTime { base: 5.5e-3, prompt_token: 24e-6, sequence: 1e-5, full_cache: 18.24e-3 };
    EngineModel {
        step_time: step,
        step_time_error: StepTimeError::default(),
        kv_capacity: Some(480_000.0),
        sequence_share: None,
        tokens_per_step: 1.0,
        max_sequences: 256.0,
    }
}

fn request(prompt: f64, output: f64) -> RequestSize {
    RequestSize { prompt, output: Some(output) }
}

fn replica(prompt: f64, output: f64) -> ReplicaCapacity {
    ReplicaCapacity::new(Role::Both, &engine(), request(prompt, output), &RatePolicy::default()).unwrap()
}

fn close(found: f64, expected: f64, share: f64) {
    assert!((found - expected).abs() <= share * expected.abs(), "{found} is not {expected}");
}

/// A variant with as many replicas ordered as its scale target has, which take 95 s to start.
pub(super) fn variant(committed: u32, capacity: ReplicaCapacity) -> RateVariant {
    RateVariant {
        name: "llama".into(),
        cost: Cost::new(10.0).unwrap(),
        bounds: Bounds { min: Replicas::ONE, max: None },
        committed: Replicas::new(committed),
        requested: Replicas::new(committed),
        unavailable: Replicas::ZERO,
        is_full: false,
        ready_in: Vec::new(),
        starting: Replicas::ZERO,
        start_up: Seconds::whole(95),
        capacity: Some(capacity),
    }
}

pub(super) fn input(policy: &RatePolicy, now: Moment, variants: Vec<RateVariant>) -> RateInput<'_> {
    RateInput {
        unmeasured_factor: 1.0,
        now,
        role: Role::Both,
        variants,
        waiting: 0.0,
        running: 0.0,
        can_remove: true,
        tolerance: 0.1,
        policy,
    }
}

#[test]
fn capacities_are_those_published_with_the_formula() {
    let cases = [
        ((4000.0, 1000.0), (96.0, 5.5, 0.277, 2.991)),
        ((1000.0, 250.0), (256.0, 1.375, 0.037_187_5, 23.497)),
        ((100.0, 1000.0), (256.0, 5.5, 0.0352, 17.642)),
    ];
    for ((prompt, output), (max_sequences, fixed, per_request, rate)) in cases {
        let own = replica(prompt, output);
        close(own.max_sequences, max_sequences, 1e-9);
        close(own.fixed_seconds, fixed, 1e-9);
        close(own.seconds_per_request, per_request, 1e-9);
        close(own.max_rate(), rate, 2e-4);
        close(own.running_at(own.rate_at(10.0)), 10.0, 1e-9);
    }
}

/// Replicas of one kind that `load` needs.
fn needed(replica: &ReplicaCapacity, load: f64) -> u32 {
    let test = CapacityTest { reserve: chance_reserve(0.52, 125.0), surge: 0.0, backlog: 0.0, drain: 60.0 };
    (1..).find(|count| test.passes(&FleetCapacity::sum([(replica, f64::from(*count))]), load)).unwrap()
}

#[test]
fn the_need_is_what_one_computes_by_hand() {
    let need =
        |replica, loads: &[f64]| -> Vec<u32> { loads.iter().map(|load| needed(&replica, *load)).collect() };
    assert_eq!(need(replica(4000.0, 1000.0), &[2.0, 4.0, 6.0, 8.0]), [2, 2, 3, 4]);
    assert_eq!(need(replica(1000.0, 250.0), &[16.0, 20.0, 24.0]), [2, 2, 2]);
    assert_eq!(need(replica(100.0, 1000.0), &[16.0, 24.0]), [2, 2]);
}

#[test]
fn the_page_says_what_the_code_computes() {
    let page = include_str!("../../../../docs/decisions/rate.md");
    let own = replica(4000.0, 1000.0);
    let of = |count: f64| FleetCapacity::sum([(&own, count)]);
    let test = |largest| CapacityTest {
        reserve: chance_reserve(0.52, 125.0),
        surge: surge_reserve(125.0, largest),
        backlog: 0.0,
        drain: 60.0,
    };
    let ReplicaCapacity { max_sequences, fixed_seconds, seconds_per_request, .. } = own;
    let allowed = [1.0, 2.0, 3.0].map(|count| test(0.0).binding(&of(count)).1);
    let need = [2.0, 4.0, 6.0].map(|load| needed(&own, load));
    assert_eq!(test(0.0).binding(&of(3.0)).0, Constraint::Reserve);
    let (_, surged) = test(0.4).binding(&of(3.0));
    for says in [
        format!(
            "n_max = {max_sequences:.0}, A = {fixed_seconds:.1} s, g = {seconds_per_request:.3} s, X = {:.3} requests/s",
            own.max_rate()
        ),
        format!(
            "1 replica may be asked {:.2}, 2 replicas {:.2}, 3 replicas {:.2}",
            allowed[0], allowed[1], allowed[2]
        ),
        format!("(the reserve binds; utilisation allows {:.2})", of(3.0).usable_rate),
        format!("2, 4 and 6 requests/s need {}, {} and {} replicas", need[0], need[1], need[2]),
        format!("r = {:.2}, and 3 replicas may be asked {surged:.2}", test(0.4).surge),
    ] {
        assert!(page.contains(&says), "the page does not say {says:?}");
    }
}

#[test]
fn what_is_cut_after_an_evaluation_is_missed_at_the_next_moment_and_not_at_this() {
    let policy = RatePolicy::default();
    let at = |seconds: f64| Moment::from(jiff::Timestamp::UNIX_EPOCH).plus(seconds);
    let (mut known, mut cooldown) = (RoleKnowledge::default(), Cooldown::default());
    known.arrivals.begin(at(0.0));
    for second in (5..=120).step_by(5).map(f64::from) {
        known.arrivals.add(at(second - 5.0), at(second), EngineArrivals::admitted(30.0));
        known.arrivals.close(at(second), None, None, |from, to| from.until(to));
    }
    let mut ask = |now: f64, target: u32| {
        let replica = replica(4000.0, 1000.0);
        let ordered = RateVariant {
            requested: Replicas::ONE,
            ready_in: vec![Seconds::ZERO],
            ..variant(target, replica)
        };
        let input = RateInput { running: 40.0, ..input(&policy, at(now), vec![ordered]) };
        analyze(&input, &mut known, &mut cooldown, &|_| true).unwrap().targets[0].get()
    };
    assert_eq!(ask(120.0, 4), 4, "enough for 6 requests/s");
    assert_eq!(ask(120.0, 2), 2, "a limit has left two");
    assert!(ask(125.0, 2) > 2);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn larger_requests_never_make_a_replica_carry_more(
        prompt in 1.0_f64..20_000.0, output in 1.0_f64..4000.0, more in 1.0_f64..3.0,
        cache in 1e4_f64..1e6, terms in prop::array::uniform4(0.1_f64..10.0),
    ) {
        let mut own = engine();
        own.step_time.base *= terms[0];
        own.step_time.prompt_token *= terms[1];
        own.step_time.sequence *= terms[2];
        own.step_time.full_cache *= terms[3];
        own.kv_capacity = Some(cache);
        let policy = RatePolicy::default();
        let rate = |own: &EngineModel, prompt, output| ReplicaCapacity::new(Role::Both, own, request(prompt, output), &policy).unwrap().max_rate();
        let here = rate(&own, prompt, output) * (1.0 + 1e-12);
        prop_assert!(rate(&own, prompt * more, output) <= here);
        prop_assert!(rate(&own, prompt, output * more) <= here);
        let roomier = EngineModel { kv_capacity: Some(cache * more), ..own };
        prop_assert!(rate(&roomier, prompt, output) * (1.0 + 1e-12) >= rate(&own, prompt, output));
    }

    #[test]
    fn more_demand_never_needs_fewer(load in 0.0_f64..500.0, more in 0.0_f64..100.0) {
        let own = replica(1000.0, 250.0);
        prop_assert!(needed(&own, load + more) >= needed(&own, load));
    }

    #[test]
    fn time_has_no_unit(load in 0.1_f64..100.0, factor in 0.01_f64..100.0) {
        let slow = StepTime {
            base: 5.5e-3 * factor, prompt_token: 24e-6 * factor, sequence: 1e-5 * factor, full_cache: 18.24e-3 * factor,
        };
        let slow = EngineModel { step_time: slow, ..engine() };
        let slow = ReplicaCapacity::new(Role::Both, &slow, request(4000.0, 1000.0), &RatePolicy::default()).unwrap();
        // Within rounding of a boundary either answer is right.
        let own = replica(4000.0, 1000.0);
        let (low, high) = (needed(&own, load * (1.0 - 1e-9)), needed(&own, load * (1.0 + 1e-9)));
        prop_assert!((low..=high).contains(&needed(&slow, load / factor)));
    }
}

#[test]
fn a_learned_limit_never_beats_the_argument_and_without_both_the_device_counts() {
    let now = Moment::from(jiff::Timestamp::constant(1_800_000_000, 0));
    let (limit, first_token) = (Some(30.0), Some(1e-4));
    let limit_at = Some(now);
    let mut known = VariantKnowledge { limit, limit_at, first_token, ..VariantKnowledge::default() };
    let sequences = |known: &VariantKnowledge, argument, default| {
        EngineModel::from_knowledge(Role::Prefill, known, argument, default, now)
            .map(|engine| engine.max_sequences)
    };
    assert_eq!(sequences(&known, Some(32.0), 256.0), Some(32.0));
    assert_eq!(sequences(&known, None, 256.0), Some(30.0));
    known.limit = None;
    assert_eq!(sequences(&known, None, 1024.0), Some(1024.0));
    known.most_running = 300.0;
    assert_eq!(sequences(&known, None, 256.0), Some(300.0), "more was seen running than is assumed");
}

#[test]
fn an_old_limit_and_an_old_first_token_once_overstated_the_capacity_of_a_replica() {
    let now = Moment::from(jiff::Timestamp::constant(1_800_000_000, 0));
    let known = |limit, at| {
        let mut known = VariantKnowledge { limit: Some(limit), limit_at: at, ..VariantKnowledge::default() };
        (known.first_token, known.first_token_at) = (Some(1e-6), at);
        for second in 0..60_i32 {
            let step = StepSample { step: 0.03, prompt: 90.0, running: 40.0, usage: 0.3 };
            known.fit.learn(now.plus(f64::from(second - 60)), &step);
        }
        known
    };
    let month = Some(now.plus(-30.0 * 86_400.0));
    let engine =
        |limit, at| EngineModel::from_knowledge(Role::Both, &known(limit, at), None, 256.0, now).unwrap();
    let sequences = |limit| [Some(now), month, None].map(|at| engine(limit, at).max_sequences);
    assert_eq!([sequences(1000.0), sequences(64.0)], [[1000.0, 256.0, 256.0], [64.0; 3]]);
    let prompt = |at| engine(64.0, at).step_time.prompt_token;
    assert!(prompt(Some(now)) < prompt(month), "{} and {}", prompt(Some(now)), prompt(month));
    assert_eq!(prompt(month).to_bits(), prompt(None).to_bits());
}

#[test]
fn a_capacity_learned_a_month_ago_or_at_an_unknown_time_lowers_no_number() {
    let now = Moment::from(jiff::Timestamp::constant(1_800_000_000, 0));
    let month = Some(now.plus(-30.0 * 86_400.0));
    let prompts =
        |at| VariantKnowledge { first_token: Some(1e-4), first_token_at: at, ..VariantKnowledge::default() };
    let cache = |at| VariantKnowledge { capacity: Some(1e5), capacity_at: at, ..VariantKnowledge::default() };
    for (known, role) in [(prompts as fn(_) -> _, Role::Prefill), (cache, Role::Both)] {
        let may = |at| known(at).may_lower(role, now);
        assert_eq!([may(Some(now)), may(month), may(None)], [true, false, false], "{role:?}");
    }
    assert!(prompts(None).may_lower(Role::Both, now), "nothing rests on steps of which nothing is known");
    let mut shape = crate::learn::TokenShape::default();
    assert!(shape.may_lower(now));
    let sizes = RequestSizes { prompt: 4000.0, firsts: 4.0, output: 800.0, finished: 4.0 };
    shape.learn(now.plus(-30.0 * 86_400.0), &sizes);
    assert!(!shape.may_lower(now));
    shape.learn(now, &sizes);
    assert!(shape.may_lower(now));
}

#[test]
fn stored_names_are_those_of_earlier_versions() {
    let stored = r#"{"control":{"both":{"looked":5,"up":4,"down":3,"mistakes":1,"regret":2}}}"#;
    let memory: RateMemory = serde_json::from_str(stored).unwrap();
    let cooldown = &memory.cooldowns[&Role::Both];
    let moments = [cooldown.evaluated_at, cooldown.added_at, cooldown.removed_at, cooldown.mistake_at];
    assert!(moments.iter().all(Option::is_some) && cooldown.mistakes == 1);
    let written = serde_json::to_value(&memory).unwrap();
    let expected: serde_json::Value = serde_json::from_str(stored).unwrap();
    assert_eq!(written["control"], expected["control"]);
}

/// Whether an exchange is proposed within a quarter of an hour at 8 requests/s, which need all of one cheap and three dear replicas.
fn exchanges(can_remove: bool) -> bool {
    let policy = RatePolicy::default();
    let at = |seconds: f64| Moment::from(jiff::Timestamp::UNIX_EPOCH).plus(seconds);
    let (mut known, mut cooldown) = (RoleKnowledge::default(), Cooldown::default());
    known.arrivals.begin(at(0.0));
    let mut is_proposed = false;
    for second in (5..=900).step_by(5).map(f64::from) {
        known.arrivals.add(at(second - 5.0), at(second), EngineArrivals::admitted(40.0));
        known.arrivals.close(at(second), None, None, |from, to| from.until(to));
        let of_price = |count: u32, cost: f64| RateVariant {
            cost: Cost::new(cost).unwrap(),
            ready_in: vec![Seconds::ZERO; count.try_into().unwrap()],
            ..variant(count, replica(4000.0, 1000.0))
        };
        let variants = vec![of_price(1, 10.0), of_price(3, 30.0)];
        let input = RateInput { can_remove, running: 60.0, ..input(&policy, at(second), variants) };
        let plan = analyze(&input, &mut known, &mut cooldown, &|_| true).unwrap();
        is_proposed |= plan.found.exchange.is_some();
    }
    is_proposed
}

#[test]
fn nothing_is_exchanged_while_signals_are_missing() {
    assert!(exchanges(true));
    assert!(!exchanges(false));
}

#[test]
fn a_clock_that_is_set_back_makes_no_exchange_of_what_was_needed() {
    let at = |seconds: f64| Moment::from(jiff::Timestamp::UNIX_EPOCH).plus(seconds);
    let mut cooldown = Cooldown::default();
    cooldown.note_exchange(at(1000.0));
    assert!(cooldown.is_exchanging);
    let stored = serde_json::to_string(&cooldown.compacted()).unwrap();
    assert_eq!(serde_json::from_str::<Cooldown>(&stored).unwrap(), cooldown, "over a restart");
    cooldown.note_addition(at(1100.0));
    cooldown.not_after(at(500.0));
    assert!(!cooldown.is_exchanging);
    assert!(
        !cooldown.may_exchange(at(1099.0)) && cooldown.may_exchange(at(1700.0)),
        "600 s, doubled once, after 500"
    );
}

#[test]
fn what_is_refused_is_carried_but_neither_waits_nor_doubles_what_a_trend_has_doubled() {
    let level = ArrivalLevel { rate: 8.0, slope: 1.0, seconds: 300.0 };
    let demand = |share| Demand::new(level, 1.0, 125.0, share);
    close(demand(0.0).forecast, 16.0, 1e-9);
    close(demand(0.25).forecast, 12.0, 1e-9);
    close(demand(0.5).forecast, 8.0, 1e-9);
    let level = ArrivalLevel { slope: 0.0, ..level };
    let steady = Demand::new(level, 1.0, 125.0, 0.25);
    close(steady.forecast, 8.0, 1e-9);
    close(steady.admitted_forecast(), 6.0, 1e-9);
    close(steady.refused(), 2.0, 1e-9);
}

#[test]
fn refusals_are_said_where_there_are_any_and_make_no_backlog() {
    let policy = RatePolicy::default();
    let at = |seconds: f64| Moment::from(jiff::Timestamp::UNIX_EPOCH).plus(seconds);
    // One replica that serves 3 requests/s, and some that wait.
    let found = |arrivals: EngineArrivals| {
        let (mut known, mut cooldown) = (RoleKnowledge::default(), Cooldown::default());
        known.arrivals.begin(at(0.0));
        for second in (5..=120).step_by(5).map(f64::from) {
            known.arrivals.add(at(second - 5.0), at(second), arrivals);
            known.arrivals.close(at(second), None, None, |from, to| from.until(to));
        }
        let variant = RateVariant { ready_in: vec![Seconds::ZERO], ..variant(1, replica(4000.0, 1000.0)) };
        let input = RateInput { waiting: 8.0, running: 96.0, ..input(&policy, at(120.0), vec![variant]) };
        let found = analyze(&input, &mut known, &mut cooldown, &|_| true).unwrap().found;
        let refused = values(&input, &found).iter().any(|value| value.name().starts_with("refused"));
        (found.demand.level.rate, found.test.backlog, refused)
    };
    let (rate, backlog, is_said) = found(EngineArrivals { all: 25.0, refused: 10.0 });
    close(rate, 5.0, 1e-9);
    let (waiting_rate, waiting_backlog, _) = found(EngineArrivals::admitted(25.0));
    close(waiting_rate, 5.0, 1e-9);
    assert!(backlog < 20.0 && waiting_backlog > 200.0, "{backlog}, {waiting_backlog} if they wait");
    let (_, _, is_said_without) = found(EngineArrivals::admitted(15.0));
    assert!(is_said && !is_said_without);
}
