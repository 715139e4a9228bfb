//! Quotas: how many GPUs of a type the models of the cluster, or of a namespace, may use together.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::model::{self, check_gpu_quota};
use crate::units::OutOfRange;
use smol_str::{SmolStr, format_smolstr};

/// GPUs by accelerator; -1 is unlimited, and an accelerator that is not listed has none. As WVA v0.9,
/// `internal/engines/pipeline/type_inventory.go` and `namespace_inventory.go`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Quota(Scope);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum Scope {
    Cluster(ByType),
    Namespace { listed: BTreeMap<SmolStr, ByType>, excluded: BTreeSet<SmolStr> },
}

type ByType = BTreeMap<SmolStr, i64>;

/// The key of the quota that each unlisted namespace gets for itself.
const DEFAULT: &str = "default";

impl Quota {
    /// One quota for all namespaces together.
    ///
    /// # Errors
    /// When a value is below -1 or above 1,048,576.
    pub(crate) fn cluster(quotas: BTreeMap<SmolStr, i64>) -> Result<Self, OutOfRange> {
        check_gpu_quota(&quotas)?;
        Ok(Self(Scope::Cluster(quotas)))
    }

    /// A quota for each namespace. A namespace may use only the listed accelerators; the key `default` is for each namespace that is not listed;
    /// `excluded` namespaces are not limited.
    ///
    /// # Errors
    /// When a value is below -1 or above 1,048,576.
    pub(crate) fn namespaces(
        listed: BTreeMap<SmolStr, BTreeMap<SmolStr, i64>>,
        excluded: BTreeSet<SmolStr>,
    ) -> Result<Self, OutOfRange> {
        listed.values().try_for_each(check_gpu_quota)?;
        Ok(Self(Scope::Namespace { listed, excluded }))
    }

    /// Whether it is kept by namespace.
    #[must_use]
    pub(crate) const fn by_namespace(&self) -> bool {
        matches!(self.0, Scope::Namespace { .. })
    }

    /// Whether `namespace` is not limited by it.
    #[must_use]
    pub(crate) fn excludes(&self, namespace: &str) -> bool {
        matches!(&self.0, Scope::Namespace { excluded, .. } if excluded.contains(namespace))
    }

    /// What `namespace` may use, by accelerator; nothing if neither it nor `default` is listed.
    #[must_use]
    pub(crate) fn list(&self, namespace: &str) -> Option<&BTreeMap<SmolStr, i64>> {
        match &self.0 {
            Scope::Cluster(quotas) => Some(quotas),
            Scope::Namespace { listed, .. } => listed.get(namespace).or_else(|| listed.get(DEFAULT)),
        }
    }

    /// GPUs of `accelerator` that `namespace` may use; `None` is unlimited.
    #[must_use]
    pub(crate) fn budget(&self, namespace: &str, accelerator: &str) -> Option<i64> {
        let listed = self.list(namespace).and_then(|types| types.get(accelerator).copied()).unwrap_or(0);
        (!self.excludes(namespace) && listed != model::Quota::UNLIMITED).then_some(listed)
    }

    /// The key its use is counted under.
    #[must_use]
    pub(crate) fn key(&self, namespace: &str, accelerator: &str) -> SmolStr {
        if self.by_namespace() { format_smolstr!("{namespace}/{accelerator}") } else { accelerator.into() }
    }

    /// How many of `proposed` more GPUs are granted beside `used` ones; none of an unknown accelerator, unless the namespace is excluded.
    #[cfg(test)]
    #[must_use]
    pub(crate) fn grant(&self, namespace: &str, accelerator: Option<&str>, used: i64, proposed: i64) -> i64 {
        let proposed = proposed.max(0);
        let Some(name) = accelerator else { return if self.excludes(namespace) { proposed } else { 0 } };
        self.budget(namespace, name)
            .map_or(proposed, |budget| proposed.min(budget.saturating_sub(used)).max(0))
    }
}
