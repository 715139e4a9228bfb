//! Adds replicas in all roles of a model together, so that prefill and decode fleets keep their proportion.

use super::OptimizerStep;
use super::plan_builder::PlanBuilder;
use super::votes::ByRole;
use crate::limit::Ledger;
use crate::model::Role;
use crate::units::{to_f64, truncated_i64};

/// Maximum of rounds. Each round fills a variant or is the last, so few are needed; but numbers beyond the precision of a float may not change
/// at all.
pub(crate) const MAX_ROUNDS: usize = 10_000;
/// Halvings that find the largest share that fits: finer than one replica of any fleet.
const SHARE_HALVINGS: u32 = 48;
/// A remainder below this share of what was just added counts as a rounding error, and adds no further replica.
const ROUNDING: f64 = 1e-9;

pub(crate) struct Pick {
    pub(crate) role: Role,
    pub(crate) candidate: usize,
    /// Replicas it may get.
    pub(crate) max: i64,
    /// What is needed: replicas, or in upstream's arithmetic the finding's unit.
    pub(crate) demand: f64,
}

/// Replicas of `candidate` that carry `share` of every need in `role` of the findings that know its capacity.
pub(crate) fn replicas_for(
    builder: &PlanBuilder<'_>,
    need: &[ByRole],
    role: Role,
    candidate: usize,
    share: f64,
) -> i64 {
    let known = need.iter().zip(&builder.capacity).filter(|(_, row)| row[candidate] > 0.0);
    // Rounded up: a part of a replica serves nobody.
    let replicas = known.map(|(need, row)| truncated_i64((share * need.get(role) / row[candidate]).ceil()));
    replicas.max().unwrap_or(0)
}

/// Adds what carries `share` of every need, as far as maxima and limits allow, and reduces `need` in each finding's own unit.
/// Only roles in which something is missing take part; if one of them cannot grow, none does. Returns the replicas added.
pub(super) fn grow(
    builder: &mut PlanBuilder<'_>,
    need: &mut [ByRole],
    share: f64,
    ledger: &mut Ledger<'_>,
) -> i64 {
    let mut left: Vec<ByRole> = need.iter().map(|need| need.map(|value| value * share)).collect();
    let mut added: i64 = 0;
    for _ in 0..MAX_ROUNDS {
        let Some(picks) = pick(builder, &left, ledger) else { break };
        let (share, counts) = fit_together(builder, &left, &picks, ledger);
        if counts.iter().all(|(_, count)| *count == 0) {
            break;
        }
        for (pick, (candidate, count)) in picks.iter().zip(&counts) {
            builder.add(*candidate, *count);
            ledger.take(&builder.footprint(*candidate), *count);
            added = added.saturating_add(*count);
            for (finding, row) in builder.capacity.iter().enumerate() {
                let carried = to_f64(*count) * row[*candidate];
                for needs in [&mut left[finding], &mut need[finding]] {
                    let rest = needs.get(pick.role) - carried;
                    needs.set(pick.role, if rest > carried * ROUNDING { rest } else { 0.0 });
                }
            }
        }
        let added = builder.additions(&counts);
        builder.steps.push(OptimizerStep::Added { share, added });
    }
    added
}

/// One variant for every role in which something is missing: the most efficient one with room. `None` if nothing is missing that
/// a variant could carry, or if a role has no variant with room.
fn pick(builder: &mut PlanBuilder<'_>, left: &[ByRole], ledger: &Ledger<'_>) -> Option<Vec<Pick>> {
    let mut picks = Vec::new();
    for role in builder.roles() {
        let able = builder.by_efficiency(role).into_iter();
        let needed = able.map(|candidate| (candidate, replicas_for(builder, left, role, candidate, 1.0)));
        let useful: Vec<(usize, i64)> = needed.filter(|(_, replicas)| *replicas > 0).collect();
        if useful.is_empty() {
            continue;
        }
        let mut picked = None;
        for (candidate, needed) in useful {
            let (room, binding) = ledger.room(&builder.footprint(candidate));
            let proposed = needed.min(builder.headroom(candidate));
            if room < proposed {
                builder.hold_back(candidate, proposed, room, binding);
            }
            let max = proposed.min(room);
            if max > 0 {
                picked = Some(Pick { role, candidate, max, demand: to_f64(needed) });
                break;
            }
        }
        if picked.is_none() {
            builder.steps.push(OptimizerStep::Blocked { role });
        }
        picks.push(picked?);
    }
    (!picks.is_empty()).then_some(picks)
}

/// The largest share of all needs for which the picks have room together, and its counts by candidate.
fn fit_together(
    builder: &PlanBuilder<'_>,
    left: &[ByRole],
    picks: &[Pick],
    ledger: &Ledger<'_>,
) -> (f64, Vec<(usize, i64)>) {
    let counts = |share: f64| -> Vec<(usize, i64)> {
        let count = |pick: &Pick| {
            let needed = replicas_for(builder, left, pick.role, pick.candidate, share);
            (pick.candidate, needed.clamp(1, pick.max))
        };
        picks.iter().map(count).collect()
    };
    // Picks may draw on the same budget, so they are tried one after the other in a copy of the ledger.
    let fits = |share: f64| {
        let mut ledger = ledger.clone();
        counts(share).into_iter().all(|(candidate, count)| {
            let (room, _) = ledger.room(&builder.footprint(candidate));
            ledger.take(&builder.footprint(candidate), count);
            count <= room
        })
    };
    let largest = picks.iter().map(|pick| to_f64(pick.max) / pick.demand.max(1.0)).fold(1.0, f64::min);
    if fits(largest) {
        return (largest, counts(largest));
    }
    let mut low = 0.0;
    let mut high = largest;
    for _ in 0..SHARE_HALVINGS {
        let middle = f64::midpoint(low, high);
        if fits(middle) { low = middle } else { high = middle }
    }
    if low > 0.0 { (low, counts(low)) } else { (0.0, Vec::new()) }
}
