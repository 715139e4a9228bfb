//! The explanation of one variant's decision, as data.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use smol_str::SmolStr;
use wva_core::decision::Verdict;
use wva_core::report::{Scorecard, Step, Violation};
use wva_core::snapshot::{ModelGroup, Phase, Signals, SourceHealth};
use wva_core::{Decision, GroupId, Memory, Policy, Report, Snapshot, VariantId};
use wva_sim::PROGRAM_DEFAULTS;

use super::format::number_and_reason;
use crate::record::decide_recorded;

/// How far decisions are predicted: beyond the 30 min for which starting pods count as evidence.
const PREDICTION_WINDOW: SignedDuration = SignedDuration::from_mins(40);
/// Decisions about one variant that a prediction makes at most: those of a model of ten variants over the whole window. Anybody who may
/// view a namespace may ask for one, and a larger model is predicted less far.
const MAX_PREDICTED_DECISIONS: usize = 4800;
/// The most predicted changes that are shown.
const MAX_PREDICTED_CHANGES: usize = 4;

/// The decision about one variant, with its inputs and steps.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Explanation {
    pub(crate) variant: VariantId,
    /// The file and line, or the server, that the snapshot comes from.
    pub(crate) origin: String,
    pub(crate) at: Timestamp,
    /// The version of wva that recorded the snapshot; `None` if it is not from a recording.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) recorded_by: Option<String>,
    pub(crate) decision: Decision,
    /// The recorded decision, if it differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) recorded: Option<Decision>,
    /// The steps about this variant and about its model, in order.
    pub(crate) steps: Vec<Step>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) violations: Vec<Violation>,
    /// The parts of the memory that could not be used.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) dropped: Vec<SmolStr>,
    /// How earlier predictions turned out, where the rate policy decides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) scorecard: Option<Scorecard>,
    /// How the metric source answered; `None` for an invalid object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) source: Option<SourceHealth>,
    /// The pods of the variant; `None` where the inputs of the evaluation are not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pods: Option<Vec<Pod>>,
    /// The time of the scheduler's newest sample.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) scheduler_sample: Option<Timestamp>,
    /// The decisions that follow if no new metrics arrive and no object changes.
    #[serde(rename = "ahead")]
    pub(crate) predicted: Vec<PredictedDecision>,
}

/// A pod.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Pod {
    pub(crate) name: String,
    pub(crate) phase: Phase,
    pub(crate) engines: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) newest_sample: Option<Timestamp>,
}

/// A decision that differs from the one before it.
#[derive(Debug, Serialize)]
pub(crate) struct PredictedDecision {
    pub(crate) at: Timestamp,
    pub(crate) decision: Decision,
}

impl Explanation {
    /// What the results of an evaluation say about `variant`. Its inputs are not known yet: [`Self::add_inputs`].
    pub(crate) fn new(
        variant: &VariantId,
        origin: String,
        at: Timestamp,
        decision: Decision,
        report: &Report,
    ) -> Self {
        let group = GroupId::new(variant.namespace.clone(), decision.model.clone());
        let steps = report.groups.get(&group).map(|group| &group.steps);
        let concerns_variant = |step: &&Step| step.variant.as_ref().is_none_or(|name| *name == variant.name);
        let violations = report.violations.iter().filter(|violation| violation.variant == *variant);
        Self {
            variant: variant.clone(),
            origin,
            at,
            recorded_by: None,
            decision,
            recorded: None,
            steps: steps.into_iter().flatten().filter(concerns_variant).cloned().collect(),
            violations: violations.cloned().collect(),
            dropped: report.dropped.clone(),
            scorecard: None,
            source: None,
            pods: None,
            scheduler_sample: None,
            predicted: Vec::new(),
        }
    }

    /// Adds what the inputs show: evidence, and the decisions that follow. Decides up to 480 times about the variant's model.
    /// `after` is the memory after the evaluation.
    pub(crate) fn add_inputs(&mut self, snapshot: &Snapshot, after: &Memory, policy: &Policy) {
        let variant = &self.variant;
        let group = group_of(snapshot, variant);
        self.scorecard = group.and_then(|(id, group)| {
            let state = group.variants.iter().find(|state| state.variant.id == *variant)?;
            after.groups.get(id)?.scorecard(&variant.name, state.variant.role)
        });
        self.source = group.map(|(_, group)| group.source.clone());
        self.pods = Some(group.map(|(_, group)| pods(group, variant)).unwrap_or_default());
        self.scheduler_sample = group.and_then(|(_, group)| newest(&group.scheduler));
        self.predicted = predict(snapshot, after, policy, variant, &self.decision);
    }
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
    after: &Memory,
    policy: &Policy,
    variant: &VariantId,
    decision: &Decision,
) -> Vec<PredictedDecision> {
    let Some((id, group)) = group_of(snapshot, variant) else { return Vec::new() };
    let own = after.groups.get(id).map(|group| (id.clone(), group.clone()));
    let mut memory = Memory { groups: own.into_iter().collect(), ..Memory::default() };
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
    for _ in 0..MAX_PREDICTED_DECISIONS / group.variants.len() {
        if changes.len() == MAX_PREDICTED_CHANGES || !matches!(last.verdict, Verdict::Target(_)) {
            break;
        }
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
