//! The plan of one request while it is built.

use std::collections::BTreeMap;

use smol_str::SmolStr;

use super::{Addition, OptimizerStep, Plan, Request, VariantTarget};
use crate::analyze::finding::Finding;
use crate::limit::{Binding, Footprint};
use crate::model::Role;
use crate::name_map::NameIndex;
use crate::units::Replicas;

/// Candidates and findings go by their index in the request.
pub(crate) struct PlanBuilder<'a> {
    pub(crate) request: &'a Request,
    /// By finding and candidate: the capacity of a replica in the finding's unit; 0 is unknown.
    pub(crate) capacity: Vec<Vec<f64>>,
    pub(crate) targets: Vec<i64>,
    pub(crate) steps: Vec<OptimizerStep>,
    /// By candidate: the limit that held it back last.
    bindings: BTreeMap<usize, Binding>,
    /// All candidates, in the order in which equally efficient ones are chosen.
    tie_order: Vec<usize>,
}

/// Larger than any load, and small enough for sums and products of such quantities to stay finite.
const MAX_QUANTITY: f64 = 1e100;

/// `value` if it is a quantity; 0 if it is not finite or is negative.
pub(crate) const fn quantity(value: f64) -> f64 {
    if value.is_finite() && value > 0.0 { value.min(MAX_QUANTITY) } else { 0.0 }
}

impl<'a> PlanBuilder<'a> {
    /// Equally efficient candidates are chosen by name, so that a plan does not depend on the order of its input.
    pub(crate) fn new(request: &'a Request) -> Self {
        let mut builder = Self::with_ties_as_given(request);
        builder.tie_order.sort_by_key(|index| &request.candidates[*index].name);
        builder
    }

    /// Equally efficient candidates are chosen in the order of the request.
    pub(crate) fn with_ties_as_given(request: &'a Request) -> Self {
        let capacity_row = |finding: &Finding| -> Vec<f64> {
            let variants = NameIndex::new(&finding.variants, |variant| &variant.name);
            let candidates = request.candidates.iter().enumerate();
            let capacities = candidates.map(|(index, candidate)| {
                variants.find(index, &candidate.name).map_or(0.0, |variant| quantity(variant.per_replica))
            });
            capacities.collect()
        };
        let current = request.candidates.iter().map(|candidate| i64::from(candidate.current.get()));
        Self {
            request,
            capacity: request.findings.iter().map(capacity_row).collect(),
            targets: current.collect(),
            steps: Vec::new(),
            bindings: BTreeMap::new(),
            tie_order: (0..request.candidates.len()).collect(),
        }
    }

    /// The capacity of a replica in the unit of the first finding.
    pub(crate) fn anchor(&self, candidate: usize) -> f64 {
        self.capacity.first().map_or(0.0, |row| row[candidate])
    }

    pub(crate) fn footprint(&self, candidate: usize) -> Footprint<'a> {
        self.request.candidates[candidate].footprint(&self.request.id.namespace)
    }

    /// The roles of the candidates, each once, in ascending order.
    pub(crate) fn roles(&self) -> impl Iterator<Item = Role> + use<'a> {
        let candidates = &self.request.candidates;
        Role::ALL.into_iter().filter(|role| candidates.iter().any(|candidate| candidate.role == *role))
    }

    pub(crate) fn candidates_of(&self, role: Role) -> impl Iterator<Item = usize> {
        let candidates = self.request.candidates.iter().enumerate();
        candidates.filter(move |(_, candidate)| candidate.role == role).map(|(index, _)| index)
    }

    /// The candidates of `role` whose capacity is known, the cheapest capacity first.
    pub(crate) fn by_efficiency(&self, role: Role) -> Vec<usize> {
        let candidates = &self.request.candidates;
        let is_able = |index: &usize| candidates[*index].role == role && self.anchor(*index) > 0.0;
        let mut able: Vec<usize> = self.tie_order.iter().copied().filter(is_able).collect();
        let cost_of_capacity = |index: usize| candidates[index].cost.get() / self.anchor(index);
        // A stable sort: ties stay in their order.
        able.sort_by(|left, right| cost_of_capacity(*left).total_cmp(&cost_of_capacity(*right)));
        able
    }

    pub(crate) fn add(&mut self, candidate: usize, replicas: i64) {
        self.targets[candidate] = self.targets[candidate].saturating_add(replicas);
    }

    pub(crate) fn headroom(&self, candidate: usize) -> i64 {
        self.request.candidates[candidate].headroom(self.targets[candidate])
    }

    pub(crate) fn additions(&self, counts: &[(usize, i64)]) -> Vec<Addition> {
        let positive = counts.iter().filter(|(_, replicas)| *replicas > 0);
        positive
            .map(|(index, replicas)| Addition { variant: self.name(*index), replicas: *replicas })
            .collect()
    }

    pub(crate) fn name(&self, candidate: usize) -> SmolStr {
        self.request.candidates[candidate].name.clone()
    }

    /// Notes that `binding` leaves room for `fit` of the `proposed` replicas.
    pub(crate) fn hold_back(&mut self, candidate: usize, proposed: i64, fit: i64, binding: Option<Binding>) {
        if let Some(binding) = binding {
            self.bindings.insert(candidate, binding.clone());
            self.steps.push(OptimizerStep::Limited { variant: self.name(candidate), proposed, fit, binding });
        }
    }

    pub(crate) fn build(mut self) -> Plan {
        let targets = self.request.candidates.iter().zip(&self.targets).enumerate();
        let targets = targets.map(|(index, (candidate, target))| VariantTarget {
            name: candidate.name.clone(),
            current: candidate.current,
            target: Replicas::saturating_from(*target),
            binding: self.bindings.remove(&index),
        });
        Plan { id: self.request.id.clone(), targets: targets.collect(), steps: self.steps }
    }
}
