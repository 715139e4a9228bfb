//! How many can go, against going through them one by one.

use proptest::prelude::*;

use super::super::tests as fixture;
use super::*;
use crate::model::{Bounds, RatePolicy};
use crate::moment::Moment;
use crate::units::Cost;

/// As it once was: a step and an entry for each replica.
fn one_by_one(planner: &Planner<'_, '_>, targets: &mut [u32], load: f64) -> Vec<u32> {
    let (mut left, mut list) = (targets.to_vec(), Vec::new());
    let mut places = planner.by_price();
    places.reverse();
    for at in places {
        while left.iter().sum::<u32>() > 1 && left[at] > planner.input.variants[at].bounds.min.get() {
            let mut fewer = left.clone();
            fewer[at] -= 1;
            if !planner.test.passes(&planner.certain_capacity(&fewer), load) {
                break;
            }
            left = fewer;
            list.push(at);
        }
    }
    list.iter().take(list.len().div_ceil(2)).for_each(|at| targets[*at] -= 1);
    let times = |at| u32::try_from(list.iter().filter(|removed| **removed == at).count()).unwrap();
    (0..targets.len()).map(times).collect()
}

fn variant(target: u32, min: u32, cost: f64, lost: u32, rate: f64) -> RateVariant {
    let capacity = ReplicaCapacity {
        max_sequences: 10.0 * rate,
        fixed_seconds: 9.0,
        seconds_per_request: 0.1 / rate,
        usable_rate: 0.75 * rate,
        relative_error: 0.1,
    };
    RateVariant {
        cost: Cost::new(cost).unwrap(),
        bounds: Bounds { min: Replicas::new(min), max: None },
        unavailable: Replicas::new(lost),
        is_full: lost > 0,
        ..fixture::variant(target, capacity)
    }
}

fn with<T>(
    variants: Vec<RateVariant>,
    test: CapacityTest,
    then: impl FnOnce(&Planner<'_, '_>, &mut Vec<u32>) -> T,
) -> T {
    let policy = RatePolicy::default();
    let replicas = variants.iter().filter_map(|variant| variant.capacity).collect();
    let mut targets = variants.iter().map(|variant| variant.committed.get()).collect();
    let input = fixture::input(&policy, Moment::from(jiff::Timestamp::UNIX_EPOCH), variants);
    let level = ArrivalLevel { rate: 0.0, slope: 0.0, seconds: 0.0 };
    let demand = Demand::new(level, 1.0, 125.0, 0.0);
    let planner = Planner { input: &input, replicas, test, demand, peak: 0.0, fits: &|_| true };
    then(&planner, &mut targets)
}

proptest! {
    #![proptest_config(crate::tests::support::cases::quick())]

    #[test]
    fn halving_finds_what_going_one_by_one_does(
        fleet in prop::collection::vec((0_u32..330, 0_u32..40, 1.0..30.0_f64, 0_u32..9, 0.1..30.0_f64), 1..4),
        (reserve, surge, share) in (0.0..2.0_f64, 0.0..0.6_f64, 0.0..1.2_f64),
    ) {
        let carried: f64 = fleet.iter().map(|(target, _, _, _, rate)| f64::from(*target) * rate).sum();
        let fleet = fleet.into_iter().map(|(target, min, cost, lost, rate)| variant(target, min, cost, lost, rate));
        let test = CapacityTest { reserve, surge, backlog: 0.0, drain: 60.0 };
        with(fleet.collect(), test, |planner, targets| {
            let mut before = targets.clone();
            let expected = one_by_one(planner, &mut before, share * carried);
            prop_assert_eq!(planner.remove(targets, share * carried), expected);
            prop_assert_eq!(&*targets, &before);
            Ok(())
        })?;
    }
}

#[test]
fn billions_of_replicas_once_made_a_list_of_billions() {
    let test = CapacityTest { reserve: 0.52, surge: 0.0, backlog: 0.0, drain: 60.0 };
    let fleet = vec![variant(u32::MAX, 1, 10.0, 0, 3.0), variant(u32::MAX, 0, 5.0, 0, 3.0)];
    let (removable, targets) =
        with(fleet, test, |planner, targets| (planner.remove(targets, 6.0), targets.clone()));
    // 6 requests/s need three of 3 each, and the dear ones have a minimum of one.
    assert_eq!(removable, [u32::MAX - 1, u32::MAX - 2]);
    assert_eq!(targets, [1, u32::MAX], "half of them: the dearest");
}

