//! The legacy solver's proposals for variants. Source: WVA until v0.5, `pkg/core/system.go`.

use std::collections::BTreeMap;

use smol_str::SmolStr;

use crate::analyze::inferno::allocation::Allocation;
use crate::analyze::inferno::{ServerProposal, System};
use crate::units::Replicas;

/// The proposal for each variant, by name. Defect: a server without an allocation is stopped.
pub(crate) fn proposals(
    system: &System,
    allocations: &BTreeMap<SmolStr, Allocation>,
) -> BTreeMap<SmolStr, ServerProposal> {
    let replicas = |name: &SmolStr| allocations.get(name).map_or(Replicas::ZERO, |found| found.replicas);
    let servers = system.servers.iter().map(|server| &server.name);
    servers.map(|name| (name.clone(), ServerProposal::Replicas(replicas(name)))).collect()
}
