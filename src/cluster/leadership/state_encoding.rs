//! The content of state objects: decisions and memory as JSON lines, spread over a few ConfigMaps by a stable hash. Pure;
//! `state_store` reads and writes the objects. What is parsed is treated like any input: a damaged line is dropped and the
//! others stay.

use std::collections::BTreeMap;
use std::fmt::Display;

use jiff::{SignedDuration, Timestamp};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use wva_core::decision::Verdict;
use wva_core::memory::GroupMemory;
use wva_core::report::Explanation;
use wva_core::units::Replicas;
use wva_core::{Decision, GroupId, VariantId};

use crate::cluster::crd::MAX_REPLICAS;
use wva_core::text::{plain, shortened};

/// The format of decisions that this build writes and reads. That of memories is `Memory::VERSION`.
pub(crate) const DECISIONS_VERSION: u32 = 1;
/// Largest content of one object: a quarter of what etcd accepts (1 MiB), so that no update is large for the API server.
pub(crate) const MAX_SHARD_BYTES: usize = 256 * 1024;
/// A new layout fills its objects to this: entries may double before another layout is needed.
const SHARD_FILL_BYTES: usize = MAX_SHARD_BYTES / 2;
/// Most objects of one kind: 16 × 256 KiB hold 10,000 decisions of 400 bytes, if need be without their messages, or the memories of
/// as many models without what was learned and the messages; with all of that, 2,000 of 2 KiB. The names are fixed, so that RBAC
/// can grant them by name.
pub(crate) const MAX_SHARDS: usize = 16;
/// Longest message that is kept: people read it, nothing depends on it.
const MAX_MESSAGE_BYTES: usize = 512;
/// Longest text about an entry that is dropped.
const MAX_DROPPED_BYTES: usize = 512;
/// How far the clock of another instance may be ahead of ours before that is logged.
const MAX_CLOCK_SKEW: SignedDuration = SignedDuration::from_secs(60);

/// Who wrote an object, and when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ShardHeader {
    pub(crate) version: u32,
    /// Identity of the leader that wrote it.
    pub(crate) holder: String,
    /// Uid of its lease: epochs are compared within one lease only. Empty in what older builds wrote.
    #[serde(default)]
    pub(crate) lease: String,
    /// `leaseTransitions` at that time.
    pub(crate) epoch: i64,
    pub(crate) written: Timestamp,
}

impl ShardHeader {
    /// True when this was written by a later holder of the same lease. A header of another lease, which was deleted or
    /// renamed, supersedes nothing: the holder of the present lease is the leader.
    pub(crate) fn supersedes(&self, other: &Self) -> bool {
        self.lease == other.lease && self.epoch > other.epoch
    }
}

/// One object: its header, and its lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shard {
    pub(crate) header: ShardHeader,
    pub(crate) lines: String,
}

/// One line.
#[derive(Serialize, Deserialize)]
struct Entry<K, V> {
    id: K,
    value: V,
}

/// What is dropped of an entry when objects are full, in this order. Targets are never dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Droppable {
    /// What analyzers have learned: they learn it again.
    Learned,
    /// That, and what the next evaluation restores: messages, and the proposals within the stabilisation windows.
    Messages,
}

/// What all objects of one kind are to contain.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct EncodedShards {
    /// The lines of each object, by its index.
    pub(crate) shards: Vec<String>,
    pub(crate) dropped: DroppedCounts,
}

/// How many entries are incomplete or missing because objects are full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct DroppedCounts {
    /// Without what was learned.
    pub(crate) learned: usize,
    /// Without messages too.
    pub(crate) messages: usize,
    /// Missing.
    pub(crate) entries: usize,
}

/// A value that state objects keep: a decision, or the memory of a model group.
pub(crate) trait StateValue: Clone + Serialize + DeserializeOwned {
    type Id: Ord + Clone + Display + Serialize + DeserializeOwned;

    /// As it is written.
    fn pruned(&self) -> Self;
    /// As it is written where objects are full; `None` where this drops nothing.
    fn without(&self, droppable: Droppable) -> Option<Self>;
    /// Why a value that was read cannot be true, if so.
    fn problem(&self) -> Option<String>;
    /// The latest of its times.
    fn latest_time(&self) -> Option<Timestamp>;
    /// Limits its times to `now`.
    fn limit_times(&mut self, now: Timestamp);
}

impl StateValue for Decision {
    type Id = VariantId;

