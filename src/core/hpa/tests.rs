//! What a real HPA does with a number, where the vectors are silent.

use jiff::{SignedDuration, Timestamp};

use super::*;
use crate::units::Replicas;

fn n(count: u32) -> Replicas {
    Replicas::new(count)
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::UNIX_EPOCH + SignedDuration::from_secs(seconds)
}

fn hpa(min: u32, max: u32, behavior: Option<Behavior>, at_zero: AtZero) -> Hpa {
    Hpa::new(Settings { min: n(min), max: n(max), behavior, at_zero })
}

#[test]
fn an_hpa_wakes_only_what_it_put_to_sleep_itself() {
    let mut stranger = hpa(0, 9, None, AtZero::ReadsIfOwn);
    assert_eq!(stranger.step(at(0), n(0), Some(n(3))), n(0));

    let behavior =
        Behavior { down: Rules { window: Seconds::ZERO, ..Behavior::default().down }, ..Behavior::default() };
    let mut own = hpa(0, 9, Some(behavior), AtZero::ReadsIfOwn);
    assert_eq!(own.step(at(0), n(1), Some(n(0))), n(0));
    assert_eq!(own.step(at(15), n(0), Some(n(3))), n(3));
    assert_eq!(own.step(at(30), n(3), Some(n(3))), n(3));
    assert_eq!(own.step(at(45), n(0), Some(n(3))), n(0), "somebody else's zero");
}

#[test]
fn bounds_are_restored_at_once_even_without_metrics() {
    let mut hpa = hpa(2, 5, Some(Behavior::default()), AtZero::Reads);
    assert_eq!(hpa.step(at(0), n(9), None), n(5));
    assert_eq!(hpa.step(at(15), n(1), None), n(2));
    assert_eq!(hpa.step(at(30), n(3), None), n(3));
}

#[test]
fn memory_of_recommendations_is_bounded_by_the_windows() {
    let mut hpa = hpa(1, 50, Some(Behavior::default()), AtZero::Reads);
    for tick in 0..1000 {
        let _ = hpa.step(at(tick * 15), n(3), Some(n(3)));
    }
    assert!(hpa.recommendations.as_ref().is_some_and(|all| all.len() <= 21));
}

#[test]
fn a_sum_that_overflows_saturates() {
    let target = MetricTarget { kind: Kind::AverageValue, milli: 1000 };
    let counts = Counts { spec: n(1), status: n(1), ready: n(1) };
    let huge = propose(&[i64::MAX, i64::MAX], target, counts, Tolerance::default());
    assert_eq!(huge, Some(n(u32::MAX)));
}

#[test]
fn an_hpa_ignores_one_replica_from_ten_on() {
    let one_more = |running| is_ignored(n(running + 1), n(running), TOLERANCE);
    assert_eq!([1, 9, 10, 12].map(one_more), [false, false, true, true]);
    assert!(!is_ignored(n(14), n(12), TOLERANCE));
    assert_eq!([8, 9, 10].map(|desired| is_ignored(n(desired), n(10), TOLERANCE)), [false, true, false]);
    assert!(!is_ignored(n(1), n(0), TOLERANCE) && !is_ignored(n(1), n(1), TOLERANCE));
}

#[test]
fn the_next_numbers_are_the_nearest_that_an_hpa_acts_on() {
    for running in 1..2000 {
        let (above, below) = (next_above(n(running)).get(), next_below(n(running)).get());
        for ignored in (below + 1..above).filter(|desired| *desired != running) {
            assert!(is_ignored(n(ignored), n(running), TOLERANCE), "{ignored} for {running}");
        }
        assert!(!is_ignored(n(above), n(running), TOLERANCE) && !is_ignored(n(below), n(running), TOLERANCE));
    }
}
