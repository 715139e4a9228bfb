//! The rate policy over time: what it must do, and what it never does, whatever the load.

use crate::tests::support::closed_form_fleet::{ClosedFormFleet, SCRAPE, Workload};
use crate::tests::support::fixture::TestHpa;
use crate::tests::support::prelude::*;
use proptest::prelude::*;
use wva_core::analyze::rate;
use wva_core::hpa::{Behavior, Rules, past_tolerance};
use wva_core::learn::ArrivalBin;
use wva_core::report::{Direction, Stage};
use wva_core::snapshot::VariantLimit;
use wva_sim::Rng;

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

fn bins(fleet: &ClosedFormFleet) -> Vec<ArrivalBin> {
    let learned = fleet.memory.groups[&group_id()].learned.as_ref().unwrap();
    let knowledge = &learned.rate.as_ref().unwrap().knowledge;
    knowledge.roles.values().next().unwrap().arrivals.bins().to_vec()
}

/// A load that changes now and then.
fn loads() -> impl Strategy<Value = Vec<(f64, i64)>> {
    proptest::collection::vec((0.3_f64..12.0, 60_i64..400), 2..5)
}

proptest! {
    #![proptest_config(config(12))]

    /// The program may be restarted at any moment with the same memory.
    #[test]
    fn stored_memory_continues_as_if_there_had_been_no_restart(loads in loads(), seed in 1_u64..1000, cut in 0.2_f64..0.8) {
        let (mut first, mut steps) = (ClosedFormFleet::new(Workload::default(), 2, seed), Vec::new());
        loads.iter().for_each(|(rate, lasts)| steps.extend(vec![*rate; usize::try_from(lasts / SCRAPE).unwrap()]));
        let cut = (cut * steps.len() as f64) as usize;
        for rate in &steps[..cut] {
            first.serve(*rate);
            first.decide();
        }
        let mut restored = first.clone();
        let bytes = |fleet: &ClosedFormFleet| serde_json::to_string(&fleet.memory).unwrap();
        restored.memory = serde_json::from_str(&bytes(&first)).unwrap();
        for rate in &steps[cut..] {
            first.serve(*rate);
            restored.serve(*rate);
            prop_assert_eq!(first.decide(), restored.decide());
            prop_assert_eq!(bytes(&first), bytes(&restored));
        }
    }

    /// A restart loses the last ten minutes, and lowers no number.
    #[test]
    fn a_restart_lowers_no_number_and_removes_nothing_before_peaks_are_known(loads in loads(), seed in 1_u64..1000) {
        let mut fleet = ClosedFormFleet::new(Workload::default(), 2, seed);
        for (rate, lasts) in loads {
            fleet.run(rate, lasts);
            let before = *fleet.targets.last().unwrap();
            let mut restarted = fleet.clone();
            let group = restarted.memory.groups.get_mut(&group_id()).unwrap();
            *group = group.compacted();
            let size = serde_json::to_string(group.learned.as_ref().unwrap()).unwrap().len();
            prop_assert!(size <= 2048, "{size} bytes");
            for _ in 0..165 / SCRAPE {
                restarted.serve(0.1);
                let now = restarted.decide().unwrap();
                prop_assert!(now >= before, "{now} after {before}");
            }
        }
    }

    /// A second decision at the same moment changes nothing, not even the memory.
    #[test]
    fn looking_twice_is_looking_once(loads in loads(), seed in 1_u64..1000) {
        let mut fleet = ClosedFormFleet::new(Workload::default(), 1, seed);
        for (rate, lasts) in loads {
            fleet.run(rate, lasts);
            fleet.serve(2.0 * rate);
            let mut snapshot = fleet.snapshot();
            // A pod that became Ready again after its samples did not start twice either.
            let now = snapshot.now;
            let pods = states_mut(&mut snapshot).flat_map(|state| &mut state.pods);
            pods.take(1).for_each(|pod| pod.ready_since = Some(now));
            let once = decide(&snapshot, &observe(&snapshot, fleet.memory.clone()), &fleet.policy);
            let twice = decide(&snapshot, &observe(&snapshot, once.memory.clone()), &fleet.policy);
            prop_assert_eq!(&once.memory.groups[&group_id()].learned, &twice.memory.groups[&group_id()].learned);
            let number = |outcome: &Outcome| outcome.memory.groups[&group_id()].variants.get("llama").unwrap().target;
            prop_assert_eq!(number(&once), number(&twice));
        }
    }

    /// The mean rate over ten minutes is that of the load, however many scrapes fail.
    #[test]
    fn lost_scrapes_do_not_bend_the_rate(loss in 0.0_f64..0.3, seed in 1_u64..1000) {
        let mut fleet = ClosedFormFleet::new(Workload { loss, even: true, ..Workload::default() }, 3, seed);
        fleet.run(6.0, 900);
        let bins = bins(&fleet);
        let (arrivals, seconds) = bins.iter().fold((0.0, 0.0), |(arrivals, seconds), bin| {
            (arrivals + bin.count().arrivals, seconds + bin.seconds)
        });
        let mean = arrivals / seconds;
        prop_assert!((mean / 6.0 - 1.0).abs() < 0.02, "{mean} with {loss} lost");
    }
}

