//! The formulas by their published values, the fleet test by hand, and what a look does with it.

use proptest::prelude::*;

use super::*;
use crate::learn::{RequestSizes, RoleKnowledge, StepSample, StepTime, VariantKnowledge};
use crate::model::{Bounds, RatePolicy, Role};
use crate::moment::Moment;
use crate::units::{Cost, Replicas, Seconds};

/// The accelerator of the published comparison: 5.5 ms a step, 24 µs a prompt token, 10 µs a sequence, 38 ns a token of a
/// cache of 480,000.
fn process() -> Process {
    let step = StepTime { base: 5.5e-3, prompt_token: 24e-6, sequence: 1e-5, full_cache: 18.24e-3 };
    Process { step, cache: Some(480_000.0), held: None, tokens: 1.0, sequences: 256.0 }
}

fn request(prompt: f64, output: f64) -> Request {
    Request { prompt, output: Some(output) }
}

fn replica(prompt: f64, output: f64) -> Replica {
    Replica::of(Role::Both, &process(), request(prompt, output), &RatePolicy::default()).unwrap()
}

fn close(one: f64, other: f64, share: f64) {
    assert!((one - other).abs() <= share * other.abs(), "{one} is not {other}");
}

#[test]
fn capacities_are_those_published_with_the_formula() {
    let cases = [
        ((4000.0, 1000.0), (96.0, 5.5, 0.277, 2.991)),
        ((1000.0, 250.0), (256.0, 1.375, 0.037_187_5, 23.497)),
        ((100.0, 1000.0), (256.0, 5.5, 0.0352, 17.642)),
    ];
    for ((prompt, output), (most, fixed, each, rate)) in cases {
        let own = replica(prompt, output);
        close(own.most, most, 1e-9);
        close(own.fixed, fixed, 1e-9);
        close(own.each, each, 1e-9);
        close(own.rate(), rate, 2e-4);
        close(own.running(own.at(10.0)), 10.0, 1e-9);
    }
}

/// Replicas of one kind that `load` needs.
fn needed(replica: &Replica, load: f64) -> u32 {
    let test = Test { reserve: reserve(0.52, 125.0), surge: 0.0, backlog: 0.0, drain: 60.0 };
    (1..).find(|count| test.passes(&Sum::of([(replica, f64::from(*count))]), load)).unwrap()
}

#[test]
fn the_need_is_what_one_computes_by_hand() {
    let need = |shape: (f64, f64), loads: &[f64]| -> Vec<u32> {
        loads.iter().map(|load| needed(&replica(shape.0, shape.1), *load)).collect()
    };
    assert_eq!(need((4000.0, 1000.0), &[2.0, 4.0, 6.0, 8.0]), [2, 2, 3, 4]);
    assert_eq!(need((1000.0, 250.0), &[16.0, 20.0, 24.0]), [2, 2, 2]);
    assert_eq!(need((100.0, 1000.0), &[16.0, 24.0]), [2, 2]);
}

#[test]
fn the_page_says_what_the_code_computes() {
    let page = include_str!("../../../../docs/decisions/rate.md");
    let own = replica(4000.0, 1000.0);
    let of = |count: f64| Sum::of([(&own, count)]);
    let test = |largest| Test {
        reserve: reserve(0.52, 125.0),
        surge: share(125.0, largest),
        backlog: 0.0,
        drain: 60.0,
    };
    let asked = |count| test(0.0).binding(&of(count)).1;
    let surged = test(0.4).binding(&of(3.0));
    for says in [
        format!(
            "n_max = {:.0}, A = {:.1} s, g = {:.3} s, X = {:.3} requests/s",
            own.most,
            own.fixed,
            own.each,
            own.rate()
        ),
        format!(
            "1 replica may be asked {:.2}, 2 replicas {:.2}, 3 replicas {:.2}",
            asked(1.0),
            asked(2.0),
            asked(3.0)
        ),
        format!(
            "(the {} binds; utilisation allows {:.2})",
            test(0.0).binding(&of(3.0)).0.as_str(),
            of(3.0).allowed
        ),
        format!(
            "2, 4 and 6 requests/s need {}, {} and {} replicas",
            needed(&own, 2.0),
            needed(&own, 4.0),
            needed(&own, 6.0)
        ),
        format!("r = {:.2}, and 3 replicas may be asked {:.2}", test(0.4).surge, surged.1),
    ] {
        assert!(page.contains(&says), "the page does not say {says:?}");
    }
}

