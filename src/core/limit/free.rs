//! What upstream's optimizers see of limits: free GPUs by accelerator, of the cluster and of namespaces with a quota.

use std::collections::{BTreeMap, BTreeSet};

use super::{Budget, Footprint, Limit, Quota};

/// Free GPUs of an accelerator without a bound.
pub const UNLIMITED: i64 = i64::MAX;

/// Free GPUs. Source: algorithm reference §7.5.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Free {
    /// By accelerator; [`UNLIMITED`] has no bound, an accelerator that is not listed has none.
    pub cluster: BTreeMap<String, i64>,
    /// By namespace and accelerator; a namespace that is listed may use the listed accelerators only. -1 has no bound of
    /// its own.
    pub namespaces: BTreeMap<String, BTreeMap<String, i64>>,
}

impl Free {
    /// What `limits` leave beside what runs. With `upstream` a quota switches the inventory off, as it does there.
    #[must_use]
    pub fn of(limits: &[Limit], running: &[(Footprint<'_>, i64)], upstream: bool) -> Self {
        let quotas = limits.iter().any(|limit| matches!(limit.budget, Budget::Quota(_)));
        let mut free = Self::default();
        for limit in limits {
            match &limit.budget {
                Budget::Inventory(there) if !(upstream && quotas) => {
                    for (name, count) in there {
                        let used = limit.used(name, running);
                        tighten(&mut free.cluster, name, i64::from(*count).saturating_sub(used).max(0));
                    }
                }
                Budget::Quota(quota) if quota.by_namespace() => free.add_namespaces(limit, quota, running),
                Budget::Quota(quota) => {
                    for (name, budget) in quota.list("").into_iter().flatten() {
                        let left = budget.saturating_sub(limit.used(name, running)).max(0);
                        tighten(&mut free.cluster, name, if *budget < 0 { UNLIMITED } else { left });
                    }
                }
                _ => {}
            }
        }
        free
    }

    fn add_namespaces(&mut self, limit: &Limit, quota: &Quota, running: &[(Footprint<'_>, i64)]) {
        let names: BTreeSet<&str> = running.iter().map(|(one, _)| one.namespace).collect();
        for namespace in names.into_iter().filter(|name| !quota.excludes(name)) {
            let listed = self.namespaces.entry(namespace.into()).or_default();
            for (name, budget) in quota.list(namespace).into_iter().flatten() {
                let left = budget.saturating_sub(limit.used(&quota.key(namespace, name), running)).max(0);
                // -1 is larger than any count when it is read as one without a sign.
                let tighter = listed.get(name).map_or(-1, |other| *other);
                let left = if *budget < 0 { -1 } else { left };
                let least = if tighter < 0 || (left >= 0 && left < tighter) { left } else { tighter };
                listed.insert(name.clone(), least);
                // A type that only namespaces limit has no bound in the cluster.
                self.cluster.entry(name.clone()).or_insert(UNLIMITED);
            }
        }
    }
}

impl Limit {
    /// GPUs in use under `key`, rounded up.
    fn used(&self, key: &str, running: &[(Footprint<'_>, i64)]) -> i64 {
        let counted = running.iter().filter_map(|(one, count)| {
            let claim = self.claim(one).filter(|claim| claim.key == key)?;
            Some(claim.each * crate::units::float(*count))
        });
        let elsewhere = self.elsewhere.get(key).copied().unwrap_or(0.0);
        crate::units::signed((counted.sum::<f64>() + elsewhere).ceil())
    }
}

fn tighten(free: &mut BTreeMap<String, i64>, name: &str, left: i64) {
    let entry = free.entry(name.into()).or_insert(left);
    *entry = left.min(*entry);
}
