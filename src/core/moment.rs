//! A time stamp in whole milliseconds, as exact as a scrape and short where hundreds are stored.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::units::{to_f64, truncated_i64};

/// Milliseconds since the epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Moment(i64);

impl Moment {
    /// Seconds from here to `later`; 0 when the order is reversed.
    pub(crate) fn until(self, later: Self) -> f64 {
        to_f64(later.0.saturating_sub(self.0).max(0)) / 1000.0
    }

    /// So many seconds later (earlier when negative).
    pub(crate) fn plus(self, seconds: f64) -> Self {
        Self(self.0.saturating_add(truncated_i64((seconds * 1000.0).round())))
    }

    /// The number of the slot of `seconds` that it lies in.
    pub(crate) const fn slot(self, seconds: i64) -> i64 {
        self.0.div_euclid(seconds * 1000)
    }
}

impl From<Timestamp> for Moment {
    fn from(at: Timestamp) -> Self {
        Self(at.as_millisecond())
    }
}
