//! The samples of one engine or scheduler in rows, one for each scrape. A scrape shows nearly all signals of an engine at one time, and a
//! decision about thousands of engines is bound by memory accesses, so values of one time are stored together.

use std::collections::BTreeMap;
use std::ops::Range;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::signal::{Signal, SignalSet};
use crate::units::Seconds;

/// The raw samples of one engine or scheduler.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(from = "BTreeMap<Signal, Vec<Sample>>", into = "BTreeMap<Signal, Vec<Sample>>")]
pub struct Signals {
    /// The signals that have samples, one bit each.
    known: u32,
    /// The counters of these with a sample below the one before.
    falls: u32,
    /// Those of these that some scrape may not have shown.
    sparse: u32,
    /// See [`Self::interval`].
    interval: Seconds,
    /// The times of the rows, oldest first.
    times: Vec<Timestamp>,
    /// Row by row the values of the known signals, in the order of the signals: NaN where one has no sample at that time.
    values: Vec<f64>,
}

/// Signals from which the scrape interval is computed, because every decision reads them: two of an engine and one of a scheduler.
const INTERVAL_SIGNALS: [Signal; 3] = [Signal::KvUsage, Signal::Waiting, Signal::SchedulerQueueSize];

impl Signals {
    /// Adds samples of `signal`. Of two samples with the same time the first stays. NaN is dropped.
    pub fn add(&mut self, signal: Signal, samples: impl IntoIterator<Item = Sample>) {
        let samples = samples.into_iter().filter(|sample| !sample.value.is_nan());
        let mut series: Vec<Sample> = self.get(signal).iter().chain(samples).collect();
        series.sort_by_key(|sample| sample.at);
        series.dedup_by_key(|sample| sample.at);
        if series.is_empty() {
            return;
        }
        let falls = signal.is_counter() && !series.is_sorted_by(|sample, next| sample.value <= next.value);
        self.falls = if falls { self.falls | signal.bit() } else { self.falls & !signal.bit() };
        self.merge(signal, &series);
        if INTERVAL_SIGNALS.contains(&signal) {
            self.interval = self.observed_interval();
        }
    }

    /// Replaces the samples of `signal` by `series`, which is in the order of time.
    fn merge(&mut self, signal: Signal, series: &[Sample]) {
        let (width, known) = (self.rows().width(), self.known | signal.bit());
        let place = Rows { known, ..self.rows() }.column(signal).unwrap_or_default();
        let rest = place + usize::from(self.known == known);
        let room = self.times.len().max(series.len());
        let mut times = Vec::with_capacity(room);
        let mut values = Vec::with_capacity(room * count_bits(known));
        let (empty_row, mut sparse) = ([f64::NAN; Signal::ALL.len()], self.sparse & !signal.bit());
        let mut rows = self.times.iter().zip(self.values.chunks_exact(width.max(1))).peekable();
        let mut series = series.iter().peekable();
        loop {
            let next = [rows.peek().map(|(at, _)| **at), series.peek().map(|sample| sample.at)];
            let Some(at) = next.into_iter().flatten().min() else { break };
            let row = rows.next_if(|(time, _)| **time == at);
            let sample = series.next_if(|sample| sample.at == at);
            sparse |= if row.is_none() { self.known & !signal.bit() } else { 0 };
            sparse |= if sample.is_none() { signal.bit() } else { 0 };
            let row = row.map_or(&empty_row[..width], |(_, row)| row);
            times.push(at);
            values.extend_from_slice(&row[..place]);
            values.push(sample.map_or(f64::NAN, |sample| sample.value));
            values.extend_from_slice(&row[rest..]);
        }
        (self.known, self.sparse, self.times, self.values) = (known, sparse, times, values);
    }

