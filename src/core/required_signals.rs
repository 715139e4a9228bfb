//! Which signals a decision reads. A metric source that has to query each signal can leave out the others.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::{Analyzer, GroupId, Policy, Role, Variant};
use crate::quality::SIZE_WINDOW;
use crate::quality::analyzer_signals::CROSS_CHECK_SIGNALS;
use crate::snapshot::{Signal, SignalSet};
use crate::units::{Replicas, Seconds};

/// What [`crate::observe()`], [`crate::decide()`] and [`crate::check`] read from a snapshot.
#[derive(Debug, Clone, PartialEq)]
pub struct RequiredSignals {
    /// The signals.
    pub signals: BTreeSet<Signal>,
    /// How far samples must reach back, beyond the minute of peaks that every analyzer reads.
    pub window: Seconds,
}

/// What every decision reads: KV usage and queue of an engine, the witnesses of their plausibility, and the scheduler's queue.
const ALWAYS: SignalSet =
    CROSS_CHECK_SIGNALS.with(SignalSet::new(&[Signal::KvUsage, Signal::Waiting, Signal::SchedulerQueueSize]));
/// What shows that a model is idle.
const IDLE: [Signal; 5] = [
    Signal::Running,
    Signal::SchedulerAttempts,
    Signal::TimeToFirstTokenCount,
    Signal::RequestGenerationTokensCount,
    Signal::RequestPromptTokensCount,
];

/// The signals that decisions about `variants` under `policy` read.
#[must_use]
pub fn required_signals<'v>(
    policy: &Policy,
    variants: impl IntoIterator<Item = &'v Variant>,
) -> RequiredSignals {
    let mut groups: BTreeMap<GroupId, (bool, u32)> = BTreeMap::new();
    for variant in variants {
        let (may_be_zero, count) = groups.entry(variant.group()).or_insert((true, 0));
        *may_be_zero &= variant.bounds.min == Replicas::ZERO;
        *count += 1;
    }
    let mut required = RequiredSignals { signals: ALWAYS.iter().collect(), window: Seconds::ZERO };
    for (group, (may_be_zero, count)) in groups {
        // The caches of one variant are alike, so their usage is enough; over several variants tokens are counted.
        required.signals.extend((count > 1).then_some(Signal::KvCapacity));
        if may_be_zero && policy.scale_to_zero(&group).enabled {
            required.signals.extend(IDLE);
        }
        let model = policy.of(&group);
        let chosen =
            std::iter::once(model.analyzer).chain(model.secondary.iter().map(|secondary| secondary.analyzer));
        chosen.for_each(|analyzer| required.add(analyzer));
    }
    required
}

impl RequiredSignals {
    fn add(&mut self, analyzer: Analyzer) {
        let fallbacks = analyzer.fallbacks().iter().copied();
        for reader in std::iter::once(analyzer).chain(fallbacks) {
            self.signals.extend(reader.needed(Role::Both).with(reader.optional()).iter());
        }
        self.window = match analyzer {
            Analyzer::SaturationPercent | Analyzer::Threshold => return,
            // It remembers what it has read, so the window of the plausibility rules is enough.
            Analyzer::Rate => self.window,
            Analyzer::Saturation => {
                self.signals.insert(Signal::SchedulerQueueBytes);
                SIZE_WINDOW
            }
            Analyzer::Throughput | Analyzer::QueueingModel | Analyzer::Inferno | Analyzer::Weighted => {
                SIZE_WINDOW
            }
        };
    }
}
