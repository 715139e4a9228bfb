//! Which signals a decision looks at. A source that has to ask for each may leave out the others: of the 21 that are
//! known of a vLLM pod and its scheduler, V1 with minima above zero needs seven.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::{Analyzer, GroupId, Policy, Role, Variant};
use crate::quality::SIZE_WINDOW;
use crate::quality::analyzer_signals::WITNESSES;
use crate::snapshot::{Signal, SignalSet};
use crate::units::{Replicas, Seconds};

/// What [`crate::observe()`], [`crate::decide()`] and [`crate::check`] read of a snapshot.
#[derive(Debug, Clone, PartialEq)]
pub struct RequiredSignals {
    /// The signals.
    pub signals: BTreeSet<Signal>,
    /// How far samples must reach back, beyond the peaks of a minute that every analyzer looks at.
    pub window: Seconds,
}

/// What every decision looks at: cache and queue of an engine, what tells whether these can be true, and the scheduler's queue.
const ALWAYS: SignalSet =
    WITNESSES.with(SignalSet::of(&[Signal::KvUsage, Signal::Waiting, Signal::SchedulerQueueSize]));
/// What tells that a model is idle.
const IDLE: [Signal; 4] = [
    Signal::Running,
    Signal::TimeToFirstTokenCount,
    Signal::RequestGenerationTokensCount,
    Signal::RequestPromptTokensCount,
];

/// What decisions about `variants` under `policy` look at.
#[must_use]
pub fn required_signals<'v>(
    policy: &Policy,
    variants: impl IntoIterator<Item = &'v Variant>,
) -> RequiredSignals {
    let mut groups: BTreeMap<GroupId, (bool, u32)> = BTreeMap::new();
    for variant in variants {
        let (may_sleep, count) = groups.entry(variant.group()).or_insert((true, 0));
        *may_sleep &= variant.bounds.min == Replicas::ZERO;
        *count += 1;
    }
    let mut needs = RequiredSignals { signals: ALWAYS.iter().collect(), window: Seconds::ZERO };
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

impl RequiredSignals {
    fn add(&mut self, analyzer: Analyzer) {
        let stand_ins = analyzer.stand_ins().iter().copied();
        for reader in std::iter::once(analyzer).chain(stand_ins) {
            self.signals.extend(reader.needed(Role::Both).with(reader.optional()).iter());
        }
        self.window = match analyzer {
            Analyzer::SaturationPercent | Analyzer::Threshold => return,
            // What it has seen it remembers: the window of the contradictions is enough.
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
