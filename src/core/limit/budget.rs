//! Limits, and what a replica uses of them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use super::quota::Quota;
use crate::units::{Cost, Watts, to_f64};

/// One limit, by the name that reports give it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Limit {
    /// Its name, for example `inventory`.
    pub name: SmolStr,
    /// The resource and how much there is of it.
    pub budget: Budget,
    /// By key: what workloads that are not decided about here use, in the budget's unit, at least 0.
    pub elsewhere: BTreeMap<SmolStr, f64>,
    /// An inventory does not limit accelerators that it does not list. Otherwise none of them may be added.
    #[serde(default)]
    pub open: bool,
}

/// A resource and how much there is of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Budget {
    /// The GPUs of the cluster, by accelerator.
    Inventory(BTreeMap<SmolStr, u32>),
    /// GPUs that may be used, by accelerator or by namespace and accelerator.
    Quota(Quota),
    /// Power.
    Power {
        /// For all replicas together.
        budget: Watts,
        /// Power of one GPU, by accelerator: for variants whose power is not known.
        per_gpu: BTreeMap<SmolStr, Watts>,
    },
    /// Cost units an hour, for all replicas together.
    Spend(Cost),
    /// GPUs of some variants together, by namespace and name. No other variant is limited.
    OfVariants(BTreeMap<SmolStr, BTreeMap<SmolStr, SharedGpus>>),
}

/// The GPUs that a variant shares with others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SharedGpus {
    /// What all that share them have in common.
    pub key: SmolStr,
    /// All of these GPUs.
    pub gpus: u32,
}

/// What one replica of a variant uses.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Footprint<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    /// Its variant's name.
    pub variant: &'a str,
    /// The accelerator's name, if it is known.
    pub accelerator: Option<&'a str>,
    /// GPUs, of which 0 counts as 1; `None` if their number is not known.
    pub gpus: Option<u32>,
    /// Power, if it is known.
    pub watts: Option<Watts>,
    /// Cost units an hour.
    pub cost: Cost,
}

/// What one replica uses of a limit.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Claim {
    pub(super) key: SmolStr,
    /// The whole budget of this key.
    pub(super) budget: f64,
    pub(super) per_replica: f64,
}

/// The key of a replica whose use is unknown. It has a budget of 0, so that nothing is added.
pub(crate) const UNKNOWN: &str = "unknown";
/// The same where it is the number of its GPUs that is not known. It is in the message about the limit.
pub(crate) const UNKNOWN_GPUS: &str = "replicas whose number of GPUs is not known (their workload has no pod template, and no pod on a node yet)";
/// The name of the limit that the GPUs of the nodes are.
pub(crate) const INVENTORY: &str = "inventory";
/// The key of a budget that is not divided.
const CLUSTER: &str = "cluster";

impl Limit {
    /// A limit whose whole budget is available to this decision.
    #[must_use]
    pub(crate) fn new(name: impl Into<SmolStr>, budget: Budget) -> Self {
        Self { name: name.into(), budget, elsewhere: BTreeMap::new(), open: false }
    }

    /// What `replica` uses of this limit; `None` if it is not limited by it.
    pub(super) fn claim(&self, replica: &Footprint<'_>) -> Option<Claim> {
        let gpus = replica.gpus.map(|gpus| f64::from(gpus.max(1)));
        let of_nothing =
            |key: &str| Some(Claim { key: key.into(), budget: 0.0, per_replica: gpus.unwrap_or(1.0) });
        let undivided = |budget, per_replica| Some(Claim { key: CLUSTER.into(), budget, per_replica });
        match &self.budget {
            Budget::Inventory(inventory) => {
                let Some(key) = replica.accelerator.or_else(|| only_accelerator(inventory)) else {
                    return of_nothing(UNKNOWN);
                };
                let listed = inventory.get(key);
                if self.open && listed.is_none() {
                    return None;
                }
                let Some(per_replica) = gpus else { return of_nothing(UNKNOWN_GPUS) };
                let budget = listed.map_or(0.0, |count| f64::from(*count));
                Some(Claim { key: key.into(), budget, per_replica })
            }
            Budget::Quota(quota) if quota.excludes(replica.namespace) => None,
            Budget::Quota(quota) => {
                let Some(name) = replica.accelerator else { return of_nothing(UNKNOWN) };
                let budget = to_f64(quota.budget(replica.namespace, name)?);
                let Some(per_replica) = gpus else { return of_nothing(UNKNOWN_GPUS) };
                Some(Claim { key: quota.key(replica.namespace, name), budget, per_replica })
            }
            Budget::Power { budget, per_gpu } => {
                let of_gpus = || {
                    let watts = replica.accelerator.and_then(|name| per_gpu.get(name))?;
                    Some(watts.get() * gpus?)
                };
                let per_replica = replica.watts.map(Watts::get).or_else(of_gpus);
                // The budget of an unknown use is 0, so any use above 0 exceeds it.
                let unknown = || of_nothing(if gpus.is_none() { UNKNOWN_GPUS } else { UNKNOWN });
                per_replica.map_or_else(unknown, |watts| undivided(budget.get(), watts))
            }
            Budget::Spend(budget) => undivided(budget.get(), replica.cost.get()),
            Budget::OfVariants(shares) => {
                let share = shares.get(replica.namespace)?.get(replica.variant)?;
                let Some(per_replica) = gpus else { return of_nothing(UNKNOWN_GPUS) };
                Some(Claim { key: share.key.clone(), budget: f64::from(share.gpus), per_replica })
            }
        }
    }
}

/// The only accelerator of `types`; `None` if there are several. A replica whose accelerator is not known must be on it.
pub(crate) fn only_accelerator<T>(types: &BTreeMap<SmolStr, T>) -> Option<&str> {
    let mut names = types.keys();
    let first = names.next()?;
    names.next().is_none().then_some(first.as_str())
}
