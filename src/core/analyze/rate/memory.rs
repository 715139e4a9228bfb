//! What the policy remembers of one model.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::control::Control;
use crate::learn::{ModelKnowledge, ingest};
use crate::model::Role;
use crate::moment::Moment;
use crate::quality::SignalHistory;
use crate::snapshot::ModelGroup;

/// What the policy remembers of one model: what its pods have shown, and its own moves.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Memory {
    /// What the pods have shown.
    pub knowledge: ModelKnowledge,
    /// Moves by role.
    pub control: BTreeMap<Role, Box<Control>>,
    /// The moment of the last samples. Not kept over a restart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_at: Option<Moment>,
}

impl Memory {
    /// Learns from the samples of `group` that are new and, by what is remembered of its `evidence`, believed. Twice at one moment is the same as once.
    pub fn observe(&mut self, group: &ModelGroup, evidence: Option<&SignalHistory>, now: Timestamp) {
        let at = Some(Moment::from(now));
        if self.observed_at == at {
            return;
        }
        self.observed_at = at;
        ingest(group, evidence, now, &mut self.knowledge);
        self.control.retain(|role, _| self.knowledge.roles.contains_key(role));
    }

    /// What is worth keeping over a restart: at most 2 KiB a variant. The rest is the last ten minutes, which nobody has
    /// seen then.
    #[must_use]
    pub fn kept(&self) -> Self {
        let control = self.control.iter().map(|(role, own)| (*role, Box::new(own.kept()))).collect();
        Self { knowledge: self.knowledge.kept(), control, observed_at: None }
    }

    /// Puts right what is later than `now`: the clock was set back.
    pub fn not_after(&mut self, now: Timestamp) {
        self.knowledge.not_after(now.into());
        self.observed_at = self.observed_at.filter(|at| *at <= now.into());
        self.control.values_mut().for_each(|control| control.not_after(now.into()));
    }
}
