//! Limits of simulated time.

use std::time::Duration;

/// The longest scenario: a year.
pub(super) const MAX_DURATION: Duration = Duration::from_secs(366 * 24 * 3600);

/// The longest span the simulator computes with: 30 years, so that sums never overflow. Seconds.
const MAX_SPAN_S: f64 = 1e9;

/// `seconds` as a span. Negative values and NaN become zero, everything longer than [`MAX_SPAN_S`] becomes that.
pub(super) fn span(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.min(MAX_SPAN_S)).unwrap_or(Duration::ZERO)
}
