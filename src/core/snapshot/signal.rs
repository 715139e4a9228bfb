//! What is measured.

use serde::{Deserialize, Serialize};

/// What can be measured of an engine or of a scheduler. Counters only grow, until a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Signal {
    /// Gauge: share of the KV cache in use, 0 to 1.
    KvUsage,
    /// Gauge: requests waiting in the engine.
    Waiting,
    /// Gauge: requests being generated.
    Running,
    /// Gauge: KV-cache size in tokens (blocks × block size).
    KvCapacity,
    /// Counter: prompt tokens.
    PromptTokens,
    /// Counter: generated tokens.
    GenerationTokens,
    /// Counter: seconds of inter-token latency.
    InterTokenLatencySum,
    /// Counter: measured inter-token gaps.
    InterTokenLatencyCount,
    /// Counter: seconds of time to first token.
    TimeToFirstTokenSum,
    /// Counter: first tokens.
    TimeToFirstTokenCount,
    /// Counter: prompt tokens of finished requests.
    RequestPromptTokensSum,
    /// Counter: finished requests, as counted by prompt length.
    RequestPromptTokensCount,
    /// Counter: generated tokens of finished requests.
    RequestGenerationTokensSum,
    /// Counter: finished requests, as counted by generated length.
    RequestGenerationTokensCount,
    /// Counter: tokens found in the prefix cache.
    PrefixCacheHits,
    /// Counter: tokens looked up in the prefix cache.
    PrefixCacheQueries,
    /// Gauge: 1 while the engine sleeps; sources tell it of sleeping ones only, and nothing else of them.
    Asleep,
    /// Counter: steps of the engine, that is passes of its model over a batch.
    EngineSteps,
    /// Gauge (scheduler): requests held for the model.
    SchedulerQueueSize,
    /// Gauge (scheduler): bytes of the requests held.
    SchedulerQueueBytes,
    /// Counter (scheduler): requests dispatched.
    SchedulerAttempts,
}

impl Signal {
    /// Its position among all signals.
    pub(crate) const fn index(self) -> usize {
        // The cast of a fieldless enum is its position.
        self as usize
    }

    /// Its own bit in a bit set of signals.
    pub(super) const fn bit(self) -> u32 {
        1 << self.index()
    }

    /// It only grows, until a restart.
    #[must_use]
    pub const fn is_counter(self) -> bool {
        use Signal::{
            Asleep, KvCapacity, KvUsage, Running, SchedulerQueueBytes, SchedulerQueueSize, Waiting,
        };
        let gauges = matches!(self, KvUsage | Waiting | Running | KvCapacity | Asleep);
        !gauges && !matches!(self, SchedulerQueueSize | SchedulerQueueBytes)
    }

    /// All of them, in their order.
    pub const ALL: [Self; 21] = [
        Self::KvUsage,
        Self::Waiting,
        Self::Running,
        Self::KvCapacity,
        Self::PromptTokens,
        Self::GenerationTokens,
        Self::InterTokenLatencySum,
        Self::InterTokenLatencyCount,
        Self::TimeToFirstTokenSum,
        Self::TimeToFirstTokenCount,
        Self::RequestPromptTokensSum,
        Self::RequestPromptTokensCount,
        Self::RequestGenerationTokensSum,
        Self::RequestGenerationTokensCount,
        Self::PrefixCacheHits,
        Self::PrefixCacheQueries,
        Self::Asleep,
        Self::EngineSteps,
        Self::SchedulerQueueSize,
        Self::SchedulerQueueBytes,
        Self::SchedulerAttempts,
    ];
}

/// A set of signals, known when the program is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(from = "Vec<Signal>", into = "Vec<Signal>")]
pub struct SignalSet(u32);

impl From<Vec<Signal>> for SignalSet {
    fn from(signals: Vec<Signal>) -> Self {
        Self::of(&signals)
    }
}

impl From<SignalSet> for Vec<Signal> {
    fn from(set: SignalSet) -> Self {
        set.iter().collect()
    }
}

impl SignalSet {
    /// None.
    pub const NONE: Self = Self(0);

    /// Of these.
    #[must_use]
    pub const fn of(signals: &[Signal]) -> Self {
        let (mut bits, mut place) = (0, 0);
        while place < signals.len() {
            bits |= signals[place].bit();
            place += 1;
        }
        Self(bits)
    }

    /// These and those of `more`.
    #[must_use]
    pub const fn with(self, more: Self) -> Self {
        Self(self.0 | more.0)
    }

    /// These without those of `fewer`.
    #[must_use]
    pub const fn without(self, fewer: Self) -> Self {
        Self(self.0 & !fewer.0)
    }

    /// Those that are in both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// `signal` is in it.
    #[must_use]
    pub const fn has(self, signal: Signal) -> bool {
        self.0 & signal.bit() != 0
    }

    /// All of `part` are in it.
    #[must_use]
    pub const fn contains(self, part: Self) -> bool {
        self.0 & part.0 == part.0
    }

    /// Nothing is in it.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// One by one, in their order.
    pub fn iter(self) -> impl Iterator<Item = Signal> {
        Signal::ALL.into_iter().filter(move |signal| self.has(*signal))
    }

    pub(super) const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }
}
