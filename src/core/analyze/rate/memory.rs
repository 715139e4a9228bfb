//! What the policy remembers about one model: what was learned from its pods, when a number last changed, and how long removals wait.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::learn::{ModelKnowledge, ingest};
use crate::model::Role;
use crate::moment::Moment;
use crate::quality::SignalHistory;
use crate::snapshot::ModelGroup;

/// Arrivals are not known while the newest are older than this, seconds: two scrapes of the slowest usual interval, a minute.
pub(crate) const MAX_ARRIVALS_AGE: f64 = 120.0;

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
    /// Learns from the new samples of `group` that are trusted by the `history` of its signals. A second call at the same moment changes
    /// nothing.
    pub fn observe(&mut self, group: &ModelGroup, history: Option<&SignalHistory>, now: Timestamp) {
        let at = Some(Moment::from(now));
        if self.observed_at == at {
            return;
        }
        self.observed_at = at;
        ingest(group, history, now, &mut self.knowledge);
        self.knowledge.match_forecasts(now.into());
        self.cooldowns.retain(|role, _| self.knowledge.roles.contains_key(role));
    }

    /// The engines of `role` have lost their counters, and arrivals are read from their gauges.
    pub fn reads_gauges(&self, role: Role, now: Timestamp) -> bool {
        let known = self.knowledge.roles.get(&role);
        known.is_some_and(|known| known.reads_gauges(now.into(), MAX_ARRIVALS_AGE))
    }

    /// The part that is kept over a restart: at most 2 KiB for each variant. The rest is about the last ten minutes.
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

/// Time between two removals, seconds: a request stays for 10 to 30 s, so that after a minute the remaining replicas show their new load.
const REMOVAL_INTERVAL: f64 = 60.0;
/// An addition within this time of a removal, seconds, shows that the removal was a mistake.
const MISTAKE_WINDOW: f64 = 600.0;
/// One mistake is forgotten each time this long has passed without another, seconds.
const MISTAKE_MEMORY: f64 = 3600.0;
/// Replicas are exchanged for cheaper ones after this time without a change, seconds: longer than what a removal waits for, so that one that is
/// possible comes first.
const EXCHANGE_WAIT: f64 = 600.0;
/// Tries to exchange without success that count. Each doubles the wait, up to 2.7 hours: a limit, or nodes, may have no room for weeks.
const MAX_EXCHANGE_DOUBLINGS: u8 = 4;
/// Mistakes that count. Each doubles the wait: 300, 600, 1200 s.
const MAX_MISTAKES: u8 = 2;

/// When the numbers of one role changed.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Cooldown {
    /// The last evaluation. Not kept over a restart. Stored as `looked`.
    #[serde(rename = "looked", skip_serializing_if = "Option::is_none")]
    pub evaluated_at: Option<Moment>,
    /// When replicas were last added, or needed and not available. Stored as `up`.
    #[serde(rename = "up", skip_serializing_if = "Option::is_none")]
    pub added_at: Option<Moment>,
    /// When replicas were last removed. Stored as `down`.
    #[serde(rename = "down", skip_serializing_if = "Option::is_none")]
    pub removed_at: Option<Moment>,
    /// Mistakes, at most two.
    pub mistakes: u8,
    /// When the last mistake was counted or forgotten. Stored as `regret`.
    #[serde(rename = "regret", skip_serializing_if = "Option::is_none")]
    pub mistake_at: Option<Moment>,
    /// When cheap replicas were last added in place of dear ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exchanged_at: Option<Moment>,
    /// How often that was tried since dear replicas were last removed for it.
    #[serde(skip_serializing_if = "is_default")]
    pub exchange_tries: u8,
    /// Nothing was needed or removed since, so the dear replicas are still to go.
    #[serde(skip_serializing_if = "is_default")]
    pub is_exchanging: bool,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Cooldown {
    /// Forgets one mistake, an hour after the last one was counted or forgotten.
    pub fn forget_old_mistake(&mut self, now: Moment) {
        if self.mistakes > 0 && self.mistake_at.is_some_and(|at| at.until(now) >= MISTAKE_MEMORY) {
            self.mistakes -= 1;
            self.mistake_at = Some(now);
        }
    }

    /// Notes an addition. It makes a recent removal count as a mistake, once.
    pub fn note_addition(&mut self, now: Moment) {
        let recent = self.removed_at.filter(|at| at.until(now) < MISTAKE_WINDOW);
        if recent.is_some_and(|removed| self.mistake_at.is_none_or(|counted| counted < removed)) {
            self.mistakes = (self.mistakes + 1).min(MAX_MISTAKES);
            self.mistake_at = Some(now);
        }
        self.added_at = Some(now);
        self.is_exchanging = false;
    }

    pub fn note_removal(&mut self, now: Moment) {
        self.removed_at = Some(now);
        self.is_exchanging = false;
    }

    /// Nothing has changed for long enough, and the wait after the last try is over.
    pub fn may_exchange(&self, now: Moment) -> bool {
        let is_over = |at: Option<Moment>, wait: f64| at.is_none_or(|at| at.until(now) >= wait);
        let wait = EXCHANGE_WAIT * f64::from(1_u32 << self.exchange_tries.min(MAX_EXCHANGE_DOUBLINGS));
        is_over(self.added_at, EXCHANGE_WAIT)
            && is_over(self.removed_at, EXCHANGE_WAIT)
            && is_over(self.exchanged_at, wait)
    }

    /// Notes that cheap replicas are added in place of dear ones. They are not needed, so a removal before that was no mistake.
    pub fn note_exchange(&mut self, now: Moment) {
        (self.added_at, self.exchanged_at) = (Some(now), Some(now));
        self.exchange_tries = self.exchange_tries.checked_add(1).unwrap_or(MAX_EXCHANGE_DOUBLINGS);
        self.is_exchanging = true;
    }

    /// Seconds until a removal is allowed, with a cooldown of `dwell` seconds after an addition.
    pub fn remaining(&self, now: Moment, dwell: f64) -> f64 {
        let left = |at: Option<Moment>, wait: f64| at.map_or(0.0, |at| (wait - at.until(now)).max(0.0));
        let careful = dwell * f64::from(1_u32 << self.mistakes.min(MAX_MISTAKES));
        left(self.removed_at, REMOVAL_INTERVAL).max(left(self.added_at, careful))
    }

    /// The part that is kept over a restart.
    pub fn compacted(&self) -> Self {
        Self { evaluated_at: None, ..*self }
    }

    /// Replaces moments after `now` by `now`: the clock was set back.
    pub fn not_after(&mut self, now: Moment) {
        self.evaluated_at = self.evaluated_at.filter(|at| *at <= now);
        for at in [&mut self.added_at, &mut self.removed_at, &mut self.mistake_at, &mut self.exchanged_at] {
            *at = at.map(|at| at.min(now));
        }
    }
}
