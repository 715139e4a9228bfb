//! Fleets of steady load, to every analyzer.
//!
//! - What one scrape of one pod shows, and no other, may call for some more, and for no more than twice what there is.
//! - A pod whose exporter is dead counts for a removal as loaded like the busiest that is measured, and blocks no fleet for ever.
//! - What was learned long ago, or nobody knows when, may raise a number and not lower it, until it is learned anew.

use crate::tests::support::prelude::*;
use crate::tests::support::steady::{IDLE, Steady};
use wva_core::analyze::queueing::learn::Parameters;
use wva_core::analyze::weighted::hardware_key;

/// The numbers at this scrape and at the next ones.
fn numbers(analyzer: Analyzer, spike: (Signal, f64)) -> (u32, Vec<u32>) {
    let mut steady = Steady::new(analyzer, &[Some(2.0); 4]);
    let usual = steady.numbers(12)[11];
    steady.spike = Some(spike);
    let first = steady.number();
    steady.spike = None;
    (usual, [vec![first], steady.numbers(5)].concat())
}

#[test]
fn one_scrape_of_a_queue_orders_twice_as_many_at_most() {
    for analyzer in Analyzer::ALL {
        for spike in [(Signal::Waiting, 1e9), (Signal::Waiting, 300.0), (Signal::Running, 4096.0)] {
            let (usual, numbers) = numbers(analyzer, spike);
            assert!(
                usual <= 4 && numbers.iter().all(|number| *number <= 8),
                "{analyzer:?} {spike:?}: {numbers:?}"
            );
        }
    }
}

/// 15 min, in which every cooldown ends.
const EVALUATIONS: usize = 60;

/// The least number that `analyzer` asks for while three pods go on serving so many requests a second each.
fn least(analyzer: Analyzer, rates: [Option<f64>; 3]) -> u32 {
    Steady::new(analyzer, &rates).numbers(EVALUATIONS).into_iter().min().unwrap()
}

#[test]
fn a_dead_exporter_counts_as_loaded_like_the_busiest_pod_that_is_measured() {
    for analyzer in Analyzer::ALL {
        let mut differs = false;
        for (busy, calm) in
            [(2.0, 0.2), (4.0, 0.5), (5.0, 0.2), (6.0, 0.5), (6.0, 2.0), (7.0, 1.0), (7.5, 4.0)]
        {
            let (busy, calm) = (Some(busy), Some(calm));
            let as_the_busiest = least(analyzer, [calm, busy, busy]).min(3);
            differs |= least(analyzer, [calm, busy, calm]) < as_the_busiest;
            // Whichever comes first: one pod that is not measured is estimated by the first that is.
            for rates in [[busy, calm, None], [calm, busy, None]] {
                let number = least(analyzer, rates);
                assert!(
                    number >= as_the_busiest,
                    "{analyzer:?} at {rates:?}: {number} below {as_the_busiest}"
                );
            }
        }
        // Where the estimate decides: a busy and two calm pods need fewer than two busy ones and a calm one.
        let decides = matches!(analyzer, Analyzer::Inferno | Analyzer::QueueingModel);
        assert!(differs || !decides, "{analyzer:?}: the loads tell nothing apart");
    }
}

#[test]
fn a_dead_exporter_beside_calm_pods_does_not_block_a_fleet_for_ever() {
    for analyzer in Analyzer::ALL {
        // Enough that more than one request runs: of less the rate policy learns nothing.
        let number = least(analyzer, [Some(1.0), Some(1.0), None]);
        assert!(number < 3, "{analyzer:?}: {number}");
    }
}

/// The two that learn how long a request takes.
const BY_LATENCY: [Analyzer; 2] = [Analyzer::QueueingModel, Analyzer::Inferno];

fn learned(memory: &mut Memory) -> &mut Learned {
    memory.groups.values_mut().next().unwrap().learned.as_mut().unwrap()
}

/// Three replicas that were busy while `analyzer` learned, and then are calm, each token three times as slow as it was: what is
/// measured at first is not believed, so that the number rests on what was learned before.
fn calm_after_busy(analyzer: Analyzer) -> Steady {
    let mut steady = Steady::new(analyzer, &[Some(4.0); 3]);
    steady.numbers(8);
    (steady.rates, steady.slower) = (vec![Some(0.5); 3], 3.0);
    steady
}

