//! The load of one serving process, as the analyzers of capacity read it. Source: algorithm reference §1.1, §1.2, §1.4.

use std::marker::PhantomData;

use jiff::Timestamp;

use super::engine::{recent, stale_limit};
use crate::analyze::reads::Reads;
use crate::snapshot::{Rows, Series, Signal, SignalSet, Signals};
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
pub struct Load<'a, A> {
    reader: PhantomData<A>,
    signals: &'a Signals,
    /// What counts for peaks and newest values.
    peaks: Rows<'a>,
    /// For sizes.
    sizes: Rows<'a>,
    now: Timestamp,
}

pub(super) fn longer(one: Seconds, other: Seconds) -> Seconds {
    if one > other { one } else { other }
}

impl<A> Clone for Load<'_, A> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A> Copy for Load<'_, A> {}

/// Fails to compile where the analyzer `A` has not declared that it reads a signal.
macro_rules! declared {
    ($($signal:ident),+) => {
        const { $(assert!(Self::READS.has(Signal::$signal), "the analyzer has not declared this signal");)+ }
    };
}

impl<'a, A> Load<'a, A> {
    /// Reads `signals` at `now`; `peaks` are the scrapes of the window of the peaks.
    pub(super) fn seen(signals: &'a Signals, peaks: Rows<'a>, now: Timestamp) -> Self {
        let sizes = signals.rows().since(SIZE_WINDOW.before(now));
        Self { reader: PhantomData, signals, peaks, sizes, now }
    }

    /// The same, read by `B`.
    #[must_use]
    pub fn by<B: Reads>(&self) -> Load<'a, B> {
        let Self { signals, peaks, sizes, now, .. } = *self;
        Load { reader: PhantomData, signals, peaks, sizes, now }
    }

    /// How loaded it is, to compare engines of one model by: cache and queue, 0 to 2.
    #[must_use]
    pub fn busyness(&self) -> f64 {
        let [kv, queue] = [Signal::KvUsage, Signal::Waiting].map(|signal| peak(self.peaks.get(signal)));
        kv.unwrap_or(0.0) + queue.map_or(0.0, |queue| queue / (queue + FULL_QUEUE))
    }
}

/// A queue of this length says as much as half a cache: the usual queue threshold of the percent rule.
const FULL_QUEUE: f64 = 5.0;

