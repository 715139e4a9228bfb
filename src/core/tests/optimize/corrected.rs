//! Defects of upstream's optimizers and limiter: what upstream does, and what the default does instead. Also the worked
//! examples of the pages about them.

use std::collections::{BTreeMap, BTreeSet};

use super::fleet::{
    FindingSpec, V, alone, by_role, finding, first_step, gpus, numbers, planned_alone, request, targets, v,
};
use wva_core::arithmetic::{grant, optimize_together};
use wva_core::limit::{Budget, GrantRequest, Limit, Quota};
use wva_core::model::Compat::{self, Corrected, Upstream, UpstreamJune};
use wva_core::model::Role::{Decode, Prefill};
use wva_core::model::{Bounds, Role, VariantId};
use wva_core::optimize::rescale::Rescale;
use wva_core::optimize::{Choice, OptimizerStep, Request, cheapest_cover};
use wva_core::units::{Cost, Replicas, Watts};

const OPTIMIZERS: &str = include_str!("../../../../docs/decisions/optimizers.md");
const LIMITS: &str = include_str!("../../../../docs/decisions/limits.md");

fn shared(requests: &[Request], limits: &[Limit], compat: Compat) -> Vec<u32> {
    numbers(&optimize_together(requests, limits, &Rescale::default(), compat).plans)
}

fn pair(prefill: V, decode: V, missing: (f64, f64), priority: f64) -> Request {
    let variants = [prefill.role(Prefill), decode.role(Decode)];
    request("m", priority, &variants, &[by_role(&[(Prefill, missing.0, 0.0), (Decode, missing.1, 0.0)])])
}

fn assert_page_says(page: &str, what: &str) {
    assert!(page.contains(what), "the page does not say {what:?}");
}

/// The numbers of the variants of one model, with upstream's arithmetic and with the default.
fn is_planned(variants: &[V], findings: &[FindingSpec], upstream: [u32; 2], corrected: [u32; 2]) {
    let request = request("m", 1.0, variants, findings);
    assert_eq!([Upstream, Corrected].map(|compat| alone(&request, compat)), [upstream, corrected]);
}

/// A variant whose replicas carry 10,000 tokens.
fn by_tokens(name: &'static str, role: Role, current: u32) -> V {
    v(name, 5.0, 10_000.0, current).role(role)
}

/// A variant whose replicas carry 10,000 tokens, and 2780 tokens a second.
fn of_two_units(name: &'static str, cost: f64) -> V {
    V { carries: vec![10_000.0, 2780.0], ..v(name, cost, 0.0, 1) }
}

#[test]
fn needs_of_two_units_do_not_wipe_each_other_out() {
    let small = V { max: Some(2), ..of_two_units("small", 5.0) };
    // 6000 tokens/s less 10,000 tokens is nothing.
    let findings = [finding(5000.0, 0.0), finding(6000.0, 0.0)];
    is_planned(&[small, of_two_units("large", 6.0)], &findings, [2, 1], [2, 3]);
}

#[test]
fn an_idle_role_blocks_nobody_and_one_that_cannot_grow_holds_its_partner_back() {
    let full = V { max: Some(2), ..by_tokens("prefill", Prefill, 2) };
    let variants = [full, by_tokens("decode", Decode, 1)];
    is_planned(&variants, &[by_role(&[(Prefill, 0.0, 0.0), (Decode, 10_000.0, 0.0)])], [2, 1], [2, 2]);
    is_planned(&variants, &[by_role(&[(Prefill, 10_000.0, 0.0), (Decode, 10_000.0, 0.0)])], [2, 1], [2, 1]);
}

#[test]
fn a_finding_has_no_say_in_roles_that_it_does_not_know() {
    let variants =
        |current| [by_tokens("prefill", Prefill, current), of_two_units("decode", 5.0).role(Decode)];
    // 8000 tokens/s need 3 replicas of the only role whose capacity is known.
    let findings = [by_role(&[(Prefill, 0.0, 0.0), (Decode, 10_000.0, 0.0)]), finding(8000.0, 0.0)];
    is_planned(&variants(1), &findings, [1, 1], [1, 4]);
    let findings = [by_role(&[(Prefill, 0.0, 10_000.0), (Decode, 0.0, 0.0)]), finding(0.0, 0.0)];
    is_planned(&variants(3), &findings, [3, 1], [2, 1]);
}