/// The number of the next cycle, when what is known of service times was learned `at`.
fn with_age(steady: &mut Steady, at: Option<Timestamp>) -> u32 {
    let parameters = learned(&mut steady.world.memory).queueing.values_mut();
    parameters.for_each(|parameters| parameters.learned_at = at);
    steady.number()
}

#[test]
fn service_times_of_last_month_lower_no_number() {
    for analyzer in BY_LATENCY {
        let now = at(0);
        let number = |at| with_age(&mut calm_after_busy(analyzer), at);
        assert!(number(Some(now)) < 3, "{analyzer:?}");
        assert_eq!(number(Some(now - SignedDuration::from_hours(30 * 24))), 3, "{analyzer:?}");
    }
}

#[test]
fn service_times_of_a_later_time_are_of_now_after_a_clock_was_set_back() {
    for analyzer in BY_LATENCY {
        let mut steady = calm_after_busy(analyzer);
        let ahead = at(steady.world.now) + SignedDuration::from_hours(30 * 24);
        with_age(&mut steady, Some(ahead));
        let now = at(steady.world.now);
        let stamps: Vec<_> =
            learned(&mut steady.world.memory).queueing.values().map(|known| known.learned_at).collect();
        assert!(stamps.iter().all(|at| at.is_some_and(|at| at <= now)), "{analyzer:?}: {stamps:?}");
    }
}

#[test]
fn service_times_stored_without_their_age_lower_nothing_until_learned_anew() {
    for analyzer in BY_LATENCY {
        let mut steady = calm_after_busy(analyzer);
        // As the previous version wrote it.
        let mut written = serde_json::to_value(&steady.world.memory).unwrap();
        let groups = written["groups"].as_object_mut().unwrap().values_mut();
        for group in groups {
            let queueing = group["learned"]["queueing"].as_object_mut().unwrap();
            let stamps =
                queueing.values_mut().map(|known| known.as_object_mut().unwrap().remove("learned_at"));
            assert!(stamps.collect::<Option<Vec<_>>>().is_some(), "it was there");
        }
        steady.world.memory = serde_json::from_value(written).unwrap();
        assert_eq!(steady.number(), 3, "{analyzer:?}");
        // A token takes as long as it did: what is seen is believed again.
        steady.slower = 1.0;
        let later = steady.numbers(4);
        assert!(later.iter().any(|number| *number < 3), "{analyzer:?}: {later:?}");
    }
}

#[test]
fn old_service_times_of_a_variant_without_replicas_block_no_other() {
    let mut steady = calm_after_busy(Analyzer::QueueingModel);
    steady.has_idle_variant = true;
    let queueing = &mut learned(&mut steady.world.memory).queueing;
    let known = queueing.values().next().unwrap().clone();
    queueing.insert(IDLE.into(), Parameters { learned_at: None, ..known });
    assert!(steady.number() < 3);
}

#[test]
fn a_slow_fleet_is_no_calm_one_when_its_best_speed_is_hours_old() {
    let number = |hours: i64| {
        let mut steady = Steady::new(Analyzer::Weighted, &[Some(1.0); 3]);
        steady.world.policy.global.default.scoring.down = 0.0;
        assert_eq!(steady.number(), 3);
        let (own, now) = (hardware_key("", 1, 200.0), at(steady.world.now));
        let bests = &mut learned(&mut steady.world.memory).bests;
        let usual = bests.get(&own, now);
        assert!(usual > 0.0);
        // A twentieth of the best is a degradation of 0.95, and so 0.19 of a score of 0.2; without it there is 0.01.
        bests.observe(&own, now - SignedDuration::from_hours(hours), 20.0 * usual);
        steady.world.policy.global.default.scoring.down = 0.15;
        steady.number()
    };
    assert_eq!([number(2), number(6 * 24)], [3, 3]);
    assert!(number(8 * 24) < 3, "after a week it is forgotten");
}
