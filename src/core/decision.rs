//! The decision about one variant.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use crate::model::Analyzer;
use crate::report::Explanation;
use crate::snapshot::Signal;
use crate::units::{Replicas, Seconds};

/// The decision about one variant, which every output shows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// Its model; empty for an invalid variant, and while the model is not known.
    pub model: SmolStr,
    /// The accelerator's name, when one is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accelerator: Option<SmolStr>,
    /// The scale target's current replicas, when it exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current: Option<Replicas>,
    /// The number, or why there is none.
    pub verdict: Verdict,
    /// What the model's analyzers lack; `None` while every signal that they read is measured on every serving pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gap: Option<SignalGap>,
}

impl Decision {
    /// The target, while its evidence is at most `max_stale` old at `now`.
    ///
    /// # Errors
    /// When nothing could be decided, or the evidence is older.
    pub fn fresh_target(&self, now: Timestamp, max_stale: Seconds) -> Result<&Target, NoTarget<'_>> {
        match &self.verdict {
            Verdict::Unknown(unknown) => Err(NoTarget::Unknown(unknown)),
            Verdict::Target(target) if Seconds::between(target.evidence, now) > max_stale => {
                Err(NoTarget::TooOld(target))
            }
            Verdict::Target(target) => Ok(target),
        }
    }

    /// Desired by current replicas, in units of `1 / scale`: 1 for the quotient itself, 1000 for thousandths. `None` without a
    /// target or a current count.
    #[must_use]
    pub fn ratio(&self, scale: f64) -> Option<f64> {
        match (&self.verdict, self.current) {
            (Verdict::Target(target), Some(current)) => Some(target.desired.ratio_to(current, scale)),
            _ => None,
        }
    }
}

/// Why a decision has no number to answer with.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum NoTarget<'a> {
    /// Nothing could be decided.
    Unknown(&'a Unknown),
    /// The evidence of this target is too old.
    TooOld(&'a Target),
}

/// What the model's analyzers do not know of a variant's pods, above all signals that they read and some of these do not show.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SignalGap {
    /// The likely cause.
    pub cause: GapCause,
    /// Pods that the cause is about: those that lack a signal, are not listed, sleep, or, where nothing is learned, all that serve.
    pub pods: u32,
    /// Serving pods of the variant in all.
    pub serving: u32,
    /// Signals without a fresh sample on at least one of these pods, in their order.
    pub missing: Vec<Signal>,
    /// Signals that another signal of the same pod contradicts, in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub contradicted: Vec<Signal>,
    /// The analyzer that decides meanwhile, about additions only; `None` if the chosen analyzer continues with the pods that it can measure.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "standIn")]
    pub fallback: Option<Analyzer>,
    /// The source's warning about an incomplete answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<SmolStr>,
}

/// Why signals are missing, as far as the others show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub enum GapCause {
    /// Other pods of the model are measured and these show nothing at all: their scrape fails.
    NotScraped,
    /// No pod of the model shows any series that is known: no scrape, or an engine whose names are not known.
    UnknownEngine,
    /// All pods show other signals and lack the same ones: dropped by relabelling or a recording rule, or never exposed.
    SeriesDropped,
    /// Some pods show what others lack: another version of the engine, as during a rolling update.
    EngineVersion,
    /// Signals contradict each other, such as counters that stand still while requests run.
    Contradicted,
    /// The source says that its answer is incomplete: what is missing cannot be distinguished from zero.
    PartialSource,
    /// The scale target counts Ready pods that are not listed: they are not scraped, and may carry any load.
    PodsNotListed,
    /// Every signal is there, but after minutes of requests the analyzer has still not learned the capacity of a replica.
    NotLearned,
    /// Engines sleep: their pods are Ready and serve no requests.
    Asleep,
    /// The model is to be scaled to zero when it is idle, and nothing would start it again: the scheduler's queue is not measured, and no
    /// object says that something else starts it.
    NoWakeUpSignal,
}

