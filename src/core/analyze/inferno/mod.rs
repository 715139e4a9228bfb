//! The legacy solver, "inferno": which accelerator and how many replicas each server gets, by cost and by the targets of service classes.
//! Upstream removed it; here it is an analyzer of its own. Derived from WVA until v0.5, `pkg/core` and `pkg/solver`.
//! `docs/decisions/inferno.md` explains it on one page.

pub(crate) mod allocation;
pub(crate) mod data;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use smol_str::SmolStr;

use self::allocation::{Allocation, AllocationChoice, AllocationRequest, allocate};
use self::data::{Accelerator, PerformanceProfile, Server, ServiceLevel};
use crate::model::ServiceClass;
use crate::units::Replicas;

#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct System {
    /// Accelerators; of equal values the first wins.
    pub accelerators: Vec<Accelerator>,
    /// By model and accelerator.
    pub performance: Vec<PerformanceProfile>,
    pub classes: Vec<ServiceLevel>,
    /// Servers, by namespace and name.
    pub servers: Vec<Server>,
}

/// What the solver proposes for a variant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ServerProposal {
    Replicas(Replicas),
    /// Its present number, because no number of replicas would be the solver's answer.
    Hold,
}

impl System {
    /// The allocations from which a server can choose, in the order of the accelerators.
    pub(crate) fn choices(&self, server: &Server) -> Vec<AllocationChoice> {
        let targets = self.class(server).and_then(|class| class.targets(&server.model));
        let current = server.current.as_ref().map(|current| current.accelerator.as_str());
        let kept = current.filter(|name| server.keep_accelerator && !name.is_empty());
        let usable = |accelerator: &&Accelerator| kept.is_none_or(|name| accelerator.name == name);
        let choice = |accelerator: &Accelerator| {
            let is_for = |profile: &&PerformanceProfile| {
                profile.model == server.model && profile.accelerator == accelerator.name
            };
            let profile = self.performance.iter().find(is_for)?;
            let allocation = allocate(server, accelerator, profile, targets?)?;
            let units = u64::from(profile.units()) * u64::from(accelerator.multiplicity);
            let kind = (!allocation.accelerator.is_empty()).then(|| accelerator.kind.clone());
            Some(AllocationChoice { allocation, kind, units })
        };
        self.accelerators.iter().filter(usable).filter_map(choice).collect()
    }

    fn class(&self, server: &Server) -> Option<&ServiceLevel> {
        self.classes.iter().find(|class| class.is_named(&server.class))
    }

    pub(crate) fn requests(&self) -> Vec<AllocationRequest> {
        let request = |server: &Server| AllocationRequest {
            server: server.name.clone(),
            priority: self.class(server).map_or(ServiceClass::LOWEST, ServiceLevel::priority),
            choices: self.choices(server),
        };
        self.servers.iter().map(request).collect()
    }

    /// The allocation of each server that has a choice, by name: the one of the smallest value, the first of equal ones. Limits are applied
    /// later, as for all analyzers.
    pub(crate) fn solve(&self) -> BTreeMap<SmolStr, Allocation> {
        self.requests().into_iter().filter_map(AllocationRequest::into_cheapest).collect()
    }

    /// The proposal for each variant, by name, from the allocations of [`System::solve`]. A variant cannot leave its accelerator, and it is not
    /// stopped only because there is no allocation for it.
    pub(crate) fn proposals(
        &self,
        allocations: &BTreeMap<SmolStr, Allocation>,
    ) -> BTreeMap<SmolStr, ServerProposal> {
        let proposal = |server: &Server| {
            let current = server.current.as_ref().map_or("", |current| &current.accelerator);
            match allocations.get(&server.name) {
                Some(allocation)
                    if allocation.accelerator.is_empty()
                        || current.is_empty()
                        || allocation.accelerator == current =>
                {
                    ServerProposal::Replicas(allocation.replicas)
                }
                Some(_) | None => ServerProposal::Hold,
            }
        };
        self.servers.iter().map(|server| (server.name.clone(), proposal(server))).collect()
    }
}