    /// Slides the window forward: adds the samples of `row` at the time `at`, and drops those before `oldest` and all but the newest
    /// `max_scrapes` scrapes.
    pub fn slide(
        &mut self,
        at: Timestamp,
        oldest: Timestamp,
        max_scrapes: usize,
        row: impl IntoIterator<Item = (Signal, f64)>,
    ) {
        let (mut known, mut values) = (0, [f64::NAN; Signal::ALL.len()]);
        for (signal, value) in row.into_iter().filter(|(_, value)| !value.is_nan()) {
            known |= signal.bit();
            values[signal.index()] = value;
        }
        if known == self.known && self.times.last().is_some_and(|last| *last < at) {
            for signal in signals_of(known) {
                let value = values[signal.index()];
                let fell = signal.is_counter() && self.newest(signal).is_some_and(|last| value < last.value);
                self.falls |= if fell { signal.bit() } else { 0 };
                self.values.push(value);
            }
            self.times.push(at);
        } else {
            signals_of(known)
                .for_each(|signal| self.add(signal, [Sample { at, value: values[signal.index()] }]));
        }
        let old = self.times.partition_point(|own| *own < oldest);
        self.keep(old.max(self.times.len().saturating_sub(max_scrapes))..self.times.len());
    }

    /// Drops the samples later than `latest`.
    pub fn cut_after(&mut self, latest: Timestamp) {
        self.keep(0..self.times.partition_point(|own| *own <= latest));
    }

    fn keep(&mut self, rows: Range<usize>) {
        let width = self.rows().width();
        self.times.truncate(rows.end);
        self.times.drain(..rows.start);
        self.values.truncate(rows.end * width);
        self.values.drain(..rows.start * width);
        let may_be_gone = if self.times.is_empty() { self.known } else { self.sparse };
        let gone = bits(signals_of(may_be_gone).filter(|signal| self.get(*signal).is_empty()));
        if gone != 0 {
            let left = self.known & !gone;
            let columns: Vec<usize> =
                signals_of(left).filter_map(|signal| self.rows().column(signal)).collect();
            let rows = self.values.chunks_exact(width.max(1));
            self.values = rows.flat_map(|row| columns.iter().map(|column| row[*column])).collect();
            self.known = left;
            self.sparse &= left;
        }
        let falls = signals_of(self.falls & self.known).filter(|signal| {
            let series = self.get(*signal);
            !series.iter().is_sorted_by(|sample, next| sample.value <= next.value)
        });
        self.falls = bits(falls);
        self.interval = self.observed_interval();
    }

    fn observed_interval(&self) -> Seconds {
        if INTERVAL_SIGNALS.iter().any(|signal| self.known & !self.sparse & signal.bit() != 0) {
            return median_gap(&self.times);
        }
        let times = |signal| self.get(signal).iter().map(|sample| sample.at).collect::<Vec<_>>();
        INTERVAL_SIGNALS
            .into_iter()
            .map(times)
            .max_by_key(Vec::len)
            .map_or(Seconds::ZERO, |longest| median_gap(&longest))
    }

    /// All rows.
    #[must_use]
    pub fn rows(&self) -> Rows<'_> {
        let Self { known, falls, times, values, .. } = self;
        Rows { known: *known, falls: *falls, times, values }
    }

    /// The samples of `signal`.
    #[must_use]
    pub fn get(&self, signal: Signal) -> Series<'_> {
        self.rows().get(signal)
    }

    /// The observed scrape interval: the median gap in the longest of the series that every decision reads. Zero with fewer than two samples.
    #[must_use]
    pub const fn interval(&self) -> Seconds {
        self.interval
    }

    /// The newest sample of `signal`.
    #[must_use]
    pub fn newest(&self, signal: Signal) -> Option<Sample> {
        self.get(signal).last()
    }

    /// The newest scrape, if every scrape has shown all of `needed`; `None` if each signal has to be looked up on its own.
    pub(crate) fn complete_until(&self, needed: SignalSet) -> Option<Timestamp> {
        let is_complete = SignalSet::from_bits(self.known & !self.sparse).contains(needed);
        self.times.last().copied().filter(|_| is_complete)
    }

    /// Some sample is later than `latest`.
    pub(crate) fn has_samples_after(&self, latest: Timestamp) -> bool {
        self.times.last().is_some_and(|own| *own > latest)
    }

    /// True when there is no sample at all.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.known == 0
    }

    /// Every signal that has samples, with its series.
    pub fn iter(&self) -> impl Iterator<Item = (Signal, Series<'_>)> {
        signals_of(self.known).map(|signal| (signal, self.get(signal)))
    }
}