impl GapCause {
    /// All of them, in their order.
    pub const ALL: [Self; 10] = [
        Self::NotScraped,
        Self::UnknownEngine,
        Self::SeriesDropped,
        Self::EngineVersion,
        Self::Contradicted,
        Self::PartialSource,
        Self::PodsNotListed,
        Self::NotLearned,
        Self::Asleep,
        Self::NoWakeUpSignal,
    ];

    /// The name that conditions and metrics show.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotScraped => "NotScraped",
            Self::UnknownEngine => "UnknownEngine",
            Self::SeriesDropped => "SeriesDropped",
            Self::EngineVersion => "EngineVersion",
            Self::Contradicted => "Contradicted",
            Self::PartialSource => "PartialSource",
            Self::PodsNotListed => "PodsNotListed",
            Self::NotLearned => "NotLearned",
            Self::Asleep => "Asleep",
            Self::NoWakeUpSignal => "NoWakeUpSignal",
        }
    }
}

/// The number, or why there is none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Verdict {
    /// The committed target.
    Target(Target),
    /// No number. Every output says so, and none says 0.
    Unknown(Unknown),
}

/// A number and what it rests on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Target {
    /// Desired replicas.
    pub desired: Replicas,
    /// Why this number.
    pub reason: Reason,
    /// Why this number, in detail.
    #[serde(flatten)]
    pub explanation: Explanation,
    /// The newest fresh sample the number rests on. The number is as old as this.
    pub evidence: Timestamp,
}

/// Why a number is what it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub enum Reason {
    /// Spare capacity is below a trigger.
    ScaleUp,
    /// The others can carry the load of one.
    ScaleDown,
    /// Neither up nor down.
    Steady,
    /// The last change is still on its way.
    Transition,
    /// Moved into the variant's bounds.
    Bounded,
    /// Idle for the retention period.
    ScaleToZero,
    /// Requests wait for a model without replicas.
    ScaleFromZero,
    /// Held: pods exist, none is ready.
    Starting,
    /// Held: ready pods without any series.
    MetricsMissing,
    /// Held or raised: some ready pods without fresh series, or a partial answer.
    Partial,
    /// Held or raised: the newest samples are old.
    Stale,
    /// Held: the metric source does not answer.
    SourceDown,
    /// Held: the checker refused the new number.
    CheckFailed,
}

impl Reason {
    /// The name that metrics and logs show. Part of the product's surface: dashboards select on it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ScaleUp => "ScaleUp",
            Self::ScaleDown => "ScaleDown",
            Self::Steady => "Steady",
            Self::Transition => "Transition",
            Self::Bounded => "Bounded",
            Self::ScaleToZero => "ScaleToZero",
            Self::ScaleFromZero => "ScaleFromZero",
            Self::Starting => "Starting",
            Self::MetricsMissing => "MetricsMissing",
            Self::Partial => "Partial",
            Self::Stale => "Stale",
            Self::SourceDown => "SourceDown",
            Self::CheckFailed => "CheckFailed",
        }
    }
}

/// Why there is no number.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Unknown {
    /// Which kind of cause.
    pub cause: Cause,
    /// Why, in detail.
    #[serde(flatten)]
    pub explanation: Explanation,
    /// Since when.
    pub since: Timestamp,
}

impl Verdict {
    /// Why there is this number, or none.
    #[must_use]
    pub const fn explanation(&self) -> &Explanation {
        match self {
            Self::Target(target) => &target.explanation,
            Self::Unknown(unknown) => &unknown.explanation,
        }
    }
}

/// The kinds of causes for having no number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub enum Cause {
    /// Nothing has been measured yet and nothing is remembered.
    NothingKnown,
    /// The evidence is older than `max-stale`.
    TooOld,
    /// The object itself cannot be used.
    InvalidVariant,
    /// The scale target does not exist.
    TargetNotFound,
    /// It is not known whether the scale target exists.
    TargetUnknown,
    /// The object names no model, and it is not known which one its pods serve.
    ModelUnknown,
}
