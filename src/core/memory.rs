//! Everything remembered between decisions: versioned, serialisable, small. A memory of another version is dropped and reported, so that
//! no build misreads another one's fields.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use smol_str::{SmolStr, format_smolstr};

use crate::analyze::queueing::learn::Parameters;
use crate::analyze::saturation_token::Knowledge;
use crate::analyze::weighted::BestSpeeds;
use crate::analyze::{rate, throughput};
use crate::bound::stability::ProposalHistory;
use crate::decision::Reason;
use crate::isolate::Failed;
use crate::learn::{ObservedStarts, Rollback};
use crate::model::{Analyzer, GroupId, Role, VariantId};
use crate::name_map::NameMap;
use crate::quality::SignalHistory;
use crate::report::{Explanation, Scorecard};
use crate::sequence_limit::PeakRunning;
use crate::units::Replicas;

/// What one decision leaves for the next.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Memory {
    /// The layout's version. Written first: with another one nothing else is read.
    pub version: u32,
    /// By model group.
    pub groups: BTreeMap<GroupId, GroupMemory>,
    /// Since when an object cannot be decided about.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub invalid: BTreeMap<VariantId, Timestamp>,
    /// What of an earlier memory could not be used, one sentence each: told in the next report, and then forgotten.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub dropped: Vec<SmolStr>,
}

impl Memory {
    /// The layout this build writes.
    pub const VERSION: u32 = 1;

    /// What this build understands of it: all, or, of another version, nothing but that.
    #[must_use]
    pub fn understood(&self) -> Cow<'_, Self> {
        if self.version == Self::VERSION {
            return Cow::Borrowed(self);
        }
        let mut dropped = self.dropped.clone();
        dropped.push(other_version("what was remembered", self.version, Self::VERSION));
        Cow::Owned(Self { dropped, ..Self::default() })
    }
}

/// That `what` was written in another layout and counts for nothing.
#[must_use]
pub fn other_version(what: &str, found: u32, own: u32) -> SmolStr {
    format_smolstr!(
        "{what} is of version {found} and this program reads {own}: it is dropped, and decisions start from what runs and what was published"
    )
}

impl Default for Memory {
    fn default() -> Self {
        let (groups, invalid, dropped) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        Self { version: Self::VERSION, groups, invalid, dropped }
    }
}

/// Marks the model `id` as failed, because a decision about it has not ended by `now`. If it was being tried again, it is held for longer.
pub fn give_up(memory: &mut Memory, id: &GroupId, now: Timestamp, cause: &str) {
    let remembered = memory.groups.entry(id.clone()).or_default();
    if !remembered.failed.as_ref().is_some_and(|failed| failed.waits(now)) {
        remembered.note_failure(now, Failed::cut(cause));
    }
}

impl<'de> Deserialize<'de> for Memory {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Reader)
    }
}

/// Reads a memory field by field: another version may have another layout under the same names.
struct Reader;

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "camelCase")]
enum Field {
    Version,
    Groups,
    Invalid,
    Dropped,
    #[serde(other)]
    Unknown,
}

impl<'de> Visitor<'de> for Reader {
    type Value = Memory;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a memory")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Memory, A::Error> {
        let (mut memory, mut version) = (Memory::default(), None::<u32>);
        while let Some(field) = fields.next_key::<Field>()? {
            let foreign = version.is_some_and(|version| version != Memory::VERSION);
            match field {
                Field::Version => version = Some(fields.next_value()?),
                Field::Groups if !foreign => memory.groups = fields.next_value()?,
                Field::Invalid if !foreign => memory.invalid = fields.next_value()?,
                Field::Dropped if !foreign => memory.dropped = fields.next_value()?,
                _ => {
                    let IgnoredAny = fields.next_value()?;
                }
            }
        }
        memory.version = version.ok_or_else(|| serde::de::Error::missing_field("version"))?;
        Ok(memory)
    }
}

/// What is remembered of one model group.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct GroupMemory {
    /// When the last cycle of the analyzer was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cycle_at: Option<Timestamp>,
    /// Since when no request has been seen, when measured and not merely unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_since: Option<Timestamp>,
    /// When the group was last observed, idle or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_at: Option<Timestamp>,
    /// What analyzers have learned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub learned: Option<Box<Learned>>,
    /// What its engines showed while they were plausible, and which signals were contradicted. Shared, because only a decision
    /// replaces it.
    #[serde(default, rename = "evidence", skip_serializing_if = "Option::is_none")]
    pub signal_history: Option<Arc<SignalHistory>>,
    /// The model panicked when it was last tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<Failed>,
    /// By variant name.
    pub variants: NameMap<VariantMemory>,
}

impl GroupMemory {
    /// Remembers that the model panicked. What was being learned may be incomplete, and is learned again.
    pub(crate) fn note_failure(&mut self, now: Timestamp, cause: SmolStr) {
        self.failed = Some(Failed::after(self.failed.as_ref(), now, cause));
        self.learned = None;
    }

    /// How the rate policy's predictions about the variant called `variant` turned out, and those about its `role`; `None` if another
    /// analyzer decides.
    #[must_use]
    pub fn scorecard(&self, variant: &str, role: Role) -> Option<Scorecard> {
        Some(self.learned.as_ref()?.rate.as_ref()?.knowledge.scorecard(variant, role))
    }

    /// The part that is kept over a restart, in few bytes.
    #[must_use]
    pub fn compacted(&self) -> Self {
        let mut kept = self.clone();
        if let Some(rate) = kept.learned.as_mut().and_then(|learned| learned.rate.as_mut()) {
            **rate = rate.compacted();
        }
        if let Some(learned) = &mut kept.learned {
            *learned.rollback = Rollback::default();
        }
        for variant in kept.variants.values_mut() {
            variant.starts = variant.starts.compacted();
            variant.explanation = variant.explanation.take().map(|known| Explanation::text(known.as_text()));
        }
        kept
    }
}

