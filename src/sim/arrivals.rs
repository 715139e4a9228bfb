//! The requests of a scenario in sequence. The same seed gives the same requests to every controller.

use std::time::Duration;

use super::load::{ArrivalGap, Pattern, Request, Segment, span};
use super::rng::Rng;
use super::scenario::{Arrival, Arrivals, Scenario, TimedSizes};
use super::sizes::RequestSize;

/// Where the requests of a run come from: generated at a rate, or the rest of a trace.
#[derive(Debug, Clone)]
pub(super) enum RequestSource<'a> {
    Rate(Box<GeneratedRequests<'a>>),
    Trace(&'a [Arrival]),
}

impl<'a> RequestSource<'a> {
    pub(super) fn new(scenario: &'a Scenario, rng: Rng) -> Self {
        match &scenario.arrivals {
            Arrivals::Rate { load, pattern } => {
                Self::Rate(Box::new(GeneratedRequests::new(scenario, load.segments(), *pattern, rng)))
            }
            Arrivals::Trace(trace) => {
                let end_s = scenario.duration.as_secs_f64();
                Self::Trace(&trace[..trace.partition_point(|arrival| arrival.at_s < end_s)])
            }
        }
    }

    /// When the next request arrives; infinite when there is none.
    pub(super) fn next_s(&self) -> f64 {
        match self {
            Self::Rate(rate) => rate.next_s,
            Self::Trace(rest) => rest.first().map_or(f64::INFINITY, |next| next.at_s),
        }
    }

    /// Takes the next request; `None` when there is none.
    pub(super) fn next(&mut self) -> Option<Request> {
        match self {
            Self::Rate(rate) => rate.next(),
            Self::Trace(rest) => {
                let (Arrival { at_s, prompt, output, cached }, later) = rest.split_first()?;
                *rest = later;
                let prompt = (*prompt).max(1);
                let cached = (*cached).min(prompt - 1);
                Some(Request::new(*at_s, prompt, (*output).max(1), cached))
            }
        }
    }
}

/// Requests at a rate. The gap to the next arrival is drawn as a number of expected requests and used up by the rate over
/// time, so that a change of the rate needs no new draw.
#[derive(Debug, Clone)]
pub(super) struct GeneratedRequests<'a> {
    rates: ConstantRates<'a>,
    current: ConstantRate,
    pattern: Pattern,
    end_s: f64,
    sizes: &'a [TimedSizes],
    prefix_hits: f64,
    rng: Rng,
    next_s: f64,
    /// Requests still to arrive at `next_s`.
    burst: u32,
}

impl<'a> GeneratedRequests<'a> {
    fn new(scenario: &'a Scenario, segments: &'a [Segment], pattern: Pattern, rng: Rng) -> Self {
        let mut rates = ConstantRates { segments, index: 0, start_s: 0.0, from_s: 0.0 };
        let mut source = Self {
            current: rates.next(),
            rates,
            pattern,
            end_s: scenario.duration.as_secs_f64(),
            sizes: &scenario.sizes,
            prefix_hits: scenario.prefix_hits.get(),
            rng,
            next_s: 0.0,
            burst: 0,
        };
        source.draw();
        source
    }

    /// Draws the next arrival.
    fn draw(&mut self) {
        let ArrivalGap { mut expected, burst } = self.pattern.draw(&mut self.rng);
        self.burst = burst;
        loop {
            let ConstantRate { rps, until_s } = self.current;
            let available = rps * (until_s - self.next_s);
            if available >= expected && rps > 0.0 {
                self.next_s += expected / rps;
                break;
            }
            expected -= available.max(0.0);
            self.next_s = until_s;
            if self.next_s >= self.end_s {
                break;
            }
            self.current = self.rates.next();
        }
        if self.next_s >= self.end_s {
            self.next_s = f64::INFINITY;
        }
    }

    fn next(&mut self) -> Option<Request> {
        let arrived_s = self.next_s;
        if arrived_s.is_infinite() {
            return None;
        }
        while let [_, rest @ ..] = self.sizes
            && rest.first().is_some_and(|next| next.from.as_secs_f64() <= arrived_s)
        {
            self.sizes = rest;
        }
        let size = self.sizes.first().map(|timed| timed.sizes.draw(&mut self.rng));
        let RequestSize { prompt, output } = size.unwrap_or(RequestSize { prompt: 1, output: 1 });
        let cached = wva_core::units::truncated_u32(f64::from(prompt) * self.prefix_hits).min(prompt - 1);
        self.burst = self.burst.saturating_sub(1);
        if self.burst == 0 {
            self.draw();
        }
        Some(Request::new(arrived_s, prompt, output, cached))
    }
}

