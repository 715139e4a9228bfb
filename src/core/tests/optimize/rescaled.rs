//! Rescaling: which model gets the GPUs that several compete for, and how fast.

use std::collections::{BTreeMap, BTreeSet};

use super::fleet::{FindingSpec, V, by_role, finding, first_step, gpus, request, targets, v};
use smol_str::SmolStr;
use wva_core::arithmetic::optimize_together as optimize;
use wva_core::limit::{Budget, FreeGpus, Limit, Quota};
use wva_core::model::Role::{Decode, Prefill};
use wva_core::model::{Bounds, Compat};
use wva_core::optimize::by_score::SharedPlans;
use wva_core::optimize::rescale::Rescale;
use wva_core::optimize::{OptimizerStep, Plan, Request};
use wva_core::units::{Replicas, Watts};
use wva_core::upstream::Tree;
use wva_core::upstream::by_score::share_free_gpus;

fn cluster() -> Rescale {
    Rescale { cluster: true, namespaces: BTreeSet::new() }
}

fn quota(count: i64) -> Limit {
    let listed = BTreeMap::from([("default".into(), BTreeMap::from([("A100".into(), count)]))]);
    Limit::new("quota", Budget::Quota(Quota::namespaces(listed, BTreeSet::new()).unwrap()))
}

/// A model with one variant of its name, whose replicas carry 1000 each.
fn model(name: &'static str, priority: f64, current: u32, demand: f64) -> Request {
    of(v(name, 5.0, 1000.0, current), priority, demand)
}

fn of(variant: V, priority: f64, demand: f64) -> Request {
    let name = variant.name;
    request(name, priority, &[variant], &[FindingSpec { demand, ..finding(0.0, 0.0) }])
}

fn rescaled(models: &[Request], limits: &[Limit]) -> SharedPlans {
    optimize(models, limits, &cluster(), Compat::Corrected)
}

fn numbers(shared: &SharedPlans) -> Vec<u32> {
    targets(&shared.plans).into_values().collect()
}

/// The plan's only rescaling: budget, floor, cap, GPUs, and whether the minima exceed the budget.
fn rescaling(plan: &Plan) -> Option<(i64, i64, i64, i64, bool)> {
    first_step(plan, |step| match step {
        OptimizerStep::Rescaled { budget, floor, cap, gpus, is_over_budget, .. } => {
            Some((*budget, *floor, *cap, *gpus, *is_over_budget))
        }
        _ => None,
    })
}

#[test]
fn gpus_go_by_priority_times_demand_and_what_is_released_is_free_in_the_next_pass() {
    let pass = |a, b| rescaled(&[model("a", 1.0, a, 8000.0), model("b", 3.0, b, 8000.0)], &[gpus(8)]);
    let first = pass(4, 4);
    assert_eq!(numbers(&first), [2, 4]);
    assert_eq!(rescaling(&first.plans[0]), Some((8, 0, 8, 2, false)));
    assert_eq!(rescaling(&first.plans[1]), Some((8, 0, 8, 6, false)));
    assert_eq!(numbers(&pass(2, 4)), [2, 6]);
    assert_eq!(numbers(&pass(2, 6)), [2, 6]);
}

#[test]
fn while_all_fit_nothing_is_rescaled() {
    let pass = |demand| rescaled(&[model("a", 1.0, 3, demand), model("b", 3.0, 2, 4000.0)], &[gpus(8)]);
    assert_eq!(rescaling(&pass(4000.0).plans[0]), None);
    assert_eq!(rescaling(&pass(4001.0).plans[0]), Some((8, 0, 5, 4, false)));
}

