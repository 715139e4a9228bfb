//! The reference's tables, and what the product makes of the solver.
#![allow(clippy::float_cmp, reason = "small whole numbers")]

use super::allocation::penalty;
use super::data::{Current, ServerLoad};
use super::*;
use crate::analyze::queueing::model::Service;
use crate::analyze::queueing::sizing::Targets;
use crate::upstream::inferno::{LimitedSupply, proposals, solve, solve_with_idle};
use crate::upstream::inferno_greedy::{self as greedy, BestEffort};

fn accelerator(name: &str, cost: f32) -> Accelerator {
    Accelerator { name: name.into(), kind: name.into(), multiplicity: 1, cost }
}

fn performance(accelerator: &str, units: u32, speed: f32) -> PerformanceProfile {
    let service = Service::new(8.0 / speed, 0.016 / speed, 0.0005 / speed).unwrap();
    let (model, accelerator) = ("llama".into(), accelerator.into());
    PerformanceProfile { model, accelerator, units, max_batch: 64, at_tokens: 256, service }
}

fn server(name: &str, class: &str, arrival: f32, on: &str) -> Server {
    let accelerator = on.into();
    let current = Some(Current { accelerator, replicas: Replicas::new(2), cost: 80.0 });
    Server {
        name: name.into(),
        class: class.into(),
        model: "llama".into(),
        load: ServerLoad { arrival, input: 512, output: 128 },
        min: Replicas::ZERO,
        max_batch: 0,
        keep_accelerator: false,
        current: current.filter(|_| !on.is_empty()),
    }
}

/// A100 at 40 and H100, three times as fast, at 100, for two classes.
fn system(servers: Vec<Server>) -> System {
    let class = |name, priority, itl, ttft| {
        let targets = vec![("llama".into(), Targets::latency(ttft, itl).unwrap())];
        ServiceLevel::new(name, priority, targets).unwrap()
    };
    System {
        accelerators: vec![accelerator("A100", 40.0), accelerator("H100", 100.0)],
        performance: vec![performance("A100", 1, 1.0), performance("H100", 1, 3.0)],
        classes: vec![class("Premium", 1, 24.0, 500.0), class("Freemium", 10, 200.0, 2000.0)],
        servers,
    }
}

fn limited(a100: u64, h100: u64, policy: BestEffort) -> LimitedSupply {
    let available = [(SmolStr::new_static("A100"), a100), (SmolStr::new_static("H100"), h100)].into();
    LimitedSupply { available, policy, delayed: false }
}

#[test]
fn the_reference_tables_allocations_agree() {
    let targets = Targets::latency(200.0, 40.0).unwrap();
    let (a100, perf) = (accelerator("A100", 40.0), performance("A100", 1, 1.0));
    let find = |server: &Server| allocate(server, &a100, &perf, targets);
    let a0 = find(&server("a0", "", 600.0, "")).unwrap();
    assert_eq!((a0.replicas, a0.cost), (Replicas::ONE, 40.0));
    let close = |found: f32, told: f32| (found / told - 1.0).abs() < 3e-4;
    assert!(close(a0.itl, 16.5428) && close(a0.ttft, 24.3165) && close(a0.rho, 0.1673), "{a0:?}");
    assert_eq!(find(&server("a2", "", 0.0, "")), Some(Allocation::default()));
    let broken =
        Server { load: ServerLoad { arrival: f32::NAN, input: 1, output: 1 }, ..server("x", "", 1.0, "") };
    assert_eq!(find(&broken), None);
}

#[test]
fn a_change_of_accelerator_costs_a_tenth_of_both() {
    let from = Current { accelerator: "A".into(), replicas: Replicas::new(2), cost: 80.0 };
    let to =
        Allocation { accelerator: "H".into(), replicas: Replicas::ONE, cost: 100.0, ..Allocation::default() };
    assert_eq!(penalty(&from, &to), 38.0);
}

/// `replicas` of an accelerator that is its own kind, worth what they cost.
fn choice(name: &str, units: u64, replicas: u32, value: f32) -> AllocationChoice {
    let (accelerator, replicas) = (SmolStr::from(name), Replicas::new(replicas));
    let allocation = Allocation { accelerator, replicas, cost: value, value, ..Allocation::default() };
    AllocationChoice { allocation, kind: Some(name.into()), units }
}

