//! What the rate policy may be told. Its other constants stand in `analyze::rate` and `learn`, each with why.

use serde::{Deserialize, Serialize};

use super::models::at_least_zero;
use crate::units::{OutOfRange, Seconds};

/// What the rate policy keeps for surprises, and how patient it is.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct RatePolicy {
    /// Spare capacity that is kept, in square roots of (demand × one replica), at least 0. Demand is the sum of many
    /// clients, so what it may change by while a pod starts grows with its square root. 0.52 is the middle of a plateau
    /// (0.50 to 0.55): below, one replica at two thirds of its capacity would be enough, above, two at 68 % would not be.
    /// 1.0 puts the tail first.
    pub surge_headroom: f64,
    /// Share of the capacity that demand may use, above 0 and at most 1: at 0.75 a queue of prompts waits three service
    /// times on average.
    pub utilisation: f64,
    /// Time to first token that 95 % of requests should keep, milliseconds, above 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttft_ms: Option<f64>,
    /// Time between two tokens that should be kept on average, milliseconds, above 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub itl_ms: Option<f64>,
    /// Nothing is removed this long after an addition. An HPA's own default window.
    pub dwell: Seconds,
    /// A backlog is to be worked off in this time, above 0.
    pub drain: Seconds,
    /// A pod takes at least this long to start, as long as none was seen starting. Published starts are 81 to 130 s.
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