    fn pruned(&self) -> Self {
        let mut decision = self.clone();
        // Only the leader reports missing signals, and the next one finds them again.
        decision.gap = None;
        let explanation = explanation_of(&mut decision);
        // Without its data: the next decision has its own, and earlier versions read the text.
        *explanation = shortened(&explanation.as_text(), MAX_MESSAGE_BYTES).into();
        decision
    }

    fn without(&self, droppable: Droppable) -> Option<Self> {
        let mut decision = self.pruned();
        let explanation = explanation_of(&mut decision);
        let has_text = !explanation.as_text().is_empty();
        *explanation = String::new().into();
        (droppable == Droppable::Messages && has_text).then_some(decision)
    }

    fn problem(&self) -> Option<String> {
        let desired = match &self.verdict {
            Verdict::Target(target) => Some(target.desired),
            Verdict::Unknown(_) => None,
        };
        impossible_count(desired.into_iter().chain(self.current))
    }

    fn latest_time(&self) -> Option<Timestamp> {
        Some(match &self.verdict {
            Verdict::Target(target) => target.evidence,
            Verdict::Unknown(unknown) => unknown.since,
        })
    }

    fn limit_times(&mut self, now: Timestamp) {
        let time = match &mut self.verdict {
            Verdict::Target(target) => &mut target.evidence,
            Verdict::Unknown(unknown) => &mut unknown.since,
        };
        *time = (*time).min(now);
    }
}

fn explanation_of(decision: &mut Decision) -> &mut Explanation {
    match &mut decision.verdict {
        Verdict::Target(target) => &mut target.explanation,
        Verdict::Unknown(unknown) => &mut unknown.explanation,
    }
}

impl StateValue for GroupMemory {
    type Id = GroupId;

    fn pruned(&self) -> Self {
        self.compacted()
    }

    fn without(&self, droppable: Droppable) -> Option<Self> {
        let mut group = self.clone();
        group.learned = None;
        if droppable == Droppable::Messages {
            for variant in group.variants.values_mut() {
                variant.reason = None;
                variant.explanation = None;
                variant.proposals = Default::default();
            }
        }
        (group != *self).then_some(group)
    }

    fn problem(&self) -> Option<String> {
        let variants = self.variants.iter().map(|(_, variant)| variant);
        impossible_count(
            variants.flat_map(|variant| variant.target.into_iter().chain(variant.proposals.highest())),
        )
    }

    fn latest_time(&self) -> Option<Timestamp> {
        let variants = self.variants.iter().map(|(_, variant)| variant);
        let times =
            variants.flat_map(|variant| [variant.target_since, variant.evidence, variant.blind_since]);
        times.chain([self.cycle_at, self.idle_since]).flatten().max()
    }

    /// Left as they are: a decision takes later times of a memory for its own time.
    fn limit_times(&mut self, _: Timestamp) {}
}

/// Why one of `counts` is more than a variant can have, if so.
fn impossible_count(counts: impl IntoIterator<Item = Replicas>) -> Option<String> {
    let count = counts.into_iter().map(Replicas::get).max()?;
    let is_possible = i32::try_from(count).is_ok_and(|count| count <= MAX_REPLICAS);
    (!is_possible).then(|| format!("{count} replicas, where a variant has at most {MAX_REPLICAS}"))
}

