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

use super::crd::MAX_REPLICAS;
use super::text::{plain, shortened};

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
    // Only a value that JSON has no word for cannot be written; there is none in these types.
    let lines: Vec<_> =
        entries.iter().filter_map(|(id, value)| Some((id, value, line(id, &value.pruned())?))).collect();
    let bytes: usize = lines.iter().map(|(.., line)| line.len()).sum();
    let wanted = u32::try_from(bytes.div_ceil(SHARD_FILL_BYTES)).unwrap_or(SHARDS_MAX).next_power_of_two();
    let count = wanted.max(layout).clamp(1, SHARDS_MAX) as usize;
    let mut cut = Cut { all: entries.len() - lines.len(), ..Cut::default() };
    let mut shards: Vec<Vec<_>> = (0..count).map(|_| Vec::new()).collect();
    for (id, value, line) in lines {
        shards[shard_of(id, count)].push((id, value, line));
    }
    let shards = shards.into_iter().map(|lines| fitted(lines, &mut cut)).collect();
    Encoded { shards, cut }
}

/// An entry with the end of its line.
fn line<V: Kept>(id: &V::Id, value: &V) -> Option<String> {
    let mut line = serde_json::to_string(&Entry { id, value }).ok()?;
    line.push('\n');
    Some(line)
}

