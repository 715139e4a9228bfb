//! The coordinator's arithmetic: one namespace's GPU quota, divided among its pools by what waits in front of each, as the maximum of
//! each pool's autoscaler. Source: WVA v0.9, `internal/coordinator/plugins/gpurebalance/plugin.go`.
//!
//! For comparison with upstream only. It is about autoscalers that do not read our numbers: its answer is written into their objects,
//! and this product writes no autoscaler. Sharing a namespace's GPUs by need is what a quota of the namespace with rescaling does
//! (`docs/decisions/optimizers.md`).

use super::Tree;
use crate::units::{Replicas, Requests, count, truncated_u32};

/// One autoscaler, and the pool it scales.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PoolEntry {
    /// Requests that the scheduler holds for the pool.
    pub queue: Requests,
    /// The autoscaler's minimum; 0 counts as 1.
    pub min: Replicas,
    /// GPUs of a replica; 0 counts as 1.
    pub gpus: u32,
}

/// The maximum of each of `entries`, in their order, or `None` if there is nothing to divide: a quota of 0, or one below the sum of the
/// minima. Defects: a replica counts as one GPU; June's tree also ignores the minima, and may exceed the quota.
pub fn rebalance(quota: u32, entries: &[PoolEntry], tree: Tree) -> Option<Vec<Replicas>> {
    let weights = weights(entries);
    match tree {
        Tree::June => (quota > 0).then(|| divide_by_weight(quota, &weights)),
        Tree::August => divide(quota, &floors(entries, |_| 1), &weights),
    }
}

/// The same without the defects: a replica counts as its GPUs.
pub fn rebalance_by_gpus(quota: u32, entries: &[PoolEntry]) -> Option<Vec<Replicas>> {
    divide(quota, &floors(entries, |entry| entry.gpus.max(1)), &weights(entries))
}

/// Each entry's share of what waits; equal shares if nothing waits.
fn weights(entries: &[PoolEntry]) -> Vec<f64> {
    let total: f64 = entries.iter().map(|entry| entry.queue.get()).sum();
    let equal = 1.0 / f64::from(count(entries.len()));
    let has_queue = total > 0.0 && total.is_finite();
    entries.iter().map(|entry| if has_queue { entry.queue.get() / total } else { equal }).collect()
}

/// Indices by weight, the heaviest first; in order if weights are equal.
fn heaviest_first(weights: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by(|left, right| weights[*right].total_cmp(&weights[*left]));
    order
}

fn divide_by_weight(quota: u32, weights: &[f64]) -> Vec<Replicas> {
    let share = |weight: &f64| truncated_u32(f64::from(quota) * weight).max(1);
    let mut shares: Vec<u32> = weights.iter().map(share).collect();
    let given = shares.iter().fold(0_u32, |sum, share| sum.saturating_add(*share));
    if let Some(heaviest) = heaviest_first(weights).first() {
        shares[*heaviest] += quota.saturating_sub(given);
    }
    shares.into_iter().map(Replicas::new).collect()
}

/// What an entry gets in any case.
struct Floor {
    min: u32,
    gpus: u32,
}

fn floors(entries: &[PoolEntry], gpus: impl Fn(&PoolEntry) -> u32) -> Vec<Floor> {
    entries.iter().map(|entry| Floor { min: entry.min.get().max(1), gpus: gpus(entry) }).collect()
}

