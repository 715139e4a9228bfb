//! A trace as the load of a scenario. Rates become segments of a load; requests stay as they are, repeated or shifted randomly
//! where the scenario says so.

use std::sync::Arc;
use std::time::Duration;

use wva_core::units::truncated_u32;
use wva_sim::{Arrival, Arrivals, LoadShape, RequestSizes, Rng, Scenario, Segment, TimedSizes};

use super::super::file::{ArrivalsFile, Problem, ScenarioFile, TraceFile};
use super::super::trace::{RateInterval, TokenMeans, Trace};
use super::super::values::MAX_RPS;
use super::build;

/// The path of the trace in a scenario file.
const TRACE_FIELD: &str = "load.trace";
/// The most requests of a run: twelve days at 20 requests/s.
const MAX_REQUESTS: f64 = 20_000_000.0;

/// Changes a seed, so that these random numbers are not those that the simulator draws from it. "traced" in ASCII.
const SEED_MASK: u64 = 0x7472_6163_6564;

/// Requests of a trace, cut to the scenario's duration.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TracedRequests {
    requests: Arc<[Arrival]>,
    /// How often each request arrives, on average.
    repeats: f64,
    /// By how many seconds it may arrive later.
    max_jitter_s: f64,
}

impl TracedRequests {
    /// The same requests with `factor` times the repeats.
    pub(super) fn scaled(&self, factor: f64) -> Self {
        Self { repeats: self.repeats * factor, ..self.clone() }
    }

    /// The requests of `seed`.
    pub(super) fn arrivals(&self, seed: u64) -> Arc<[Arrival]> {
        if (self.repeats - 1.0).abs() < 1e-9 && self.max_jitter_s <= 0.0 {
            return self.requests.clone();
        }
        let mut rng = Rng::new(seed ^ SEED_MASK);
        let expected = truncated_u32(self.repeats * self.requests.len() as f64 * 1.1) as usize;
        let mut all = Vec::with_capacity(expected);
        for request in self.requests.iter() {
            let certain = truncated_u32(self.repeats);
            let copies = certain + u32::from(rng.unit() < self.repeats - f64::from(certain));
            for _ in 0..copies {
                let at_s = request.at_s + self.max_jitter_s * rng.unit();
                all.push(Arrival { at_s, ..*request });
            }
        }
        all.sort_by(|left, right| left.at_s.total_cmp(&right.at_s));
        all.into()
    }
}

/// Makes `trace` the load of `scenario`. Single requests are returned: the plan sets those of each seed.
pub(super) fn apply(
    scenario: &mut Scenario,
    trace: Trace,
    options: &TraceFile,
    file: &ScenarioFile,
) -> Result<Option<TracedRequests>, Problem> {
    let from = options.from.map_or(Duration::ZERO, |from| from.get());
    let times = options.times.map_or(1.0, |times| times.get());
    match trace {
        Trace::Rates(intervals) => {
            if options.jitter.is_some() {
                let cause = "`jitter` is for traces of requests; this trace has rates";
                return Err(Problem::new(TRACE_FIELD, cause));
            }
            use_rates(scenario, &intervals, from, times, file).map(|()| None)
        }
        Trace::Requests(requests) => {
            let load = &file.load;
            // With --trace, these fields belong to the rates that the trace replaces.
            let has_rate_fields =
                load.tokens.is_some() || load.prefix_hits.is_some() || load.arrivals != ArrivalsFile::Poisson;
            if has_rate_fields && load.trace.is_some() {
                let cause = "a trace of requests brings its own times and tokens: leave `tokens`, `prefixHits` and `arrivals` out";
                return Err(Problem::new("load", cause));
            }
            use_requests(scenario, &requests, from, times, options, file).map(Some)
        }
    }
}

