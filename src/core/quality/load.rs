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

/// What one serving process was doing. What was not measured is `None`: zero is a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Load {
    /// Peak KV-cache usage of the last minute, 0 to 1.
    pub kv: Option<f64>,
    /// Peak waiting requests of the last minute.
    pub queue: Option<f64>,
    /// KV-cache usage at the newest sample, 0 to 1.
    pub kv_now: Option<f64>,
    /// Requests being generated at the newest sample.
    pub running: Option<f64>,
    /// Size of the KV cache, tokens; 0 when unknown.
    pub capacity: i64,
    /// Mean prompt of a finished request, tokens.
    pub prompt: Option<f64>,
    /// Mean generation of a finished request, tokens.
    pub generated: Option<f64>,
    /// Share of prompt tokens found in the prefix cache, 0 to 1.
    pub hits: Option<f64>,
    /// Requests a second that the scheduler gives it.
    pub arriving: Option<f64>,
    /// First tokens a second: requests that have begun.
    pub starting: Option<f64>,
    /// Mean time to first token, seconds.
    pub first_token: Option<f64>,
    /// Mean time between two tokens, seconds.
    pub between_tokens: Option<f64>,
    /// Tokens generated a second.
    pub generating: Option<f64>,
    /// Tokens a second of requests that finish.
    pub finishing: Option<f64>,
    /// Requests finished a second.
    pub finished: Option<f64>,
}

fn longer(one: Seconds, other: Seconds) -> Seconds {
    if one > other { one } else { other }
}

impl Load {
    /// Reads `signals` at `now`.
    #[must_use]
    pub fn read(signals: &Signals, now: Timestamp) -> Self {
        use Signal::{
            GenerationTokens, InterTokenLatencyCount, InterTokenLatencySum, KvCapacity, KvUsage,
            PrefixCacheHits, PrefixCacheQueries, RequestGenerationTokensCount, RequestGenerationTokensSum,
            RequestPromptTokensCount, RequestPromptTokensSum, Running, SchedulerAttempts,
            TimeToFirstTokenCount, TimeToFirstTokenSum, Waiting,
        };
        // Where scrapes are slow, a window has to be longer to hold the newest sample, and two of a counter.
        let interval = interval_of(signals);
        let (peaks, rates) =
            (longer(PEAK_WINDOW, fresh_limit(interval)), longer(RATE_WINDOW, stale_limit(interval)));
        let window = |signal, window| since(signals.get(signal), window, now);
        let mean = |sum, count, long| ratio(window(sum, long), window(count, long));
        let rate = |signal| rate(window(signal, rates));
        let newest = |signal| window(signal, peaks).last().map(|sample| sample.value);
        let positive = |value: Option<f64>| value.filter(|value| *value > 0.0);
        Self {
            kv: peak(window(KvUsage, peaks)),
            queue: peak(window(Waiting, peaks)),
            kv_now: newest(KvUsage),
            running: newest(Running),
            capacity: signals.newest(KvCapacity).map_or(0, |sample| tokens(sample.value)),
            prompt: mean(RequestPromptTokensSum, RequestPromptTokensCount, SIZE_WINDOW),
            generated: mean(RequestGenerationTokensSum, RequestGenerationTokensCount, SIZE_WINDOW),
            hits: mean(PrefixCacheHits, PrefixCacheQueries, SIZE_WINDOW)
                .filter(|share| (0.0..=1.0).contains(share)),
            arriving: rate(SchedulerAttempts),
            starting: rate(TimeToFirstTokenCount),
            first_token: positive(mean(TimeToFirstTokenSum, TimeToFirstTokenCount, rates)),
            between_tokens: positive(mean(InterTokenLatencySum, InterTokenLatencyCount, rates)),
            generating: rate(GenerationTokens).or_else(|| rate(RequestGenerationTokensSum)),
            finishing: rate(RequestGenerationTokensSum),
            finished: rate(RequestGenerationTokensCount),
        }
    }

