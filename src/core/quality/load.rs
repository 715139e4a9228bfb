//! The load of one serving process, as the analyzers of capacity read it. Source: algorithm reference §1.1, §1.2, §1.4.

use jiff::Timestamp;

use super::PEAK_WINDOW;
use super::engine::{fresh_limit, interval_of, stale_limit};
use crate::snapshot::{Sample, Signal, Signals};
use crate::units::{Seconds, float};

/// Sizes of requests and hits of the cache are means of this window, as upstream's `rate(…[5m])`.
pub const SIZE_WINDOW: Seconds = Seconds::whole(300);

/// Rates and latencies are means of this window, as upstream's `rate(…[1m])`.
pub const RATE_WINDOW: Seconds = Seconds::whole(60);

/// What one serving process was doing: each part is read from its samples when it is asked for, since no analyzer needs
/// all of them. What was not measured is `None`: zero is a measurement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Load<'a> {
    signals: &'a Signals,
    now: Timestamp,
    /// Of peaks and of the newest values.
    peaks: Seconds,
    /// Of rates and latencies.
    rates: Seconds,
}

fn longer(one: Seconds, other: Seconds) -> Seconds {
    if one > other { one } else { other }
}

impl<'a> Load<'a> {
    /// Reads `signals` at `now`.
    #[must_use]
    pub fn read(signals: &'a Signals, now: Timestamp) -> Self {
        Self::scraped(signals, interval_of(signals), now)
    }

    /// Reads `signals`, which are scraped every `interval`, at `now`. Where scrapes are slow, a window has to be longer to
    /// hold the newest sample, and two of a counter.
    pub(super) fn scraped(signals: &'a Signals, interval: Seconds, now: Timestamp) -> Self {
        let peaks = longer(PEAK_WINDOW, fresh_limit(interval));
        Self { signals, now, peaks, rates: longer(RATE_WINDOW, stale_limit(interval)) }
    }

    /// Peak KV-cache usage of the last minute, 0 to 1.
    #[must_use]
    pub fn kv(&self) -> Option<f64> {
        self.peak(Signal::KvUsage)
    }

    /// Peak waiting requests of the last minute.
    #[must_use]
    pub fn queue(&self) -> Option<f64> {
        self.peak(Signal::Waiting)
    }

    /// KV-cache usage at the newest sample, 0 to 1.
    #[must_use]
    pub fn kv_now(&self) -> Option<f64> {
        self.newest(Signal::KvUsage)
    }

    /// Requests being generated at the newest sample.
    #[must_use]
    pub fn running(&self) -> Option<f64> {
        self.newest(Signal::Running)
    }

    /// Size of the KV cache, tokens; 0 when unknown.
    #[must_use]
    pub fn capacity(&self) -> i64 {
        self.signals.newest(Signal::KvCapacity).map_or(0, |sample| tokens(sample.value))
    }

    /// Mean prompt of a finished request, tokens.
    #[must_use]
    pub fn prompt(&self) -> Option<f64> {
        self.size(Signal::RequestPromptTokensSum, Signal::RequestPromptTokensCount)
    }

    /// Mean generation of a finished request, tokens.
    #[must_use]
    pub fn generated(&self) -> Option<f64> {
        self.size(Signal::RequestGenerationTokensSum, Signal::RequestGenerationTokensCount)
    }

    /// Share of prompt tokens found in the prefix cache, 0 to 1.
    #[must_use]
    pub fn hits(&self) -> Option<f64> {
        let share = self.size(Signal::PrefixCacheHits, Signal::PrefixCacheQueries);
        share.filter(|share| (0.0..=1.0).contains(share))
    }

    /// Requests a second that the scheduler gives it.
    #[must_use]
    pub fn arriving(&self) -> Option<f64> {
        self.rate(Signal::SchedulerAttempts)
    }

    /// First tokens a second: requests that have begun.
    #[must_use]
    pub fn starting(&self) -> Option<f64> {
        self.rate(Signal::TimeToFirstTokenCount)
    }

    /// Mean time to first token, seconds.
    #[must_use]
    pub fn first_token(&self) -> Option<f64> {
        self.latency(Signal::TimeToFirstTokenSum, Signal::TimeToFirstTokenCount)
    }

    /// Mean time between two tokens, seconds.
    #[must_use]
    pub fn between_tokens(&self) -> Option<f64> {
        self.latency(Signal::InterTokenLatencySum, Signal::InterTokenLatencyCount)
    }

    /// Tokens generated a second.
    #[must_use]
    pub fn generating(&self) -> Option<f64> {
        self.rate(Signal::GenerationTokens).or_else(|| self.finishing())
    }

    /// Tokens a second of requests that finish.
    #[must_use]
    pub fn finishing(&self) -> Option<f64> {
        self.rate(Signal::RequestGenerationTokensSum)
    }

    /// Requests finished a second.
    #[must_use]
    pub fn finished(&self) -> Option<f64> {
        self.rate(Signal::RequestGenerationTokensCount)
    }

