//! What limits leave, whose it is, and in which order it is handed out.

use std::collections::{BTreeMap, BTreeSet};

use smol_str::SmolStr;

use super::*;
use crate::arithmetic::grant;
use crate::model::{Bounds, Compat, VariantId};
use crate::snapshot::VariantLimit;
use crate::units::{Cost, OutOfRange, Replicas, Watts};
use crate::upstream::limiter::{Pools, free_gpus, grant_by_spare, is_pool};

const SPARE: f64 = 0.5;

fn by_type<T: Copy>(pairs: &[(&str, T)]) -> BTreeMap<SmolStr, T> {
    pairs.iter().map(|(name, count)| ((*name).into(), *count)).collect()
}

fn inventory(pairs: &[(&str, u32)]) -> Limit {
    Limit::new("inventory", Budget::Inventory(by_type(pairs)))
}

fn of_cluster(pairs: &[(&str, i64)]) -> Limit {
    Limit::new("quota", Budget::Quota(Quota::cluster(by_type(pairs)).unwrap()))
}

fn quota(listed: &[(&str, &[(&str, i64)])], excluded: &[&str]) -> Quota {
    let listed = listed.iter().map(|(name, types)| ((*name).into(), by_type(types))).collect();
    Quota::namespaces(listed, excluded.iter().map(|name| SmolStr::from(*name)).collect()).unwrap()
}

fn of_namespaces(listed: &[(&str, &[(&str, i64)])], excluded: &[&str]) -> Limit {
    Limit::new("quota", Budget::Quota(quota(listed, excluded)))
}

fn watts(value: f64) -> Watts {
    Watts::new(value).unwrap()
}

/// A replica of two A100, with a cost of 5, whose power nobody told.
fn replica(namespace: &str) -> Footprint<'_> {
    let cost = Cost::new(5.0).unwrap();
    Footprint { namespace, variant: "v", accelerator: Some("A100"), gpus: Some(2), watts: None, cost }
}

fn free(limits: &[Limit], running: i64, upstream: bool) -> FreeGpus {
    let usage = [(replica("team"), running)];
    if upstream { free_gpus(limits, &usage) } else { FreeGpus::new(limits, &usage) }
}

fn room(limit: &Limit, running: i64, of: &Footprint<'_>) -> i64 {
    Ledger::new(std::slice::from_ref(limit), [(replica("team"), running)]).room(of).0
}

#[test]
fn free_is_what_the_inventory_has_beside_what_runs_and_never_below_nothing() {
    let there = inventory(&[("A100", 8), ("H100", 4)]);
    assert_eq!(free(std::slice::from_ref(&there), 3, false).cluster, by_type(&[("A100", 2), ("H100", 4)]));
    assert_eq!(free(std::slice::from_ref(&there), 5, false).cluster, by_type(&[("A100", 0), ("H100", 4)]));
    let elsewhere = by_type(&[("A100", 0.5)]);
    let shared = Limit { elsewhere, ..there };
    assert_eq!(free(&[shared], 3, false).cluster["A100"], 1, "a GPU that is used in part is used");
}

#[test]
fn of_two_limits_the_tighter_one_counts_in_either_order() {
    let (many, few) = (inventory(&[("A100", 8)]), of_cluster(&[("A100", 5)]));
    for limits in [[many.clone(), few.clone()], [few, many.clone()]] {
        assert_eq!(free(&limits, 0, false).cluster["A100"], 5);
    }
    let unlimited = of_cluster(&[("A100", -1)]);
    assert_eq!(free(std::slice::from_ref(&unlimited), 0, false).cluster["A100"], UNLIMITED);
    for limits in [[many.clone(), unlimited.clone()], [unlimited, many]] {
        assert_eq!(free(&limits, 1, false).cluster["A100"], 6);
    }
}

