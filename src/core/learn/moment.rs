//! A moment as whole milliseconds: as exact as a scrape, and short where hundreds of them are kept.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::units::{float, signed};

/// Milliseconds since the epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Moment(i64);

impl Moment {
    /// Seconds from here to `later`; 0 when the order is reversed.
    #[must_use]
    pub fn until(self, later: Self) -> f64 {
        float(later.0.saturating_sub(self.0).max(0)) / 1000.0
    }

    /// So many seconds later (earlier when negative).
    #[must_use]
    pub fn plus(self, seconds: f64) -> Self {
        Self(self.0.saturating_add(signed((seconds * 1000.0).round())))
    }

    /// The number of the slot of `seconds` that it lies in.
    #[must_use]
    pub(crate) const fn slot(self, seconds: i64) -> i64 {
        self.0.div_euclid(seconds * 1000)
    }
}

impl From<Timestamp> for Moment {
    fn from(at: Timestamp) -> Self {
        Self(at.as_millisecond())
    }
}