#[test]
fn constant_load_changes_nothing_after_a_quarter_of_an_hour() {
    let mut late = 0;
    for rate in 1..=10_u32 {
        let mut fleet = ClosedFormFleet::new(Workload::default(), 3, u64::from(rate));
        fleet.run(f64::from(rate), 3600);
        let (changes, turns) = fleet.moves(900);
        assert!(changes <= 1 && turns == 0, "{rate} requests/s: {:?}", fleet.targets);
        late += changes;
        let even = Workload { even: true, ..Workload::default() };
        let mut fleet = ClosedFormFleet::new(even, 3, u64::from(rate));
        fleet.run(f64::from(rate), 1800);
        assert_eq!(fleet.moves(900), (0, 0), "{rate} requests/s, evenly: {:?}", fleet.targets);
    }
    assert!(late <= 1, "{late} of 10");
}

#[test]
fn a_step_orders_what_it_needs_at_once() {
    let mut fleet = ClosedFormFleet::new(Workload::default(), 2, 7);
    fleet.run(2.0, 600);
    assert_eq!(fleet.targets.last(), Some(&2));
    fleet.run(8.0, 30);
    assert!(*fleet.targets.last().unwrap() >= 4, "{:?}", fleet.targets);
    fleet.run(8.0, 600);
    assert!((4..=5).contains(fleet.targets.last().unwrap()), "{:?}", fleet.targets.last());
}

#[test]
fn a_drop_is_followed_down_in_halves() {
    let mut fleet = ClosedFormFleet::new(Workload::default(), 2, 3);
    fleet.run(10.0, 1200);
    let high = f64::from(*fleet.targets.last().unwrap());
    let from = fleet.targets.len();
    fleet.run(1.0, 1200);
    let floor = *fleet.targets.last().unwrap();
    assert!(floor <= 2, "{floor}");
    let within = 300.0 + 60.0 * (high - f64::from(floor)).log2().ceil() + 90.0;
    let reached = fleet.targets[from..].iter().position(|target| *target == floor).unwrap();
    assert!(reached as f64 * SCRAPE as f64 <= within, "{reached} looks, and not {within} s");
    assert_eq!(fleet.moves(1205).1, 0, "{:?}", &fleet.targets[from..]);
}

#[test]
fn nothing_that_arrives_asks_for_nothing_more() {
    let mut fleet = ClosedFormFleet::new(Workload::default(), 3, 1);
    fleet.run(0.0, 1800);
    assert!(fleet.targets.windows(2).all(|pair| pair[1] <= pair[0]), "{:?}", fleet.targets);
}

