//! Which signals each analyzer reads, declared by a type of its own. [`EngineLoad`](super::EngineLoad) gives an analyzer nothing else,
//! which the compiler checks. The queries to a metric source, what counts as measured, and the page of required series all follow
//! from these declarations.

use crate::model::{Analyzer, Role};
use crate::snapshot::{Signal, SignalSet};

/// The signals that an analyzer reads of an engine.
pub(crate) trait Reads {
    /// Signals that it divides by, subtracts or compares. An engine that lacks one of them is not measured.
    const NEEDED: SignalSet;
    /// Signals that it uses if they are there.
    const OPTIONAL: SignalSet = SignalSet::NONE;
}

/// Signals that every analyzer reads, and so do the guards above them.
const BASE: SignalSet = SignalSet::new(&[Signal::KvUsage, Signal::Waiting]);
/// Mean request sizes.
const SIZES: SignalSet = SignalSet::new(&[
    Signal::RequestPromptTokensSum,
    Signal::RequestPromptTokensCount,
    Signal::RequestGenerationTokensSum,
    Signal::RequestGenerationTokensCount,
]);
const CACHE_HITS: SignalSet = SignalSet::new(&[Signal::PrefixCacheHits, Signal::PrefixCacheQueries]);
const INTER_TOKEN: SignalSet =
    SignalSet::new(&[Signal::InterTokenLatencySum, Signal::InterTokenLatencyCount]);
const FIRST_TOKEN: SignalSet = SignalSet::new(&[Signal::TimeToFirstTokenSum, Signal::TimeToFirstTokenCount]);
const ARRIVALS: SignalSet = SignalSet::new(&[Signal::SchedulerAttempts]);

/// The percent rule and the threshold score: KV usage and queue.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Percent {}

impl Reads for Percent {
    const NEEDED: SignalSet = BASE;
}

/// The weighted score: KV usage, queue, and how fast one request is served.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Weighted {}

impl Reads for Weighted {
    const NEEDED: SignalSet = BASE.with(SignalSet::new(&[
        Signal::Running,
        Signal::RequestGenerationTokensSum,
        Signal::RequestGenerationTokensCount,
    ]));
    // First tokens show whether clients give up, which explains answers that were generated and did not finish.
    const OPTIONAL: SignalSet =
        INTER_TOKEN.with(SignalSet::new(&[Signal::GenerationTokens, Signal::TimeToFirstTokenCount]));
}

/// Token saturation: tokens in the cache, tokens that fit, and sizes of waiting requests.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Tokens {}

impl Reads for Tokens {
    const NEEDED: SignalSet = BASE.with(SIZES).with(SignalSet::new(&[Signal::KvCapacity]));
    const OPTIONAL: SignalSet = CACHE_HITS;
}

/// Throughput: generated tokens against the fitted latency.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Throughput {}

impl Reads for Throughput {
    const NEEDED: SignalSet = BASE
        .with(SIZES)
        .with(INTER_TOKEN)
        .with(SignalSet::new(&[Signal::KvCapacity, Signal::TimeToFirstTokenCount]));
    const OPTIONAL: SignalSet = CACHE_HITS.with(ARRIVALS);
}

/// The queueing model and the legacy solver: arrivals, sizes and latencies.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Latencies {}

impl Reads for Latencies {
    const NEEDED: SignalSet = BASE.with(SIZES).with(INTER_TOKEN).with(FIRST_TOKEN);
    // The cache size shows whether token counters are plausible.
    const OPTIONAL: SignalSet = ARRIVALS.with(SignalSet::new(&[Signal::KvCapacity]));
}

/// The rate policy: step times, arrivals and sizes from the growth of counters.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Rate {}

impl Reads for Rate {
    const NEEDED: SignalSet = BASE.with(INTER_TOKEN).with(FIRST_TOKEN).with(SignalSet::new(&[
        Signal::Running,
        Signal::PromptTokens,
        Signal::GenerationTokens,
        Signal::RequestGenerationTokensSum,
        Signal::RequestGenerationTokensCount,
    ]));
    // Prompts of finished requests show whether counters of prompts and requests are plausible. Refused requests have arrived too.
    const OPTIONAL: SignalSet =
        CACHE_HITS.with(SIZES).with(SignalSet::new(&[Signal::KvCapacity, Signal::RefusedRequests]));
}

/// A scheduler: requests that it holds and dispatches.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Scheduler {}

