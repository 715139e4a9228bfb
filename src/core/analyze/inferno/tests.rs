//! The reference's tables, and what the product makes of the solver.
#![allow(clippy::float_cmp, reason = "small whole numbers")]

use super::allocation::penalty;
use super::data::{Current, ServerLoad};
use super::*;
use crate::analyze::queueing::model::Service;
use crate::analyze::queueing::sizing::Targets;
use crate::upstream::greedy::{self, BestEffort, GreedySolution};
use crate::upstream::inferno as upstream;

fn accelerator(name: &str, cost: f32) -> Accelerator {
    Accelerator { name: name.into(), kind: name.into(), multiplicity: 1, cost }
}

fn performance(accelerator: &str, units: u32, speed: f32) -> PerformanceProfile {
    let service = Service::new(8.0 / speed, 0.016 / speed, 0.0005 / speed).unwrap();
    let (model, accelerator) = ("llama".into(), accelerator.into());
    PerformanceProfile { model, accelerator, units, max_batch: 64, at_tokens: 256, service }
}

/// Two replicas of it are on `accelerator`, unless that is empty.
fn server(name: &str, class: &str, arrival: f32, accelerator: &str) -> Server {
    let current = Current { accelerator: accelerator.into(), replicas: Replicas::new(2), cost: 80.0 };
    Server {
        name: name.into(),
        class: class.into(),
        model: "llama".into(),
        load: ServerLoad { arrival, input: 512, output: 128 },
        min: Replicas::ZERO,
        max_batch: 0,
        keep_accelerator: false,
        current: (!accelerator.is_empty()).then_some(current),
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

/// What the servers of `system` get of so many accelerators.
fn limited(system: &System, a100: u64, h100: u64, policy: BestEffort) -> BTreeMap<SmolStr, Allocation> {
    granted(&system.requests(), &[("A100", a100), ("H100", h100)], policy, false).allocations
}

/// `replicas` of an accelerator that is its own kind, worth what they cost.
fn choice(name: &str, units: u64, replicas: u32, value: f32) -> AllocationChoice {
    let (accelerator, replicas) = (SmolStr::from(name), Replicas::new(replicas));
    let allocation = Allocation { accelerator, replicas, cost: value, value, ..Allocation::default() };
    AllocationChoice { allocation, kind: Some(name.into()), units }
}

fn request(server: &str, priority: u32, choices: Vec<AllocationChoice>) -> AllocationRequest {
    AllocationRequest { server: server.into(), priority, choices }
}

fn granted(
    requests: &[AllocationRequest],
    accelerators: &[(&'static str, u64)],
    policy: BestEffort,
    delayed: bool,
) -> GreedySolution {
    let available = accelerators.iter().map(|(name, count)| (SmolStr::new_static(name), *count)).collect();
    greedy::solve(requests, &available, policy, delayed)
}

/// "server replicas accelerator" for each server that got something, and what is left of each type.
fn words(solution: &GreedySolution) -> String {
    let allocations = solution.allocations.iter();
    let got = allocations.map(|(server, got)| format!("{server} {} {}", got.replicas, got.accelerator));
    let left = solution.left.values().map(u64::to_string).collect::<Vec<_>>();
    format!("{}; left {}", got.collect::<Vec<_>>().join(", "), left.join(" "))
}

#[test]
fn the_reference_tables_allocations_agree() {
    let targets = Targets::latency(200.0, 40.0).unwrap();
    let (a100, perf) = (accelerator("A100", 40.0), performance("A100", 1, 1.0));
    let find = |server: &Server| allocate(server, &a100, &perf, targets);
    let a0 = find(&server("a0", "", 600.0, "")).unwrap();
    assert_eq!((a0.replicas, a0.cost), (Replicas::ONE, 40.0));
    let close = |found: f32, expected: f32| (found / expected - 1.0).abs() < 3e-4;
    assert!(close(a0.itl, 16.5428) && close(a0.ttft, 24.3165) && close(a0.rho, 0.1673), "{a0:?}");
    assert_eq!(find(&server("a2", "", 0.0, "")), Some(Allocation::default()));
    for arrival in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -1.0] {
        assert_eq!(find(&server("s", "", arrival, "")), None, "{arrival} is no number of requests");
    }
}

#[test]
fn a_change_of_accelerator_costs_a_tenth_of_both() {
    let from = Current { accelerator: "A".into(), replicas: Replicas::new(2), cost: 80.0 };
    assert_eq!(penalty(&from, &choice("H", 1, 1, 100.0).allocation), 38.0);
}

#[test]
fn too_few_accelerators_go_by_priority_and_by_the_policy_of_best_effort() {
    use BestEffort::{PriorityExhaustive, PriorityRoundRobin, RoundRobin};
    let both = || vec![choice("A100", 1, 4, 160.0), choice("H100", 1, 2, 200.0)];
    let two = [request("s1", 1, both()), request("s2", 10, both())];
    let solution = granted(&two, &[("A100", 6), ("H100", 1)], PriorityExhaustive, false);
    assert_eq!(words(&solution), "s1 4 A100, s2 2 A100; left 0 1", "a table of the reference");
    let equals = [
        request("s1", 1, vec![choice("A100", 1, 5, 200.0)]),
        request("s2", 1, vec![choice("H100", 4, 2, 200.0)]),
    ];
    let solution = granted(&equals, &[("A100", 4), ("H100", 7)], RoundRobin, true);
    assert_eq!(words(&solution), "s1 4 A100, s2 1 H100; left 0 3", "a table of the reference");
    let four = |server, priority| request(server, priority, vec![choice("A", 1, 4, 0.0)]);
    let in_turns = |policy| words(&granted(&[four("s1", 1), four("s2", 2)], &[("A", 3)], policy, true));
    assert_eq!(in_turns(RoundRobin), "s1 2 A, s2 1 A; left 0", "over all");
    assert_eq!(in_turns(PriorityRoundRobin), "s1 3 A; left 0", "within a priority");
    let all = |server, units| request(server, 1, vec![choice("A", units, u32::MAX, 0.0)]);
    let solution = granted(&[all("s1", 1), all("s3", 3)], &[("A", 4_000_000_001)], RoundRobin, true);
    assert_eq!(words(&solution), "s1 1000000001 A, s3 1000000000 A; left 0", "billions take no time");
}

#[test]
fn a_part_is_taken_of_the_first_choice_that_has_room() {
    let choices = vec![choice("none", 1, 9, 1.0), choice("few", 2, 9, 2.0)];
    let request = [request("s", 1, choices)];
    for policy in [BestEffort::RoundRobin, BestEffort::PriorityRoundRobin, BestEffort::PriorityExhaustive] {
        let solution = granted(&request, &[("none", 0), ("few", 5)], policy, true);
        assert_eq!(words(&solution), "s 2 few; left 1 0", "{policy:?}");
        let got = &solution.allocations["s"];
        assert!((got.cost - 4.0 / 9.0).abs() < 1e-6 && (got.value - 4.0 / 9.0).abs() < 1e-6, "{got:?}");
    }
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
    let solve = |server: &Server| system(vec![server.clone()]).solve().remove(&server.name);
    let new = solve(&server("new", "Premium", 6000.0, "")).unwrap();
    assert_eq!((new.accelerator.as_str(), new.replicas.get(), new.cost), ("H100", 2, 200.0));
    let mut here = server("here", "Premium", 600.0, "H100");
    assert_eq!(solve(&here).unwrap().accelerator, "A100", "one for 40 instead of two for 80");
    here.keep_accelerator = true;
    assert_eq!(solve(&here).unwrap().accelerator, "H100");
    here.current.as_mut().unwrap().accelerator = "gone".into();
    assert_eq!(solve(&here), None, "an unknown accelerator has no choices");
    let unknown = Server { model: "other".into(), ..server("s", "Premium", 600.0, "") };
    assert_eq!(solve(&unknown), None, "a model without a performance");
    assert_eq!(solve(&server("s", "", 600.0, "")), None, "a class without targets");
    let mut equal = system(vec![server("s", "Premium", 600.0, "")]);
    equal.accelerators = vec![accelerator("B", 40.0), accelerator("A", 40.0)];
    equal.performance = vec![performance("A", 1, 1.0), performance("B", 1, 1.0)];
    assert_eq!(equal.solve()["s"].accelerator, "B", "the first of two of one value");
}

#[test]
fn a_variant_is_held_where_no_number_of_replicas_is_the_answer() {
    let idle = server("idle", "Premium", 0.0, "A100");
    let moved = server("moved", "Premium", 6000.0, "A100");
    let unserved = server("unserved", "Freemium", 6000.0, "A100");
    let system = system(vec![idle, moved, unserved]);
    let mut allocations = limited(&system, 0, 2, BestEffort::None);
    let upstream = upstream::proposals(&system, &allocations);
    // Nothing is always to be had: the solver without limits does not forget a server that needs nothing.
    let nothing = system.solve().into_iter().filter(|(_, allocation)| allocation.accelerator.is_empty());
    allocations.extend(nothing);
    let corrected = system.proposals(&allocations);
    let replicas = |count| ServerProposal::Replicas(Replicas::new(count));
    let values = |proposals: BTreeMap<SmolStr, ServerProposal>| proposals.into_values().collect::<Vec<_>>();
    assert_eq!(values(corrected), [replicas(0), ServerProposal::Hold, ServerProposal::Hold]);
    assert_eq!(values(upstream), [replicas(0), replicas(2), replicas(0)]);
}

#[test]
fn the_page_says_what_the_code_computes() {
    let page = include_str!("../../../../docs/decisions/inferno.md");
    let system = system(vec![server("chat", "Premium", 6000.0, ""), server("batch", "Freemium", 6000.0, "")]);
    let mut expected = Vec::new();
    for server in &system.servers {
        for AllocationChoice { allocation, .. } in system.choices(server) {
            let Allocation { accelerator, replicas, cost, itl, ttft, .. } = allocation;
            let name = &server.name;
            expected.push(format!("| {name} | {accelerator} | {replicas} | {cost} | {itl:.2} | {ttft:.2} |"));
        }
    }
    let mut expect = |solved: BTreeMap<SmolStr, Allocation>| {
        let words = |name: &str| {
            let found = solved.get(name);
            found.map_or(format!("{name} nothing"), |got| {
                format!("{name} {} × {}", got.replicas, got.accelerator)
            })
        };
        expected.push(format!("{}, {}", words("chat"), words("batch")));
    };
    expect(system.solve());
    expect(limited(&system, 4, 2, BestEffort::None));
    expect(limited(&system, 4, 2, BestEffort::PriorityExhaustive));
    for words in expected {
        assert!(page.contains(&words), "the page does not say: {words}");
    }
}

#[test]
fn a_value_of_minus_nothing_is_not_smaller_than_nothing() {
    for (first, second) in [(0.0, -0.0), (-0.0, 0.0)] {
        let request = request("s", 1, vec![choice("a", 1, 1, first), choice("b", 1, 1, second)]);
        let solution = granted(&[request], &[("a", 1), ("b", 1)], BestEffort::None, false);
        assert_eq!(solution.allocations["s"].accelerator, "a", "the first of equal ones");
    }
}

#[test]
fn a_best_effort_is_known_by_its_name() {
    use BestEffort::{None, PriorityExhaustive, PriorityRoundRobin, RoundRobin};
    let names = ["PriorityExhaustive", "PriorityRoundRobin", "RoundRobin", "None", "other"];
    assert_eq!(
        names.map(BestEffort::from_name),
        [PriorityExhaustive, PriorityRoundRobin, RoundRobin, None, None]
    );
}

#[test]
fn who_loses_most_by_the_next_choice_is_served_first() {
    // Which of the two gets the only A; the other has to take what comes next.
    let served = |first: &[f32], second: &[f32]| {
        let request = |server: &str, values: &[f32]| {
            let choices = ["A", "B"].iter().zip(values).map(|(name, value)| choice(name, 1, 1, *value));
            request(server, 1, choices.collect())
        };
        let requests = [request("first", first), request("second", second)];
        let solution = granted(&requests, &[("A", 1), ("B", 1)], BestEffort::None, false);
        solution.allocations.into_iter().find(|(_, got)| got.accelerator == "A").unwrap().0
    };
    assert_eq!(served(&[10.0, 20.0], &[10.0, 100.0]), "second", "it would lose 90 and not 10");
    assert_eq!(served(&[1.0, 10.0], &[100.0, 150.0]), "second", "50 is more than 9");
    assert_eq!(served(&[100.0, 101.0], &[1.0, 50.0]), "second", "49 is more than 1");
    assert_eq!(served(&[10.0, 20.0], &[50.0]), "second", "without a next choice it would lose all");
    assert_eq!(served(&[10.0, 20.0], &[15.0, 25.0]), "second", "of equal losses the larger value");
    assert_eq!(served(&[10.0, 20.0], &[10.0, 20.0]), "first");
}
