//! The load of one serving process, as the analyzers of capacity read it. Source: algorithm reference §1.1, §1.2, §1.4.

use std::marker::PhantomData;

use jiff::Timestamp;

use super::freshness::{recent, stale_limit};
use super::sample_window::Window;
use super::signal_history::{Baseline, Substitution};
use crate::quality::analyzer_signals::Reads;
use crate::snapshot::{Rows, Sample, Series, Signal, SignalSet, Signals, highest_confirmed};
use crate::units::{Seconds, float};

/// Sizes of requests and hits of the cache are means of this window, as upstream's `rate(…[5m])`.
pub const SIZE_WINDOW: Seconds = Seconds::whole(300);

/// Rates and latencies are means of this window, as upstream's `rate(…[1m])`.
pub const RATE_WINDOW: Seconds = Seconds::whole(60);

/// What one serving process was doing: each part is read from its samples when it is asked for, since no analyzer needs
/// all of them. What was not measured is `None`: zero is a measurement.
///
/// `A` is the analyzer that reads it. What it has not declared ([`Reads`]) it cannot read: such a call does not compile.
#[derive(Debug)]
pub struct EngineLoad<'a, A> {
    reader: PhantomData<A>,
    signals: &'a Signals,
    /// What counts for peaks and newest values.
    peaks: Rows<'a>,
    /// For sizes.
    sizes: Rows<'a>,
    now: Timestamp,
    /// Where not everything that it shows is believed.
    instead: Option<Substitution<'a>>,
}

pub(super) fn longer(one: Seconds, other: Seconds) -> Seconds {
    if one > other { one } else { other }
}

impl<A> Clone for EngineLoad<'_, A> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A> Copy for EngineLoad<'_, A> {}

/// Fails to compile where the analyzer `A` has not declared that it reads a signal.
macro_rules! declared {
    ($($signal:ident),+) => {
        const { $(assert!(Self::READS.has(Signal::$signal), "the analyzer has not declared this signal");)+ }
    };
}

impl<'a, A> EngineLoad<'a, A> {
    /// Reads `signals` at `now`; `peaks` are the scrapes of the window of the peaks.
    pub(super) fn seen(signals: &'a Signals, peaks: Rows<'a>, now: Timestamp) -> Self {
        let sizes = signals.rows().since(SIZE_WINDOW.before(now));
        Self { reader: PhantomData, signals, peaks, sizes, now, instead: None }
    }

    /// The same with what `instead` says of signals that are not believed.
    pub(super) fn with(self, instead: Option<Substitution<'a>>) -> Self {
        Self { instead, ..self }
    }

