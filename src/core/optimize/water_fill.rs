//! Divides whole GPUs among models by weight, and among the roles of a model.

use std::collections::BTreeMap;

use smol_str::SmolStr;

use super::plan_builder::quantity;
use crate::units::{to_f64, truncated_i64};

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Share {
    /// Its name; ties go to the lower one.
    pub id: SmolStr,
    /// Its priority. Its weight is the priority times the demand.
    pub priority: f64,
    /// Its demand, in a unit that all shares have in common.
    pub demand: f64,
    /// GPUs it gets in any case, at least 0.
    pub floor: i64,
    /// GPUs it gets at most.
    pub cap: i64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Filled {
    pub targets: BTreeMap<SmolStr, i64>,
    /// The floors alone exceed the budget.
    pub is_over_budget: bool,
}

struct Fraction<K> {
    id: K,
    exact: f64,
}

/// A remainder below this many GPUs counts as a rounding error.
const ROUNDING: f64 = 1e-9;

/// Gives each share its floor, and divides the rest of `budget` by weight. What a model cannot use is divided among the others again.
pub(crate) fn water_fill(shares: &[Share], budget: i64) -> Filled {
    let mut targets: BTreeMap<SmolStr, i64> =
        shares.iter().map(|share| (share.id.clone(), share.floor)).collect();
    let floors = shares.iter().map(|share| share.floor).fold(0, i64::saturating_add);
    if floors >= budget {
        return Filled { targets, is_over_budget: floors > budget };
    }
    let fractions = fill_by_weight(shares, to_f64(budget.saturating_sub(floors)));
    let whole = truncated_i64(fractions.iter().map(|fraction| fraction.exact).sum::<f64>().round());
    apportion(&mut targets, &fractions, whole);
    Filled { targets, is_over_budget: false }
}

/// Divides `pool` in proportion to the weights. A share that reaches its cap leaves the rest to the others, so that each round either caps at
/// least one share or is the last.
fn fill_by_weight(shares: &[Share], pool: f64) -> Vec<Fraction<SmolStr>> {
    let weight = |share: &Share| quantity(share.priority) * quantity(share.demand);
    let room = |share: &Share| to_f64(share.cap.saturating_sub(share.floor));
    let fraction = |share: &Share, exact| Fraction { id: share.id.clone(), exact };
    let mut open: Vec<&Share> =
        shares.iter().filter(|share| weight(share) > 0.0 && room(share) > 0.0).collect();
    let mut fractions = Vec::new();
    let mut left = pool;
    while !open.is_empty() && left > ROUNDING {
        let sum: f64 = open.iter().map(|share| weight(share)).sum();
        let part = |share: &Share| left * weight(share) / sum;
        let (capped, uncapped): (Vec<_>, Vec<_>) = open.iter().partition(|share| part(share) >= room(share));
        if capped.is_empty() {
            fractions.extend(uncapped.into_iter().map(|share| fraction(share, part(share))));
            break;
        }
        left -= capped.iter().map(|share| room(share)).sum::<f64>();
        fractions.extend(capped.into_iter().map(|share| fraction(share, room(share))));
        open = uncapped;
    }
    fractions
}

/// Adds `fractions` to `targets` in whole GPUs that sum to `whole`, the sum of the fractions: each is rounded down, and the largest remainders get
/// one more, ties by name. A fraction without a remainder gets no more, so that no cap, which is whole, is exceeded.
fn apportion<K: Ord + Clone>(targets: &mut BTreeMap<K, i64>, fractions: &[Fraction<K>], whole: i64) {
    let mut left = whole;
    for fraction in fractions {
        let floor = truncated_i64(fraction.exact.floor());
        left = left.saturating_sub(floor);
        let target = targets.entry(fraction.id.clone()).or_insert(0);
        *target = target.saturating_add(floor);
    }
    let mut order: Vec<&Fraction<K>> = fractions.iter().collect();
    let remainder = |fraction: &Fraction<K>| fraction.exact - fraction.exact.floor();
    order.sort_by(|left, right| {
        remainder(right).total_cmp(&remainder(left)).then_with(|| left.id.cmp(&right.id))
    });
    for fraction in order.into_iter().take(usize::try_from(left).unwrap_or(0)) {
        *targets.entry(fraction.id.clone()).or_insert(0) += 1;
    }
}

/// GPUs that carry `demand` with replicas of `per_replica` capacity and `gpus` GPUs each; 0 if the capacity is unknown.
pub(crate) fn demand_gpus(demand: f64, per_replica: f64, gpus: i64) -> i64 {
    if per_replica > 0.0 {
        truncated_i64((demand / per_replica).ceil()).max(0).saturating_mul(gpus)
    } else {
        0
    }
}

/// Divides `total` GPUs among `roles`: each gets its floor, and the rest is divided by `weights`, or by `fallback` if these are all 0, or else goes to
/// the first role. The numbers are whole, and sum to `total`, or to the floors if those are more.
pub(crate) fn split<R: Ord + Clone>(
    total: i64,
    roles: &[R],
    weights: &BTreeMap<R, i64>,
    fallback: &BTreeMap<R, i64>,
    floors: &BTreeMap<R, i64>,
) -> BTreeMap<R, i64> {
    let get = |map: &BTreeMap<R, i64>, role: &R| map.get(role).copied().unwrap_or(0).max(0);
    let sum = |map: &BTreeMap<R, i64>| roles.iter().map(|role| get(map, role)).fold(0, i64::saturating_add);
    let mut targets: BTreeMap<R, i64> = roles.iter().map(|role| (role.clone(), get(floors, role))).collect();
    let Some(first) = roles.first() else { return targets };
    if roles.len() == 1 {
        return BTreeMap::from([(first.clone(), total)]);
    }
    let rest = total.saturating_sub(sum(floors));
    if rest <= 0 {
        return targets;
    }
    let weights = if sum(weights) > 0 { weights } else { fallback };
    if sum(weights) == 0 {
        *targets.entry(first.clone()).or_insert(0) += rest;
        return targets;
    }
    let all = to_f64(sum(weights));
    let exact = |role: &R| to_f64(rest) * to_f64(get(weights, role)) / all;
    let fractions = roles.iter().map(|role| Fraction { id: role.clone(), exact: exact(role) });
    apportion(&mut targets, &fractions.collect::<Vec<_>>(), rest);
    targets
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
