//! Sharing as upstream does it: in the findings' own units, by free GPUs. The traps of the reference are all here: a
//! target in priority times need is compared with needs, what is cut off is forgotten, both roles of a turn may take the
//! same GPUs.

use std::collections::BTreeMap;

use super::super::rescale::{Rescale, apply};
use super::super::shrink::shrink;
use super::super::step::{self, Picker};
use super::super::vote::{ByRole, Votes, said};
use super::super::work::{Work, quantity};
use super::super::{Request, Step};
use super::{MOST_TURNS, Shared, Turn, target};
use crate::limit::{Free, Ledger, UNLIMITED};
use crate::model::{Compat, Role};
use crate::units::signed;
use smol_str::SmolStr;

/// A model that takes part.
struct Model<'a> {
    work: Work<'a>,
    roles: Vec<Role>,
    /// By finding, what is missing of the whole model.
    remaining: Vec<f64>,
    left: f64,
}

/// Plans for `requests` with these `free` GPUs, by upstream's rules of `tree`.
#[must_use]
pub fn optimize(requests: &[Request], mut free: Free, rescale: &Rescale, tree: Compat) -> Shared {
    let mut works: Vec<Work<'_>> = requests.iter().map(Work::new).collect();
    let mut unlimited = Ledger::new(&[], []);
    let handled = apply(&mut works, &mut free, rescale, &mut unlimited, tree);
    let mut models: Vec<Model<'_>> = Vec::new();
    for (at, mut work) in works.into_iter().enumerate() {
        let findings = &work.request.findings;
        let remaining = findings.iter().map(|one| quantity(one.total.required)).collect();
        let mut votes = Votes::of(&mut work, tree);
        let mut left = 0.0;
        if handled.contains(&at) {
            // Rescaling has set it.
        } else if votes.any_need() {
            left = weight(&work, &votes.need);
        } else {
            shrink(&mut work, &mut votes, tree);
        }
        models.push(Model { work, roles: votes.roles, remaining, left });
    }
    let turns = share(&mut models, &mut free);
    Shared { plans: models.into_iter().map(|model| model.work.plan()).collect(), turns }
}

/// Priority times the sum of score times need; the largest need where that is 0.
fn weight(work: &Work<'_>, need: &[ByRole]) -> f64 {
    let scored = work.request.findings.iter().zip(need);
    let sum: f64 = scored.map(|(one, need)| need.values().sum::<f64>() * quantity(one.score)).sum();
    let weight = quantity(work.request.priority) * sum;
    let largest = need.iter().flat_map(ByRole::values).fold(0.0, f64::max);
    if weight > 0.0 { weight } else { largest }
}

fn share(models: &mut [Model<'_>], free: &mut Free) -> Vec<Turn> {
    let mut turns = Vec::new();
    while turns.len() < MOST_TURNS {
        let active: Vec<usize> = (0..models.len()).filter(|at| models[*at].left > 0.0).collect();
        let gpus = free.cluster.values().copied().fold(0, i64::saturating_add);
        // The first of the largest.
        let most = active.iter().copied().reduce(|a, b| if models[b].left > models[a].left { b } else { a });
        let Some(most) = most.filter(|_| gpus != 0) else { break };
        let count = f64::from(crate::units::count(active.len()));
        let mean = active.iter().map(|at| models[*at].left).sum::<f64>() / count;
        let model = &mut models[most];
        let before = model.left;
        let target = target(before, mean, active.len());
        let id = model.work.request.id.clone();
        turns.push(Turn { id, left: before, mean, target });
        model.work.steps.push(Step::Turn { left: before, mean, target });
        if target > 0.0 {
            model.allocate(target, free);
        }
        if model.left >= before || model.left > mean {
            model.left = -1.0;
        }
    }
    turns
}

impl Model<'_> {
    /// What is missing now: a finding with roles forgets what was added, one without does not.
    fn needs(&self) -> Vec<ByRole> {
        let findings = self.work.request.findings.iter().zip(&self.remaining);
        let need = |(one, left): (&crate::analyze::finding::Finding, &f64)| {
            if one.roles.is_empty() {
                [(Role::Both, *left)].into_iter().collect()
            } else {
                said(one, |totals| totals.required)
            }
        };
        findings.map(need).collect()
    }

    fn allocate(&mut self, target: f64, free: &mut Free) {
        let mut need = self.needs();
        need.iter_mut().for_each(|one| *one = one.map(|value| value.min(target)));
        let namespace = &self.work.request.id.namespace;
        let effective = effective(free, namespace);
        let mut picker = ByFree { target, left: effective.clone() };
        step::upstream(&mut self.work, &self.roles, &mut need, &mut self.remaining, &mut picker);
        for (name, before) in effective {
            let spent = before.saturating_sub(picker.left.get(&name).copied().unwrap_or(before));
            let cluster = free.cluster.get_mut(&name).filter(|left| **left != UNLIMITED);
            let own = free.namespaces.get_mut(namespace).and_then(|types| types.get_mut(&name));
            for left in cluster.into_iter().chain(own.filter(|left| **left >= 0)) {
                *left = left.saturating_sub(spent.max(0));
            }
        }
        let need = if self.roles == [Role::Both] { self.needs() } else { need };
        self.left = weight(&self.work, &need);
    }
}

/// What a model in `namespace` may use: a namespace with a quota only what it lists.
fn effective(free: &Free, namespace: &str) -> BTreeMap<SmolStr, i64> {
    let Some(own) = free.namespaces.get(namespace) else { return free.cluster.clone() };
    let both = |(name, own): (&SmolStr, &i64)| {
        let cluster = free.cluster.get(name).copied().unwrap_or(UNLIMITED);
        (name.clone(), if *own < 0 { cluster } else { cluster.min(*own) })
    };
    own.iter().map(both).collect()
}

/// The most efficient variant with a free accelerator, up to the target.
struct ByFree {
    target: f64,
    left: BTreeMap<SmolStr, i64>,
}

impl ByFree {
    fn name(work: &Work<'_>, candidate: usize) -> SmolStr {
        work.request.candidates[candidate].accelerator.clone().unwrap_or_default()
    }
}

impl Picker for ByFree {
    fn pick(&mut self, work: &Work<'_>, role: Role) -> Option<(usize, i64)> {
        let room = |at: usize| {
            let each = work.request.candidates[at].gpus();
            let free = self.left.get(&Self::name(work, at)).copied().unwrap_or(0);
            let share = signed((self.target / work.anchor(at)).ceil());
            (at, share.min(free.div_euclid(each)).min(work.headroom(at)))
        };
        work.by_efficiency(role, Compat::Upstream).into_iter().map(room).find(|(_, room)| *room > 0)
    }

    fn commit(&mut self, work: &Work<'_>, candidate: usize, replicas: i64) {
        let gpus = replicas.saturating_mul(work.request.candidates[candidate].gpus());
        let left = self.left.entry(Self::name(work, candidate)).or_insert(0);
        *left = left.saturating_sub(gpus);
    }
}
