//! Properties that hold for any fleet, finding and limit.

use std::collections::{BTreeMap, BTreeSet};

use super::fleet::{FindingSpec, V, planned_alone, request, targets};
use crate::tests::support::cases;
use proptest::collection::vec;
use proptest::prelude::*;
use smol_str::SmolStr;
use wva_core::analyze::finding::Finding;
use wva_core::arithmetic::{grant, optimize_together};
use wva_core::limit::{Budget, Footprint, Grant, GrantRequest, Limit, Quota, SharedGpus};
use wva_core::model::{Bounds, Compat, Role, VariantId};
use wva_core::optimize::rescale::Rescale;
use wva_core::optimize::water_fill::{Share, split, water_fill};
use wva_core::optimize::{Choice, Plan, Request, cheapest_cover};
use wva_core::units::{Cost, Replicas, Watts};

const NAMES: [[&str; 3]; 3] = [["a1", "a2", "a3"], ["b1", "b2", "b3"], ["c1", "c2", "c3"]];
const TREES: [Compat; 3] = [Compat::Corrected, Compat::Upstream, Compat::UpstreamJune];

fn role() -> impl Strategy<Value = Role> {
    prop_oneof![3 => Just(Role::Both), 1 => Just(Role::Decode), 1 => Just(Role::Prefill)]
}

/// Mostly realistic fleets; the capacity of a replica is sometimes unknown.
fn variant(name: &'static str) -> impl Strategy<Value = V> {
    let carries = vec(prop_oneof![1 => Just(0.0), 5 => 1.0..3000.0], 2);
    let names = prop_oneof![4 => Just(Some("A100")), 2 => Just(Some("H100")), 1 => Just(None)];
    let bounds = (0_u32..6, 0_u32..3, 0_u32..8, any::<bool>());
    let uses = (
        0_u32..5,
        prop_oneof![Just(0.0), 0.5..20.0],
        prop_oneof![1 => Just(None), 3 => (1.0..900.0).prop_map(Some)],
    );
    (role(), carries, names, bounds, uses).prop_map(move |(role, carries, accelerator, bounds, uses)| {
        let (current, below, above, capped) = bounds;
        let (gpus, cost, watts) = uses;
        let (min, max) = (current.saturating_sub(below), capped.then_some(current + above));
        V { name, role, cost, carries, current, min, max, gpus, accelerator, watts }
    })
}

fn missing(max: f64) -> impl Strategy<Value = f64> {
    prop_oneof![1 => Just(0.0), 1 => 0.0..=max]
}

fn finding_spec(growing: bool) -> impl Strategy<Value = FindingSpec> {
    let max = if growing { 9000.0 } else { 0.0 };
    let totals = move || (missing(max), missing(9000.0));
    let roles = vec((role(), totals()), 0..3);
    let rest = (0.0..20_000.0, prop_oneof![Just(0.0), Just(1.0), Just(0.3)], any::<bool>());
    (totals(), roles, rest).prop_map(|(total, roles, (demand, score, live))| {
        let roles = roles.into_iter().map(|(role, (required, spare))| (role, required, spare)).collect();
        FindingSpec { total, roles, demand, score, live }
    })
}

fn model(at: usize) -> impl Strategy<Value = Request> {
    let variants = (variant(NAMES[at][0]), variant(NAMES[at][1]), variant(NAMES[at][2]), 1..=3_usize);
    let findings = any::<bool>().prop_flat_map(|growing| vec(finding_spec(growing), 0..3));
    (variants, findings, 0.0..5.0).prop_map(move |((a, b, c, count), findings, priority)| {
        request(NAMES[at][0], priority, &[a, b, c][..count], &findings)
    })
}

fn models() -> impl Strategy<Value = Vec<Request>> {
    (model(0), model(1), model(2), 1..=3_usize).prop_map(|(a, b, c, count)| [a, b, c][..count].to_vec())
}

