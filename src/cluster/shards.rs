//! What state objects contain: decisions and memory as JSON lines, split over a few ConfigMaps by a stable hash. Pure;
//! reading and writing the objects is in `state`. What is parsed is treated like any input: a damaged line is dropped
//! and the others stay.

use std::collections::BTreeMap;
use std::fmt::Display;

use jiff::{SignedDuration, Timestamp};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use wva_core::decision::Verdict;
use wva_core::memory::GroupMemory;
use wva_core::{Decision, GroupId, VariantId};

use super::status::shortened;

/// The layout this build writes; another one is not read.
pub(crate) const VERSION: u32 = 1;
/// Largest content of one object: a quarter of what etcd accepts (1 MiB), so that an update is never a burden.
pub(crate) const SHARD_MAX_BYTES: usize = 256 * 1024;
/// A new layout fills its objects to this: entries may double before another layout is needed.
const SHARD_FILL_BYTES: usize = SHARD_MAX_BYTES / 2;
/// Most objects of one kind: 16 × 256 KiB hold 10,000 decisions of 400 bytes. Their names are known, so rights can be
/// given by name.
pub(crate) const SHARDS_MAX: u32 = 16;
/// Longest message that is kept: people read it, nothing rests on it.
const MESSAGE_MAX_BYTES: usize = 512;
/// How far ahead of ours another instance's clock may be.
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

/// What can be kept: decisions, and what is remembered of model groups.
pub(crate) trait Kept: Clone + Serialize + DeserializeOwned {
    type Id: Ord + Clone + Display + Serialize + DeserializeOwned;

    /// As it is written.
    fn pruned(&self) -> Self;
    /// Why a value that was read cannot be true, if so.
    fn problem(&self, now: Timestamp) -> Option<&'static str>;
}

impl Kept for Decision {
    type Id = VariantId;

    fn pruned(&self) -> Self {
        let mut decision = self.clone();
        let message = match &mut decision.verdict {
            Verdict::Target(target) => &mut target.message,
            Verdict::Unknown(unknown) => &mut unknown.message,
        };
        *message = shortened(message, MESSAGE_MAX_BYTES).into();
        decision
    }

    fn problem(&self, now: Timestamp) -> Option<&'static str> {
        let (number, time) = match &self.verdict {
            Verdict::Target(target) => (target.desired.get(), target.evidence),
            Verdict::Unknown(unknown) => (0, unknown.since),
        };
        if i32::try_from(number).is_err() {
            return Some("more replicas than a workload can have");
        }
        (time > now + CLOCK_SKEW).then_some("a time in the future")
    }
}

impl Kept for GroupMemory {
    type Id = GroupId;

    fn pruned(&self) -> Self {
        self.clone()
    }

    fn problem(&self, now: Timestamp) -> Option<&'static str> {
        let variants = self.variants.iter().map(|(_, variant)| variant);
        let times =
            variants.flat_map(|variant| [variant.target_since, variant.evidence, variant.blind_since]);
        let latest = times.chain([self.cycle_at, self.idle_since]).flatten().max();
        latest.filter(|time| *time > now + CLOCK_SKEW).map(|_| "a time in the future")
    }
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

/// The lines of every object, by its number. `layout` is the number of objects in use; the result never has fewer, so
/// that entries move rarely. What does not fit into the most there may be is left out and counted.
pub(crate) fn encode<V: Kept>(entries: &BTreeMap<V::Id, V>, layout: u32) -> (Vec<String>, usize) {
    let line = |(id, value): (&V::Id, &V)| {
        let entry = Entry { id: id.clone(), value: value.pruned() };
        // Only a value that JSON has no word for cannot be written; there is none in these types.
        serde_json::to_string(&entry).ok().map(|line| (id.clone(), line))
    };
    let lines: Vec<_> = entries.iter().filter_map(line).collect();
    let bytes: usize = lines.iter().map(|(_, line)| line.len() + 1).sum();
    let wanted = u32::try_from(bytes.div_ceil(SHARD_FILL_BYTES)).unwrap_or(SHARDS_MAX).next_power_of_two();
    let count = wanted.max(layout).clamp(1, SHARDS_MAX) as usize;
    let mut shards = vec![String::new(); count];
    let mut left_out = entries.len() - lines.len();
    for (id, line) in lines {
        let shard = &mut shards[shard_of(&id, count)];
        if shard.len() + line.len() < SHARD_MAX_BYTES {
            shard.push_str(&line);
            shard.push('\n');
        } else {
            left_out += 1;
        }
    }
    (shards, left_out)
}

/// The entries of all objects, and what was dropped and why. Of an entry that is in several, the one of the lease that
/// was written under last counts, of these the one of the newest epoch, and of these the one written last.
pub(crate) fn decode<V: Kept>(shards: &[Shard], now: Timestamp) -> (BTreeMap<V::Id, V>, Vec<String>) {
    let mut lease_written: BTreeMap<&str, Timestamp> = BTreeMap::new();
    for Shard { header, .. } in shards {
        let last = lease_written.entry(&header.lease).or_insert(header.written);
        *last = header.written.max(*last);
    }
    let mut order: Vec<_> = shards.iter().collect();
    order.sort_by_key(|Shard { header, .. }| {
        (lease_written.get(header.lease.as_str()), &header.lease, header.epoch, header.written)
    });
    let (mut entries, mut dropped) = (BTreeMap::new(), Vec::new());
    for shard in order {
        for line in shard.lines.lines() {
            match serde_json::from_str::<Entry<V::Id, V>>(line) {
                Ok(Entry { id, value }) => match value.problem(now) {
                    None => {
                        entries.insert(id, value);
                    }
                    Some(problem) => dropped.push(format!("{id}: {problem}")),
                },
                Err(error) => dropped.push(format!("a line by {}: {error}", shard.header.holder)),
            }
        }
    }
    (entries, dropped)
}