#[test]
fn the_reference_tables_best_efforts_agree() {
    let request =
        |server: &str, priority, choices| AllocationRequest { server: server.into(), priority, choices };
    let solve = |requests: &[AllocationRequest], a100, h100, policy, delayed| {
        let available = [(SmolStr::new_static("A100"), a100), (SmolStr::new_static("H100"), h100)].into();
        let granted = greedy::solve(requests, &available, policy, delayed);
        let got = |one: &Allocation| (one.replicas.get(), one.accelerator.clone());
        let left: Vec<u64> = granted.left.into_values().collect();
        (granted.allocations.values().map(got).collect::<Vec<_>>(), left)
    };
    let both = || vec![choice("A100", 1, 4, 160.0), choice("H100", 1, 2, 200.0)];
    let two = [request("s1", 1, both()), request("s2", 10, both())];
    let on = |replicas, accelerator: &str| (replicas, SmolStr::from(accelerator));
    let exhaustive = solve(&two, 6, 1, BestEffort::PriorityExhaustive, false);
    assert_eq!(exhaustive, (vec![on(4, "A100"), on(2, "A100")], vec![0, 1]));
    let equals = [
        request("s1", 1, vec![choice("A100", 1, 5, 200.0)]),
        request("s2", 1, vec![choice("H100", 4, 2, 200.0)]),
    ];
    let two_types = solve(&equals, 4, 7, BestEffort::RoundRobin, true);
    assert_eq!(two_types, (vec![on(4, "A100"), on(1, "H100")], vec![0, 3]));
}

#[test]
fn a_class_has_a_name_and_a_priority_whatever_is_given() {
    let class = |name, priority| ServiceLevel::new(name, priority, vec![]).unwrap();
    assert_eq!([0, 1, 100, 101, -5].map(|given| class("x", given).priority()), [100, 1, 100, 100, 100]);
    assert!(class("", 1).is_named("") && class("", 1).is_named("Free") && !class("x", 1).is_named("Free"));
    let wrong = ServiceLevel::new("x", 1, vec![("m".into(), Targets { itl: -1.0, ..Targets::default() })]);
    assert_eq!(wrong.unwrap_err().unit, "target ITL");
}

#[test]
fn without_limits_the_cheapest_wins_and_moving_has_a_price() {
    let new = system(vec![server("new", "Premium", 6000.0, "")]).solve();
    assert_eq!(
        (new["new"].accelerator.as_str(), new["new"].replicas.get(), new["new"].cost),
        ("H100", 2, 200.0)
    );
    let mut here = server("here", "Premium", 600.0, "H100");
    let solve = |server: &Server| system(vec![server.clone()]).solve();
    assert_eq!(solve(&here)["here"].accelerator, "A100", "one for 40 instead of two for 80");
    here.keep_accelerator = true;
    assert_eq!(solve(&here)["here"].accelerator, "H100");
    here.current.as_mut().unwrap().accelerator = "gone".into();
    assert!(solve(&here).is_empty(), "an unknown accelerator has no choices");
}

#[test]
fn a_model_without_targets_or_performance_gets_nothing() {
    let mut unknown = server("s", "Premium", 600.0, "");
    unknown.model = "other".into();
    assert!(system(vec![unknown]).solve().is_empty());
    assert!(system(vec![server("s", "", 600.0, "")]).solve().is_empty());
}

#[test]
fn a_variant_is_held_where_no_number_of_replicas_is_the_answer() {
    let idle = server("idle", "Premium", 0.0, "A100");
    let moved = server("moved", "Premium", 6000.0, "A100");
    let unserved = server("unserved", "Freemium", 6000.0, "A100");
    let system = system(vec![idle, moved, unserved]);
    let supply = limited(0, 2, BestEffort::None);
    let ours = system.proposals(&solve_with_idle(&system, &supply));
    let theirs = proposals(&system, &solve(&system, &supply));
    let replicas = |count| ServerProposal::Replicas(Replicas::new(count));
    let values = |proposals: BTreeMap<SmolStr, ServerProposal>| proposals.into_values().collect::<Vec<_>>();
    assert_eq!(values(ours), [replicas(0), ServerProposal::Hold, ServerProposal::Hold]);
    assert_eq!(values(theirs), [replicas(0), replicas(2), replicas(0)]);
}

