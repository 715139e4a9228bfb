//! GPUs of a model, and of its roles.

use std::collections::BTreeMap;

use super::fill::{Part, apportion};
use crate::units::{float, signed};

/// GPUs that carry `demand` with replicas of `per_replica` capacity and `gpus` GPUs each; 0 where the capacity is not
/// known.
#[must_use]
pub fn demand_gpus(demand: f64, per_replica: f64, gpus: i64) -> i64 {
    if per_replica > 0.0 { signed((demand / per_replica).ceil()).max(0).saturating_mul(gpus) } else { 0 }
}

/// `total` GPUs by role: to each its floor, the rest by `weights`, or by `fallback` where these are all 0, or else to the
/// first role. Whole GPUs, the largest fraction first. The sum is `total`, or that of the floors if it is more.
#[must_use]
pub fn split<R: Ord + Clone>(
    total: i64,
    roles: &[R],
    weights: &BTreeMap<R, i64>,
    fallback: &BTreeMap<R, i64>,
    floors: &BTreeMap<R, i64>,
) -> BTreeMap<R, i64> {
    let of = |map: &BTreeMap<R, i64>, role: &R| map.get(role).copied().unwrap_or(0).max(0);
    let sum = |map: &BTreeMap<R, i64>| roles.iter().map(|role| of(map, role)).fold(0, i64::saturating_add);
    let mut parts: BTreeMap<R, i64> = roles.iter().map(|role| (role.clone(), of(floors, role))).collect();
    let Some(first) = roles.first() else { return parts };
    if roles.len() == 1 {
        return BTreeMap::from([(first.clone(), total)]);
    }
    let rest = total.saturating_sub(sum(floors));
    if rest <= 0 {
        return parts;
    }
    let weights = if sum(weights) > 0 { weights } else { fallback };
    if sum(weights) == 0 {
        *parts.entry(first.clone()).or_insert(0) += rest;
        return parts;
    }
    let all = float(sum(weights));
    let exact = |role: &R| float(rest) * float(of(weights, role)) / all;
    let fractions = roles.iter().map(|role| Part { id: role.clone(), exact: exact(role) });
    apportion(&mut parts, &fractions.collect::<Vec<_>>(), rest);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_demand_takes_whole_replicas_and_without_a_capacity_none() {
        assert_eq!([0.0, 1.0, 10.0, 10.5, -5.0].map(|demand| demand_gpus(demand, 10.0, 4)), [0, 4, 4, 8, 0]);
        assert_eq!([0.0, -1.0].map(|per_replica| demand_gpus(10.0, per_replica, 4)), [0, 0]);
    }
}
