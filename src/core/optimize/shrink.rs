//! Removal of what is spare, the dearest first. Source: algorithm reference §7.4.

use super::Step;
use super::vote::{Votes, counted};
use super::work::{Work, quantity};
use crate::model::{Compat, Role};
use crate::units::{float, signed};

/// Removes in every role what all who count can spare.
pub(super) fn shrink(work: &mut Work<'_>, votes: &mut Votes, compat: Compat) {
    let findings = &work.request.findings;
    for role in work.roles() {
        if !votes.may_shrink(findings, role, compat) {
            work.steps.push(Step::Kept { role });
            continue;
        }
        let capacity = work.capacity.clone();
        let mut spare: Vec<f64> = (0..findings.len()).map(|at| votes.spare_of(at, role)).collect();
        let judges: Vec<usize> = counted(findings, compat).collect();
        shed(work, role, compat, &mut |candidate, taken| {
            for (row, spare) in capacity.iter().zip(&mut spare) {
                *spare = (*spare - float(taken) * row[candidate]).max(0.0);
            }
            let able = judges.iter().filter(|at| capacity[**at][candidate] > 0.0);
            able.map(|at| signed((spare[*at] / capacity[*at][candidate]).floor())).min().unwrap_or(0)
        });
    }
}

/// Takes replicas from the variants of `role`, the dearest first, then by weighted capacity and name. `allowed` takes
/// note of what was taken of a candidate and says how many more may be.
///
/// A role keeps one replica; upstream only sees to that at the last variant of the order.
pub(super) fn shed(
    work: &mut Work<'_>,
    role: Role,
    compat: Compat,
    allowed: &mut dyn FnMut(usize, i64) -> i64,
) {
    let order = dearest_first(work, role, compat);
    for (place, at) in order.iter().copied().enumerate() {
        let target = work.targets[at];
        let removable = target - i64::from(work.request.candidates[at].bounds.min.get());
        if work.anchor(at) <= 0.0 || removable <= 0 {
            continue;
        }
        let most = allowed(at, 0);
        let mut taken = most.min(removable);
        let last = place + 1 == order.len();
        let others = |these: &[usize]| these.iter().any(|other| *other != at && work.targets[*other] > 0);
        let alone = if compat.is_upstream() { last && !others(&order) } else { !others(&order) };
        if alone {
            taken = taken.min(target - 1);
        }
        if taken > 0 {
            work.targets[at] -= taken;
            allowed(at, taken);
            work.steps.push(Step::Shrank { variant: work.name(at), allowed: most, removed: taken });
        }
    }
}

/// Upstream adds the findings' capacities up although each has its own unit; by default each is a share of the largest.
fn dearest_first(work: &Work<'_>, role: Role, compat: Compat) -> Vec<usize> {
    let candidates = &work.request.candidates;
    let mut order: Vec<usize> = work.of_role(role).collect();
    let largest = |row: &[f64]| order.iter().map(|at| row[*at]).fold(0.0, f64::max);
    let unit = |row: &Vec<f64>| if compat.is_upstream() { 1.0 } else { largest(row) };
    let units: Vec<f64> = work.capacity.iter().map(unit).collect();
    let weight = |at: usize| {
        let scored = work.request.findings.iter().zip(work.capacity.iter().zip(&units));
        let scored = scored.filter(|(_, (_, unit))| **unit > 0.0);
        scored.map(|(finding, (row, unit))| quantity(finding.score) * row[at] / unit).sum::<f64>()
    };
    order.sort_by(|a, b| {
        let cost = candidates[*b].cost.get().total_cmp(&candidates[*a].cost.get());
        cost.then_with(|| weight(*a).total_cmp(&weight(*b)))
            .then_with(|| candidates[*a].name.cmp(&candidates[*b].name))
    });
    order
}
