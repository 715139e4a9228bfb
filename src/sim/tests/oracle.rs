//! The oracle: it does as well as what it is compared with, for less, and nobody with the same fleet does better.

use std::time::Duration;

use wva_core::model::Analyzer;
use wva_core::units::Cost;
use wva_sim::{
    Controller, LoadShape, RequestSizes, Run, Scenario, Segment, SimVariant, TP1, TP2, allowed_outside,
    oracle, outside, simulate,
};

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn scenario(stages: &[(f64, u64)], variants: Vec<SimVariant>) -> Scenario {
    let lasts = stages.iter().map(|(_, lasts)| s(*lasts)).sum();
    let load = stages.iter().map(|(rps, lasts)| Segment::Hold { rps: *rps, lasts: s(*lasts) }).collect();
    Scenario::new("steps", lasts, LoadShape::new(load), RequestSizes::uniform(4000.0, 1000.0, 0.1), variants)
}

fn tp1() -> SimVariant {
    SimVariant::new("tp1", TP1, Cost::new(1.0).unwrap())
}

fn runs(scenario: &Scenario, seed: u64) -> Vec<Run> {
    let controllers = [Controller::analyzer(Analyzer::Rate), Controller::wva_v2(), Controller::keda_epp()];
    controllers.iter().map(|controller| simulate(scenario, controller, seed, |_| {})).collect()
}

#[test]
fn it_orders_before_a_step_so_that_the_pods_are_there_when_it_comes() {
    let scenario = scenario(&[(1.0, 600), (5.0, 600), (1.0, 600)], vec![tp1()]);
    let found = oracle(&scenario, 1, 0, &[]).unwrap();
    assert_eq!(outside(&found), 0);
    let rise = found.writes.iter().find(|write| write.to > write.from).unwrap();
    assert!((450.0..=530.0).contains(&rise.at_s), "about 95 s before 600: {:?}", found.writes);
    assert!(found.cost_avg < 1.6, "two replicas for a good third of the time: {}", found.cost_avg);
}

#[test]
fn it_is_cheaper_than_every_policy_at_the_policys_own_share() {
    let tp2 = SimVariant { gpus: 2, ..SimVariant::new("tp2", TP2, Cost::new(2.0).unwrap()) };
    for scenario in [
        scenario(&[(2.0, 300), (8.0, 600)], vec![tp1()]),
        scenario(&[(2.0, 300), (8.0, 600)], vec![tp2, tp1()]),
    ] {
        let all = runs(&scenario, 3);
        let known: Vec<&Run> = all.iter().collect();
        for run in &all {
            let found = oracle(&scenario, 3, outside(run), &known).unwrap();
            assert!(found.slo_attainment >= run.slo_attainment, "{}", run.policy);
            assert!(
                found.cost_avg <= run.cost_avg + 1e-9,
                "{}: {} > {}",
                run.policy,
                found.cost_avg,
                run.cost_avg
            );
        }
    }
}

#[test]
fn it_buys_less_where_more_requests_may_wait() {
    let scenario = scenario(&[(2.0, 300), (8.0, 600)], vec![tp1()]);
    let requests = runs(&scenario, 1)[0].requests;
    let cost = |share| oracle(&scenario, 1, allowed_outside(requests, share), &[]).unwrap().cost_avg;
    assert!(cost(0.8) < cost(1.0));
}

#[test]
fn it_finds_nothing_where_no_fleet_is_good_enough() {
    let overload = scenario(&[(50.0, 300)], vec![tp1()]);
    assert!(oracle(&overload, 1, 0, &[]).is_none());
}

#[test]
fn whole_requests_are_allowed_outside() {
    assert_eq!([1.0, 0.99, 0.995, 0.0].map(|share| allowed_outside(1000, share)), [0, 10, 5, 1000]);
}