/// FNV-1a: short, the same in every build, and good enough to spread names.
pub(crate) fn fnv1a(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The index of the object that has an entry, of `count` objects. The remainder is less than `count`, so no cast loses anything.
pub(crate) fn shard_of(id: &impl Display, count: usize) -> usize {
    (fnv1a(&id.to_string()) % count.max(1) as u64) as usize
}

/// The content of every object. `layout` is the number of objects in use; the result never has fewer, so that entries move
/// rarely. What does not fit is dropped and counted.
pub(crate) fn encode<V: StateValue>(entries: &BTreeMap<V::Id, V>, layout: usize) -> EncodedShards {
    let count = shards_for(entries, layout);
    let mut shards: Vec<Vec<_>> = (0..count).map(|_| Vec::new()).collect();
    for entry in entries {
        shards[shard_of(entry.0, count)].push(entry);
    }
    let mut dropped = DroppedCounts::default();
    // One object after the other: the lines of all models of a large fleet are many times what is kept of them.
    let shards = shards.into_iter().map(|entries| encode_shard(&entries, &mut dropped)).collect();
    EncodedShards { shards, dropped }
}

/// How many objects `entries` need. Stops counting once they need [`MAX_SHARDS`].
fn shards_for<V: StateValue>(entries: &BTreeMap<V::Id, V>, layout: usize) -> usize {
    let enough = (MAX_SHARDS - 1) * SHARD_FILL_BYTES;
    let mut bytes = 0;
    for (id, value) in entries {
        if layout >= MAX_SHARDS || bytes > enough {
            return MAX_SHARDS;
        }
        bytes += line(id, &value.pruned()).map_or(0, |line| line.len());
    }
    let needed = bytes.div_ceil(SHARD_FILL_BYTES).next_power_of_two();
    needed.max(layout).clamp(1, MAX_SHARDS)
}

/// An entry with its line end.
fn line<V: StateValue>(id: &V::Id, value: &V) -> Option<String> {
    let mut line = serde_json::to_string(&Entry { id, value }).ok()?;
    line.push('\n');
    Some(line)
}

/// The lines of one object. Where they do not fit, the last ones lose what is droppable first, and then whole entries go.
fn encode_shard<V: StateValue>(entries: &[(&V::Id, &V)], dropped: &mut DroppedCounts) -> String {
    // These types have no value that JSON cannot express, so no line is missing here.
    let mut lines: Vec<_> = entries
        .iter()
        .filter_map(|(id, value)| Some((*id, *value, line::<V>(*id, &value.pruned())?)))
        .collect();
    dropped.entries += entries.len() - lines.len();
    let mut bytes: usize = lines.iter().map(|(.., line)| line.len()).sum();
    for droppable in [Droppable::Learned, Droppable::Messages] {
        for (id, value, full) in lines.iter_mut().rev() {
            if bytes <= MAX_SHARD_BYTES {
                break;
            }
            let reduced = value.without(droppable).and_then(|reduced| line(*id, &reduced));
            if let Some(reduced) = reduced.filter(|reduced| reduced.len() < full.len()) {
                bytes -= full.len() - reduced.len();
                *full = reduced;
                match droppable {
                    Droppable::Learned => dropped.learned += 1,
                    Droppable::Messages => dropped.messages += 1,
                }
            }
        }
    }
    let mut shard = String::with_capacity(bytes.min(MAX_SHARD_BYTES));
    for (.., line) in lines {
        if shard.len() + line.len() <= MAX_SHARD_BYTES {
            shard.push_str(&line);
        } else {
            dropped.entries += 1;
        }
    }
    shard
}

/// The content of the objects of one kind.
#[derive(Debug)]
pub(crate) struct DecodedShards<V: StateValue> {
    pub(crate) entries: BTreeMap<V::Id, V>,
    /// Why each unusable entry was dropped.
    pub(crate) dropped: Vec<String>,
    /// How many entries are further in the future than [`MAX_CLOCK_SKEW`]: they count as of now.
    pub(crate) ahead: usize,
}

/// The entries of all objects. Of an entry that is in several, the one of the lease that was written under last counts, of
/// these the one of the latest epoch, and of these the one written last. An entry from the future is not dropped: a reader
/// whose clock is behind would have no number until its own first evaluation.
pub(crate) fn decode<V: StateValue>(shards: &[Shard], now: Timestamp) -> DecodedShards<V> {
    let mut lease_written: BTreeMap<&str, Timestamp> = BTreeMap::new();
    for Shard { header, .. } in shards {
        let last = lease_written.entry(&header.lease).or_insert(header.written);
        *last = header.written.max(*last);
    }
    let mut order: Vec<_> = shards.iter().collect();
    order.sort_by_key(|Shard { header, .. }| {
        (lease_written.get(header.lease.as_str()), &header.lease, header.epoch, header.written)
    });
    let mut decoded = DecodedShards { entries: BTreeMap::new(), dropped: Vec::new(), ahead: 0 };
    let mut drop_entry = |problem: String| decoded.dropped.push(plain(&problem, MAX_DROPPED_BYTES));
    for shard in order {
        for line in shard.lines.lines() {
            match serde_json::from_str::<Entry<V::Id, V>>(line) {
                Ok(Entry { id, mut value }) => match value.problem() {
                    None => {
                        let is_ahead = value.latest_time().is_some_and(|time| time > now + MAX_CLOCK_SKEW);
                        decoded.ahead += usize::from(is_ahead);
                        value.limit_times(now);
                        decoded.entries.insert(id, value);
                    }
                    Some(problem) => drop_entry(format!("{id}: {problem}")),
                },
                Err(error) => drop_entry(format!("a line by {}: {error}", shard.header.holder)),
            }
        }
    }
    decoded
}

#[cfg(test)]
mod tests;
