//! What upstream's optimizers see of limits: free GPUs by accelerator, of the cluster and of namespaces with a quota.

use std::collections::{BTreeMap, BTreeSet};

use super::{Budget, Footprint, Ledger, Limit};
use crate::units::signed;
use smol_str::SmolStr;

/// Free GPUs of an accelerator without a bound.
pub const UNLIMITED: i64 = i64::MAX;
/// Free GPUs of a namespace that has no bound of its own.
const NO_BOUND: i64 = -1;

/// Free GPUs. Source: algorithm reference §7.5.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Free {
    /// By accelerator; [`UNLIMITED`] has no bound, an accelerator that is not listed has none.
    pub cluster: BTreeMap<SmolStr, i64>,
    /// By namespace and accelerator; a namespace that is listed may use the listed accelerators only. -1 has no bound of
    /// its own.
    pub namespaces: BTreeMap<SmolStr, BTreeMap<SmolStr, i64>>,
}

impl Free {
    /// What `limits` leave beside what runs. With `upstream` a quota switches the inventory off, as it does there.
    #[must_use]
    pub fn of(limits: &[Limit], running: &[(Footprint<'_>, i64)], upstream: bool) -> Self {
        let ledger = Ledger::new(limits, running.iter().copied());
        let quotas = limits.iter().any(|limit| matches!(limit.budget, Budget::Quota(_)));
        let namespaces: BTreeSet<&str> = running.iter().map(|(one, _)| one.namespace).collect();
        let mut free = Self::default();
        for (at, limit) in limits.iter().enumerate() {
            // A GPU that is used in part is used.
            let left =
                |budget: i64, key: &str| budget.saturating_sub(signed(ledger.used(at, key).ceil())).max(0);
            match &limit.budget {
                Budget::Inventory(there) if !(upstream && quotas) => {
                    for (name, count) in there {
                        tighten(&mut free.cluster, name, left(i64::from(*count), name));
                    }
                }
                Budget::Quota(quota) if quota.by_namespace() => {
                    for namespace in namespaces.iter().filter(|name| !quota.excludes(name)) {
                        let own = free.namespaces.entry((*namespace).into()).or_default();
                        for (name, budget) in quota.list(namespace).into_iter().flatten() {
                            let key = quota.key(namespace, name);
                            tighten(own, name, if *budget < 0 { NO_BOUND } else { left(*budget, &key) });
                            // A type that only namespaces limit has no bound in the cluster.
                            free.cluster.entry(name.clone()).or_insert(UNLIMITED);
                        }
                    }
                }
                Budget::Quota(quota) => {
                    for (name, budget) in quota.list("").into_iter().flatten() {
                        tighten(
                            &mut free.cluster,
                            name,
                            if *budget < 0 { UNLIMITED } else { left(*budget, name) },
                        );
                    }
                }
                _ => {}
            }
        }
        free
    }
}

/// The less of the two; a negative number is no bound.
fn tighten(free: &mut BTreeMap<SmolStr, i64>, name: &str, left: i64) {
    let entry = free.entry(name.into()).or_insert(left);
    if *entry < 0 || (left >= 0 && left < *entry) {
        *entry = left;
    }
}
