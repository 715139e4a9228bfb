//! Where upstream's optimizers and limiter have a defect: what it does, and what the default does instead; and the worked
//! examples of the pages about them.

use std::collections::{BTreeMap, BTreeSet};

use super::fleet::{self, V, by_role, planned_alone, request, says, targets, v};
use smol_str::SmolStr;
use wva_core::arithmetic::{grant, optimize_together};
use wva_core::limit::{Budget, Grant, GrantRequest, Limit, Quota};
use wva_core::model::Role::{Decode, Prefill};
use wva_core::model::{Bounds, Compat, VariantId};
use wva_core::optimize::rescale::Rescale;
use wva_core::optimize::{Choice, OptimizerStep, Request, cheapest_cover};
use wva_core::units::{Cost, Replicas, Watts};

const OPTIMIZERS: &str = include_str!("../../../../docs/decisions/optimizers.md");
const LIMITS: &str = include_str!("../../../../docs/decisions/limits.md");

fn alone(request: &Request, compat: Compat) -> BTreeMap<SmolStr, u32> {
    targets(&planned_alone(std::slice::from_ref(request), compat))
}

fn shared(requests: &[Request], limits: &[Limit], compat: Compat) -> BTreeMap<SmolStr, u32> {
    targets(&optimize_together(requests, limits, &Rescale::default(), compat).plans)
}

fn is(pairs: &[(&str, u32)]) -> BTreeMap<SmolStr, u32> {
    pairs.iter().map(|(name, count)| ((*name).into(), *count)).collect()
}

fn gpus(count: u32) -> Limit {
    Limit::new("inventory", Budget::Inventory(BTreeMap::from([("A100".into(), count)])))
}

fn pair(prefill: V, decode: V, missing: (f64, f64), priority: f64) -> Request {
    let variants = [prefill.role(Prefill), decode.role(Decode)];
    request("m", priority, &variants, &[by_role(&[(Prefill, missing.0, 0.0), (Decode, missing.1, 0.0)])])
}

fn says_page(page: &str, what: &str) {
    assert!(page.contains(what), "the page does not say {what:?}");
}

#[test]
fn needs_of_two_units_do_not_wipe_each_other_out() {
    let small = V { max: Some(2), carries: vec![10_000.0, 2780.0], ..v("small", 5.0, 0.0, 1) };
    let large = V { carries: vec![10_000.0, 2780.0], ..v("large", 6.0, 0.0, 1) };
    let request = request("m", 1.0, &[small, large], &[says(5000.0, 0.0), says(6000.0, 0.0)]);
    // 6000 tokens/s less 10,000 tokens is nothing.
    assert_eq!(alone(&request, Compat::Upstream), is(&[("large", 1), ("small", 2)]));
    assert_eq!(alone(&request, Compat::Corrected), is(&[("large", 3), ("small", 2)]));
}

#[test]
fn a_role_with_nothing_to_do_blocks_nobody() {
    let prefill = V { max: Some(2), ..v("prefill", 5.0, 10_000.0, 2) };
    let request = pair(prefill, v("decode", 5.0, 10_000.0, 1), (0.0, 10_000.0), 1.0);
    assert_eq!(alone(&request, Compat::Upstream), is(&[("decode", 1), ("prefill", 2)]));
    assert_eq!(alone(&request, Compat::Corrected), is(&[("decode", 2), ("prefill", 2)]));
}

#[test]
fn a_role_that_cannot_grow_holds_its_partner_back() {
    let prefill = V { max: Some(2), ..v("prefill", 5.0, 10_000.0, 2) };
    let request = pair(prefill, v("decode", 5.0, 10_000.0, 1), (10_000.0, 10_000.0), 1.0);
    for compat in [Compat::Corrected, Compat::Upstream] {
        assert_eq!(alone(&request, compat), is(&[("decode", 1), ("prefill", 2)]));
    }
}

#[test]
fn silence_about_roles_blocks_nobody() {
    let prefill = v("prefill", 5.0, 10_000.0, 1).role(Prefill);
    let decode = V { carries: vec![10_000.0, 2780.0], ..v("decode", 5.0, 0.0, 1) }.role(Decode);
    let roles = by_role(&[(Prefill, 0.0, 0.0), (Decode, 10_000.0, 0.0)]);
    let request = request("m", 1.0, &[prefill, decode], &[roles, says(8000.0, 0.0)]);
    assert_eq!(alone(&request, Compat::Upstream), is(&[("decode", 1), ("prefill", 1)]));
    // 8000 tokens/s are 3 replicas of the only role that is known to carry them.
    assert_eq!(alone(&request, Compat::Corrected), is(&[("decode", 4), ("prefill", 1)]));
}

