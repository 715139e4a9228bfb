//! Golden decisions: each file of `tests/scenarios` is a snapshot, a memory and a policy, and what must be decided. Also that
//! everything a decision can say, and every kind of policy, has one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::read_to_string;
use std::iter::successors;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::Deserialize;
use smol_str::ToSmolStr;
use wva_core::decision::{Cause, Reason, Verdict};
use wva_core::model::Analyzer;
use wva_core::report::{Rule, Stage, Step};
use wva_core::{Memory, Outcome, Policy, Snapshot, VariantId, decide, observe};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Scenario {
    /// What the product promises here.
    promise: String,
    policy: Policy,
    memory: Memory,
    snapshot: Snapshot,
    expected: BTreeMap<VariantId, Expected>,
    /// What the checker must refuse.
    #[serde(default)]
    violations: Vec<Rule>,
    /// Words of what must be said of a memory that is not used.
    #[serde(default)]
    dropped: Vec<String>,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
enum Expected {
    Number { desired: u32, reason: Reason, evidence: Timestamp, says: String },
    Unknown { cause: Cause, since: Timestamp, says: String },
}

impl Scenario {
    fn decided(&self) -> Outcome {
        let memory = observe(&self.snapshot, self.memory.clone());
        let outcome = decide(&self.snapshot, &memory, &self.policy);
        assert_eq!(outcome.report.failed, []);
        outcome
    }

    /// Who decides about the first model.
    fn analyzer(&self) -> Option<Analyzer> {
        self.snapshot.groups.keys().next().map(|group| self.policy.of(group).analyzer)
    }

    fn says(&self, reason: Reason) -> bool {
        self.expected
            .values()
            .any(|one| matches!(one, Expected::Number { reason: own, .. } if *own == reason))
    }
}

fn all() -> Vec<(PathBuf, Scenario)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/scenarios");
    let entries = folder.read_dir().unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = entries.filter(|path| path.is_file()).collect();
    files.sort();
    let parsed = |file: PathBuf| {
        let scenario = serde_json::from_str(&read_to_string(&file).unwrap())
            .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        (file, scenario)
    };
    files.into_iter().map(parsed).collect()
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
            says: says(&target.explanation.to_string()),
        },
        Verdict::Unknown(unknown) => Expected::Unknown {
            cause: unknown.cause,
            since: unknown.since,
            says: says(&unknown.explanation.to_string()),
        },
    }
}

#[test]
fn every_scenario_is_decided_as_promised() {
    let mut wrong = Vec::new();
    for (file, scenario) in all() {
        let name = file.file_stem().unwrap().display();
        let Outcome { decisions, report, .. } = scenario.decided();
        for (id, expected) in &scenario.expected {
            let found = found(&decisions[id].verdict, expected);
            if found != *expected {
                wrong.push(format!("{name}: {}\n  {id}: {found:?}\n  not {expected:?}", scenario.promise));
            }
        }
        assert_eq!(decisions.len(), scenario.expected.len(), "{name}: one each");
        let rules: Vec<Rule> = report.violations.iter().map(|violation| violation.rule).collect();
        assert_eq!(rules, scenario.violations, "{name}: {:?}", report.violations);
        assert_eq!(report.dropped.len(), scenario.dropped.len(), "{name}: {:?}", report.dropped);
        let told = scenario.dropped.iter().zip(&report.dropped);
        assert!(told.into_iter().all(|(words, told)| told.contains(words.as_str())), "{:?}", report.dropped);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// One after the other; a new one has no place here until it has a golden decision.
fn reasons() -> impl Iterator<Item = Reason> {
    successors(Some(Reason::ScaleUp), |reason| match reason {
        Reason::ScaleUp => Some(Reason::ScaleDown),
        Reason::ScaleDown => Some(Reason::Steady),
        Reason::Steady => Some(Reason::Transition),
        Reason::Transition => Some(Reason::Bounded),
        Reason::Bounded => Some(Reason::ScaleToZero),
        Reason::ScaleToZero => Some(Reason::ScaleFromZero),
        Reason::ScaleFromZero => Some(Reason::Starting),
        Reason::Starting => Some(Reason::MetricsMissing),
        Reason::MetricsMissing => Some(Reason::Partial),
        Reason::Partial => Some(Reason::Stale),
        Reason::Stale => Some(Reason::SourceDown),
        Reason::SourceDown => Some(Reason::CheckFailed),
        Reason::CheckFailed => None,
    })
}

fn causes() -> impl Iterator<Item = Cause> {
    successors(Some(Cause::NothingKnown), |cause| match cause {
        Cause::NothingKnown => Some(Cause::TooOld),
        Cause::TooOld => Some(Cause::InvalidVariant),
        Cause::InvalidVariant => Some(Cause::TargetNotFound),
        Cause::TargetNotFound => None,
    })
}

fn analyzers() -> impl Iterator<Item = Analyzer> {
    successors(Some(Analyzer::SaturationPercent), |analyzer| match analyzer {
        Analyzer::SaturationPercent => Some(Analyzer::Saturation),
        Analyzer::Saturation => Some(Analyzer::Throughput),
        Analyzer::Throughput => Some(Analyzer::QueueingModel),
        Analyzer::QueueingModel => Some(Analyzer::Threshold),
        Analyzer::Threshold => Some(Analyzer::Weighted),
        Analyzer::Weighted => Some(Analyzer::Inferno),
        Analyzer::Inferno => Some(Analyzer::Rate),
        Analyzer::Rate => None,
    })
}

#[test]
fn every_reason_and_every_cause_has_a_scenario() {
    let all = all();
    let expected = || all.iter().flat_map(|(_, scenario)| scenario.expected.values());
    for reason in reasons() {
        assert!(all.iter().any(|(_, scenario)| scenario.says(reason)), "no scenario for {reason:?}");
    }
    for wanted in causes() {
        let has = |one: &Expected| matches!(one, Expected::Unknown { cause, .. } if *cause == wanted);
        assert!(expected().any(has), "no scenario for {wanted:?}");
    }
}

#[test]
fn every_analyzer_has_a_scenario_in_which_it_moves_a_number() {
    let all = all();
    for analyzer in analyzers() {
        let moves = |scenario: &Scenario| scenario.says(Reason::ScaleUp) || scenario.says(Reason::ScaleDown);
        let moved = all.iter().any(|(_, one)| one.analyzer() == Some(analyzer) && moves(one));
        assert!(moved, "no scenario in which {analyzer:?} moves a number");
    }
}

#[test]
fn every_kind_of_limit_and_every_rule_of_stability_has_a_scenario_in_which_it_binds() {
    let mut binding = BTreeSet::new();
    for (_, scenario) in all() {
        let report = scenario.decided().report;
        let steps = report.groups.into_values().flat_map(|group| group.steps);
        let held = |step: &Step| matches!(step.stage(), Stage::Limit | Stage::Bound | Stage::Target);
        let said = steps.filter(held).flat_map(|step| [step.binding(), Some(step.to_smolstr())]);
        binding.extend(said.flatten());
    }
    let kinds = [
        "inventory of ",
        "cluster quota of ",
        "namespace quota of ",
        "power of ",
        "spend of ",
        "stabilization window of",
        "cooldown of",
        "at most 2 in one step",
        "at least 3 in one step",
        "an HPA with a tolerance",
        "minimum ",
    ];
    for kind in kinds {
        assert!(binding.iter().any(|said| said.contains(kind)), "no scenario in which {kind:?} binds");
    }
}