#[test]
fn a_quota_of_zero_is_no_unlimited_one() {
    assert_eq!(free(&[of_cluster(&[("A100", 0)])], 0, false).cluster["A100"], 0);
    let none = of_namespaces(&[("team", &[("A100", 0)])], &[]);
    assert_eq!(free(&[none], 0, false).namespaces["team"]["A100"], 0);
}

#[test]
fn a_quota_switches_the_inventory_off_upstream_and_only_there() {
    let limits = [inventory(&[("A100", 8)]), of_cluster(&[("H100", 5)])];
    assert_eq!(free(&limits, 0, true).cluster, by_type(&[("H100", 5)]));
    assert_eq!(free(&limits, 0, false).cluster, by_type(&[("A100", 8), ("H100", 5)]));
    assert_eq!(free(&limits[..1], 0, true).cluster, by_type(&[("A100", 8)]), "without a quota it is on");
}

#[test]
fn each_namespace_has_free_what_its_list_leaves_it_and_an_excluded_one_has_no_list() {
    let listed: &[(&str, &[_])] = &[("team", &[("A100", 9), ("H100", 2)]), ("default", &[("A100", -1)])];
    let limit = of_namespaces(listed, &["system"]);
    let running = ["team", "other", "system"].map(|namespace| (replica(namespace), 3));
    let found = FreeGpus::new(&[limit], &running);
    let names: Vec<_> = found.namespaces.keys().map(SmolStr::as_str).collect();
    assert_eq!(names, ["other", "team"]);
    assert_eq!(found.namespaces["team"], by_type(&[("A100", 3), ("H100", 2)]));
    assert_eq!(found.namespaces["other"], by_type(&[("A100", -1)]), "no bound of its own");
    assert_eq!(found.cluster, by_type(&[("A100", UNLIMITED), ("H100", UNLIMITED)]));
}

#[test]
fn of_two_quotas_of_a_namespace_one_without_a_bound_gives_way() {
    let (open, closed) =
        (of_namespaces(&[("team", &[("A100", -1)])], &[]), of_namespaces(&[("team", &[("A100", 7)])], &[]));
    for limits in [[open.clone(), closed.clone()], [closed, open]] {
        assert_eq!(free(&limits, 1, false).namespaces["team"]["A100"], 5);
    }
}

#[test]
fn power_is_what_a_replica_says_or_that_of_its_gpus() {
    let per_gpu = by_type(&[("A100", watts(400.0))]);
    let power = Limit::new("power", Budget::Power { budget: watts(4000.0), per_gpu });
    assert_eq!(room(&power, 1, &replica("team")), 4, "3200 W left for 800 W each");
    let measured = Footprint { watts: Some(watts(1600.0)), ..replica("team") };
    assert_eq!(room(&power, 1, &measured), 2);
    let nobody_knows = Footprint { accelerator: Some("T4"), ..replica("team") };
    assert_eq!(room(&power, 0, &nobody_knows), 0);
}

#[test]
fn what_costs_nothing_is_not_held_back_by_a_budget_of_money() {
    let spend = Limit::new("spend", Budget::Spend(Cost::new(20.0).unwrap()));
    assert_eq!(room(&spend, 1, &replica("team")), 3);
    assert_eq!(room(&spend, 1, &Footprint { cost: Cost::ZERO, ..replica("team") }), i64::MAX);
}

fn set(limit: &str, key: &str, gpus: u32, variants: &[(&str, &str)]) -> VariantLimit {
    let variants = variants.iter().map(|(namespace, name)| VariantId::new(*namespace, *name)).collect();
    VariantLimit { limit: limit.into(), key: key.into(), gpus, elsewhere: 0, variants }
}

