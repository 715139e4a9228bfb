//! What there is to say of one variant's decision, as data.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use smol_str::SmolStr;
use wva_core::decision::Verdict;
use wva_core::report::{Step, Violation};
use wva_core::snapshot::{ModelGroup, Phase, Signals, SourceHealth};
use wva_core::{Decision, GroupId, Memory, Outcome, Policy, Snapshot, VariantId};

use super::input::Material;
use super::short;
use crate::record::decide_recorded;

/// How far the clock is moved on: past the half hour that starting pods count as evidence.
const MAX_AHEAD: SignedDuration = SignedDuration::from_mins(40);
/// In steps of an evaluation.
const AHEAD_INTERVAL: SignedDuration = SignedDuration::from_secs(5);
/// The most changes ahead.
const MAX_CHANGES: usize = 4;

/// The decision about one variant and all it rests on.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Explanation {
    pub(super) variant: VariantId,
    /// Where the snapshot comes from.
    pub(super) origin: String,
    pub(super) at: Timestamp,
    /// The version that decided at the time, when it is another one's recording.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) recorded_by: Option<String>,
    pub(super) decision: Decision,
    /// What was decided at the time, when it is not this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) recorded: Option<Decision>,
    /// The steps about this variant and about its whole group, in order.
    pub(super) steps: Vec<Step>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) violations: Vec<Violation>,
    /// What of the memory could not be used.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) dropped: Vec<SmolStr>,
    /// How the metric source answered; `None` for an object that cannot be decided about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) source: Option<SourceHealth>,
    /// Its pods and the age of what they said.
    pub(super) pods: Vec<Pod>,
    /// When the scheduler in front of the model last said something.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) scheduler_sample: Option<Timestamp>,
    /// What the answer becomes when nothing changes and nothing new is measured.
    pub(super) ahead: Vec<Ahead>,
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

/// Another answer, later.
#[derive(Debug, Serialize)]
pub(super) struct Ahead {
    pub(super) at: Timestamp,
    pub(super) decision: Decision,
}

impl Explanation {
    /// The explanation of `variant`, or which variants there are.
    pub(super) fn new(material: Material, variant: &VariantId) -> Result<Self, String> {
        let Material { origin, snapshot, memory, policy, recorded } = material;
        let Outcome { mut decisions, report, memory } = decide_recorded(&snapshot, &memory, &policy);
        let Some(decision) = decisions.remove(variant) else {
            return Err(unknown_variant(variant, &origin, &decisions));
        };
        let group = group_of(&snapshot, variant);
        let steps = group.and_then(|(id, _)| report.groups.get(id)).map(|group| &group.steps);
        let about = |step: &&Step| step.variant.as_ref().is_none_or(|name| *name == variant.name);
        let recorded_by = recorded.as_ref().map(|recorded| recorded.wva.clone());
        let then = recorded.and_then(|mut recorded| recorded.decisions.remove(variant));
        let scheduler_sample = group.and_then(|(_, group)| newest(&group.scheduler));
        Ok(Self {
            origin,
            at: snapshot.now,
            recorded_by,
            recorded: then.filter(|then| *then != decision),
            steps: steps.into_iter().flatten().filter(about).cloned().collect(),
            dropped: report.dropped,
            violations: report
                .violations
                .into_iter()
                .filter(|violation| violation.variant == *variant)
                .collect(),
            source: group.map(|(_, group)| group.source.clone()),
            pods: group.map(|(_, group)| pods(group, variant)).unwrap_or_default(),
            scheduler_sample,
            ahead: ahead(&snapshot, memory, &policy, variant, &decision),
            variant: variant.clone(),
            decision,
        })
    }
}

fn unknown_variant(variant: &VariantId, origin: &str, known: &BTreeMap<VariantId, Decision>) -> String {
    let names: Vec<_> = known.keys().take(5).map(ToString::to_string).collect();
    let names = if names.is_empty() { "nothing".into() } else { names.join(", ") };
    let more = match known.len().saturating_sub(5) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let next = "Give NAMESPACE/NAME as `kubectl get va -A` shows them";
    format!("{origin} has no variant {variant}; it has {names}{more}. {next}")
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

/// Decides on while the clock goes on and nothing else does, until there is no number any more.
fn ahead(
    snapshot: &Snapshot,
    memory: Memory,
    policy: &Policy,
    variant: &VariantId,
    decision: &Decision,
) -> Vec<Ahead> {
    let Some((id, group)) = group_of(snapshot, variant) else { return Vec::new() };
    let mut later = Snapshot {
        now: snapshot.now,
        groups: BTreeMap::from([(id.clone(), group.clone())]),
        invalid: Vec::new(),
        inventory: snapshot.inventory.clone(),
        elsewhere: snapshot.elsewhere.clone(),
        unlabelled: snapshot.unlabelled.clone(),
    };
    let (mut memory, mut before, mut found) = (memory, decision.clone(), Vec::new());
    while found.len() < MAX_CHANGES && matches!(before.verdict, Verdict::Target(_)) {
        let Ok(at) = later.now.checked_add(AHEAD_INTERVAL) else { break };
        if at.duration_since(snapshot.now) > MAX_AHEAD {
            break;
        }
        later.now = at;
        let mut outcome = decide_recorded(&later, &memory, policy);
        memory = outcome.memory;
        let Some(decision) = outcome.decisions.remove(variant) else { break };
        if short(&decision) != short(&before) {
            found.push(Ahead { at, decision: decision.clone() });
        }
        before = decision;
    }
    found
}
