//! The step that adds replicas in all roles of a model together, so that the pair of a prefill and a decode fleet keeps
//! its proportion. Source: algorithm reference §7.3.

use super::Step;
use super::vote::ByRole;
use super::work::Work;
use crate::limit::Ledger;
use crate::model::{Compat, Role};
use crate::units::{float, signed};

/// Turns of the loop that are taken at most. A turn fills a variant or ends, so that a few do, but numbers beyond the
/// precision of a float may not move at all.
const MOST_TURNS: usize = 10_000;
/// Halvings that find the largest share that fits: finer than one replica of any fleet.
const HALVINGS: u32 = 48;

/// Share of what was added that is rounding, and no reason to add more.
const ROUNDING: f64 = 1e-9;

/// Chooses variants for upstream's step and keeps its budgets.
pub(super) trait Picker {
    /// A variant of `role` and how many more it may get.
    fn pick(&mut self, work: &Work<'_>, role: Role) -> Option<(usize, i64)>;
    /// `replicas` of `candidate` were added.
    fn commit(&mut self, work: &Work<'_>, candidate: usize, replicas: i64);
}

struct Pick {
    role: Role,
    candidate: usize,
    most: i64,
    demand: f64,
}

/// Upstream's step: every role has to have a pick; every need is reduced by the capacity that the first finding knows.
/// `remaining` is, by finding, what is missing of the whole model.
pub(super) fn upstream(
    work: &mut Work<'_>,
    roles: &[Role],
    need: &mut [ByRole],
    remaining: &mut [f64],
    picker: &mut dyn Picker,
) {
    for _ in 0..MOST_TURNS {
        if !need.iter().any(|one| roles.iter().any(|role| one.of(*role) > 0.0)) {
            return;
        }
        let mut picks = Vec::new();
        for role in roles {
            let Some((candidate, most)) = picker.pick(work, *role) else {
                work.steps.push(Step::Blocked { role: *role });
                return;
            };
            let most = replicas(work, need, *role, candidate, 1.0).min(most);
            let demand = need.iter().map(|one| one.of(*role)).fold(0.0, f64::max);
            picks.push(Pick { role: *role, candidate, most, demand });
        }
        let served = |pick: &Pick| float(pick.most) * work.anchor(pick.candidate) / pick.demand;
        let share = picks.iter().map(|pick| if pick.demand > 0.0 { served(pick) } else { 1.0 });
        let share = share.fold(f64::MAX, f64::min);
        let count = |pick: &Pick| {
            let each = work.anchor(pick.candidate);
            let fit = signed((share * pick.demand / each).floor());
            if each > 0.0 && pick.demand > 0.0 { fit.max(pick.most.min(1)) } else { 0 }
        };
        let counts: Vec<i64> = picks.iter().map(count).collect();
        if share <= 0.0 || counts.iter().all(|count| *count <= 0) {
            return;
        }
        for (pick, count) in picks.iter().zip(&counts) {
            work.add(pick.candidate, *count);
            let carried = float(*count) * work.anchor(pick.candidate);
            for one in &mut *need {
                let left = one.of(pick.role) - carried;
                one.set(pick.role, left.max(0.0));
            }
            picker.commit(work, pick.candidate, *count);
        }
        let whole = |role| picks.iter().position(|pick| pick.role == role);
        if let Some(index) = whole(Role::Prefill).or_else(|| whole(Role::Both)) {
            for (left, row) in remaining.iter_mut().zip(&work.capacity) {
                *left = (*left - float(counts[index]) * row[picks[index].candidate]).max(0.0);
            }
        }
        let added: Vec<_> = picks.iter().map(|pick| pick.candidate).zip(counts).collect();
        let added = work.added(&added);
        work.steps.push(Step::Grew { share, added });
    }
}

/// Replicas of `candidate` that carry `share` of every need in `role` that knows its capacity.
fn replicas(work: &Work<'_>, need: &[ByRole], role: Role, candidate: usize, share: f64) -> i64 {
    let known = need.iter().zip(&work.capacity).filter(|(_, row)| row[candidate] > 0.0);
    known.map(|(one, row)| signed((share * one.of(role) / row[candidate]).ceil())).max().unwrap_or(0)
}

/// Adds what carries `share` of every need, as far as maxima and limits allow; `need` is reduced in each finding's own
/// unit. Only roles in which something is missing take part; when one of them cannot grow, none does. Returns how many
/// replicas were added.
pub(super) fn grow(work: &mut Work<'_>, need: &mut [ByRole], share: f64, ledger: &mut Ledger<'_>) -> i64 {
    let mut left: Vec<ByRole> = need.iter().map(|one| one.map(|value| value * share)).collect();
    let mut sum: i64 = 0;
    for _ in 0..MOST_TURNS {
        let Some(picks) = picks(work, &left, ledger) else { break };
        let (share, counts) = together(work, &left, &picks, ledger);
        if counts.iter().all(|(_, count)| *count == 0) {
            break;
        }
        for (pick, (candidate, count)) in picks.iter().zip(&counts) {
            work.add(*candidate, *count);
            ledger.take(&work.footprint(*candidate), *count);
            sum = sum.saturating_add(*count);
            for (at_finding, row) in work.capacity.iter().enumerate() {
                let carried = float(*count) * row[*candidate];
                for map in [&mut left[at_finding], &mut need[at_finding]] {
                    let rest = map.of(pick.role) - carried;
                    map.set(pick.role, if rest > carried * ROUNDING { rest } else { 0.0 });
                }
            }
        }
        let added = work.added(&counts);
        work.steps.push(Step::Grew { share, added });
    }
    sum
}

/// One variant for every role in which something is missing: the most efficient with room. `None` when nothing is missing
/// that anyone could carry, or a role has no variant with room.
fn picks(work: &mut Work<'_>, left: &[ByRole], ledger: &Ledger<'_>) -> Option<Vec<Pick>> {
    let mut picks = Vec::new();
    for role in work.roles() {
        let able = work.by_efficiency(role, Compat::Corrected);
        let wants: Vec<_> = able.into_iter().map(|one| (one, replicas(work, left, role, one, 1.0))).collect();
        let mut useful = wants.into_iter().filter(|(_, wanted)| *wanted > 0).peekable();
        if useful.peek().is_none() {
            continue;
        }
        let mut picked = None;
        for (candidate, wanted) in useful {
            let (room, by) = ledger.room(&work.footprint(candidate));
            let asked = wanted.min(work.headroom(candidate));
            if room < asked {
                work.hold_back(candidate, asked, room, by);
            }
            if asked.min(room) > 0 {
                picked = Some(Pick { role, candidate, most: asked.min(room), demand: float(wanted) });
                break;
            }
        }
        if picked.is_none() {
            work.steps.push(Step::Blocked { role });
        }
        picks.push(picked?);
    }
    (!picks.is_empty()).then_some(picks)
}

/// The largest share of all needs for which the picks have room together, and its counts.
fn together(
    work: &Work<'_>,
    left: &[ByRole],
    picks: &[Pick],
    ledger: &Ledger<'_>,
) -> (f64, Vec<(usize, i64)>) {
    let counts = |share: f64| -> Vec<(usize, i64)> {
        let count = |pick: &Pick| {
            let wanted = replicas(work, left, pick.role, pick.candidate, share);
            (pick.candidate, wanted.clamp(1, pick.most))
        };
        picks.iter().map(count).collect()
    };
    let fits = |share: f64| {
        let mut ledger = ledger.clone();
        counts(share).into_iter().all(|(candidate, count)| {
            let room = ledger.room(&work.footprint(candidate)).0;
            ledger.take(&work.footprint(candidate), count);
            count <= room
        })
    };
    let whole = picks.iter().map(|pick| float(pick.most) / pick.demand.max(1.0)).fold(1.0, f64::min);
    if fits(whole) {
        return (whole, counts(whole));
    }
    let (mut low, mut high) = (0.0, whole);
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(low, high);
        if fits(middle) { low = middle } else { high = middle }
    }
    if low > 0.0 { (low, counts(low)) } else { (0.0, Vec::new()) }
}
