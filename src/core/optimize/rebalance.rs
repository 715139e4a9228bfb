//! The coordinator's arithmetic: one namespace's GPU quota, divided among its pools by what waits in front of each, as
//! the maximum of each pool's autoscaler. Source: algorithm reference §7.10.
//!
//! For comparison with upstream only: no decision asks for it. It is about autoscalers that do not read our numbers, and its
//! answer is written into their objects; this product answers reads and writes no autoscaler. What it is for, sharing a
//! namespace's GPUs by need, a quota of the namespace with rescaling does for the variants there are
//! (`docs/decisions/optimizers.md`).

use crate::model::Compat;
use crate::units::{Replicas, Requests, whole};

/// One autoscaler and the pool it scales.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Entry {
    /// Requests the scheduler holds for the pool.
    pub queue: Requests,
    /// The autoscaler's minimum; 0 counts as 1.
    pub min: Replicas,
    /// GPUs a replica takes; 0 counts as 1.
    pub gpus: u32,
}

/// The maximum of each of `entries`, in their order, or `None` when there is nothing to divide: a quota of 0, or one
/// below the sum of the minima.
///
/// Upstream counts a replica as one GPU. Upstream of June also ignores the minima and may exceed the quota.
#[must_use]
pub fn rebalance(quota: u32, entries: &[Entry], compat: Compat) -> Option<Vec<Replicas>> {
    let weights = weights(entries);
    match compat {
        Compat::UpstreamJune => (quota > 0).then(|| june(quota, &weights)),
        Compat::Upstream => divide(quota, entries.iter().map(|one| (one.min, 1)), &weights),
        Compat::Corrected => divide(quota, entries.iter().map(|one| (one.min, one.gpus.max(1))), &weights),
    }
}

/// Each entry's share of what waits; even when nothing waits.
fn weights(entries: &[Entry]) -> Vec<f64> {
    let total: f64 = entries.iter().map(|one| one.queue.get()).sum();
    let even = 1.0 / f64::from(crate::units::count(entries.len()));
    let share = |one: &Entry| if total > 0.0 && total.is_finite() { one.queue.get() / total } else { even };
    entries.iter().map(share).collect()
}

/// Positions by weight, the heaviest first; in order where weights are equal.
fn heaviest_first(weights: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by(|a, b| weights[*b].total_cmp(&weights[*a]));
    order
}

fn june(quota: u32, weights: &[f64]) -> Vec<Replicas> {
    let share = |weight: &f64| whole(f64::from(quota) * weight).max(1);
    let mut shares: Vec<u32> = weights.iter().map(share).collect();
    let given = shares.iter().fold(0_u32, |sum, share| sum.saturating_add(*share));
    if let Some(heaviest) = heaviest_first(weights).first() {
        shares[*heaviest] += quota.saturating_sub(given);
    }
    shares.into_iter().map(Replicas::new).collect()
}

/// First the minima, then what is left by weight, then what rounding left to the heaviest.
fn divide(
    quota: u32,
    entries: impl Iterator<Item = (Replicas, u32)>,
    weights: &[f64],
) -> Option<Vec<Replicas>> {
    let floors: Vec<(u32, u32)> = entries.map(|(min, gpus)| (min.get().max(1), gpus)).collect();
    let needed =
        floors.iter().try_fold(0_u32, |sum, (min, gpus)| sum.checked_add(min.checked_mul(*gpus)?))?;
    let free = quota.checked_sub(needed).filter(|_| quota > 0)?;
    let extra = |((_, gpus), weight): (&(u32, u32), &f64)| whole(f64::from(free) * weight) / gpus;
    let mut extras: Vec<u32> = floors.iter().zip(weights).map(extra).collect();
    let used: u32 = extras.iter().zip(&floors).fold(0, |sum, (extra, (_, gpus))| sum + extra * gpus);
    let mut left = free.saturating_sub(used);
    for position in heaviest_first(weights) {
        let gpus = floors[position].1;
        extras[position] += left / gpus;
        left %= gpus;
    }
    Some(extras.iter().zip(&floors).map(|(extra, (min, _))| Replicas::new(extra + min)).collect())
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn entry((queue, min, gpus): (f64, u32, u32)) -> Entry {
        Entry { queue: Requests::new(queue).unwrap(), min: Replicas::new(min), gpus }
    }

    fn numbers(quota: u32, entries: &[(f64, u32, u32)], compat: Compat) -> Option<Vec<u32>> {
        let entries: Vec<Entry> = entries.iter().copied().map(entry).collect();
        rebalance(quota, &entries, compat).map(|all| all.into_iter().map(Replicas::get).collect())
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
