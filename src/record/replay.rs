//! Decides recorded evaluations again and reports the differences. Pure.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;
use wva_core::decision::Verdict;
use wva_core::{Decision, Memory, Outcome, Policy, Snapshot, VariantId};

use super::line::Entry;

/// Observes and decides with recorded inputs.
pub fn decide_recorded(snapshot: &Snapshot, memory: &Memory, policy: &Policy) -> Outcome {
    let observed = wva_core::observe(snapshot, memory.clone());
    wva_core::decide(snapshot, &observed, policy)
}

/// Makes another policy of the recorded one, or says why it cannot.
pub type Change<'a> = dyn Fn(&Policy) -> Result<Policy, String> + 'a;

/// A replay under way.
///
/// With the recorded policy, every evaluation starts from its recorded memory, so that a missing line affects no other. With another
/// policy, the memory is that policy's own from the first evaluation on.
pub struct Replay<'a> {
    change: Option<&'a Change<'a>>,
    /// With another policy: its memory.
    memory: Option<Memory>,
    /// With another policy: the last recorded policy and the changed one.
    policy: Option<(Policy, Policy)>,
    previous: Option<u64>,
    summary: Summary,
}

/// The result of a replay.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// Evaluations that were decided again.
    pub evaluations: u64,
    /// Decisions in them.
    pub decisions: u64,
    /// Decisions that differ.
    pub differing: u64,
    /// Evaluations with the same decisions but another report or memory.
    pub same_but_for_the_report: u64,
    /// Evaluations in an older format, of which only numbers and reasons are compared.
    pub of_older_format: u64,
    /// Evaluations after a gap: others before them were not recorded, are damaged, or are of another process.
    pub after_a_gap: u64,
}

/// An evaluation that was decided again.
#[derive(Debug)]
pub struct Replayed {
    /// The differences, by variant.
    pub differences: Vec<Difference>,
    /// Decisions, report and memory are the same, to the byte; in an older format, numbers and reasons are.
    pub is_identical: bool,
}

/// A decision that differs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Difference {
    /// The time of the evaluation.
    pub at: Timestamp,
    /// The variant.
    pub variant: VariantId,
    /// The recorded decision.
    pub recorded: Option<Decision>,
    /// The decision of this build.
    pub replayed: Option<Decision>,
}

impl<'a> Replay<'a> {
    /// A replay with the recorded policy, or with the policy that `change` makes of it.
    #[must_use]
    pub fn new(change: Option<&'a Change<'a>>) -> Self {
        Self { change, memory: None, policy: None, previous: None, summary: Summary::default() }
    }

    /// Decides `entry` again.
    ///
    /// # Errors
    /// When `change` fails.
    pub fn step(&mut self, entry: &Entry) -> Result<Replayed, String> {
        let outcome = match self.change {
            None => decide_recorded(&entry.snapshot, &entry.memory, &entry.policy),
            Some(change) => {
                let policy = match self.policy.take() {
                    Some((recorded, changed)) if recorded == entry.policy => changed,
                    _ => change(&entry.policy)?,
                };
                let memory = self.memory.take().unwrap_or_else(|| entry.memory.clone());
                let outcome = decide_recorded(&entry.snapshot, &memory, &policy);
                self.policy = Some((entry.policy.clone(), policy));
                self.memory = Some(outcome.memory.clone());
                outcome
            }
        };
        let is_older = entry.has_older_format();
        let same = if self.change.is_some() || is_older { same_in_effect } else { PartialEq::eq };
        let differences = differences(entry, &outcome.decisions, same);
        let is_identical = if is_older { differences.is_empty() } else { entry.matches(&outcome) };
        let before = self.previous.replace(entry.sequence);
        self.summary.evaluations += 1;
        self.summary.decisions += entry.decisions.len() as u64;
        self.summary.differing += differences.len() as u64;
        self.summary.same_but_for_the_report += u64::from(differences.is_empty() && !is_identical);
        self.summary.of_older_format += u64::from(is_older);
        self.summary.after_a_gap +=
            u64::from(before.is_some_and(|before| before.checked_add(1) != Some(entry.sequence)));
        Ok(Replayed { differences, is_identical })
    }

    /// The result so far.
    #[must_use]
    pub fn summary(&self) -> &Summary {
        &self.summary
    }
}

impl Summary {
    /// Whether all evaluations are the same, as far as they can be compared.
    #[must_use]
    pub fn is_identical(&self) -> bool {
        self.differing == 0 && self.same_but_for_the_report == 0
    }
}

/// The same number for the same reason. Messages are not compared, because they contain the thresholds of the policy.
fn same_in_effect(left: &Decision, right: &Decision) -> bool {
    match (&left.verdict, &right.verdict) {
        (Verdict::Target(left), Verdict::Target(right)) => {
            (left.desired, left.reason) == (right.desired, right.reason)
        }
        (Verdict::Unknown(left), Verdict::Unknown(right)) => left.cause == right.cause,
        _ => false,
    }
}

fn differences(
    entry: &Entry,
    now: &BTreeMap<VariantId, Decision>,
    same: fn(&Decision, &Decision) -> bool,
) -> Vec<Difference> {
    let recorded = &entry.decisions;
    let additional = now.keys().filter(|id| !recorded.contains_key(*id));
    let mut ids: Vec<_> = recorded.keys().chain(additional).collect();
    ids.sort();
    let differing = ids.into_iter().filter(|id| match (recorded.get(*id), now.get(*id)) {
        (Some(recorded), Some(now)) => !same(recorded, now),
        _ => true,
    });
    differing
        .map(|id| Difference {
            at: entry.at,
            variant: id.clone(),
            recorded: recorded.get(id).cloned(),
            replayed: now.get(id).cloned(),
        })
        .collect()
}