/// How many signals are in a bit set.
const fn count_bits(bits: u32) -> usize {
    // At most 32, so the cast is exact.
    bits.count_ones() as usize
}

fn bits(signals: impl Iterator<Item = Signal>) -> u32 {
    signals.fold(0, |bits, signal| bits | signal.bit())
}

/// The signals of a bit set, in their order.
fn signals_of(bits: u32) -> impl Iterator<Item = Signal> {
    Signal::ALL.into_iter().filter(move |signal| bits & signal.bit() != 0)
}

impl PartialEq for Signals {
    fn eq(&self, other: &Self) -> bool {
        let same = |(left, right): (&f64, &f64)| left == right || (left.is_nan() && right.is_nan());
        self.known == other.known
            && self.times == other.times
            && self.values.iter().zip(&other.values).all(same)
    }
}

impl From<BTreeMap<Signal, Vec<Sample>>> for Signals {
    fn from(series: BTreeMap<Signal, Vec<Sample>>) -> Self {
        let mut signals = Self::default();
        series.into_iter().for_each(|(signal, samples)| signals.add(signal, samples));
        signals
    }
}

impl From<Signals> for BTreeMap<Signal, Vec<Sample>> {
    fn from(signals: Signals) -> Self {
        signals.iter().map(|(signal, samples)| (signal, samples.iter().collect())).collect()
    }
}

/// Consecutive scrapes.
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a> {
    known: u32,
    falls: u32,
    times: &'a [Timestamp],
    values: &'a [f64],
}

impl<'a> Rows<'a> {
    const fn width(&self) -> usize {
        count_bits(self.known)
    }

    /// Their times, oldest first.
    #[must_use]
    pub const fn times(self) -> &'a [Timestamp] {
        self.times
    }

    /// Time and values of each.
    pub(crate) fn iter(self) -> impl Iterator<Item = (Timestamp, &'a [f64])> {
        self.times.iter().copied().zip(self.values.chunks_exact(self.width().max(1)))
    }

    /// Index of `signal` in a row.
    pub(crate) fn column(&self, signal: Signal) -> Option<usize> {
        let is_known = self.known & signal.bit() != 0;
        is_known.then(|| count_bits(self.known & (signal.bit() - 1)))
    }

    /// Reads one value of each cache line, and returns a number that depends on all of them.
    pub(crate) fn read_cache_lines(self) -> u64 {
        const CACHE_LINE_BYTES: usize = 64;
        let times = self.times.iter().step_by(CACHE_LINE_BYTES / size_of::<Timestamp>());
        let times = times.map(|at| at.as_second().cast_unsigned());
        let values =
            self.values.iter().step_by(CACHE_LINE_BYTES / size_of::<f64>()).map(|value| value.to_bits());
        times.chain(values).fold(0, u64::wrapping_add)
    }

    /// Some sample of `signal`, possibly outside these rows, is below the one before: the counter was restarted.
    pub(crate) const fn falls(self, signal: Signal) -> bool {
        self.falls & signal.bit() != 0
    }

    /// By signal, its value in the last row minus that in the first; NaN where either is missing.
    pub(crate) fn moved(self) -> [f64; Signal::ALL.len()] {
        let mut moved = [f64::NAN; Signal::ALL.len()];
        if let Some(last) = self.values.len().checked_sub(self.width()) {
            let ends = self.values.iter().zip(&self.values[last..]);
            signals_of(self.known)
                .zip(ends)
                .for_each(|(signal, (first, last))| moved[signal.index()] = last - first);
        }
        moved
    }

    pub(crate) fn moved_of(self, signal: Signal) -> Option<f64> {
        let (first, last) = (self.column(signal)?, self.values.len().checked_sub(self.width())?);
        Some(self.values.get(last + first)? - self.values[first]).filter(|moved| !moved.is_nan())
    }

    /// The rows at `at` and later.
    #[must_use]
    pub fn since(self, at: Timestamp) -> Self {
        let first = self.times.partition_point(|own| *own < at);
        Self { times: &self.times[first..], values: &self.values[first * self.width()..], ..self }
    }

    /// The rows at `at` and earlier.
    #[must_use]
    pub fn until(self, at: Timestamp) -> Self {
        let end = match self.times.last() {
            Some(last) if *last <= at => return self,
            _ => self.times.partition_point(|own| *own <= at),
        };
        Self { times: &self.times[..end], values: &self.values[..end * self.width()], ..self }
    }

    /// Each row with the next.
    pub(crate) fn pairs(self) -> impl Iterator<Item = Self> {
        let width = self.width();
        let pair = move |(row, times): (usize, &'a [Timestamp])| {
            let values = &self.values[row * width..(row + 2) * width];
            Self { times, values, ..self }
        };
        self.times.windows(2).enumerate().map(pair)
    }

    /// The samples of `signal`.
    #[must_use]
    pub fn get(self, signal: Signal) -> Series<'a> {
        let values = self.column(signal).and_then(|column| self.values.get(column..));
        values.map_or_else(Series::default, |values| Series {
            times: self.times,
            values,
            width: self.width(),
            falls: self.falls(signal),
        })
    }
}