/// First the minima, then the rest by weight, then what rounding left to the heaviest.
fn divide(quota: u32, floors: &[Floor], weights: &[f64]) -> Option<Vec<Replicas>> {
    let needed =
        floors.iter().try_fold(0_u32, |sum, floor| sum.checked_add(floor.min.checked_mul(floor.gpus)?))?;
    let free = quota.checked_sub(needed).filter(|_| quota > 0)?;
    let extra = |(floor, weight): (&Floor, &f64)| truncated_u32(f64::from(free) * weight) / floor.gpus;
    let mut extras: Vec<u32> = floors.iter().zip(weights).map(extra).collect();
    let used: u32 = extras.iter().zip(floors).fold(0, |sum, (extra, floor)| sum + extra * floor.gpus);
    let mut left = free.saturating_sub(used);
    for index in heaviest_first(weights) {
        let gpus = floors[index].gpus;
        extras[index] += left / gpus;
        left %= gpus;
    }
    Some(extras.iter().zip(floors).map(|(extra, floor)| Replicas::new(extra + floor.min)).collect())
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::model::Compat;

    fn entry((queue, min, gpus): (f64, u32, u32)) -> PoolEntry {
        PoolEntry { queue: Requests::new(queue).unwrap(), min: Replicas::new(min), gpus }
    }

    fn numbers(quota: u32, entries: &[(f64, u32, u32)], compat: Compat) -> Option<Vec<u32>> {
        let entries: Vec<PoolEntry> = entries.iter().copied().map(entry).collect();
        let maxima = match Tree::from_compat(compat) {
            None => rebalance_by_gpus(quota, &entries),
            Some(tree) => rebalance(quota, &entries, tree),
        };
        maxima.map(|maxima| maxima.into_iter().map(Replicas::get).collect())
    }

    #[test]
    fn june_exceeds_the_quota_and_ignores_minima_where_we_do_not() {
        let entries = [(0.0, 3, 1), (100.0, 0, 1)];
        assert_eq!(numbers(10, &entries, Compat::UpstreamJune), Some(vec![1, 10]));
        assert_eq!(numbers(10, &entries, Compat::Corrected), Some(vec![3, 7]));
    }

    #[test]
    fn replicas_of_several_gpus_are_counted_as_such_by_us_only() {
        let entries = [(30.0, 1, 4), (10.0, 1, 2)];
        assert_eq!(numbers(16, &entries, Compat::Upstream), Some(vec![12, 4]));
        assert_eq!(numbers(16, &entries, Compat::Corrected), Some(vec![3, 2]));
    }

    #[test]
    fn minima_above_the_quota_leave_everything_as_it_is() {
        let entries = [(1.0, 6, 1), (1.0, 6, 1)];
        assert_eq!(numbers(10, &entries, Compat::Corrected), None);
        assert_eq!(numbers(10, &entries, Compat::Upstream), None);
        assert_eq!(numbers(0, &[(1.0, 0, 1)], Compat::UpstreamJune), None);
        assert_eq!(numbers(u32::MAX, &[(1.0, u32::MAX, u32::MAX)], Compat::Corrected), None);
    }

    proptest! {
        #![proptest_config(crate::cases::quick())]

        #[test]
        fn every_entry_has_its_minimum_and_the_sum_is_within_the_quota(
            quota in prop_oneof![0_u32..100, any::<u32>()],
            entries in vec((prop_oneof![Just(0.0), 0.0..1e3_f64, Just(f64::MAX)], 0_u32..9, 0_u32..9), 0..8),
        ) {
            let Some(numbers) = numbers(quota, &entries, Compat::Corrected) else { return Ok(()) };
            let mut used = 0_u64;
            for (number, (_, min, gpus)) in numbers.iter().zip(&entries) {
                prop_assert!(number >= min && *number >= 1);
                used += u64::from(*number) * u64::from((*gpus).max(1));
            }
            prop_assert!(used <= u64::from(quota));
        }

        #[test]
        fn with_one_gpu_a_replica_nothing_of_the_quota_is_left(
            quota in 20_u32..200, entries in vec((0.0..1e3_f64, 0_u32..3, 1_u32..2), 1..6),
        ) {
            let given = numbers(quota, &entries, Compat::Corrected).unwrap();
            prop_assert_eq!(given.iter().sum::<u32>(), quota);
            prop_assert_eq!(Some(given), numbers(quota, &entries, Compat::Upstream));
        }

        #[test]
        fn june_never_panics(quota: u32, queues in vec(0.0..1e300_f64, 0..8)) {
            let entries: Vec<_> = queues.iter().map(|queue| (*queue, 0, 1)).collect();
            let given = numbers(quota, &entries, Compat::UpstreamJune);
            prop_assert_eq!(given.is_some(), quota > 0);
        }
    }
}
