//! Settings of the rate policy. Its constants are in `analyze::rate` and `learn`, each with its reason.

use serde::{Deserialize, Serialize};

use crate::units::{OutOfRange, Seconds, at_least_zero};

/// Reserves and waiting times of the rate policy.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct RatePolicy {
    /// Surge reserve, in square roots of (demand × capacity of a replica), at least 0. Demand is the sum of many clients, so its
    /// change while a pod starts grows with its square root. 0.52 is the middle of a plateau (0.50 to 0.55): with less, one replica at
    /// two thirds of its capacity would be enough; with more, two at 68 % would not be. 1.0 favours tail latency.
    pub surge_headroom: f64,
    /// Share of the capacity that demand may use, above 0 and at most 1. At 0.75 a prompt waits three service times on average.
    pub utilisation: f64,
    /// Time to first token that 95 % of requests should keep, milliseconds, above 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttft_ms: Option<f64>,
    /// Time between two tokens that should be kept on average, milliseconds, above 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub itl_ms: Option<f64>,
    /// Cooldown: nothing is removed for this long after an addition. The default is that of an HPA.
    pub dwell: Seconds,
    /// Time in which a backlog should be worked off, above 0.
    pub drain: Seconds,
    /// Minimum of the expected start-up time until one was seen. Published start-ups take 81 to 130 s.
    pub start_up: Seconds,
}

impl Default for RatePolicy {
    fn default() -> Self {
        Self {
            surge_headroom: 0.52,
            utilisation: 0.75,
            ttft_ms: None,
            itl_ms: None,
            dwell: Seconds::whole(300),
            drain: Seconds::whole(60),
            start_up: Seconds::whole(120),
        }
    }
}

impl RatePolicy {
    /// # Errors
    /// Names the first field that is out of range.
    pub fn check(&self) -> Result<(), OutOfRange> {
        at_least_zero("surgeHeadroom", self.surge_headroom)?;
        let (unit, value, allowed) = ("utilisation", self.utilisation, "above 0 and at most 1");
        if !(value > 0.0 && value <= 1.0) {
            return Err(OutOfRange { unit, value, allowed });
        }
        let drain = ("drain", Some(self.drain.get()));
        for (unit, value) in [("targetTTFT", self.ttft_ms), ("targetITL", self.itl_ms), drain] {
            let value = value.unwrap_or(1.0);
            if !(value.is_finite() && value > 0.0) {
                return Err(OutOfRange { unit, value, allowed: "finite and above 0" });
            }
        }
        Ok(())
    }
}