#[test]
fn the_page_says_what_the_code_computes() {
    let page = include_str!("../../../../docs/decisions/inferno.md");
    let system = system(vec![server("chat", "Premium", 6000.0, ""), server("batch", "Freemium", 6000.0, "")]);
    let mut said = Vec::new();
    for server in &system.servers {
        for AllocationChoice { allocation: one, .. } in system.choices(server) {
            let Allocation { accelerator, replicas, cost, itl, ttft, .. } = one;
            let name = &server.name;
            said.push(format!("| {name} | {accelerator} | {replicas} | {cost} | {itl:.2} | {ttft:.2} |"));
        }
    }
    let of = |solved: BTreeMap<SmolStr, Allocation>| {
        let words = |name: &str| {
            solved.get(name).map_or(format!("{name} nothing"), |one| {
                format!("{name} {} × {}", one.replicas, one.accelerator)
            })
        };
        format!("{}, {}", words("chat"), words("batch"))
    };
    said.push(of(system.solve()));
    said.push(of(solve_with_idle(&system, &limited(4, 2, BestEffort::None))));
    said.push(of(solve_with_idle(&system, &limited(4, 2, BestEffort::PriorityExhaustive))));
    for words in said {
        assert!(page.contains(&words), "the page does not say: {words}");
    }
}

#[test]
fn arrivals_that_are_no_number_of_requests_have_no_allocation() {
    let (a100, perf) = (accelerator("A100", 40.0), performance("A100", 1, 1.0));
    let targets = Targets::latency(200.0, 40.0).unwrap();
    for arrival in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -1.0] {
        let server = server("s", "", arrival, "");
        assert_eq!(allocate(&server, &a100, &perf, targets), None, "{arrival}");
    }
}

#[test]
fn of_two_accelerators_of_one_value_the_first_wins() {
    let mut system = system(vec![server("s", "Premium", 600.0, "")]);
    system.accelerators = vec![accelerator("B", 40.0), accelerator("A", 40.0)];
    system.performance = vec![performance("A", 1, 1.0), performance("B", 1, 1.0)];
    assert_eq!(system.solve()["s"].accelerator, "B");
}

#[test]
fn turns_are_taken_on_the_first_choice_that_has_room() {
    let choices = [choice("none", 1, 9, 1.0), choice("few", 2, 9, 2.0), choice("free", 0, 9, 3.0)];
    let request = AllocationRequest { server: "s".into(), priority: 1, choices: choices[..2].to_vec() };
    let available: BTreeMap<SmolStr, u64> =
        [("none".into(), 0), ("few".into(), 5), ("free".into(), 0)].into();
    for policy in [BestEffort::RoundRobin, BestEffort::PriorityRoundRobin, BestEffort::PriorityExhaustive] {
        let granted = greedy::solve(std::slice::from_ref(&request), &available, policy, true);
        let got = &granted.allocations["s"];
        assert_eq!((got.accelerator.as_str(), got.replicas.get()), ("few", 2), "{policy:?}");
        assert!((got.cost - 4.0 / 9.0).abs() < 1e-6 && (got.value - 4.0 / 9.0).abs() < 1e-6, "{got:?}");
        assert_eq!(granted.left["few"], 1, "{policy:?}");
    }
}

#[test]
fn a_value_of_minus_nothing_is_not_smaller_than_nothing() {
    let choice = |name: &str, value| {
        let (accelerator, replicas) = (SmolStr::from(name), Replicas::ONE);
        let allocation = Allocation { accelerator, replicas, cost: 1.0, value, ..Allocation::default() };
        AllocationChoice { allocation, kind: Some(name.into()), units: 1 }
    };
    for (first, second) in [(0.0, -0.0), (-0.0, 0.0)] {
        let choices = vec![choice("a", first), choice("b", second)];
        let request = AllocationRequest { server: "s".into(), priority: 1, choices };
        let available = [("a".into(), 1), ("b".into(), 1)].into();
        let granted = greedy::solve(&[request], &available, BestEffort::None, false);
        assert_eq!(granted.allocations["s"].accelerator, "a", "the first of equal ones");
    }
}