/// The samples of one signal, oldest first.
#[derive(Debug, Clone, Copy, Default)]
pub struct Series<'a> {
    times: &'a [Timestamp],
    /// Starts with its value in the first row.
    values: &'a [f64],
    width: usize,
    falls: bool,
}

impl<'a> Series<'a> {
    fn at(&self, row: usize) -> Option<Sample> {
        let value = self.values.get(row * self.width).copied().filter(|value| !value.is_nan());
        self.times.get(row).zip(value).map(|(at, value)| Sample { at: *at, value })
    }

    /// The samples, oldest first.
    pub fn iter(self) -> impl DoubleEndedIterator<Item = Sample> + Clone + use<'a> {
        (0..self.times.len()).filter_map(move |row| self.at(row))
    }

    /// The oldest sample.
    #[must_use]
    pub fn first(self) -> Option<Sample> {
        self.at(0).or_else(|| self.iter().next())
    }

    /// The newest sample.
    #[must_use]
    pub fn last(self) -> Option<Sample> {
        // Nearly always it is in the newest row.
        self.at(self.times.len().checked_sub(1)?).or_else(|| self.iter().next_back())
    }

    /// There are no samples.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.first().is_none()
    }

    /// The highest value.
    #[must_use]
    pub fn highest(self) -> Option<f64> {
        self.iter().map(|sample| sample.value).reduce(f64::max)
    }

    /// Some sample, possibly an earlier one, is below the one before: the counter was restarted.
    #[must_use]
    pub const fn falls(self) -> bool {
        self.falls
    }
}

/// A value with the time at which it was measured. Always finite: the input edge drops and counts everything else.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Time of the measurement.
    pub at: Timestamp,
    /// The value.
    pub value: f64,
}