#[test]
fn a_replica_whose_capacity_is_uncertain_is_not_removed_and_counts_in_full_for_an_addition() {
    let test = CapacityTest { reserve: 0.0, surge: 0.0, backlog: 0.0, drain: 60.0 };
    let removable = |relative_error| {
        let mut fleet = vec![variant(3, 1, 10.0, 0, 3.0)];
        fleet[0].capacity = fleet[0].capacity.map(|capacity| ReplicaCapacity { relative_error, ..capacity });
        with(fleet, test, |planner, targets| {
            (planner.remove(targets, 4.4), planner.test.passes(&planner.capacity(&[2]), 4.4))
        })
    };
    assert_eq!(removable(0.01), (vec![1], true), "two carry 4.5 requests/s");
    assert_eq!(removable(0.1), (vec![0], true), "4.1 of these for certain");
}

/// Numbers after an exchange in a fleet of a cheap and a dear variant of this price, which needs all of its replicas.
fn exchanged(dear: f64, change: impl FnOnce(&mut [RateVariant])) -> Option<Vec<u32>> {
    let test = CapacityTest { reserve: 0.0, surge: 0.0, backlog: 0.0, drain: 60.0 };
    let mut fleet = vec![variant(2, 1, 10.0, 0, 3.0), variant(6, 1, dear, 0, 3.0)];
    change(&mut fleet);
    with(fleet, test, |planner, targets| {
        let load = 0.99 * planner.certain_capacity(targets).usable_rate / REMOVAL_MARGIN;
        let planner = Planner { peak: load, replicas: planner.replicas.clone(), ..*planner };
        planner.exchange(targets, 0).map(|_| targets.clone())
    })
}

#[test]
fn what_costs_more_is_exchanged_for_what_certainly_costs_less() {
    assert_eq!(exchanged(30.0, |_| ()), Some(vec![5, 6]), "for half of those that may go, rounded up");
    assert_eq!(exchanged(13.0, |_| ()), None, "1.3 times as much, and capacities are not certain");
    assert_eq!(exchanged(10.0, |_| ()), None);
    let large = |fleet: &mut [RateVariant]| {
        (fleet[1].committed, fleet[1].requested) = (Replicas::new(20), Replicas::new(20));
        fleet[0].bounds.max = Some(Replicas::new(3));
    };
    assert_eq!(exchanged(30.0, large), None, "an HPA keeps 20 where 19 would do");
    let tight = |fleet: &mut [RateVariant]| fleet[0].bounds.max = Some(Replicas::new(4));
    assert_eq!(exchanged(30.0, tight), Some(vec![4, 6]), "as far as the maximum allows");
    for change in [
        |fleet: &mut [RateVariant]| fleet[0].is_full = true,
        |fleet: &mut [RateVariant]| fleet[0].requested = Replicas::ONE,
        |fleet: &mut [RateVariant]| fleet[1].unavailable = Replicas::ONE,
        |fleet: &mut [RateVariant]| fleet[1].starting = Replicas::ONE,
        |fleet: &mut [RateVariant]| fleet[1].bounds.min = Replicas::new(6),
    ] {
        assert_eq!(exchanged(30.0, change), None);
    }
}

#[test]
fn replicas_that_do_not_serve_yet_were_removed_for_dearer_ones_or_made_up_for_them() {
    let test = CapacityTest { reserve: 0.0, surge: 0.0, backlog: 0.0, drain: 60.0 };
    let removed = |starting, load: f64| {
        let mut fleet = vec![variant(4, 1, 10.0, 0, 3.0), variant(4, 1, 30.0, 0, 3.0)];
        fleet[0].starting = Replicas::new(starting);
        with(fleet, test, |planner, targets| {
            let load = load * planner.certain_capacity(targets).usable_rate;
            planner.remove(targets, load);
            targets.clone()
        })
    };
    assert_eq!(removed(0, 0.7), [4, 3], "six of eight are enough, and half of what may go goes");
    assert_eq!(removed(2, 0.7), [4, 4], "six serve");
    assert_eq!(removed(2, 0.6), [4, 3], "five are enough");
    assert_eq!(removed(2, 0.9), [4, 4]);
    assert_eq!(removed(3, 0.1), [4, 1], "half of six: both minima stay");
}