#[test]
fn a_limit_of_some_variants_is_shared_by_these_alone() {
    let quota = set("ResourceQuota", "team/gpus", 8, &[("team", "v"), ("team", "w")]);
    let limits = limits_of_variants(&[VariantLimit { elsewhere: 1, ..quota }]);
    let named = |namespace, variant| Footprint { variant, ..replica(namespace) };
    let ledger = Ledger::new(&limits, [(named("team", "v"), 1), (named("team", "u"), 9)]);
    let (room, bound) = ledger.room(&named("team", "w"));
    assert_eq!(room, 2, "8 GPUs, 2 of v and 1 of others");
    let bound = bound.unwrap().to_string();
    assert_eq!(bound, "ResourceQuota of team/gpus: 5.0 of 8.0 free, 3.0 used, 1.0 of these by others");
    assert_eq!(ledger.room(&named("team", "u")).0, i64::MAX);
    assert_eq!(ledger.room(&named("other", "v")).0, i64::MAX);
    assert_eq!(ledger.room(&Footprint { gpus: None, ..named("team", "w") }).0, 0, "nobody knows how many");
}

#[test]
fn limits_of_a_thousand_namespaces_are_one_and_several_of_a_variant_all_count() {
    let names: Vec<String> = (0..1000).map(|index| format!("n{index}")).collect();
    let of = |key: &str, gpus| {
        let own = |name: &String| set("ResourceQuota", &format!("{name}/{key}"), gpus, &[(name, "v")]);
        names.iter().map(own).collect::<Vec<_>>()
    };
    assert_eq!(limits_of_variants(&of("a", 8)).len(), 1);
    let several = [of("a", 8), of("b", 4), vec![set("suitable nodes", "n7/v", 2, &[("n7", "v")])]].concat();
    let limits = limits_of_variants(&several);
    assert_eq!(limits.len(), 3);
    let ledger = Ledger::new(&limits, []);
    assert_eq!([ledger.room(&replica("n7")).0, ledger.room(&replica("n8")).0], [1, 2]);
    assert_eq!(limits_of_variants(&[set("ResourceQuota", "team/a", 0, &[])]), []);
}

#[test]
fn an_accelerator_nobody_knows_is_the_only_type_there_is_or_none() {
    let unknown = Footprint { accelerator: None, ..replica("team") };
    assert_eq!(room(&inventory(&[("A100", 8)]), 1, &unknown), 3);
    assert_eq!(room(&inventory(&[("A100", 8), ("H100", 8)]), 0, &unknown), 0);
    assert_eq!(room(&inventory(&[("A100", 8)]), 0, &Footprint { accelerator: Some("T4"), ..unknown }), 0);
    assert_eq!(room(&of_cluster(&[("A100", 8)]), 0, &unknown), 0, "a quota guesses nothing");
}

#[test]
fn a_replica_without_gpus_takes_one() {
    let none = Footprint { gpus: Some(0), ..replica("team") };
    assert_eq!(room(&inventory(&[("A100", 8)]), 0, &none), 8);
}

#[test]
fn rounding_takes_no_replica_away() {
    let spend = Limit::new("spend", Budget::Spend(Cost::new(0.3).unwrap()));
    assert_eq!(room(&spend, 0, &Footprint { cost: Cost::new(0.1).unwrap(), ..replica("team") }), 3);
}

#[test]
fn rounding_grows_with_the_budget() {
    let spend = Limit::new("spend", Budget::Spend(Cost::new(1e6).unwrap()));
    let tenth = Footprint { cost: Cost::new(0.1).unwrap(), ..replica("team") };
    let ledger = Ledger::new(std::slice::from_ref(&spend), [(tenth, 9_999_999)]);
    assert_eq!(ledger.room(&tenth).0, 1);
}

#[test]
fn the_first_of_the_limits_that_leave_least_is_named_with_its_numbers() {
    let limits = [of_cluster(&[("A100", 9)]), inventory(&[("A100", 9)]), inventory(&[("A100", 90)])];
    let ledger = Ledger::new(&limits, [(replica("team"), 2)]);
    let (room, bound) = ledger.room(&replica("team"));
    assert_eq!(room, 2);
    assert_eq!(bound.unwrap().to_string(), "quota of A100: 5.0 of 9.0 free, 4.0 used");
    assert_eq!(Ledger::new(&[], []).room(&replica("team")), (i64::MAX, None));
}

