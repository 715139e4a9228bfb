//! Golden decisions: each file of `tests/scenarios` is a snapshot, a memory and a policy, and what must be decided.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests may fail like tests")]

use std::collections::BTreeMap;
use std::fs::read_to_string;
use std::path::Path;

use jiff::Timestamp;
use serde::Deserialize;
use wva_core::decision::{Cause, Reason, Verdict};
use wva_core::{Memory, Policy, Snapshot, VariantId, decide, observe};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Scenario {
    /// What the product promises here.
    promise: String,
    policy: Policy,
    memory: Memory,
    snapshot: Snapshot,
    expected: BTreeMap<VariantId, Expected>,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
enum Expected {
    Number { desired: u32, reason: Reason, evidence: Timestamp, says: String },
    Unknown { cause: Cause, since: Timestamp, says: String },
}

/// What was decided, in the form of an expectation; `says` is kept when the message contains it.
fn found(verdict: &Verdict, expected: &Expected) -> Expected {
    let says = |message: &str| match expected {
        Expected::Number { says, .. } | Expected::Unknown { says, .. } if message.contains(says.as_str()) => {
            says.clone()
        }
        _ => message.to_owned(),
    };
    match verdict {
        Verdict::Target(target) => Expected::Number {
            desired: target.desired.get(),
            reason: target.reason,
            evidence: target.evidence,
            says: says(&target.message),
        },
        Verdict::Unknown(unknown) => {
            Expected::Unknown { cause: unknown.cause, since: unknown.since, says: says(&unknown.message) }
        }
    }
}

#[test]
fn every_scenario_is_decided_as_promised() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/scenarios");
    let mut files: Vec<_> = folder.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let mut wrong = Vec::new();
    for file in &files {
        let scenario: Scenario = serde_json::from_str(&read_to_string(file).unwrap())
            .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let memory = observe(&scenario.snapshot, scenario.memory);
        let outcome = decide(&scenario.snapshot, &memory, &scenario.policy);
        assert_eq!(outcome.report.violations, [], "{}", file.display());
        for (id, expected) in &scenario.expected {
            let found = found(&outcome.decisions[id].verdict, expected);
            if found != *expected {
                let name = file.file_stem().unwrap().display();
                wrong.push(format!("{name}: {}\n  {id}: {found:?}\n  not {expected:?}", scenario.promise));
            }
        }
        assert_eq!(outcome.decisions.len(), scenario.expected.len(), "{}: one each", file.display());
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(files.len() >= 20, "only {} scenarios", files.len());
}