    /// Tokens in the KV cache at its peak, at most what fits. Source: algorithm reference §1.1.
    #[must_use]
    pub fn used(&self) -> i64 {
        let share = self.kv.unwrap_or(0.0);
        tokens((share * float(self.capacity)).round()).clamp(0, self.capacity.max(0))
    }
}

/// A count of tokens: without the fraction, and the largest where it is more than that.
#[expect(clippy::cast_possible_truncation, reason = "a float cast saturates, as promised")]
const fn tokens(value: f64) -> i64 {
    value as i64
}

/// The samples of `series` that are at most `window` old.
fn since(series: &[Sample], window: Seconds, now: Timestamp) -> &[Sample] {
    let first = series.partition_point(|sample| Seconds::between(sample.at, now) > window);
    &series[first..]
}

fn peak(samples: &[Sample]) -> Option<f64> {
    samples.iter().map(|sample| sample.value).reduce(f64::max)
}

/// What a counter has grown by, a restart counting from zero; `None` when that cannot be said.
fn growth(samples: &[Sample]) -> Option<f64> {
    let grown = |pair: &[Sample]| match pair {
        [one, next] if next.value >= one.value => next.value - one.value,
        [_, next] => next.value,
        _ => 0.0,
    };
    (samples.len() > 1).then(|| samples.windows(2).map(grown).sum())
}

/// Growth a second.
fn rate(samples: &[Sample]) -> Option<f64> {
    let (first, last) = (samples.first()?, samples.last()?);
    let seconds = Seconds::between(first.at, last.at).get();
    growth(samples).filter(|_| seconds > 0.0).map(|grown| grown / seconds)
}

/// The growth of one counter by that of another; `None` while the second stands still.
fn ratio(sum: &[Sample], count: &[Sample]) -> Option<f64> {
    let (sum, count) = (growth(sum)?, growth(count)?);
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

    fn load(signals: &[(Signal, &[(i64, f64)])]) -> Load {
        let mut all = Signals::default();
        signals.iter().for_each(|(signal, values)| all.add(*signal, series(values)));
        Load::read(&all, at(0))
    }

    #[test]
    fn what_was_not_measured_is_not_zero() {
        assert_eq!(load(&[]), Load::default());
        assert_eq!(Load::default().generating, None);
        let still: &[_] = &[(-30, 4.0), (0, 4.0)];
        assert_eq!(load(&[(Signal::RequestGenerationTokensCount, still)]).finished, Some(0.0));
    }

    #[test]
    fn sizes_are_means_of_what_finished_and_nothing_when_nothing_did() {
        let sum: &[_] = &[(-290, 1000.0), (-5, 4000.0)];
        let count: &[_] = &[(-290, 10.0), (-5, 20.0)];
        let read =
            |count| load(&[(Signal::RequestPromptTokensSum, sum), (Signal::RequestPromptTokensCount, count)]);
        assert_eq!(read(count).prompt, Some(300.0));
        assert_eq!(read(&[(-290, 10.0), (-5, 10.0)]).prompt, None);
    }

    #[test]
    fn a_restart_of_the_engine_counts_from_zero() {
        let counter: &[_] = &[(-60, 100.0), (-30, 130.0), (0, 12.0)];
        assert_eq!(load(&[(Signal::SchedulerAttempts, counter)]).arriving, Some(42.0 / 60.0));
    }

    #[test]
    fn the_peak_forgets_after_a_minute_and_the_tokens_in_use_follow_it() {
        let kv: &[_] = &[(-61, 0.9), (-45, 0.5), (-30, 0.4), (-15, 0.3), (0, 0.25)];
        let read = load(&[(Signal::KvUsage, kv), (Signal::KvCapacity, &[(-300, 16_000.0)])]);
        assert_eq!((read.kv, read.kv_now, read.used()), (Some(0.5), Some(0.25), 8000));
    }

    #[test]
    fn an_absurd_capacity_saturates() {
        let read = load(&[(Signal::KvCapacity, &[(0, 1e300)]), (Signal::KvUsage, &[(0, 1.0)])]);
        assert_eq!((read.capacity, read.used()), (i64::MAX, i64::MAX));
    }
}
