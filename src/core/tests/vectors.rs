//! The product's arithmetic agrees with upstream's and with Kubernetes' to the digit.

use crate::support::vectors;

const FILE: &str = include_str!("vectors.json");

fn all_pass(group: &str, exactly: usize) {
    let mut tally = vectors::Tally::default();
    vectors::run(FILE, &[group.to_owned()], &mut tally).unwrap();
    assert!(tally.failures.is_empty(), "{}", tally.failures.join("\n"));
    assert_eq!(tally.passed, exactly, "a vector of {group} came or went");
}

#[test]
fn v1_agrees_with_upstream() {
    all_pass("v1", 23);
}

#[test]
fn v2_agrees_with_upstream() {
    all_pass("inputs.kv_tokens", 4);
    all_pass("v2", 47);
}

#[test]
fn the_enforcer_agrees_with_upstream() {
    all_pass("enforcer", 5);
}

#[test]
fn the_hpa_agrees_with_kubernetes() {
    all_pass("hpa", 37);
}

#[test]
fn the_throughput_analyzer_agrees_with_upstream() {
    all_pass("throughput", 13);
}

#[test]
fn the_policies_of_the_seeds_agree_with_the_reference() {
    all_pass("seed", 15);
}

#[test]
fn the_coordinator_agrees_with_upstream() {
    all_pass("coordinator", 8);
}

#[test]
fn scaling_from_zero_agrees_with_upstream() {
    all_pass("scale_from_zero", 4);
}

#[test]
fn the_optimizers_agree_with_upstream() {
    all_pass("optimizer", 34);
}

#[test]
fn rescaling_agrees_with_upstream() {
    all_pass("rescale", 17);
}

#[test]
fn the_limiter_and_quotas_agree_with_upstream() {
    all_pass("limiter", 6);
    all_pass("quota", 7);
}

#[test]
fn the_queueing_model_agrees_with_upstream() {
    all_pass("qm", 38);
}

#[test]
fn the_legacy_solver_agrees_with_upstream() {
    all_pass("inferno", 14);
}

#[test]
fn a_group_nobody_implements_is_a_failure_and_not_silence() {
    let text = r#"{"vectors": [{"group": "nobody", "id": "x", "inputs": {}, "expected": 1}]}"#;
    let mut tally = vectors::Tally::default();
    vectors::run(text, &[], &mut tally).unwrap();
    assert_eq!(tally.failures, ["nobody/x: unknown group"]);
}
