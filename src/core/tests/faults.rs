//! Faults of signals in the closed loop: what the fault matrix holds analyzers to, and that its comparison tells.
#![allow(clippy::unwrap_used, reason = "tests may fail")]

#[path = "support/matrix/mod.rs"]
mod matrix;

use matrix::cases::{Case, MAX_REPLICAS};
use matrix::compare::{Comparison, Reference, Timeline};
use matrix::{play, policies};
use wva_core::analyze::finding::Analyzer;

/// The runs of the rate policy without a fault, under every load.
fn references() -> Vec<(Case, Timeline)> {
    let free = |case: Case| {
        let controller = policies::controller(Analyzer::Rate, case.view);
        (case, Timeline::new(&play(case, &controller, &[], 1), case.replicas()))
    };
    Case::in_turns().into_iter().map(free).collect()
}

#[test]
fn policies_that_look_at_nothing_do_not_pass_the_comparison_of_the_fault_matrix() {
    let references = references();
    let passes = |policy: &dyn Fn(&Timeline) -> Timeline| {
        let holds =
            |(_, free): &(Case, Timeline)| Comparison::of(&Reference::new(free, &[]), &policy(free)).holds();
        references.iter().all(holds)
    };
    assert!(passes(&Timeline::clone), "a run passes beside itself");
    for replicas in 1..=MAX_REPLICAS {
        assert!(!passes(&|_| Timeline::fixed(replicas)), "static:{replicas} passes");
    }
    assert!(!passes(&Timeline::without_removals), "a policy that never removes passes");
}
