//! Everything one decision may look at. A snapshot is complete: the same one always gives the same outcome.

use std::collections::BTreeMap;
use std::ops::Range;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use crate::analyze::saturation_token::EngineParameters;
use crate::by_name::ByName;
use crate::model::{GroupId, InvalidVariant, Variant};
use crate::units::{Replicas, count};

/// Variants, their replicas and the signals of these, at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The moment of the decision.
    pub now: Timestamp,
    /// The variants by model group.
    pub groups: BTreeMap<GroupId, ModelGroup>,
    /// Objects that cannot be decided about.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub invalid: Vec<InvalidVariant>,
    /// GPUs that the nodes have, by the accelerator's name; `None` when nobody has looked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inventory: Option<BTreeMap<SmolStr, u32>>,
    /// Of these, the ones that workloads use which are not decided about here.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub elsewhere: BTreeMap<SmolStr, u32>,
}

/// The variants of one model in one namespace, and what was seen of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelGroup {
    /// How the metric source answered for this group.
    pub source: SourceHealth,
    /// Its variants, by name.
    pub variants: Vec<VariantState>,
    /// What the scheduler in front of the model (the EPP) says of requests not yet given to a replica.
    #[serde(default, skip_serializing_if = "Signals::is_empty")]
    pub scheduler: Signals,
}

/// How the metric source answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "state")]
pub enum SourceHealth {
    /// A whole answer.
    Complete,
    /// An answer with warnings, or a cut one: what is missing cannot be told from what is zero.
    Partial {
        /// The warnings.
        warnings: Vec<String>,
    },
    /// No answer.
    Down {
        /// Which source, and what went wrong, for people.
        cause: String,
    },
}

/// A variant, its scale target and its replicas.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VariantState {
    /// The variant.
    pub variant: Variant,
    /// The scale target's counts; `None` when it does not exist.
    pub scale: Option<Scale>,
    /// One entry a pod that exists now.
    pub replicas: Vec<Replica>,
    /// The last number in the object's status, to hold on to when no better memory exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_status: Option<Replicas>,
    /// What its pod template says.
    #[serde(default, skip_serializing_if = "Template::is_default")]
    pub template: Template,
}

/// What the pod template of a scale target says of one replica.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Template {
    /// GPUs, at least 1.
    pub gpus: u32,
    /// The model server's settings, when its arguments could be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine: Option<EngineParameters>,
}

impl Default for Template {
    fn default() -> Self {
        Self { gpus: 1, engine: None }
    }
}

impl Template {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// The counts of a scale target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scale {
    /// `spec.replicas` (1 when absent).
    pub spec: Replicas,
    /// `status.replicas`, or `spec.replicas` while that is 0.
    pub current: Replicas,
    /// `status.readyReplicas`.
    pub ready: Replicas,
}

impl Scale {
    /// Replicas that a step starts from. A rolling update runs surge pods beside the wanted ones: counted as a base,
    /// every rollout would add one.
    #[must_use]
    pub fn base(self) -> Replicas {
        self.current.min(self.spec)
    }

    /// Replicas of the base that are not ready.
    #[must_use]
    pub fn pending(self) -> Replicas {
        self.base().above(self.ready)
    }
}

/// One serving pod.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Replica {
    /// The pod's name.
    pub pod: SmolStr,
    /// Where it is in its life.
    pub phase: Phase,
    /// When the pod was created.
    pub created: Timestamp,
    /// When it became ready, if it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_since: Option<Timestamp>,
    /// Signals by engine: one serving process each (several with data parallelism).
    #[serde(default, skip_serializing_if = "ByName::is_empty")]
    pub engines: ByName<Signals>,
}

/// Where a pod is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Phase {
    /// Waiting for a node.
    Pending,
    /// No node has room for it.
    Unschedulable,
    /// On a node, not ready yet.
    Starting,
    /// Serving.
    Ready,
    /// Being deleted: gets no new requests.
    Terminating,
}

