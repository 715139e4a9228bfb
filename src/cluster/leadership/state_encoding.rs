//! What state objects contain: decisions and memory as JSON lines, split over a few ConfigMaps by a stable hash. Pure;
//! reading and writing the objects is in `state`. What is parsed is treated like any input: a damaged line is dropped
//! and the others stay.

use std::collections::BTreeMap;
use std::fmt::Display;

use jiff::{SignedDuration, Timestamp};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use wva_core::bound::stability::Wanted;
use wva_core::decision::Verdict;
use wva_core::memory::GroupMemory;
use wva_core::units::Replicas;
use wva_core::{Decision, GroupId, VariantId};

use crate::cluster::crd::MAX_REPLICAS;
use crate::cluster::text::{plain, shortened};

/// The layout of decisions that this build writes; another one is not read. That of memories is the core's own.
pub(crate) const VERSION: u32 = 1;
/// Largest content of one object: a quarter of what etcd accepts (1 MiB), so that an update is never a burden.
pub(crate) const SHARD_MAX_BYTES: usize = 256 * 1024;
/// A new layout fills its objects to this: entries may double before another layout is needed.
const SHARD_FILL_BYTES: usize = SHARD_MAX_BYTES / 2;
/// Most objects of one kind: 16 × 256 KiB hold 10,000 decisions of 400 bytes, or as many models' memories without what was
/// learned and the words; with all that, 2,000 of 2 KiB. Their names are known, so rights can be given by name.
pub(crate) const SHARDS_MAX: u32 = 16;
/// Longest message that is kept: people read it, nothing rests on it.
const MESSAGE_MAX_BYTES: usize = 512;
/// Longest text about an entry that is dropped.
const MAX_DROPPED_BYTES: usize = 512;
/// How far ahead of ours another instance's clock may be before that is told.
const CLOCK_SKEW: SignedDuration = SignedDuration::from_secs(60);

/// Who wrote an object, and when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Header {
    pub(crate) version: u32,
    /// Identity of the holder that wrote it.
    pub(crate) holder: String,
    /// uid of the lease it held: epochs are compared within one lease only. Empty in what older builds wrote.
    #[serde(default)]
    pub(crate) lease: String,
    /// `leaseTransitions` at that time.
    pub(crate) epoch: i64,
    pub(crate) written: Timestamp,
}

impl Header {
    /// True when this was written by a later holder of the same lease. Another lease says nothing: it was deleted or
    /// renamed, and whoever holds the one there is now is right.
    pub(crate) fn deposes(&self, other: &Self) -> bool {
        self.lease == other.lease && self.epoch > other.epoch
    }
}

/// One object: who wrote it, and its lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shard {
    pub(crate) header: Header,
    pub(crate) lines: String,
}

/// One line.
#[derive(Serialize, Deserialize)]
struct Entry<K, V> {
    id: K,
    value: V,
}

/// What goes where objects are full, the first first. Targets never do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dispensable {
    /// What analyzers have learned: they learn it again.
    Learned,
    /// That too, and what the next look says anew: the words, and what was wanted within the windows of stability.
    Words,
}

/// What all objects of one kind are to contain.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Encoded {
    /// The lines of every object, by its number.
    pub(crate) shards: Vec<String>,
    /// What is not among them.
    pub(crate) cut: Cut,
}

/// Entries that are not kept whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Cut {
    /// Without what was learned.
    pub(crate) learned: usize,
    /// Without the words too.
    pub(crate) words: usize,
    /// Not kept at all.
    pub(crate) all: usize,
}

/// What can be kept: decisions, and what is remembered of model groups.
pub(crate) trait Kept: Clone + Serialize + DeserializeOwned {
    type Id: Ord + Clone + Display + Serialize + DeserializeOwned;

    /// As it is written.
    fn pruned(&self) -> Self;
    /// As it is written where there is no room for all of it; `None` where nothing can be left out at this level.
    fn without(&self, least: Dispensable) -> Option<Self>;
    /// Why a value that was read cannot be true, if so.
    fn problem(&self) -> Option<String>;
    /// Makes what is after `now` be now; true when it was further ahead than clocks may be apart.
    fn not_after(&mut self, now: Timestamp) -> bool;
}