/// Median gap between `times`, zero with fewer than two. One missed scrape does not change it.
#[must_use]
pub fn median_gap(times: &[Timestamp]) -> Seconds {
    let gaps = times.windows(2).map(|pair| pair[1].duration_since(pair[0]));
    let Some(last) = gaps.clone().next_back() else { return Seconds::ZERO };
    let count = gaps.len();
    // A gap that more than half of them equal is the median. Scrapes are mostly that regular, and then nothing has to be sorted.
    let median = if 2 * gaps.clone().filter(|gap| *gap == last).count() > count {
        last
    } else {
        *gaps.collect::<Vec<_>>().select_nth_unstable(count / 2).1
    };
    Seconds::from_duration(median)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn samples(all: &[(i64, f64)]) -> Vec<Sample> {
        all.iter().map(|(second, value)| Sample { at: at(*second), value: *value }).collect()
    }

    #[test]
    fn a_window_that_slides_is_one_that_was_added_to_and_cut() {
        let (mut slid, mut all) = (Signals::default(), BTreeMap::<Signal, Vec<Sample>>::new());
        for second in 0..50_i64 {
            let some = [Signal::Waiting, Signal::Running, Signal::PrefixCacheHits];
            let row = some.into_iter().filter(|signal| *signal != Signal::Running || second % 3 == 0);
            // Restarted at 30.
            let row: Vec<(Signal, f64)> = row.map(|signal| (signal, (second % 30) as f64)).collect();
            slid.slide(at(second), at(second - 20), 15, row.clone());
            for (signal, value) in row {
                all.entry(signal).or_default().push(Sample { at: at(second), value });
            }
            all.values_mut().for_each(|series| series.retain(|sample| sample.at > at(second - 15)));
            assert_eq!(slid, Signals::from(all.clone()), "at {second}");
            let restarted = (30..44).contains(&second);
            assert_eq!(slid.get(Signal::PrefixCacheHits).falls(), restarted, "at {second}");
        }
        slid.slide(at(100), at(90), 15, []);
        assert!(slid.is_empty() && slid.get(Signal::Running).is_empty());
    }

    #[test]
    fn a_window_takes_no_time_twice_and_nothing_that_is_not_a_number() {
        let mut signals = Signals::default();
        signals.slide(at(0), at(-9), 5, []);
        signals.slide(at(0), at(-9), 5, [(Signal::Waiting, f64::NAN)]);
        signals.add(Signal::Waiting, samples(&[(0, f64::NAN)]));
        assert_eq!(signals, Signals::default());
        for (second, value) in [(5, 1.0), (5, 2.0), (3, 3.0)] {
            signals.slide(at(second), at(-9), 5, [(Signal::Waiting, value)]);
        }
        let kept: Vec<Sample> = signals.get(Signal::Waiting).iter().collect();
        assert_eq!(kept, samples(&[(3, 3.0), (5, 1.0)]));
    }

    #[test]
    fn signals_scraped_at_different_times_stay_as_they_were() {
        let series = BTreeMap::from([
            (Signal::KvUsage, samples(&[(0, 0.1), (15, 0.2), (30, 0.3)])),
            (Signal::Waiting, samples(&[(15, 4.0)])),
            (Signal::SchedulerAttempts, samples(&[(-5, 1.0), (7, 2.0), (22, 3.0), (37, 4.0)])),
        ]);
        let signals = Signals::from(series.clone());
        assert_eq!(BTreeMap::from(signals.clone()), series);
        let ends = |rows: Rows<'_>, signal| {
            let second = |sample: Sample| sample.at.as_second();
            (rows.get(signal).first().map(second), rows.get(signal).last().map(second))
        };
        let some = signals.rows().since(at(1)).until(at(30));
        assert_eq!(ends(some, Signal::KvUsage), (Some(15), Some(30)));
        assert_eq!(ends(some, Signal::SchedulerAttempts), (Some(7), Some(22)));
        assert_eq!(ends(signals.rows().until(at(14)), Signal::Waiting), (None, None));
        let mut cut = signals;
        cut.cut_after(at(14));
        assert_eq!(
            cut.iter().map(|(signal, _)| signal).collect::<Vec<_>>(),
            [Signal::KvUsage, Signal::SchedulerAttempts]
        );
        assert_eq!(ends(cut.rows(), Signal::SchedulerAttempts), (Some(-5), Some(7)));
    }

    #[test]
    fn of_two_samples_at_one_time_the_first_stays() {
        let mut signals = Signals::default();
        signals.add(Signal::Waiting, samples(&[(15, 1.0), (0, 2.0), (15, 3.0)]));
        signals.add(Signal::Waiting, samples(&[(0, 9.0), (30, 4.0)]));
        let kept: Vec<Sample> = signals.get(Signal::Waiting).iter().collect();
        assert_eq!(kept, samples(&[(0, 2.0), (15, 1.0), (30, 4.0)]));
    }
}
