//! What the analyzer does by default, where upstream does otherwise; upstream's own numbers are in the vectors.

mod arguments;
mod properties;

use jiff::SignedDuration;

use super::knowledge::{Learned, Record};
use super::*;
use crate::arithmetic::analyze_tokens as analyze;
use crate::model::Compat;
use crate::name_map::NameMap;
use crate::snapshot::{Engine, EngineParameters};

pub(super) const NOW: Timestamp = Timestamp::constant(1_800_000_000, 0);
const TREES: [Compat; 3] = [Compat::Corrected, Compat::Upstream, Compat::UpstreamJune];
const PAGE: &str = include_str!("../../../../docs/decisions/saturation-token.md");

pub(super) fn later(hours: i64) -> Timestamp {
    NOW + SignedDuration::from_hours(hours)
}

fn tokens(count: i64) -> Tokens {
    Tokens::new(count)
}

pub(super) fn variant(name: &str, current: u32) -> TokenVariant<'_> {
    TokenVariant {
        name,
        role: Role::Both,
        accelerator: "H100",
        cost: Cost::new(10.0).unwrap(),
        gpus: 1,
        current: Replicas::new(current),
        pending: Replicas::ZERO,
        parameters: None,
    }
}

fn replica(variant: &str, in_use: i64, queue: u32) -> TokenObservation<'_> {
    TokenObservation {
        replica: "p",
        variant,
        accelerator: "H100",
        in_use: tokens(in_use),
        capacity: tokens(16_000),
        queue,
        prompt: 100.0,
        output: 50.0,
        ..TokenObservation::default()
    }
}

/// A replica of `a` that does not show its capacity.
fn blind(kv: f64) -> TokenObservation<'static> {
    TokenObservation { kv, in_use: Tokens::ZERO, capacity: Tokens::ZERO, ..replica("a", 0, 0) }
}

fn analyzed<'a>(
    variants: &'a [TokenVariant<'a>],
    replicas: &'a [TokenObservation<'a>],
    knowledge: &mut Knowledge,
    compat: Compat,
    now: Timestamp,
) -> TokenAnalysis<'a> {
    analyze(&TokenInput { variants, replicas, queue: None }, knowledge, &TokenPolicy::default(), compat, now)
}

pub(super) fn record(learned: Learned, capacity: i64, effective: i64) -> Record {
    let (accelerator, parameters) = ("H100".into(), Some(Box::new(EngineParameters::defaults(Engine::Vllm))));
    let (capacity, effective) = (tokens(capacity), tokens(effective));
    Record { accelerator, gpus: 1, capacity, effective, parameters, learned, updated: NOW }
}

fn knowing(record: Record) -> Knowledge {
    Knowledge { records: NameMap::from([("a".into(), record)]), ..Knowledge::default() }
}

/// What is found of `a`, whose only replica is this, by what is `known` of it.
fn known_by(known: &Record, replica: TokenObservation<'_>, compat: Compat) -> VariantCapacity {
    analyzed(&[variant("a", 1)], &[replica], &mut knowing(known.clone()), compat, NOW).variants[0].clone()
}

/// Only the length of outputs changes, from 99 to 101.
fn bucket_slip(compat: Compat) -> Vec<(f64, f64, SmolStr)> {
    let mut knowledge = knowing(record(Learned::Arguments, 0, 8192));
    let cycles: [(u32, i64, u32, f64); 4] =
        [(2, 90_000, 12, 99.0), (4, 45_000, 0, 99.0), (3, 60_000, 0, 99.0), (3, 60_000, 0, 101.0)];
    let mut now = NOW;
    let step = |(replicas, in_use, queue, output)| {
        now += SignedDuration::from_secs(30);
        let capacity = tokens(400_000);
        let shown = TokenObservation { capacity, prompt: 4000.0, output, ..replica("a", in_use, queue) };
        let all = vec![shown; usize::try_from(replicas).unwrap()];
        let variants = [variant("a", replicas)];
        let found = analyzed(&variants, &all, &mut knowledge, compat, now);
        (found.variants[0].per_replica, found.total.spare, found.variants[0].reason.clone())
    };
    cycles.map(step).to_vec()
}

