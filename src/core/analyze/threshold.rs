//! The threshold score: a replica is as loaded as its KV cache or its queue, whichever is more. `docs/decisions/threshold.md` explains it on one
//! page.

use super::score::{Scored, queue_share, step};
use crate::model::{Bounds, Steps};
use crate::units::Replicas;

/// What one engine shows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ThresholdObservation {
    /// KV-cache usage, 0 to 1.
    pub kv: f64,
    /// Waiting requests.
    pub queue: u32,
}

/// How replicas are scored, and when that moves the number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ThresholdSettings {
    pub steps: Steps,
    pub queue_limit: f64,
}

impl Default for ThresholdSettings {
    /// A full queue has ten requests, twice V1's threshold, so that a queue alone moves the number later than with V1.
    fn default() -> Self {
        Self { steps: Steps::default(), queue_limit: 10.0 }
    }
}

/// How loaded one engine is: 0 idle, 1 full.
pub(crate) fn score(observation: ThresholdObservation, settings: &ThresholdSettings) -> f64 {
    observation.kv.max(queue_share(observation.queue, settings.queue_limit))
}

pub(crate) fn analyze(
    replicas: &[ThresholdObservation],
    current: Replicas,
    bounds: Bounds,
    settings: &ThresholdSettings,
) -> Scored {
    let scores = replicas.iter().map(|observation| score(*observation, settings)).collect();
    step(scores, current, bounds, settings.steps)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PAGE: &str = include_str!("../../../docs/decisions/threshold.md");
    const TEN: Bounds = Bounds { min: Replicas::ONE, max: Some(Replicas::new(10)) };

    fn scored(loads: &[(f64, u32)], current: u32, settings: &ThresholdSettings) -> Scored {
        let observation = |(kv, queue): &(f64, u32)| ThresholdObservation { kv: *kv, queue: *queue };
        let observations: Vec<_> = loads.iter().map(observation).collect();
        analyze(&observations, Replicas::new(current), TEN, settings)
    }

    fn usual(loads: &[(f64, u32)], current: u32) -> Scored {
        scored(loads, current, &ThresholdSettings::default())
    }

    #[test]
    fn the_page_says_what_the_code_computes() {
        let found = usual(&[(0.9, 0), (0.85, 2)], 2);
        let says = format!("mean {} and {} replicas", found.mean.unwrap(), found.proposed);
        assert!(PAGE.contains(&says), "the page does not say {says:?}");
    }

    #[test]
    fn nothing_observed_keeps_the_number_even_outside_the_bounds() {
        let found = usual(&[], 12);
        assert_eq!((found.mean, found.proposed), (None, Replicas::new(12)));
    }

    #[test]
    fn at_the_maximum_no_score_adds_a_replica_and_it_says_so() {
        let found = usual(&[(0.9, 0)], 10);
        assert_eq!(
            (found.proposed, found.more_above, found.fewer_below),
            (Replicas::new(10), None, Some(0.3))
        );
    }

    #[test]
    fn with_a_queue_limit_of_zero_anything_waiting_is_a_full_queue() {
        let settings = ThresholdSettings { queue_limit: 0.0, ..ThresholdSettings::default() };
        assert_eq!(scored(&[(0.1, 0), (0.1, 1)], 1, &settings).scores, [0.1, 1.0]);
    }

    fn replica() -> impl Strategy<Value = (f64, u32)> {
        (prop_oneof![0.0..1.5_f64, Just(f64::NAN), Just(f64::INFINITY)], 0_u32..30)
    }

    proptest! {
        #![proptest_config(crate::tests::support::cases::quick())]

        #[test]
        fn the_number_is_within_the_bounds_and_one_step_at_most(
            replicas in proptest::collection::vec(replica(), 1..6),
            current in 1_u32..=10,
        ) {
            let found = usual(&replicas, current);
            prop_assert!(TEN.clamp(found.proposed) == found.proposed);
            prop_assert!(found.proposed.get().abs_diff(current) <= 1);
            prop_assert!(!found.mean.unwrap().is_nan());
        }

        #[test]
        fn more_load_never_wants_fewer(kv in 0.0..1.0_f64, queue in 0_u32..12, more in 0.0..1.0_f64) {
            let proposed = |kv, queue| usual(&[(kv, queue)], 5).proposed;
            prop_assert!(proposed(kv + more, queue) >= proposed(kv, queue));
            prop_assert!(proposed(kv, queue + 1) >= proposed(kv, queue));
        }
    }
}
