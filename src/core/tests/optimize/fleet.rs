//! Short ways to write requests to optimizers.

use std::collections::BTreeMap;

use smol_str::SmolStr;
use wva_core::analyze::finding::{Finding, Totals, VariantCapacity};
use wva_core::arithmetic;
use wva_core::limit::{Budget, Limit};
use wva_core::model::{Analyzer, Bounds, Compat, GroupId, Role};
use wva_core::optimize::{Candidate, OptimizerStep, Plan, Request};
use wva_core::units::{Cost, Replicas, Watts};

/// A variant and the capacity of its replicas, by finding.
#[derive(Debug, Clone)]
pub(crate) struct V {
    pub(crate) name: &'static str,
    pub(crate) role: Role,
    pub(crate) cost: f64,
    pub(crate) carries: Vec<f64>,
    pub(crate) current: u32,
    pub(crate) min: u32,
    pub(crate) max: Option<u32>,
    pub(crate) gpus: u32,
    pub(crate) accelerator: Option<&'static str>,
    pub(crate) watts: Option<f64>,
}

pub(crate) fn v(name: &'static str, cost: f64, carries: f64, current: u32) -> V {
    V {
        name,
        role: Role::Both,
        cost,
        carries: vec![carries],
        current,
        min: 0,
        max: None,
        gpus: 1,
        accelerator: Some("A100"),
        watts: None,
    }
}

impl V {
    pub(crate) fn role(self, role: Role) -> Self {
        Self { role, ..self }
    }
}

/// What a finding says about the model, or about its roles.
#[derive(Debug, Clone)]
pub(crate) struct FindingSpec {
    pub(crate) total: (f64, f64),
    pub(crate) roles: Vec<(Role, f64, f64)>,
    pub(crate) demand: f64,
    pub(crate) score: f64,
    pub(crate) live: bool,
}

pub(crate) fn finding(required: f64, spare: f64) -> FindingSpec {
    FindingSpec { total: (required, spare), roles: Vec::new(), demand: 0.0, score: 1.0, live: true }
}

pub(crate) fn by_role(roles: &[(Role, f64, f64)]) -> FindingSpec {
    let sum = |part: fn(&(Role, f64, f64)) -> f64| roles.iter().map(part).sum();
    FindingSpec {
        roles: roles.to_vec(),
        ..finding(sum(|(_, required, _)| *required), sum(|(.., spare)| *spare))
    }
}

pub(crate) fn request(model: &str, priority: f64, variants: &[V], findings: &[FindingSpec]) -> Request {
    let found = |(at, spec): (usize, &FindingSpec)| Finding {
        analyzer: if at == 0 { Analyzer::Saturation } else { Analyzer::Throughput },
        score: spec.score,
        live: spec.live,
        total: Totals { demand: spec.demand, ..totals(spec.total.0, spec.total.1) },
        roles: spec.roles.iter().map(|(role, required, spare)| (*role, totals(*required, *spare))).collect(),
        variants: variants.iter().map(|variant| capacity(variant, at)).collect(),
    };
    Request {
        id: GroupId::new("default", model),
        priority,
        candidates: variants.iter().map(candidate).collect(),
        findings: findings.iter().enumerate().map(found).collect(),
    }
}

fn totals(required: f64, spare: f64) -> Totals {
    Totals { required, spare, ..Totals::default() }
}

fn capacity(variant: &V, finding: usize) -> VariantCapacity {
    VariantCapacity {
        name: variant.name.into(),
        role: variant.role,
        accelerator: variant.accelerator.map(Into::into),
        cost: Cost::new(variant.cost).unwrap(),
        replicas: Replicas::new(variant.current),
        pending: Replicas::ZERO,
        per_replica: variant.carries.get(finding).copied().unwrap_or(0.0),
        demand: 0.0,
        reason: SmolStr::default(),
    }
}

fn candidate(variant: &V) -> Candidate {
    Candidate {
        name: variant.name.into(),
        role: variant.role,
        cost: Cost::new(variant.cost).unwrap(),
        accelerator: variant.accelerator.map(Into::into),
        gpus: Some(variant.gpus),
        watts: variant.watts.map(|watts| Watts::new(watts).unwrap()),
        current: Replicas::new(variant.current),
        bounds: Bounds { min: Replicas::new(variant.min), max: variant.max.map(Replicas::new) },
    }
}

/// A plan for each request alone.
pub(crate) fn planned_alone(requests: &[Request], compat: Compat) -> Vec<Plan> {
    requests.iter().map(|request| arithmetic::optimize_alone(request, compat)).collect()
}

/// The targets of a request alone, in the order of its variants.
pub(crate) fn alone(request: &Request, compat: Compat) -> Vec<u32> {
    numbers(&[arithmetic::optimize_alone(request, compat)])
}

/// The targets of plans, in the order of requests and of their variants.
pub(crate) fn numbers(plans: &[Plan]) -> Vec<u32> {
    plans.iter().flat_map(|plan| &plan.targets).map(|target| target.target.get()).collect()
}

/// This number of GPUs of the usual type.
pub(crate) fn gpus(count: u32) -> Limit {
    Limit::new("inventory", Budget::Inventory(BTreeMap::from([("A100".into(), count)])))
}

/// The first result of `read` over the steps.
pub(crate) fn first_step<T>(plan: &Plan, read: impl FnMut(&OptimizerStep) -> Option<T>) -> Option<T> {
    plan.steps.iter().find_map(read)
}

/// The targets of plans, by variant.
pub(crate) fn targets(plans: &[Plan]) -> BTreeMap<SmolStr, u32> {
    plans
        .iter()
        .flat_map(|plan| &plan.targets)
        .map(|target| (target.name.clone(), target.target.get()))
        .collect()
}
