//! The load of one engine, as the analyzers of capacity read it. Windows are those of upstream's queries (WVA v0.9,
//! `internal/collector`).

use std::marker::PhantomData;

use jiff::Timestamp;

use super::analyzer_signals::Reads;
use super::freshness::{peak_rows, stale_limit};
use super::sample_window::Window;
use super::signal_history::{Baseline, Substitution};
use crate::snapshot::{Rows, Sample, Series, Signal, SignalSet, Signals, highest_confirmed};
use crate::units::{Seconds, to_f64, truncated_i64};

/// Request sizes and prefix cache hits are means over this window, as in upstream's `rate(…[5m])`.
pub(crate) const SIZE_WINDOW: Seconds = Seconds::whole(300);

/// Rates and latencies are means over this window, as in upstream's `rate(…[1m])`.
const RATE_WINDOW: Seconds = Seconds::whole(60);

/// An engine at its limit runs at least this share of it: scrapes fall between the end of a sequence and the start of the next.
const FULL_SHARE: f64 = 0.9;

/// A queue of this length indicates as much load as half a KV cache: the usual queue threshold of the percent rule.
const FULL_QUEUE: f64 = 5.0;

/// The load of one engine. Each value is read from the samples when it is asked for, because no analyzer needs all of them. What was
/// not measured is `None`: zero is a measurement.
///
/// `A` is the analyzer that reads it. A call for a signal that it has not declared ([`Reads`]) does not compile.
#[derive(Debug)]
pub(crate) struct EngineLoad<'a, A> {
    reader: PhantomData<A>,
    signals: &'a Signals,
    /// For peaks and newest values.
    peak_rows: Rows<'a>,
    size_rows: Rows<'a>,
    now: Timestamp,
    /// Where not every signal is trusted.
    substitution: Option<Substitution<'a>>,
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
    /// Reads `signals` at `now`; `peak_rows` are the scrapes of the peak window.
    pub(super) fn new(signals: &'a Signals, peak_rows: Rows<'a>, now: Timestamp) -> Self {
        let size_rows = signals.rows().since(SIZE_WINDOW.before(now));
        Self { reader: PhantomData, signals, peak_rows, size_rows, now, substitution: None }
    }

    /// The same, with distrusted signals estimated.
    pub(super) fn with_substitution(self, substitution: Option<Substitution<'a>>) -> Self {
        Self { substitution, ..self }
    }

    pub(crate) fn for_analyzer<B: Reads>(&self) -> EngineLoad<'a, B> {
        let Self { signals, peak_rows, size_rows, now, substitution, .. } = *self;
        EngineLoad { reader: PhantomData, signals, peak_rows, size_rows, now, substitution }
    }

    pub(super) fn peak_window(&self) -> Window<'a> {
        Window::new(self.peak_rows)
    }

    /// Some signals that an analyzer reads are estimated.
    pub(crate) fn is_estimated(&self) -> bool {
        self.substitution.is_some_and(|substitution| !substitution.lacking.is_empty())
    }

    /// It shows `signals`, and they are trusted.
    pub(crate) fn has(&self, signals: SignalSet) -> bool {
        self.substitution.is_none_or(|substitution| substitution.lacking.and(signals).is_empty())
    }

    /// Each of the `needed` signals is trusted or can be estimated.
    pub(crate) fn suffices(&self, needed: SignalSet) -> bool {
        self.substitution.is_none_or(|substitution| substitution.is_enough(needed))
    }

    /// KV-cache usage is known or can be estimated.
    pub(crate) fn has_usage(&self) -> bool {
        self.usage(|signal| self.newest(signal)).is_some()
    }

    fn shows(&self, signals: &[Signal]) -> bool {
        self.has(SignalSet::new(signals))
    }

    fn baseline(&self, value: fn(&Baseline) -> Option<f64>) -> Option<f64> {
        value(self.substitution?.baseline?)
    }

    /// A series of `rows`, from where it is trusted on.
    fn series(&self, rows: Rows<'a>, signal: Signal) -> Series<'a> {
        self.trusted_rows(rows, SignalSet::new(&[signal])).get(signal)
    }

    fn trusted_rows(&self, rows: Rows<'a>, signals: SignalSet) -> Rows<'a> {
        self.substitution.map_or(rows, |substitution| substitution.readable_rows(rows, signals))
    }

    pub(super) fn newest(&self, signal: Signal) -> Option<f64> {
        self.series(self.peak_rows, signal).last().map(|sample| sample.value)
    }

    pub(super) fn peak(&self, signal: Signal) -> Option<f64> {
        self.series(self.peak_rows, signal).highest()
    }

    /// KV-cache usage, 0 to 1, where `gauge` gives the value of a gauge. If distrusted it is estimated from the running requests.
    pub(super) fn usage(&self, gauge: impl Fn(Signal) -> Option<f64>) -> Option<f64> {
        if self.shows(&[Signal::KvUsage]) {
            return gauge(Signal::KvUsage);
        }
        let usage_per_request = self.baseline(|baseline| baseline.usage_per_request)?;
        let running = gauge(Signal::Running).filter(|_| self.shows(&[Signal::Running]))?;
        Some((running * usage_per_request).min(1.0))
    }

    /// Peak waiting requests of the last minute. If distrusted: 0 in an engine that had room in some scrape, and enough to call for
    /// more replicas in one that had none.
    pub(super) fn peak_waiting(&self) -> Option<f64> {
        if self.shows(&[Signal::Waiting]) {
            return highest_confirmed(self.series(self.peak_rows, Signal::Waiting));
        }
        let limit = self.substitution?.max_sequences.filter(|_| self.shows(&[Signal::Running]))?;
        let running = self.series(self.peak_rows, Signal::Running);
        // An engine that runs more than its configured maximum has another limit, which is not known.
        let is_at_limit = |sample: Sample| sample.value >= FULL_SHARE * limit && sample.value <= limit;
        let is_full = running.last().is_some() && running.iter().all(is_at_limit);
        Some(if is_full { FULL_QUEUE } else { 0.0 })
    }

    /// The growth of a sum by that of its count, over the time in which both were shown and are trusted.
    fn mean(&self, rows: Rows<'a>, sum: Signal, count: Signal) -> Option<f64> {
        let rows = self.trusted_rows(rows, SignalSet::new(&[sum, count]));
        let (mut sums, mut counts) = (rows.get(sum), rows.get(count));
        let from = [sums.first()?.at, counts.first()?.at];
        let until = [sums.last()?.at, counts.last()?.at];
        if from[0] != from[1] || until[0] != until[1] {
            let common = rows.since(from[0].max(from[1])).until(until[0].min(until[1]));
            sums = common.get(sum);
            counts = common.get(count);
        }
        ratio(growth(sums)?, growth(counts)?)
    }

    /// Mean size over [`SIZE_WINDOW`].
    pub(super) fn size(&self, sum: Signal, count: Signal) -> Option<f64> {
        self.mean(self.size_rows, sum, count)
    }

    /// How loaded it is compared with other engines of the model: KV usage and queue, 0 to 2.
    pub(crate) fn busyness(&self) -> f64 {
        let kv = self.usage(|signal| self.peak(signal)).unwrap_or(0.0);
        let queue = self.peak_waiting().map_or(0.0, |waiting| waiting / (waiting + FULL_QUEUE));
        kv + queue
    }
}

impl<'a, A: Reads> EngineLoad<'a, A> {
    const READS: SignalSet = A::NEEDED.with(A::OPTIONAL);

    pub(crate) fn read(signals: &'a Signals, now: Timestamp) -> Self {
        Self::new(signals, peak_rows(signals, now), now)
    }

    /// The scrapes for rates and latencies: with slow scrapes more than the usual window, to have at least two.
    fn rate_rows(&self) -> Rows<'a> {
        let window = RATE_WINDOW.max(stale_limit(self.signals.interval()));
        self.signals.rows().since(window.before(self.now))
    }

    /// Peak KV-cache usage of the last minute, 0 to 1.
    pub(crate) fn kv(&self) -> Option<f64> {
        declared!(KvUsage);
        self.usage(|signal| self.peak(signal))
    }

    /// Peak waiting requests of the last minute.
    pub(crate) fn queue(&self) -> Option<f64> {
        declared!(Waiting);
        self.peak_waiting()
    }

    /// KV-cache usage at the newest sample, 0 to 1.
    pub(crate) fn kv_now(&self) -> Option<f64> {
        declared!(KvUsage);
        self.usage(|signal| self.newest(signal))
    }

    pub(crate) fn running(&self) -> Option<f64> {
        declared!(Running);
        if self.shows(&[Signal::Running]) {
            return self.newest(Signal::Running);
        }
        let usage_per_request = self.baseline(|baseline| baseline.usage_per_request)?;
        let usage = self.newest(Signal::KvUsage).filter(|_| self.shows(&[Signal::KvUsage]))?;
        (usage_per_request > 0.0).then_some(usage / usage_per_request)
    }

    /// Size of the KV cache, tokens; 0 when unknown.
    pub(crate) fn capacity(&self) -> i64 {
        declared!(KvCapacity);
        let capacity = if self.shows(&[Signal::KvCapacity]) {
            self.signals.newest(Signal::KvCapacity).map(|sample| sample.value)
        } else {
            self.baseline(|baseline| baseline.capacity)
        };
        capacity.map_or(0, truncated_i64)
    }

    /// Mean prompt of a finished request, tokens.
    pub(crate) fn prompt(&self) -> Option<f64> {
        declared!(RequestPromptTokensSum, RequestPromptTokensCount);
        self.size_or_baseline(Signal::RequestPromptTokensSum, Signal::RequestPromptTokensCount, |baseline| {
            baseline.prompt
        })
    }

    /// Mean generation of a finished request, tokens.
    pub(crate) fn generated(&self) -> Option<f64> {
        declared!(RequestGenerationTokensSum, RequestGenerationTokensCount);
        self.size_or_baseline(
            Signal::RequestGenerationTokensSum,
            Signal::RequestGenerationTokensCount,
            |baseline| baseline.generated,
        )
    }

    /// Share of prompt tokens found in the prefix cache, 0 to 1.
    pub(crate) fn hits(&self) -> Option<f64> {
        declared!(PrefixCacheHits, PrefixCacheQueries);
        self.size_or_baseline(Signal::PrefixCacheHits, Signal::PrefixCacheQueries, |baseline| baseline.hits)
            .filter(|share| (0.0..=1.0).contains(share))
    }

    /// Requests per second that the scheduler dispatches to it.
    pub(crate) fn arriving(&self) -> Option<f64> {
        declared!(SchedulerAttempts);
        self.shown_rate(Signal::SchedulerAttempts)
    }

    /// Requests that start, per second, by their first tokens. If those are distrusted, requests that finish.
    pub(crate) fn starting(&self) -> Option<f64> {
        declared!(TimeToFirstTokenCount, RequestGenerationTokensCount, RequestPromptTokensCount);
        let counts = [
            Signal::TimeToFirstTokenCount,
            Signal::RequestGenerationTokensCount,
            Signal::RequestPromptTokensCount,
        ];
        let trusted = counts.into_iter().filter(|signal| self.shows(&[*signal]));
        trusted.take(if self.is_estimated() { counts.len() } else { 1 }).find_map(|signal| self.rate(signal))
    }

    pub(crate) fn first_token(&self) -> Option<f64> {
        declared!(TimeToFirstTokenSum, TimeToFirstTokenCount);
        self.latency(Signal::TimeToFirstTokenSum, Signal::TimeToFirstTokenCount)
    }

    pub(crate) fn between_tokens(&self) -> Option<f64> {
        declared!(InterTokenLatencySum, InterTokenLatencyCount);
        self.latency(Signal::InterTokenLatencySum, Signal::InterTokenLatencyCount)
    }

    pub(crate) fn generating(&self) -> Option<f64> {
        declared!(GenerationTokens, RequestGenerationTokensSum);
        self.shown_rate(Signal::GenerationTokens).or_else(|| self.finishing())
    }

    /// Generated tokens of finishing requests, per second.
    pub(crate) fn finishing(&self) -> Option<f64> {
        declared!(RequestGenerationTokensSum);
        self.shown_rate(Signal::RequestGenerationTokensSum)
    }

    pub(crate) fn finished(&self) -> Option<f64> {
        declared!(RequestGenerationTokensCount);
        self.shown_rate(Signal::RequestGenerationTokensCount)
    }

    /// A mean size; the baseline's if it is distrusted, or if nothing has finished since it is trusted again.
    fn size_or_baseline(
        &self,
        sum: Signal,
        count: Signal,
        baseline: fn(&Baseline) -> Option<f64>,
    ) -> Option<f64> {
        if !self.shows(&[sum, count]) {
            return self.baseline(baseline);
        }
        let was_contradicted =
            self.substitution.is_some_and(|substitution| substitution.contradictions.is_some());
        let size = self.size(sum, count);
        if was_contradicted { size.or_else(|| self.baseline(baseline)) } else { size }
    }

    fn latency(&self, sum: Signal, count: Signal) -> Option<f64> {
        let latency = self.mean(self.rate_rows(), sum, count).filter(|latency| *latency > 0.0);
        latency.filter(|_| self.shows(&[sum, count]))
    }

    /// Growth per second of a counter that is trusted.
    fn shown_rate(&self, signal: Signal) -> Option<f64> {
        self.rate(signal).filter(|_| self.shows(&[signal]))
    }

    fn rate(&self, signal: Signal) -> Option<f64> {
        rate(self.series(self.rate_rows(), signal))
    }
}

