//! The input of the solver: accelerators, how fast they serve each model, service classes and servers. Plain values; files and YAML keys are
//! read elsewhere. Derived from WVA until v0.5, `pkg/config/types.go`.

use smol_str::SmolStr;

use crate::analyze::queueing::model::Service;
use crate::analyze::queueing::sizing::Targets;
use crate::model::ServiceClass;
use crate::units::{OutOfRange, Replicas};

/// A unit of accelerators that is allocated as a whole.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Accelerator {
    pub name: SmolStr,
    /// The type that counts if the supply is limited.
    pub kind: SmolStr,
    /// Cards in a unit, at least 1.
    pub multiplicity: u32,
    /// What a unit costs, cents/hour.
    pub cost: f32,
}

/// How one accelerator serves one model.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PerformanceProfile {
    pub model: SmolStr,
    pub accelerator: SmolStr,
    /// Accelerators a replica takes; 0 is 1.
    pub units: u32,
    /// The largest batch, of requests with `at_tokens` generated tokens.
    pub max_batch: u32,
    pub at_tokens: u32,
    /// α, β, γ.
    pub service: Service,
}

impl PerformanceProfile {
    /// Accelerators a replica takes.
    pub(crate) fn units(&self) -> u32 {
        self.units.max(1)
    }
}

/// The targets of a class of users.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ServiceLevel {
    name: SmolStr,
    priority: u32,
    targets: Vec<(SmolStr, Targets)>,
}

impl ServiceLevel {
    /// A class by name and priority, 1 the highest and 100 the lowest, with the targets of each model. Fails for a target that is
    /// negative or not finite.
    pub(crate) fn new(
        name: &str,
        priority: i64,
        targets: Vec<(SmolStr, Targets)>,
    ) -> Result<Self, OutOfRange> {
        for (_, target) in &targets {
            target.validated()?;
        }
        let priority =
            u32::try_from(priority).ok().filter(|priority| (1..=ServiceClass::LOWEST).contains(priority));
        Ok(Self {
            name: name_or_default(name).into(),
            priority: priority.unwrap_or(ServiceClass::LOWEST),
            targets,
        })
    }

    pub(crate) const fn name(&self) -> &SmolStr {
        &self.name
    }

    /// 1, the highest, to 100.
    pub(crate) const fn priority(&self) -> u32 {
        self.priority
    }

    pub(super) fn is_named(&self, name: &str) -> bool {
        self.name == name_or_default(name)
    }

    pub(super) fn targets(&self, model: &str) -> Option<Targets> {
        self.targets.iter().find(|(name, _)| name == model).map(|(_, targets)| *targets)
    }
}

fn name_or_default(name: &str) -> &str {
    if name.is_empty() { ServiceClass::UNNAMED } else { name }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ServerLoad {
    /// Requests a minute.
    pub arrival: f32,
    pub input: u32,
    pub output: u32,
}

/// A model served for a class of users: in this product a variant.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Server {
    pub name: SmolStr,
    /// Its class; empty is the unnamed one.
    pub class: SmolStr,
    pub model: SmolStr,
    pub load: ServerLoad,
    pub min: Replicas,
    /// Its own limit of the batch; 0 is none.
    pub max_batch: u32,
    /// It stays on the accelerator it is on. A variant does: its manifest names one.
    pub keep_accelerator: bool,
    pub current: Option<Current>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Current {
    /// Its accelerator; empty is none.
    pub accelerator: SmolStr,
    pub replicas: Replicas,
    /// What they cost, cents/hour.
    pub cost: f32,
}