    /// The scrapes of the last minute.
    pub(super) fn lately(&self) -> Window<'a> {
        Window::of(self.peaks)
    }

    /// Some of what an analyzer reads of it is estimated.
    #[must_use]
    pub fn is_estimated(&self) -> bool {
        self.instead.is_some_and(|instead| !instead.lacking.is_empty())
    }

    /// It shows `signals`, and they are believed.
    pub(crate) fn has(&self, signals: SignalSet) -> bool {
        self.instead.is_none_or(|instead| instead.lacking.and(signals).is_empty())
    }

    /// What is `needed` and not believed of it can be estimated.
    pub(crate) fn suffices(&self, needed: SignalSet) -> bool {
        self.instead.is_none_or(|instead| instead.is_enough(needed))
    }

    /// How full its cache is, is known or can be estimated.
    pub(crate) fn knows_usage(&self) -> bool {
        self.usage(|signal| self.newest(signal)).is_some()
    }

    /// None of `signals` is missing or contradicted.
    fn shows(&self, signals: &[Signal]) -> bool {
        self.has(SignalSet::of(signals))
    }

    /// What the variant's engines did when all was believed.
    fn usual(&self, part: fn(&Baseline) -> Option<f64>) -> Option<f64> {
        part(self.instead?.usual?)
    }

    /// A series of `rows`, from where it is believed on.
    fn series(&self, rows: Rows<'a>, signal: Signal) -> Series<'a> {
        let rows = self.instead.map_or(rows, |instead| instead.rows(rows, SignalSet::of(&[signal])));
        rows.get(signal)
    }

    pub(super) fn newest(&self, signal: Signal) -> Option<f64> {
        self.series(self.peaks, signal).last().map(|sample| sample.value)
    }

    pub(super) fn peak(&self, signal: Signal) -> Option<f64> {
        peak(self.series(self.peaks, signal))
    }

    /// The KV-cache usage, 0 to 1: where it is not believed, by what runs (`of` gives both).
    pub(super) fn usage(&self, of: impl Fn(Signal) -> Option<f64>) -> Option<f64> {
        if self.shows(&[Signal::KvUsage]) {
            return of(Signal::KvUsage);
        }
        let each = self.usual(|usual| usual.kv_a_request)?;
        of(Signal::Running)
            .filter(|_| self.shows(&[Signal::Running]))
            .map(|running| (running * each).min(1.0))
    }

    /// Peak waiting requests of the last minute. Where they are not believed: none waits in an engine that had room in some
    /// scrape of it, and enough to call for more replicas in one that had not.
    pub(super) fn waits(&self) -> Option<f64> {
        if self.shows(&[Signal::Waiting]) {
            return highest_confirmed(self.series(self.peaks, Signal::Waiting));
        }
        let most = self.instead?.sequences.filter(|_| self.shows(&[Signal::Running]))?;
        let running = self.series(self.peaks, Signal::Running);
        // What runs more than its argument says has another limit, which is not known.
        let full = |sample: Sample| sample.value >= FULL * most && sample.value <= most;
        let full = running.last().is_some() && running.iter().all(full);
        Some(if full { FULL_QUEUE } else { 0.0 })
    }

    /// The mean of what a sum and its count grew by while both were shown, from where both are believed on.
    pub(super) fn mean(&self, rows: Rows<'a>, sum: Signal, count: Signal) -> Option<f64> {
        let both = SignalSet::of(&[sum, count]);
        let rows = self.instead.map_or(rows, |instead| instead.rows(rows, both));
        let (mut sums, mut counts) = (rows.get(sum), rows.get(count));
        let from = [sums.first()?.at, counts.first()?.at];
        let until = [sums.last()?.at, counts.last()?.at];
        if from[0] != from[1] || until[0] != until[1] {
            let both = rows.since(from[0].max(from[1])).until(until[0].min(until[1]));
            (sums, counts) = (both.get(sum), both.get(count));
        }
        ratio(growth(sums)?, growth(counts)?)
    }

    pub(super) fn size(&self, sum: Signal, count: Signal) -> Option<f64> {
        self.mean(self.sizes, sum, count)
    }

    /// The same, read by `B`.
    #[must_use]
    pub fn by<B: Reads>(&self) -> EngineLoad<'a, B> {
        let Self { signals, peaks, sizes, now, instead, .. } = *self;
        EngineLoad { reader: PhantomData, signals, peaks, sizes, now, instead }
    }

    /// How loaded it is, to compare engines of one model by: cache and queue, 0 to 2.
    #[must_use]
    pub fn busyness(&self) -> f64 {
        let (kv, queue) = (self.usage(|signal| self.peak(signal)), self.waits());
        kv.unwrap_or(0.0) + queue.map_or(0.0, |queue| queue / (queue + FULL_QUEUE))
    }
}

/// An engine at its limit runs at least this share of it: scrapes fall between the end of a sequence and the beginning of the next.
const FULL: f64 = 0.9;

/// A queue of this length says as much as half a cache: the usual queue threshold of the percent rule.
const FULL_QUEUE: f64 = 5.0;

impl<'a, A: Reads> EngineLoad<'a, A> {
    const READS: SignalSet = A::NEEDED.with(A::OPTIONAL);

    /// Reads `signals` at `now`.
    #[must_use]
    pub fn read(signals: &'a Signals, now: Timestamp) -> Self {
        Self::seen(signals, recent(signals, now), now)
    }