impl Kept for Decision {
    type Id = VariantId;

    fn pruned(&self) -> Self {
        let mut decision = self.clone();
        // Who decides says anew what is missing; nobody else tells it.
        decision.gap = None;
        let message = match &mut decision.verdict {
            Verdict::Target(target) => &mut target.message,
            Verdict::Unknown(unknown) => &mut unknown.message,
        };
        *message = shortened(message, MESSAGE_MAX_BYTES).into();
        decision
    }

    fn without(&self, _: Dispensable) -> Option<Self> {
        None
    }

    fn problem(&self) -> Option<String> {
        let desired = match &self.verdict {
            Verdict::Target(target) => Some(target.desired),
            Verdict::Unknown(_) => None,
        };
        too_many(desired.into_iter().chain(self.current))
    }

    fn not_after(&mut self, now: Timestamp) -> bool {
        let time = match &mut self.verdict {
            Verdict::Target(target) => &mut target.evidence,
            Verdict::Unknown(unknown) => &mut unknown.since,
        };
        let ahead = *time > now + CLOCK_SKEW;
        *time = (*time).min(now);
        ahead
    }
}

impl Kept for GroupMemory {
    type Id = GroupId;

    fn pruned(&self) -> Self {
        self.kept()
    }

    fn without(&self, least: Dispensable) -> Option<Self> {
        let mut group = self.clone();
        group.learned = None;
        if least == Dispensable::Words {
            for variant in group.variants.values_mut() {
                (variant.reason, variant.message) = (None, None);
                variant.wanted = Wanted::default();
            }
        }
        (group != *self).then_some(group)
    }

    fn problem(&self) -> Option<String> {
        let variants = self.variants.iter().map(|(_, variant)| variant);
        too_many(variants.flat_map(|variant| variant.target.into_iter().chain(variant.wanted.highest())))
    }

    /// Whoever decides with it takes what is after its own time for now: nothing has to be changed here.
    fn not_after(&mut self, now: Timestamp) -> bool {
        let variants = self.variants.iter().map(|(_, variant)| variant);
        let times =
            variants.flat_map(|variant| [variant.target_since, variant.evidence, variant.blind_since]);
        let latest = times.chain([self.cycle_at, self.idle_since]).flatten().max();
        latest.is_some_and(|time| time > now + CLOCK_SKEW)
    }
}

/// That one of `numbers` is none that a variant can have, if so.
fn too_many(numbers: impl IntoIterator<Item = Replicas>) -> Option<String> {
    let number = numbers.into_iter().map(Replicas::get).max()?;
    let absurd = i32::try_from(number).map_or(true, |number| number > MAX_REPLICAS);
    absurd.then(|| format!("{number} replicas, where a variant has at most {MAX_REPLICAS}"))
}