#[test]
fn a_minimum_is_kept_and_the_rest_is_shared() {
    let with_min = |name, min, current| V { min, ..v(name, 5.0, 1000.0, current) };
    let pass = rescaled(&[of(with_min("a", 3, 6), 1.0, 8000.0), model("b", 3.0, 2, 8000.0)], &[gpus(8)]);
    assert_eq!((numbers(&pass), rescaling(&pass.plans[0])), (vec![4, 2], Some((8, 3, 8, 4, false))));
    let all = [of(with_min("a", 5, 5), 1.0, 8000.0), of(with_min("b", 5, 3), 3.0, 8000.0)];
    let pass = rescaled(&all, &[gpus(8)]);
    assert_eq!((numbers(&pass), rescaling(&pass.plans[1])), (vec![5, 3], Some((8, 5, 8, 5, true))));
}

#[test]
fn what_a_maximum_cannot_take_goes_to_the_others() {
    let capped = |name, max, current| V { max: Some(max), ..v(name, 5.0, 1000.0, current) };
    let pass = rescaled(&[model("a", 1.0, 4, 8000.0), of(capped("b", 3, 1), 3.0, 8000.0)], &[gpus(8)]);
    assert_eq!((numbers(&pass), rescaling(&pass.plans[1])), (vec![5, 3], Some((8, 0, 3, 3, false))));
}

#[test]
fn replicas_of_two_gpus_come_and_go_as_a_whole() {
    let two = |name, current| V { gpus: 2, ..v(name, 5.0, 1000.0, current) };
    let pass = |(a, b), priority| {
        rescaled(&[of(two("a", a), 1.0, 4000.0), of(two("b", b), priority, 4000.0)], &[gpus(8)])
    };
    assert_eq!(numbers(&pass((2, 2), 3.0)), [1, 2], "two GPUs for a, six for b");
    assert_eq!(numbers(&pass((1, 2), 3.0)), [1, 3]);
    let uneven = pass((2, 1), 5.0 / 3.0);
    assert_eq!(rescaling(&uneven.plans[0]).unwrap().3, 3);
    assert_eq!(numbers(&uneven), [2, 2], "a keeps the replica that three GPUs fill in part");
}

#[test]
fn what_is_free_goes_to_the_higher_priority_and_then_by_name() {
    let pass =
        |priority| rescaled(&[model("b", priority, 1, 8000.0), model("a", 1.0, 1, 8000.0)], &[gpus(3)]);
    assert_eq!(numbers(&pass(1.0)), [2, 1], "of three one is left over: a's, by name");
    assert_eq!(numbers(&pass(9.0)), [1, 2]);
    let bound = pass(9.0).plans.iter().flat_map(|plan| &plan.targets).any(|target| target.binding.is_some());
    assert!(!bound, "who gets its share is held back by nothing");
}

#[test]
fn other_limits_hold_what_is_added_back_and_are_named() {
    let watts = |name| V { watts: Some(1000.0), ..v(name, 5.0, 1000.0, 1) };
    let power = Budget::Power { budget: Watts::new(4000.0).unwrap(), per_gpu: BTreeMap::new() };
    let limits = [gpus(8), Limit::new("power", power)];
    let pass = rescaled(&[of(watts("a"), 1.0, 8000.0), of(watts("b"), 3.0, 8000.0)], &limits);
    assert_eq!(numbers(&pass), [1, 3]);
    let bound = |plan: &Plan| plan.targets[0].binding.as_ref().map(|by| by.limit.clone());
    assert_eq!(pass.plans.iter().map(bound).collect::<Vec<_>>(), vec![Some(SmolStr::new("power")); 2]);
    let grown = |step: &&OptimizerStep| matches!(step, OptimizerStep::Added { share, .. } if (*share - 0.4).abs() < 1e-9);
    assert_eq!(pass.plans[1].steps.iter().filter(grown).count(), 1, "two of five that it should have");
}

