//! What an analyzer of capacity found, as figures for metrics.

use super::{CapacityTotals, Finding, Reasoning};
use crate::model::{Analyzer, Role};

/// What the analyzer that decides misses of a role, and what it could spare.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CapacityFigures {
    /// The unit of both.
    pub unit: CapacityUnit,
    /// What is missing, at least 0.
    pub required: f64,
    /// What is left over.
    pub spare: f64,
}

/// The unit of an analyzer's capacity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CapacityUnit {
    /// Percent rule: 1 or 0, whether replicas are missing; and the mean spare KV cache below the threshold, 0 to 1.
    Share,
    /// Tokens in KV caches.
    Tokens,
    /// Tokens per second.
    TokensPerSecond,
    /// Requests per second.
    RequestsPerSecond,
}

impl Reasoning {
    /// The figures for a variant of `role`; `None` where no analyzer decided, or one that finds numbers of replicas without them.
    #[must_use]
    pub fn capacity_figures(&self, role: Role) -> Option<CapacityFigures> {
        match &self.analysis.as_ref()?.finding {
            Finding::SaturationPercent { spare_kv, kv_trigger, spare_queue, queue_trigger, .. } => {
                let is_short = spare_kv < kv_trigger || spare_queue < queue_trigger;
                let required = f64::from(u8::from(is_short));
                Some(CapacityFigures { unit: CapacityUnit::Share, required, spare: *spare_kv })
            }
            Finding::Capacity { analyzers } => {
                let first = analyzers.first()?;
                let of = |role: Option<Role>| first.totals.iter().find(|totals| totals.role == role);
                let CapacityTotals { required, spare, .. } = *of(Some(role)).or_else(|| of(None))?;
                let unit = match first.analyzer {
                    Analyzer::Saturation => CapacityUnit::Tokens,
                    Analyzer::Throughput => CapacityUnit::TokensPerSecond,
                    _ => CapacityUnit::RequestsPerSecond,
                };
                Some(CapacityFigures { unit, required, spare })
            }
            Finding::Rate(_) | Finding::Score { .. } | Finding::Allocation => None,
        }
    }
}
