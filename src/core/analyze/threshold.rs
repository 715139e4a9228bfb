//! The threshold score: a replica is as loaded as its KV cache or its queue, whichever is more. In one page:
//! `docs/decisions/threshold.md`.

use super::score::{Scored, queue_share, step};
use crate::model::{Bounds, Steps};
use crate::units::Replicas;

/// What one engine shows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ThresholdObservation {
    /// KV-cache usage, 0 to 1.
    pub kv: f64,
    /// Waiting requests.
    pub queue: u32,
}

/// How replicas are scored, and when that moves the number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ThresholdSettings {
    pub steps: Steps,
    /// Requests in a full queue.
    pub queue_limit: f64,
}

impl Default for ThresholdSettings {
    /// A queue of ten is twice V1's threshold: a queue alone moves the number later than V1 does.
    fn default() -> Self {
        Self { steps: Steps::default(), queue_limit: 10.0 }
    }
}

/// How loaded one engine is: 0 idle, 1 full.
pub fn score(observation: ThresholdObservation, settings: &ThresholdSettings) -> f64 {
    observation.kv.max(queue_share(observation.queue, settings.queue_limit))
}

pub fn analyze(
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

    fn seen(pairs: &[(f64, u32)]) -> Vec<ThresholdObservation> {
        pairs.iter().map(|(kv, queue)| ThresholdObservation { kv: *kv, queue: *queue }).collect()
    }

    #[test]
    fn the_page_says_what_the_code_computes() {
        let found =
            analyze(&seen(&[(0.9, 0), (0.85, 2)]), Replicas::new(2), TEN, &ThresholdSettings::default());
        let says = format!("mean {} and {} replicas", found.mean.unwrap(), found.wanted);
        assert!(PAGE.contains(&says), "the page does not say {says:?}");
    }

    #[test]
    fn nothing_seen_keeps_the_number_even_outside_the_bounds() {
        let found = analyze(&[], Replicas::new(12), TEN, &ThresholdSettings::default());
        assert_eq!((found.mean, found.wanted), (None, Replicas::new(12)));
    }

    #[test]
    fn at_the_maximum_no_score_adds_a_replica_and_it_says_so() {
        let found = analyze(&seen(&[(0.9, 0)]), Replicas::new(10), TEN, &ThresholdSettings::default());
        assert_eq!((found.wanted, found.more_above, found.fewer_below), (Replicas::new(10), None, Some(0.3)));
    }

    #[test]
    fn with_a_queue_limit_of_zero_anything_waiting_is_a_full_queue() {
        let rules = ThresholdSettings { queue_limit: 0.0, ..ThresholdSettings::default() };
        let levels = analyze(&seen(&[(0.1, 0), (0.1, 1)]), Replicas::ONE, TEN, &rules).each;
        assert_eq!(levels, [0.1, 1.0]);
    }

    fn replica() -> impl Strategy<Value = (f64, u32)> {
        (prop_oneof![0.0..1.5_f64, Just(f64::NAN), Just(f64::INFINITY)], 0_u32..30)
    }

    proptest! {
        #![proptest_config(crate::cases::quick())]

        #[test]
        fn the_number_is_within_the_bounds_and_one_step_at_most(
            replicas in proptest::collection::vec(replica(), 1..6),
            current in 1_u32..=10,
        ) {
            let found = analyze(&seen(&replicas), Replicas::new(current), TEN, &ThresholdSettings::default());
            prop_assert!(TEN.clamp(found.wanted) == found.wanted);
            prop_assert!(found.wanted.get().abs_diff(current) <= 1);
            prop_assert!(!found.mean.unwrap().is_nan());
        }

        #[test]
        fn more_load_never_wants_fewer(kv in 0.0..1.0_f64, queue in 0_u32..12, more in 0.0..1.0_f64) {
            let wanted = |kv, queue| {
                analyze(&seen(&[(kv, queue)]), Replicas::new(5), TEN, &ThresholdSettings::default()).wanted
            };
            prop_assert!(wanted(kv + more, queue) >= wanted(kv, queue));
            prop_assert!(wanted(kv, queue + 1) >= wanted(kv, queue));
        }
    }
}
