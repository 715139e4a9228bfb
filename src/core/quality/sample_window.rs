//! Scrapes of one engine that follow each other, and what was counted and seen in them.

use crate::snapshot::{Rows, Series, Signal, SignalSet};
use crate::units::Seconds;

/// Events that are no chance: three requests, twenty tokens.
pub(super) const SOME_REQUESTS: f64 = 3.0;
pub(super) const SOME_TOKENS: f64 = 20.0;
/// Fewer running requests than this vary too much between two scrapes to be held against anything.
pub(super) const MANY_RUNNING: f64 = 4.0;

/// In less time than this, seconds, a step or two make all the difference.
const APART: f64 = 1.0;
/// Scrapes that are this many times the usual interval apart have one missing between them.
const HOLE: f64 = 1.8;

/// The one with more, and of two alike the newer.
fn later_max<'a>(one: (Rows<'a>, f64), other: (Rows<'a>, f64)) -> (Rows<'a>, f64) {
    if other.1 >= one.1 { other } else { one }
}

fn tokens_a_step(grown: impl Fn(Signal) -> Option<f64>) -> Option<f64> {
    let steps = grown(Signal::EngineSteps).filter(|steps| *steps > 0.0)?;
    grown(Signal::GenerationTokens).filter(|tokens| *tokens >= SOME_TOKENS).map(|tokens| tokens / steps)
}

/// Scrapes that follow each other, and what each signal has done from the first to the last: worked out once, since many rules ask.
pub(super) struct Window<'a> {
    rows: Rows<'a>,
    seconds: f64,
    /// By signal: how much more the last scrape shows than the first, NaN where one of them does not show it.
    moved: [f64; Signal::ALL.len()],
    /// Of each of `GAUGES` the least, mean and greatest, NaN where it was not shown.
    ranges: [[f64; 3]; GAUGES.len()],
}

/// The gauges of an engine, in the order of their signals.
const GAUGES: [Signal; 4] = [Signal::KvUsage, Signal::Waiting, Signal::Running, Signal::KvCapacity];

impl<'a> Window<'a> {
    pub(super) fn of(rows: Rows<'a>) -> Self {
        Self { rows, seconds: seconds(rows), moved: rows.moved(), ranges: ranges(rows) }
    }

    /// The newest scrapes that cover `length`, at least `scrapes` of them.
    pub(super) fn newest(rows: Rows<'a>, length: Seconds, scrapes: usize) -> Option<Self> {
        let times = rows.times();
        let old = length.before(*times.last()?);
        let first = times.partition_point(|at| *at <= old).checked_sub(1)?;
        (times.len() - first >= scrapes).then(|| Self::of(rows.since(times[first])))
    }

    pub(super) const fn seconds(&self) -> f64 {
        self.seconds
    }

    /// No scrape fell out: where one did, nobody saw what ran.
    pub(super) fn has_no_hole(&self, interval: Seconds) -> bool {
        let times = self.rows.times();
        times.windows(2).all(|two| Seconds::between(two[0], two[1]).get() < HOLE * interval.get())
    }
}

fn seconds(rows: Rows<'_>) -> f64 {
    let times = rows.times();
    times.first().zip(times.last()).map_or(0.0, |(first, last)| Seconds::between(*first, *last).get())
}

/// The least, mean over time and greatest of each gauge: counters are compared with its mean, which count at every moment.
fn ranges(rows: Rows<'_>) -> [[f64; 3]; GAUGES.len()] {
    let places = GAUGES.map(|gauge| rows.column(gauge));
    let mut seen =
        [Gauge { first: 0.0, at: 0.0, value: f64::NAN, least: f64::NAN, most: f64::NAN, area: 0.0 }; _];
    let (mut at, mut before) = (0.0, None);
    for (time, values) in rows.iter() {
        at += before.replace(time).map_or(0.0, |before| Seconds::between(before, time).get());
        for gauge in 0..GAUGES.len() {
            if let Some(value) = places[gauge].and_then(|place| values.get(place)) {
                seen[gauge].add(at, *value);
            }
        }
    }
    seen.map(|Gauge { first, at, value, least, most, area }| {
        let mean = if at > first { area / (at - first) } else { value };
        [least, mean, most]
    })
}

