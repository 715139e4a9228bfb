//! What the policy remembers of one model.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::cooldown::Cooldown;
use crate::learn::{ModelKnowledge, ingest};
use crate::model::Role;
use crate::moment::Moment;
use crate::quality::SignalHistory;
use crate::snapshot::ModelGroup;

/// What the policy remembers of one model: what its pods have shown, and its own moves.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RateMemory {
    pub knowledge: ModelKnowledge,
    /// Moves by role. Stored as `control`.
    #[serde(rename = "control")]
    pub cooldowns: BTreeMap<Role, Box<Cooldown>>,
    /// The moment of the last samples. Not kept over a restart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_at: Option<Moment>,
}

impl RateMemory {
    /// Learns from the samples of `group` that are new and, by the history of its signals, believed. A second call at one moment changes
    /// nothing.
    pub fn observe(&mut self, group: &ModelGroup, history: Option<&SignalHistory>, now: Timestamp) {
        let at = Some(Moment::from(now));
        if self.observed_at == at {
            return;
        }
        self.observed_at = at;
        ingest(group, history, now, &mut self.knowledge);
        self.cooldowns.retain(|role, _| self.knowledge.roles.contains_key(role));
    }

    /// What is worth keeping over a restart: at most 2 KiB a variant. The rest is the last ten minutes, which are over by then.
    pub fn compacted(&self) -> Self {
        let cooldowns = self.cooldowns.iter();
        let cooldowns = cooldowns.map(|(role, cooldown)| (*role, Box::new(cooldown.compacted()))).collect();
        Self { knowledge: self.knowledge.compacted(), cooldowns, observed_at: None }
    }

    /// Replaces moments after `now` by `now`: the clock was set back.
    pub fn not_after(&mut self, now: Timestamp) {
        self.knowledge.not_after(now.into());
        self.observed_at = self.observed_at.filter(|at| *at <= now.into());
        self.cooldowns.values_mut().for_each(|cooldown| cooldown.not_after(now.into()));
    }
}
