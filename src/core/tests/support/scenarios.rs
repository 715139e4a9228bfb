//! The golden decisions: each file of `tests/scenarios` has a snapshot, a memory and a policy, and the decision that they must give.

use std::fs::read_to_string;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::prelude::*;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Scenario {
    /// What the product promises here.
    pub(crate) promise: String,
    pub(crate) policy: Policy,
    pub(crate) memory: Memory,
    pub(crate) snapshot: Snapshot,
    pub(crate) expected: BTreeMap<VariantId, Expected>,
    /// What the checker must refuse.
    #[serde(default)]
    pub(crate) violations: Vec<Rule>,
    /// Words that the message about an unused memory must contain.
    #[serde(default)]
    pub(crate) dropped: Vec<String>,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
pub(crate) enum Expected {
    Number { desired: u32, reason: Reason, evidence: Timestamp, says: String },
    Unknown { cause: Cause, since: Timestamp, says: String },
}

impl Scenario {
    pub(crate) fn decided(&self) -> Outcome {
        let memory = observe(&self.snapshot, self.memory.clone());
        let outcome = decide(&self.snapshot, &memory, &self.policy);
        assert_eq!(outcome.report.failed, []);
        outcome
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/scenarios")
}

/// The scenario of a file, by its name without `.json`.
pub(crate) fn scenario(name: &str) -> Scenario {
    let text = read_to_string(folder().join(format!("{name}.json"))).unwrap();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// All scenarios by name.
pub(crate) fn all() -> BTreeMap<String, Scenario> {
    let files = folder().read_dir().unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_file());
    let names = files.map(|path| path.file_stem().unwrap().to_string_lossy().into_owned());
    names.map(|name| (name.clone(), scenario(&name))).collect()
}
