//! An explanation as a Kubernetes object, in full and in short, and the table that `kubectl get` prints.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;
use wva_core::decision::{NoTarget, Unknown, Verdict};
use wva_core::units::{Replicas, Seconds};
use wva_core::{Decision, VariantId};

use crate::explain::{self, WhyNot, elapsed, explanation_text};
use crate::serve::encoding::object::{Column, Metadata, Row, Table};
use crate::serve::encoding::{Empty, Object};

const API_VERSION: &str = "decisions.wva.llmd.ai/v1alpha1";
const KIND: &str = "Explanation";
const LIST_KIND: &str = "ExplanationList";

const COLUMNS: [Column; 8] = [
    Column::name("Name", "The variant."),
    Column::text("Model", "Its model."),
    Column::text("Current", "Current replicas of the scale target."),
    Column::text("Desired", "Desired replicas."),
    Column::text("State", "Whether there is a number: Decided, NoNumber, TooOld or NotDecidedYet."),
    Column::text("Reason", "The reason of the decision, in one word."),
    Column::text("Age", "How old the evidence of the number is, or for how long there has been none."),
    Column::text("Message", "The reasons.").wide(),
];

/// Whether there is a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) enum State {
    /// There is one.
    Decided,
    /// Nothing could be decided.
    NoNumber,
    /// Its evidence is too old, so it is not answered.
    TooOld,
    /// The variant has not been decided about.
    NotDecidedYet,
}

/// The decision about one variant in short.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Summary {
    kind: &'static str,
    api_version: &'static str,
    metadata: Metadata,
    pub(super) state: State,
    #[serde(skip_serializing_if = "String::is_empty")]
    model: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    current: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    desired: Option<u32>,
    reason: String,
    pub(super) message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    evidence: Option<Timestamp>,
    /// How old the evidence is, or for how long there has been no number; for the table.
    #[serde(skip)]
    age: String,
}

impl Summary {
    /// `name` is the one that was asked for.
    pub(super) fn decided(name: &VariantId, decision: &Decision, now: Timestamp, max_stale: Seconds) -> Self {
        let state = match decision.fresh_target(now, max_stale) {
            Ok(_) => State::Decided,
            Err(NoTarget::TooOld(_)) => State::TooOld,
            Err(NoTarget::Unknown(_)) => State::NoNumber,
        };
        let (reason, desired, evidence, since) = match &decision.verdict {
            Verdict::Target(target) => {
                let desired = Some(target.desired.get());
                (target.reason.as_str().to_owned(), desired, Some(target.evidence), target.evidence)
            }
            Verdict::Unknown(Unknown { cause, since, .. }) => (format!("{cause:?}"), None, None, *since),
        };
        Self {
            model: decision.model.to_string(),
            current: decision.current.map(Replicas::get),
            desired,
            evidence,
            age: elapsed(since, now),
            ..Self::new(name, state, reason, explanation_text(decision))
        }
    }

    /// A variant that is known and not decided about yet.
    pub(super) fn not_decided(name: &VariantId, message: String) -> Self {
        Self::new(name, State::NotDecidedYet, "NotDecidedYet".to_owned(), message)
    }

    fn new(name: &VariantId, state: State, reason: String, message: String) -> Self {
        let metadata = Metadata::new(&*name.name, &*name.namespace, BTreeMap::new());
        Self {
            kind: KIND,
            api_version: API_VERSION,
            metadata,
            state,
            model: String::new(),
            current: None,
            desired: None,
            reason,
            message,
            evidence: None,
            age: String::new(),
        }
    }

    fn row(&self) -> Row {
        let number = |number: Option<u32>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
        let cells = vec![
            self.metadata.name.clone(),
            self.model.clone(),
            number(self.current),
            number(self.desired),
            format!("{:?}", self.state),
            self.reason.clone(),
            self.age.clone(),
            self.message.clone(),
        ];
        Row::new(cells, self.metadata.clone())
    }
}

/// The decision about one variant in full.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Explanation {
    #[serde(flatten)]
    pub(super) summary: Summary,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) why_not: Option<WhyNot>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) explanation: Option<explain::Explanation>,
    pub(super) text: String,
}

impl Object for Explanation {
    fn type_meta(&self) -> (&'static str, &'static str) {
        (API_VERSION, KIND)
    }

    /// There is none: the representation is never protobuf.
    fn protobuf(&self, _: &mut Vec<u8>) {}

    fn table(&self) -> Option<Table> {
        Some(Table::new(&COLUMNS, vec![self.summary.row()]))
    }
}

/// The decisions about several variants.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ExplanationList {
    kind: &'static str,
    api_version: &'static str,
    metadata: Empty,
    items: Vec<Summary>,
}

impl ExplanationList {
    pub(super) fn new(items: Vec<Summary>) -> Self {
        Self { kind: LIST_KIND, api_version: API_VERSION, metadata: Empty {}, items }
    }
}

impl Object for ExplanationList {
    fn type_meta(&self) -> (&'static str, &'static str) {
        (API_VERSION, LIST_KIND)
    }

    /// There is none: the representation is never protobuf.
    fn protobuf(&self, _: &mut Vec<u8>) {}

    fn table(&self) -> Option<Table> {
        Some(Table::new(&COLUMNS, self.items.iter().map(Summary::row).collect()))
    }
}
