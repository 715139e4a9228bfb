//! The time between two tokens as a straight line over KV-cache usage, and two ways to fit it.

/// The KV-cache usage at which a replica is full (upstream's constant).
pub(crate) const FULL: f64 = 0.85;
/// A slope of at most this, in seconds per whole cache, cannot be distinguished from 0.
const MIN_SLOPE: f64 = 1e-12;
/// A spread of usages below this cannot be distinguished from 0.
const MIN_SPREAD: f64 = 1e-12;

/// `latency(kv) = slope · kv + intercept`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct LatencyLine {
    /// Seconds that a full KV cache adds.
    pub slope: f64,
    /// Seconds with an empty one; may be negative.
    pub intercept: f64,
}

impl LatencyLine {
    /// `None` unless it rises, is finite, and is above zero for a full replica. The line of a real engine always is.
    pub(crate) fn new(slope: f64, intercept: f64) -> Option<Self> {
        let line = Self { slope, intercept };
        let rises = slope.is_finite() && slope > MIN_SLOPE && intercept.is_finite();
        (rises && line.at(FULL) > 0.0).then_some(line)
    }

    /// Seconds between two tokens at a KV-cache usage of `kv`.
    pub(crate) fn at(self, kv: f64) -> f64 {
        self.slope * kv + self.intercept
    }

    /// The line of least squares through `(kv, seconds)`; `None` if the usages do not differ.
    pub(crate) fn fit(points: impl IntoIterator<Item = (f64, f64)>) -> Option<Self> {
        let mut count = 0.0;
        let mut kvs = 0.0;
        let mut latencies = 0.0;
        let mut squares = 0.0;
        let mut products = 0.0;
        for (kv, latency) in points {
            count += 1.0;
            kvs += kv;
            latencies += latency;
            squares += kv * kv;
            products += kv * latency;
        }
        let spread: f64 = count * squares - kvs * kvs;
        if spread.abs() < MIN_SPREAD {
            return None;
        }
        let slope = (count * products - kvs * latencies) / spread;
        Self::new(slope, (latencies - slope * kvs) / count)
    }

    /// The line of least squares that starts at `intercept`. Points without usage do not affect the slope.
    pub(crate) fn fit_from(intercept: f64, points: impl IntoIterator<Item = (f64, f64)>) -> Option<Self> {
        let mut products = 0.0;
        let mut squares = 0.0;
        for (kv, latency) in points.into_iter().filter(|(kv, _)| *kv > 0.0) {
            products += (latency - intercept) * kv;
            squares += kv * kv;
        }
        // Without such points this is 0 / 0, which is not finite, and so `None`.
        Self::new(products / squares, intercept)
    }
}
