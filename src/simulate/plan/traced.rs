//! A trace as the load of a scenario: rates become parts of a load shape, requests stay what they are, repeated or shifted by
//! chance where the scenario says so.

use std::sync::Arc;
use std::time::Duration;

use wva_core::units::whole;
use wva_sim::{Arrival, Arrivals, LoadShape, RequestSizes, Rng, Scenario, Segment, SizeSpread};

use super::super::file::{ArrivalsFile, Problem, ScenarioFile, Step, TraceFile};
use super::super::trace::{Stretch, Trace};
use super::build;

/// Requests of one run at most: a day of 20 requests/s fills a tenth of it.
const MOST_REQUESTS: f64 = 20_000_000.0;

/// Requests of a trace, cut to the scenario's time.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Traced {
    requests: Arc<[Arrival]>,
    /// How often each comes.
    times: f64,
    /// By how much later at most.
    jitter_s: f64,
}

impl Traced {
    /// The same, with each request so often.
    pub(super) fn scaled(&self, factor: f64) -> Self {
        Self { times: self.times * factor, ..self.clone() }
    }

    /// What comes with `seed`.
    pub(super) fn arrivals(&self, seed: u64) -> Arc<[Arrival]> {
        if (self.times - 1.0).abs() < 1e-9 && self.jitter_s <= 0.0 {
            return self.requests.clone();
        }
        // Another sequence than the one that the simulator draws from the same seed.
        let mut rng = Rng::new(seed ^ 0x7472_6163_6564);
        let expected = whole(self.times * self.requests.len() as f64 * 1.1) as usize;
        let mut all = Vec::with_capacity(expected);
        for request in self.requests.iter() {
            let sure = whole(self.times);
            let copies = sure + u32::from(rng.unit() < self.times - f64::from(sure));
            for _ in 0..copies {
                let at_s = request.at_s + self.jitter_s * rng.unit();
                all.push(Arrival { at_s, ..*request });
            }
        }
        all.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
        all.into()
    }
}

fn trace_way() -> [Step; 2] {
    ["load".into(), "trace".into()]
}

/// Makes `trace` the load of `scenario`; single requests are returned, to be put in for each seed.
pub(super) fn apply(
    scenario: &mut Scenario,
    trace: Trace,
    wanted: &TraceFile,
    file: &ScenarioFile,
) -> Result<Option<Traced>, Problem> {
    let from = wanted.from.map_or(Duration::ZERO, |from| from.get());
    let times = wanted.times.map_or(1.0, |times| times.get());
    match trace {
        Trace::Rates(stretches) => {
            if wanted.jitter.is_some() {
                return Err(Problem::at(
                    trace_way(),
                    "`jitter` is for traces of requests; this one has rates",
                ));
            }
            rates(scenario, &stretches, from, times, file).map(|()| None)
        }
        Trace::Requests(requests) => {
            let load = &file.load;
            // What --trace replaces was meant for rates, and is not said of the trace.
            let said =
                load.tokens.is_some() || load.prefix_hits.is_some() || load.arrivals != ArrivalsFile::Poisson;
            if said && load.trace.is_some() {
                let cause = "a trace of requests brings its own times and tokens: leave `tokens`, `prefixHits` and `arrivals` out";
                return Err(Problem::at(["load".into()], cause));
            }
            requests_of(scenario, &requests, from, times, wanted, file).map(Some)
        }
    }
}

fn requests_of(
    scenario: &mut Scenario,
    requests: &[Arrival],
    from: Duration,
    times: f64,
    wanted: &TraceFile,
    file: &ScenarioFile,
) -> Result<Traced, Problem> {
    let start = from.as_secs_f64();
    let last = requests.last().map_or(0.0, |request| request.at_s) - start;
    if last <= 0.0 {
        return Err(Problem::at(trace_way(), "`from` is after the trace's end"));
    }
    // Until the end of the minute in which the last request came.
    let whole_trace = Duration::from_secs(u64::from(whole((last / 60.0).floor()) + 1) * 60);
    scenario.duration = file.duration.map_or(whole_trace, |own| own.get());
    let end = scenario.duration.as_secs_f64();
    let inside = requests.iter().map(|request| Arrival { at_s: request.at_s - start, ..*request });
    let requests: Arc<[Arrival]> = inside.filter(|request| (0.0..end).contains(&request.at_s)).collect();
    if requests.len() as f64 * times > MOST_REQUESTS {
        let cause = format!("more than {MOST_REQUESTS} requests: say a shorter `duration`, or fewer `times`");
        return Err(Problem::at(trace_way(), cause));
    }
    scenario.arrivals = Arrivals::Trace(requests.clone());
    let jitter_s = wanted.jitter.map_or(0.0, |jitter| jitter.get().as_secs_f64());
    Ok(Traced { requests, times, jitter_s })
}

fn rates(
    scenario: &mut Scenario,
    stretches: &[Stretch],
    from: Duration,
    times: f64,
    file: &ScenarioFile,
) -> Result<(), Problem> {
    let own = scenario.sizes.first().map(|(_, sizes)| *sizes);
    let (mut segments, mut sizes, mut at) = (Vec::new(), Vec::new(), Duration::ZERO);
    let most = file.duration.map_or(super::super::values::MAX_DURATION, |own| own.get());
    let mut begins = Duration::ZERO;
    for stretch in stretches {
        let begun = std::mem::replace(&mut begins, stretch.until);
        let lasts = stretch.until.saturating_sub(begun.max(from)).min(most.saturating_sub(at));
        if lasts.is_zero() {
            continue;
        }
        let known = own.or_else(|| stretch.tokens.map(told));
        if let Some(known) = known.filter(|known| sizes.last().is_none_or(|(_, last)| last != known)) {
            sizes.push((if sizes.is_empty() { Duration::ZERO } else { at }, known));
        }
        segments.push(Segment::Hold { rps: (stretch.rps * times).min(100_000.0), lasts });
        at += lasts;
    }
    if at.is_zero() {
        return Err(Problem::at(trace_way(), "`from` is after the trace's end"));
    }
    if sizes.is_empty() {
        let cause = "this trace has rates only: say `tokens: {prompt: …, output: …}` beside `trace`";
        return Err(Problem::at(["load".into()], cause));
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
fn told((prompt, output): (f64, f64)) -> RequestSizes {
    let mean = |tokens: f64| tokens.round().clamp(1.0, RequestSizes::MAX_TOKENS);
    RequestSizes { prompt: mean(prompt), output: mean(output), spread: SizeSpread::Uniform(0.5) }
}

/// As much of a load's rate everywhere. Single requests have no rate: they stay.
pub(super) fn scaled(arrivals: &Arrivals, factor: f64) -> Arrivals {
    let Arrivals::Rate { load, pattern } = arrivals else { return arrivals.clone() };
    let times = |rps: f64| (rps * factor).min(100_000.0);
    let segments = load.segments().iter().map(|segment| match *segment {
        Segment::Hold { rps, lasts } => Segment::Hold { rps: times(rps), lasts },
        Segment::Ramp { from, to, lasts } => Segment::Ramp { from: times(from), to: times(to), lasts },
        Segment::Wave { mean, swing, period, lasts } => {
            Segment::Wave { mean: times(mean), swing: times(swing), period, lasts }
        }
    });
    Arrivals::Rate { load: LoadShape::new(segments.collect()), pattern: *pattern }
}
