//! The user's policy: analyzers and their thresholds by model, limits, intervals and switches.

mod classes;
mod limits;
mod models;
mod rate;
mod saturation;
mod stability;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use super::{Compat, GroupId};
use crate::units::{OutOfRange, Seconds};

pub use classes::{ClassTarget, LatencyTargets, ServiceClass, UnitCost};
pub(crate) use limits::check_gpu_quota;
pub use limits::{LimitPolicy, Power, Quota};
pub use models::{ModelPolicy, QueueingPolicy, ScaleToZero, Scoring, SecondaryAnalyzer, Steps, Utilisation};
pub use rate::RatePolicy;
pub use saturation::SaturationPolicy;
pub use stability::{Stability, StepLimit};

/// All settings of decisions, with overlays and defaults applied.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Policy {
    /// Time between two runs of an analyzer. The rate policy runs at every evaluation.
    pub cycle: Seconds,
    /// A number whose evidence is older than this is not published; the answer is an error.
    pub max_stale: Seconds,
    /// Whether upstream's defects are kept.
    pub compat: Compat,
    /// Limits that all models share.
    pub limits: LimitPolicy,
    /// The policy of every namespace without its own.
    pub global: Scope,
    /// The policies of single namespaces. Each replaces the global scope, and is not laid over it, as in WVA.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub namespaces: BTreeMap<SmolStr, Scope>,
    /// Classes of service, for the legacy solver.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub service_classes: Vec<ServiceClass>,
    /// Accelerators by name, for the legacy solver.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub accelerators: BTreeMap<SmolStr, UnitCost>,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            cycle: Seconds::whole(15),
            max_stale: Seconds::whole(300),
            compat: Compat::default(),
            limits: LimitPolicy::default(),
            global: Scope::default(),
            namespaces: BTreeMap::new(),
            service_classes: Vec::new(),
            accelerators: BTreeMap::new(),
        }
    }
}

/// The policies of the models of one namespace, or of all.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Scope {
    /// The policy of every model without its own.
    pub default: ModelPolicy,
    /// By model and namespace.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub models: BTreeMap<GroupId, ModelPolicy>,
    /// Scaling to zero by model, in any namespace, for a model whose policy does not set it.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub scale_to_zero: BTreeMap<SmolStr, ScaleToZero>,
}

impl Policy {
    /// The policy of the model of `group`.
    #[must_use]
    pub fn of(&self, group: &GroupId) -> &ModelPolicy {
        let scope = self.scope(group);
        scope.models.get(group).unwrap_or(&scope.default)
    }

    /// Whether and when the model of `group` is scaled to zero: by its own policy, or else by model name, or else by the default.
    #[must_use]
    pub fn scale_to_zero(&self, group: &GroupId) -> ScaleToZero {
        let scope = self.scope(group);
        let own = scope.models.get(group).and_then(|model| model.scale_to_zero);
        let by_model = || scope.scale_to_zero.get(&*group.model).copied();
        own.or_else(by_model).or(scope.default.scale_to_zero).unwrap_or_default()
    }

    /// # Errors
    /// Names the first field that is out of range.
    pub fn validated(self) -> Result<Self, OutOfRange> {
        for scope in std::iter::once(&self.global).chain(self.namespaces.values()) {
            std::iter::once(&scope.default).chain(scope.models.values()).try_for_each(ModelPolicy::check)?;
        }
        self.limits.check()?;
        Ok(self)
    }

    fn scope(&self, group: &GroupId) -> &Scope {
        self.namespaces.get(&*group.namespace).unwrap_or(&self.global)
    }
}
