//! Signals: what is measured of an engine or of a scheduler.

use serde::{Deserialize, Serialize};

/// What can be measured of an engine or of a scheduler. Counters only grow, until a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Signal {
    /// Gauge: KV-cache usage, 0 to 1.
    KvUsage,
    /// Gauge: waiting requests in the engine.
    Waiting,
    /// Gauge: running requests.
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
    /// Gauge: 1 while the engine sleeps. Sources report it for sleeping engines only, and nothing else of those.
    Asleep,
    /// Counter: engine steps, that is forward passes over a batch.
    EngineSteps,
    /// Counter: requests that the server refused because its queue was full.
    RefusedRequests,
    /// Gauge (scheduler): requests held for the model.
    SchedulerQueueSize,
    /// Gauge (scheduler): bytes of the requests held.
    SchedulerQueueBytes,
    /// Counter (scheduler): requests dispatched.
    SchedulerAttempts,
}

impl Signal {
    pub(crate) const fn index(self) -> usize {
        // The cast of a fieldless enum is its position.
        self as usize
    }

    /// Its own bit in a bit set of signals.
    pub(super) const fn bit(self) -> u32 {
        1 << self.index()
    }

    /// A counter only grows, until a restart.
    #[must_use]
    pub const fn is_counter(self) -> bool {
        use Signal::{
            Asleep, KvCapacity, KvUsage, Running, SchedulerQueueBytes, SchedulerQueueSize, Waiting,
        };
        let gauges = matches!(self, KvUsage | Waiting | Running | KvCapacity | Asleep);
        !gauges && !matches!(self, SchedulerQueueSize | SchedulerQueueBytes)
    }

    /// All of them, in their order.
    pub const ALL: [Self; 22] = [
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
        Self::RefusedRequests,
        Self::SchedulerQueueSize,
        Self::SchedulerQueueBytes,
        Self::SchedulerAttempts,
    ];
}

/// A set of signals, usable in constants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(from = "Vec<Signal>", into = "Vec<Signal>")]
pub struct SignalSet(u32);

impl From<Vec<Signal>> for SignalSet {
    fn from(signals: Vec<Signal>) -> Self {
        Self::new(&signals)
    }
}

impl From<SignalSet> for Vec<Signal> {
    fn from(set: SignalSet) -> Self {
        set.iter().collect()
    }
}

impl SignalSet {
    pub(crate) const NONE: Self = Self(0);

    pub(crate) const fn new(signals: &[Signal]) -> Self {
        let (mut bits, mut place) = (0, 0);
        while place < signals.len() {
            bits |= signals[place].bit();
            place += 1;
        }
        Self(bits)
    }

    #[must_use]
    pub(crate) const fn with(self, more: Self) -> Self {
        Self(self.0 | more.0)
    }

    #[must_use]
    pub(crate) const fn without(self, fewer: Self) -> Self {
        Self(self.0 & !fewer.0)
    }

    pub(crate) const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// `signal` is in it.
    #[must_use]
    pub const fn has(self, signal: Signal) -> bool {
        self.0 & signal.bit() != 0
    }

    /// All of `part` are in it.
    pub(crate) const fn contains(self, part: Self) -> bool {
        self.0 & part.0 == part.0
    }

    pub(crate) const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The signals in their order.
    pub fn iter(self) -> impl Iterator<Item = Signal> {
        Signal::ALL.into_iter().filter(move |signal| self.has(*signal))
    }

    pub(super) const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }
}