impl Reads for Scheduler {
    const NEEDED: SignalSet = SignalSet::NONE;
    const OPTIONAL: SignalSet =
        ARRIVALS.with(SignalSet::new(&[Signal::SchedulerQueueSize, Signal::SchedulerQueueBytes]));
}

/// Signals by which the plausibility of the others is checked, beside those that an analyzer reads. The guards above the analyzers read
/// them too.
pub(crate) const CROSS_CHECK_SIGNALS: SignalSet = SignalSet::new(&[
    Signal::Running,
    Signal::PromptTokens,
    Signal::GenerationTokens,
    Signal::RequestGenerationTokensSum,
    Signal::RequestGenerationTokensCount,
    Signal::EngineSteps,
    Signal::PrefixCacheHits,
    Signal::PrefixCacheQueries,
]);

/// The signals that an analyzer reads of an engine of one role.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Declared {
    pub(crate) needed: SignalSet,
    pub(crate) optional: SignalSet,
    /// Required signals of secondary analyzers: an engine that lacks one of them is not measured.
    pub(crate) secondary: SignalSet,
}

impl Declared {
    /// The required signals of all analyzers.
    pub(crate) const fn required(self) -> SignalSet {
        self.needed.with(self.secondary)
    }

    pub(crate) const fn all(self) -> SignalSet {
        self.required().with(self.optional)
    }

    /// With the signals of a secondary `analyzer`.
    #[must_use]
    pub(crate) const fn with(self, analyzer: Analyzer, role: Role) -> Self {
        let Self { needed, optional, secondary } = self;
        let optional = optional.with(analyzer.optional());
        Self { needed, optional, secondary: secondary.with(analyzer.needed(role)) }
    }
}

impl Analyzer {
    /// The signals that it reads of an engine of `role`.
    #[must_use]
    pub(crate) const fn declared(self, role: Role) -> Declared {
        Declared { needed: self.needed(role), optional: self.optional(), secondary: SignalSet::NONE }
    }

    /// Its required signals: an engine that only computes prompts counts no generated tokens.
    #[must_use]
    pub const fn needed(self, role: Role) -> SignalSet {
        let needed = match self {
            Self::Rate => Rate::NEEDED,
            Self::SaturationPercent | Self::Threshold => Percent::NEEDED,
            Self::Saturation => Tokens::NEEDED,
            Self::Throughput => Throughput::NEEDED,
            Self::QueueingModel | Self::Inferno => Latencies::NEEDED,
            Self::Weighted => Weighted::NEEDED,
        };
        match role {
            Role::Prefill => needed.without(GENERATED),
            Role::Both | Role::Decode => needed,
        }
    }

    /// Its optional signals.
    #[must_use]
    pub(crate) const fn optional(self) -> SignalSet {
        match self {
            Self::Rate => Rate::OPTIONAL,
            Self::SaturationPercent | Self::Threshold => Percent::OPTIONAL,
            Self::Saturation => Tokens::OPTIONAL,
            Self::Throughput => Throughput::OPTIONAL,
            Self::QueueingModel | Self::Inferno => Latencies::OPTIONAL,
            Self::Weighted => Weighted::OPTIONAL,
        }
    }

    /// Required signals that it neither remembers nor estimates: at least one engine has to show them.
    pub(crate) const fn indispensable(self) -> SignalSet {
        match self {
            Self::Throughput => INTER_TOKEN,
            _ => SignalSet::NONE,
        }
    }

    /// It measures KV usage. Without that it finds no missing capacity.
    pub(crate) const fn measures_caches(self) -> bool {
        matches!(self, Self::Saturation | Self::Throughput | Self::Weighted)
    }

    /// Analyzers that may decide about additions while it cannot be measured, the best first.
    #[must_use]
    pub const fn fallbacks(self) -> &'static [Self] {
        match self {
            Self::Rate | Self::Throughput | Self::QueueingModel | Self::Inferno => {
                &[Self::Saturation, Self::SaturationPercent]
            }
            Self::Saturation | Self::Weighted => &[Self::SaturationPercent],
            Self::SaturationPercent | Self::Threshold => &[],
        }
    }
}

/// Signals that an engine which only computes prompts does not count.
const GENERATED: SignalSet = INTER_TOKEN.with(SignalSet::new(&[
    Signal::GenerationTokens,
    Signal::RequestGenerationTokensSum,
    Signal::RequestGenerationTokensCount,
]));