/// The raw samples of one engine, by signal, oldest first. In one piece, since a decision about thousands of engines
/// takes as long as its way through memory.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(from = "BTreeMap<Signal, Vec<Sample>>", into = "BTreeMap<Signal, Vec<Sample>>")]
pub struct Signals {
    /// Where the samples of each signal end; they begin where those of the one before end.
    ends: [u32; Signal::ALL.len()],
    samples: Vec<Sample>,
    /// One bit a signal: some sample of it is below the one before.
    falls: u32,
    /// The latest time of all samples.
    latest: Option<Timestamp>,
}

impl Signals {
    /// Adds samples of `signal`, keeping the order of time; of two at one time the first stays.
    pub fn add(&mut self, signal: Signal, samples: impl IntoIterator<Item = Sample>) {
        let range = self.range(signal);
        let mut series = self.samples[range.clone()].to_vec();
        series.extend(samples);
        series.sort_by_key(|sample| sample.at);
        series.dedup_by_key(|sample| sample.at);
        self.latest = self.latest.max(series.last().map(|newest| newest.at));
        let rises = series.is_sorted_by(|one, next| one.value <= next.value);
        self.falls = if rises { self.falls & !signal.bit() } else { self.falls | signal.bit() };
        let more = count(series.len() - range.len());
        self.ends[signal as usize..].iter_mut().for_each(|end| *end += more);
        self.samples.splice(range, series);
    }

    /// Where the samples of `signal` are.
    fn range(&self, signal: Signal) -> Range<usize> {
        let index = signal as usize;
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        start as usize..self.ends[index] as usize
    }

    /// The samples of `signal`, oldest first; empty when there are none.
    #[must_use]
    pub fn get(&self, signal: Signal) -> &[Sample] {
        &self.samples[self.range(signal)]
    }

    /// Some sample of `signal` is below the one before: as a counter it was restarted.
    #[must_use]
    pub const fn falls(&self, signal: Signal) -> bool {
        self.falls & signal.bit() != 0
    }

    /// The newest sample of `signal`.
    #[must_use]
    pub fn newest(&self, signal: Signal) -> Option<Sample> {
        self.get(signal).last().copied()
    }

    /// A sample is later than `latest`.
    #[must_use]
    pub fn ahead_of(&self, latest: Timestamp) -> bool {
        self.latest.is_some_and(|own| own > latest)
    }

    /// Drops the samples later than `latest`.
    pub fn cut_after(&mut self, latest: Timestamp) {
        let mut kept = Self::default();
        for (signal, samples) in self.iter() {
            kept.add(signal, samples.iter().copied().filter(|sample| sample.at <= latest));
        }
        *self = kept;
    }

    /// True when there is no sample at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// Every signal that has samples, with these.
    pub fn iter(&self) -> impl Iterator<Item = (Signal, &[Sample])> {
        let all = Signal::ALL.iter().map(|signal| (*signal, self.get(*signal)));
        all.filter(|(_, samples)| !samples.is_empty())
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
        signals.iter().map(|(signal, samples)| (signal, samples.to_vec())).collect()
    }
}

/// A value with its true time. Always finite: the input edge drops and counts everything else.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// When the value was true.
    pub at: Timestamp,
    /// The value.
    pub value: f64,
}

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
    /// Gauge (scheduler): requests held for the model.
    SchedulerQueueSize,
    /// Gauge (scheduler): bytes of the requests held.
    SchedulerQueueBytes,
    /// Counter (scheduler): requests dispatched.
    SchedulerAttempts,
}

impl Signal {
    const fn bit(self) -> u32 {
        1 << self as u32
    }

    /// All of them, in their order.
    pub const ALL: [Self; 19] = [
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
        Self::SchedulerQueueSize,
        Self::SchedulerQueueBytes,
        Self::SchedulerAttempts,
    ];
}
