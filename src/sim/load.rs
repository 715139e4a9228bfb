//! What arrives: requests, how many tokens they have, and how their rate changes over time.

use std::time::Duration;

use super::Moment;
use super::rng::Rng;

/// One request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Request {
    /// When it came to the gateway, seconds after the start.
    pub arrived_s: f64,
    /// Tokens of its prompt, at least 1.
    pub prompt: u32,
    /// Tokens it will generate, at least 1.
    pub output: u32,
    /// Of the prompt, tokens found in the prefix cache.
    pub cached: u32,
}

/// How many tokens requests have.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenShape {
    /// Mean tokens of a prompt.
    pub prompt: u32,
    /// Mean tokens generated.
    pub output: u32,
    /// Sizes are uniform in mean ± this share of the mean.
    pub spread: f64,
}

impl TokenShape {
    /// Every request alike.
    #[must_use]
    pub const fn fixed(prompt: u32, output: u32) -> Self {
        Self { prompt, output, spread: 0.0 }
    }

    /// Sizes that vary by `spread` (0 to 1) around the means.
    #[must_use]
    pub const fn varied(prompt: u32, output: u32, spread: f64) -> Self {
        Self { prompt, output, spread }
    }

    /// The next request.
    pub fn request(&self, arrived_s: f64, rng: &mut Rng) -> Request {
        let mut size = |mean: u32| rng.around(f64::from(mean), self.spread).round().max(1.0) as u32;
        Request { arrived_s, prompt: size(self.prompt), output: size(self.output), cached: 0 }
    }
}

/// A part of a load script.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Segment {
    /// The same rate.
    Hold {
        /// Requests a second.
        rps: f64,
        /// How long.
        lasts: Duration,
    },
    /// From one rate to another in a straight line.
    Ramp {
        /// Requests a second at its start.
        from: f64,
        /// Requests a second at its end.
        to: f64,
        /// How long.
        lasts: Duration,
    },
    /// A sine around a mean, starting at the mean and rising.
    Wave {
        /// Requests a second on average.
        mean: f64,
        /// How far it goes up and down.
        swing: f64,
        /// Length of one wave.
        period: Duration,
        /// How long.
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

/// A rate that changes over time: segments one after another; after the last one it starts again.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LoadShape {
    segments: Vec<Segment>,
}

impl LoadShape {
    /// The segments in their order.
    #[must_use]
    pub fn new(segments: Vec<Segment>) -> Self {
        Self { segments }
    }

    /// The segments in their order.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// How long one round of all segments takes.
    #[must_use]
    pub fn length(&self) -> Duration {
        self.segments.iter().map(Segment::lasts).sum()
    }

    /// Requests a second at `at`; 0 when there are no segments.
    #[must_use]
    pub fn rate_at(&self, at: Moment) -> f64 {
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

/// Poisson arrivals whose rate may change at any time: the next one comes when the expected number of arrivals since
/// the last has reached a unit-exponential draw, so a change of rate never needs a new draw.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Poisson {
    pub(super) rps: f64,
    left: f64,
}

impl Poisson {
    pub(super) fn new(rng: &mut Rng) -> Self {
        Self { rps: 0.0, left: rng.exponential() }
    }

    /// When the next arrival comes if the rate stays.
    pub(super) fn due(&self, now: Moment) -> Option<Moment> {
        (self.rps > 0.0).then(|| now + super::span(self.left / self.rps))
    }

    /// Time passed without an arrival.
    pub(super) fn pass(&mut self, time: Duration) {
        self.left = (self.left - self.rps * time.as_secs_f64()).max(0.0);
    }

    /// An arrival happened.
    pub(super) fn draw(&mut self, rng: &mut Rng) {
        self.left = rng.exponential();
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

    #[test]
    fn arrivals_keep_their_rate_through_changes_of_rate() {
        let mut rng = Rng::new(3);
        let mut poisson = Poisson::new(&mut rng);
        let (mut now, mut arrivals) = (Duration::ZERO, 0);
        for second in 0..2000_u64 {
            poisson.rps = if second % 2 == 0 { 0.0 } else { 10.0 };
            while let Some(due) = poisson.due(now).filter(|due| *due < s(second + 1)) {
                now = due;
                poisson.draw(&mut rng);
                arrivals += 1;
            }
            poisson.pass(s(second + 1) - now);
            now = s(second + 1);
        }
        assert!((9_700..10_300).contains(&arrivals), "{arrivals}");
    }
}