/// A constant rate for some time.
#[derive(Debug, Clone, Copy)]
struct ConstantRate {
    rps: f64,
    until_s: f64,
}

/// A load as constant rates, repeated endlessly. Ramps and waves change in steps of a second.
#[derive(Debug, Clone)]
struct ConstantRates<'a> {
    segments: &'a [Segment],
    index: usize,
    /// When the current segment started, seconds.
    start_s: f64,
    /// When the next constant rate begins, seconds.
    from_s: f64,
}

impl ConstantRates<'_> {
    const STEP: Duration = Duration::from_secs(1);

    fn next(&mut self) -> ConstantRate {
        // One round is enough to find a segment that is longer than zero.
        for _ in 0..=self.segments.len() {
            let Some(segment) = self.segments.get(self.index) else { break };
            let end_s = self.start_s + segment.lasts().as_secs_f64();
            if self.from_s < end_s {
                let step_s =
                    if matches!(segment, Segment::Hold { .. }) { end_s } else { Self::STEP.as_secs_f64() };
                let until_s = end_s.min(self.from_s + step_s);
                let middle_s = (self.from_s + until_s) / 2.0 - self.start_s;
                self.from_s = until_s;
                return ConstantRate { rps: segment.rate_at(span(middle_s)), until_s };
            }
            self.start_s = end_s;
            self.index = (self.index + 1) % self.segments.len();
        }
        ConstantRate { rps: 0.0, until_s: f64::INFINITY }
    }
}

#[cfg(test)]
mod tests {
    use super::super::load::LoadShape;
    use super::super::physics::TP1;
    use super::super::scenario::SimVariant;
    use super::super::sizes::RequestSizes;
    use super::*;
    use wva_core::units::{Cost, Ratio};

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn scenario(segments: Vec<Segment>, pattern: Pattern) -> Scenario {
        let sizes = RequestSizes::uniform(1000.0, 100.0, 0.0);
        let variants = vec![SimVariant::new("v", TP1, Cost::new(1.0).unwrap())];
        let mut scenario = Scenario::new("test", s(1000), LoadShape::new(segments), sizes, variants);
        if let Arrivals::Rate { pattern: own, .. } = &mut scenario.arrivals {
            *own = pattern;
        }
        scenario
    }

    fn requests(scenario: &Scenario, seed: u64) -> Vec<Request> {
        let mut source = RequestSource::new(scenario, Rng::new(seed));
        std::iter::from_fn(|| source.next()).collect()
    }

    #[test]
    fn evenly_spaced_requests_follow_the_rate_through_pauses_and_repeats() {
        let hold = |rps, lasts| Segment::Hold { rps, lasts: s(lasts) };
        let times: Vec<f64> = requests(&scenario(vec![hold(2.0, 10), hold(0.0, 90)], Pattern::Even), 1)
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
        let arrived = requests(&scenario(ramp.clone(), Pattern::Even), 1);
        assert!((9_998..=10_000).contains(&arrived.len()), "{}", arrived.len());
        let early = arrived.iter().filter(|request| request.arrived_s < 500.0).count();
        assert!((2_495..=2_505).contains(&early), "a quarter in the first half: {early}");
        let poisson = requests(&scenario(ramp, Pattern::Poisson), 1);
        assert!((9_700..10_300).contains(&poisson.len()));
    }

    #[test]
    fn bursts_come_at_one_moment_and_keep_the_rate() {
        let hold = vec![Segment::Hold { rps: 10.0, lasts: s(1000) }];
        let arrived = requests(&scenario(hold, Pattern::Bursts(5)), 1);
        assert!((9_300..10_700).contains(&arrived.len()), "{}", arrived.len());
        assert!(arrived.chunks(5).all(|five| (five[0].arrived_s - five[4].arrived_s).abs() < 1e-12));
    }

    #[test]
    fn sizes_change_when_they_are_said_to_and_prefix_hits_are_a_share() {
        let hold = vec![Segment::Hold { rps: 1.0, lasts: s(1000) }];
        let mut scenario = scenario(hold, Pattern::Even);
        scenario.prefix_hits = Ratio::new(0.5).unwrap();
        scenario.sizes.push(TimedSizes { from: s(600), sizes: RequestSizes::uniform(10.0, 7.0, 0.0) });
        for request in requests(&scenario, 1) {
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
        let arrived = requests(&scenario, 1);
        let request = |prompt, output, cached| Request::new(1.0, prompt, output, cached);
        assert_eq!(arrived, [request(1, 1, 0), request(100, 10, 99)]);
    }
}
