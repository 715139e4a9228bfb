//! Limits that all models share.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use crate::units::{Cost, OutOfRange, at_least_zero, to_f64};

/// Limits on additions, each optional. A limit never removes what runs.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct LimitPolicy {
    /// The GPUs of the cluster, by type. WVA's `enableLimiter`; any quota replaces it, as in WVA.
    pub inventory: bool,
    /// Nothing is added while the inventory is not known, or lacks the accelerator. If this is off, such additions go through, and the report says
    /// that the limit is not in force: otherwise, without permission to list nodes or with unlabelled nodes, a fleet would never grow.
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
    /// Move GPUs from models that have more than their share to those that have less, by priority and demand: in the whole cluster, and in namespaces
    /// that do not set it themselves.
    pub rescale: bool,
    /// The same for single namespaces. It counts for those with a quota of their own.
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
        /// The name by which explanations refer to it.
        #[serde(default, skip_serializing_if = "SmolStr::is_empty")]
        name: SmolStr,
        /// GPUs by type.
        quotas: BTreeMap<SmolStr, i64>,
    },
    /// Of each namespace on its own.
    #[serde(rename_all = "camelCase")]
    Namespace {
        /// The name by which explanations refer to it.
        #[serde(default, skip_serializing_if = "SmolStr::is_empty")]
        name: SmolStr,
        /// GPUs by namespace and type; `default` is that of each namespace that is not listed.
        namespace_quotas: BTreeMap<SmolStr, BTreeMap<SmolStr, i64>>,
        /// Namespaces that this quota does not limit.
        #[serde(default)]
        exclude: Vec<SmolStr>,
    },
}

impl Quota {
    /// The largest quota that is not unlimited. Source: the quotas of WVA v0.9.
    pub const MAX_GPUS: i64 = 1 << 20;
    /// The value of a quota without a limit.
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
    /// Watts of one GPU, by type. No replica with a type that is not listed is added, because its power is not known.
    pub per_gpu: BTreeMap<SmolStr, f64>,
}
