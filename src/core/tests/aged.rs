//! What was learned long ago, or nobody knows when, may raise a number and not lower it; and it blocks a fleet only until it is learned
//! anew.

use crate::support::fixture::at;
use crate::support::steady::{IDLE, Steady};
use jiff::{SignedDuration, Timestamp};
use wva_core::Memory;
use wva_core::analyze::queueing::learn::Parameters;
use wva_core::analyze::weighted::hardware_key;
use wva_core::memory::Learned;
use wva_core::model::Analyzer;

/// The two that learn how long a request takes.
const BY_LATENCY: [Analyzer; 2] = [Analyzer::QueueingModel, Analyzer::Inferno];

fn learned(memory: &mut Memory) -> &mut Learned {
    memory.groups.values_mut().next().unwrap().learned.as_mut().unwrap()
}

/// Three replicas that were busy while `analyzer` learned, and then are calm, each token three times as slow as it was: what is seen at first is not
/// believed, so that the number rests on what was learned before.
fn calm_after_busy(analyzer: Analyzer) -> Steady {
    let mut steady = Steady::new(analyzer, &[Some(4.0); 3]);
    (0..8).for_each(|_| {
        steady.number();
    });
    (steady.rates, steady.slower) = (vec![Some(0.5); 3], 3.0);
    steady
}

/// The number at the next look, when what is known of service times was learned `at`.
fn with_age(steady: &mut Steady, at: Option<Timestamp>) -> u32 {
    let parameters = learned(&mut steady.world.memory).queueing.values_mut();
    parameters.for_each(|parameters| parameters.learned_at = at);
    steady.number()
}

#[test]
fn service_times_of_last_month_once_lowered_numbers() {
    for analyzer in BY_LATENCY {
        let now = Timestamp::constant(1_800_000_000, 0);
        let number = |at| with_age(&mut calm_after_busy(analyzer), at);
        assert!(number(Some(now)) < 3, "{analyzer:?}");
        assert_eq!(number(Some(now - SignedDuration::from_hours(30 * 24))), 3, "{analyzer:?}");
    }
}

#[test]
fn after_a_clock_was_set_back_service_times_once_stayed_new_until_it_had_caught_up() {
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
fn service_times_that_were_stored_without_their_age_lower_nothing_until_they_are_learned_anew() {
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
        let later: Vec<u32> = (0..4).map(|_| steady.number()).collect();
        assert!(later.iter().any(|number| *number < 3), "{analyzer:?}: {later:?}");
    }
}

#[test]
fn old_service_times_of_a_variant_without_replicas_once_kept_the_others_from_lowering_for_ever() {
    let mut steady = calm_after_busy(Analyzer::QueueingModel);
    steady.has_idle_variant = true;
    let queueing = &mut learned(&mut steady.world.memory).queueing;
    let known = queueing.values().next().unwrap().clone();
    queueing.insert(IDLE.into(), Parameters { learned_at: None, ..known });
    assert!(steady.number() < 3);
}

#[test]
fn a_best_speed_that_was_forgotten_after_an_hour_once_made_a_slow_fleet_a_calm_one() {
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
