//! Rules about time: a time stamp in whole milliseconds, as exact as a scrape and short where hundreds are stored; how far the clocks of a
//! cluster may differ; and how old learned values may be to lower a number.

use jiff::{SignedDuration, Timestamp};
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

/// How far the clocks of a cluster may differ; later samples are dropped. Time synchronisation keeps clocks within seconds, and a minute is
/// the peak window.
pub(crate) const MAX_CLOCK_SKEW: SignedDuration = SignedDuration::from_secs(60);

/// What was learned longer ago than this, seconds, may raise a number and not lower it: a week, in which every model has its busy and its
/// quiet hours.
const MAX_AGE: f64 = 7.0 * 86_400.0;

/// What was learned `at` may lower a number at `now`. Earlier versions stored no time; what they learned may not until it is learned again.
pub(crate) fn may_lower(at: Option<impl Into<Moment>>, now: impl Into<Moment>) -> bool {
    at.is_some_and(|at| at.into().until(now.into()) <= MAX_AGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_older_than_a_week_or_of_unknown_age_may_not_lower() {
        let now = Timestamp::constant(1_800_000_000, 0);
        let hours = |hours: i64| Some(now - SignedDuration::from_hours(hours));
        assert!([0, 24, 168].into_iter().all(|age| may_lower(hours(age), now)));
        assert!(!may_lower(hours(169), now) && !may_lower(None::<Timestamp>, now));
    }
}