fn limits() -> impl Strategy<Value = Vec<Limit>> {
    let gpus = |a, h| BTreeMap::from([(SmolStr::new_static("A100"), a), (SmolStr::new_static("H100"), h)]);
    let inventory = (0_u32..60, 0_u32..60).prop_map(move |(a, h)| Budget::Inventory(gpus(a, h)));
    let quota = (-1_i64..60, -1_i64..60).prop_map(|(a, h)| {
        let types = BTreeMap::from([(SmolStr::new_static("A100"), a), (SmolStr::new_static("H100"), h)]);
        Budget::Quota(
            Quota::namespaces(BTreeMap::from([("default".into(), types)]), BTreeSet::new()).unwrap(),
        )
    });
    let power = (0.0..20_000.0).prop_map(|watts| {
        let per_gpu = BTreeMap::from([(SmolStr::new_static("A100"), Watts::new(400.0).unwrap())]);
        Budget::Power { budget: Watts::new(watts).unwrap(), per_gpu }
    });
    let spend = (0.0..300.0).prop_map(|cost| Budget::Spend(Cost::new(cost).unwrap()));
    let names = proptest::sample::subsequence(NAMES.concat(), 1..=9);
    let of_variants = (0_u32..60, names).prop_map(|(gpus, names)| {
        let share = |name: &str| (SmolStr::from(name), SharedGpus { key: "quota".into(), gpus });
        Budget::OfVariants(BTreeMap::from([("default".into(), names.into_iter().map(share).collect())]))
    });
    let any = prop_oneof![inventory, quota, power, spend, of_variants];
    vec(any, 1..4).prop_map(|all| {
        all.into_iter().enumerate().map(|(at, budget)| Limit::new(format!("limit {at}"), budget)).collect()
    })
}

fn on() -> Rescale {
    Rescale { cluster: true, namespaces: BTreeSet::from(["default".into()]) }
}

/// Every way from requests to plans.
fn all_plans(requests: &[Request], limits: &[Limit]) -> Vec<Vec<Plan>> {
    let mut all = Vec::new();
    for compat in TREES {
        all.push(planned_alone(requests, compat));
        all.push(optimize_together(requests, limits, &Rescale::default(), compat).plans);
        all.push(optimize_together(requests, limits, &on(), compat).plans);
    }
    all
}

/// The budgets of a limit, and what a replica uses of each; `None` if that is unknown.
fn budgets(limit: &Limit, replica: &Footprint<'_>) -> Vec<(f64, Option<f64>)> {
    let gpus = f64::from(replica.gpus.unwrap());
    let of =
        |name: &str, budget| (budget, replica.accelerator.map(|own| if own == name { gpus } else { 0.0 }));
    match &limit.budget {
        Budget::Inventory(there) => there.iter().map(|(name, count)| of(name, f64::from(*count))).collect(),
        Budget::Quota(quota) => {
            let all = quota.list("default").into_iter().flatten();
            all.map(|(name, count)| of(name, if *count < 0 { f64::INFINITY } else { *count as f64 }))
                .collect()
        }
        Budget::Power { budget, per_gpu } => {
            let by_type =
                replica.accelerator.and_then(|name| per_gpu.get(name)).map(|watts| watts.get() * gpus);
            vec![(budget.get(), replica.watts.map(Watts::get).or(by_type))]
        }
        Budget::Spend(budget) => vec![(budget.get(), Some(replica.cost.get()))],
        Budget::OfVariants(shares) => {
            let own = &shares["default"];
            let used = if own.contains_key(replica.variant) { gpus } else { 0.0 };
            own.values().take(1).map(|share| (f64::from(share.gpus), Some(used))).collect()
        }
    }
}

