//! Decides recorded evaluations again and says what came out otherwise. Pure.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;
use wva_core::decision::Verdict;
use wva_core::{Decision, Memory, Outcome, Policy, Snapshot, VariantId};

use super::line::Entry;

/// What the core makes of a snapshot.
pub fn decided(snapshot: &Snapshot, memory: &Memory, policy: &Policy) -> Outcome {
    let observed = wva_core::observe(snapshot, memory.clone());
    wva_core::decide(snapshot, &observed, policy)
}

/// What another policy is made of: the recorded one, changed; or why it cannot be.
pub type Change<'a> = dyn Fn(&Policy) -> Result<Policy, String> + 'a;

/// A replay under way.
///
/// With the recorded policy every evaluation starts from the memory that was recorded with it, so a missing line spoils no
/// other one. With another policy the memory is that policy's own, from the first evaluation on.
pub struct Replay<'a> {
    change: Option<&'a Change<'a>>,
    /// With another policy: what it remembers.
    memory: Option<Memory>,
    /// With another policy: the last recorded one and what was made of it.
    policy: Option<(Policy, Policy)>,
    previous: Option<u64>,
    summary: Summary,
}

/// What was compared.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// Evaluations that were decided again.
    pub evaluations: u64,
    /// Decisions in them.
    pub decisions: u64,
    /// Decisions that came out otherwise.
    pub differing: u64,
    /// Evaluations whose decisions are the same, and whose report or next memory are not.
    pub same_but_for_the_report: u64,
    /// Evaluations before which others are missing: not recorded, damaged, or of another process.
    pub after_a_gap: u64,
}

/// One evaluation, decided again.
#[derive(Debug)]
pub struct Replayed {
    /// What came out otherwise, by variant.
    pub differences: Vec<Difference>,
    /// All of it is the same, to the byte: decisions, report, memory.
    pub identical: bool,
}

/// A decision that came out otherwise.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Difference {
    /// When it was decided.
    pub at: Timestamp,
    /// The variant.
    pub variant: VariantId,
    /// As recorded.
    pub recorded: Option<Decision>,
    /// As decided now.
    pub replayed: Option<Decision>,
}

impl<'a> Replay<'a> {
    /// With the recorded policy, or with what `change` makes of it.
    #[must_use]
    pub fn new(change: Option<&'a Change<'a>>) -> Self {
        Self { change, memory: None, policy: None, previous: None, summary: Summary::default() }
    }

    /// Decides `entry` again.
    ///
    /// # Errors
    /// When no policy can be made of the recorded one.
    pub fn step(&mut self, entry: &Entry) -> Result<Replayed, String> {
        let outcome = match self.change {
            None => decided(&entry.snapshot, &entry.memory, &entry.policy),
            Some(change) => {
                let policy = match self.policy.take() {
                    Some((recorded, changed)) if recorded == entry.policy => changed,
                    _ => change(&entry.policy)?,
                };
                let memory = self.memory.take().unwrap_or_else(|| entry.memory.clone());
                let outcome = decided(&entry.snapshot, &memory, &policy);
                self.policy = Some((entry.policy.clone(), policy));
                self.memory = Some(outcome.memory.clone());
                outcome
            }
        };
        let same = if self.change.is_some() { same_in_effect } else { PartialEq::eq };
        let differences = differences(entry, &outcome.decisions, same);
        let identical = entry.came_to(&outcome);
        let before = self.previous.replace(entry.sequence);
        self.summary.evaluations += 1;
        self.summary.decisions += entry.decisions.len() as u64;
        self.summary.differing += differences.len() as u64;
        self.summary.same_but_for_the_report += u64::from(differences.is_empty() && !identical);
        self.summary.after_a_gap +=
            u64::from(before.is_some_and(|before| before.checked_add(1) != Some(entry.sequence)));
        Ok(Replayed { differences, identical })
    }

    /// What was compared so far.
    #[must_use]
    pub fn summary(&self) -> &Summary {
        &self.summary
    }
}

impl Summary {
    /// Everything is the same, to the byte.
    #[must_use]
    pub fn identical(&self) -> bool {
        self.differing == 0 && self.same_but_for_the_report == 0
    }
}

/// The same number for the same reason: another policy words its thresholds otherwise in every message.
fn same_in_effect(one: &Decision, other: &Decision) -> bool {
    match (&one.verdict, &other.verdict) {
        (Verdict::Target(one), Verdict::Target(other)) => {
            (one.desired, one.reason) == (other.desired, other.reason)
        }
        (Verdict::Unknown(one), Verdict::Unknown(other)) => one.cause == other.cause,
        _ => false,
    }
}

fn differences(
    entry: &Entry,
    now: &BTreeMap<VariantId, Decision>,
    same: fn(&Decision, &Decision) -> bool,
) -> Vec<Difference> {
    let recorded = &entry.decisions;
    let more = now.keys().filter(|id| !recorded.contains_key(*id));
    let mut ids: Vec<_> = recorded.keys().chain(more).collect();
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
