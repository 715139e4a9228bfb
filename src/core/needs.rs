//! Which signals a decision looks at. A source that has to ask for each may leave out the others: of the 20 that are
//! known of a vLLM pod and its scheduler, V1 with minima above zero needs four.

use std::collections::{BTreeMap, BTreeSet};

use crate::analyze::finding::Analyzer;
use crate::learn::COUNTERS;
use crate::model::{GroupId, Policy, Variant};
use crate::quality::SIZE_WINDOW;
use crate::snapshot::Signal;
use crate::units::{Replicas, Seconds};

/// What [`crate::observe()`], [`crate::decide()`] and [`crate::check`] read of a snapshot.
#[derive(Debug, Clone, PartialEq)]
pub struct Needs {
    /// The signals.
    pub signals: BTreeSet<Signal>,
    /// How far samples must reach back, beyond the peaks of a minute that every analyzer looks at.
    pub window: Seconds,
}

/// What every decision looks at.
const ALWAYS: [Signal; 4] = [Signal::KvUsage, Signal::Waiting, Signal::Running, Signal::SchedulerQueueSize];
/// What tells that a model is idle.
const IDLE: [Signal; 4] = [
    Signal::Running,
    Signal::TimeToFirstTokenCount,
    Signal::RequestGenerationTokensCount,
    Signal::RequestPromptTokensCount,
];
/// Sizes of requests and of the cache.
const SIZES: [Signal; 8] = [
    Signal::KvCapacity,
    Signal::RequestPromptTokensSum,
    Signal::RequestPromptTokensCount,
    Signal::RequestGenerationTokensSum,
    Signal::RequestGenerationTokensCount,
    Signal::PrefixCacheHits,
    Signal::PrefixCacheQueries,
    Signal::SchedulerQueueBytes,
];
/// Latencies and arrivals.
const RATES: [Signal; 5] = [
    Signal::InterTokenLatencySum,
    Signal::InterTokenLatencyCount,
    Signal::TimeToFirstTokenSum,
    Signal::TimeToFirstTokenCount,
    Signal::SchedulerAttempts,
];

/// What learning looks at beside the growths of its counters.
const LEARNED: [Signal; 2] = [Signal::Running, Signal::KvCapacity];

/// What decisions about `variants` under `policy` look at.
#[must_use]
pub fn needs<'v>(policy: &Policy, variants: impl IntoIterator<Item = &'v Variant>) -> Needs {
    let mut groups: BTreeMap<GroupId, (bool, u32)> = BTreeMap::new();
    for variant in variants {
        let (may_sleep, count) = groups.entry(variant.group()).or_insert((true, 0));
        *may_sleep &= variant.bounds.min == Replicas::ZERO;
        *count += 1;
    }
    let mut needs = Needs { signals: ALWAYS.into(), window: Seconds::ZERO };
    for (group, (may_sleep, count)) in groups {
        // The caches of one variant are alike; of several, what one leaves the others is counted in tokens.
        needs.signals.extend((count > 1).then_some(Signal::KvCapacity));
        if may_sleep && policy.scale_to_zero(&group).enabled {
            needs.signals.extend(IDLE);
        }
        let model = policy.of(&group);
        let chosen = std::iter::once(model.analyzer).chain(model.beside.iter().map(|one| one.analyzer));
        chosen.for_each(|analyzer| needs.add(analyzer));
    }
    needs
}

impl Needs {
    fn add(&mut self, analyzer: Analyzer) {
        match analyzer {
            // What it has seen it remembers: the window of the peaks is enough.
            Analyzer::Rate => return self.signals.extend(LEARNED.into_iter().chain(COUNTERS)),
            Analyzer::SaturationPercent | Analyzer::Threshold => return,
            Analyzer::Saturation => self.signals.extend(SIZES),
            Analyzer::Throughput | Analyzer::QueueingModel | Analyzer::Inferno => {
                self.signals.extend(SIZES.into_iter().chain(RATES));
            }
            Analyzer::Weighted => self
                .signals
                .extend(SIZES.into_iter().chain(RATES).chain([Signal::Running, Signal::GenerationTokens])),
        }
        self.window = SIZE_WINDOW;
    }
}
