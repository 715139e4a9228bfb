//! Thresholds of the two saturation analyzers.

use serde::{Deserialize, Serialize};

use crate::units::OutOfRange;

/// When a replica is saturated (V1 and V2), and when spare capacity is too little (V1). The defaults are the ones every
/// WVA installation ships.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct SaturationPolicy {
    /// A replica is saturated at this KV-cache usage, 0 to 1.
    pub kv_cache_threshold: f64,
    /// A replica is saturated at this many waiting requests.
    pub queue_length_threshold: f64,
    /// Scale up when the mean spare KV-cache usage is below this, 0 to 1.
    pub kv_spare_trigger: f64,
    /// Scale up when the mean spare queue is below this.
    pub queue_spare_trigger: f64,
}

impl Default for SaturationPolicy {
    fn default() -> Self {
        Self {
            kv_cache_threshold: 0.80,
            queue_length_threshold: 5.0,
            kv_spare_trigger: 0.10,
            queue_spare_trigger: 3.0,
        }
    }
}

impl SaturationPolicy {
    /// # Errors
    /// Names the first field that is out of range.
    pub fn validated(self) -> Result<Self, OutOfRange> {
        let unit_range = |unit, value: f64| {
            let allowed = "0 to 1";
            if (0.0..=1.0).contains(&value) { Ok(()) } else { Err(OutOfRange { unit, value, allowed }) }
        };
        let queue_range = |unit, value: f64| {
            let allowed = "finite and at least 0";
            let ok = value.is_finite() && value >= 0.0;
            if ok { Ok(()) } else { Err(OutOfRange { unit, value, allowed }) }
        };
        unit_range("kvCacheThreshold", self.kv_cache_threshold)?;
        unit_range("kvSpareTrigger", self.kv_spare_trigger)?;
        queue_range("queueLengthThreshold", self.queue_length_threshold)?;
        queue_range("queueSpareTrigger", self.queue_spare_trigger)?;
        if self.kv_cache_threshold < self.kv_spare_trigger {
            let (value, allowed) = (self.kv_cache_threshold, "at least kvSpareTrigger");
            return Err(OutOfRange { unit: "kvCacheThreshold", value, allowed });
        }
        Ok(self)
    }
}
