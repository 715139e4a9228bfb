//! Limits, which all models share. Only the entry `default` of the release namespace sets them.

use std::collections::BTreeMap;

use smol_str::SmolStr;
use wva_core::model::{LimitPolicy, Power, Quota};
use wva_core::units::{Cost, truncated_i64};

use super::super::document::Diagnostics;
use super::fields::{Gpus, Limiter, LimiterKind, PowerBudget, QuotaScope, SaturationFields};
use super::overlay::{Section, Switch, Text};

/// The limits that an entry sets.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Limits {
    is_enabled: bool,
    fail_closed: bool,
    has_limiters: bool,
    quotas: Vec<Quota>,
    pub(super) rescale: Option<bool>,
    power: Option<Power>,
    spend: Option<Cost>,
}

impl Limits {
    pub(super) fn new(fields: &SaturationFields, diagnostics: &mut Diagnostics) -> Self {
        let is_enabled = fields.enable_limiter.is_some_and(Switch::get);
        let fail_closed = fields.fail_closed.is_some_and(Switch::get);
        let limiters = fields.limiters.as_deref().unwrap_or_default();
        for (name, is_set) in [("limiters", !limiters.is_empty()), ("failClosed", fail_closed)] {
            if is_set && !is_enabled {
                diagnostics.note(format!("{name} has no effect without enableLimiter: true"));
            }
        }
        let mut quotas = Vec::new();
        for (index, Section(limiter)) in limiters.iter().enumerate() {
            quotas.extend(limiter.quota(&format!("limiters[{index}]"), diagnostics));
        }
        // As in WVA v0.9.
        if !quotas.is_empty() && limiters.iter().any(|limiter| limiter.0.is_inventory()) {
            diagnostics.note("limiters has quotas, which take the place of the inventory");
        }
        Self {
            is_enabled,
            fail_closed,
            has_limiters: !limiters.is_empty(),
            quotas,
            rescale: fields.enable_rescale.map(Switch::get),
            power: fields.power.as_ref().and_then(|section| section.0.power(diagnostics)),
            spend: fields.spend.and_then(|spend| Cost::new(spend.get()).ok()),
        }
    }

    /// Whether it sets anything that has an effect only in the entry `default` of the release namespace.
    pub(super) fn is_set(&self) -> bool {
        self.is_enabled
            || self.fail_closed
            || self.has_limiters
            || self.power.is_some()
            || self.spend.is_some()
    }

    /// The core's policy.
    pub(super) fn policy(&self, rescale_namespaces: BTreeMap<SmolStr, bool>) -> LimitPolicy {
        LimitPolicy {
            inventory: self.is_enabled && self.quotas.is_empty(),
            fail_closed: self.is_enabled && self.fail_closed,
            quotas: if self.is_enabled { self.quotas.clone() } else { Vec::new() },
            power: self.power.clone(),
            spend: self.spend,
            rescale: self.rescale.unwrap_or(false),
            rescale_namespaces,
        }
    }
}

impl Limiter {
    fn is_inventory(&self) -> bool {
        matches!(self.kind, Some(LimiterKind::GpuInventory | LimiterKind::Inventory))
    }

    /// The quota; `None` if it is the inventory or invalid.
    fn quota(&self, path: &str, diagnostics: &mut Diagnostics) -> Option<Quota> {
        let has_namespaces = self.namespace_quotas.is_some() || self.exclude.is_some();
        let name = Text::non_empty(&self.name).cloned().unwrap_or_default();
        match (self.kind, self.scope) {
            (None, _) => {
                diagnostics.error(format!("{path}.type is missing: must be gpu-inventory or quota"));
                None
            }
            (Some(LimiterKind::GpuInventory | LimiterKind::Inventory), scope) => {
                if scope.is_some() || self.quotas.is_some() || has_namespaces {
                    diagnostics.note(format!(
                        "{path}: gpu-inventory has no scope and no quotas: they have no effect"
                    ));
                }
                None
            }
            (Some(LimiterKind::Quota), None) => {
                diagnostics.error(format!("{path}.scope is missing: must be cluster or namespace"));
                None
            }
            (Some(LimiterKind::Quota), Some(QuotaScope::Cluster)) => {
                if has_namespaces {
                    diagnostics
                        .note(format!("{path}: namespaceQuotas and exclude have no effect in scope cluster"));
                }
                Some(Quota::Cluster { name, quotas: counts(self.quotas.as_ref()) })
            }
            (Some(LimiterKind::Quota), Some(QuotaScope::Namespace)) => {
                if self.quotas.is_some() {
                    diagnostics.note(format!(
                        "{path}: quotas has no effect in scope namespace: see namespaceQuotas"
                    ));
                }
                let namespaces = self.namespace_quotas.iter().flatten();
                let namespace_quotas =
                    namespaces.map(|(namespace, gpus)| (namespace.clone(), counts(gpus.as_ref()))).collect();
                let exclude = self.exclude.iter().flatten().map(Text::get).collect();
                Some(Quota::Namespace { name, namespace_quotas, exclude })
            }
        }
    }
}

fn counts(gpus: Option<&Gpus>) -> BTreeMap<SmolStr, i64> {
    gpus.into_iter().flatten().map(|(name, count)| (name.clone(), truncated_i64(count.get()))).collect()
}

impl PowerBudget {
    fn power(&self, diagnostics: &mut Diagnostics) -> Option<Power> {
        match (self.watts, &self.per_gpu) {
            (Some(watts), Some(per_gpu)) if !per_gpu.is_empty() => {
                let per_gpu = per_gpu.iter().map(|(gpu, watts)| (gpu.clone(), watts.get())).collect();
                Some(Power { watts: watts.get(), per_gpu })
            }
            _ => {
                diagnostics.error("power.watts and perGpu belong together: must have both");
                None
            }
        }
    }
}
