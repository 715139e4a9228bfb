//! Thresholds of the token saturation analyzer.

use serde::{Deserialize, Serialize};

use crate::units::OutOfRange;

/// The thresholds of the analyzer. The defaults are upstream's.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TokenPolicy {
    /// K: the share of the KV cache that may be used, 0 to 1.
    pub kv_cache_threshold: f64,
    /// Q: with this many waiting requests a replica is at its limit, at least 0. Its fraction is ignored, as upstream.
    pub queue_length_threshold: f64,
    /// Required is what brings utilisation down to this, above 0 to 1.
    pub scale_up_threshold: f64,
    /// Spare is what brings utilisation up to this, above 0 and below the threshold for scaling up.
    pub scale_down_boundary: f64,
}

impl Default for TokenPolicy {
    fn default() -> Self {
        Self {
            kv_cache_threshold: 0.80,
            queue_length_threshold: 5.0,
            scale_up_threshold: 0.85,
            scale_down_boundary: 0.70,
        }
    }
}

impl TokenPolicy {
    /// # Errors
    /// Names the first field that is out of range.
    pub fn validated(self) -> Result<Self, OutOfRange> {
        let (up, down) = (self.scale_up_threshold, self.scale_down_boundary);
        let share = |value: f64| value > 0.0 && value <= 1.0;
        let queue = self.queue_length_threshold;
        let rules = [
            ("kvCacheThreshold", self.kv_cache_threshold, share(self.kv_cache_threshold), "above 0 to 1"),
            ("queueLengthThreshold", queue, queue.is_finite() && queue >= 0.0, "finite and at least 0"),
            ("scaleUpThreshold", up, share(up), "above 0 to 1"),
            ("scaleDownBoundary", down, share(down), "above 0 to 1"),
            ("scaleDownBoundary", down, down < up, "below scaleUpThreshold"),
        ];
        let broken = rules.into_iter().find(|(_, _, ok, _)| !ok);
        broken.map_or(Ok(self), |(unit, value, _, allowed)| Err(OutOfRange { unit, value, allowed }))
    }
}
