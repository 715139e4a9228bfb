//! The rate policy through time: what it must do, and never does, whatever the load.

use crate::support::closed_form_fleet::{Plant, SCRAPE, World, at};
use proptest::prelude::*;
use wva_core::analyze::rate;
use wva_core::decision::Reason;
use wva_core::hpa::{Behavior, Counts, Hpa, Kind, MetricTarget, Settings, Tolerance, milli, propose};
use wva_core::learn::ArrivalBin;
use wva_core::memory::Memory;
use wva_core::report::{Direction, Stage};
use wva_core::snapshot::SourceHealth;
use wva_core::units::Replicas;
use wva_core::{decide, observe};
use wva_sim::Rng;

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

fn learned(memory: &Memory) -> &rate::RateMemory {
    memory.groups[&Plant::group()].learned.as_ref().unwrap().rate.as_ref().unwrap()
}

fn bins(plant: &Plant) -> Vec<ArrivalBin> {
    learned(&plant.memory).knowledge.roles.values().next().unwrap().arrivals.bins().to_vec()
}

/// A load that changes now and then.
fn loads() -> impl Strategy<Value = Vec<(f64, i64)>> {
    proptest::collection::vec((0.3_f64..12.0, 60_i64..400), 2..5)
}

proptest! {
    #![proptest_config(config(12))]

    /// At any moment the program may be another one with the same memory.
    #[test]
    fn what_is_written_down_goes_on_as_if_nothing_had_been(loads in loads(), seed in 1_u64..1000, cut in 0.2_f64..0.8) {
        let (mut one, mut steps) = (Plant::new(World::default(), 2, seed), Vec::new());
        loads.iter().for_each(|(rate, lasts)| steps.extend(vec![*rate; usize::try_from(lasts / SCRAPE).unwrap()]));
        let cut = (cut * steps.len() as f64) as usize;
        for rate in &steps[..cut] {
            one.serve(*rate);
            one.decide();
        }
        let mut other = one.clone();
        let bytes = serde_json::to_string(&one.memory).unwrap();
        other.memory = serde_json::from_str(&bytes).unwrap();
        for rate in &steps[cut..] {
            one.serve(*rate);
            other.serve(*rate);
            prop_assert_eq!(one.decide(), other.decide());
            prop_assert_eq!(serde_json::to_string(&one.memory).unwrap(), serde_json::to_string(&other.memory).unwrap());
        }
    }

    /// A restart loses the last ten minutes, and lowers nothing.
    #[test]
    fn a_restart_lowers_no_number_and_removes_nothing_before_peaks_are_known(loads in loads(), seed in 1_u64..1000) {
        let mut plant = Plant::new(World::default(), 2, seed);
        for (rate, lasts) in loads {
            plant.run(rate, lasts);
            let before = *plant.targets.last().unwrap();
            let mut restarted = plant.clone();
            let kept = restarted.memory.groups.get_mut(&Plant::group()).unwrap();
            *kept = kept.compacted();
            let size = serde_json::to_string(kept.learned.as_ref().unwrap()).unwrap().len();
        prop_assert!(size <= 2048, "{} bytes", size);
            for _ in 0..165 / SCRAPE {
                restarted.serve(0.1);
                let now = restarted.decide().unwrap();
                prop_assert!(now >= before, "{now} after {before}");
            }
        }
    }

    /// A second look at the same moment changes nothing, not even what is remembered.
    #[test]
    fn looking_twice_is_looking_once(loads in loads(), seed in 1_u64..1000) {
        let mut plant = Plant::new(World::default(), 1, seed);
        for (rate, lasts) in loads {
            plant.run(rate, lasts);
            plant.serve(2.0 * rate);
            let mut snapshot = plant.snapshot();
            // Whoever has become ready again since its samples has not started twice either.
            let pods = snapshot.groups.values_mut().flat_map(|group| &mut group.variants).flat_map(|one| &mut one.replicas);
            pods.take(1).for_each(|pod| pod.ready_since = Some(snapshot.now));
            let once = decide(&snapshot, &observe(&snapshot, plant.memory.clone()), &plant.policy);
            let twice = decide(&snapshot, &observe(&snapshot, once.memory.clone()), &plant.policy);
            prop_assert_eq!(&once.memory.groups[&Plant::group()].learned, &twice.memory.groups[&Plant::group()].learned);
            let number = |outcome: &wva_core::Outcome| outcome.memory.groups[&Plant::group()].variants.get("llama").unwrap().target;
            prop_assert_eq!(number(&once), number(&twice));
        }
    }

    /// The mean over ten minutes is that of the load, however many scrapes fail.
    #[test]
    fn lost_scrapes_do_not_bend_the_rate(loss in 0.0_f64..0.3, seed in 1_u64..1000) {
        let mut plant = Plant::new(World { loss, even: true, ..World::default() }, 3, seed);
        plant.run(6.0, 900);
        let bins = bins(&plant);
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
        let mut plant = Plant::new(World::default(), 3, u64::from(rate));
        plant.run(f64::from(rate), 3600);
        let (changes, turns) = plant.moves(900);
        assert!(changes <= 1 && turns == 0, "{rate} requests/s: {:?}", plant.targets);
        late += changes;
        let even = World { even: true, ..World::default() };
        let mut plant = Plant::new(even, 3, u64::from(rate));
        plant.run(f64::from(rate), 1800);
        assert_eq!(plant.moves(900), (0, 0), "{rate} requests/s, evenly: {:?}", plant.targets);
    }
    assert!(late <= 1, "{late} of 10");
}