#[test]
fn a_finding_has_no_say_in_a_role_it_knows_nothing_of() {
    let prefill = v("prefill", 5.0, 10_000.0, 3).role(Prefill);
    let decode = V { carries: vec![10_000.0, 2780.0], ..v("decode", 5.0, 0.0, 1) }.role(Decode);
    let roles = by_role(&[(Prefill, 0.0, 10_000.0), (Decode, 0.0, 0.0)]);
    let request = request("m", 1.0, &[prefill, decode], &[roles, says(0.0, 0.0)]);
    assert_eq!(alone(&request, Compat::Upstream), is(&[("decode", 1), ("prefill", 3)]));
    assert_eq!(alone(&request, Compat::Corrected), is(&[("decode", 1), ("prefill", 2)]));
}

#[test]
fn what_is_missing_in_all_is_shared_out_by_demand() {
    let roles = by_role(&[(Prefill, 0.0, 0.0), (Decode, 0.0, 0.0)]);
    let both = |name, role| V { carries: vec![10_000.0, 1000.0], ..v(name, 5.0, 0.0, 1) }.role(role);
    let variants = [both("prefill", Prefill), both("decode", Decode)];
    let mut request = request("m", 1.0, &variants, &[roles, says(4000.0, 0.0)]);
    request.findings[1].variants[0].demand = 100.0;
    request.findings[1].variants[1].demand = 300.0;
    assert_eq!(alone(&request, Compat::Corrected), is(&[("decode", 4), ("prefill", 2)]));
}

#[test]
fn both_roles_of_a_turn_cannot_take_the_same_gpus() {
    let two = |name| V { gpus: 2, ..v(name, 5.0, 10_000.0, 1) };
    let request = pair(two("prefill"), two("decode"), (20_000.0, 20_000.0), 1.0);
    let (all, limits) = ([request], [gpus(10)]);
    // 6 GPUs are free: upstream hands out 8, the default a replica of either and keeps the pair in step.
    assert_eq!(shared(&all, &limits, Compat::Upstream), is(&[("decode", 3), ("prefill", 3)]));
    assert_eq!(shared(&all, &limits, Compat::Corrected), is(&[("decode", 2), ("prefill", 2)]));
}

#[test]
fn priority_says_who_is_served_and_not_how_much_is_needed() {
    let request = pair(v("prefill", 5.0, 1000.0, 1), v("decode", 5.0, 1000.0, 1), (10_000.0, 10_000.0), 0.2);
    let (all, limits) = ([request], [gpus(102)]);
    assert_eq!(shared(&all, &limits, Compat::Upstream), is(&[("decode", 5), ("prefill", 5)]));
    assert_eq!(shared(&all, &limits, Compat::Corrected), is(&[("decode", 11), ("prefill", 11)]));
    says_page(OPTIMIZERS, "4 + 4 replicas instead of 10 + 10");
}

#[test]
fn a_second_turn_does_not_serve_a_need_twice() {
    let a = request(
        "a",
        1.0,
        &[v("a-prefill", 5.0, 1000.0, 1).role(Prefill), v("a-decode", 5.0, 1000.0, 1).role(Decode)],
        &[by_role(&[(Prefill, 9000.0, 0.0), (Decode, 9000.0, 0.0)])],
    );
    let b = request("b", 1.0, &[v("b", 5.0, 1000.0, 1)], &[says(12_000.0, 0.0)]);
    let got = shared(&[a, b], &[gpus(1000)], Compat::Corrected);
    assert_eq!(got, is(&[("a-decode", 10), ("a-prefill", 10), ("b", 13)]));
}

#[test]
fn no_limits_at_all_mean_no_limits() {
    let all = [request("m", 1.0, &[v("v", 5.0, 10_000.0, 1)], &[says(20_000.0, 0.0)])];
    assert_eq!(shared(&all, &[], Compat::UpstreamJune), is(&[("v", 1)]));
    assert_eq!(shared(&all, &[], Compat::Upstream), is(&[("v", 3)]));
    assert_eq!(shared(&all, &[], Compat::Corrected), is(&[("v", 3)]));
}