fn use_requests(
    scenario: &mut Scenario,
    requests: &[Arrival],
    from: Duration,
    repeats: f64,
    options: &TraceFile,
    file: &ScenarioFile,
) -> Result<TracedRequests, Problem> {
    let start_s = from.as_secs_f64();
    let last_s = requests.last().map_or(0.0, |request| request.at_s) - start_s;
    if last_s <= 0.0 {
        return Err(Problem::new(TRACE_FIELD, "`from` is after the trace's end"));
    }
    // The whole trace lasts until the end of the minute of its last request.
    let whole_trace = Duration::from_secs(u64::from(truncated_u32((last_s / 60.0).floor()) + 1) * 60);
    scenario.duration = file.duration.map_or(whole_trace, |own| own.get());
    if scenario.duration > Scenario::MAX_DURATION {
        return Err(Problem::new(TRACE_FIELD, "the trace is longer than 8784h: set `duration`"));
    }
    let end_s = scenario.duration.as_secs_f64();
    let shifted = requests.iter().map(|request| Arrival { at_s: request.at_s - start_s, ..*request });
    let requests: Arc<[Arrival]> = shifted.filter(|request| (0.0..end_s).contains(&request.at_s)).collect();
    if requests.len() as f64 * repeats > MAX_REQUESTS {
        let cause = format!("more than {MAX_REQUESTS} requests: set a shorter `duration`, or fewer `times`");
        return Err(Problem::new(TRACE_FIELD, cause));
    }
    scenario.arrivals = Arrivals::Trace(requests.clone());
    let max_jitter_s = options.jitter.map_or(0.0, |jitter| jitter.get().as_secs_f64());
    Ok(TracedRequests { requests, repeats, max_jitter_s })
}

fn use_rates(
    scenario: &mut Scenario,
    intervals: &[RateInterval],
    from: Duration,
    times: f64,
    file: &ScenarioFile,
) -> Result<(), Problem> {
    let own = scenario.sizes.first().map(|timed| timed.sizes);
    let mut segments = Vec::new();
    let mut sizes = Vec::new();
    let mut at = Duration::ZERO;
    let max_duration = file.duration.map_or(Scenario::MAX_DURATION, |own| own.get());
    let mut start = Duration::ZERO;
    for interval in intervals {
        let interval_start = std::mem::replace(&mut start, interval.until);
        let lasts =
            interval.until.saturating_sub(interval_start.max(from)).min(max_duration.saturating_sub(at));
        if lasts.is_zero() {
            continue;
        }
        let known = own.or_else(|| interval.tokens.map(traced_sizes));
        let last = sizes.last().map(|timed: &TimedSizes| timed.sizes);
        if let Some(known) = known.filter(|known| last != Some(*known)) {
            let from = if sizes.is_empty() { Duration::ZERO } else { at };
            sizes.push(TimedSizes { from, sizes: known });
        }
        segments.push(Segment::Hold { rps: (interval.rps * times).min(MAX_RPS), lasts });
        at += lasts;
    }
    if at.is_zero() {
        return Err(Problem::new(TRACE_FIELD, "`from` is after the trace's end"));
    }
    if sizes.is_empty() {
        let cause = "this trace has only rates: set `tokens: {prompt: …, output: …}` beside `trace`";
        return Err(Problem::new("load", cause));
    }
    scenario.duration = file.duration.map_or(at, |own| own.get());
    scenario.sizes = sizes;
    let pattern = match &scenario.arrivals {
        Arrivals::Rate { pattern, .. } => *pattern,
        Arrivals::Trace(_) => build::pattern(file.load.arrivals),
    };
    scenario.arrivals = Arrivals::Rate { load: LoadShape::new(segments), pattern };
    Ok(())
}

/// Sizes of which only the means are known.
fn traced_sizes(means: TokenMeans) -> RequestSizes {
    let mean = |tokens: f64| tokens.round().clamp(1.0, RequestSizes::MAX_TOKENS);
    RequestSizes::uniform(mean(means.prompt), mean(means.output), 0.5)
}

/// Multiplies the rate of a load. Single requests have no rate and stay.
pub(super) fn scaled(arrivals: &Arrivals, factor: f64) -> Arrivals {
    let Arrivals::Rate { load, pattern } = arrivals else { return arrivals.clone() };
    let times = |rps: f64| (rps * factor).min(MAX_RPS);
    let segments = load.segments().iter().map(|segment| match *segment {
        Segment::Hold { rps, lasts } => Segment::Hold { rps: times(rps), lasts },
        Segment::Ramp { from, to, lasts } => Segment::Ramp { from: times(from), to: times(to), lasts },
        Segment::Wave { mean, swing, period, lasts } => {
            Segment::Wave { mean: times(mean), swing: times(swing), period, lasts }
        }
    });
    Arrivals::Rate { load: LoadShape::new(segments.collect()), pattern: *pattern }
}
