//! Which signals each analyzer reads, declared at a type of its own: [`crate::quality::EngineLoad`] gives an analyzer nothing else,
//! which the compiler checks. What is asked of a metric source, what counts as measured, and the page of needed series all
//! follow from these declarations.

use crate::model::{Analyzer, Role};
use crate::snapshot::{Signal, SignalSet};

/// What an analyzer reads of an engine.
pub trait Reads {
    /// What it divides by, subtracts or compares. An engine that does not show all of these is not measured.
    const NEEDED: SignalSet;
    /// What it uses where it is there, and does without.
    const OPTIONAL: SignalSet = SignalSet::NONE;
}

/// What every analyzer and the rules above them read.
const BASE: SignalSet = SignalSet::of(&[Signal::KvUsage, Signal::Waiting]);
/// Sizes of requests, as means.
const SIZES: SignalSet = SignalSet::of(&[
    Signal::RequestPromptTokensSum,
    Signal::RequestPromptTokensCount,
    Signal::RequestGenerationTokensSum,
    Signal::RequestGenerationTokensCount,
]);
const CACHE_HITS: SignalSet = SignalSet::of(&[Signal::PrefixCacheHits, Signal::PrefixCacheQueries]);
const INTER_TOKEN: SignalSet = SignalSet::of(&[Signal::InterTokenLatencySum, Signal::InterTokenLatencyCount]);
const FIRST_TOKEN: SignalSet = SignalSet::of(&[Signal::TimeToFirstTokenSum, Signal::TimeToFirstTokenCount]);
const ARRIVALS: SignalSet = SignalSet::of(&[Signal::SchedulerAttempts]);

/// The percent rule and the threshold score: cache and queue.
#[derive(Debug, Clone, Copy)]
pub enum Percent {}

impl Reads for Percent {
    const NEEDED: SignalSet = BASE;
}

/// The weighted score: how fast one request is served, beside cache and queue.
#[derive(Debug, Clone, Copy)]
pub enum Weighted {}

impl Reads for Weighted {
    const NEEDED: SignalSet = BASE.with(SignalSet::of(&[
        Signal::Running,
        Signal::RequestGenerationTokensSum,
        Signal::RequestGenerationTokensCount,
    ]));
    // First tokens tell whether clients give up, which explains answers that were generated and did not finish.
    const OPTIONAL: SignalSet =
        INTER_TOKEN.with(SignalSet::of(&[Signal::GenerationTokens, Signal::TimeToFirstTokenCount]));
}

/// Token saturation: tokens resident, tokens that fit, sizes of what waits.
#[derive(Debug, Clone, Copy)]
pub enum Tokens {}

impl Reads for Tokens {
    const NEEDED: SignalSet = BASE.with(SIZES).with(SignalSet::of(&[Signal::KvCapacity]));
    const OPTIONAL: SignalSet = CACHE_HITS;
}

/// Throughput: tokens generated against the fitted latency.
#[derive(Debug, Clone, Copy)]
pub enum Throughput {}

impl Reads for Throughput {
    const NEEDED: SignalSet = BASE
        .with(SIZES)
        .with(INTER_TOKEN)
        .with(SignalSet::of(&[Signal::KvCapacity, Signal::TimeToFirstTokenCount]));
    const OPTIONAL: SignalSet = CACHE_HITS.with(ARRIVALS);
}

/// The queueing model and the legacy solver: arrivals, sizes and latencies.
#[derive(Debug, Clone, Copy)]
pub enum Latencies {}

impl Reads for Latencies {
    const NEEDED: SignalSet = BASE.with(SIZES).with(INTER_TOKEN).with(FIRST_TOKEN);
    // The size of the cache tells whether what is counted of tokens can be true.
    const OPTIONAL: SignalSet = ARRIVALS.with(SignalSet::of(&[Signal::KvCapacity]));
}

/// The rate policy: step times, arrivals and sizes from growths of counters.
#[derive(Debug, Clone, Copy)]
pub enum Rate {}

impl Reads for Rate {
    const NEEDED: SignalSet = BASE.with(INTER_TOKEN).with(FIRST_TOKEN).with(SignalSet::of(&[
        Signal::Running,
        Signal::PromptTokens,
        Signal::GenerationTokens,
        Signal::RequestGenerationTokensSum,
        Signal::RequestGenerationTokensCount,
    ]));
    // Prompts of finished requests tell whether what is counted of prompts and requests can be true.
    const OPTIONAL: SignalSet = CACHE_HITS.with(SIZES).with(SignalSet::of(&[Signal::KvCapacity]));
}

