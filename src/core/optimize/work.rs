//! One request while it is worked on.

use std::collections::BTreeMap;

use super::{Plan, Request, Step, Target, trace::Added};
use crate::limit::{Binding, Footprint};
use crate::model::{Compat, Role};
use crate::name_map::NameIndex;
use crate::units::Replicas;
use smol_str::SmolStr;

pub(super) struct Work<'a> {
    pub(super) request: &'a Request,
    /// By finding and candidate: what one replica can carry in the finding's unit; 0 is not known.
    pub(super) capacity: Vec<Vec<f64>>,
    /// By candidate.
    pub(super) targets: Vec<i64>,
    pub(super) steps: Vec<Step>,
    /// By candidate, where something did.
    bound: BTreeMap<usize, Binding>,
}

/// More than any load, and small enough for sums and products of it to be finite.
const HUGE: f64 = 1e100;

/// `value` where it is a quantity; 0 where it is not finite or below 0.
pub(super) const fn quantity(value: f64) -> f64 {
    if value.is_finite() && value > 0.0 { value.min(HUGE) } else { 0.0 }
}

impl<'a> Work<'a> {
    pub(super) fn new(request: &'a Request) -> Self {
        let row = |finding: &crate::analyze::finding::Finding| {
            let variants = NameIndex::new(&finding.variants, |variant| &variant.name);
            let capacity = |at, name| variants.find(at, name).map_or(0.0, |one| quantity(one.per_replica));
            let candidates = request.candidates.iter().enumerate();
            candidates.map(|(at, candidate)| capacity(at, &candidate.name)).collect::<Vec<_>>()
        };
        let targets: Vec<_> = request.candidates.iter().map(|one| i64::from(one.current.get())).collect();
        Self {
            request,
            capacity: request.findings.iter().map(row).collect(),
            bound: BTreeMap::new(),
            targets,
            steps: Vec::new(),
        }
    }

    /// What a replica can carry in the unit of the first finding.
    pub(super) fn anchor(&self, candidate: usize) -> f64 {
        self.capacity.first().map_or(0.0, |row| row[candidate])
    }

    pub(super) fn footprint(&self, candidate: usize) -> Footprint<'a> {
        self.request.candidates[candidate].footprint(&self.request.id.namespace)
    }

    /// The roles of the candidates, each once, in ascending order.
    pub(super) fn roles(&self) -> impl Iterator<Item = Role> + use<'a> {
        let candidates = &self.request.candidates;
        Role::ALL.into_iter().filter(|role| candidates.iter().any(|one| one.role == *role))
    }

    pub(super) fn of_role(&self, role: Role) -> impl Iterator<Item = usize> {
        let candidates = self.request.candidates.iter().enumerate();
        candidates.filter(move |(_, one)| one.role == role).map(|(at, _)| at)
    }

    /// The candidates of `role` whose capacity is known, by cost of capacity; ties by name, upstream's as given.
    pub(super) fn by_efficiency(&self, role: Role, compat: Compat) -> Vec<usize> {
        let all = &self.request.candidates;
        let mut known: Vec<usize> = self.of_role(role).filter(|at| self.anchor(*at) > 0.0).collect();
        let rate = |at: usize| all[at].cost.get() / self.anchor(at);
        known.sort_by(|a, b| {
            let name = if compat.is_upstream() {
                std::cmp::Ordering::Equal
            } else {
                all[*a].name.cmp(&all[*b].name)
            };
            rate(*a).total_cmp(&rate(*b)).then(name)
        });
        known
    }

    pub(super) fn add(&mut self, candidate: usize, replicas: i64) {
        self.targets[candidate] = self.targets[candidate].saturating_add(replicas);
    }

    pub(super) fn headroom(&self, candidate: usize) -> i64 {
        self.request.candidates[candidate].headroom(self.targets[candidate])
    }

    pub(super) fn added(&self, counts: &[(usize, i64)]) -> Vec<Added> {
        let some = counts.iter().filter(|(_, replicas)| *replicas > 0);
        some.map(|(at, replicas)| Added { variant: self.name(*at), replicas: *replicas }).collect()
    }

    pub(super) fn name(&self, candidate: usize) -> SmolStr {
        self.request.candidates[candidate].name.clone()
    }

    pub(super) fn hold_back(&mut self, candidate: usize, wanted: i64, fit: i64, by: Option<Binding>) {
        if let Some(by) = by {
            self.bound.insert(candidate, by.clone());
            self.steps.push(Step::Bound { variant: self.name(candidate), wanted, fit, by });
        }
    }

    pub(super) fn plan(mut self) -> Plan {
        let targets = self.request.candidates.iter().zip(self.targets).enumerate();
        let target = |(at, (one, target)): (usize, (&super::Candidate, i64))| Target {
            name: one.name.clone(),
            current: one.current,
            target: Replicas::saturating(target),
            bound: self.bound.remove(&at),
        };
        Plan { id: self.request.id.clone(), targets: targets.map(target).collect(), steps: self.steps }
    }
}
