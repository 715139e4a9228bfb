//! What state objects contain, lose when they are full, and drop when they are damaged.

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
        explanation: "x".repeat(2000).into(),
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

fn decisions(count: u32) -> BTreeMap<VariantId, Decision> {
    (0..count).map(|i| (VariantId::new("llm", format!("v{i}")), decision(i))).collect()
}

fn shard(epoch: i64, lines: &str) -> Shard {
    let holder = "a".into();
    let lease = "l-1".into();
    let header = ShardHeader { version: DECISIONS_VERSION, holder, lease, epoch, written: time(epoch) };
    Shard { header, lines: lines.into() }
}

fn desired(decision: &Decision) -> u32 {
    let Verdict::Target(target) = &decision.verdict else { panic!("no number") };
    target.desired.get()
}

#[test]
fn what_is_encoded_is_decoded_again() {
    let entries = decisions(1000);
    let EncodedShards { shards, dropped } = encode(&entries, 1);
    assert_eq!(dropped, DroppedCounts::default());
    assert!(shards.iter().all(|lines| lines.len() <= MAX_SHARD_BYTES));
    let shards: Vec<_> = shards.iter().map(|lines| shard(1, lines)).collect();
    let DecodedShards { entries: back, dropped, ahead } = decode::<Decision>(&shards, time(100));
    assert_eq!((back.len(), dropped.len(), ahead), (1000, 0, 0));
    assert_eq!(back[&VariantId::new("llm", "v7")], entries[&VariantId::new("llm", "v7")].pruned());
}

#[test]
fn objects_stay_within_their_size_and_number() {
    let EncodedShards { shards, dropped } = encode(&decisions(60_000), 1);
    assert_eq!(shards.len(), MAX_SHARDS);
    assert!(shards.iter().all(|lines| lines.len() <= MAX_SHARD_BYTES));
    assert!(dropped.entries > 0, "counted, so that it is reported");
}

#[test]
fn the_numbers_of_a_quarter_of_ten_thousand_variants_were_lost_for_the_messages_of_the_others() {
    let entries = decisions(10_000);
    let EncodedShards { shards, dropped } = encode(&entries, 1);
    assert!(dropped.entries == 0 && dropped.learned == 0 && dropped.messages > 0, "{dropped:?}");
    let shards: Vec<_> = shards.iter().map(|lines| shard(1, lines)).collect();
    let back = decode::<Decision>(&shards, time(100)).entries;
    assert!(
        back.iter()
            .map(|(id, back)| (id, desired(back)))
            .eq(entries.iter().map(|(id, own)| (id, desired(own))))
    );
}