/// A scheduler: what it holds and gives out.
#[derive(Debug, Clone, Copy)]
pub enum Scheduler {}

impl Reads for Scheduler {
    const NEEDED: SignalSet = SignalSet::NONE;
    const OPTIONAL: SignalSet =
        ARRIVALS.with(SignalSet::of(&[Signal::SchedulerQueueSize, Signal::SchedulerQueueBytes]));
}

/// What tells that the gauges and counters of an engine belong together, beside what an analyzer reads: the rules above the
/// analyzers read it too.
pub const WITNESSES: SignalSet = SignalSet::of(&[
    Signal::Running,
    Signal::PromptTokens,
    Signal::GenerationTokens,
    Signal::RequestGenerationTokensSum,
    Signal::RequestGenerationTokensCount,
    Signal::EngineSteps,
    Signal::PrefixCacheHits,
    Signal::PrefixCacheQueries,
]);

/// What an analyzer reads of an engine of one role.
#[derive(Debug, Clone, Copy, Default)]
pub struct Declared {
    /// What it cannot do without.
    pub needed: SignalSet,
    /// What it uses where it is there.
    pub optional: SignalSet,
    /// What analyzers that run beside it cannot do without either: an engine that lacks some of it is not measured by them.
    pub beside: SignalSet,
}

impl Declared {
    /// What one of the analyzers cannot do without.
    #[must_use]
    pub const fn required(self) -> SignalSet {
        self.needed.with(self.beside)
    }

    /// Everything that is read.
    #[must_use]
    pub const fn all(self) -> SignalSet {
        self.required().with(self.optional)
    }

    /// The same with what `analyzer` reads of an engine of `role`, which runs beside.
    #[must_use]
    pub const fn with(self, analyzer: Analyzer, role: Role) -> Self {
        let Self { needed, optional, beside } = self;
        let optional = optional.with(analyzer.optional());
        Self { needed, optional, beside: beside.with(analyzer.needed(role)) }
    }
}

impl Analyzer {
    /// What it reads of an engine of `role`.
    #[must_use]
    pub const fn declared(self, role: Role) -> Declared {
        Declared { needed: self.needed(role), optional: self.optional(), beside: SignalSet::NONE }
    }

    /// What it needs of an engine of `role`: one that only computes prompts generates nothing that is counted.
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

    /// What it uses of an engine where it is there.
    #[must_use]
    pub const fn optional(self) -> SignalSet {
        match self {
            Self::Rate => Rate::OPTIONAL,
            Self::SaturationPercent | Self::Threshold => Percent::OPTIONAL,
            Self::Saturation => Tokens::OPTIONAL,
            Self::Throughput => Throughput::OPTIONAL,
            Self::QueueingModel | Self::Inferno => Latencies::OPTIONAL,
            Self::Weighted => Weighted::OPTIONAL,
        }
    }

    /// The needed signals that it neither remembers nor estimates from others: at least one engine has to show them.
    #[must_use]
    pub const fn indispensable(self) -> SignalSet {
        match self {
            Self::Throughput => INTER_TOKEN,
            _ => SignalSet::NONE,
        }
    }

    /// Its measure is how full caches are: where nobody knows that, it finds nothing missing.
    #[must_use]
    pub const fn measures_caches(self) -> bool {
        matches!(self, Self::Saturation | Self::Throughput | Self::Weighted)
    }

    /// Who may decide about additions where it cannot be measured, the best first.
    #[must_use]
    pub const fn stand_ins(self) -> &'static [Self] {
        match self {
            Self::Rate | Self::Throughput | Self::QueueingModel | Self::Inferno => {
                &[Self::Saturation, Self::SaturationPercent]
            }
            Self::Saturation | Self::Weighted => &[Self::SaturationPercent],
            Self::SaturationPercent | Self::Threshold => &[],
        }
    }
}

/// What an engine that only computes prompts does not count.
const GENERATED: SignalSet = INTER_TOKEN.with(SignalSet::of(&[
    Signal::GenerationTokens,
    Signal::RequestGenerationTokensSum,
    Signal::RequestGenerationTokensCount,
]));
