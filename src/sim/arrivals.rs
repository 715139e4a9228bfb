//! The requests of a scenario, one after the other. The same seed gives the same requests to every controller.

use std::time::Duration;

use super::load::{Request, Segment};
use super::rng::Rng;
use super::scenario::{Arrival, Arrivals, Pattern, Scenario};
use super::sizes::Sizes;
use super::span;

/// What comes next.
#[derive(Debug)]
pub(super) enum Source<'a> {
    Rate(Box<AtRate<'a>>),
    Trace(Recorded<'a>),
}

impl<'a> Source<'a> {
    pub(super) fn new(scenario: &'a Scenario, rng: Rng) -> Self {
        match &scenario.arrivals {
            Arrivals::Rate { load, pattern } => {
                Self::Rate(Box::new(AtRate::new(scenario, load.segments(), *pattern, rng)))
            }
            Arrivals::Trace(trace) => {
                Self::Trace(Recorded { left: trace, end_s: scenario.duration.as_secs_f64() })
            }
        }
    }

    /// When the next request comes; infinite when none does.
    pub(super) fn next_s(&self) -> f64 {
        match self {
            Self::Rate(rate) => rate.next_s,
            Self::Trace(trace) => trace.next().map_or(f64::INFINITY, |next| next.at_s),
        }
    }

    /// The next request; `None` when there is none.
    pub(super) fn take(&mut self) -> Option<Request> {
        match self {
            Self::Rate(rate) => rate.take(),
            Self::Trace(trace) => trace.take(),
        }
    }
}

/// What is left of a trace.
#[derive(Debug)]
pub(super) struct Recorded<'a> {
    left: &'a [Arrival],
    end_s: f64,
}

impl Recorded<'_> {
    fn next(&self) -> Option<&Arrival> {
        self.left.first().filter(|next| next.at_s < self.end_s)
    }

    fn take(&mut self) -> Option<Request> {
        let Arrival { at_s, prompt, output, cached } = *self.next()?;
        self.left = &self.left[1..];
        let prompt = prompt.max(1);
        Some(Request { arrived_s: at_s, prompt, output: output.max(1), cached: cached.min(prompt - 1) })
    }
}

/// Requests at a rate: the next one comes when the expected number since the last has reached what was drawn.
#[derive(Debug)]
pub(super) struct AtRate<'a> {
    pieces: Pieces<'a>,
    now: Piece,
    pattern: Pattern,
    end_s: f64,
    sizes: &'a [(Duration, Sizes)],
    prefix_hits: f64,
    rng: Rng,
    next_s: f64,
    /// Requests that come at the same moment still.
    at_once: u32,
}

impl<'a> AtRate<'a> {
    fn new(scenario: &'a Scenario, segments: &'a [Segment], pattern: Pattern, rng: Rng) -> Self {
        let mut pieces = Pieces { segments, place: 0, began_s: 0.0, from_s: 0.0 };
        let mut source = Self {
            now: pieces.next(),
            pieces,
            pattern,
            end_s: scenario.duration.as_secs_f64(),
            sizes: &scenario.sizes,
            prefix_hits: scenario.prefix_hits.get(),
            rng,
            next_s: 0.0,
            at_once: 0,
        };
        source.draw();
        source
    }

    /// Finds the next moment.
    fn draw(&mut self) {
        let (mut left, burst) = match self.pattern {
            Pattern::Poisson => (self.rng.exponential(), 1),
            Pattern::Even => (1.0, 1),
            Pattern::Bursts(size) => (self.rng.exponential() * f64::from(size), size),
        };
        self.at_once = burst;
        loop {
            let Piece { rps, until_s } = self.now;
            let room = rps * (until_s - self.next_s);
            if room >= left && rps > 0.0 {
                self.next_s += left / rps;
                break;
            }
            left -= room.max(0.0);
            self.next_s = until_s;
            if self.next_s >= self.end_s {
                break;
            }
            self.now = self.pieces.next();
        }
        if self.next_s >= self.end_s {
            self.next_s = f64::INFINITY;
        }
    }

    fn take(&mut self) -> Option<Request> {
        let arrived_s = self.next_s;
        if arrived_s.is_infinite() {
            return None;
        }
        while let [_, rest @ ..] = self.sizes
            && rest.first().is_some_and(|next| next.0.as_secs_f64() <= arrived_s)
        {
            self.sizes = rest;
        }
        let (prompt, output) = self.sizes.first().map_or((1, 1), |(_, sizes)| sizes.draw(&mut self.rng));
        let cached = wva_core::units::whole(f64::from(prompt) * self.prefix_hits).min(prompt - 1);
        self.at_once = self.at_once.saturating_sub(1);
        if self.at_once == 0 {
            self.draw();
        }
        Some(Request { arrived_s, prompt, output, cached })
    }
}

/// A stretch of one rate.
#[derive(Debug, Clone, Copy)]
struct Piece {
    rps: f64,
    until_s: f64,
}

/// A load in pieces of one rate, again and again: what rises or falls does so in steps of a second.
#[derive(Debug)]
struct Pieces<'a> {
    segments: &'a [Segment],
    place: usize,
    /// When the segment began.
    began_s: f64,
    /// Where the next piece begins.
    from_s: f64,
}