#[test]
fn who_sees_nothing_removes_nothing() {
    let mut fleet = ClosedFormFleet::new(Workload::default(), 4, 1);
    fleet.run(8.0, 900);
    let before = *fleet.targets.last().unwrap();
    fleet.source = SourceHealth::Partial { warnings: vec!["a store is missing".into()] };
    fleet.run(0.1, 900);
    assert_eq!(fleet.targets.iter().skip(180).min(), Some(&before));
    assert_eq!(fleet.verdict().1, Reason::Partial);
    fleet.source = SourceHealth::Down { cause: "connection refused".into() };
    fleet.run(0.1, 200);
    assert_eq!(*fleet.targets.last().unwrap(), before);
}

#[test]
fn a_restarted_engine_brings_no_flood_and_takes_none_back() {
    let mut fleet = ClosedFormFleet::new(Workload { even: true, ..Workload::default() }, 3, 1);
    fleet.run(6.0, 600);
    fleet.pods[0].restart();
    fleet.run(6.0, 300);
    let odd = bins(&fleet).into_iter().find(|bin| !(0.0..=60.0).contains(&bin.count().arrivals));
    assert!(odd.is_none(), "{odd:?}");
    assert!(fleet.moves(605).0 == 0, "{:?}", fleet.targets);
}

#[test]
fn one_missed_scrape_of_the_only_pod_is_no_stretch_and_changes_nothing() {
    let mut fleet = ClosedFormFleet::new(Workload { even: true, ..Workload::default() }, 1, 1);
    fleet.run(1.0, 600);
    let (before, target) = (bins(&fleet), fleet.targets.last().copied());
    fleet.workload.loss = 1.0;
    fleet.serve(1.0);
    assert_eq!(fleet.decide(), target);
    assert_eq!(bins(&fleet), before);
    fleet.workload.loss = 0.0;
    fleet.serve(1.0);
    fleet.decide();
    let last = *bins(&fleet).last().unwrap();
    assert!((last.seconds - 10.0).abs() < 1e-9 && (last.count().arrivals - 10.0).abs() < 1e-9, "{last:?}");
}

#[test]
fn every_number_is_one_that_an_hpa_follows() {
    for from in 1..=200 {
        for to in [from - 1, from + 1, from * 21 / 20, from * 19 / 20, from * 12 / 10, from / 2] {
            let desired = past_tolerance(from, to.max(1), 1..=400, 0.1, |_| true);
            let usual = Behavior::default();
            let behavior = Behavior { down: Rules { window: Seconds::ZERO, ..usual.down }, ..usual };
            let mut hpa = TestHpa::new(500, behavior);
            let spec = [0, 15].into_iter().fold(from, |spec, now| hpa.sync(now, spec, desired));
            assert_eq!(spec, desired, "from {from} to {to}");
        }
    }
}

#[test]
fn pods_that_no_node_has_room_for_are_not_counted_on() {
    let mut fleet = ClosedFormFleet::new(Workload::default(), 2, 5);
    fleet.run(2.0, 600);
    fleet.nowhere = true;
    fleet.run(8.0, 60);
    let ordered = *fleet.targets.last().unwrap();
    let (number, reason, message) = fleet.verdict();
    assert_eq!((number, reason), (ordered, Reason::Bounded), "{message}");
    assert!(message.contains("no node has room"), "{message}");
    fleet.run(8.0, 300);
    assert_eq!(*fleet.targets.last().unwrap(), ordered, "more of them would wait too");
}

#[test]
fn the_report_says_what_binds_and_when_the_next_change_is_possible() {
    let mut fleet = ClosedFormFleet::new(Workload::default(), 3, 5);
    fleet.run(6.0, 900);
    let outcome = fleet.outcome();
    let report = &outcome.report.groups[&group_id()];
    let step = report.steps.iter().find(|step| step.stage() == Stage::Analyze).unwrap();
    let value = |name: &str| step.values().iter().find(|value| value.name() == name).unwrap().value;
    assert!((value("arrivals, req/s") - 6.0).abs() < 0.5);
    assert!((value("capacity, req/s") / 8.97 - 1.0).abs() < 0.1, "{}", value("capacity, req/s"));
    let least = value("supported by utilisation, req/s").min(value("supported by the chance reserve, req/s"));
    let more = step.thresholds().iter().find(|threshold| threshold.to == Direction::More).unwrap();
    assert!((more.at / least - 1.025).abs() < 1e-9 && more.now < more.at);
    assert!(step.binding().unwrap().contains("supports"), "{step}");
    assert!(step.thresholds().iter().any(|threshold| threshold.to == Direction::Fewer), "{step:?}");
}

