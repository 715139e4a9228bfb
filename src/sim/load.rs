//! The load: single requests, how they follow each other, and how their rate changes over time.

use std::time::Duration;

use super::rng::Rng;

/// The longest span the simulator computes with: 30 years, so that sums never overflow. Seconds.
const MAX_SPAN_S: f64 = 1e9;

/// `seconds` as a span. Negative values and NaN become zero, everything longer than [`MAX_SPAN_S`] becomes that.
pub(super) fn span(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.min(MAX_SPAN_S)).unwrap_or(Duration::ZERO)
}

/// One request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Request {
    /// When it arrived at the gateway, seconds after the start.
    pub arrived_s: f64,
    /// Tokens of its prompt, at least 1.
    pub prompt: u32,
    /// Tokens it will generate, at least 1.
    pub output: u32,
    /// Of the prompt, tokens found in the prefix cache.
    pub cached: u32,
    /// When its client sent it last, seconds after the start: later than its arrival after a time-out.
    pub sent_s: f64,
    /// How often its client has given up and sent it again.
    pub retries: u32,
}

impl Request {
    /// A request that is sent for the first time.
    pub(super) const fn new(arrived_s: f64, prompt: u32, output: u32, cached: u32) -> Self {
        Self { arrived_s, prompt, output, cached, sent_s: arrived_s, retries: 0 }
    }
}

/// How requests follow each other at a given rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    /// Poisson arrivals: each request is independent of all others.
    Poisson,
    /// Single requests at equal distances.
    Even,
    /// This many requests at the same moment, at least 1. The moments are independent of each other.
    Bursts(u32),
}

impl Pattern {
    /// Draws the gap to the next arrival.
    pub(super) fn draw(self, rng: &mut Rng) -> ArrivalGap {
        let (expected, burst) = match self {
            Self::Poisson => (rng.exponential(), 1),
            Self::Even => (1.0, 1),
            Self::Bursts(size) => (rng.exponential() * f64::from(size), size),
        };
        ArrivalGap { expected, burst }
    }
}

/// The gap to the next arrival. Its length in seconds follows from the rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ArrivalGap {
    /// How many requests are expected during the gap.
    pub(super) expected: f64,
    /// Requests that arrive together at its end.
    pub(super) burst: u32,
}

/// A part of a load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Segment {
    /// The same rate.
    Hold {
        /// Requests a second.
        rps: f64,
        /// Duration of the segment.
        lasts: Duration,
    },
    /// Linear from one rate to another.
    Ramp {
        /// Requests a second at its start.
        from: f64,
        /// Requests a second at its end.
        to: f64,
        /// Duration of the segment.
        lasts: Duration,
    },
    /// A sine around a mean that starts at the mean and rises.
    Wave {
        /// Requests a second on average.
        mean: f64,
        /// Amplitude: how far the rate goes above and below the mean.
        swing: f64,
        /// Length of one wave.
        period: Duration,
        /// Duration of the segment.
        lasts: Duration,
    },
}

impl Segment {
    pub(super) const fn lasts(&self) -> Duration {
        match self {
            Self::Hold { lasts, .. } | Self::Ramp { lasts, .. } | Self::Wave { lasts, .. } => *lasts,
        }
    }

    pub(super) fn rate_at(&self, since_start: Duration) -> f64 {
        let t = since_start.as_secs_f64();
        let rate = match *self {
            Self::Hold { rps, .. } => rps,
            Self::Ramp { from, to, lasts } => {
                from + (to - from) * (t / lasts.as_secs_f64().max(1e-9)).min(1.0)
            }
            Self::Wave { mean, swing, period, .. } => {
                mean + swing * (t / period.as_secs_f64().max(1e-9) * std::f64::consts::TAU).sin()
            }
        };
        rate.max(0.0)
    }
}

/// A rate that changes over time: segments in sequence, repeated after the last one.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LoadShape {
    segments: Vec<Segment>,
}

impl LoadShape {
    /// A load of `segments` in sequence.
    #[must_use]
    pub fn new(segments: Vec<Segment>) -> Self {
        Self { segments }
    }

    /// The segments in their order.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Duration of one round of all segments.
    #[must_use]
    pub fn length(&self) -> Duration {
        self.segments.iter().map(Segment::lasts).sum()
    }

    /// Requests a second at `at` after the start; 0 without segments.
    #[must_use]
    pub fn rate_at(&self, at: Duration) -> f64 {
        let length = self.length();
        if length.is_zero() {
            return 0.0;
        }
        let mut left = Duration::from_nanos((at.as_nanos() % length.as_nanos()) as u64);
        for segment in &self.segments {
            if left < segment.lasts() {
                return segment.rate_at(left);
            }
            left -= segment.lasts();
        }
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_script_holds_ramps_waves_and_starts_again() {
        let shape = LoadShape::new(vec![
            Segment::Hold { rps: 2.0, lasts: s(60) },
            Segment::Ramp { from: 2.0, to: 10.0, lasts: s(80) },
            Segment::Wave { mean: 6.0, swing: 2.0, period: s(40), lasts: s(60) },
        ]);
        for (at, rate) in [(0, 2.0), (59, 2.0), (100, 6.0), (140, 6.0), (150, 8.0), (170, 4.0), (200, 2.0)] {
            assert!((shape.rate_at(s(at)) - rate).abs() < 1e-9, "at {at}: {}", shape.rate_at(s(at)));
        }
        assert!(LoadShape::default().rate_at(s(5)).abs() < f64::EPSILON);
    }
}
