//! What was learned, as it stood a while ago: when a signal turns out to be contradicted, what was learned from it before that
//! showed is taken back.

use serde::{Deserialize, Serialize};

use crate::moment::Moment;

/// What was learned before this time, seconds, was learned from nothing that is found to be contradicted now: that shows within a
/// minute, and two scrapes of 15 s.
const AGO: f64 = 90.0;

/// What was learned, at two moments.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rollback<T> {
    /// At least [`AGO`] old.
    #[serde(skip_serializing_if = "Option::is_none")]
    settled: Option<(Moment, T)>,
    /// Waits until it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<(Moment, T)>,
}

impl<T> Default for Rollback<T> {
    fn default() -> Self {
        Self { settled: None, next: None }
    }
}

impl<T: Clone + PartialEq> Rollback<T> {
    /// Remembers `own` as it is `now`, if it is time.
    pub fn keep(&mut self, now: Moment, own: impl FnOnce() -> T) {
        if self.next.as_ref().is_none_or(|(at, _)| at.until(now) >= AGO) {
            self.settled = self.next.replace((now, own())).or(self.settled.take());
        }
    }

    /// What was known before anything contradicted was learned from, and when; `None` where that is not remembered.
    pub fn take_back(&mut self) -> Option<(Moment, T)> {
        self.next = None;
        self.settled.clone()
    }

    /// Forgets what is later than `latest`: the clock was set back.
    pub fn not_after(&mut self, latest: Moment) {
        self.settled.take_if(|(at, _)| *at > latest);
        self.next.take_if(|(at, _)| *at > latest);
    }
}
