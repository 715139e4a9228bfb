//! What the user wants: analyzers and their thresholds by model, limits, clocks and switches.

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

pub use classes::{ClassTarget, ServiceClass, UnitCost};
pub(crate) use limits::check_gpu_quota;
pub use limits::{LimitPolicy, Power, Quota};
pub use models::{
    LatencyTargets, ModelPolicy, QueueingPolicy, ScaleToZero, Scoring, SecondaryAnalyzer, Steps, Utilisation,
};
pub use rate::RatePolicy;
pub use saturation::SaturationPolicy;
pub use stability::{Stability, StepLimit};

/// Everything a decision may be tuned by. Whole: overlays and defaults have been applied where it was made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Policy {
    /// An analyzer takes at most one look in this time.
    pub cycle: Seconds,
    /// Evidence older than this is no evidence: the answer is an error.
    pub max_stale: Seconds,
    /// Whose arithmetic where upstream has defects.
    pub compat: Compat,
    /// What is shared by all models.
    pub limits: LimitPolicy,
    /// For every namespace without its own scope.
    pub global: Scope,
    /// What a namespace says for itself: in place of the global scope, not on top of it, as in WVA.
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

/// What is said of models at one place.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Scope {
    /// For every model without its own entry.
    pub default: ModelPolicy,
    /// By model and namespace.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub models: BTreeMap<GroupId, ModelPolicy>,
    /// Scaling to zero by model, in whatever namespace: for a model whose policy leaves it open.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub scale_to_zero: BTreeMap<SmolStr, ScaleToZero>,
}

impl Policy {
    /// What is said of the models of `group`.
    #[must_use]
    pub fn of(&self, group: &GroupId) -> &ModelPolicy {
        let scope = self.scope(group);
        scope.models.get(group).unwrap_or(&scope.default)
    }

    /// Whether and when the models of `group` are scaled to zero: by the model's own policy, else by model, else the
    /// default.
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
