//! Consecutive scrapes of one engine, and what its counters and gauges did in them.

use crate::snapshot::{Rows, Series, Signal, SignalSet};
use crate::units::Seconds;

/// Fewer requests, or tokens, than these may be a coincidence.
pub(super) const MIN_REQUESTS: f64 = 3.0;
pub(super) const MIN_TOKENS: f64 = 20.0;
/// Fewer running requests vary too much between two scrapes to be compared with anything.
pub(super) const MIN_RUNNING: f64 = 4.0;

/// Shorter than this, seconds, one or two steps of the engine dominate what is counted between two scrapes.
const MIN_PAIR_SECONDS: f64 = 1.0;
/// Two scrapes that are this many usual intervals apart have a missing one between them.
const GAP_INTERVALS: f64 = 1.8;

/// Minimum, mean over time, and maximum of a gauge in a window.
#[derive(Clone, Copy)]
pub(super) struct GaugeRange {
    pub(super) min: f64,
    pub(super) mean: f64,
    pub(super) max: f64,
}

/// The pair with the higher value; of equal ones the later.
fn later_max<'a>(left: (Rows<'a>, f64), right: (Rows<'a>, f64)) -> (Rows<'a>, f64) {
    if right.1 >= left.1 { right } else { left }
}

fn tokens_per_step(growth: impl Fn(Signal) -> Option<f64>) -> Option<f64> {
    let steps = growth(Signal::EngineSteps).filter(|steps| *steps > 0.0)?;
    growth(Signal::GenerationTokens).filter(|tokens| *tokens >= MIN_TOKENS).map(|tokens| tokens / steps)
}

/// Consecutive scrapes and what each signal did from the first to the last, computed once because many rules ask for it.
pub(super) struct Window<'a> {
    rows: Rows<'a>,
    seconds: f64,
    /// By signal: last value minus first, NaN where either is missing.
    changes: [f64; Signal::ALL.len()],
    /// By gauge of `GAUGES`; NaN where it was not shown.
    ranges: [GaugeRange; GAUGES.len()],
}

/// The gauges of an engine. They are the first signals, so that a signal's number is its index here.
const GAUGES: [Signal; 4] = [Signal::KvUsage, Signal::Waiting, Signal::Running, Signal::KvCapacity];

impl<'a> Window<'a> {
    pub(super) fn new(rows: Rows<'a>) -> Self {
        Self { rows, seconds: seconds(rows), changes: rows.moved(), ranges: gauge_ranges(rows) }
    }

    /// The newest scrapes that cover `length`, if they are at least `min_scrapes`.
    pub(super) fn newest(rows: Rows<'a>, length: Seconds, min_scrapes: usize) -> Option<Self> {
        let times = rows.times();
        let start = length.before(*times.last()?);
        let first = times.partition_point(|at| *at <= start).checked_sub(1)?;
        (times.len() - first >= min_scrapes).then(|| Self::new(rows.since(times[first])))
    }

    pub(super) const fn seconds(&self) -> f64 {
        self.seconds
    }

    /// No scrape is missing: where one is, nobody saw what ran then.
    pub(super) fn is_gapless(&self, interval: Seconds) -> bool {
        let max_gap = GAP_INTERVALS * interval.get();
        self.rows.times().windows(2).all(|pair| Seconds::between(pair[0], pair[1]).get() < max_gap)
    }
}

fn seconds(rows: Rows<'_>) -> f64 {
    let times = rows.times();
    times.first().zip(times.last()).map_or(0.0, |(first, last)| Seconds::between(*first, *last).get())
}

/// The range of each gauge. The mean is taken over time, because counters, which it is compared with, count all the time.
fn gauge_ranges(rows: Rows<'_>) -> [GaugeRange; GAUGES.len()] {
    let columns = GAUGES.map(|gauge| rows.column(gauge));
    let mut totals = [GaugeTotal::EMPTY; GAUGES.len()];
    let (mut second, mut previous) = (0.0, None);
    for (time, values) in rows.iter() {
        second += previous.replace(time).map_or(0.0, |previous| Seconds::between(previous, time).get());
        // By reference: the loop over an array by value is not unrolled, and a decision would take a tenth more instructions.
        for (total, column) in totals.iter_mut().zip(&columns) {
            if let Some(value) = column.and_then(|column| values.get(column)) {
                total.add(second, *value);
            }
        }
    }
    totals.map(|total| {
        let seconds = total.last_second - total.first_second;
        let mean = if seconds > 0.0 { total.area / seconds } else { total.last };
        GaugeRange { min: total.min, mean, max: total.max }
    })
}

