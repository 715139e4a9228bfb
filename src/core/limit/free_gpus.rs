//! Free GPUs by accelerator, of the cluster and of namespaces with a quota.

use std::collections::{BTreeMap, BTreeSet};

use smol_str::SmolStr;

use super::budget::{Budget, Footprint, Limit};
use super::ledger::Ledger;
use crate::units::truncated_i64;

/// Free GPUs of an accelerator without a limit.
pub(crate) const UNLIMITED: i64 = i64::MAX;
/// Free GPUs of a namespace without a limit of its own.
const NO_LIMIT: i64 = -1;

/// Free GPUs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct FreeGpus {
    /// By accelerator; [`UNLIMITED`] means no limit, and an accelerator that is not listed has none.
    pub cluster: BTreeMap<SmolStr, i64>,
    /// By namespace and accelerator; a listed namespace may use the listed accelerators only. -1 means no limit of its own.
    pub namespaces: BTreeMap<SmolStr, BTreeMap<SmolStr, i64>>,
}

impl FreeGpus {
    /// What `limits` leave beside `usage`, replicas by their footprint.
    #[must_use]
    pub(crate) fn new(limits: &[Limit], usage: &[(Footprint<'_>, i64)]) -> Self {
        let ledger = Ledger::new(limits, usage.iter().copied());
        let namespaces: BTreeSet<&str> = usage.iter().map(|(footprint, _)| footprint.namespace).collect();
        let mut free = Self::default();
        for (index, limit) in limits.iter().enumerate() {
            // The use is rounded up, because a GPU that is used in part is not free.
            let left = |budget: i64, key: &str| {
                budget.saturating_sub(truncated_i64(ledger.used(index, key).ceil())).max(0)
            };
            match &limit.budget {
                Budget::Inventory(inventory) => {
                    for (name, count) in inventory {
                        tighten(&mut free.cluster, name, left(i64::from(*count), name));
                    }
                }
                Budget::Quota(quota) if quota.by_namespace() => {
                    for namespace in namespaces.iter().filter(|name| !quota.excludes(name)) {
                        let own = free.namespaces.entry((*namespace).into()).or_default();
                        for (name, budget) in quota.list(namespace).into_iter().flatten() {
                            let key = quota.key(namespace, name);
                            tighten(own, name, if *budget < 0 { NO_LIMIT } else { left(*budget, &key) });
                            // A type that only namespaces limit has no limit in the cluster.
                            free.cluster.entry(name.clone()).or_insert(UNLIMITED);
                        }
                    }
                }
                Budget::Quota(quota) => {
                    for (name, budget) in quota.list("").into_iter().flatten() {
                        let left = if *budget < 0 { UNLIMITED } else { left(*budget, name) };
                        tighten(&mut free.cluster, name, left);
                    }
                }
                Budget::Power { .. } | Budget::Spend(_) | Budget::OfVariants(_) => {}
            }
        }
        free
    }
}

/// Keeps the smaller of the two; a negative number is no limit.
fn tighten(free: &mut BTreeMap<SmolStr, i64>, name: &str, left: i64) {
    let entry = free.entry(name.into()).or_insert(left);
    if *entry < 0 || (left >= 0 && left < *entry) {
        *entry = left;
    }
}