#[test]
fn a_role_keeps_one_replica_wherever_it_is() {
    let variants = [v("dear", 10.0, 1000.0, 1), v("cheap", 5.0, 1000.0, 0)];
    is_planned(&variants, &[finding(0.0, 1000.0)], [0, 0], [1, 0]);
}

#[test]
fn what_is_missing_in_all_is_shared_out_by_demand() {
    let roles = by_role(&[(Prefill, 0.0, 0.0), (Decode, 0.0, 0.0)]);
    let both = |name, role| V { carries: vec![10_000.0, 1000.0], ..v(name, 5.0, 0.0, 1) }.role(role);
    let variants = [both("prefill", Prefill), both("decode", Decode)];
    let mut request = request("m", 1.0, &variants, &[roles, finding(4000.0, 0.0)]);
    request.findings[1].variants[0].demand = 100.0;
    request.findings[1].variants[1].demand = 300.0;
    assert_eq!(alone(&request, Corrected), [2, 4]);
}

#[test]
fn both_roles_of_a_turn_cannot_take_the_same_gpus() {
    let two = |name| V { gpus: 2, ..v(name, 5.0, 10_000.0, 1) };
    let request = pair(two("prefill"), two("decode"), (20_000.0, 20_000.0), 1.0);
    let (all, limits) = ([request], [gpus(10)]);
    // 6 GPUs are free: upstream hands out 8; the default adds a replica of each role, so that the pair stays balanced.
    assert_eq!(shared(&all, &limits, Upstream), [3, 3]);
    assert_eq!(shared(&all, &limits, Corrected), [2, 2]);
}

#[test]
fn priority_says_who_is_served_and_not_how_much_is_needed() {
    let request = pair(v("prefill", 5.0, 1000.0, 1), v("decode", 5.0, 1000.0, 1), (10_000.0, 10_000.0), 0.2);
    let (all, limits) = ([request], [gpus(102)]);
    assert_eq!(shared(&all, &limits, Upstream), [5, 5]);
    assert_eq!(shared(&all, &limits, Corrected), [11, 11]);
    assert_page_says(OPTIMIZERS, "4 + 4 replicas instead of 10 + 10");
}

#[test]
fn a_second_turn_does_not_serve_a_need_twice() {
    let a = request(
        "a",
        1.0,
        &[v("a-prefill", 5.0, 1000.0, 1).role(Prefill), v("a-decode", 5.0, 1000.0, 1).role(Decode)],
        &[by_role(&[(Prefill, 9000.0, 0.0), (Decode, 9000.0, 0.0)])],
    );
    let b = request("b", 1.0, &[v("b", 5.0, 1000.0, 1)], &[finding(12_000.0, 0.0)]);
    assert_eq!(shared(&[a, b], &[gpus(1000)], Corrected), [10, 10, 13]);
}

#[test]
fn no_limits_at_all_mean_no_limits() {
    let all = [request("m", 1.0, &[v("v", 5.0, 10_000.0, 1)], &[finding(20_000.0, 0.0)])];
    let found = [UpstreamJune, Upstream, Corrected].map(|compat| shared(&all, &[], compat));
    assert_eq!(found, [[1], [3], [3]]);
}

#[test]
fn a_finding_that_is_not_live_neither_vetoes_nor_limits() {
    let variant = V { carries: vec![10_000.0, 2780.0], ..v("v", 5.0, 0.0, 4) };
    let stale = FindingSpec { live: false, ..finding(0.0, 0.0) };
    let request = request("m", 1.0, &[variant], &[finding(0.0, 25_000.0), stale]);
    assert_eq!([UpstreamJune, Corrected].map(|compat| alone(&request, compat)), [[4], [2]]);
}

#[test]
fn the_default_finds_what_is_cheaper_than_the_best_rate() {
    let variants = [v("large", 8.0, 10_000.0, 1), v("small", 5.0, 6000.0, 1)];
    let request = request("m", 1.0, &variants, &[finding(12_000.0, 0.0)]);
    // Two large ones cost 16, two small ones 10.
    assert_eq!(alone(&request, Upstream), [3, 1]);
    let plans = planned_alone(&[request], Corrected);
    assert_eq!(numbers(&plans), [1, 3]);
    let cost = first_step(&plans[0], |step| match step {
        OptimizerStep::Covered { cost, is_cheapest, .. } => is_cheapest.then_some(*cost),
        _ => None,
    });
    let cost = cost.unwrap();
    assert_page_says(OPTIMIZERS, &format!("2 large cost {}, 2 small {cost}", 2.0 * 8.0));
}