#[test]
fn what_is_cut_after_a_look_is_missed_at_the_next_moment_and_not_at_this_one() {
    let policy = RatePolicy::default();
    let at = |seconds: f64| Moment::from(jiff::Timestamp::UNIX_EPOCH).plus(seconds);
    let (mut known, mut control) = (RoleKnowledge::default(), Control::default());
    known.arrivals.begin(at(0.0));
    for second in (5..=120).step_by(5).map(f64::from) {
        known.arrivals.add(at(second - 5.0), at(second), 30.0);
        known.arrivals.close(at(second), None, None, |from, to| from.until(to));
    }
    let mut ask = |now: f64, target: u32| {
        let variant = Variant {
            name: "llama".into(),
            cost: Cost::new(10.0).unwrap(),
            bounds: Bounds { min: Replicas::ONE, max: None },
            target: Replicas::new(target),
            running: Replicas::ONE,
            lost: Replicas::ZERO,
            full: false,
            pods: vec![Seconds::ZERO],
            start: Seconds::whole(95),
            replica: Some(replica(4000.0, 1000.0)),
        };
        let look = Look {
            hidden: 1.0,
            now: at(now),
            role: Role::Both,
            variants: vec![variant],
            waiting: 0.0,
            running: 40.0,
            may_remove: true,
            tolerance: 0.1,
            policy: &policy,
        };
        analyze(&look, &mut known, &mut control, &|_| true).unwrap().targets[0].get()
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
        let mut own = process();
        own.step.base *= terms[0];
        own.step.prompt_token *= terms[1];
        own.step.sequence *= terms[2];
        own.step.full_cache *= terms[3];
        own.cache = Some(cache);
        let policy = RatePolicy::default();
        let rate = |own: &Process, prompt, output| Replica::of(Role::Both, own, request(prompt, output), &policy).unwrap().rate();
        let here = rate(&own, prompt, output) * (1.0 + 1e-12);
        prop_assert!(rate(&own, prompt * more, output) <= here);
        prop_assert!(rate(&own, prompt, output * more) <= here);
        let roomier = Process { cache: Some(cache * more), ..own };
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
        let slow = Process { step: slow, ..process() };
        let slow = Replica::of(Role::Both, &slow, request(4000.0, 1000.0), &RatePolicy::default()).unwrap();
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
        Process::of(Role::Prefill, known, argument, default, now).map(|process| process.sequences)
    };
    assert_eq!(sequences(&known, Some(32.0), 256.0), Some(32.0));
    assert_eq!(sequences(&known, None, 256.0), Some(30.0));
    known.limit = None;
    assert_eq!(sequences(&known, None, 1024.0), Some(1024.0));
    known.most_running = 300.0;
    assert_eq!(sequences(&known, None, 256.0), Some(300.0), "more was seen running than is assumed");
}

#[test]
fn a_limit_and_a_first_token_of_last_month_once_made_a_replica_carry_more_than_one_that_was_never_seen() {
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
    let process = |limit, at| Process::of(Role::Both, &known(limit, at), None, 256.0, now).unwrap();
    let sequences = |limit, at| process(limit, at).sequences as u32;
    assert_eq!(
        [sequences(1000.0, Some(now)), sequences(1000.0, month), sequences(1000.0, None)],
        [1000, 256, 256]
    );
    assert_eq!([sequences(64.0, Some(now)), sequences(64.0, month), sequences(64.0, None)], [64, 64, 64]);
    let prompt = |at| process(64.0, at).step.prompt_token;
    assert!(prompt(Some(now)) < prompt(month), "{} and {}", prompt(Some(now)), prompt(month));
    assert_eq!(prompt(month).to_bits(), prompt(None).to_bits());
}

#[test]
fn what_a_replica_carries_lowers_nothing_when_it_was_learned_a_month_ago_or_nobody_knows_when() {
    let now = Moment::from(jiff::Timestamp::constant(1_800_000_000, 0));
    let month = Some(now.plus(-30.0 * 86_400.0));
    let prompts =
        |at| VariantKnowledge { first_token: Some(1e-4), first_token_at: at, ..VariantKnowledge::default() };
    let cache = |at| VariantKnowledge { capacity: Some(1e5), capacity_at: at, ..VariantKnowledge::default() };
    for (known, role) in [(prompts as fn(_) -> _, Role::Prefill), (cache, Role::Both)] {
        let may = |at| known(at).may_lower(role, now);
        assert_eq!([may(Some(now)), may(month), may(None)], [true, false, false], "{role:?}");
    }
    assert!(
        prompts(None).may_lower(Role::Both, now),
        "nothing is known of its steps, and nothing rests on that"
    );
    let mut shape = crate::learn::TokenShape::default();
    assert!(shape.may_lower(now));
    let sizes = RequestSizes { prompt: 4000.0, firsts: 4.0, output: 800.0, finished: 4.0 };
    shape.learn(now.plus(-30.0 * 86_400.0), &sizes);
    assert!(!shape.may_lower(now));
    shape.learn(now, &sizes);
    assert!(shape.may_lower(now));
}
