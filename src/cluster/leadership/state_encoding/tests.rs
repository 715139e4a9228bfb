//! What is written, cut, read and dropped.

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