#[test]
fn a_step_orders_what_it_needs_at_once() {
    let mut plant = Plant::new(World::default(), 2, 7);
    plant.run(2.0, 600);
    assert_eq!(plant.targets.last(), Some(&2));
    plant.run(8.0, 30);
    assert!(*plant.targets.last().unwrap() >= 4, "{:?}", plant.targets);
    plant.run(8.0, 600);
    assert!((4..=5).contains(plant.targets.last().unwrap()), "{:?}", plant.targets.last());
}

#[test]
fn a_drop_is_followed_down_in_halves() {
    let mut plant = Plant::new(World::default(), 2, 3);
    plant.run(10.0, 1200);
    let high = f64::from(*plant.targets.last().unwrap());
    let from = plant.targets.len();
    plant.run(1.0, 1200);
    let floor = *plant.targets.last().unwrap();
    assert!(floor <= 2, "{floor}");
    let within = 300.0 + 60.0 * (high - f64::from(floor)).log2().ceil() + 90.0;
    let reached = plant.targets[from..].iter().position(|target| *target == floor).unwrap();
    assert!(reached as f64 * SCRAPE as f64 <= within, "{reached} looks, and not {within} s");
    assert_eq!(plant.moves(1205).1, 0, "{:?}", &plant.targets[from..]);
}

#[test]
fn nothing_that_arrives_asks_for_nothing_more() {
    let mut plant = Plant::new(World::default(), 3, 1);
    plant.run(0.0, 1800);
    assert!(plant.targets.windows(2).all(|pair| pair[1] <= pair[0]), "{:?}", plant.targets);
}

#[test]
fn who_sees_nothing_removes_nothing() {
    let mut plant = Plant::new(World::default(), 4, 1);
    plant.run(8.0, 900);
    let before = *plant.targets.last().unwrap();
    plant.source = SourceHealth::Partial { warnings: vec!["a store is missing".into()] };
    plant.run(0.1, 900);
    assert_eq!(plant.targets.iter().skip(180).min(), Some(&before));
    assert_eq!(plant.verdict().1, Reason::Partial);
    plant.source = SourceHealth::Down { cause: "connection refused".into() };
    plant.run(0.1, 200);
    assert_eq!(*plant.targets.last().unwrap(), before);
}

#[test]
fn a_restarted_engine_brings_no_flood_and_takes_none_back() {
    let mut plant = Plant::new(World { even: true, ..World::default() }, 3, 1);
    plant.run(6.0, 600);
    plant.pods[0].restart();
    plant.run(6.0, 300);
    let odd = bins(&plant).into_iter().find(|bin| !(0.0..=60.0).contains(&bin.count().arrivals));
    assert!(odd.is_none(), "{odd:?}");
    assert!(plant.moves(605).0 == 0, "{:?}", plant.targets);
}