/// The memory of a model with one variant.
fn memory(index: u32) -> GroupMemory {
    let variant = VariantMemory {
        target: Some(Replicas::new(index)),
        target_since: Some(time(50)),
        evidence: Some(time(60)),
        reason: Some(Reason::Steady),
        explanation: Some("x".repeat(160).into()),
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
    (0..count).map(|index| (GroupId::new("llm", format!("m{index}")), memory(index))).collect()
}

/// What is read back of `count` models, and what was dropped.
fn round_trip(count: u32) -> (BTreeMap<GroupId, GroupMemory>, DroppedCounts) {
    let EncodedShards { shards, dropped } = encode(&models(count), 1);
    assert!(shards.iter().all(|lines| lines.len() <= MAX_SHARD_BYTES));
    let shards: Vec<_> = shards.iter().map(|lines| shard(1, lines)).collect();
    (decode::<GroupMemory>(&shards, time(100)).entries, dropped)
}

#[test]
fn full_objects_drop_what_was_learned_first_and_never_a_target() {
    assert_eq!(round_trip(1_500), (models(1_500), DroppedCounts::default()));
    for (count, drops_messages) in [(5_000, false), (13_000, true)] {
        let (back, dropped) = round_trip(count);
        assert_eq!(back.len(), count as usize, "no entry is missing");
        let target = |group: &GroupMemory| group.variants.get("v").and_then(|variant| variant.target);
        assert!(back.values().map(target).eq(models(count).values().map(target)));
        let without = back.values().filter(|group| group.learned.is_none()).count();
        assert!(dropped.entries == 0 && dropped.learned == without && without > 0, "{dropped:?}");
        assert_eq!(dropped.messages > 0, drops_messages, "{count}: {dropped:?}");
    }
}

#[test]
fn one_small_object_is_enough_for_a_small_installation() {
    assert_eq!(encode(&decisions(3), 1).shards.len(), 1);
    assert_eq!(encode(&decisions(3), 4).shards.len(), 4, "a layout never shrinks while in use");
}

#[test]
fn an_older_epoch_is_ignored() {
    let old = encode(&BTreeMap::from([(VariantId::new("n", "v"), decision(9))]), 1).shards;
    let new = encode(&BTreeMap::from([(VariantId::new("n", "v"), decision(2))]), 1).shards;
    let entries = decode::<Decision>(&[shard(5, &new[0]), shard(4, &old[0])], time(100)).entries;
    assert_eq!(desired(&entries[&VariantId::new("n", "v")]), 2);
}

#[test]
fn epochs_of_a_deleted_lease_no_longer_count() {
    let id = VariantId::new("n", "v");
    let old = encode(&BTreeMap::from([(id.clone(), decision(9))]), 1).shards;
    let new = encode(&BTreeMap::from([(id.clone(), decision(2))]), 1).shards;
    let earlier = shard(7, &old[0]);
    let mut ours = shard(1, &new[0]);
    assert!(earlier.header.supersedes(&ours.header));
    (ours.header.lease, ours.header.written) = ("l-2".into(), time(60));
    assert!(!earlier.header.supersedes(&ours.header) && !ours.header.supersedes(&earlier.header));
    assert_eq!(desired(&decode::<Decision>(&[ours, earlier], time(100)).entries[&id]), 2);
}

#[test]
fn a_header_without_a_lease_is_still_read() {
    let old = r#"{"version":1,"holder":"a","epoch":3,"written":"2026-01-01T00:00:00Z"}"#;
    assert_eq!(serde_json::from_str::<ShardHeader>(old).unwrap().lease, "");
}

#[test]
fn a_damaged_line_is_dropped_and_the_others_stay() {
    let good = encode(&decisions(2), 1).shards.remove(0);
    let lines = format!("{{\"id\":\n{good}not json\n");
    let decoded = decode::<Decision>(&[shard(1, &lines)], time(100));
    assert_eq!((decoded.entries.len(), decoded.dropped.len()), (2, 2));
}

#[test]
fn an_impossible_number_of_replicas_is_dropped() {
    let id = VariantId::new("n", "v");
    for (number, count) in [(100_000, 1), (100_001, 0), (2_147_483_647, 0), (u32::MAX, 0)] {
        let lines = encode(&BTreeMap::from([(id.clone(), decision(number))]), 1).shards.remove(0);
        let decoded = decode::<Decision>(&[shard(1, &lines)], time(100));
        assert_eq!((decoded.entries.len(), decoded.dropped.len()), (count, 1 - count), "{number}");
        let group = encode(&BTreeMap::from([(GroupId::new("n", "m"), memory(number))]), 1);
        let decoded = decode::<GroupMemory>(&[shard(1, &group.shards[0])], time(100));
        assert_eq!((decoded.entries.len(), decoded.dropped.len()), (count, 1 - count), "{number}");
    }
}

#[test]
fn an_impossible_number_in_the_stabilisation_window_is_dropped() {
    let entry = r#"{"id":"n/m","value":{"variants":{"v":{"wanted":{"highs":[["2026-01-01T00:00:00Z",4000000000]]}}}}}"#;
    let decoded = decode::<GroupMemory>(&[shard(1, entry)], time(100));
    assert!(decoded.entries.is_empty(), "{decoded:?}");
    assert!(decoded.dropped[0].contains("4000000000 replicas"), "{:?}", decoded.dropped);
}

#[test]
fn a_number_from_the_future_counts_as_of_now() {
    let id = VariantId::new("n", "v");
    let future = encode(&BTreeMap::from([(id.clone(), decision(7))]), 1).shards.remove(0);
    let DecodedShards { entries, dropped, ahead } = decode::<Decision>(&[shard(1, &future)], time(0));
    assert_eq!((desired(&entries[&id]), dropped.len(), ahead), (7, 0, 1));
    let Verdict::Target(target) = &entries[&id].verdict else { panic!("no number") };
    assert_eq!(target.evidence, time(0));
    let near = decode::<Decision>(&[shard(1, &future)], time(70));
    assert_eq!(near.ahead, 0, "clocks may differ by that much");
}

#[test]
fn the_hash_is_fnv_1a() {
    assert_eq!(fnv1a(""), 0xcbf2_9ce4_8422_2325);
    assert_eq!(fnv1a("a"), 0xaf63_dc4c_8601_ec8c);
}