#[test]
fn what_is_put_back_is_there_again() {
    let limits = [inventory(&[("A100", 8)])];
    let mut ledger = Ledger::new(&limits, []);
    ledger.take(&replica("team"), 3);
    assert_eq!(ledger.room(&replica("team")).0, 1);
    ledger.take(&replica("team"), -2);
    assert_eq!(ledger.room(&replica("team")).0, 3);
}

#[test]
fn a_quota_is_minus_one_to_a_million() {
    let cluster = |value| Quota::cluster(by_type(&[("A100", value)]));
    assert!(cluster(-1).is_ok() && cluster(1_048_576).is_ok());
    let refused = OutOfRange { unit: "quota", value: 1_048_577.0, allowed: "-1 (unlimited) to 1048576" };
    assert_eq!(cluster(1_048_577), Err(refused));
    assert!(cluster(-2).is_err());
    let listed = [("team".into(), by_type(&[("A100", -2)]))].into();
    assert!(Quota::namespaces(listed, BTreeSet::new()).is_err());
}

#[test]
fn a_quota_counts_each_namespace_for_itself() {
    let both = of_namespaces(&[("team", &[("A100", 4)]), ("default", &[("A100", 6)])], &["system"]);
    assert_eq!(room(&both, 1, &replica("team")), 1);
    assert_eq!(room(&both, 1, &replica("other")), 3, "what `team` uses is not taken from it");
    let unknown = Footprint { accelerator: None, ..replica("system") };
    assert_eq!([room(&both, 1, &replica("system")), room(&both, 1, &unknown)], [i64::MAX; 2]);
    assert_eq!(room(&both, 0, &Footprint { accelerator: Some("T4"), ..replica("team") }), 0);
}

#[test]
fn a_quota_grants_what_is_left_of_it_and_an_excluded_namespace_everything() {
    let quota = quota(&[("team", &[("A100", 4), ("H100", -1)])], &["system"]);
    assert_eq!([0, 3, 4, 9].map(|used| quota.grant("team", Some("A100"), used, 2)), [2, 1, 0, 0]);
    assert_eq!(quota.grant("team", Some("A100"), 0, -5), 0, "a removal is no want");
    assert_eq!(quota.grant("team", Some("H100"), 100, 7), 7);
    assert_eq!((quota.grant("team", None, 0, 7), quota.grant("system", None, 0, 7)), (0, 7));
    assert_eq!(quota.grant("other", Some("A100"), 0, 7), 0, "neither it nor a default is listed");
}

fn request(name: &str, proposed: u32) -> GrantRequest {
    GrantRequest {
        id: VariantId::new("team", name),
        current: Replicas::ZERO,
        proposed: Replicas::new(proposed),
        bounds: Bounds { min: Replicas::ZERO, max: None },
        priority: 1.0,
        spare: SPARE,
        cost: Cost::new(5.0).unwrap(),
        accelerator: Some("A100".into()),
        gpus: Some(2),
        watts: None,
    }
}

fn numbers(granted: &[Grant]) -> Vec<(u32, i64, bool)> {
    granted.iter().map(|request| (request.granted.get(), request.gpus, request.is_limited)).collect()
}

#[test]
fn served_are_the_dearer_priority_the_less_spare_the_cheaper_and_the_first_by_name() {
    let usual = request("b", 1);
    let rivals = [
        GrantRequest { priority: 2.0, spare: 9.0, ..request("c", 1) },
        GrantRequest { spare: SPARE / 2.0, cost: Cost::new(50.0).unwrap(), ..request("c", 1) },
        GrantRequest { cost: Cost::new(1.0).unwrap(), ..request("c", 1) },
        request("a", 1),
    ];
    for rival in rivals {
        let granted = grant(&[usual.clone(), rival.clone()], &[inventory(&[("A100", 2)])], Compat::Corrected);
        assert_eq!(numbers(&granted), [(0, 0, true), (1, 2, false)], "{rival:?}");
    }
}

