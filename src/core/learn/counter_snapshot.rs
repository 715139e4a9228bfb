//! Counters and gauges of one engine at one scrape, and their growth between two scrapes.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::moment::Moment;
use crate::quality::analyzer_signals::{Rate, Reads};
use crate::snapshot::{Sample, Signal, SignalSet, Signals, newest_confirmed};

/// Two readings of an engine are at least this far apart, seconds: less says nothing about step times.
pub(super) const MIN_READING_GAP: f64 = 1.0;

/// Counters of an engine, as values or as growth. One that was not read has the value -1, and the growth NaN.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(from = "[f64; 10]", into = "[f64; 10]")]
pub struct Counters {
    /// Prompt tokens.
    pub prompt: f64,
    /// Prompt tokens found in the prefix cache.
    pub found: f64,
    /// Prompt tokens looked up in the prefix cache.
    pub(crate) looked_up: f64,
    /// Generated tokens.
    pub generated: f64,
    /// Inter-token latency, seconds.
    pub(crate) gap_seconds: f64,
    /// Inter-token gaps: one for each sequence and step.
    pub gaps: f64,
    /// Time to first token, seconds.
    pub(crate) first_seconds: f64,
    pub(crate) firsts: f64,
    /// Finished requests.
    pub finished: f64,
    /// Their generated tokens.
    pub(crate) finished_tokens: f64,
}

/// The value of a counter that was not read. What it counts until it is read again is lost.
const UNREAD: f64 = -1.0;

/// The signals behind [`Counters`], in the order of its fields.
const COUNTERS: [Signal; 10] = [
    Signal::PromptTokens,
    Signal::PrefixCacheHits,
    Signal::PrefixCacheQueries,
    Signal::GenerationTokens,
    Signal::InterTokenLatencySum,
    Signal::InterTokenLatencyCount,
    Signal::TimeToFirstTokenSum,
    Signal::TimeToFirstTokenCount,
    Signal::RequestGenerationTokensCount,
    Signal::RequestGenerationTokensSum,
];

const _: () = {
    let declared = Rate::NEEDED.with(Rate::OPTIONAL);
    assert!(
        declared.contains(SignalSet::new(&COUNTERS)) && declared.has(Signal::RefusedRequests),
        "learning counts what the rate policy does not declare"
    );
};

impl From<[f64; 10]> for Counters {
    fn from(all: [f64; 10]) -> Self {
        let [prompt, found, looked_up, generated, gap_seconds, gaps, rest @ ..] = all;
        let [first_seconds, firsts, finished, finished_tokens] = rest;
        Self {
            prompt,
            found,
            looked_up,
            generated,
            gap_seconds,
            gaps,
            first_seconds,
            firsts,
            finished,
            finished_tokens,
        }
    }
}

impl From<Counters> for [f64; 10] {
    fn from(own: Counters) -> Self {
        let Counters { prompt, found, looked_up, generated, gap_seconds, gaps, .. } = own;
        let Counters { first_seconds, firsts, finished, finished_tokens, .. } = own;
        let rest = [first_seconds, firsts, finished, finished_tokens];
        let [a, b, c, d] = rest;
        [prompt, found, looked_up, generated, gap_seconds, gaps, a, b, c, d]
    }
}

/// The growth of a counter, which was restarted if it is lower.
fn grown(now: f64, before: f64) -> f64 {
    now - if now >= before { before } else { 0.0 }
}

impl Counters {
    /// Growth since `before`. A counter that is lower was restarted; one that was not read at both ends has grown by NaN, never by 0.
    fn since(self, before: Self) -> Self {
        let (now, before): ([f64; 10], [f64; 10]) = (self.into(), before.into());
        let mut growths = [0.0; 10];
        for ((growth, now), before) in growths.iter_mut().zip(now).zip(before) {
            let unread = now < 0.0 || before < 0.0;
            *growth = if unread { f64::NAN } else { grown(now, before) };
        }
        growths.into()
    }

    /// Computed prompt tokens: without those found in the prefix cache, where that is measured.
    #[must_use]
    pub fn computed(&self) -> f64 {
        let found = if self.looked_up > 0.0 { (self.found / self.looked_up).clamp(0.0, 1.0) } else { 0.0 };
        self.prompt * (1.0 - found)
    }
}

/// Gauges of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(from = "[f64; 3]", into = "[f64; 3]")]
pub struct Gauges {
    /// Waiting requests.
    pub waiting: f64,
    /// Running requests.
    pub running: f64,
    /// KV-cache usage, 0 to 1.
    pub usage: f64,
}

