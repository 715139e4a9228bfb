//! Golden decisions are as promised; and everything a decision can say, and every kind of policy, has one.

use std::iter::successors;

use smol_str::ToSmolStr;
use wva_core::report::{Stage, Step};

use crate::tests::support::prelude::*;
use crate::tests::support::scenarios::{Expected, Scenario, all};

/// Some variant gets a number for this reason.
fn says(scenario: &Scenario, reason: Reason) -> bool {
    let mut expected = scenario.expected.values();
    expected.any(|expected| matches!(expected, Expected::Number { reason: own, .. } if *own == reason))
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
fn every_scenario_gives_its_expected_decision() {
    let mut wrong = Vec::new();
    for (name, scenario) in all() {
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
        let mut dropped = scenario.dropped.iter().zip(&report.dropped);
        assert!(dropped.all(|(words, message)| message.contains(words.as_str())), "{:?}", report.dropped);
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
        Cause::TargetNotFound => Some(Cause::TargetUnknown),
        Cause::TargetUnknown => Some(Cause::ModelUnknown),
        Cause::ModelUnknown => None,
    })
}

#[test]
fn every_reason_and_every_cause_has_a_scenario() {
    let all = all();
    for reason in reasons() {
        assert!(all.values().any(|scenario| says(scenario, reason)), "no scenario for {reason:?}");
    }
    for cause in causes() {
        let has =
            |expected: &Expected| matches!(expected, Expected::Unknown { cause: own, .. } if *own == cause);
        assert!(
            all.values().flat_map(|scenario| scenario.expected.values()).any(has),
            "no scenario for {cause:?}"
        );
    }
}

#[test]
fn every_analyzer_has_a_scenario_in_which_it_moves_a_number() {
    let all = all();
    for analyzer in Analyzer::ALL {
        let moves = |scenario: &Scenario| {
            let first = scenario.snapshot.groups.keys().next();
            first.is_some_and(|group| scenario.policy.of(group).analyzer == analyzer)
                && [Reason::ScaleUp, Reason::ScaleDown].into_iter().any(|reason| says(scenario, reason))
        };
        assert!(all.values().any(moves), "no scenario in which {analyzer:?} moves a number");
    }
}

#[test]
fn every_kind_of_limit_and_every_rule_of_stability_has_a_scenario_in_which_it_binds() {
    let mut binding = BTreeSet::new();
    for scenario in all().into_values() {
        let report = scenario.decided().report;
        let steps = report.groups.into_values().flat_map(|group| group.steps);
        let limits = |step: &Step| matches!(step.stage(), Stage::Limit | Stage::Bound | Stage::Target);
        let texts = steps.filter(limits).flat_map(|step| [step.binding(), Some(step.to_smolstr())]);
        binding.extend(texts.flatten());
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
        assert!(binding.iter().any(|text| text.contains(kind)), "no scenario in which {kind:?} binds");
    }
}
