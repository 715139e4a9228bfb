//! The product's arithmetic agrees with upstream's and with Kubernetes' to the digit.

use crate::tests::support::vectors;

const FILE: &str = include_str!("vectors.json");

/// The families of vectors, and how many vectors each has.
const FAMILIES: [(&str, usize); 15] = [
    ("v1", 23),
    ("inputs.kv_tokens", 4),
    ("v2", 47),
    ("enforcer", 5),
    ("hpa", 37),
    ("throughput", 13),
    ("seed", 15),
    ("coordinator", 8),
    ("scale_from_zero", 4),
    ("optimizer", 34),
    ("rescale", 17),
    ("limiter", 6),
    ("quota", 7),
    ("qm", 38),
    ("inferno", 14),
];

#[test]
fn every_vector_of_upstream_and_of_kubernetes_agrees() {
    for (family, count) in FAMILIES {
        let mut tally = vectors::Tally::default();
        vectors::run(FILE, &[family.to_owned()], &mut tally).unwrap();
        assert!(tally.failures.is_empty(), "{}", tally.failures.join("\n"));
        assert_eq!(tally.passed, count, "a vector of {family} came or went");
    }
}

#[test]
fn a_group_nobody_implements_is_a_failure_and_not_silence() {
    let text = r#"{"vectors": [{"group": "nobody", "id": "x", "inputs": {}, "expected": 1}]}"#;
    let mut tally = vectors::Tally::default();
    vectors::run(text, &[], &mut tally).unwrap();
    assert_eq!(tally.failures, ["nobody/x: unknown group"]);
}