/// If anything was added, it and the running replicas are within the budget; nothing of unknown use is added.
fn fits(limits: &[Limit], all: &[(Footprint<'_>, Replicas, Replicas)]) -> bool {
    limits.iter().all(|limit| {
        let count = all.first().map_or(0, |(replica, ..)| budgets(limit, replica).len());
        (0..count).all(|at| {
            let (mut used, mut added, mut budget) = (0.0, 0.0, 0.0);
            for (replica, current, target) in all {
                let (whole, use_of_replica) = budgets(limit, replica)[at];
                let more = target.saturating_sub(*current).get();
                if use_of_replica.is_none() && more > 0 {
                    return false;
                }
                budget = whole;
                used += use_of_replica.unwrap_or(0.0) * f64::from(current.get());
                added += use_of_replica.unwrap_or(0.0) * f64::from(more);
            }
            added == 0.0 || used + added <= budget + 1e-5
        })
    })
}

fn moves<'a>(requests: &'a [Request], plans: &[Plan]) -> Vec<(Footprint<'a>, Replicas, Replicas)> {
    let mut all = Vec::new();
    for (request, plan) in requests.iter().zip(plans) {
        for (candidate, target) in request.candidates.iter().zip(&plan.targets) {
            all.push((candidate.footprint(&request.id.namespace), target.current, target.target));
        }
    }
    all
}

fn wants() -> impl Strategy<Value = Vec<GrantRequest>> {
    let want = |(own, proposed, priority, spare): (V, u32, f64, f64)| GrantRequest {
        id: VariantId::new("default", "x"),
        current: Replicas::new(own.current),
        proposed: Replicas::new(proposed),
        bounds: Bounds { min: Replicas::new(own.min), max: own.max.map(Replicas::new) },
        priority,
        spare,
        cost: Cost::new(own.cost).unwrap(),
        accelerator: own.accelerator.or(Some("A100")).map(Into::into),
        gpus: Some(own.gpus.max(1)),
        watts: Some(Watts::new(own.watts.unwrap_or(300.0)).unwrap()),
    };
    vec((variant("x"), 0_u32..12, 0.0..3.0, 0.0..1.0).prop_map(want), 1..5).prop_map(|mut wants| {
        (0..).zip(&mut wants).for_each(|(at, want): (u32, _)| want.id.name = at.to_string().into());
        wants
    })
}

/// Whether something is missing in a role that exists; upstream also counts the others.
fn misses(request: &Request, finding: &Finding, compat: Compat) -> bool {
    let there = |role: &Role| {
        compat != Compat::Corrected || request.candidates.iter().any(|candidate| candidate.role == *role)
    };
    if !finding.roles.keys().any(there) {
        return finding.total.required > 0.0;
    }
    finding.roles.iter().any(|(role, totals)| there(role) && totals.required > 0.0)
}

/// Choices that each cover this number of needs.
fn choices_of(parts: Vec<(f64, Vec<f64>, i64)>, needs: usize) -> Vec<Choice> {
    let choice = |(cost, capacity, max): (f64, Vec<f64>, i64)| Choice {
        cost,
        capacity: capacity[..needs].to_vec(),
        max,
    };
    parts.into_iter().map(choice).collect()
}

proptest! {
    #![proptest_config(cases::quick())]

    #[test]
    fn what_is_added_fits_into_every_limit(requests in models(), limits in limits(), rescale in any::<bool>()) {
        let rescale = if rescale { on() } else { Rescale::default() };
        let shared = optimize_together(&requests, &limits, &rescale, Compat::Corrected);
        prop_assert!(fits(&limits, &moves(&requests, &shared.plans)), "{:?}", shared.plans);
    }

    #[test]
    fn a_grant_adds_what_fits_and_nothing_else(wants in wants(), limits in limits(), turn in 0..4_usize) {
        let granted = grant(&wants, &limits, Compat::Corrected);
        let all: Vec<_> =
            wants.iter().zip(&granted).map(|(want, grant)| (want.footprint(), want.current, grant.granted)).collect();
        prop_assert!(fits(&limits, &all), "{granted:?}");
        for (want, grant) in wants.iter().zip(&granted) {
            prop_assert!(grant.granted >= want.current.min(want.proposed));
            prop_assert!(grant.granted <= want.proposed && grant.is_limited == grant.binding.is_some());
            prop_assert!(grant.is_limited || grant.granted == want.bounds.max.unwrap_or(want.proposed).min(want.proposed));
        }
        let mut turned = wants;
        let by = turn % turned.len();
        turned.rotate_left(by);
        let mut granted_turned = grant(&turned, &limits, Compat::Corrected);
        granted_turned.rotate_right(by);
        let numbers = |all: &[Grant]| all.iter().map(|grant| grant.granted).collect::<Vec<_>>();
        prop_assert_eq!(numbers(&granted), numbers(&granted_turned));
    }

    #[test]
    fn a_removal_leaves_what_is_not_spare(requests in models()) {
        for (request, plan) in requests.iter().zip(planned_alone(&requests, Compat::Corrected)) {
            let removed = |at: usize| plan.targets[at].current.saturating_sub(plan.targets[at].target).get();
            let any = (0..plan.targets.len()).any(|at| removed(at) > 0);
            prop_assert!(!any || request.findings.iter().any(|finding| finding.live));
            for finding in request.findings.iter().filter(|finding| finding.live) {
                let carried = |at: usize| f64::from(removed(at)) * finding.variants[at].per_replica;
                let total = |role: Option<Role>| {
                    let of = |at: &usize| role.is_none_or(|role| request.candidates[*at].role == role);
                    (0..plan.targets.len()).filter(of).map(carried).sum::<f64>()
                };
                for role in request.candidates.iter().map(|candidate| candidate.role) {
                    if let Some(totals) = finding.roles.get(&role) {
                        prop_assert!(total(Some(role)) <= totals.spare + 1e-6);
                    }
                }
                if finding.roles.is_empty() {
                    prop_assert!(total(None) <= finding.total.spare + 1e-6, "{finding:?} {plan:?}");
                }
            }
        }
    }

    #[test]
    fn what_is_missing_is_added_where_no_maximum_is_in_the_way(requests in models()) {
        for mut request in requests {
            request.candidates.iter_mut().for_each(|candidate| candidate.bounds.max = None);
            let plan = &planned_alone(std::slice::from_ref(&request), Compat::Corrected)[0];
            for finding in &request.findings {
                for role in request.candidates.iter().map(|candidate| candidate.role) {
                    let of = |at: &usize| {
                        request.candidates[*at].role == role && request.findings[0].variants[*at].per_replica > 0.0
                    };
                    let per_replica = |at: usize| finding.variants[at].per_replica;
                    let all: Vec<usize> = (0..plan.targets.len()).filter(of).collect();
                    let added = |at: usize| f64::from(plan.targets[at].target.saturating_sub(plan.targets[at].current).get());
                    let carried: f64 = all.iter().map(|at| added(*at) * per_replica(*at)).sum();
                    let needed = finding.roles.get(&role).map_or(0.0, |totals| totals.required);
                    let able = all.iter().any(|at| per_replica(*at) > 0.0);
                    prop_assert!(!able || carried >= needed * (1.0 - 1e-8), "{role:?} {request:?} {plan:?}");
                }
            }
        }
    }

    #[test]
    fn nothing_cheaper_covers_a_need(
        needs in vec(0.0..40.0, 1..3),
        choices in vec((prop_oneof![Just(0.0), 0.5..9.0], vec(prop_oneof![Just(0.0), 3.0..20.0], 2), 0_i64..6), 1..4),
    ) {
        let choices = choices_of(choices, needs.len());
        let carried = |counts: &[i64], at: usize| -> f64 {
            counts.iter().zip(&choices).map(|(count, choice)| *count as f64 * choice.capacity[at]).sum()
        };
        let mut least: Option<f64> = None;
        for code in 0..6_i64.pow(3) {
            let counts: Vec<i64> = (0..choices.len()).map(|at| code / 6_i64.pow(at as u32) % 6).collect();
            let allowed = counts.iter().zip(&choices).all(|(count, choice)| *count <= choice.max);
            if allowed && needs.iter().enumerate().all(|(at, need)| carried(&counts, at) >= *need) {
                let cost: f64 = counts.iter().zip(&choices).map(|(count, choice)| *count as f64 * choice.cost).sum();
                least = Some(least.map_or(cost, |least| least.min(cost)));
            }
        }
        let found = cheapest_cover(&needs, &choices);
        prop_assert_eq!(found.is_some(), least.is_some());
        if let (Some(found), Some(least)) = (found, least) {
            prop_assert!(found.is_cheapest && (found.cost - least).abs() < 1e-6, "{found:?} {least}");
            prop_assert!(found.counts.iter().zip(&choices).all(|(count, choice)| *count <= choice.max));
        }
    }

    #[test]
    fn a_larger_need_never_costs_less(
        needs in vec((0.0..40.0_f64, 0.0..20.0_f64), 1..3),
        choices in vec((0.5..9.0, vec(3.0..20.0, 2), 0_i64..6), 1..4),
    ) {
        let choices = choices_of(choices, needs.len());
        let less: Vec<f64> = needs.iter().map(|(need, _)| *need).collect();
        let more: Vec<f64> = needs.iter().map(|(need, more)| need + more).collect();
        if let Some(larger) = cheapest_cover(&more, &choices) {
            let smaller = cheapest_cover(&less, &choices).unwrap();
            prop_assert!(smaller.cost <= larger.cost + 1e-6, "{smaller:?} {larger:?}");
        }
    }

    #[test]
    fn the_units_of_findings_and_of_money_are_irrelevant(requests in models(), powers in (-8..12, -8..12, 0..12)) {
        // A power of two changes no digit of a float.
        let factors = [f64::from(powers.0).exp2(), f64::from(powers.1).exp2()];
        let mut scaled = requests.clone();
        for request in &mut scaled {
            for (finding, factor) in request.findings.iter_mut().zip(factors) {
                for totals in finding.roles.values_mut().chain([&mut finding.total]) {
                    for value in [&mut totals.required, &mut totals.spare, &mut totals.demand] {
                        *value *= factor;
                    }
                }
                finding.variants.iter_mut().for_each(|variant| variant.per_replica *= factor);
            }
            for candidate in &mut request.candidates {
                // No cost is 0: the tolerance for rounding is a share, but for costs below 1 an amount.
                candidate.cost = Cost::new((candidate.cost.get() + 1.0) * f64::from(powers.2).exp2()).unwrap();
            }
        }
        let mut before = requests;
        for candidate in before.iter_mut().flat_map(|request| &mut request.candidates) {
            candidate.cost = Cost::new(candidate.cost.get() + 1.0).unwrap();
        }
        let plans = |all: &[Request]| targets(&planned_alone(all, Compat::Corrected));
        prop_assert_eq!(plans(&before), plans(&scaled));
    }

    #[test]
    fn water_filling_spends_the_budget_within_floors_and_caps(
        models in vec((0.1..9.0, 0.1..90.0, 0_i64..5, 0_i64..30), 1..6),
        budget in 0_i64..100,
    ) {
        let share = |(at, (priority, demand, floor, more)): (usize, &(f64, f64, i64, i64))| {
            Share { id: at.to_string().into(), priority: *priority, demand: *demand, floor: *floor, cap: floor + more }
        };
        let shares: Vec<Share> = models.iter().enumerate().map(share).collect();
        let filled = water_fill(&shares, budget);
        let floors: i64 = shares.iter().map(|share| share.floor).sum();
        let caps: i64 = shares.iter().map(|share| share.cap).sum();
        prop_assert_eq!(filled.targets.values().sum::<i64>(), budget.min(caps).max(floors));
        prop_assert_eq!(filled.is_over_budget, floors > budget);
        for share in shares {
            prop_assert!((share.floor..=share.cap).contains(&filled.targets[&share.id]));
        }
    }

    #[test]
    fn a_split_loses_nothing(total in 0_i64..200, parts in vec((0_i64..20, 0_i64..20, 0_i64..9), 2..5)) {
        let roles: Vec<usize> = (0..parts.len()).collect();
        let map = |pick: fn(&(i64, i64, i64)) -> i64| -> BTreeMap<usize, i64> {
            parts.iter().map(pick).enumerate().collect()
        };
        let floors = map(|part| part.2);
        let parts = split(total, &roles, &map(|part| part.0), &map(|part| part.1), &floors);
        prop_assert_eq!(parts.values().sum::<i64>(), total.max(floors.values().sum()));
        prop_assert!(roles.iter().all(|role| parts[role] >= floors[role]));
    }
}

fn odd() -> impl Strategy<Value = f64> {
    let special = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MAX, f64::MIN_POSITIVE, -1.0, 0.0, 1e19];
    prop_oneof![2 => any::<f64>(), 2 => proptest::sample::select(special.to_vec()), 3 => 0.0..9000.0]
}