#[test]
fn a_cheaper_variant_is_filled_first_and_a_dearer_one_emptied_first() {
    let pair = |large, small| {
        let variants = [v("a-dear", 9.0, 1000.0, large), v("a-cheap", 5.0, 1000.0, small)];
        request("a", 1.0, &variants, &[FindingSpec { demand: 8000.0, ..finding(0.0, 0.0) }])
    };
    let pass = |large, small, b| {
        let all = [pair(large, small), model("b", 1.0, b, 8000.0)];
        let SharedPlans { plans, .. } = rescaled(&all, &[gpus(8)]);
        plans[0].targets.iter().map(|target| target.target.get()).collect::<Vec<_>>()
    };
    assert_eq!(pass(3, 3, 2), [1, 3]);
    assert_eq!(pass(1, 1, 2), [1, 3]);
}

#[test]
fn a_model_of_several_accelerators_or_of_none_is_left_to_the_sharing() {
    let mixed = [v("a1", 5.0, 1000.0, 4), V { accelerator: Some("H100"), ..v("a2", 5.0, 1000.0, 0) }];
    let mixed = request("a", 1.0, &mixed, &[FindingSpec { demand: 8000.0, ..finding(0.0, 0.0) }]);
    let unknown = of(V { accelerator: None, ..v("c", 5.0, 1000.0, 1) }, 1.0, 8000.0);
    let blind = request("d", 1.0, &[v("d", 5.0, 1000.0, 1)], &[]);
    let all = [mixed, model("b", 3.0, 4, 9000.0), unknown, blind];
    let pass = rescaled(&all, &[gpus(8)]);
    let who: Vec<bool> = pass.plans.iter().map(|plan| rescaling(plan).is_some()).collect();
    assert_eq!(who, [false, true, false, false]);
}

#[test]
fn a_namespace_with_a_quota_competes_for_itself_where_it_is_switched_on() {
    let all = [model("a", 1.0, 4, 8000.0), model("b", 3.0, 4, 8000.0)];
    let limits = [gpus(100), quota(8)];
    let pass = |rescale: &Rescale| optimize(&all, &limits, rescale, Compat::Corrected);
    assert_eq!(numbers(&pass(&cluster())), [4, 4], "it has a quota of its own");
    let here = Rescale { cluster: false, namespaces: BTreeSet::from(["default".into()]) };
    let found = pass(&here);
    assert_eq!((numbers(&found), rescaling(&found.plans[1])), (vec![2, 4], Some((8, 0, 8, 6, false))));
    let unlimited = optimize(&all, &[gpus(100), quota(-1)], &here, Compat::Corrected);
    assert_eq!(rescaling(&unlimited.plans[0]), None, "without a bound there is nothing to compete for");
}

#[test]
fn without_a_bound_on_the_accelerator_nobody_competes() {
    let all = [model("a", 1.0, 4, 8000.0), model("b", 3.0, 4, 8000.0)];
    let quota = Quota::cluster(BTreeMap::from([("A100".into(), -1)])).unwrap();
    let limits = [Limit::new("quota", Budget::Quota(quota))];
    assert_eq!(rescaling(&rescaled(&all, &limits).plans[0]), None);
}

/// Free GPUs of the cluster and of the namespace.
fn free(cluster: i64, namespace: i64) -> FreeGpus {
    FreeGpus {
        namespaces: BTreeMap::from([("default".into(), of_type(namespace))]),
        ..free_in_cluster(cluster)
    }
}

fn free_in_cluster(count: i64) -> FreeGpus {
    FreeGpus { cluster: of_type(count), namespaces: BTreeMap::new() }
}

fn of_type(count: i64) -> BTreeMap<SmolStr, i64> {
    BTreeMap::from([("A100".into(), count)])
}

/// A model with two accelerators, which is not rescaled and takes the rest.
fn mixed() -> Request {
    let variants = [v("c1", 5.0, 1000.0, 0), V { accelerator: Some("H100"), ..v("c2", 5.0, 1000.0, 0) }];
    request("c", 1.0, &variants, &[finding(9000.0, 0.0)])
}

