//! The time between two tokens as a straight line over KV-cache usage, and the two ways to find it.

use serde::{Deserialize, Serialize};

use super::FULL;

/// A slope has to be above this, in seconds by whole cache. Source: algorithm reference §4.1.
const SMALLEST_SLOPE: f64 = 1e-12;

/// A spread of usages below this cannot be told from none. Source: algorithm reference §4.3.
const SMALLEST_SPREAD: f64 = 1e-12;

/// `latency(kv) = slope · kv + intercept`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// Seconds that a full KV cache adds.
    pub slope: f64,
    /// Seconds with an empty one; may be negative.
    pub intercept: f64,
}

impl Line {
    /// `None` unless it rises, is finite and is above zero at the point of saturation (algorithm reference §4.3).
    #[must_use]
    pub fn new(slope: f64, intercept: f64) -> Option<Self> {
        let line = Self { slope, intercept };
        let rises = slope.is_finite() && slope > SMALLEST_SLOPE && intercept.is_finite();
        (rises && line.at(FULL) > 0.0).then_some(line)
    }

    /// Seconds between two tokens at a KV-cache usage of `kv`.
    #[must_use]
    pub fn at(self, kv: f64) -> f64 {
        self.slope * kv + self.intercept
    }
}

/// The line of least squares through `(kv, seconds)`. `None` when the usages do not differ or the line is none that a
/// server can have. Source: algorithm reference §4.3, tier 1.
#[must_use]
pub fn fit(points: impl IntoIterator<Item = (f64, f64)>) -> Option<Line> {
    let (mut count, mut kvs, mut latencies, mut squares, mut products) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for (kv, latency) in points {
        count += 1.0;
        kvs += kv;
        latencies += latency;
        squares += kv * kv;
        products += kv * latency;
    }
    let spread: f64 = count * squares - kvs * kvs;
    if spread.abs() < SMALLEST_SPREAD {
        return None;
    }
    let slope = (count * products - kvs * latencies) / spread;
    Line::new(slope, (latencies - slope * kvs) / count)
}

/// The line of least squares that starts at `intercept`; points without usage say nothing of a slope. Source: algorithm
/// reference §4.3, tier 2.
#[must_use]
pub fn fit_from(intercept: f64, points: impl IntoIterator<Item = (f64, f64)>) -> Option<Line> {
    let (mut products, mut squares) = (0.0, 0.0);
    for (kv, latency) in points.into_iter().filter(|(kv, _)| *kv > 0.0) {
        products += (latency - intercept) * kv;
        squares += kv * kv;
    }
    Line::new(products / squares, intercept) // no line where that is nothing over nothing
}