    /// The scrapes for rates and latencies: where they are slow, more than of the usual window, to have two.
    fn rates(&self) -> Rows<'a> {
        let window = longer(RATE_WINDOW, stale_limit(self.signals.interval()));
        self.signals.rows().since(window.before(self.now))
    }

    /// Peak KV-cache usage of the last minute, 0 to 1.
    #[must_use]
    pub fn kv(&self) -> Option<f64> {
        declared!(KvUsage);
        self.usage(|signal| self.peak(signal))
    }

    /// Peak waiting requests of the last minute.
    #[must_use]
    pub fn queue(&self) -> Option<f64> {
        declared!(Waiting);
        self.waits()
    }

    /// KV-cache usage at the newest sample, 0 to 1.
    #[must_use]
    pub fn kv_now(&self) -> Option<f64> {
        declared!(KvUsage);
        self.usage(|signal| self.newest(signal))
    }

    /// Requests being generated at the newest sample.
    #[must_use]
    pub fn running(&self) -> Option<f64> {
        declared!(Running);
        if self.shows(&[Signal::Running]) {
            return self.newest(Signal::Running);
        }
        let each = self.usual(|usual| usual.kv_a_request).filter(|each| *each > 0.0)?;
        self.newest(Signal::KvUsage).filter(|_| self.shows(&[Signal::KvUsage])).map(|usage| usage / each)
    }

    /// Size of the KV cache, tokens; 0 when unknown.
    #[must_use]
    pub fn capacity(&self) -> i64 {
        declared!(KvCapacity);
        let own = || self.signals.newest(Signal::KvCapacity).map(|sample| sample.value);
        let usual = || self.usual(|usual| usual.capacity);
        if self.shows(&[Signal::KvCapacity]) { own() } else { usual() }.map_or(0, tokens)
    }

    /// Mean prompt of a finished request, tokens.
    #[must_use]
    pub fn prompt(&self) -> Option<f64> {
        declared!(RequestPromptTokensSum, RequestPromptTokensCount);
        let (sum, count) = (Signal::RequestPromptTokensSum, Signal::RequestPromptTokensCount);
        self.size_or(sum, count, |usual| usual.prompt)
    }

    /// Mean generation of a finished request, tokens.
    #[must_use]
    pub fn generated(&self) -> Option<f64> {
        declared!(RequestGenerationTokensSum, RequestGenerationTokensCount);
        let (sum, count) = (Signal::RequestGenerationTokensSum, Signal::RequestGenerationTokensCount);
        self.size_or(sum, count, |usual| usual.generated)
    }

    /// Share of prompt tokens found in the prefix cache, 0 to 1.
    #[must_use]
    pub fn hits(&self) -> Option<f64> {
        declared!(PrefixCacheHits, PrefixCacheQueries);
        let (found, all) = (Signal::PrefixCacheHits, Signal::PrefixCacheQueries);
        let share = self.size_or(found, all, |usual| usual.hits);
        share.filter(|share| (0.0..=1.0).contains(share))
    }

    /// Requests a second that the scheduler gives it.
    #[must_use]
    pub fn arriving(&self) -> Option<f64> {
        declared!(SchedulerAttempts);
        self.rate(Signal::SchedulerAttempts).filter(|_| self.shows(&[Signal::SchedulerAttempts]))
    }

    /// First tokens a second: requests that have begun. Where they are not believed, those that have finished.
    #[must_use]
    pub fn starting(&self) -> Option<f64> {
        declared!(TimeToFirstTokenCount, RequestGenerationTokensCount, RequestPromptTokensCount);
        let counts = [
            Signal::TimeToFirstTokenCount,
            Signal::RequestGenerationTokensCount,
            Signal::RequestPromptTokensCount,
        ];
        let believed = counts.into_iter().filter(|signal| self.shows(&[*signal]));
        believed.take(if self.is_estimated() { counts.len() } else { 1 }).find_map(|signal| self.rate(signal))
    }

    /// Mean time to first token, seconds.
    #[must_use]
    pub fn first_token(&self) -> Option<f64> {
        declared!(TimeToFirstTokenSum, TimeToFirstTokenCount);
        let (sum, count) = (Signal::TimeToFirstTokenSum, Signal::TimeToFirstTokenCount);
        self.latency(sum, count).filter(|_| self.shows(&[sum, count]))
    }

    /// Mean time between two tokens, seconds.
    #[must_use]
    pub fn between_tokens(&self) -> Option<f64> {
        declared!(InterTokenLatencySum, InterTokenLatencyCount);
        let (sum, count) = (Signal::InterTokenLatencySum, Signal::InterTokenLatencyCount);
        self.latency(sum, count).filter(|_| self.shows(&[sum, count]))
    }

    /// Tokens generated a second.
    #[must_use]
    pub fn generating(&self) -> Option<f64> {
        declared!(GenerationTokens, RequestGenerationTokensSum);
        let generated =
            self.rate(Signal::GenerationTokens).filter(|_| self.shows(&[Signal::GenerationTokens]));
        generated.or_else(|| self.finishing())
    }

    /// Tokens a second of requests that finish.
    #[must_use]
    pub fn finishing(&self) -> Option<f64> {
        declared!(RequestGenerationTokensSum);
        self.rate(Signal::RequestGenerationTokensSum)
            .filter(|_| self.shows(&[Signal::RequestGenerationTokensSum]))
    }

    /// Requests finished a second.
    #[must_use]
    pub fn finished(&self) -> Option<f64> {
        declared!(RequestGenerationTokensCount);
        let finished = Signal::RequestGenerationTokensCount;
        self.rate(finished).filter(|_| self.shows(&[finished]))
    }

    /// A mean size, and the usual one where it is not believed or nothing has finished since it is again.
    fn size_or(&self, sum: Signal, count: Signal, usual: fn(&Baseline) -> Option<f64>) -> Option<f64> {
        let own = || self.size(sum, count);
        let doubted = self.instead.is_some_and(|instead| instead.doubt.is_some());
        match self.shows(&[sum, count]) {
            true if doubted => own().or_else(|| self.usual(usual)),
            true => own(),
            false => self.usual(usual),
        }
    }

    fn latency(&self, sum: Signal, count: Signal) -> Option<f64> {
        self.mean(self.rates(), sum, count).filter(|latency| *latency > 0.0)
    }

    fn rate(&self, signal: Signal) -> Option<f64> {
        rate(self.series(self.rates(), signal))
    }
}

