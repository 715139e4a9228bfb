//! What one serving process showed at one moment, and what happened between two of these moments.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::moment::Moment;
use crate::quality::analyzer_signals::{Rate, Reads};
use crate::snapshot::{Sample, Signal, SignalSet, Signals, newest_confirmed};

/// Readings of one process are at least this far apart, seconds: what happens in less says nothing of a step.
pub(super) const APART: f64 = 1.0;

/// Counters of a serving process, as they stand, or what they grew by. One that was not read is -1 where it stands, and not a
/// number where it grew.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(from = "[f64; 10]", into = "[f64; 10]")]
pub struct Counters {
    /// Prompt tokens.
    pub prompt: f64,
    /// Of all prompt tokens looked up in the prefix cache, those found.
    pub found: f64,
    /// Prompt tokens looked up in the prefix cache.
    pub looked_up: f64,
    /// Generated tokens.
    pub generated: f64,
    /// Seconds between tokens.
    pub gap_seconds: f64,
    /// Gaps between tokens: one a sequence and step.
    pub gaps: f64,
    /// Seconds to first tokens.
    pub first_seconds: f64,
    /// First tokens.
    pub firsts: f64,
    /// Requests finished.
    pub finished: f64,
    /// Tokens that these generated.
    pub finished_tokens: f64,
}

/// Where a counter stands that was not read. When it is read again, what it counted in between is nobody's.
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
        declared.contains(SignalSet::of(&COUNTERS)),
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

impl Counters {
    /// What was counted since `before`. A counter that is lower began anew; one that was not read at both ends grew by nobody
    /// knows what, which is not a number and never 0.
    fn since(self, before: Self) -> Self {
        let (now, before): ([f64; 10], [f64; 10]) = (self.into(), before.into());
        let mut grown = [0.0; 10];
        for ((grown, now), before) in grown.iter_mut().zip(now).zip(before) {
            let unread = now < 0.0 || before < 0.0;
            *grown = if unread { f64::NAN } else { now - if now >= before { before } else { 0.0 } };
        }
        grown.into()
    }

    /// Prompt tokens that were computed: without those found in the prefix cache, where it is measured.
    #[must_use]
    pub fn computed(&self) -> f64 {
        let found = if self.looked_up > 0.0 { (self.found / self.looked_up).clamp(0.0, 1.0) } else { 0.0 };
        self.prompt * (1.0 - found)
    }
}

/// Gauges of a serving process.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(from = "[f64; 3]", into = "[f64; 3]")]
pub struct Gauges {
    /// Requests waiting.
    pub waiting: f64,
    /// Requests running.
    pub running: f64,
    /// Share of the KV cache in use, 0 to 1.
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

/// One serving process at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CounterSnapshot {
    /// When.
    pub at: Moment,
    /// Its counters.
    pub counters: Counters,
    /// Its gauges.
    pub gauges: Gauges,
}

impl CounterSnapshot {
    /// A process that has just begun: everything it has is counted from 0.
    #[must_use]
    pub fn blank(at: Moment) -> Self {
        Self { at, counters: Counters::default(), gauges: Gauges::default() }
    }

    /// What `signals` say `at` a scrape. A counter without a sample since `before` was not read, nor was one that only a scrape
    /// just after `before` showed, which was no reading of its own; a gauge stands where it stood.
    #[must_use]
    pub fn read(signals: &Signals, at: Timestamp, before: Option<&Self>) -> Self {
        // Of each signal the newest that is not later: the one of the same scrape, as long as there is one.
        let rows = signals.rows().until(at);
        let value = |signal| rows.get(signal).last().map(|sample| sample.value);
        let since = |sample: &Sample| before.is_none_or(|before| before.at.until(sample.at.into()) >= APART);
        let counters = COUNTERS
            .map(|signal| rows.get(signal).last().filter(since).map_or(UNREAD, |sample| sample.value));
        let mut gauges: [f64; 3] = before.map_or([0.0; 3], |before| before.gauges.into());
        let waiting = newest_confirmed(rows.get(Signal::Waiting)).map(|sample| sample.value);
        let shown = [waiting, value(Signal::Running), value(Signal::KvUsage)];
        for (own, shown) in gauges.iter_mut().zip(shown) {
            *own = shown.unwrap_or(*own);
        }
        Self { at: at.into(), counters: counters.into(), gauges: gauges.into() }
    }

    /// It counts fewer first tokens than `before`.
    #[must_use]
    pub fn is_restart_of(&self, before: &Self) -> bool {
        self.counters.firsts >= 0.0 && self.counters.firsts < before.counters.firsts
    }

    /// What happened from `before` to now. A process that counts fewer first tokens than before was restarted: all it had
    /// is gone.
    #[must_use]
    pub fn since(&self, before: &Self) -> Growth {
        let blank = Self::blank(before.at);
        let before = if self.is_restart_of(before) { &blank } else { before };
        Growth {
            from: before.at,
            to: self.at,
            counted: self.counters.since(before.counters),
            before: before.gauges,
            after: self.gauges,
        }
    }
}

/// What happened in one serving process between two moments.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Growth {
    /// The earlier moment.
    pub from: Moment,
    /// The later one.
    pub to: Moment,
    /// What was counted in between.
    pub counted: Counters,
    /// Gauges at the earlier moment.
    pub before: Gauges,
    /// Gauges at the later one.
    pub after: Gauges,
}

impl Growth {
    /// Seconds in between.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.from.until(self.to)
    }

    /// Requests that arrived, by what is not `lacking`: those that got their first token, and those that joined the waiting
    /// ones; right in overload too. Else those that finished, and those that joined the running and waiting ones. `None` when
    /// neither was read.
    #[must_use]
    pub fn arrivals(&self, lacking: SignalSet) -> Option<f64> {
        let shows = |signals: &[Signal]| lacking.and(SignalSet::of(signals)).is_empty();
        let joined =
            |signal: Signal, after: f64, before: f64| if shows(&[signal]) { after - before } else { 0.0 };
        let waiting = joined(Signal::Waiting, self.after.waiting, self.before.waiting);
        let begun = if shows(&[Signal::TimeToFirstTokenCount]) {
            self.counted.firsts
        } else if shows(&[Signal::RequestGenerationTokensCount, Signal::Running]) {
            self.counted.finished + self.after.running - self.before.running
        } else {
            return None;
        };
        let arrivals = begun + waiting;
        arrivals.is_finite().then_some(arrivals)
    }
}