#[test]
fn a_namespace_fills_no_more_than_the_cluster_has_and_both_are_charged() {
    let here = Rescale { cluster: false, namespaces: BTreeSet::from(["default".into()]) };
    let pass = |cluster, namespace| {
        let all = [model("a", 1.0, 1, 9000.0), model("b", 3.0, 1, 9000.0), mixed()];
        numbers(&share_free_gpus(&all, free(cluster, namespace), &here, Tree::August))
    };
    // Ten GPUs for a and b: 2.5 and 7.5.
    assert_eq!(pass(4, 8), [1, 5, 0, 0], "b takes all four there are");
    assert_eq!(pass(11, 8), [3, 7, 0, 0], "eight by the namespace: nothing of its quota is left for c");
    assert_eq!(pass(i64::MAX, 8), [3, 7, 0, 0], "no bound in the cluster");
}

#[test]
fn what_one_model_fills_is_not_there_for_the_next() {
    let two = |name, current| of(V { gpus: 2, ..v(name, 5.0, 1000.0, current) }, 1.0, 4000.0);
    let all = [two("a", 1), two("b", 1), two("c", 4)];
    let found = share_free_gpus(&all, free_in_cluster(2), &cluster(), Tree::August);
    // Fourteen are divided into five, five and four; two are free now, and a takes both.
    assert_eq!(numbers(&found), [2, 1, 2]);
}

#[test]
fn what_a_rescaling_leaves_is_there_for_the_others() {
    let least = V { min: 3, max: Some(4), ..v("a", 5.0, 1000.0, 3) };
    let all = [of(least, 1.0, 4000.0), model("b", 1.0, 2, 4000.0), mixed()];
    let found = share_free_gpus(&all, free_in_cluster(2), &cluster(), Tree::August);
    // Seven are divided into four and three; each takes one of the two free ones.
    assert_eq!(numbers(&found), [4, 3, 0, 0]);
}

#[test]
fn what_a_rescaling_takes_is_charged_and_no_more() {
    let capped = V { max: Some(2), ..v("a", 5.0, 1000.0, 1) };
    let all = [of(capped, 1.0, 9000.0), model("b", 1.0, 1, 3000.0), mixed()];
    let found = share_free_gpus(&all, free_in_cluster(6), &cluster(), Tree::August);
    // Of six, one goes to a, which may have two, and two go to b, which needs three.
    assert_eq!(numbers(&found), [2, 3, 3, 0]);
}

fn roles(prefill: u32, decode: u32, demand: (f64, f64)) -> Request {
    let variants =
        [v("a-prefill", 5.0, 1000.0, prefill).role(Prefill), v("a-decode", 5.0, 1000.0, decode).role(Decode)];
    let finding = FindingSpec { demand: 8000.0, ..by_role(&[(Prefill, 0.0, 0.0), (Decode, 0.0, 0.0)]) };
    let mut request = request("a", 1.0, &variants, &[finding]);
    for (role, demand) in [(Prefill, demand.0), (Decode, demand.1)] {
        request.findings[0].roles.get_mut(&role).unwrap().demand = demand;
    }
    request
}

#[test]
fn a_models_gpus_go_to_its_roles_by_their_demand() {
    let pass = |prefill, decode| {
        let all = [roles(prefill, decode, (6000.0, 2000.0)), model("b", 1.0, 4, 8000.0)];
        numbers(&rescaled(&all, &[gpus(8)]))
    };
    assert_eq!(pass(2, 2), [1, 2, 4], "decode, prefill, b: what decode releases is free in the next pass");
    assert_eq!(pass(2, 1), [1, 3, 4]);
}

#[test]
fn a_role_without_demand_keeps_its_minimum() {
    let mut least = roles(2, 2, (8000.0, 0.0));
    least.candidates[1].bounds = Bounds { min: Replicas::new(2), max: None };
    let pass = rescaled(&[least, model("b", 1.0, 4, 8000.0)], &[gpus(8)]);
    assert_eq!(rescaling(&pass.plans[0]), Some((8, 2, 8, 5, false)), "its minimum and half of the rest");
    assert_eq!(numbers(&pass), [2, 2, 3]);
}