fn want(name: &str, current: u32, proposed: u32) -> GrantRequest {
    GrantRequest {
        id: VariantId::new("team", name),
        current: Replicas::new(current),
        proposed: Replicas::new(proposed),
        bounds: Bounds { min: Replicas::ZERO, max: None },
        priority: 1.0,
        spare: 0.1,
        cost: Cost::new(5.0).unwrap(),
        accelerator: Some("A100".into()),
        gpus: Some(2),
        watts: None,
    }
}

/// The grants, in the order of the requests.
fn granted(requests: &[GrantRequest], limits: &[Limit], compat: Compat) -> Vec<u32> {
    grant(requests, limits, compat).iter().map(|grant| grant.granted.get()).collect()
}

#[test]
fn gpus_that_fill_no_replica_stay_in_the_pool() {
    let single = GrantRequest { gpus: Some(1), spare: 0.5, ..want("one", 0, 1) };
    let wants = [want("two", 0, 2), single];
    // 3 GPUs: one replica of two GPUs, and one is left.
    assert_eq!(granted(&wants, &[gpus(3)], Upstream), [1, 0]);
    assert_eq!(granted(&wants, &[gpus(3)], Corrected), [1, 1]);
}

#[test]
fn upstreams_rules_hold_numbers_against_the_other_limits_too() {
    let spend = Limit::new("spend", Budget::Spend(Cost::new(10.0).unwrap()));
    let both = grant(&[want("v", 0, 5)], &[gpus(8), spend.clone()], Upstream);
    assert_eq!((both[0].granted.get(), both[0].gpus, both[0].is_limited), (2, 4, true));
    assert_eq!(granted(&[want("v", 0, 5)], &[spend], Upstream), [2]);
    assert_eq!(granted(&[want("v", 0, 5)], &[gpus(8)], Upstream), [4]);
}

#[test]
fn a_minimum_wins_over_a_limit_and_is_served_first() {
    let low =
        GrantRequest { bounds: Bounds { min: Replicas::new(2), max: None }, spare: 0.9, ..want("low", 0, 3) };
    assert_eq!(granted(&[want("high", 0, 2), low], &[gpus(4)], Corrected), [0, 2]);
    let low = GrantRequest { bounds: Bounds { min: Replicas::new(3), max: None }, ..want("low", 0, 3) };
    let least = grant(&[low], &[gpus(4)], Corrected);
    assert_eq!((least[0].granted.get(), least[0].gpus, least[0].is_limited), (3, 4, true));
    assert_page_says(LIMITS, "gets its 3 replicas although only 4 GPUs are there");
}

#[test]
fn what_runs_beyond_a_limit_is_not_evicted() {
    let wants = [want("runs", 5, 5), want("grows", 1, 2), want("shrinks", 4, 3)];
    assert_eq!(granted(&wants, &[gpus(4)], Corrected), [5, 1, 3]);
}

#[test]
fn the_limit_that_binds_is_named_with_its_numbers() {
    let request = GrantRequest { watts: Some(Watts::new(700.0).unwrap()), ..want("v", 2, 9) };
    let quota = BTreeMap::from([("team".into(), BTreeMap::from([("A100".into(), 12)]))]);
    let limits = [
        gpus(16),
        Limit::new("team quota", Budget::Quota(Quota::namespaces(quota, BTreeSet::new()).unwrap())),
        Limit::new("power", Budget::Power { budget: Watts::new(3000.0).unwrap(), per_gpu: BTreeMap::new() }),
        Limit::new("spend", Budget::Spend(Cost::new(40.0).unwrap())),
    ];
    let rows = [
        (1, "| inventory | 16 | 4 | 12 | 8 |"),
        (2, "| team quota | 12 | 4 | 8 | 6 |"),
        (3, "| power | 3000 | 1400 | 1600 | 4 |"),
        (4, "| spend | 40 | 10 | 30 | 8 |"),
    ];
    for (count, row) in rows {
        let single = grant(std::slice::from_ref(&request), &limits[count - 1..count], Corrected);
        let bound = single[0].binding.clone().unwrap();
        let granted = single[0].granted;
        let shown =
            format!("| {} | {} | {} | {} | {granted} |", bound.limit, bound.budget, bound.used, bound.free);
        assert_eq!(shown, row);
        assert_page_says(LIMITS, row);
    }
    let all = grant(&[request], &limits, Corrected);
    assert_eq!((all[0].granted.get(), all[0].binding.as_ref().unwrap().limit.as_str()), (4, "power"));
    assert_page_says(LIMITS, "granted are 4 of 9, and `power` is named");
}

