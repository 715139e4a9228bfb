//! Water filling: a budget of whole GPUs by weight, between a floor and a cap for everybody.

use std::collections::BTreeMap;

use super::super::work::quantity;
use crate::units::{float, signed};
use smol_str::SmolStr;

/// One who wants a part of the budget.
#[derive(Debug, Clone, PartialEq)]
pub struct Share {
    /// Its name; ties go to the lower one.
    pub id: SmolStr,
    /// Its priority; times demand, that is its weight.
    pub priority: f64,
    /// Its demand, in any unit all have in common.
    pub demand: f64,
    /// GPUs it gets in any case, at least 0.
    pub floor: i64,
    /// GPUs it gets at most.
    pub cap: i64,
}

/// Who gets what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filled {
    /// GPUs by name.
    pub targets: BTreeMap<SmolStr, i64>,
    /// The floors alone are more than the budget.
    pub over: bool,
}

/// A part before it is made whole.
pub(super) struct Part<R> {
    pub(super) id: R,
    pub(super) exact: f64,
}

/// What is left of a pool from rounding alone.
const ROUNDING: f64 = 1e-9;

/// Everybody's floor, and the rest of `budget` by weight; what someone cannot take is shared among the others again.
#[must_use]
pub fn water_fill(shares: &[Share], budget: i64) -> Filled {
    let mut targets: BTreeMap<SmolStr, i64> = shares.iter().map(|one| (one.id.clone(), one.floor)).collect();
    let floors = shares.iter().map(|one| one.floor).fold(0, i64::saturating_add);
    if floors >= budget {
        return Filled { targets, over: floors > budget };
    }
    let parts = fractions(shares, float(budget.saturating_sub(floors)));
    let whole = signed(parts.iter().map(|part| part.exact).sum::<f64>().round());
    apportion(&mut targets, &parts, whole);
    Filled { targets, over: false }
}

fn fractions(shares: &[Share], pool: f64) -> Vec<Part<SmolStr>> {
    let weight = |one: &Share| quantity(one.priority) * quantity(one.demand);
    let room = |one: &Share| float(one.cap.saturating_sub(one.floor));
    let mut open: Vec<&Share> = shares.iter().filter(|one| weight(one) > 0.0 && room(one) > 0.0).collect();
    let mut parts = Vec::new();
    let mut left = pool;
    while !open.is_empty() && left > ROUNDING {
        let sum: f64 = open.iter().map(|one| weight(one)).sum();
        let part = |one: &Share, exact| Part { id: one.id.clone(), exact };
        let share = |one: &Share| left * weight(one) / sum;
        let (full, hungry): (Vec<_>, Vec<_>) = open.iter().partition(|one| share(one) >= room(one));
        if full.is_empty() {
            parts.extend(hungry.into_iter().map(|one| part(one, share(one))));
            break;
        }
        left -= full.iter().map(|one| room(one)).sum::<f64>();
        parts.extend(full.into_iter().map(|one| part(one, room(one))));
        open = hungry;
    }
    parts
}

/// Adds `parts` to `targets` in whole GPUs that sum to `whole`, which is the parts' sum: each rounded down, and one more for
/// each of the largest fractions, ties by name. Only parts with a fraction get one more, so no cap is exceeded.
pub(super) fn apportion<R: Ord + Clone>(targets: &mut BTreeMap<R, i64>, parts: &[Part<R>], whole: i64) {
    let mut left = whole;
    for part in parts {
        let floor = signed(part.exact.floor());
        left = left.saturating_sub(floor);
        let target = targets.entry(part.id.clone()).or_insert(0);
        *target = target.saturating_add(floor);
    }
    let mut order: Vec<&Part<R>> = parts.iter().collect();
    let fraction = |part: &Part<R>| part.exact - part.exact.floor();
    order.sort_by(|a, b| fraction(b).total_cmp(&fraction(a)).then_with(|| a.id.cmp(&b.id)));
    for part in order.into_iter().take(usize::try_from(left).unwrap_or(0)) {
        *targets.entry(part.id.clone()).or_insert(0) += 1;
    }
}