#[test]
fn a_best_effort_is_known_by_its_name() {
    let names = ["PriorityExhaustive", "PriorityRoundRobin", "RoundRobin", "None", "other"];
    let efforts = [
        BestEffort::PriorityExhaustive,
        BestEffort::PriorityRoundRobin,
        BestEffort::RoundRobin,
        BestEffort::None,
        BestEffort::None,
    ];
    assert_eq!(names.map(BestEffort::from_name), efforts);
}

#[test]
fn who_loses_most_by_the_next_choice_is_served_first() {
    let choice = |name: &str, value| {
        let (accelerator, replicas) = (SmolStr::from(name), Replicas::ONE);
        let allocation = Allocation { accelerator, replicas, cost: 1.0, value, ..Allocation::default() };
        AllocationChoice { allocation, kind: Some(name.into()), units: 1 }
    };
    // Who of the two gets the only A; the other one has to take what comes next.
    let first = |one: &[f32], other: &[f32]| {
        let request = |server: &str, values: &[f32]| {
            let choices = ["A", "B"].iter().zip(values).map(|(name, value)| choice(name, *value)).collect();
            AllocationRequest { server: server.into(), priority: 1, choices }
        };
        let available = [("A".into(), 1), ("B".into(), 1)].into();
        let requests = [request("one", one), request("other", other)];
        let granted = greedy::solve(&requests, &available, BestEffort::None, false);
        let on_a = granted.allocations.iter().find(|(_, got)| got.accelerator == "A");
        on_a.unwrap().0.clone()
    };
    assert_eq!(first(&[10.0, 20.0], &[10.0, 100.0]), "other", "it would lose 90 and not 10");
    assert_eq!(first(&[1.0, 10.0], &[100.0, 150.0]), "other", "50 is more than 9");
    assert_eq!(first(&[100.0, 101.0], &[1.0, 50.0]), "other", "49 is more than 1");
    assert_eq!(first(&[10.0, 20.0], &[50.0]), "other", "without a next choice it would lose all");
    assert_eq!(first(&[10.0, 20.0], &[15.0, 25.0]), "other", "of equal losses the larger value");
    assert_eq!(first(&[10.0, 20.0], &[10.0, 20.0]), "one");
}

#[test]
fn turns_for_billions_of_replicas_take_no_time() {
    let choice = |units| {
        let replicas = Replicas::new(u32::MAX);
        let allocation = Allocation { accelerator: "A".into(), replicas, ..Allocation::default() };
        AllocationChoice { allocation, kind: Some("A".into()), units }
    };
    let request = |server: &str, units| AllocationRequest {
        server: server.into(),
        priority: 1,
        choices: vec![choice(units)],
    };
    let available = [("A".into(), 4_000_000_001)].into();
    let requests = [request("one", 1), request("three", 3)];
    let granted = greedy::solve(&requests, &available, BestEffort::RoundRobin, true);
    let got: Vec<u32> = granted.allocations.values().map(|one| one.replicas.get()).collect();
    assert_eq!((got, granted.left["A"]), (vec![1_000_000_001, 1_000_000_000], 0));
}

#[test]
fn turns_are_taken_within_a_priority_or_over_all() {
    let request = |server: &str, priority| {
        let allocation =
            Allocation { accelerator: "A".into(), replicas: Replicas::new(4), ..Allocation::default() };
        AllocationRequest {
            server: server.into(),
            priority,
            choices: vec![AllocationChoice { allocation, kind: Some("A".into()), units: 1 }],
        }
    };
    let requests = [request("one", 1), request("two", 2)];
    let got = |policy| {
        let granted = greedy::solve(&requests, &[("A".into(), 3)].into(), policy, true);
        granted.allocations.into_iter().map(|(server, got)| (server, got.replicas.get())).collect::<Vec<_>>()
    };
    assert_eq!(got(BestEffort::RoundRobin), [("one".into(), 2), ("two".into(), 1)]);
    assert_eq!(got(BestEffort::PriorityRoundRobin), [("one".into(), 3)]);
}
