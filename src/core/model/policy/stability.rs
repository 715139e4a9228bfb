//! Limits on how fast numbers change. All are off by default: the HPA has windows and policies of its own.

use serde::{Deserialize, Serialize};

use crate::hpa::TOLERANCE;
use crate::units::{OutOfRange, Replicas, Seconds, at_least_zero};

/// How fast and how often a number may change.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Stability {
    /// A rise goes no higher than the lowest number proposed in this window.
    pub up_window: Seconds,
    /// A fall goes no lower than the highest number proposed in this window.
    pub down_window: Seconds,
    /// At most this much above the current replicas.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub up_step: Option<StepLimit>,
    /// At most this much below the current replicas.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub down_step: Option<StepLimit>,
    /// Cooldown: a number that has risen stays for at least this long before it falls.
    pub dwell: Seconds,
    /// Tolerance of the HPA: a change within it is reported as one that the HPA will not follow. Share of the current replicas, 0 to 1
    /// (Kubernetes: 0.1).
    pub tolerance: f64,
}

impl Default for Stability {
    fn default() -> Self {
        Self {
            up_window: Seconds::ZERO,
            down_window: Seconds::ZERO,
            up_step: None,
            down_step: None,
            dwell: Seconds::ZERO,
            tolerance: TOLERANCE,
        }
    }
}

impl Stability {
    pub(super) fn check(&self) -> Result<(), OutOfRange> {
        let percents = self.up_step.into_iter().chain(self.down_step).map(|step| step.percent);
        percents.into_iter().try_for_each(|percent| at_least_zero("percent", percent))?;
        let (unit, value, allowed) = ("tolerance", self.tolerance, "0 to 1");
        if (0.0..=1.0).contains(&value) { Ok(()) } else { Err(OutOfRange { unit, value, allowed }) }
    }
}

/// Maximum change at once: the larger of the two, at least 1.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct StepLimit {
    /// Replicas.
    pub replicas: Replicas,
    /// Percent of the current replicas, at least 0.
    pub percent: f64,
}

impl Default for StepLimit {
    fn default() -> Self {
        Self { replicas: Replicas::ONE, percent: 0.0 }
    }
}
