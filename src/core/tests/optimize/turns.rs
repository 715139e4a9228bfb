//! Rounds and steps: which model is served when, by which measure, and what the report says about it.

use std::collections::BTreeMap;

use super::fleet::{V, finding, first_step, gpus, numbers, planned_alone, request, v};
use smol_str::SmolStr;
use wva_core::arithmetic::optimize_together as optimize;
use wva_core::limit::{FreeGpus, Limit};
use wva_core::model::Compat;
use wva_core::optimize::by_score::{SharedPlans, SharingRound};
use wva_core::optimize::rescale::Rescale;
use wva_core::optimize::{Addition, OptimizerStep, Request};
use wva_core::upstream::Tree;
use wva_core::upstream::by_score::share_free_gpus;

fn shared(requests: &[Request], limits: &[Limit]) -> SharedPlans {
    optimize(requests, limits, &Rescale::default(), Compat::Corrected)
}

fn turns(shared: &SharedPlans) -> Vec<(&str, String)> {
    let turn = |round: &SharingRound| {
        format!("{:.2} of {:.2}, mean {:.2}", round.target, round.remaining, round.mean)
    };
    shared.rounds.iter().map(|round| (round.id.model.as_str(), turn(round))).collect()
}

#[test]
fn a_weight_is_counted_in_gpus_of_the_best_variant_that_the_finding_knows() {
    let best = V { carries: vec![1000.0, 0.0], ..v("best", 1.0, 0.0, 1) };
    let known = V { carries: vec![1000.0, 500.0], gpus: 2, ..v("known", 5.0, 0.0, 1) };
    let request = request("m", 3.0, &[best, known], &[finding(0.0, 0.0), finding(1000.0, 0.0)]);
    let found = shared(&[request], &[gpus(100)]);
    // Two replicas of two GPUs, by a priority of 3.
    assert_eq!(turns(&found), [("m", "12.00 of 12.00, mean 12.00".to_owned())]);
    assert_eq!(numbers(&found.plans), [1, 3]);
}

#[test]
fn the_most_starved_is_served_down_to_the_mean_and_equals_by_their_part() {
    let model = |name, need| request(name, 1.0, &[v(name, 5.0, 1000.0, 1)], &[finding(need, 0.0)]);
    let all = [model("a", 2000.0), model("b", 6000.0)];
    let found = shared(&all, &[gpus(100)]);
    let expected = [
        ("b", "2.00 of 6.00, mean 4.00".to_owned()),
        ("b", "1.00 of 4.00, mean 3.00".to_owned()),
        ("b", "0.50 of 3.00, mean 2.50".to_owned()),
        ("a", "1.00 of 2.00, mean 2.00".to_owned()),
        ("b", "0.50 of 2.00, mean 1.50".to_owned()),
        ("a", "0.50 of 1.00, mean 1.00".to_owned()),
        ("b", "1.00 of 1.00, mean 1.00".to_owned()),
    ];
    assert_eq!(turns(&found), expected);
}

#[test]
fn upstream_is_done_with_a_model_that_stays_above_the_mean() {
    let model = |name, need, accelerator| {
        let variant = V { accelerator: Some(accelerator), ..v(name, 5.0, 1000.0, 1) };
        request(name, 1.0, &[variant], &[finding(need, 0.0)])
    };
    let all = [model("a", 9000.0, "A100"), model("b", 1000.0, "H100")];
    let cluster: BTreeMap<SmolStr, i64> = [("A100".into(), 2), ("H100".into(), 5)].into();
    let free = FreeGpus { cluster, namespaces: BTreeMap::new() };
    let found = share_free_gpus(&all, free, &Rescale::default(), Tree::August);
    let who: Vec<&str> = found.rounds.iter().map(|round| round.id.model.as_str()).collect();
    assert_eq!(who, ["a", "b"], "a has seven left and the mean is five");
    assert_eq!(numbers(&found.plans), [3, 2]);
}

#[test]
fn the_report_names_what_was_added_and_nothing_else() {
    let variants = [v("large", 8.0, 10_000.0, 1), v("small", 5.0, 6000.0, 1)];
    let request = request("m", 1.0, &variants, &[finding(12_000.0, 0.0)]);
    let plan = &planned_alone(&[request], Compat::Corrected)[0];
    let added = first_step(plan, |step| match step {
        OptimizerStep::Covered { added, .. } => Some(added.clone()),
        _ => None,
    });
    assert_eq!(added, Some(vec![Addition { variant: "small".into(), replicas: 2 }]));
}

#[test]
fn a_need_that_is_met_at_the_maximum_is_not_reported_as_blocked() {
    let variant = V { max: Some(3), ..v("v", 5.0, 10_000.0, 1) };
    let blocked = |need| {
        let request = request("m", 1.0, std::slice::from_ref(&variant), &[finding(need, 0.0)]);
        let plan = planned_alone(&[request], Compat::Upstream).remove(0);
        (
            plan.targets[0].target.get(),
            plan.steps.iter().any(|step| matches!(step, OptimizerStep::Blocked { .. })),
        )
    };
    assert_eq!([blocked(20_000.0), blocked(20_001.0)], [(3, false), (3, true)]);
}

#[test]
fn a_limit_that_leaves_just_enough_holds_nobody_back() {
    let bound = |count| {
        let request = request("m", 1.0, &[v("v", 5.0, 1000.0, 1)], &[finding(3000.0, 0.0)]);
        let found = shared(&[request], &[gpus(count)]);
        let is_reported =
            found.plans[0].steps.iter().any(|step| matches!(step, OptimizerStep::Limited { .. }));
        (found.plans[0].targets[0].target.get(), found.plans[0].targets[0].binding.is_some(), is_reported)
    };
    assert_eq!([bound(4), bound(3)], [(4, false, false), (3, true, true)]);
}