/// Tokens in a KV cache of `capacity` at its peak of `share`, at most what fits. Source: algorithm reference §1.1.
#[must_use]
pub fn used(share: f64, capacity: i64) -> i64 {
    tokens((share * float(capacity)).round()).clamp(0, capacity.max(0))
}

/// A count of tokens: without the fraction, and the largest where it is more than that.
#[expect(clippy::cast_possible_truncation, reason = "a float cast saturates, as promised")]
const fn tokens(value: f64) -> i64 {
    value as i64
}

pub(super) fn peak(series: Series<'_>) -> Option<f64> {
    series.iter().map(|sample| sample.value).reduce(f64::max)
}

/// What a counter has grown by, a restart counting from zero; `None` when that cannot be said. Of one that never falls only
/// the ends are looked at, which is exact and does not read what is between.
fn growth(series: Series<'_>) -> Option<f64> {
    let (first, last) = (series.first()?, series.last()?);
    if !series.falls() {
        return (first.at < last.at).then_some(last.value - first.value);
    }
    let values = series.iter().map(|sample| sample.value);
    let grown =
        values.clone().zip(values.skip(1)).map(|(one, next)| if next >= one { next - one } else { next });
    (first.at < last.at).then(|| grown.sum())
}

/// Growth a second.
fn rate(series: Series<'_>) -> Option<f64> {
    let seconds = Seconds::between(series.first()?.at, series.last()?.at).get();
    growth(series).map(|grown| grown / seconds)
}