#[test]
fn a_longer_output_does_not_wipe_out_what_saturation_taught() {
    let (corrected, june) = (bucket_slip(Compat::Corrected), bucket_slip(Compat::UpstreamJune));
    assert_eq!(june[3], (320_000.0, 702_857.142_857_142_8, "P3-k2".into()));
    assert_eq!(corrected[3], (90_000.0, 12_857.142_857_142_84, "P2-near".into()));
    assert_eq!(corrected[1..3], june[1..3]);
}

#[test]
fn what_was_seen_at_other_lengths_never_raises_an_estimate() {
    let mut knowledge = knowing(record(Learned::Arguments, 0, 8192));
    let long = TokenObservation { output: 600.0, capacity: tokens(900_000), ..replica("a", 500_000, 9) };
    let now_short = TokenObservation { capacity: tokens(900_000), ..replica("a", 100, 0) };
    let variants = [variant("a", 1)];
    let _ = analyzed(&variants, &[long], &mut knowledge, Compat::Corrected, NOW);
    let replicas = [now_short];
    let found = analyzed(&variants, &replicas, &mut knowledge, Compat::Corrected, later(1));
    // min(8192 · 50/150, 256) · 125
    assert_eq!((found.replicas[0].k2, found.replicas[0].source), (tokens(32_000), Source::Arguments));
}

#[test]
fn replicas_of_different_roles_do_not_learn_from_each_other() {
    let variants = [("p", Role::Prefill), ("d", Role::Decode)]
        .map(|(name, role)| TokenVariant { role, ..variant(name, 1) });
    let source = |output, compat| {
        let replicas = [replica("p", 500, 9), TokenObservation { output, ..replica("d", 9_000, 0) }];
        let found = analyzed(&variants, &replicas, &mut Knowledge::default(), compat, NOW);
        found.replicas[1].source
    };
    assert_eq!(source(50.0, Compat::Corrected), Source::Memory);
    assert_eq!(source(600.0, Compat::Corrected), Source::Memory);
    assert_eq!(source(50.0, Compat::Upstream), Source::History);
}

#[test]
fn nothing_is_learned_from_replicas_of_other_variants() {
    let mut knowledge = Knowledge::default();
    let _ = analyzed(&[], &[replica("stranger", 8_000, 9)], &mut knowledge, Compat::Corrected, NOW);
    assert_eq!(knowledge, Knowledge::default());
}

#[test]
fn the_threshold_on_memory_counts_once_when_a_replica_stops_showing_its_capacity() {
    let found = |compat| {
        let capacity = known_by(&record(Learned::Live, 16_000, 12_800), blind(0.5), compat);
        (capacity.per_replica, capacity.demand, capacity.reason.to_string())
    };
    assert_eq!(found(Compat::Upstream), (10_240.0, 5_120.0, "P4-k1".to_owned()));
    assert_eq!(found(Compat::Corrected), (12_800.0, 8_000.0, "P0-store".to_owned()));
}

#[test]
fn a_replica_known_by_its_arguments_is_measured_in_resident_tokens() {
    let found = |replica, compat| {
        let capacity = known_by(&record(Learned::Arguments, 0, 8192), replica, compat);
        (capacity.per_replica, capacity.demand)
    };
    assert_eq!(found(blind(0.8), Compat::Upstream), (6_553.0, 5_242.0));
    let expected = (25_600.0, 25_600.0);
    assert_eq!(found(blind(0.8), Compat::Corrected), expected, "E is 32000 and its share 0.8 is saturation");
    let idle = TokenObservation { prompt: 0.0, output: 0.0, ..blind(0.8) };
    let (capacity, _) = found(idle, Compat::Corrected);
    assert_eq!(Some(capacity), Some(6_553.0), "without a workload there is only the batch");
}

#[test]
fn a_variant_without_observations_has_its_own_cost_and_accelerator() {
    let variants = [variant("a", 0)];
    for (compat, cost, accelerator) in
        [(Compat::Corrected, 10.0, Some("H100")), (Compat::Upstream, 0.0, None)]
    {
        let found = analyzed(&variants, &[], &mut Knowledge::default(), compat, NOW);
        let capacity = &found.variants[0];
        let shown = (capacity.cost.get(), capacity.accelerator.as_deref(), capacity.reason.as_str());
        assert_eq!(shown, (cost, accelerator, NO_DATA));
        assert!(!found.is_informative());
    }
}