#[test]
fn a_finding_that_is_not_live_neither_vetoes_nor_limits() {
    let variant = V { carries: vec![10_000.0, 2780.0], ..v("v", 5.0, 0.0, 4) };
    let stale = fleet::Says { live: false, ..says(0.0, 0.0) };
    let request = request("m", 1.0, &[variant], &[says(0.0, 25_000.0), stale]);
    assert_eq!(alone(&request, Compat::UpstreamJune), is(&[("v", 4)]));
    assert_eq!(alone(&request, Compat::Corrected), is(&[("v", 2)]));
}

#[test]
fn a_role_keeps_one_replica_wherever_it_is() {
    let variants = [v("dear", 10.0, 1000.0, 1), v("cheap", 5.0, 1000.0, 0)];
    let request = request("m", 1.0, &variants, &[says(0.0, 1000.0)]);
    assert_eq!(alone(&request, Compat::Upstream), is(&[("cheap", 0), ("dear", 0)]));
    assert_eq!(alone(&request, Compat::Corrected), is(&[("cheap", 0), ("dear", 1)]));
}

#[test]
fn the_default_finds_what_is_cheaper_than_the_best_rate() {
    let variants = [v("large", 8.0, 10_000.0, 1), v("small", 5.0, 6000.0, 1)];
    let request = request("m", 1.0, &variants, &[says(12_000.0, 0.0)]);
    // Two large ones cost 16, two small ones 10.
    assert_eq!(alone(&request, Compat::Upstream), is(&[("large", 3), ("small", 1)]));
    let plans = planned_alone(&[request], Compat::Corrected);
    assert_eq!(targets(&plans), is(&[("large", 1), ("small", 3)]));
    let cost = plans[0].steps.iter().find_map(|step| match step {
        OptimizerStep::Covered { cost, is_cheapest, .. } => is_cheapest.then_some(*cost),
        _ => None,
    });
    let cost = cost.unwrap();
    says_page(OPTIMIZERS, &format!("2 large cost {}, 2 small {cost}", 2.0 * 8.0));
}

fn want(name: &str, current: u32, wanted: u32) -> GrantRequest {
    GrantRequest {
        id: VariantId::new("team", name),
        current: Replicas::new(current),
        proposed: Replicas::new(wanted),
        bounds: Bounds { min: Replicas::ZERO, max: None },
        priority: 1.0,
        spare: 0.1,
        cost: Cost::new(5.0).unwrap(),
        accelerator: Some("A100".into()),
        gpus: 2,
        watts: None,
    }
}

fn numbers(granted: &[Grant]) -> Vec<u32> {
    granted.iter().map(|one| one.granted.get()).collect()
}

#[test]
fn gpus_that_fill_no_replica_stay_in_the_pool() {
    let one = GrantRequest { gpus: 1, spare: 0.5, ..want("one", 0, 1) };
    let wants = [want("two", 0, 2), one];
    // 3 GPUs: one replica of two GPUs, and one left.
    assert_eq!(numbers(&grant(&wants, &[gpus(3)], Compat::Upstream)), [1, 0]);
    assert_eq!(numbers(&grant(&wants, &[gpus(3)], Compat::Corrected)), [1, 1]);
}

#[test]
fn upstreams_rules_hold_numbers_against_the_other_limits_too() {
    let spend = Limit::new("spend", Budget::Spend(Cost::new(10.0).unwrap()));
    let granted = grant(&[want("v", 0, 5)], &[gpus(8), spend.clone()], Compat::Upstream);
    assert_eq!((granted[0].granted.get(), granted[0].gpus, granted[0].is_limited), (2, 4, true));
    assert_eq!(numbers(&grant(&[want("v", 0, 5)], &[spend], Compat::Upstream)), [2]);
    assert_eq!(numbers(&grant(&[want("v", 0, 5)], &[gpus(8)], Compat::Upstream)), [4]);
}

#[test]
fn a_minimum_wins_over_a_limit_and_is_served_first() {
    let low =
        GrantRequest { bounds: Bounds { min: Replicas::new(2), max: None }, spare: 0.9, ..want("low", 0, 3) };
    let granted = grant(&[want("high", 0, 2), low], &[gpus(4)], Compat::Corrected);
    assert_eq!(numbers(&granted), [0, 2]);
    let low = GrantRequest { bounds: Bounds { min: Replicas::new(3), max: None }, ..want("low", 0, 3) };
    let granted = grant(&[low], &[gpus(4)], Compat::Corrected);
    assert_eq!((granted[0].granted.get(), granted[0].gpus, granted[0].is_limited), (3, 4, true));
    says_page(LIMITS, "gets its 3 replicas although only 4 GPUs are there");
}

