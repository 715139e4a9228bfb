//! The legacy solver, "inferno": which accelerator and how many replicas each server takes, by cost and by the promises
//! of service classes. Upstream removed it; here it is an analyzer of its own. `docs/decisions/inferno.md`.

pub mod allocation;
pub mod data;
pub mod greedy;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use self::allocation::{Allocation, allocate};
use self::data::{Accelerator, Performance, Server, ServiceClass};
use self::greedy::{BestEffort, Choice, Request};
use crate::model::Compat;
use crate::units::Replicas;
use smol_str::SmolStr;

/// Everything the solver decides about.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct System {
    /// Accelerators; on equal values the first wins.
    pub accelerators: Vec<Accelerator>,
    /// By model and accelerator.
    pub performance: Vec<Performance>,
    /// Service classes.
    pub classes: Vec<ServiceClass>,
    /// Servers, by namespace and name.
    pub servers: Vec<Server>,
}

/// How many accelerators there are.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Supply {
    /// As many as anybody wants.
    Unlimited,
    /// So many of each type, given out by upstream's greedy solver. For comparison with upstream: a decision asks for what is
    /// wanted, and the limits that all analyzers share give it out.
    Limited {
        /// By type.
        available: BTreeMap<SmolStr, u64>,
        /// For those that went without.
        policy: BestEffort,
        /// Best effort waits until every priority has had its turn.
        delayed: bool,
    },
}

/// What our pipeline is to do with a variant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// This many replicas.
    Replicas(Replicas),
    /// What it has: the solver has no answer that a number of replicas could bring about.
    Hold,
}

impl System {
    /// The allocations a server can choose from, in the order of the accelerators.
    #[must_use]
    pub fn choices(&self, server: &Server, compat: Compat) -> Vec<Choice> {
        let targets = self.class(server).and_then(|class| class.targets(&server.model));
        let current = server.current.as_ref().map(|current| current.accelerator.as_str());
        // Upstream keeps an accelerator only if there is one to keep.
        let kept = current.filter(|name| server.keep_accelerator && !name.is_empty());
        let candidates = self.accelerators.iter().filter(|one| kept.is_none_or(|name| one.name == name));
        let choice = |accelerator: &Accelerator| {
            let on = |one: &&Performance| one.model == server.model && one.accelerator == accelerator.name;
            let performance = self.performance.iter().find(on)?;
            let allocation = allocate(server, accelerator, performance, targets?, compat)?;
            let units = u64::from(performance.units()) * u64::from(accelerator.multiplicity);
            let kind = (!allocation.accelerator.is_empty()).then(|| accelerator.kind.clone());
            Some(Choice { allocation, kind, units })
        };
        candidates.filter_map(choice).collect()
    }

    fn class(&self, server: &Server) -> Option<&ServiceClass> {
        self.classes.iter().find(|class| class.is(&server.class))
    }

    /// The allocation of each server that gets one, by name.
    #[must_use]
    pub fn solve(&self, supply: &Supply, compat: Compat) -> BTreeMap<SmolStr, Allocation> {
        let request = |server: &Server| Request {
            server: server.name.clone(),
            priority: self.class(server).map_or(ServiceClass::LOWEST, ServiceClass::priority),
            choices: self.choices(server, compat),
        };
        let requests: Vec<Request> = self.servers.iter().map(request).collect();
        match supply {
            Supply::Unlimited => requests.into_iter().filter_map(cheapest).collect(),
            Supply::Limited { available, policy, delayed } => {
                let mut granted = greedy::solve(&requests, available, *policy, *delayed).allocations;
                if !compat.is_upstream() {
                    // Nothing is always to be had; upstream forgets who wants it.
                    let at_rest = requests.into_iter().filter_map(cheapest);
                    granted.extend(at_rest.filter(|(_, wants)| wants.accelerator.is_empty()));
                }
                granted
            }
        }
    }

    /// What each variant is to have, by name, from the allocations of [`System::solve`]. A variant cannot leave its
    /// accelerator, and is not stopped because there was no answer for it; upstream stops what got nothing.
    #[must_use]
    pub fn wanted(
        &self,
        allocations: &BTreeMap<SmolStr, Allocation>,
        compat: Compat,
    ) -> BTreeMap<SmolStr, Wanted> {
        let wanted = |server: &Server| {
            let own = server.current.as_ref().map_or("", |current| &current.accelerator);
            match allocations.get(&server.name) {
                Some(one) if compat.is_upstream() || one.accelerator.is_empty() => {
                    Wanted::Replicas(one.replicas)
                }
                Some(one) if own.is_empty() || one.accelerator == own => Wanted::Replicas(one.replicas),
                None if compat.is_upstream() => Wanted::Replicas(Replicas::ZERO),
                _ => Wanted::Hold,
            }
        };
        self.servers.iter().map(|server| (server.name.clone(), wanted(server))).collect()
    }
}

/// The choice of the smallest value, the first of equal ones.
fn cheapest(request: Request) -> Option<(SmolStr, Allocation)> {
    let smaller = |a: Choice, b: Choice| if b.allocation.value < a.allocation.value { b } else { a };
    let best = request.choices.into_iter().reduce(smaller)?;
    Some((request.server, best.allocation))
}