/// The lines of one object: of those that do not fit the last lose what can be done without, and then all.
fn fitted<V: Kept>(mut lines: Vec<(&V::Id, &V, String)>, cut: &mut Cut) -> String {
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
mod tests {
    use super::*;
    use wva_core::decision::{Reason, Target};
    use wva_core::memory::{Learned, VariantMemory};

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
        Decision {
            model: "m".into(),
            accelerator: None,
            current: None,
            verdict: Verdict::Target(target),
            gap: None,
        }
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
        let Encoded { shards, cut } = encode(&entries, 1);
        assert_eq!(cut, Cut::default());
        assert!(shards.iter().all(|lines| lines.len() <= SHARD_MAX_BYTES));
        let shards: Vec<_> = shards.iter().map(|lines| shard(1, lines)).collect();
        let Decoded { entries: back, dropped, ahead } = decode::<Decision>(&shards, time(100));
        assert_eq!((back.len(), dropped.len(), ahead), (1000, 0, 0));
        assert_eq!(back[&VariantId::new("llm", "v7")], entries[&VariantId::new("llm", "v7")].pruned());
    }

    #[test]
    fn objects_stay_within_their_size_and_number_whatever_comes() {
        let Encoded { shards, cut } = encode(&many(20_000), 1);
        assert_eq!(shards.len(), SHARDS_MAX as usize);
        assert!(shards.iter().all(|lines| lines.len() <= SHARD_MAX_BYTES));
        assert!(cut.all > 0, "counted, so that it is told");
    }

    /// What is remembered of a model with one variant.
    fn remembered(index: u32) -> GroupMemory {
        let variant = VariantMemory {
            target: Some(Replicas::new(index)),
            target_since: Some(time(50)),
            evidence: Some(time(60)),
            reason: Some(Reason::Steady),
            message: Some("x".repeat(160).into()),
            ..VariantMemory::default()
        };
        let mut group = GroupMemory { cycle_at: Some(time(61)), ..GroupMemory::default() };
        // A kilobyte: eight kinds of hardware with a long name.
        let name = |at: u32| format!("{at}|{}", "r".repeat(110));
        let bests: serde_json::Map<_, _> =
            (0..8).map(|at| (name(at), serde_json::json!([[50_000, 1.5]]))).collect();
        let bests = serde_json::from_value(bests.into()).unwrap();
        group.learned = Some(Box::new(Learned { bests, ..Learned::default() }));
        group.variants.insert("v".into(), variant);
        group
    }

    fn models(count: u32) -> BTreeMap<GroupId, GroupMemory> {
        (0..count).map(|index| (GroupId::new("llm", format!("m{index}")), remembered(index))).collect()
    }

    /// What is read back of `count` models, and what was cut.
    fn kept(count: u32) -> (BTreeMap<GroupId, GroupMemory>, Cut) {
        let Encoded { shards, cut } = encode(&models(count), 1);
        assert!(shards.iter().all(|lines| lines.len() <= SHARD_MAX_BYTES));
        let shards: Vec<_> = shards.iter().map(|lines| shard(1, lines)).collect();
        (decode::<GroupMemory>(&shards, time(100)).entries, cut)
    }

    #[test]
    fn where_memories_do_not_fit_what_was_learned_goes_first_and_no_target_does() {
        let (all, cut) = kept(1_500);
        assert_eq!((all, cut), (models(1_500), Cut::default()));
        for (count, words) in [(5_000, false), (13_000, true)] {
            let (back, cut) = kept(count);
            assert_eq!(back.len(), count as usize, "nobody is left out");
            let target = |group: &GroupMemory| group.variants.get("v").and_then(|one| one.target);
            assert!(back.values().map(target).eq(models(count).values().map(target)));
            let without = back.values().filter(|group| group.learned.is_none()).count();
            assert!(cut.all == 0 && cut.learned == without && without > 0, "{cut:?}");
            assert_eq!(cut.words > 0, words, "{count}: {cut:?}");
        }
    }

    #[test]
    fn one_small_object_is_enough_for_a_small_installation() {
        assert_eq!(encode(&many(3), 1).shards.len(), 1);
        assert_eq!(encode(&many(3), 4).shards.len(), 4, "a layout never shrinks while in use");
    }

    #[test]
    fn an_older_epoch_is_ignored() {
        let old = encode(&BTreeMap::from([(VariantId::new("n", "v"), decision(9))]), 1).shards;
        let new = encode(&BTreeMap::from([(VariantId::new("n", "v"), decision(2))]), 1).shards;
        let entries = decode::<Decision>(&[shard(5, &new[0]), shard(4, &old[0])], time(100)).entries;
        assert_eq!(desired(&entries[&VariantId::new("n", "v")]), 2);
    }

    #[test]
    fn epochs_of_a_lease_that_was_deleted_count_no_more() {
        let id = VariantId::new("n", "v");
        let old = encode(&BTreeMap::from([(id.clone(), decision(9))]), 1).shards;
        let new = encode(&BTreeMap::from([(id.clone(), decision(2))]), 1).shards;
        let (left, mut ours) = (shard(7, &old[0]), shard(1, &new[0]));
        assert!(left.header.deposes(&ours.header));
        (ours.header.lease, ours.header.written) = ("l-2".into(), time(60));
        assert!(!left.header.deposes(&ours.header) && !ours.header.deposes(&left.header));
        assert_eq!(desired(&decode::<Decision>(&[ours, left], time(100)).entries[&id]), 2);
    }

    #[test]
    fn an_object_of_a_build_that_knew_no_lease_is_still_read() {
        let old = r#"{"version":1,"holder":"a","epoch":3,"written":"2026-01-01T00:00:00Z"}"#;
        assert_eq!(serde_json::from_str::<Header>(old).unwrap().lease, "");
    }

    #[test]
    fn a_damaged_line_is_dropped_and_the_others_stay() {
        let good = encode(&many(2), 1).shards.remove(0);
        let lines = format!("{{\"id\":\n{good}not json\n");
        let decoded = decode::<Decision>(&[shard(1, &lines)], time(100));
        assert_eq!((decoded.entries.len(), decoded.dropped.len()), (2, 2));
    }

    #[test]
    fn a_number_that_no_variant_can_have_is_not_taken_from_a_state_object() {
        let id = VariantId::new("n", "v");
        for (number, kept) in [(100_000, 1), (100_001, 0), (2_147_483_647, 0), (u32::MAX, 0)] {
            let lines = encode(&BTreeMap::from([(id.clone(), decision(number))]), 1).shards.remove(0);
            let decoded = decode::<Decision>(&[shard(1, &lines)], time(100));
            assert_eq!((decoded.entries.len(), decoded.dropped.len()), (kept, 1 - kept), "{number}");
            let group = encode(&BTreeMap::from([(GroupId::new("n", "m"), remembered(number))]), 1);
            let decoded = decode::<GroupMemory>(&[shard(1, &group.shards[0])], time(100));
            assert_eq!((decoded.entries.len(), decoded.dropped.len()), (kept, 1 - kept), "{number}");
        }
    }

    #[test]
    fn what_was_wanted_lately_is_bounded_like_a_target() {
        let wanted = r#"{"id":"n/m","value":{"variants":{"v":{"wanted":{"highs":[["2026-01-01T00:00:00Z",4000000000]]}}}}}"#;
        let decoded = decode::<GroupMemory>(&[shard(1, wanted)], time(100));
        assert!(decoded.entries.is_empty(), "{decoded:?}");
        assert!(decoded.dropped[0].contains("4000000000 replicas"), "{:?}", decoded.dropped);
    }

    #[test]
    fn a_number_of_the_future_counts_as_of_now_and_is_not_lost() {
        let id = VariantId::new("n", "v");
        let future = encode(&BTreeMap::from([(id.clone(), decision(7))]), 1).shards.remove(0);
        let Decoded { entries, dropped, ahead } = decode::<Decision>(&[shard(1, &future)], time(0));
        assert_eq!((desired(&entries[&id]), dropped.len(), ahead), (7, 0, 1));
        let Verdict::Target(target) = &entries[&id].verdict else { panic!("no number") };
        assert_eq!(target.evidence, time(0));
        let near = decode::<Decision>(&[shard(1, &future)], time(70));
        assert_eq!(near.ahead, 0, "so far apart clocks may be");
    }

    #[test]
    fn the_hash_is_the_published_one() {
        assert_eq!(fnv1a(""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a("a"), 0xaf63_dc4c_8601_ec8c);
    }
}