impl From<[f64; 3]> for Gauges {
    fn from([waiting, running, usage]: [f64; 3]) -> Self {
        Self { waiting, running, usage }
    }
}

impl From<Gauges> for [f64; 3] {
    fn from(own: Gauges) -> Self {
        [own.waiting, own.running, own.usage]
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct CounterSnapshot {
    pub(crate) at: Moment,
    pub(crate) counters: Counters,
    pub(crate) gauges: Gauges,
    /// The counter of refused requests, where it was read. Not one of `counters`: an engine that lacks it lacks nothing else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) refused: Option<f64>,
}

impl CounterSnapshot {
    /// An engine that has just started: it counts from 0.
    pub(crate) fn at_start(at: Moment) -> Self {
        Self { at, counters: Counters::default(), gauges: Gauges::default(), refused: Some(0.0) }
    }

    /// Reads `signals` at the scrape `at`. A counter without a sample since `before` was not read; neither was one with a sample so soon
    /// after `before` that it was no reading of its own. A gauge without a sample keeps its value.
    pub(crate) fn read(signals: &Signals, at: Timestamp, before: Option<&Self>) -> Self {
        // The newest sample of each signal that is not later than the scrape, usually that of the scrape itself.
        let rows = signals.rows().until(at);
        let value = |signal| rows.get(signal).last().map(|sample| sample.value);
        let since = |sample: &Sample| {
            before.is_none_or(|before| before.at.until(sample.at.into()) >= MIN_READING_GAP)
        };
        let counted = |signal| rows.get(signal).last().filter(since).map(|sample| sample.value);
        let counters = COUNTERS.map(|signal| counted(signal).unwrap_or(UNREAD));
        let mut gauges: [f64; 3] = before.map_or([0.0; 3], |before| before.gauges.into());
        let waiting = newest_confirmed(rows.get(Signal::Waiting)).map(|sample| sample.value);
        let shown = [waiting, value(Signal::Running), value(Signal::KvUsage)];
        for (own, shown) in gauges.iter_mut().zip(shown) {
            *own = shown.unwrap_or(*own);
        }
        Self {
            at: at.into(),
            counters: counters.into(),
            gauges: gauges.into(),
            refused: counted(Signal::RefusedRequests),
        }
    }

    /// It counts fewer first tokens than `before`, so the engine was restarted.
    pub(crate) fn is_restart_of(&self, before: &Self) -> bool {
        self.counters.firsts >= 0.0 && self.counters.firsts < before.counters.firsts
    }

    /// Growth since `before`; since the start if the engine was restarted in between.
    pub(crate) fn since(&self, before: &Self) -> Growth {
        let start = Self::at_start(before.at);
        let before = if self.is_restart_of(before) { &start } else { before };
        Growth {
            from: before.at,
            to: self.at,
            counted: self.counters.since(before.counters),
            before: before.gauges,
            after: self.gauges,
            refused: self.refused.zip(before.refused).map(|(now, before)| grown(now, before)),
        }
    }
}

/// What one engine did between two scrapes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Growth {
    pub(crate) from: Moment,
    pub(crate) to: Moment,
    pub(crate) counted: Counters,
    pub(crate) before: Gauges,
    pub(crate) after: Gauges,
    /// Requests that the engine says to have refused; `None` if that is not known.
    pub(crate) refused: Option<f64>,
}

impl Growth {
    pub(crate) fn seconds(&self) -> f64 {
        self.from.until(self.to)
    }

    /// Admitted requests, by signals that are not `lacking`: first tokens plus the growth of the queue, which holds in overload too;
    /// or else finished requests plus the growth of running and waiting ones. `None` when neither is known.
    pub(crate) fn arrivals(&self, lacking: SignalSet) -> Option<f64> {
        let shows = |signals: &[Signal]| lacking.and(SignalSet::new(signals)).is_empty();
        let joined =
            |signal: Signal, after: f64, before: f64| if shows(&[signal]) { after - before } else { 0.0 };
        let waiting = joined(Signal::Waiting, self.after.waiting, self.before.waiting);
        let started = if shows(&[Signal::TimeToFirstTokenCount]) {
            self.counted.firsts
        } else if shows(&[Signal::RequestGenerationTokensCount, Signal::Running]) {
            self.counted.finished + self.after.running - self.before.running
        } else {
            return None;
        };
        let arrivals = started + waiting;
        arrivals.is_finite().then_some(arrivals)
    }
}