#[test]
fn what_runs_beyond_a_limit_is_not_evicted() {
    let wants = [want("runs", 5, 5), want("grows", 1, 2), want("shrinks", 4, 3)];
    assert_eq!(numbers(&grant(&wants, &[gpus(4)], Compat::Corrected)), [5, 1, 3]);
}

#[test]
fn the_limit_that_binds_is_named_with_its_numbers() {
    let each = GrantRequest { watts: Some(Watts::new(700.0).unwrap()), ..want("v", 2, 9) };
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
        let alone = grant(std::slice::from_ref(&each), &limits[count - 1..count], Compat::Corrected);
        let bound = alone[0].binding.clone().unwrap();
        let got = alone[0].granted;
        let said =
            format!("| {} | {} | {} | {} | {got} |", bound.limit, bound.budget, bound.used, bound.free);
        assert_eq!(said, row);
        says_page(LIMITS, row);
    }
    let all = grant(&[each], &limits, Compat::Corrected);
    assert_eq!((all[0].granted.get(), all[0].binding.as_ref().unwrap().limit.as_str()), (4, "power"));
    says_page(LIMITS, "granted are 4 of 9, and `power` is named");
}

#[test]
fn limits_of_every_kind_hold_for_what_models_share() {
    let watts = |name| V { watts: Some(1000.0), ..v(name, 5.0, 1000.0, 1) };
    let a = request("a", 1.0, &[watts("a")], &[says(8000.0, 0.0)]);
    let b = request("b", 3.0, &[watts("b")], &[says(8000.0, 0.0)]);
    let power = Budget::Power { budget: Watts::new(10_000.0).unwrap(), per_gpu: BTreeMap::new() };
    let plans = optimize_together(
        &[a, b],
        &[gpus(100), Limit::new("power", power)],
        &Rescale::default(),
        Compat::Corrected,
    );
    let got = targets(&plans.plans);
    assert_eq!(got.values().sum::<u32>(), 10);
    says_page(OPTIMIZERS, &format!("`a` gets {} and `b` {}", got["a"] - 1, got["b"] - 1));
    assert!(
        plans.plans.iter().all(|plan| plan.targets[0].binding.as_ref().is_some_and(|by| by.limit == "power"))
    );
}

#[test]
fn which_replica_goes_first_does_not_hang_on_the_unit_of_a_finding() {
    let removed = |unit: f64, compat| {
        let small = V { carries: vec![1000.0 * unit, 1.0], ..v("small", 5.0, 0.0, 1) };
        let large = V { carries: vec![900.0 * unit, 3.0], ..v("large", 5.0, 0.0, 1) };
        let spare = [says(0.0, 1000.0 * unit), says(0.0, 3.0)];
        alone(&request("m", 1.0, &[small, large], &spare), compat)
    };
    let (first, other) = (is(&[("large", 0), ("small", 1)]), is(&[("large", 1), ("small", 0)]));
    // 1001 and 903, or 2.0 and 3.9.
    assert_eq!([1.0, 0.001].map(|unit| removed(unit, Compat::Upstream)), [first, other.clone()]);
    assert_eq!([1.0, 0.001].map(|unit| removed(unit, Compat::Corrected)), [other.clone(), other]);
}

#[test]
fn a_need_that_nobody_is_known_to_carry_stops_no_other() {
    let variant = V { carries: vec![10_000.0, 0.0], ..v("v", 5.0, 0.0, 1) };
    let request = request("m", 1.0, &[variant], &[says(15_000.0, 0.0), says(6000.0, 0.0)]);
    assert_eq!(alone(&request, Compat::Corrected), is(&[("v", 3)]));
}

#[test]
fn a_need_of_thousands_of_replicas_is_covered_exactly_within_the_looks() {
    let choice = |cost, carries, max| Choice { cost, capacity: vec![carries], max };
    let most = i64::MAX;
    let gone = choice(0.1, 9.0, 0);
    let choices = [choice(10.0, 10.0, most), choice(14.0, 7.0, most), choice(9.0, 3.0, most), gone];
    let found = cheapest_cover(&[50_004.0], &choices).unwrap();
    assert!(found.is_cheapest, "{found:?}");
    assert_eq!(found.counts, [5001, 0, 0, 0]);
}

#[test]
fn that_nothing_is_cheaper_is_shown_by_bounds_and_not_by_a_look_at_all_there_is() {
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
