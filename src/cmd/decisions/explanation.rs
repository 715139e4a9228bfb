//! The explanation of one variant's decision, as data.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use smol_str::SmolStr;
use wva_core::decision::Verdict;
use wva_core::report::{Scorecard, Step, Violation};
use wva_core::snapshot::{ModelGroup, Phase, Signals, SourceHealth};
use wva_core::{Decision, GroupId, Memory, Outcome, Policy, Snapshot, VariantId};
use wva_sim::PROGRAM_DEFAULTS;

use super::format::number_and_reason;
use super::input::DecisionInput;
use crate::record::decide_recorded;

/// How far decisions are predicted: beyond the 30 min for which starting pods count as evidence.
const PREDICTION_WINDOW: SignedDuration = SignedDuration::from_mins(40);
/// The most predicted changes that are shown.
const MAX_PREDICTED_CHANGES: usize = 4;
/// The most variants that are listed when the requested one does not exist.
const MAX_LISTED_VARIANTS: usize = 5;

/// The decision about one variant, with its inputs and steps.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Explanation {
    pub(super) variant: VariantId,
    /// The file and line, or the server, that the snapshot comes from.
    pub(super) origin: String,
    pub(super) at: Timestamp,
    /// The version of wva that recorded the snapshot; `None` if it is not from a recording.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) recorded_by: Option<String>,
    pub(super) decision: Decision,
    /// The recorded decision, if it differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) recorded: Option<Decision>,
    /// The steps about this variant and about its model, in order.
    pub(super) steps: Vec<Step>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) violations: Vec<Violation>,
    /// The parts of the memory that could not be used.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) dropped: Vec<SmolStr>,
    /// How earlier predictions turned out, where the rate policy decides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) scorecard: Option<Scorecard>,
    /// How the metric source answered; `None` for an invalid object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) source: Option<SourceHealth>,
    /// The pods of the variant.
    pub(super) pods: Vec<Pod>,
    /// The time of the scheduler's newest sample.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) scheduler_sample: Option<Timestamp>,
    /// The decisions that follow if no new metrics arrive and no object changes.
    #[serde(rename = "ahead")]
    pub(super) predicted: Vec<PredictedDecision>,
}

/// A pod.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Pod {
    pub(super) name: String,
    pub(super) phase: Phase,
    pub(super) engines: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) newest_sample: Option<Timestamp>,
}

/// A decision that differs from the one before it.
#[derive(Debug, Serialize)]
pub(super) struct PredictedDecision {
    pub(super) at: Timestamp,
    pub(super) decision: Decision,
}

impl Explanation {
    /// Repeats the decision and explains that of `variant`. The error lists the variants of the input.
    pub(super) fn new(input: DecisionInput, variant: &VariantId) -> Result<Self, String> {
        let DecisionInput { origin, snapshot, memory, policy, recorded } = input;
        let Outcome { mut decisions, report, memory } = decide_recorded(&snapshot, &memory, &policy);
        let Some(decision) = decisions.remove(variant) else {
            return Err(unknown_variant(variant, &origin, &decisions));
        };
        let group = group_of(&snapshot, variant);
        let steps = group.and_then(|(id, _)| report.groups.get(id)).map(|group| &group.steps);
        let concerns_variant = |step: &&Step| step.variant.as_ref().is_none_or(|name| *name == variant.name);
        let recorded_by = recorded.as_ref().map(|recorded| recorded.wva.clone());
        let recorded = recorded.and_then(|mut recorded| recorded.decisions.remove(variant));
        let scorecard = group.and_then(|(id, group)| {
            let state = group.variants.iter().find(|state| state.variant.id == *variant)?;
            memory.groups.get(id)?.scorecard(&variant.name, state.variant.role)
        });
        let scheduler_sample = group.and_then(|(_, group)| newest(&group.scheduler));
        Ok(Self {
            origin,
            at: snapshot.now,
            recorded_by,
            recorded: recorded.filter(|recorded| *recorded != decision),
            steps: steps.into_iter().flatten().filter(concerns_variant).cloned().collect(),
            dropped: report.dropped,
            violations: report
                .violations
                .into_iter()
                .filter(|violation| violation.variant == *variant)
                .collect(),
            scorecard,
            source: group.map(|(_, group)| group.source.clone()),
            pods: group.map(|(_, group)| pods(group, variant)).unwrap_or_default(),
            scheduler_sample,
            predicted: predict(&snapshot, memory, &policy, variant, &decision),
            variant: variant.clone(),
            decision,
        })
    }
}

fn unknown_variant(variant: &VariantId, origin: &str, known: &BTreeMap<VariantId, Decision>) -> String {
    let names: Vec<_> = known.keys().take(MAX_LISTED_VARIANTS).map(ToString::to_string).collect();
    let names = if names.is_empty() { "none".into() } else { names.join(", ") };
    let more = match known.len().saturating_sub(MAX_LISTED_VARIANTS) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let hint = "Give NAMESPACE/NAME as `kubectl get va -A` shows them";
    format!("{origin} has no variant {variant}; it has {names}{more}. {hint}")
}

fn group_of<'a>(snapshot: &'a Snapshot, variant: &VariantId) -> Option<(&'a GroupId, &'a ModelGroup)> {
    snapshot.groups.iter().find(|(_, group)| group.variants.iter().any(|state| state.variant.id == *variant))
}

fn pods(group: &ModelGroup, variant: &VariantId) -> Vec<Pod> {
    let own = group.variants.iter().filter(|state| state.variant.id == *variant);
    let pods = own.flat_map(|state| &state.pods).map(|replica| Pod {
        name: replica.name.to_string(),
        phase: replica.phase,
        engines: replica.engines.len(),
        newest_sample: replica.engines.values().filter_map(newest).max(),
    });
    pods.collect()
}

fn newest(signals: &Signals) -> Option<Timestamp> {
    signals.iter().filter_map(|(_, samples)| samples.last()).map(|sample| sample.at).max()
}

/// Decides again and again with a later time and otherwise the same snapshot, until there is no number any more. Only the
/// model of the variant is decided about, because this repeats up to 480 evaluations.
fn predict(
    snapshot: &Snapshot,
    mut memory: Memory,
    policy: &Policy,
    variant: &VariantId,
    decision: &Decision,
) -> Vec<PredictedDecision> {
    let Some((id, group)) = group_of(snapshot, variant) else { return Vec::new() };
    let mut later = Snapshot {
        now: snapshot.now,
        groups: BTreeMap::from([(id.clone(), group.clone())]),
        invalid: Vec::new(),
        undecided: Vec::new(),
        inventory: snapshot.inventory.clone(),
        elsewhere: snapshot.elsewhere.clone(),
        unlabelled: snapshot.unlabelled.clone(),
        limits: snapshot.limits.clone(),
        is_inventory_stale: snapshot.is_inventory_stale,
    };
    let mut last = decision.clone();
    let mut changes = Vec::new();
    while changes.len() < MAX_PREDICTED_CHANGES && matches!(last.verdict, Verdict::Target(_)) {
        let Ok(at) = later.now.checked_add(PROGRAM_DEFAULTS.evaluation_interval) else { break };
        if at.duration_since(snapshot.now) > PREDICTION_WINDOW {
            break;
        }
        later.now = at;
        let mut outcome = decide_recorded(&later, &memory, policy);
        memory = outcome.memory;
        let Some(decision) = outcome.decisions.remove(variant) else { break };
        if number_and_reason(&decision) != number_and_reason(&last) {
            changes.push(PredictedDecision { at, decision: decision.clone() });
        }
        last = decision;
    }
    changes
}
