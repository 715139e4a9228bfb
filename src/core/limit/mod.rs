//! What there is only so much of: GPUs, quotas, power, money. A limit holds back additions and nothing else: what runs
//! is never evicted for it, and a removal is never stopped by it.
//!
//! All limits are one kind of thing, a budget by key and a use by replica, so that whoever hands out replicas asks one
//! [`Ledger`] how many more fit. What happens to a minimum above a limit is said at [`grant()`].

mod free;
mod grant;
mod ledger;
mod quota;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::units::{Cost, Watts, float};
use smol_str::SmolStr;

pub use free::{Free, UNLIMITED};
pub use grant::{Granted, Pools, Want, grant, greedy_by_spare};
pub use ledger::{Binding, Ledger};
pub use quota::Quota;

/// One limit, by the name that reports give it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Limit {
    /// Its name, e.g. `inventory`.
    pub name: SmolStr,
    /// Of what, and how much.
    pub budget: Budget,
    /// By key, what workloads use that are not decided about here; in the budget's unit, at least 0.
    pub elsewhere: BTreeMap<SmolStr, f64>,
    /// An accelerator that an inventory does not list is not limited by it. Otherwise it has none.
    #[serde(default)]
    pub open: bool,
}

/// A resource and how much there is of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Budget {
    /// The GPUs of the cluster, by accelerator. An accelerator that is not listed has none.
    Inventory(BTreeMap<SmolStr, u32>),
    /// GPUs that may be used, by accelerator or by namespace and accelerator.
    Quota(Quota),
    /// Power in all, and what one GPU of an accelerator draws where a variant does not say what its replica does.
    Power {
        /// In all.
        budget: Watts,
        /// Of one GPU, by accelerator.
        per_gpu: BTreeMap<SmolStr, Watts>,
    },
    /// Cost units an hour in all.
    Spend(Cost),
}

impl Budget {
    /// Free GPUs by accelerator, for the whole cluster.
    fn is_pool(&self) -> bool {
        match self {
            Self::Inventory(_) => true,
            Self::Quota(quota) => !quota.by_namespace(),
            Self::Power { .. } | Self::Spend(_) => false,
        }
    }
}

/// What one replica of a variant takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Footprint<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    /// The accelerator's name, when one is known.
    pub accelerator: Option<&'a str>,
    /// GPUs, at least 1.
    pub gpus: u32,
    /// Power, when it is known.
    pub watts: Option<Watts>,
    /// Cost units an hour.
    pub cost: Cost,
}

/// What a footprint takes of a limit: which budget, how much that is, and how much of it a replica uses.
#[derive(Debug, Clone, PartialEq)]
struct Claim {
    key: SmolStr,
    budget: f64,
    each: f64,
}

/// The key under which a replica counts whose use nobody knows: it has no budget, so that nothing is added.
const UNKNOWN: &str = "unknown";
/// The key of a budget there is one of.
const CLUSTER: &str = "cluster";

impl Limit {
    /// A limit that nobody else draws on.
    #[must_use]
    pub fn new(name: impl Into<SmolStr>, budget: Budget) -> Self {
        Self { name: name.into(), budget, elsewhere: BTreeMap::new(), open: false }
    }

    /// What `replica` takes of this limit; `None` when it is not limited by it.
    fn claim(&self, replica: &Footprint<'_>) -> Option<Claim> {
        let gpus = f64::from(replica.gpus.max(1));
        let unknown = |each| Some(Claim { key: UNKNOWN.into(), budget: 0.0, each });
        let cluster = |budget, each| Some(Claim { key: CLUSTER.into(), budget, each });
        match &self.budget {
            Budget::Inventory(there) => {
                let Some(key) = accelerator(replica.accelerator, there) else { return unknown(gpus) };
                let listed = there.get(key);
                if self.open && listed.is_none() {
                    return None;
                }
                let budget = listed.map_or(0.0, |count| f64::from(*count));
                Some(Claim { key: key.into(), budget, each: gpus })
            }
            Budget::Quota(quota) if quota.excludes(replica.namespace) => None,
            Budget::Quota(quota) => {
                let Some(name) = replica.accelerator else { return unknown(gpus) };
                let budget = float(quota.budget(replica.namespace, name)?);
                Some(Claim { key: quota.key(replica.namespace, name), budget, each: gpus })
            }
            Budget::Power { budget, per_gpu } => {
                let by_type = replica.accelerator.and_then(|name| per_gpu.get(name));
                let each = replica.watts.map(Watts::get).or(by_type.map(|one| one.get() * gpus));
                each.map_or_else(|| unknown(1.0), |each| cluster(budget.get(), each))
            }
            Budget::Spend(budget) => cluster(budget.get(), replica.cost.get()),
        }
    }
}

/// The accelerator a replica is on; one that is not known is on the only type there is, if there is only one. Source:
/// algorithm reference §7.8.
fn accelerator<'a, T>(known: Option<&'a str>, types: &'a BTreeMap<SmolStr, T>) -> Option<&'a str> {
    let mut names = types.keys();
    let only = names.next().filter(|_| names.next().is_none());
    known.or(only.map(SmolStr::as_str))
}
