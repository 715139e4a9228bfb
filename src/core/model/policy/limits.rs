//! What all models share, and may not exceed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use crate::units::{Cost, OutOfRange, at_least_zero, to_f64};

/// Limits on what may be added, each optional. What runs already is never taken away by one.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct LimitPolicy {
    /// GPUs that the cluster has, by type. WVA's `enableLimiter`; any quota takes its place, as in WVA.
    pub inventory: bool,
    /// Nothing is added while the inventory is not known, or has no such accelerator. Otherwise additions go through then, and
    /// the report says that the limit is not in force: without the right to list nodes, or with nodes that nobody has labelled,
    /// a fleet would never grow.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub fail_closed: bool,
    /// Quotas of GPUs, applied one after the other.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub quotas: Vec<Quota>,
    /// Electrical power.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power: Option<Power>,
    /// What all replicas together may cost an hour, in the unit of `variantCost`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spend: Option<Cost>,
    /// Take GPUs from what has more than its share and give them to what has less, by priority and demand. Of the whole
    /// cluster, and of namespaces that do not say for themselves.
    pub rescale: bool,
    /// The same as namespaces say it for themselves; heeded where a quota is theirs.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub rescale_namespaces: BTreeMap<SmolStr, bool>,
}

impl LimitPolicy {
    pub(super) fn check(&self) -> Result<(), OutOfRange> {
        let power = self.power.iter().flat_map(|power| power.per_gpu.values().chain([&power.watts]));
        power.into_iter().try_for_each(|watts| at_least_zero("watts", *watts))?;
        let quotas = self.quotas.iter().flat_map(|quota| match quota {
            Quota::Cluster { quotas, .. } => vec![quotas],
            Quota::Namespace { namespace_quotas, .. } => namespace_quotas.values().collect(),
        });
        quotas.into_iter().try_for_each(check_gpu_quota)
    }
}

/// GPUs by type: at most this many, -1 is unlimited (by this quota), 0 or missing denies; at most 2²⁰.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "scope", deny_unknown_fields)]
pub enum Quota {
    /// Of all namespaces together.
    #[serde(rename_all = "camelCase")]
    Cluster {
        /// What a decision that it limits names it by.
        #[serde(default, skip_serializing_if = "SmolStr::is_empty")]
        name: SmolStr,
        /// GPUs by type.
        quotas: BTreeMap<SmolStr, i64>,
    },
    /// Of each namespace on its own.
    #[serde(rename_all = "camelCase")]
    Namespace {
        /// What a decision that it limits names it by.
        #[serde(default, skip_serializing_if = "SmolStr::is_empty")]
        name: SmolStr,
        /// GPUs by namespace and type; `default` is that of each namespace that is not listed.
        namespace_quotas: BTreeMap<SmolStr, BTreeMap<SmolStr, i64>>,
        /// Namespaces that this quota leaves alone.
        #[serde(default)]
        exclude: Vec<SmolStr>,
    },
}

impl Quota {
    /// The largest quota that is not unlimited. Source: the quotas of WVA v0.9.
    pub const MAX_GPUS: i64 = 1 << 20;
    /// The quota that is none.
    pub const UNLIMITED: i64 = -1;
}

/// Checks the GPUs of one quota, by accelerator.
///
/// # Errors
/// When a value is below -1 or above 1,048,576.
pub(crate) fn check_gpu_quota(quotas: &BTreeMap<SmolStr, i64>) -> Result<(), OutOfRange> {
    match quotas.values().find(|gpus| !(Quota::UNLIMITED..=Quota::MAX_GPUS).contains(*gpus)) {
        None => Ok(()),
        Some(gpus) => {
            let allowed = "-1 (unlimited) to 1048576";
            Err(OutOfRange { unit: "quota", value: to_f64(*gpus), allowed })
        }
    }
}

/// A budget of electrical power.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Power {
    /// Watts for all replicas together, at least 0.
    pub watts: f64,
    /// Watts of one GPU, by type. Of a type that is not listed nothing is added: nobody knows what it draws.
    pub per_gpu: BTreeMap<SmolStr, f64>,
}