impl Pieces<'_> {
    const STEP: Duration = Duration::from_secs(1);

    fn next(&mut self) -> Piece {
        // Once around: some segment has a length.
        for _ in 0..=self.segments.len() {
            let Some(segment) = self.segments.get(self.place) else { break };
            let end_s = self.began_s + segment.lasts().as_secs_f64();
            if self.from_s < end_s {
                let step_s =
                    if matches!(segment, Segment::Hold { .. }) { end_s } else { Self::STEP.as_secs_f64() };
                let until_s = end_s.min(self.from_s + step_s);
                let middle_s = (self.from_s + until_s) / 2.0 - self.began_s;
                self.from_s = until_s;
                return Piece { rps: segment.rate_at(span(middle_s)), until_s };
            }
            self.began_s = end_s;
            self.place = (self.place + 1) % self.segments.len();
        }
        Piece { rps: 0.0, until_s: f64::INFINITY }
    }
}

#[cfg(test)]
mod tests {
    use super::super::load::LoadShape;
    use super::super::presets::TP1;
    use super::super::scenario::SimVariant;
    use super::*;
    use wva_core::units::{Cost, Ratio};

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn scenario(segments: Vec<Segment>, pattern: Pattern) -> Scenario {
        let sizes = Sizes::uniform(1000.0, 100.0, 0.0);
        let variants = vec![SimVariant::new("v", TP1, Cost::new(1.0).unwrap())];
        let mut scenario = Scenario::new("test", s(1000), LoadShape::new(segments), sizes, variants);
        if let Arrivals::Rate { pattern: own, .. } = &mut scenario.arrivals {
            *own = pattern;
        }
        scenario
    }

    fn all(scenario: &Scenario, seed: u64) -> Vec<Request> {
        let mut source = Source::new(scenario, Rng::new(seed));
        std::iter::from_fn(|| source.take()).collect()
    }

    #[test]
    fn evenly_spaced_requests_follow_the_rate_through_pauses_and_repeats() {
        let hold = |rps, lasts| Segment::Hold { rps, lasts: s(lasts) };
        let times: Vec<f64> = all(&scenario(vec![hold(2.0, 10), hold(0.0, 90)], Pattern::Even), 1)
            .iter()
            .map(|request| request.arrived_s)
            .collect();
        assert_eq!(times.len(), 200, "20 in each of ten rounds");
        assert!((times[0] - 0.5).abs() < 1e-9 && (times[19] - 10.0).abs() < 1e-9);
        assert!((times[20] - 100.5).abs() < 1e-9);
    }

    #[test]
    fn a_rising_rate_gives_as_many_as_its_area() {
        let ramp = vec![Segment::Ramp { from: 0.0, to: 20.0, lasts: s(1000) }];
        let came = all(&scenario(ramp.clone(), Pattern::Even), 1);
        assert!((9_998..=10_000).contains(&came.len()), "{}", came.len());
        let early = came.iter().filter(|request| request.arrived_s < 500.0).count();
        assert!((2_495..=2_505).contains(&early), "a quarter in the first half: {early}");
        let poisson = all(&scenario(ramp, Pattern::Poisson), 1);
        assert!((9_700..10_300).contains(&poisson.len()));
    }

    #[test]
    fn bursts_come_at_one_moment_and_keep_the_rate() {
        let hold = vec![Segment::Hold { rps: 10.0, lasts: s(1000) }];
        let came = all(&scenario(hold, Pattern::Bursts(5)), 1);
        assert!((9_300..10_700).contains(&came.len()), "{}", came.len());
        assert!(came.chunks(5).all(|five| (five[0].arrived_s - five[4].arrived_s).abs() < 1e-12));
    }

    #[test]
    fn sizes_change_when_they_are_said_to_and_prefix_hits_are_a_share() {
        let hold = vec![Segment::Hold { rps: 1.0, lasts: s(1000) }];
        let mut scenario = scenario(hold, Pattern::Even);
        scenario.prefix_hits = Ratio::new(0.5).unwrap();
        scenario.sizes.push((s(600), Sizes::uniform(10.0, 7.0, 0.0)));
        for request in all(&scenario, 1) {
            let expected = if request.arrived_s < 600.0 { (1000, 100, 500) } else { (10, 7, 5) };
            assert_eq!((request.prompt, request.output, request.cached), expected, "{}", request.arrived_s);
        }
    }

    #[test]
    fn a_trace_ends_with_the_scenario_and_empty_requests_count_as_one_token() {
        let arrival = |at_s, prompt, output, cached| Arrival { at_s, prompt, output, cached };
        let trace = vec![arrival(1.0, 0, 0, 9), arrival(1.0, 100, 10, 100), arrival(1000.0, 5, 5, 0)];
        let mut scenario = scenario(Vec::new(), Pattern::Even);
        scenario.arrivals = Arrivals::Trace(trace.into());
        let came = all(&scenario, 1);
        let request = |prompt, output, cached| Request { arrived_s: 1.0, prompt, output, cached };
        assert_eq!(came, [request(1, 1, 0), request(100, 10, 99)]);
    }
}