#[test]
fn one_missed_scrape_of_the_only_pod_is_no_stretch_and_changes_nothing() {
    let mut plant = Plant::new(World { even: true, ..World::default() }, 1, 1);
    plant.run(1.0, 600);
    let (before, target) = (bins(&plant), plant.targets.last().copied());
    plant.world.loss = 1.0;
    plant.serve(1.0);
    assert_eq!(plant.decide(), target);
    assert_eq!(bins(&plant), before);
    plant.world.loss = 0.0;
    plant.serve(1.0);
    plant.decide();
    let last = *bins(&plant).last().unwrap();
    assert!((last.seconds - 10.0).abs() < 1e-9 && (last.count().arrivals - 10.0).abs() < 1e-9, "{last:?}");
}

#[test]
fn every_number_is_one_that_an_hpa_follows() {
    for from in 1..=200 {
        for to in [from - 1, from + 1, from * 21 / 20, from * 19 / 20, from * 12 / 10, from / 2] {
            let wanted = rate::past_tolerance(from, to.max(1), (1, 400), 0.1, |_| true);
            let settings = Settings {
                min: Replicas::ONE,
                max: Replicas::new(500),
                behavior: Some(Behavior {
                    down: wva_core::hpa::Rules {
                        window: wva_core::units::Seconds::ZERO,
                        ..Behavior::default().down
                    },
                    ..Behavior::default()
                }),
                at_zero: wva_core::hpa::AtZero::default(),
            };
            let (mut hpa, mut spec) = (Hpa::new(settings), Replicas::new(from));
            for sync in 0..2 {
                let counts = Counts { spec, status: spec, ready: spec };
                let one = MetricTarget { kind: Kind::AverageValue, milli: 1000 };
                let proposal = propose(&[milli(f64::from(wanted))], one, counts, Tolerance::default());
                spec = hpa.step(at(15 * sync), spec, proposal);
            }
            assert_eq!(spec.get(), wanted, "from {from} to {to}");
        }
    }
}

#[test]
fn pods_that_no_node_has_room_for_are_not_counted_on() {
    let mut plant = Plant::new(World::default(), 2, 5);
    plant.run(2.0, 600);
    plant.nowhere = true;
    plant.run(8.0, 60);
    let ordered = *plant.targets.last().unwrap();
    let (number, reason, message) = plant.verdict();
    assert_eq!((number, reason), (ordered, Reason::Bounded), "{message}");
    assert!(message.contains("no node has room"), "{message}");
    plant.run(8.0, 300);
    assert_eq!(*plant.targets.last().unwrap(), ordered, "more of them would wait too");
}

#[test]
fn the_report_says_what_binds_and_when_the_next_change_is_possible() {
    let mut plant = Plant::new(World::default(), 3, 5);
    plant.run(6.0, 900);
    let outcome = plant.look();
    let report = &outcome.report.groups[&Plant::group()];
    let step = report.steps.iter().find(|step| step.stage() == Stage::Analyze).unwrap();
    let value = |name: &str| step.values().iter().find(|value| value.name == name).unwrap().value;
    assert!((value("arrivals, requests/s") - 6.0).abs() < 0.5);
    assert!((value("capacity, requests/s") / 8.97 - 1.0).abs() < 0.1, "{}", value("capacity, requests/s"));
    let least = value("utilisation allows, requests/s").min(value("reserve allows, requests/s"));
    let more = step.thresholds().iter().find(|turn| turn.to == Direction::More).unwrap();
    assert!((more.at / least - 1.025).abs() < 1e-9 && more.now < more.at);
    assert!(step.binding().unwrap().contains("supports"), "{step}");
    assert!(step.thresholds().iter().any(|threshold| threshold.to == Direction::Fewer), "{step:?}");
}

/// Two variants of the same hardware are one, but for what is rounded.
#[test]
fn what_is_split_in_two_needs_as_many() {
    let mut rng = Rng::new(11);
    for _ in 0..2000 {
        let own = rate::ReplicaCapacity {
            max_sequences: 96.0,
            fixed_seconds: 5.5,
            seconds_per_request: 0.277,
            usable_rate: 0.75 * 2.991,
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
