//! Requests for optimizers, written short.

use std::collections::BTreeMap;

use smol_str::SmolStr;
use wva_core::analyze::finding::{Finding, Totals, VariantCapacity};
use wva_core::arithmetic;
use wva_core::model::{Analyzer, Bounds, Compat, GroupId, Role};
use wva_core::optimize::{Candidate, Plan, Request};
use wva_core::units::{Cost, Replicas, Watts};

/// A variant and what a replica can carry, by finding.
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
    let (role, accelerator) = (Role::Both, Some("A100"));
    V {
        name,
        role,
        cost,
        carries: vec![carries],
        current,
        min: 0,
        max: None,
        gpus: 1,
        accelerator,
        watts: None,
    }
}

impl V {
    pub(crate) fn role(self, role: Role) -> Self {
        Self { role, ..self }
    }
}

/// What a finding says: of the model, or of its roles.
#[derive(Debug, Clone)]
pub(crate) struct Says {
    pub(crate) total: (f64, f64),
    pub(crate) roles: Vec<(Role, f64, f64)>,
    pub(crate) demand: f64,
    pub(crate) score: f64,
    pub(crate) live: bool,
}

pub(crate) fn says(required: f64, spare: f64) -> Says {
    Says { total: (required, spare), roles: Vec::new(), demand: 0.0, score: 1.0, live: true }
}

pub(crate) fn by_role(roles: &[(Role, f64, f64)]) -> Says {
    Says {
        roles: roles.to_vec(),
        ..says(roles.iter().map(|one| one.1).sum(), roles.iter().map(|one| one.2).sum())
    }
}

pub(crate) fn request(model: &str, priority: f64, variants: &[V], findings: &[Says]) -> Request {
    let finding = |(at, said): (usize, &Says)| Finding {
        analyzer: if at == 0 { Analyzer::Saturation } else { Analyzer::Throughput },
        score: said.score,
        live: said.live,
        total: Totals { demand: said.demand, ..totals(said.total.0, said.total.1) },
        roles: said.roles.iter().map(|(role, required, spare)| (*role, totals(*required, *spare))).collect(),
        variants: variants.iter().map(|one| capacity(one, at)).collect(),
    };
    Request {
        id: GroupId::new("default", model),
        priority,
        candidates: variants.iter().map(candidate).collect(),
        findings: findings.iter().enumerate().map(finding).collect(),
    }
}

fn totals(required: f64, spare: f64) -> Totals {
    Totals { required, spare, ..Totals::default() }
}

fn capacity(one: &V, finding: usize) -> VariantCapacity {
    VariantCapacity {
        name: one.name.into(),
        role: one.role,
        accelerator: one.accelerator.map(Into::into),
        cost: Cost::new(one.cost).unwrap(),
        replicas: Replicas::new(one.current),
        pending: Replicas::ZERO,
        per_replica: one.carries.get(finding).copied().unwrap_or(0.0),
        demand: 0.0,
        reason: SmolStr::default(),
    }
}

fn candidate(one: &V) -> Candidate {
    Candidate {
        name: one.name.into(),
        role: one.role,
        cost: Cost::new(one.cost).unwrap(),
        accelerator: one.accelerator.map(Into::into),
        gpus: one.gpus,
        watts: one.watts.map(|watts| Watts::new(watts).unwrap()),
        current: Replicas::new(one.current),
        bounds: Bounds { min: Replicas::new(one.min), max: one.max.map(Replicas::new) },
    }
}

/// A plan for each request by itself.
pub(crate) fn planned_alone(requests: &[Request], compat: Compat) -> Vec<Plan> {
    requests.iter().map(|request| arithmetic::optimize_alone(request, compat)).collect()
}

/// The targets of plans, by variant.
pub(crate) fn targets(plans: &[Plan]) -> BTreeMap<SmolStr, u32> {
    plans.iter().flat_map(|plan| &plan.targets).map(|one| (one.name.clone(), one.target.get())).collect()
}
