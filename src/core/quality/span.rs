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
fn later_max<'a>(one: (Span<'a>, f64), other: (Span<'a>, f64)) -> (Span<'a>, f64) {
    if other.1 >= one.1 { other } else { one }
}

/// Scrapes that follow each other, and what was counted between the first and the last.
#[derive(Clone, Copy)]
pub(super) struct Span<'a> {
    pub(super) rows: Rows<'a>,
    /// What may be read: nothing else is asked of a source, so nothing else may change a decision.
    pub(super) reads: SignalSet,
}

impl<'a> Span<'a> {
    /// The newest scrapes that cover `window`, at least `scrapes` of them.
    pub(super) fn of(rows: Rows<'a>, reads: SignalSet, window: Seconds, scrapes: usize) -> Option<Self> {
        let times = rows.times();
        let old = window.before(*times.last()?);
        let first = times.partition_point(|at| *at <= old).checked_sub(1)?;
        let rows = rows.since(times[first]);
        (rows.times().len() >= scrapes).then_some(Self { rows, reads })
    }

    pub(super) fn get(&self, signal: Signal) -> Series<'a> {
        if self.reads.has(signal) { self.rows.get(signal) } else { Series::default() }
    }

    pub(super) fn seconds(&self) -> f64 {
        let times = self.rows.times();
        times.first().zip(times.last()).map_or(0.0, |(first, last)| Seconds::between(*first, *last).get())
    }

    /// No scrape fell out: where one did, nobody saw what ran.
    pub(super) fn has_no_hole(&self, interval: Seconds) -> bool {
        let times = self.rows.times();
        times.windows(2).all(|two| Seconds::between(two[0], two[1]).get() < HOLE * interval.get())
    }

    /// What a counter grew by; `None` where both ends do not show it, or it was restarted.
    pub(super) fn grown(&self, signal: Signal) -> Option<f64> {
        self.moved(signal).filter(|_| !self.get(signal).falls())
    }

    /// By how much a gauge is more at the end than at the beginning; `None` where one of them does not show it.
    pub(super) fn moved(&self, signal: Signal) -> Option<f64> {
        let (times, series) = (self.rows.times(), self.get(signal));
        let (first, last) = (series.first()?, series.last()?);
        let ends = times.first() == Some(&first.at) && times.last() == Some(&last.at);
        ends.then_some(last.value - first.value)
    }

    pub(super) const fn new(rows: Rows<'a>, reads: SignalSet) -> Self {
        Self { rows, reads }
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
    pub(super) fn busiest(&self) -> Option<(Self, f64)> {
        let pair = |rows| {
            let pair = Self { rows, ..*self };
            pair.range(Signal::Running).filter(|[least, ..]| *least > 0.0 && pair.seconds() >= APART)?;
            let seconds = pair.gap_seconds_a_second()? / pair.tokens_a_step()?;
            Some((pair, seconds))
        };
        let mut shown = self.rows.pairs().filter_map(pair);
        let (one, other) = (shown.next()?, shown.next()?);
        Some(shown.fold(later_max(one, other), later_max))
    }

    /// Those seconds.
    pub(super) fn gap_seconds_a_step(&self) -> Option<f64> {
        self.busiest().map(|(_, seconds)| seconds)
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
        let steps = self.grown(Signal::EngineSteps).filter(|steps| *steps > 0.0)?;
        self.grown(Signal::GenerationTokens)
            .filter(|tokens| *tokens >= SOME_TOKENS)
            .map(|tokens| tokens / steps)
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

    /// The least, mean and greatest of a gauge; `None` where it was not shown.
    pub(super) fn range(&self, signal: Signal) -> Option<[f64; 3]> {
        let mut samples = self.get(signal).iter();
        let first = samples.next()?;
        let (mut least, mut most) = (first.value, first.value);
        let (mut area, mut seconds, mut before) = (0.0, 0.0, first);
        for sample in samples {
            (least, most) = (least.min(sample.value), most.max(sample.value));
            let passed = Seconds::between(before.at, sample.at).get();
            area += passed * f64::midpoint(before.value, sample.value);
            (seconds, before) = (seconds + passed, sample);
        }
        Some([least, if seconds > 0.0 { area / seconds } else { first.value }, most])
    }

    /// The mean of a gauge over the time: counters are compared with it, which count at every moment.
    pub(super) fn mean(&self, signal: Signal) -> Option<f64> {
        self.range(signal).map(|[_, mean, _]| mean)
    }
}
