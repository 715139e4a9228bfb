//! When the policy last moved, and how careful it has become: what makes its steps rare.

use serde::{Deserialize, Serialize};

use crate::moment::Moment;

/// Between two removals, seconds: the others' residence is 10 to 30 s, and a minute lets them show their new load.
const PACE: f64 = 60.0;
/// An addition within this time of a removal, seconds, shows that the removal was a mistake.
const REGRET: f64 = 600.0;
/// A mistake is forgotten after this time, seconds.
const FORGIVEN: f64 = 3600.0;
/// Mistakes that count, each of which doubles the wait: 300, 600, 1200 s.
const MISTAKES: u8 = 2;

/// What is remembered of the moves of one role.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Control {
    /// When it last looked. Not kept over a restart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub looked: Option<Moment>,
    /// When more was last needed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub up: Option<Moment>,
    /// When something was last removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub down: Option<Moment>,
    /// Mistakes, at most two.
    pub mistakes: u8,
    /// When the last one was counted or forgotten.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub regret: Option<Moment>,
}

impl Control {
    /// Forgets a mistake an hour after the last.
    pub fn forgive(&mut self, now: Moment) {
        if self.mistakes > 0 && self.regret.is_some_and(|at| at.until(now) >= FORGIVEN) {
            self.mistakes -= 1;
            self.regret = Some(now);
        }
    }

    /// More was needed.
    pub fn grew(&mut self, now: Moment) {
        let recent = self.down.filter(|down| down.until(now) < REGRET);
        if recent.is_some_and(|down| self.regret.is_none_or(|regret| regret < down)) {
            self.mistakes = (self.mistakes + 1).min(MISTAKES);
            self.regret = Some(now);
        }
        self.up = Some(now);
    }

    /// Something was removed.
    pub fn shrank(&mut self, now: Moment) {
        self.down = Some(now);
    }

    /// Seconds until a removal is allowed, with a wait of `dwell` seconds after an addition.
    #[must_use]
    pub fn wait(&self, now: Moment, dwell: f64) -> f64 {
        let left = |at: Option<Moment>, wait: f64| at.map_or(0.0, |at| (wait - at.until(now)).max(0.0));
        let careful = dwell * f64::from(1_u32 << self.mistakes.min(MISTAKES));
        left(self.down, PACE).max(left(self.up, careful))
    }

    /// What is worth keeping over a restart.
    #[must_use]
    pub fn kept(&self) -> Self {
        Self { looked: None, ..*self }
    }

    /// Makes the moments that are after `now` be now.
    pub fn not_after(&mut self, now: Moment) {
        self.looked = self.looked.filter(|at| *at <= now);
        for at in [&mut self.up, &mut self.down, &mut self.regret] {
            *at = at.map(|at| at.min(now));
        }
    }
}