/// A gauge up to its newest sample, `last` at `last_second`. `area` is its integral by the trapezoidal rule.
#[derive(Clone, Copy)]
struct GaugeTotal {
    first_second: f64,
    last_second: f64,
    last: f64,
    min: f64,
    max: f64,
    area: f64,
}

impl GaugeTotal {
    const EMPTY: Self =
        Self { first_second: 0.0, last_second: 0.0, last: f64::NAN, min: f64::NAN, max: f64::NAN, area: 0.0 };

    #[inline]
    fn add(&mut self, second: f64, value: f64) {
        if value.is_nan() {
            return;
        }
        if self.last.is_nan() {
            *self = Self {
                first_second: second,
                last_second: second,
                last: value,
                min: value,
                max: value,
                area: 0.0,
            };
            return;
        }
        self.area += (second - self.last_second) * 0.5 * (self.last + value);
        self.last_second = second;
        self.last = value;
        if value < self.min {
            self.min = value;
        }
        if value > self.max {
            self.max = value;
        }
    }
}

/// A window restricted to the signals that an analyzer reads: nothing else is requested from a metric source, so nothing else may
/// change a decision.
#[derive(Clone, Copy)]
pub(super) struct Span<'a> {
    window: &'a Window<'a>,
    reads: SignalSet,
}

impl<'a> Span<'a> {
    pub(super) const fn new(window: &'a Window<'a>, reads: SignalSet) -> Self {
        Self { window, reads }
    }

    /// Another window, restricted to the same signals.
    pub(super) const fn with_window<'b>(&self, window: &'b Window<'b>) -> Span<'b> {
        Span { window, reads: self.reads }
    }

    pub(super) const fn reads(&self) -> SignalSet {
        self.reads
    }