/// What has been seen of a gauge up to its newest sample, which says `value` at `at` seconds.
#[derive(Clone, Copy)]
struct Gauge {
    first: f64,
    at: f64,
    value: f64,
    least: f64,
    most: f64,
    area: f64,
}

impl Gauge {
    #[inline]
    fn add(&mut self, at: f64, value: f64) {
        if value.is_nan() {
            return;
        }
        if self.value.is_nan() {
            *self = Self { first: at, at, value, least: value, most: value, area: 0.0 };
            return;
        }
        self.area += (at - self.at) * 0.5 * (self.value + value);
        (self.at, self.value) = (at, value);
        if value < self.least {
            self.least = value;
        }
        if value > self.most {
            self.most = value;
        }
    }
}

/// A window, and what of it may be read: nothing else is asked of a source, so nothing else may change a decision.
#[derive(Clone, Copy)]
pub(super) struct Span<'a> {
    window: &'a Window<'a>,
    reads: SignalSet,
}

impl<'a> Span<'a> {
    pub(super) const fn new(window: &'a Window<'a>, reads: SignalSet) -> Self {
        Self { window, reads }
    }

    pub(super) fn get(&self, signal: Signal) -> Series<'a> {
        if self.reads.has(signal) { self.window.rows.get(signal) } else { Series::default() }
    }

    pub(super) const fn seconds(&self) -> f64 {
        self.window.seconds
    }

    /// What a counter grew by; `None` where both ends do not show it, or it was restarted.
    pub(super) fn grown(&self, signal: Signal) -> Option<f64> {
        self.moved(signal).filter(|_| !self.window.rows.falls(signal))
    }

    /// By how much a gauge is more at the end than at the beginning; `None` where one of them does not show it.
    pub(super) fn moved(&self, signal: Signal) -> Option<f64> {
        let moved = self.window.moved[signal as usize];
        (self.reads.has(signal) && !moved.is_nan()).then_some(moved)
    }

    /// The least, mean and greatest of one of `GAUGES`; `None` where it was not shown.
    pub(super) fn range(&self, gauge: Signal) -> Option<[f64; 3]> {
        let range = *self.window.ranges.get(gauge as usize)?;
        (self.reads.has(gauge) && !range[0].is_nan()).then_some(range)
    }

    /// The mean of a gauge over the time.
    pub(super) fn mean(&self, gauge: Signal) -> Option<f64> {
        self.range(gauge).map(|[_, mean, _]| mean)
    }

    /// Tokens are counted when they are computed. SGLang, which counts no steps, adds them when a request has finished.
    pub(super) fn is_timely(&self) -> bool {
        !self.get(Signal::EngineSteps).is_empty()
    }

    /// Seconds between tokens that were counted in a second.
    pub(super) fn gap_seconds_a_second(&self) -> Option<f64> {
        let seconds = Some(self.seconds()).filter(|seconds| *seconds > 0.0)?;
        self.grown(Signal::InterTokenLatencySum).map(|sum| sum / seconds)
    }

    /// The two scrapes between which most seconds between tokens were counted in a second, for each token of a step, and how many:
    /// between others nothing may have run for a while, as around a scrape at which nothing runs. At least two pairs must show it.
    pub(super) fn busiest(&self) -> Option<(Rows<'a>, f64)> {
        let needed = [Signal::InterTokenLatencySum, Signal::EngineSteps, Signal::GenerationTokens];
        if needed.into_iter().any(|signal| self.get(signal).is_empty()) {
            return None;
        }
        let pair = |rows: Rows<'a>| {
            let seconds = seconds(rows);
            let running = rows.get(Signal::Running).iter().map(|sample| sample.value);
            let least = running.reduce(f64::min).filter(|_| self.reads.has(Signal::Running))?;
            let grown = |signal| rows.moved_of(signal).filter(|_| !rows.falls(signal));
            let gaps = grown(Signal::InterTokenLatencySum).filter(|_| least > 0.0 && seconds >= APART)?;
            Some((rows, gaps / seconds / tokens_a_step(grown)?))
        };
        let mut shown = self.window.rows.pairs().filter_map(pair);
        let (one, other) = (shown.next()?, shown.next()?);
        Some(shown.fold(later_max(one, other), later_max))
    }

    /// The same, as a span of what may be read of both.
    pub(super) const fn with<'b>(&self, window: &'b Window<'b>) -> Span<'b> {
        Span { window, reads: self.reads }
    }

    /// Tokens generated for each gap between two and each first one.
    pub(super) fn tokens_a_gap(&self) -> Option<f64> {
        let gaps = self.grown(Signal::InterTokenLatencyCount)?;
        let gaps = gaps + self.grown(Signal::TimeToFirstTokenCount).unwrap_or(0.0);
        let tokens = self.grown(Signal::GenerationTokens).filter(|_| self.is_timely() && gaps >= SOME_TOKENS);
        tokens.map(|tokens| tokens / gaps)
    }

    /// Mean seconds between two tokens.
    pub(super) fn gap(&self) -> Option<f64> {
        let gaps = self.grown(Signal::InterTokenLatencyCount).filter(|gaps| *gaps >= SOME_TOKENS)?;
        self.grown(Signal::InterTokenLatencySum).map(|sum| sum / gaps)
    }

    /// Tokens that a step generates.
    pub(super) fn tokens_a_step(&self) -> Option<f64> {
        tokens_a_step(|signal| self.grown(signal))
    }

    /// Prompt tokens for each that is generated.
    pub(super) fn mix(&self) -> Option<f64> {
        let many = |tokens: &f64| self.is_timely() && *tokens >= SOME_TOKENS;
        let generated = self.grown(Signal::GenerationTokens).filter(many)?;
        self.grown(Signal::PromptTokens).map(|prompts| prompts / generated)
    }

    /// Prompt tokens that are computed for each request that begins, where three do.
    pub(super) fn prompt(&self) -> Option<f64> {
        let begun = self.grown(Signal::TimeToFirstTokenCount).or_else(|| {
            Some(self.grown(Signal::RequestGenerationTokensCount)? + self.moved(Signal::Running)?)
        });
        let tokens = self.grown(Signal::PromptTokens).filter(|_| self.is_timely())?;
        begun.filter(|begun| *begun >= SOME_REQUESTS).map(|begun| tokens / begun)
    }

    /// Finished requests that were counted with their answers, and with their prompts: three at least.
    pub(super) fn finished(&self) -> Option<[f64; 2]> {
        let answers = self.grown(Signal::RequestGenerationTokensCount)?;
        let prompts = self.grown(Signal::RequestPromptTokensCount)?;
        (answers.max(prompts) >= SOME_REQUESTS).then_some([answers, prompts])
    }

    /// Mean generation of a finished request, tokens, where ten have finished.
    pub(super) fn answer(&self) -> Option<f64> {
        let finished = self.grown(Signal::RequestGenerationTokensCount).filter(|count| *count >= 10.0)?;
        self.grown(Signal::RequestGenerationTokensSum).map(|tokens| tokens / finished)
    }

    /// Share of prompt tokens found in the prefix cache.
    pub(super) fn hits(&self) -> Option<f64> {
        let queries = self.grown(Signal::PrefixCacheQueries).filter(|tokens| *tokens >= SOME_TOKENS)?;
        self.grown(Signal::PrefixCacheHits).map(|hits| hits / queries)
    }
}