impl<'a, A: Reads> Load<'a, A> {
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
        self.peak(Signal::KvUsage)
    }

    /// Peak waiting requests of the last minute.
    #[must_use]
    pub fn queue(&self) -> Option<f64> {
        declared!(Waiting);
        self.peak(Signal::Waiting)
    }

    /// KV-cache usage at the newest sample, 0 to 1.
    #[must_use]
    pub fn kv_now(&self) -> Option<f64> {
        declared!(KvUsage);
        self.newest(Signal::KvUsage)
    }

    /// Requests being generated at the newest sample.
    #[must_use]
    pub fn running(&self) -> Option<f64> {
        declared!(Running);
        self.newest(Signal::Running)
    }

    /// Size of the KV cache, tokens; 0 when unknown.
    #[must_use]
    pub fn capacity(&self) -> i64 {
        declared!(KvCapacity);
        self.signals.newest(Signal::KvCapacity).map_or(0, |sample| tokens(sample.value))
    }

    /// Mean prompt of a finished request, tokens.
    #[must_use]
    pub fn prompt(&self) -> Option<f64> {
        declared!(RequestPromptTokensSum, RequestPromptTokensCount);
        self.size(Signal::RequestPromptTokensSum, Signal::RequestPromptTokensCount)
    }

    /// Mean generation of a finished request, tokens.
    #[must_use]
    pub fn generated(&self) -> Option<f64> {
        declared!(RequestGenerationTokensSum, RequestGenerationTokensCount);
        self.size(Signal::RequestGenerationTokensSum, Signal::RequestGenerationTokensCount)
    }

    /// Share of prompt tokens found in the prefix cache, 0 to 1.
    #[must_use]
    pub fn hits(&self) -> Option<f64> {
        declared!(PrefixCacheHits, PrefixCacheQueries);
        let share = self.size(Signal::PrefixCacheHits, Signal::PrefixCacheQueries);
        share.filter(|share| (0.0..=1.0).contains(share))
    }

    /// Requests a second that the scheduler gives it.
    #[must_use]
    pub fn arriving(&self) -> Option<f64> {
        declared!(SchedulerAttempts);
        self.rate(Signal::SchedulerAttempts)
    }

    /// First tokens a second: requests that have begun.
    #[must_use]
    pub fn starting(&self) -> Option<f64> {
        declared!(TimeToFirstTokenCount);
        self.rate(Signal::TimeToFirstTokenCount)
    }

    /// Mean time to first token, seconds.
    #[must_use]
    pub fn first_token(&self) -> Option<f64> {
        declared!(TimeToFirstTokenSum, TimeToFirstTokenCount);
        self.latency(Signal::TimeToFirstTokenSum, Signal::TimeToFirstTokenCount)
    }

    /// Mean time between two tokens, seconds.
    #[must_use]
    pub fn between_tokens(&self) -> Option<f64> {
        declared!(InterTokenLatencySum, InterTokenLatencyCount);
        self.latency(Signal::InterTokenLatencySum, Signal::InterTokenLatencyCount)
    }

    /// Tokens generated a second.
    #[must_use]
    pub fn generating(&self) -> Option<f64> {
        declared!(GenerationTokens, RequestGenerationTokensSum);
        self.rate(Signal::GenerationTokens).or_else(|| self.finishing())
    }

    /// Tokens a second of requests that finish.
    #[must_use]
    pub fn finishing(&self) -> Option<f64> {
        declared!(RequestGenerationTokensSum);
        self.rate(Signal::RequestGenerationTokensSum)
    }

    /// Requests finished a second.
    #[must_use]
    pub fn finished(&self) -> Option<f64> {
        declared!(RequestGenerationTokensCount);
        self.rate(Signal::RequestGenerationTokensCount)
    }

    fn newest(&self, signal: Signal) -> Option<f64> {
        self.peaks.get(signal).last().map(|sample| sample.value)
    }

    fn peak(&self, signal: Signal) -> Option<f64> {
        peak(self.peaks.get(signal))
    }

    fn size(&self, sum: Signal, count: Signal) -> Option<f64> {
        ratio(growth(self.sizes.get(sum))?, growth(self.sizes.get(count))?)
    }

    fn latency(&self, sum: Signal, count: Signal) -> Option<f64> {
        let rates = self.rates();
        ratio(growth(rates.get(sum))?, growth(rates.get(count))?).filter(|latency| *latency > 0.0)
    }

    fn rate(&self, signal: Signal) -> Option<f64> {
        rate(self.rates().get(signal))
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
    use crate::snapshot::Sample;

    /// Reads everything.
    enum All {}

    impl Reads for All {
        const NEEDED: SignalSet = SignalSet::of(&Signal::ALL);
    }

    type Load<'a> = super::Load<'a, All>;

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
        let read = Load::read(&nothing, at(0));
        let gauges = [read.kv(), read.queue(), read.kv_now(), read.running()];
        let means = [read.prompt(), read.generated(), read.hits(), read.first_token(), read.between_tokens()];
        let rates = [read.arriving(), read.starting(), read.generating(), read.finishing(), read.finished()];
        assert_eq!((gauges, means, rates, read.capacity()), ([None; 4], [None; 5], [None; 5], 0));
        let still = signals(&[(Signal::RequestGenerationTokensCount, &[(-30, 4.0), (0, 4.0)])]);
        assert_eq!(Load::read(&still, at(0)).finished(), Some(0.0));
    }

    #[test]
    fn sizes_are_means_of_what_finished_and_nothing_when_nothing_did() {
        let sum: &[_] = &[(-290, 1000.0), (-5, 4000.0)];
        let count: &[_] = &[(-290, 10.0), (-5, 20.0)];
        let prompt = |count| {
            let all =
                signals(&[(Signal::RequestPromptTokensSum, sum), (Signal::RequestPromptTokensCount, count)]);
            Load::read(&all, at(0)).prompt()
        };
        assert_eq!(prompt(count), Some(300.0));
        assert_eq!(prompt(&[(-290, 10.0), (-5, 10.0)]), None);
    }

    #[test]
    fn a_restart_of_the_engine_counts_from_zero() {
        let counter: &[_] = &[(-60, 100.0), (-30, 130.0), (0, 12.0)];
        let counted = signals(&[(Signal::SchedulerAttempts, counter)]);
        assert_eq!(Load::read(&counted, at(0)).arriving(), Some(42.0 / 60.0));
    }

    #[test]
    fn a_restart_between_two_ends_that_rise_counts_in_sizes_too() {
        let sum: &[_] = &[(-290, 1000.0), (-150, 400.0), (-5, 6000.0)];
        let count: &[_] = &[(-290, 10.0), (-150, 2.0), (-5, 30.0)];
        let mut all =
            signals(&[(Signal::RequestPromptTokensSum, sum), (Signal::RequestPromptTokensCount, count)]);
        assert_eq!(Load::read(&all, at(0)).prompt(), Some(200.0));
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
        let read = Load::read(&all, at(0));
        assert_eq!((read.kv(), read.kv_now()), (Some(0.5), Some(0.25)));
        assert_eq!(used(0.5, read.capacity()), 8000);
    }

    #[test]
    fn an_absurd_capacity_saturates() {
        let all = signals(&[(Signal::KvCapacity, &[(0, 1e300)])]);
        let capacity = Load::read(&all, at(0)).capacity();
        assert_eq!((capacity, used(1.0, capacity)), (i64::MAX, i64::MAX));
    }
}