#[test]
fn the_gpus_of_a_grant_are_those_of_its_minimum_and_of_the_rest() {
    let bounds = Bounds { min: Replicas::new(2), max: None };
    let request = GrantRequest { current: Replicas::ONE, bounds, ..request("v", 4) };
    let granted = |count| {
        let limits = [inventory(&[("A100", count)])];
        numbers(&grant(std::slice::from_ref(&request), &limits, Compat::Corrected))
    };
    assert_eq!([granted(20), granted(8)].concat(), [(4, 6, false); 2]);
    assert_eq!(granted(6), [(3, 4, true)]);
    assert_eq!(granted(2), [(2, 0, true)], "a minimum is kept although nothing is free");
    let least = GrantRequest { proposed: Replicas::new(2), ..request };
    let granted = grant(&[least], &[inventory(&[("A100", 4)])], Compat::Corrected);
    assert_eq!(numbers(&granted), [(2, 2, false)], "what just fits is not limited");
}

#[test]
fn a_minimum_above_its_own_maximum_is_charged_like_any_other() {
    let bounds = Bounds { min: Replicas::new(2), max: Some(Replicas::ZERO) };
    let odd = GrantRequest { bounds, cost: Cost::new(50.0).unwrap(), ..request("v", 2) };
    let granted = grant(&[odd, request("w", 9)], &[inventory(&[("A100", 10)])], Compat::Corrected);
    assert_eq!(numbers(&granted), [(2, 4, false), (3, 6, true)]);
}

#[test]
fn a_removal_and_a_number_that_stays_ask_for_nothing() {
    let bounds = Bounds { min: Replicas::new(5), max: None };
    let fewer = GrantRequest { current: Replicas::new(4), bounds, ..request("v", 3) };
    let same = GrantRequest { current: Replicas::new(4), ..request("w", 4) };
    let granted = grant(&[fewer, same], &[inventory(&[("A100", 100)])], Compat::Corrected);
    assert_eq!(numbers(&granted), [(3, 0, false), (4, 0, false)]);
}

#[test]
fn a_maximum_is_what_is_wanted_and_not_a_limit() {
    let bounds = Bounds { min: Replicas::ZERO, max: Some(Replicas::new(2)) };
    for compat in [Compat::Corrected, Compat::Upstream] {
        let granted = grant(
            &[
                GrantRequest { bounds, ..request("v", 9) },
                GrantRequest { current: Replicas::new(2), bounds, ..request("w", 9) },
            ],
            &[inventory(&[("A100", 100)])],
            compat,
        );
        assert_eq!(numbers(&granted), [(2, 4, false), (2, 0, false)]);
        assert_eq!(granted[0].proposed, Replicas::new(2));
    }
}

#[test]
fn upstreams_pools_are_the_inventory_and_a_quota_of_the_cluster() {
    let power = Budget::Power { budget: watts(0.0), per_gpu: BTreeMap::new() };
    let power = Limit::new("power", power);
    let spend = Limit::new("spend", Budget::Spend(Cost::ZERO));
    let by_namespace = of_namespaces(&[], &[]);
    let pools = [inventory(&[]), of_cluster(&[]), by_namespace, power, spend];
    assert_eq!(pools.map(|limit| is_pool(&limit)), [true, true, false, false, false]);
}

#[test]
fn gpus_that_fill_no_replica_are_lost_upstream() {
    let mut pools: Pools = by_type(&[("A100", 5)]);
    let granted = grant_by_spare(
        &[request("v", 9), GrantRequest { spare: 0.9, gpus: Some(1), ..request("w", 1) }],
        &mut pools,
    );
    assert_eq!(numbers(&granted), [(2, 4, true), (0, 0, true)]);
    assert_eq!(pools["A100"], 0);
}