#[test]
fn ready_replicas_that_show_nothing_make_nothing_spare() {
    let variants = [variant("a", 3)];
    let mut knowledge = knowing(record(Learned::Live, 16_000, 12_800));
    let total = analyzed(&variants, &[], &mut knowledge.clone(), Compat::Corrected, NOW).total;
    assert_eq!((total.supply, total.anticipated, total.spare), (0.0, 38_400.0, 0.0));
    let total = analyzed(&variants, &[], &mut knowledge, Compat::Upstream, NOW).total;
    assert_eq!((total.supply, total.spare), (38_400.0, 38_400.0));
}

#[test]
fn changed_arguments_outweigh_what_replicas_showed_before() {
    let faster = EngineParameters { batched_tokens: 4096, ..EngineParameters::defaults(Engine::Vllm) };
    let more = EngineParameters { max_sequences: 512, ..EngineParameters::defaults(Engine::Vllm) };
    let run = |parameters, compat| {
        let mut knowledge = knowing(record(Learned::Live, 16_000, 12_800));
        let variants = [TokenVariant { parameters: Some(parameters), ..variant("a", 0) }];
        let found = analyzed(&variants, &[], &mut knowledge, compat, NOW).variants[0].per_replica;
        (found, knowledge.records.get("a").unwrap().parameters.as_deref() == Some(parameters))
    };
    assert_eq!(run(&faster, Compat::Corrected), (4096.0, true));
    assert_eq!(run(&more, Compat::Corrected), (12_800.0, true), "what is compatible keeps what was shown");
    assert_eq!(run(&faster, Compat::Upstream), (12_800.0, false));
}

#[test]
fn a_variant_without_a_capacity_of_its_own_takes_a_like_one_before_none() {
    let mut knowledge = knowing(record(Learned::Arguments, 0, 0));
    for (name, learned, effective) in
        [("c", Learned::Live, 9_000), ("d", Learned::Live, 8_000), ("b", Learned::Arguments, 7_000)]
    {
        knowledge.records.insert(name.into(), record(learned, 0, effective));
    }
    let variants = ["a", "b", "c", "d"].map(|name| variant(name, 0));
    let found = analyzed(&variants, &[], &mut knowledge.clone(), Compat::Corrected, NOW);
    assert_eq!(Some(found.variants[0].per_replica), Some(9_000.0), "a live one, the first by name");
    knowledge.records.values_mut().for_each(|record| record.gpus = 8);
    knowledge.records.get_mut("a").unwrap().gpus = 1;
    let found = analyzed(&variants, &[], &mut knowledge, Compat::Corrected, NOW);
    assert_eq!(found.variants[0].reason, NO_DATA, "other hardware is not like it");
}

#[test]
fn the_record_of_a_variant_is_its_lower_median_replica() {
    let learned = |in_use: &[i64], compat| {
        let (variants, mut knowledge) = ([variant("a", 5)], Knowledge::default());
        let replicas: Vec<_> = in_use.iter().map(|in_use| replica("a", *in_use, 9)).collect();
        let _ = analyzed(&variants, &replicas, &mut knowledge, compat, NOW);
        knowledge.records.get("a").unwrap().effective.get()
    };
    assert_eq!(learned(&[9_000, 12_000, 8_000, 3_000], Compat::Corrected), 8_000);
    assert_eq!(learned(&[9_000, 12_000, 8_000, 3_000, 2_000], Compat::Corrected), 8_000);
    assert_eq!(learned(&[9_000, 12_000, 8_000, 3_000], Compat::Upstream), 3_000, "the last it came by");
}

#[test]
fn ten_moments_are_remembered_however_many_replicas_there_are() {
    let mut knowledge = Knowledge::default();
    let variants = [variant("a", 12)];
    for moment in 0..15 {
        let replicas = vec![replica("a", 1_000 + i64::from(moment), 9); 12];
        let now = NOW + SignedDuration::from_secs(30 * i64::from(moment));
        let _ = analyzed(&variants, &replicas, &mut knowledge, Compat::Corrected, now);
    }
    let expected: Vec<Tokens> = (1_005..1_015).map(tokens).collect();
    assert_eq!(knowledge.histories.iter().next().unwrap().values, expected);
}