#[cfg(test)]
mod tests {
    use wva_core::decision::{Reason, Target};
    use wva_core::units::Replicas;

    use super::*;

    fn time(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    fn decision(desired: u32) -> Decision {
        let target = Target {
            desired: Replicas::new(desired),
            reason: Reason::Steady,
            message: "x".repeat(2000).into(),
            evidence: time(100),
        };
        Decision { model: "m".into(), accelerator: None, current: None, verdict: Verdict::Target(target) }
    }

    fn many(count: u32) -> BTreeMap<VariantId, Decision> {
        (0..count).map(|i| (VariantId::new("llm", format!("v{i}")), decision(i))).collect()
    }

    fn shard(epoch: i64, lines: &str) -> Shard {
        let (holder, lease) = ("a".into(), "l-1".into());
        let header = Header { version: VERSION, holder, lease, epoch, written: time(epoch) };
        Shard { header, lines: lines.into() }
    }

    fn desired(decision: &Decision) -> u32 {
        let Verdict::Target(target) = &decision.verdict else { panic!("no number") };
        target.desired.get()
    }

    #[test]
    fn what_is_written_is_read_back() {
        let entries = many(1000);
        let (shards, left_out) = encode(&entries, 1);
        assert_eq!(left_out, 0);
        assert!(shards.iter().all(|lines| lines.len() <= SHARD_MAX_BYTES));
        let shards: Vec<_> = shards.iter().map(|lines| shard(1, lines)).collect();
        let (back, dropped) = decode::<Decision>(&shards, time(100));
        assert_eq!((back.len(), dropped.len()), (1000, 0));
        assert_eq!(back[&VariantId::new("llm", "v7")], entries[&VariantId::new("llm", "v7")].pruned());
    }

    #[test]
    fn objects_stay_within_their_size_and_number_whatever_comes() {
        let (shards, left_out) = encode(&many(20_000), 1);
        assert_eq!(shards.len(), SHARDS_MAX as usize);
        assert!(shards.iter().all(|lines| lines.len() <= SHARD_MAX_BYTES));
        assert!(left_out > 0, "counted, so that it is told");
    }

    #[test]
    fn one_small_object_is_enough_for_a_small_installation() {
        assert_eq!(encode(&many(3), 1).0.len(), 1);
        assert_eq!(encode(&many(3), 4).0.len(), 4, "a layout never shrinks while in use");
    }

    #[test]
    fn an_older_epoch_is_ignored() {
        let old = encode(&BTreeMap::from([(VariantId::new("n", "v"), decision(9))]), 1).0;
        let new = encode(&BTreeMap::from([(VariantId::new("n", "v"), decision(2))]), 1).0;
        let (entries, _) = decode::<Decision>(&[shard(5, &new[0]), shard(4, &old[0])], time(100));
        assert_eq!(desired(&entries[&VariantId::new("n", "v")]), 2);
    }

    #[test]
    fn epochs_of_a_lease_that_was_deleted_count_no_more() {
        let id = VariantId::new("n", "v");
        let old = encode(&BTreeMap::from([(id.clone(), decision(9))]), 1).0;
        let new = encode(&BTreeMap::from([(id.clone(), decision(2))]), 1).0;
        let (left, mut ours) = (shard(7, &old[0]), shard(1, &new[0]));
        assert!(left.header.deposes(&ours.header));
        (ours.header.lease, ours.header.written) = ("l-2".into(), time(60));
        assert!(!left.header.deposes(&ours.header) && !ours.header.deposes(&left.header));
        assert_eq!(desired(&decode::<Decision>(&[ours, left], time(100)).0[&id]), 2);
    }

    #[test]
    fn an_object_of_a_build_that_knew_no_lease_is_still_read() {
        let old = r#"{"version":1,"holder":"a","epoch":3,"written":"2026-01-01T00:00:00Z"}"#;
        assert_eq!(serde_json::from_str::<Header>(old).unwrap().lease, "");
    }

    #[test]
    fn a_damaged_line_is_dropped_and_the_others_stay() {
        let good = encode(&many(2), 1).0.remove(0);
        let lines = format!("{{\"id\":\n{good}not json\n");
        let (entries, dropped) = decode::<Decision>(&[shard(1, &lines)], time(100));
        assert_eq!((entries.len(), dropped.len()), (2, 2));
    }

    #[test]
    fn impossible_values_are_dropped() {
        let id = VariantId::new("n", "v");
        let huge = encode(&BTreeMap::from([(id.clone(), decision(u32::MAX))]), 1).0.remove(0);
        assert!(decode::<Decision>(&[shard(1, &huge)], time(100)).0.is_empty());
        let future = encode(&BTreeMap::from([(id, decision(1))]), 1).0.remove(0);
        let (entries, dropped) = decode::<Decision>(&[shard(1, &future)], time(0));
        assert!(entries.is_empty());
        assert!(dropped[0].contains("n/v: a time in the future"), "{dropped:?}");
    }

    #[test]
    fn the_hash_is_the_published_one() {
        assert_eq!(fnv1a(""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a("a"), 0xaf63_dc4c_8601_ec8c);
    }
}