/// FNV-1a: short, stable between builds, and good enough to spread names.
pub(crate) fn fnv1a(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The number of the object that an entry is in, when there are `count`.
pub(crate) fn shard_of(id: &impl Display, count: usize) -> usize {
    (fnv1a(&id.to_string()) % count.max(1) as u64) as usize
}

/// What every object contains. `layout` is the number of objects in use; the result never has fewer, so that entries move
/// rarely. What does not fit into the most there may be is cut, and counted.
pub(crate) fn encode<V: Kept>(entries: &BTreeMap<V::Id, V>, layout: u32) -> Encoded {
    let count = objects_for(entries, layout) as usize;
    let mut shards: Vec<Vec<_>> = (0..count).map(|_| Vec::new()).collect();
    for entry in entries {
        shards[shard_of(entry.0, count)].push(entry);
    }
    let mut cut = Cut::default();
    // One after the other: the lines of all models of a large fleet together are many times what is kept of them.
    let shards = shards.into_iter().map(|entries| fitted(&entries, &mut cut)).collect();
    Encoded { shards, cut }
}

/// How many objects `entries` take: counted until it is clear that they take the most there may be.
fn objects_for<V: Kept>(entries: &BTreeMap<V::Id, V>, layout: u32) -> u32 {
    let enough = SHARDS_MAX.saturating_sub(1) as usize * SHARD_FILL_BYTES;
    let mut bytes = 0;
    for (id, value) in entries {
        if layout >= SHARDS_MAX || bytes > enough {
            return SHARDS_MAX;
        }
        bytes += line(id, &value.pruned()).map_or(0, |line| line.len());
    }
    let wanted = u32::try_from(bytes.div_ceil(SHARD_FILL_BYTES)).unwrap_or(SHARDS_MAX).next_power_of_two();
    wanted.max(layout).clamp(1, SHARDS_MAX)
}

/// An entry with the end of its line.
fn line<V: Kept>(id: &V::Id, value: &V) -> Option<String> {
    let mut line = serde_json::to_string(&Entry { id, value }).ok()?;
    line.push('\n');
    Some(line)
}

/// The lines of one object: of those that do not fit the last lose what can be done without, and then all.
fn fitted<V: Kept>(entries: &[(&V::Id, &V)], cut: &mut Cut) -> String {
    // Only a value that JSON has no word for cannot be written; there is none in these types.
    let mut lines: Vec<_> = entries
        .iter()
        .filter_map(|(id, value)| Some((*id, *value, line::<V>(*id, &value.pruned())?)))
        .collect();
    cut.all += entries.len() - lines.len();
    let mut bytes: usize = lines.iter().map(|(.., line)| line.len()).sum();
    for least in [Dispensable::Learned, Dispensable::Words] {
        for (id, value, full) in lines.iter_mut().rev() {
            if bytes <= SHARD_MAX_BYTES {
                break;
            }
            let less = value.without(least).and_then(|less| line(*id, &less));
            if let Some(less) = less.filter(|less| less.len() < full.len()) {
                bytes -= full.len() - less.len();
                *full = less;
                match least {
                    Dispensable::Learned => cut.learned += 1,
                    Dispensable::Words => cut.words += 1,
                }
            }
        }
    }
    let mut kept = String::with_capacity(bytes.min(SHARD_MAX_BYTES));
    for (.., line) in lines {
        if kept.len() + line.len() <= SHARD_MAX_BYTES {
            kept.push_str(&line);
        } else {
            cut.all += 1;
        }
    }
    kept
}

/// What objects hold.
#[derive(Debug)]
pub(crate) struct Decoded<V: Kept> {
    /// The entries of all objects.
    pub(crate) entries: BTreeMap<V::Id, V>,
    /// What was dropped, and why.
    pub(crate) dropped: Vec<String>,
    /// Entries from further in the future than clocks may be apart: they count as of now.
    pub(crate) ahead: usize,
}

/// The entries of all objects. Of an entry that is in several, the one of the lease that was written under last counts, of
/// these the one of the newest epoch, and of these the one written last. A number of the future is not dropped: a reader whose
/// clock is behind would have none, and answer none, until its own first evaluation.
pub(crate) fn decode<V: Kept>(shards: &[Shard], now: Timestamp) -> Decoded<V> {
    let mut lease_written: BTreeMap<&str, Timestamp> = BTreeMap::new();
    for Shard { header, .. } in shards {
        let last = lease_written.entry(&header.lease).or_insert(header.written);
        *last = header.written.max(*last);
    }
    let mut order: Vec<_> = shards.iter().collect();
    order.sort_by_key(|Shard { header, .. }| {
        (lease_written.get(header.lease.as_str()), &header.lease, header.epoch, header.written)
    });
    let mut decoded = Decoded { entries: BTreeMap::new(), dropped: Vec::new(), ahead: 0 };
    for shard in order {
        for line in shard.lines.lines() {
            match serde_json::from_str::<Entry<V::Id, V>>(line) {
                Ok(Entry { id, mut value }) => match value.problem() {
                    None => {
                        decoded.ahead += usize::from(value.not_after(now));
                        decoded.entries.insert(id, value);
                    }
                    Some(problem) => {
                        decoded.dropped.push(plain(&format!("{id}: {problem}"), MAX_DROPPED_BYTES))
                    }
                },
                Err(error) => {
                    let text = format!("a line by {}: {error}", shard.header.holder);
                    decoded.dropped.push(plain(&text, MAX_DROPPED_BYTES));
                }
            }
        }
    }
    decoded
}

#[cfg(test)]
mod tests;