/// What the analyzers have learned of one model: a budget of 2 KiB a variant.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Learned {
    /// The rate policy's. Where there is one, every observation adds to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<Box<rate::RateMemory>>,
    /// The token saturation analyzer's.
    #[serde(skip_serializing_if = "is_default")]
    pub tokens: Knowledge,
    /// When it last had something to say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub informative: Option<Timestamp>,
    /// While one capacity analyzer stands in for another: the share of the demand it found at the start that the replicas of that time would
    /// have covered.
    #[serde(skip_serializing_if = "Option::is_none", rename = "stand_in_share")]
    pub fallback_share: Option<f64>,
    /// The roles about which the model's analyzer finds nothing although requests run.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub unlearned: BTreeMap<Role, Unlearned>,
    /// The throughput analyzer's.
    #[serde(skip_serializing_if = "is_default")]
    pub throughput: throughput::ThroughputMemory,
    /// The queueing model's, by variant.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub queueing: BTreeMap<SmolStr, Parameters>,
    /// The weighted score's.
    #[serde(skip_serializing_if = "is_default")]
    pub bests: BestSpeeds,
    /// Earlier states of this. Not kept over a restart.
    #[serde(rename = "past", skip_serializing_if = "is_default")]
    pub rollback: Box<Rollback<Analyzers>>,
}

/// The model's analyzer finds nothing for a role although requests run: it does not know the capacity of a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Unlearned {
    pub(crate) since: Timestamp,
    /// The analyzer that decides meanwhile, about additions only.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "standIn")]
    pub(crate) fallback: Option<Analyzer>,
}

/// What the analyzers of capacity have learned from counters and gauges.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Analyzers {
    tokens: Knowledge,
    throughput: throughput::ThroughputMemory,
    queueing: BTreeMap<SmolStr, Parameters>,
}

impl Learned {
    /// Stores a state, to be able to undo what is learned from now on.
    pub(crate) fn checkpoint(&mut self, now: Timestamp) {
        let Self { rollback, tokens, throughput, queueing, .. } = self;
        if is_default(tokens) && is_default(throughput) && queueing.is_empty() {
            return;
        }
        rollback.checkpoint(now.into(), || Analyzers {
            tokens: tokens.clone(),
            throughput: throughput.clone(),
            queueing: queueing.clone(),
        });
    }

    /// Forgets what was learned from signals that are contradicted.
    pub(crate) fn roll_back(&mut self) {
        if let Some((_, Analyzers { tokens, throughput, queueing })) = self.rollback.restore() {
            (self.tokens, self.throughput, self.queueing) = (tokens, throughput, queueing);
        }
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// What is remembered of one variant.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct VariantMemory {
    /// The committed target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<Replicas>,
    /// When the target last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_since: Option<Timestamp>,
    /// The newest fresh sample a decision of this variant rested on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence: Option<Timestamp>,
    /// Why the target is what it is: repeated until the next look of the analyzer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// The same in detail.
    #[serde(flatten)]
    pub explanation: Option<Explanation>,
    /// Since when nothing could be concluded, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blind_since: Option<Timestamp>,
    /// The numbers proposed lately, where the policy has stability rules.
    #[serde(default, skip_serializing_if = "ProposalHistory::is_empty", rename = "wanted")]
    pub proposals: ProposalHistory,
    /// The number before the orders of the last minutes, and when the first of these was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ordered_from: Option<(Timestamp, Replicas)>,
    /// Since when the scale target counts Ready pods that are not listed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unlisted_since: Option<Timestamp>,
    /// When such orders were last withdrawn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub withdrawn_at: Option<Timestamp>,
    /// What the safety net has done for it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub safety_net: SafetyNet,
    /// The most requests that were seen running in one of its engines.
    #[serde(default, skip_serializing_if = "is_default")]
    pub most_running: PeakRunning,
    /// How long its pods take to start, and which that failed were replaced. Earlier versions remembered it where the rate policy
    /// decided.
    #[serde(default, skip_serializing_if = "is_default")]
    pub starts: ObservedStarts,
}

/// What the safety net of a saturated fleet has done for one variant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SafetyNet {
    /// When it last ordered replicas: the next ones wait for a start-up time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) grew: Option<Timestamp>,
    /// When a limit last left it less than it ordered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) denied: Option<Timestamp>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_memory_of_another_version_is_read_and_holds_nothing_but_its_version() {
        let text = r#"{"version":7,"groups":["another shape"],"more":{"deep":[1]}}"#;
        let memory: Memory = serde_json::from_str(text).unwrap();
        assert_eq!(memory, Memory { version: 7, ..Memory::default() });
        let understood = memory.understood().into_owned();
        assert_eq!((understood.version, understood.groups.len()), (Memory::VERSION, 0));
        assert!(understood.dropped[0].contains("version 7"), "{:?}", understood.dropped);
    }

    #[test]
    fn a_damaged_memory_of_this_version_is_an_error_and_one_without_a_version_too() {
        for text in [r#"{"version":1,"groups":["another shape"]}"#, r#"{"groups":{}}"#, "[]"] {
            assert!(serde_json::from_str::<Memory>(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_memory_comes_back_as_it_was_written() {
        let mut memory = Memory { dropped: vec!["a line".into()], ..Memory::default() };
        memory.invalid.insert(VariantId::new("n", "v"), Timestamp::UNIX_EPOCH);
        memory.groups.insert(GroupId::new("n", "m"), GroupMemory::default());
        let text = serde_json::to_string(&memory).unwrap();
        assert_eq!(serde_json::from_str::<Memory>(&text).unwrap(), memory);
    }
}