/// The growth of one counter by that of another; `None` while the second stands still.
fn ratio(sum: f64, count: f64) -> Option<f64> {
    (count > 0.0).then(|| sum / count).filter(|mean| mean.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads everything.
    enum All {}

    impl Reads for All {
        const NEEDED: SignalSet = SignalSet::of(&Signal::ALL);
    }

    type EngineLoad<'a> = super::EngineLoad<'a, All>;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn series(values: &[(i64, f64)]) -> Vec<Sample> {
        values.iter().map(|(second, value)| Sample { at: at(*second), value: *value }).collect()
    }

    fn signals(all: &[(Signal, &[(i64, f64)])]) -> Signals {
        let mut signals = Signals::default();
        all.iter().for_each(|(signal, values)| signals.add(*signal, series(values)));
        signals
    }

    #[test]
    fn what_was_not_measured_is_not_zero() {
        let nothing = signals(&[]);
        let load = EngineLoad::read(&nothing, at(0));
        let gauges = [load.kv(), load.queue(), load.kv_now(), load.running()];
        let means = [load.prompt(), load.generated(), load.hits(), load.first_token(), load.between_tokens()];
        let rates = [load.arriving(), load.starting(), load.generating(), load.finishing(), load.finished()];
        assert_eq!((gauges, means, rates, load.capacity()), ([None; 4], [None; 5], [None; 5], 0));
        let still = signals(&[(Signal::RequestGenerationTokensCount, &[(-30, 4.0), (0, 4.0)])]);
        assert_eq!(EngineLoad::read(&still, at(0)).finished(), Some(0.0));
    }

    #[test]
    fn sizes_are_means_of_what_finished_and_nothing_when_nothing_did() {
        let sum: &[_] = &[(-290, 1000.0), (-5, 4000.0)];
        let count: &[_] = &[(-290, 10.0), (-5, 20.0)];
        let prompt = |count| {
            let all =
                signals(&[(Signal::RequestPromptTokensSum, sum), (Signal::RequestPromptTokensCount, count)]);
            EngineLoad::read(&all, at(0)).prompt()
        };
        assert_eq!(prompt(count), Some(300.0));
        assert_eq!(prompt(&[(-290, 10.0), (-5, 10.0)]), None);
    }

    #[test]
    fn a_restart_of_the_engine_counts_from_zero() {
        let counter: &[_] = &[(-60, 100.0), (-30, 130.0), (0, 12.0)];
        let counted = signals(&[(Signal::SchedulerAttempts, counter)]);
        assert_eq!(EngineLoad::read(&counted, at(0)).arriving(), Some(42.0 / 60.0));
    }

    #[test]
    fn a_restart_between_two_ends_that_rise_counts_in_sizes_too() {
        let sum: &[_] = &[(-290, 1000.0), (-150, 400.0), (-5, 6000.0)];
        let count: &[_] = &[(-290, 10.0), (-150, 2.0), (-5, 30.0)];
        let mut all =
            signals(&[(Signal::RequestPromptTokensSum, sum), (Signal::RequestPromptTokensCount, count)]);
        assert_eq!(EngineLoad::read(&all, at(0)).prompt(), Some(200.0));
        // One that comes late, between two that rise.
        let rising: &[_] = &[(-290, 10.0), (-5, 30.0)];
        let generated = Signal::RequestGenerationTokensCount;
        all.add(generated, series(rising));
        assert!(!all.get(generated).falls());
        all.add(generated, series(&[(-150, 2.0)]));
        assert!(all.get(generated).falls());
    }

    #[test]
    fn the_ends_of_a_counter_that_never_falls_say_what_the_walk_says() {
        let rising: &[_] = &[(-60, 5.0), (-45, 5.0), (-30, 17.0), (0, 1e12)];
        let restarted: Vec<_> = [(-75, 9.0)].into_iter().chain(rising.iter().copied()).collect();
        let grown = |all: &[_], since| {
            let all = signals(&[(Signal::SchedulerAttempts, all)]);
            growth(all.rows().since(at(since)).get(Signal::SchedulerAttempts))
        };
        assert_eq!([grown(rising, -60), grown(&restarted, -60)], [Some(1e12 - 5.0); 2]);
        assert_eq!(grown(&restarted, -75), Some(1e12));
        assert_eq!([grown(rising, 0), grown(rising, 1)], [None; 2]);
    }

    #[test]
    fn the_peak_forgets_after_a_minute_and_the_tokens_in_use_follow_it() {
        let kv: &[_] = &[(-61, 0.9), (-45, 0.5), (-30, 0.4), (-15, 0.3), (0, 0.25)];
        let all = signals(&[(Signal::KvUsage, kv), (Signal::KvCapacity, &[(-300, 16_000.0)])]);
        let load = EngineLoad::read(&all, at(0));
        assert_eq!((load.kv(), load.kv_now()), (Some(0.5), Some(0.25)));
        assert_eq!(used(0.5, load.capacity()), 8000);
    }

    #[test]
    fn an_absurd_capacity_saturates() {
        let all = signals(&[(Signal::KvCapacity, &[(0, 1e300)])]);
        let capacity = EngineLoad::read(&all, at(0)).capacity();
        assert_eq!((capacity, used(1.0, capacity)), (i64::MAX, i64::MAX));
    }
}