#[test]
fn histories_last_a_day_and_records_a_week() {
    for compat in TREES {
        let mut knowledge = Knowledge::default();
        let variants = [variant("a", 1)];
        let _ = analyzed(&variants, &[replica("a", 8_000, 9)], &mut knowledge, compat, NOW);
        let mut left = |hours| {
            let found = analyzed(&variants, &[], &mut knowledge, compat, later(hours)).is_informative();
            (knowledge.histories.iter().count(), found)
        };
        assert_eq!((left(24), left(25)), ((1, true), (0, true)), "{compat:?}");
        assert_eq!((left(24 * 7), left(24 * 7 + 1)), ((0, true), (0, false)), "{compat:?}");
    }
}

#[test]
fn what_is_remembered_stays_below_two_kib_a_variant() {
    let mut knowledge = Knowledge::default();
    let parameters = EngineParameters::defaults(Engine::Sglang);
    for round in 0..40_u32 {
        let now = NOW + SignedDuration::from_secs(i64::from(round));
        let (name, accelerator) = (format!("{:a>63}", round / 20), format!("{:N>40}", round / 10));
        let variants = [TokenVariant { parameters: Some(&parameters), ..variant(&name, 1) }];
        for output in [50.0, 200.0, 900.0] {
            let shown =
                TokenObservation { accelerator: &accelerator, output, ..replica(&name, 99_999_999, 9) };
            let _ = analyzed(&variants, &[shown], &mut knowledge, Compat::Corrected, now);
        }
    }
    let text = serde_json::to_string(&knowledge).unwrap();
    assert!(text.len() <= 2048, "{} bytes: {text}", text.len());
    assert_eq!(serde_json::from_str::<Knowledge>(&text).unwrap(), knowledge);
    assert_eq!((knowledge.histories.iter().count(), knowledge.records.len()), (3, 2));
}

#[test]
fn a_record_of_a_variant_that_exists_is_not_forgotten_for_those_that_are_gone() {
    let mut knowledge = knowing(record(Learned::Live, 16_000, 12_800));
    for gone in ["x", "y", "z"] {
        let newer = Record { updated: later(1), ..record(Learned::Live, 1, 1) };
        knowledge.records.insert(gone.into(), newer);
    }
    let found = analyzed(&[variant("a", 0)], &[], &mut knowledge, Compat::Corrected, later(2)).variants[0]
        .per_replica;
    assert_eq!((found, knowledge.records.len()), (12_800.0, 2));
}

#[test]
fn requests_too_long_to_count_are_not_free() {
    let variants = [variant("a", 1)];
    let endless = TokenObservation { prompt: 1e300, ..replica("a", 100, 4) };
    let run =
        |compat| analyzed(&variants, &[endless], &mut Knowledge::default(), compat, NOW).replicas[0].demand;
    assert_eq!((run(Compat::Corrected), run(Compat::Upstream)), (tokens(i64::MAX), tokens(100)));
    let without_end = [TokenObservation { prompt: f64::INFINITY, ..endless }];
    let found = analyzed(&variants, &without_end, &mut Knowledge::default(), Compat::Corrected, NOW);
    assert_eq!(found.replicas[0].demand, tokens(300), "what is no number counts as nothing");
}

