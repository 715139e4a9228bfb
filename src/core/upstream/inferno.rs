//! The legacy solver with a limited supply, and what it makes of variants. Source: WVA until v0.5, `pkg/solver` and `pkg/core/system.go`.

use std::collections::BTreeMap;

use smol_str::SmolStr;

use super::inferno_greedy::{self, BestEffort};
use crate::analyze::inferno::allocation::{Allocation, AllocationRequest};
use crate::analyze::inferno::{ServerProposal, System};
use crate::units::Replicas;

/// How many accelerators there are, and who gets those that are left.
#[derive(Debug, Clone, PartialEq)]
pub struct LimitedSupply {
    /// By type.
    pub available: BTreeMap<SmolStr, u64>,
    /// For those that got nothing.
    pub policy: BestEffort,
    /// Best effort follows after all priorities.
    pub delayed: bool,
}

/// The allocation of each server that gets one, by name. Defect: a server that needs nothing is forgotten.
pub fn solve(system: &System, supply: &LimitedSupply) -> BTreeMap<SmolStr, Allocation> {
    let LimitedSupply { available, policy, delayed } = supply;
    inferno_greedy::solve(&system.requests(), available, *policy, *delayed).allocations
}

/// The same without the defect: nothing is always to be had.
pub fn solve_with_idle(system: &System, supply: &LimitedSupply) -> BTreeMap<SmolStr, Allocation> {
    let mut allocations = solve(system, supply);
    let cheapest = system.requests().into_iter().filter_map(AllocationRequest::into_cheapest);
    allocations.extend(cheapest.filter(|(_, allocation)| allocation.accelerator.is_empty()));
    allocations
}

/// What each variant is to have, by name. Defect: a server without an allocation is stopped.
pub fn proposals(
    system: &System,
    allocations: &BTreeMap<SmolStr, Allocation>,
) -> BTreeMap<SmolStr, ServerProposal> {
    let replicas = |name: &SmolStr| allocations.get(name).map_or(Replicas::ZERO, |found| found.replicas);
    let servers = system.servers.iter().map(|server| &server.name);
    servers.map(|name| (name.clone(), ServerProposal::Replicas(replicas(name)))).collect()
}