/// Two variants with the same hardware count like one, except for rounding.
#[test]
fn what_is_split_in_two_needs_as_many() {
    let mut rng = Rng::new(11);
    for _ in 0..2000 {
        let own = rate::ReplicaCapacity {
            max_sequences: 96.0,
            fixed_seconds: 5.5,
            seconds_per_request: 0.277,
            usable_rate: 0.75 * 2.991,
            relative_error: 0.0,
        };
        let (load, reserve, surge) = (40.0 * rng.unit(), rng.unit(), rng.unit());
        let test = rate::CapacityTest { reserve, surge, backlog: 0.0, drain: 60.0 };
        let needed = |of: &dyn Fn(f64) -> rate::FleetCapacity| {
            (0_u32..).find(|count| test.passes(&of(f64::from(*count)), load)).unwrap()
        };
        let whole = needed(&|count| rate::FleetCapacity::sum([(&own, count)]));
        let split = needed(&|count| {
            rate::FleetCapacity::sum([(&own, (count / 2.0).ceil()), (&own, (count / 2.0).floor())])
        });
        assert_eq!(whole, split);
    }
}

/// The pods of `fleet` as those of two variants, of which the second costs three times as much and has all but the first pod.
fn of_two_prices(fleet: &ClosedFormFleet) -> Snapshot {
    let mut snapshot = fleet.snapshot();
    let states = &mut group_of(&mut snapshot).variants;
    let mut dear = states[0].clone();
    (dear.variant.id.name, dear.variant.cost) = ("llama-dear".into(), Cost::new(30.0).unwrap());
    dear.pods = states[0].pods.split_off(1);
    states.push(dear);
    for state in states {
        let pods = Replicas::new(u32::try_from(state.pods.len()).unwrap());
        state.scale = Some(Scale { spec: pods, current: pods, ready: pods });
    }
    snapshot
}

/// What is decided about the cheap one over 25 minutes at 8 requests/s, which need all four replicas.
fn exchanged(limits: &[VariantLimit]) -> Vec<Target> {
    let mut fleet = ClosedFormFleet::new(Workload::default(), 4, 5);
    let decide = |_| {
        fleet.serve(8.0);
        let outcome = evaluate(
            &Snapshot { limits: limits.to_vec(), ..of_two_prices(&fleet) },
            fleet.memory.clone(),
            &fleet.policy,
        );
        fleet.memory = outcome.memory.clone();
        outcome.decisions.contains_key(&World::id()).then(|| target_of(&outcome, "llama").clone())
    };
    (0..300).filter_map(decide).collect()
}

#[test]
fn a_limit_without_room_for_an_exchange_was_said_to_hold_back_what_is_needed() {
    let free = exchanged(&[]);
    let last = free.last().unwrap();
    assert!(last.desired.get() > 1, "{}", last.explanation);
    let is_named = |target: &Target, text: &str| target.explanation.to_string().contains(text);
    assert!(free.iter().any(|target| is_named(target, "to replace replicas of llama-dear")));
    let quota = VariantLimit {
        limit: VariantLimit::RESOURCE_QUOTA.into(),
        key: "nvidia.com/gpu in default/gpus".into(),
        gpus: 1,
        elsewhere: 0,
        variants: [World::id()].into(),
    };
    let limited = exchanged(&[quota]);
    assert!(limited.iter().all(|target| target.desired == Replicas::ONE));
    let tries = limited
        .iter()
        .filter(|target| is_named(target, "no room for cheaper replicas: ResourceQuota"))
        .count();
    assert!((1..=2).contains(&tries), "{tries} tries in 25 minutes");
    assert!(limited.iter().all(|target| target.explanation.capacity_constraint().is_none()));
}