/// Tokens in a KV cache of `capacity` tokens at a usage of `share`, at most what fits (WVA v0.9 rounds likewise).
pub(crate) fn used_tokens(share: f64, capacity: i64) -> i64 {
    truncated_i64((share * to_f64(capacity)).round()).clamp(0, capacity.max(0))
}

/// Growth of a counter, a restart counting from zero; `None` with fewer than two samples. If it never falls the two ends are enough,
/// which is exact and reads nothing in between.
fn growth(series: Series<'_>) -> Option<f64> {
    let (first, last) = (series.first()?, series.last()?);
    if first.at >= last.at {
        return None;
    }
    if !series.falls() {
        return Some(last.value - first.value);
    }
    let values = series.iter().map(|sample| sample.value);
    let steps = values.clone().zip(values.skip(1));
    Some(steps.map(|(before, after)| if after >= before { after - before } else { after }).sum())
}

fn rate(series: Series<'_>) -> Option<f64> {
    let seconds = Seconds::between(series.first()?.at, series.last()?.at).get();
    growth(series).map(|growth| growth / seconds)
}

/// Mean of `count` observations; `None` while there is none.
fn ratio(sum: f64, count: f64) -> Option<f64> {
    (count > 0.0).then(|| sum / count).filter(|mean| mean.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An analyzer that reads everything.
    enum Everything {}

    impl Reads for Everything {
        const NEEDED: SignalSet = SignalSet::new(&Signal::ALL);
    }

    type EngineLoad<'a> = super::EngineLoad<'a, Everything>;

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
    fn an_unmeasured_value_is_not_zero() {
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
        assert_eq!(used_tokens(0.5, load.capacity()), 8000);
    }

    #[test]
    fn an_absurd_capacity_saturates() {
        let all = signals(&[(Signal::KvCapacity, &[(0, 1e300)])]);
        let capacity = EngineLoad::read(&all, at(0)).capacity();
        assert_eq!((capacity, used_tokens(1.0, capacity)), (i64::MAX, i64::MAX));
    }
}