proptest! {
    #![proptest_config(cases::quick())]

    #[test]
    fn every_candidate_has_one_target_within_its_bounds(requests in models(), limits in limits()) {
        for plans in all_plans(&requests, &limits) {
            prop_assert_eq!(plans.len(), requests.len());
            for (request, plan) in requests.iter().zip(&plans) {
                prop_assert_eq!(&request.id, &plan.id);
                prop_assert_eq!(request.candidates.len(), plan.targets.len());
                for (candidate, target) in request.candidates.iter().zip(&plan.targets) {
                    prop_assert_eq!(&candidate.name, &target.name);
                    prop_assert_eq!(target.target, candidate.bounds.clamp(target.target));
                }
            }
        }
    }

    #[test]
    fn nothing_is_removed_while_anything_is_missing(requests in models(), limits in limits()) {
        for compat in TREES {
            let alone = planned_alone(&requests, compat);
            let shared = optimize_together(&requests, &limits, &Rescale::default(), compat).plans;
            for (request, plan) in requests.iter().cycle().zip(alone.iter().chain(&shared)) {
                let missing = request.findings.iter().any(|finding| misses(request, finding, compat));
                let is_kept = plan.targets.iter().all(|target| target.target >= target.current);
                prop_assert!(!missing || is_kept, "{request:?} {plan:?}");
            }
        }
    }

    #[test]
    fn the_order_of_the_input_is_irrelevant(requests in models(), limits in limits(), turn in 0..3_usize) {
        let mut turned = requests.clone();
        turned.rotate_left(turn % requests.len());
        for request in &mut turned {
            request.candidates.reverse();
        }
        let alone = |all: &[Request]| targets(&planned_alone(all, Compat::Corrected));
        prop_assert_eq!(alone(&requests), alone(&turned));
        for rescale in [Rescale::default(), on()] {
            let shared = |all: &[Request]| optimize_together(all, &limits, &rescale, Compat::Corrected);
            prop_assert_eq!(targets(&shared(&requests).plans), targets(&shared(&turned).plans));
        }
    }

    #[test]
    fn no_number_makes_an_optimizer_panic(
        requests in models(),
        limits in limits(),
        numbers in vec(odd(), 40),
        huge in any::<u32>(),
    ) {
        let mut numbers = numbers.into_iter().cycle();
        let mut next = || numbers.next().unwrap();
        let mut requests = requests;
        for request in &mut requests {
            request.priority = next();
            for finding in &mut request.findings {
                (finding.score, finding.total.required, finding.total.spare) = (next(), next(), next());
                finding.total.demand = next();
                for totals in finding.roles.values_mut() {
                    (totals.required, totals.spare, totals.demand) = (next(), next(), next());
                }
                for variant in &mut finding.variants {
                    (variant.per_replica, variant.demand) = (next(), next());
                }
            }
            for candidate in &mut request.candidates {
                candidate.gpus = candidate.gpus.map(|gpus| huge.rotate_left(gpus));
            }
        }
        for plans in all_plans(&requests, &limits) {
            prop_assert_eq!(plans.len(), requests.len());
        }
        let (need, capacity) = (vec![next(), next()], vec![next(), next()]);
        let _ = cheapest_cover(&need, &[Choice { cost: next(), capacity, max: i64::MAX }]);
        let share = Share { id: "a".into(), priority: next(), demand: next(), floor: 0, cap: i64::MAX };
        let _ = water_fill(&[share.clone(), Share { id: "b".into(), priority: next(), ..share }], i64::MAX);
    }
}
