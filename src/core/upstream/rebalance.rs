//! The coordinator's arithmetic: a namespace's GPU quota is divided among its pools by their queues, and each part becomes the maximum of the pool's
//! autoscaler. Source: WVA v0.9, `internal/coordinator/plugins/gpurebalance/plugin.go`.
//!
//! For comparison with upstream only: upstream writes the result into autoscaler objects, which this program does not. A quota of the namespace with
//! rescaling shares its GPUs by need (`docs/decisions/optimizers.md`).

use super::Tree;
use crate::units::{Replicas, Requests, count, truncated_u32};

/// One autoscaler, and the pool that it scales. Upstream counts every replica as one GPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct PoolEntry {
    /// Requests that the scheduler holds for the pool.
    pub queue: Requests,
    /// The autoscaler's minimum; 0 counts as 1.
    pub min: Replicas,
}

/// The maximum of each of `entries`, in their order, or `None` if there is nothing to divide: a quota of 0, or one below the sum of the
/// minima. Defect: June's tree ignores the minima, and may exceed the quota.
pub(crate) fn rebalance(quota: u32, entries: &[PoolEntry], tree: Tree) -> Option<Vec<Replicas>> {
    let weights = weights(entries);
    match tree {
        Tree::June => (quota > 0).then(|| divide_by_weight(quota, &weights)),
        Tree::August => divide(quota, entries, &weights),
    }
}

/// Each entry's share of all waiting requests; equal shares if nothing waits.
fn weights(entries: &[PoolEntry]) -> Vec<f64> {
    let total: f64 = entries.iter().map(|entry| entry.queue.get()).sum();
    let equal = 1.0 / f64::from(count(entries.len()));
    let has_queue = total > 0.0 && total.is_finite();
    entries.iter().map(|entry| if has_queue { entry.queue.get() / total } else { equal }).collect()
}

/// The index of the largest weight, the first of equal ones.
fn heaviest(weights: &[f64]) -> Option<usize> {
    (0..weights.len()).min_by(|left, right| weights[*right].total_cmp(&weights[*left]))
}

fn divide_by_weight(quota: u32, weights: &[f64]) -> Vec<Replicas> {
    let share = |weight: &f64| truncated_u32(f64::from(quota) * weight).max(1);
    let mut shares: Vec<u32> = weights.iter().map(share).collect();
    let given = shares.iter().fold(0_u32, |sum, share| sum.saturating_add(*share));
    if let Some(heaviest) = heaviest(weights) {
        shares[heaviest] += quota.saturating_sub(given);
    }
    shares.into_iter().map(Replicas::new).collect()
}

/// First the minima, then the rest by weight, then what rounding left to the heaviest.
fn divide(quota: u32, entries: &[PoolEntry], weights: &[f64]) -> Option<Vec<Replicas>> {
    let minima: Vec<u32> = entries.iter().map(|entry| entry.min.get().max(1)).collect();
    let needed = minima.iter().try_fold(0_u32, |sum, min| sum.checked_add(*min))?;
    let free = quota.checked_sub(needed).filter(|_| quota > 0)?;
    let mut extras: Vec<u32> = weights.iter().map(|weight| truncated_u32(f64::from(free) * weight)).collect();
    let used: u32 = extras.iter().sum();
    if let Some(heaviest) = heaviest(weights) {
        extras[heaviest] += free.saturating_sub(used);
    }
    Some(extras.iter().zip(minima).map(|(extra, min)| Replicas::new(extra + min)).collect())
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn numbers(quota: u32, entries: &[(f64, u32)], tree: Tree) -> Option<Vec<u32>> {
        let entry = |(queue, min): &(f64, u32)| PoolEntry {
            queue: Requests::new(*queue).unwrap(),
            min: Replicas::new(*min),
        };
        let entries: Vec<PoolEntry> = entries.iter().map(entry).collect();
        let maxima = rebalance(quota, &entries, tree)?;
        Some(maxima.into_iter().map(Replicas::get).collect())
    }

    #[test]
    fn june_exceeds_the_quota_and_ignores_minima() {
        let entries = [(0.0, 3), (100.0, 0)];
        assert_eq!(numbers(10, &entries, Tree::June), Some(vec![1, 10]));
        assert_eq!(numbers(10, &entries, Tree::August), Some(vec![3, 7]));
    }

    #[test]
    fn minima_above_the_quota_leave_everything_as_it_is() {
        assert_eq!(numbers(10, &[(1.0, 6), (1.0, 6)], Tree::August), None);
        assert_eq!(numbers(0, &[(1.0, 0)], Tree::June), None);
        assert_eq!(numbers(u32::MAX, &[(1.0, u32::MAX), (1.0, 1)], Tree::August), None);
    }

    proptest! {
        #![proptest_config(crate::tests::support::cases::quick())]

        #[test]
        fn every_entry_has_its_minimum_and_nothing_of_the_quota_is_left(
            quota in prop_oneof![0_u32..100, any::<u32>()],
            entries in vec((prop_oneof![Just(0.0), 0.0..1e3_f64, Just(f64::MAX)], 0_u32..9), 1..8),
        ) {
            let Some(numbers) = numbers(quota, &entries, Tree::August) else { return Ok(()) };
            prop_assert!(numbers.iter().zip(&entries).all(|(number, (_, min))| number >= min && *number >= 1));
            prop_assert_eq!(numbers.iter().map(|number| u64::from(*number)).sum::<u64>(), u64::from(quota));
        }

        #[test]
        fn june_never_panics(quota: u32, queues in vec(0.0..1e300_f64, 0..8)) {
            let entries: Vec<_> = queues.iter().map(|queue| (*queue, 0)).collect();
            prop_assert_eq!(numbers(quota, &entries, Tree::June).is_some(), quota > 0);
        }
    }
}