#[test]
fn limits_of_every_kind_hold_for_what_models_share() {
    let watts = |name| V { watts: Some(1000.0), ..v(name, 5.0, 1000.0, 1) };
    let a = request("a", 1.0, &[watts("a")], &[finding(8000.0, 0.0)]);
    let b = request("b", 3.0, &[watts("b")], &[finding(8000.0, 0.0)]);
    let power = Budget::Power { budget: Watts::new(10_000.0).unwrap(), per_gpu: BTreeMap::new() };
    let plans =
        optimize_together(&[a, b], &[gpus(100), Limit::new("power", power)], &Rescale::default(), Corrected);
    let numbers = targets(&plans.plans);
    assert_eq!(numbers.values().sum::<u32>(), 10);
    assert_page_says(OPTIMIZERS, &format!("`a` gets {} and `b` {}", numbers["a"] - 1, numbers["b"] - 1));
    assert!(
        plans.plans.iter().all(|plan| plan.targets[0].binding.as_ref().is_some_and(|by| by.limit == "power"))
    );
}

#[test]
fn the_replica_removed_first_does_not_depend_on_the_unit_of_a_finding() {
    let removed = |unit: f64, compat| {
        let small = V { carries: vec![1000.0 * unit, 1.0], ..v("small", 5.0, 0.0, 1) };
        let large = V { carries: vec![900.0 * unit, 3.0], ..v("large", 5.0, 0.0, 1) };
        let spare = [finding(0.0, 1000.0 * unit), finding(0.0, 3.0)];
        alone(&request("m", 1.0, &[small, large], &spare), compat)
    };
    // Small and large: 1001 and 903, or 2.0 and 3.9.
    assert_eq!([1.0, 0.001].map(|unit| removed(unit, Upstream)), [[1, 0], [0, 1]]);
    assert_eq!([1.0, 0.001].map(|unit| removed(unit, Corrected)), [[0, 1], [0, 1]]);
}

#[test]
fn a_need_that_nobody_is_known_to_carry_stops_no_other() {
    let variant = V { carries: vec![10_000.0, 0.0], ..v("v", 5.0, 0.0, 1) };
    let request = request("m", 1.0, &[variant], &[finding(15_000.0, 0.0), finding(6000.0, 0.0)]);
    assert_eq!(alone(&request, Corrected), [3]);
}

#[test]
fn a_need_of_thousands_of_replicas_is_covered_exactly_within_the_looks() {
    let choice = |cost, carries, max| Choice { cost, capacity: vec![carries], max };
    let gone = choice(0.1, 9.0, 0);
    let choices =
        [choice(10.0, 10.0, i64::MAX), choice(14.0, 7.0, i64::MAX), choice(9.0, 3.0, i64::MAX), gone];
    let found = cheapest_cover(&[50_004.0], &choices).unwrap();
    assert!(found.is_cheapest, "{found:?}");
    assert_eq!(found.counts, [5001, 0, 0, 0]);
}

#[test]
fn bounds_show_that_nothing_is_cheaper_without_trying_all_there_is() {
    let choice = |cost, capacity: [f64; 2]| Choice { cost, capacity: capacity.to_vec(), max: 100 };
    let choices = [
        choice(9.0, [8.0, 11.0]),
        choice(7.0, [10.0, 11.0]),
        choice(6.0, [14.0, 2.0]),
        choice(17.0, [3.0, 14.0]),
        choice(8.0, [12.0, 3.0]),
    ];
    let found = cheapest_cover(&[52.0, 183.0], &choices).unwrap();
    assert!(found.is_cheapest, "a hundred thousand looks, or fifty with bounds: {found:?}");
    assert_eq!(found.counts, [0, 17, 0, 0, 0]);
}