#[test]
fn the_worked_example_of_the_page_is_true() {
    let policy = TokenPolicy::default();
    let share = 0.45;
    let capacity = tokens(400_000);
    let in_use = tokens_in_use(share, capacity);
    let calm = TokenObservation { in_use, capacity, prompt: 3900.0, output: 100.0, ..replica("a", 0, 0) };
    let queued = TokenObservation { queue: 6, in_use: tokens(200_000), ..calm };
    let (variants, replicas) = ([variant("a", 2)], [queued, calm]);
    let queue = Some(SchedulerQueue { requests: 10, bytes: 100_000 });
    let inputs = TokenInput { variants: &variants, replicas: &replicas, queue };
    let found = analyze(&inputs, &mut Knowledge::default(), &policy, Compat::Corrected, NOW);
    let (up, down) = (policy.scale_up_threshold, policy.scale_down_boundary);
    let turning = found.clone().into_finding(1.0, true).turning_points(None, up, down);
    let [first, second] = &found.replicas[..] else { panic!("two replicas") };
    let row = |name: &str, capacity: &TokenCapacity<'_>| {
        let TokenCapacity { k1, k2, source, effective, demand, saturated, .. } = capacity;
        format!("| {name} | {k1} | {k2} ({}) | {effective} | {demand} | {saturated} |", source.label())
    };
    let Totals { supply, demand, required, spare, .. } = found.total;
    let totals = format!("supply {supply}, demand {demand}, required {required:.0}, spare {spare:.0}");
    let missing = turning.required_above.map(|demand| format!("above a demand of {demand:.0}")).unwrap();
    let removable = turning.spare_below.map(|demand| format!("up to a demand of {demand:.0}")).unwrap();
    for words in [row("first", first), row("second", second), totals, missing, removable] {
        assert!(PAGE.contains(&words), "the page does not say {words:?}");
    }
}

#[test]
fn a_replica_that_holds_nothing_is_not_at_its_limit_however_long_its_queue() {
    for compat in TREES {
        let (variants, mut knowledge) = ([variant("a", 1)], Knowledge::default());
        let replicas = [replica("a", 0, 9)];
        let found = analyzed(&variants, &replicas, &mut knowledge, compat, NOW).replicas[0].clone();
        assert_eq!((found.source, found.k2), (Source::Memory, tokens(12_800)), "{compat:?}");
        assert_eq!(knowledge.histories.iter().count(), 0, "{compat:?}");
    }
}

#[test]
fn three_histories_a_variant_are_kept_and_the_oldest_goes_first() {
    let variants = [variant("a", 1), variant("b", 1)];
    let mut knowledge = Knowledge::default();
    let mut histories = |moment, accelerator, variants: &[TokenVariant<'_>]| {
        for output in [50.0, 200.0, 900.0] {
            let shown = [TokenObservation { accelerator, output, ..replica("a", 8_000, 9) }];
            let now = NOW + SignedDuration::from_secs(moment);
            let _ = analyzed(variants, &shown, &mut knowledge, Compat::Corrected, now);
        }
        // What is too much goes before an analysis adds to it.
        let now = NOW + SignedDuration::from_secs(moment + 1);
        let _ = analyzed(variants, &[], &mut knowledge, Compat::Corrected, now);
        knowledge.histories.iter().map(|history| history.accelerator.clone()).collect::<Vec<_>>()
    };
    assert_eq!(histories(0, "H100", &variants), ["H100"; 3]);
    assert_eq!(histories(10, "A100", &variants), ["A100", "A100", "A100", "H100", "H100", "H100"]);
    assert_eq!(histories(20, "L40", &variants), ["A100", "A100", "A100", "L40", "L40", "L40"]);
    assert_eq!(histories(30, "L40", &variants[..1]), ["L40"; 3], "one variant keeps three");
}

#[test]
fn means_are_of_replicas_that_finished_requests() {
    use super::queue::Workload;
    let of = |prompt, output| TokenObservation { prompt, output, prefix_hits: 0.5, ..replica("a", 0, 0) };
    let mean = |replicas: &[TokenObservation<'_>]| {
        let Workload { prompt, output, prefix_hits } = Workload::mean(replicas);
        [prompt, output, prefix_hits].map(|value| value.to_string())
    };
    assert_eq!(mean(&[of(100.0, 40.0), of(0.0, 0.0)]), ["100", "40", "0.5"]);
    assert_eq!(mean(&[of(100.0, 0.0), of(0.0, 40.0)]), ["50", "20", "0.5"]);
    assert_eq!(mean(&[of(0.0, 0.0)]), ["0", "0", "0"]);
}

#[test]
fn what_a_batch_holds_is_not_known_without_answers_or_without_a_batch() {
    let usual = EngineParameters::defaults(Engine::Vllm);
    assert_eq!(usual.resident_tokens(100.0, 50.0), Some(tokens(32_000)));
    assert_eq!([0.0, -150.0, f64::NAN].map(|output| usual.resident_tokens(100.0, output)), [None; 3]);
    let none = EngineParameters { batched_tokens: 0, ..usual };
    assert_eq!(none.resident_tokens(100.0, 50.0), None);
}
