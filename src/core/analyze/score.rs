//! One step up or down if a mean score leaves the range between two thresholds.

use crate::model::{Bounds, Steps};
use crate::units::{Replicas, count};

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Scored {
    /// The score of each replica, in input order.
    pub scores: Vec<f64>,
    /// Their mean; `None` without replicas.
    pub mean: Option<f64>,
    /// The proposed number of replicas: the current one if there is no score.
    pub proposed: Replicas,
    /// A mean above this proposes more than the current number; `None` if the bounds allow no more.
    pub more_above: Option<f64>,
    /// A mean below this proposes fewer; `None` if the bounds allow no fewer.
    pub fewer_below: Option<f64>,
}

/// One step up or down, or none. Both comparisons are strict: a mean at a threshold changes nothing. The result is within `bounds`; without any
/// score the number stays, even if it is outside them.
pub(crate) fn step(scores: Vec<f64>, current: Replicas, bounds: Bounds, steps: Steps) -> Scored {
    let mean = (!scores.is_empty()).then(|| scores.iter().sum::<f64>() / f64::from(count(scores.len())));
    let more = bounds.clamp(Replicas::new(current.get().saturating_add(steps.more.get())));
    let fewer = bounds.clamp(current.saturating_sub(steps.fewer));
    let proposed = match mean {
        None => current,
        Some(mean) if mean > steps.up => more,
        Some(mean) if mean < steps.down => fewer,
        Some(_) => bounds.clamp(current),
    };
    let more_above = (more > current).then_some(steps.up);
    let fewer_below = (fewer < current).then_some(steps.down);
    Scored { scores, mean, proposed, more_above, fewer_below }
}

/// `queue` as a share of `limit`, 0 to 1; with a limit of 0 any queue is a full one.
pub(crate) fn queue_share(queue: u32, limit: f64) -> f64 {
    match (queue, limit > 0.0) {
        (0, _) => 0.0,
        (_, true) => (f64::from(queue) / limit).min(1.0),
        (_, false) => 1.0,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::float_cmp, reason = "exact by construction")]

    use proptest::prelude::*;

    use super::*;

    const BOUNDS: Bounds = Bounds { min: Replicas::new(2), max: Some(Replicas::new(9)) };
    const STEPS: Steps = Steps { up: 0.8, down: 0.3, more: Replicas::new(3), fewer: Replicas::new(2) };

    fn proposed(scores: &[f64], current: u32) -> u32 {
        step(scores.to_vec(), Replicas::new(current), BOUNDS, STEPS).proposed.get()
    }

    #[test]
    fn a_step_is_taken_beyond_a_threshold_and_ends_at_the_bounds() {
        assert_eq!([0.81, 0.8, 0.3, 0.29].map(|score| proposed(&[score], 5)), [8, 5, 5, 3]);
        assert_eq!([proposed(&[1.0, 0.5], 5), proposed(&[1.0, 0.7], 5)], [5, 8], "the mean counts");
        assert_eq!([proposed(&[1.0], 8), proposed(&[0.0], 3)], [9, 2]);
        assert_eq!([proposed(&[0.5], 1), proposed(&[0.5], 12)], [2, 9], "a number outside them comes back");
    }

    #[test]
    fn where_the_bounds_allow_no_step_no_score_is_named() {
        let named = |current| {
            let found = step(vec![0.5], Replicas::new(current), BOUNDS, STEPS);
            (found.more_above, found.fewer_below)
        };
        assert_eq!([2, 5, 9].map(named), [(Some(0.8), None), (Some(0.8), Some(0.3)), (None, Some(0.3))]);
    }

    #[test]
    fn a_queue_is_a_share_of_its_limit_and_never_more_than_all_of_it() {
        assert_eq!([0, 2, 8, 9].map(|queue| queue_share(queue, 8.0)), [0.0, 0.25, 1.0, 1.0]);
        assert_eq!([0, 1].map(|queue| queue_share(queue, 0.0)), [0.0, 1.0]);
        assert_eq!([0, 1].map(|queue| queue_share(queue, -1.0)), [0.0, 1.0]);
    }

    proptest! {
        #![proptest_config(crate::tests::support::cases::quick())]

        #[test]
        fn a_queue_counts_as_its_share_of_the_limit_whatever_is_counted(queue in 0_u32..50, limit in 0_u32..20, scores in 1_u32..100) {
            let limits = [limit, limit * scores].map(f64::from);
            prop_assert_eq!(queue_share(queue, limits[0]).to_bits(), queue_share(queue * scores, limits[1]).to_bits());
        }

        #[test]
        fn a_higher_score_never_wants_fewer(
            scores in (0.0..1.0_f64, 0.0..1.0_f64), current in 0_u32..12, max in 0_u32..12, more in 1_u32..4, fewer in 1_u32..4,
        ) {
            let steps = Steps { more: Replicas::new(more), fewer: Replicas::new(fewer), ..Steps::default() };
            let bounds = Bounds { min: Replicas::ONE, max: Some(Replicas::new(max)) };
            let proposed = |score| step(vec![score], Replicas::new(current), bounds, steps).proposed;
            prop_assert!(proposed(scores.0.max(scores.1)) >= proposed(scores.0.min(scores.1)));
        }
    }
}
