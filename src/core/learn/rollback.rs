//! Earlier states of what was learned. When a signal is found to be contradicted, what was learned from it since it became wrong is undone.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::moment::Moment;
use crate::quality::CONTRADICTION_DELAY;

/// A state that is this old, seconds, was learned before the signals that are found to be contradicted now became wrong.
const MIN_AGE: f64 = CONTRADICTION_DELAY.get();

/// Two states with their times. They never change, so that copies of a memory share them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rollback<T> {
    /// At least [`MIN_AGE`] old.
    #[serde(skip_serializing_if = "Option::is_none")]
    settled: Option<(Moment, Arc<T>)>,
    /// Not old enough yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<(Moment, Arc<T>)>,
}

impl<T> Default for Rollback<T> {
    fn default() -> Self {
        Self { settled: None, next: None }
    }
}

impl<T: Clone> Rollback<T> {
    /// Stores `state` as it is `now`, if the last stored one is old enough.
    pub(crate) fn checkpoint(&mut self, now: Moment, state: impl FnOnce() -> T) {
        if self.next.as_ref().is_none_or(|(at, _)| at.until(now) >= MIN_AGE) {
            self.settled = self.next.replace((now, Arc::new(state()))).or(self.settled.take());
        }
    }

    /// The last state that no contradicted signal contributed to, and its time; `None` if there is none.
    pub(crate) fn restore(&mut self) -> Option<(Moment, T)> {
        self.next = None;
        self.settled.as_ref().map(|(at, state)| (*at, T::clone(state)))
    }

    pub(crate) fn not_after(&mut self, latest: Moment) {
        self.settled.take_if(|(at, _)| *at > latest);
        self.next.take_if(|(at, _)| *at > latest);
    }
}