    pub(super) fn series(&self, signal: Signal) -> Series<'a> {
        if self.reads.has(signal) { self.window.rows.get(signal) } else { Series::default() }
    }

    pub(super) const fn seconds(&self) -> f64 {
        self.window.seconds
    }

    /// Growth of a counter; `None` where either end lacks it, or the engine restarted.
    pub(super) fn growth(&self, signal: Signal) -> Option<f64> {
        self.change(signal).filter(|_| !self.window.rows.falls(signal))
    }

    /// Last value of a gauge minus its first; `None` where either end lacks it.
    pub(super) fn change(&self, signal: Signal) -> Option<f64> {
        let change = self.window.changes[signal.index()];
        (self.reads.has(signal) && !change.is_nan()).then_some(change)
    }

    /// The range of one of `GAUGES`; `None` where it was not shown.
    pub(super) fn range(&self, gauge: Signal) -> Option<GaugeRange> {
        let range = *self.window.ranges.get(gauge.index())?;
        (self.reads.has(gauge) && !range.min.is_nan()).then_some(range)
    }

    pub(super) fn mean(&self, gauge: Signal) -> Option<f64> {
        self.range(gauge).map(|range| range.mean)
    }

    pub(super) fn max(&self, gauge: Signal) -> Option<f64> {
        self.range(gauge).map(|range| range.max)
    }

    /// Tokens are counted as they are computed. SGLang, which counts no steps, adds them when a request finishes.
    pub(super) fn counts_tokens_live(&self) -> bool {
        !self.series(Signal::EngineSteps).is_empty()
    }

    /// Seconds of inter-token latency per second: about the number of running requests.
    pub(super) fn gap_seconds_per_second(&self) -> Option<f64> {
        let seconds = Some(self.seconds()).filter(|seconds| *seconds > 0.0)?;
        self.growth(Signal::InterTokenLatencySum).map(|sum| sum / seconds)
    }

    /// The pair of scrapes between which the engine was busiest, and its seconds of inter-token latency per second and token of
    /// a step. Between other scrapes the engine may have been idle for a while. At least two pairs must show it.
    pub(super) fn busiest_pair(&self) -> Option<(Rows<'a>, f64)> {
        let required = [Signal::InterTokenLatencySum, Signal::EngineSteps, Signal::GenerationTokens];
        if required.into_iter().any(|signal| self.series(signal).is_empty()) {
            return None;
        }
        let latency = |pair: Rows<'a>| {
            let seconds = seconds(pair);
            let running = pair.get(Signal::Running).iter().map(|sample| sample.value);
            let min_running = running.reduce(f64::min).filter(|_| self.reads.has(Signal::Running))?;
            let growth = |signal| pair.moved_of(signal).filter(|_| !pair.falls(signal));
            let gap_seconds = growth(Signal::InterTokenLatencySum)
                .filter(|_| min_running > 0.0 && seconds >= MIN_PAIR_SECONDS)?;
            Some((pair, gap_seconds / seconds / tokens_per_step(growth)?))
        };
        let mut pairs = self.window.rows.pairs().filter_map(latency);
        let (first, second) = (pairs.next()?, pairs.next()?);
        Some(pairs.fold(later_max(first, second), later_max))
    }

    /// Tokens generated for each inter-token gap or first token: above 1 with speculative decoding.
    pub(super) fn tokens_per_gap(&self) -> Option<f64> {
        let gaps = self.growth(Signal::InterTokenLatencyCount)?;
        let gaps = gaps + self.growth(Signal::TimeToFirstTokenCount).unwrap_or(0.0);
        let is_known = self.counts_tokens_live() && gaps >= MIN_TOKENS;
        self.growth(Signal::GenerationTokens).filter(|_| is_known).map(|tokens| tokens / gaps)
    }

    pub(super) fn inter_token_latency(&self) -> Option<f64> {
        let gaps = self.growth(Signal::InterTokenLatencyCount).filter(|gaps| *gaps >= MIN_TOKENS)?;
        self.growth(Signal::InterTokenLatencySum).map(|sum| sum / gaps)
    }

    pub(super) fn tokens_per_step(&self) -> Option<f64> {
        tokens_per_step(|signal| self.growth(signal))
    }

    pub(super) fn prompt_share(&self) -> Option<f64> {
        let is_known = |tokens: &f64| self.counts_tokens_live() && *tokens >= MIN_TOKENS;
        let generated = self.growth(Signal::GenerationTokens).filter(is_known)?;
        self.growth(Signal::PromptTokens).map(|prompts| prompts / generated)
    }

    /// Prompt tokens computed for each request that starts, if at least three do.
    pub(super) fn prompt_tokens(&self) -> Option<f64> {
        let started = self.growth(Signal::TimeToFirstTokenCount).or_else(|| {
            let finished = self.growth(Signal::RequestGenerationTokensCount)?;
            Some(finished + self.change(Signal::Running)?)
        });
        let tokens = self.growth(Signal::PromptTokens).filter(|_| self.counts_tokens_live())?;
        started.filter(|started| *started >= MIN_REQUESTS).map(|started| tokens / started)
    }

    /// Finished requests, as counted with their answers and with their prompts, if at least three are.
    pub(super) fn finished_counts(&self) -> Option<[f64; 2]> {
        let answers = self.growth(Signal::RequestGenerationTokensCount)?;
        let prompts = self.growth(Signal::RequestPromptTokensCount)?;
        (answers.max(prompts) >= MIN_REQUESTS).then_some([answers, prompts])
    }

    /// Mean generation of a finished request, tokens, if ten have finished: fewer have no mean size.
    pub(super) fn answer_tokens(&self) -> Option<f64> {
        let finished = self.growth(Signal::RequestGenerationTokensCount).filter(|count| *count >= 10.0)?;
        self.growth(Signal::RequestGenerationTokensSum).map(|tokens| tokens / finished)
    }

    /// Share of prompt tokens found in the prefix cache, 0 to 1.
    pub(super) fn cache_hits(&self) -> Option<f64> {
        let queries = self.growth(Signal::PrefixCacheQueries).filter(|tokens| *tokens >= MIN_TOKENS)?;
        self.growth(Signal::PrefixCacheHits).map(|hits| hits / queries)
    }
}