    /// Tokens in a KV cache of `capacity` at its peak of `share`, at most what fits. Source: algorithm reference §1.1.
    #[must_use]
    pub fn used(share: f64, capacity: i64) -> i64 {
        tokens((share * float(capacity)).round()).clamp(0, capacity.max(0))
    }

    fn newest(&self, signal: Signal) -> Option<f64> {
        let newest = self.signals.newest(signal);
        let newest = newest.filter(|sample| Seconds::between(sample.at, self.now) <= self.peaks);
        newest.map(|sample| sample.value)
    }

    fn peak(&self, signal: Signal) -> Option<f64> {
        peak(latest(self.signals.get(signal), self.peaks, self.now))
    }

    fn size(&self, sum: Signal, count: Signal) -> Option<f64> {
        let growth = |signal| {
            let samples = nearly_all(self.signals.get(signal), SIZE_WINDOW, self.now);
            growth(samples, self.signals.falls(signal))
        };
        ratio(growth(sum)?, growth(count)?)
    }

    fn latency(&self, sum: Signal, count: Signal) -> Option<f64> {
        let growth = |signal| growth(self.lately(signal), true);
        ratio(growth(sum)?, growth(count)?).filter(|latency| *latency > 0.0)
    }

    fn rate(&self, signal: Signal) -> Option<f64> {
        rate(self.lately(signal))
    }

    fn lately(&self, signal: Signal) -> &'a [Sample] {
        latest(self.signals.get(signal), self.rates, self.now)
    }
}

/// A count of tokens: without the fraction, and the largest where it is more than that.
#[expect(clippy::cast_possible_truncation, reason = "a float cast saturates, as promised")]
const fn tokens(value: f64) -> i64 {
    value as i64
}

/// The samples of `series` that are at most `window` old, for a window that holds nearly all of them: little is kept for
/// longer than it.
fn nearly_all(series: &[Sample], window: Seconds, now: Timestamp) -> &[Sample] {
    let old = series.iter().take_while(|sample| Seconds::between(sample.at, now) > window);
    &series[old.count()..]
}

/// The samples of `series` that are at most `window` old, for a window that holds few of them.
pub(super) fn latest(series: &[Sample], window: Seconds, now: Timestamp) -> &[Sample] {
    let recent = series.iter().rev().take_while(|sample| Seconds::between(sample.at, now) <= window);
    &series[series.len() - recent.count()..]
}

fn peak(samples: &[Sample]) -> Option<f64> {
    samples.iter().map(|sample| sample.value).reduce(f64::max)
}

/// What a counter has grown by, a restart counting from zero; `None` when that cannot be said. Of one that never `falls`
/// only the ends are looked at: every sample on the way costs more than all the arithmetic.
fn growth(samples: &[Sample], falls: bool) -> Option<f64> {
    let grown = |pair: &[Sample]| match pair {
        [one, next] if next.value >= one.value => next.value - one.value,
        [_, next] => next.value,
        _ => 0.0,
    };
    match samples {
        [first, .., last] if !falls => Some(last.value - first.value),
        [_, .., _] => Some(samples.windows(2).map(grown).sum()),
        _ => None,
    }
}

/// Growth a second.
fn rate(samples: &[Sample]) -> Option<f64> {
    let (first, last) = (samples.first()?, samples.last()?);
    let seconds = Seconds::between(first.at, last.at).get();
    growth(samples, true).filter(|_| seconds > 0.0).map(|grown| grown / seconds)
}

/// The growth of one counter by that of another; `None` while the second stands still.
fn ratio(sum: f64, count: f64) -> Option<f64> {
    (count > 0.0).then(|| sum / count).filter(|mean| mean.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(!all.falls(generated));
        all.add(generated, series(&[(-150, 2.0)]));
        assert!(all.falls(generated));
    }

    #[test]
    fn the_ends_of_a_counter_that_never_falls_say_what_the_walk_says() {
        let rising = series(&[(-60, 5.0), (-45, 5.0), (-30, 17.0), (0, 1e12)]);
        assert_eq!(growth(&rising, false), growth(&rising, true));
        assert_eq!([growth(&rising[..1], false), growth(&[], false)], [None; 2]);
    }

    #[test]
    fn the_peak_forgets_after_a_minute_and_the_tokens_in_use_follow_it() {
        let kv: &[_] = &[(-61, 0.9), (-45, 0.5), (-30, 0.4), (-15, 0.3), (0, 0.25)];
        let all = signals(&[(Signal::KvUsage, kv), (Signal::KvCapacity, &[(-300, 16_000.0)])]);
        let read = Load::read(&all, at(0));
        assert_eq!((read.kv(), read.kv_now()), (Some(0.5), Some(0.25)));
        assert_eq!(Load::used(0.5, read.capacity()), 8000);
    }

    #[test]
    fn an_absurd_capacity_saturates() {
        let all = signals(&[(Signal::KvCapacity, &[(0, 1e300)])]);
        let capacity = Load::read(&all, at(0)).capacity();
        assert_eq!((capacity, Load::used(1.0, capacity)), (i64::MAX, i64::MAX));
    }
}
