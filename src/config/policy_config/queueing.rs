//! An entry of the queueing model's ConfigMap.

use wva_core::GroupId;
use wva_core::model::{LatencyTargets, QueueingPolicy};

use super::fields::{Fields, Range};
use super::model_key::ModelKey;

/// A latency, in milliseconds: up to an hour.
pub(super) const LATENCY: Range =
    Range::above(f64::MIN_POSITIVE, 3.6e6, "above 0 and at most 3600000 (milliseconds)");

/// An entry as written.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Entry {
    /// The model; `None` for the default.
    pub(super) group: Option<GroupId>,
    multiplier: Option<f64>,
    tuning: Option<bool>,
    targets: Option<LatencyTargets>,
}

impl Entry {
    pub(super) fn read(fields: &mut Fields<'_>, place: ModelKey<'_>) -> Self {
        let group = place.group(fields);
        let more_than_1 = Range::above(1.0 + f64::EPSILON, 1000.0, "above 1 and at most 1000");
        let multiplier = fields.number("sloMultiplier", more_than_1);
        let tuning = fields.switch("tuningEnabled");
        let targets = targets(fields, "targetTTFT", "targetITL");
        if group.is_none() && targets.is_some() {
            fields.note("targetTTFT", "and targetITL have no effect here: they are said of one model");
        }
        Self { targets: targets.filter(|_| group.is_some()), group, multiplier, tuning }
    }

    /// What this leaves open is as `below` says; targets are of this entry only.
    pub(super) fn policy(&self, below: &Self) -> QueueingPolicy {
        let default = QueueingPolicy::default();
        QueueingPolicy {
            targets: self.targets,
            slo_multiplier: self.multiplier.or(below.multiplier).unwrap_or(default.slo_multiplier),
            tuning: self.tuning.or(below.tuning).unwrap_or(default.tuning),
        }
    }
}

/// Two latencies, which belong together.
pub(super) fn targets(
    fields: &mut Fields<'_>,
    ttft: &'static str,
    itl: &'static str,
) -> Option<LatencyTargets> {
    match (fields.number(ttft, LATENCY), fields.number(itl, LATENCY)) {
        (Some(ttft_ms), Some(itl_ms)) => Some(LatencyTargets { ttft_ms, itl_ms }),
        (None, None) => None,
        _ => {
            fields.refuse_all(&format!("{ttft} and {itl} belong together: must have both or neither"));
            None
        }
    }
}
