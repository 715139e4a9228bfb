//! What an entry says of the rate policy.

use wva_core::model::RatePolicy;
use wva_core::units::Seconds;

use super::fields::{Fields, Range};
use super::queueing::LATENCY;

/// A reserve beyond this would keep three times the fleet of any load.
const HEADROOM: Range = Range::from(0.0, 10.0, "0 to 10");
/// Nothing is kept or waited for longer than a day.
const DAY: Seconds = Seconds::whole(86_400);
/// A pod starts within half an hour, or it does not count as starting any more.
const HALF_HOUR: Seconds = Seconds::whole(1800);

/// As written.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Rate {
    surge_headroom: Option<f64>,
    utilisation: Option<f64>,
    ttft_ms: Option<f64>,
    itl_ms: Option<f64>,
    dwell: Option<Seconds>,
    drain: Option<Seconds>,
    start_up: Option<Seconds>,
}

impl Rate {
    pub(super) fn read(fields: &mut Fields<'_>) -> Self {
        Self {
            surge_headroom: fields.number("surgeHeadroom", HEADROOM),
            utilisation: fields.number("utilisation", Range::THRESHOLD),
            ttft_ms: fields.number("targetTTFT", LATENCY),
            itl_ms: fields.number("targetITL", LATENCY),
            dwell: fields.duration("dwell", Seconds::ZERO, DAY),
            drain: fields.duration("drain", Seconds::whole(1), DAY),
            start_up: fields.duration("startUp", Seconds::ZERO, HALF_HOUR),
        }
    }

    /// This, and what it leaves open from `below`.
    pub(super) fn over(self, below: Self) -> Self {
        Self {
            surge_headroom: self.surge_headroom.or(below.surge_headroom),
            utilisation: self.utilisation.or(below.utilisation),
            ttft_ms: self.ttft_ms.or(below.ttft_ms),
            itl_ms: self.itl_ms.or(below.itl_ms),
            dwell: self.dwell.or(below.dwell),
            drain: self.drain.or(below.drain),
            start_up: self.start_up.or(below.start_up),
        }
    }

    pub(super) fn policy(self) -> RatePolicy {
        let default = RatePolicy::default();
        RatePolicy {
            surge_headroom: self.surge_headroom.unwrap_or(default.surge_headroom),
            utilisation: self.utilisation.unwrap_or(default.utilisation),
            ttft_ms: self.ttft_ms,
            itl_ms: self.itl_ms,
            dwell: self.dwell.unwrap_or(default.dwell),
            drain: self.drain.unwrap_or(default.drain),
            start_up: self.start_up.unwrap_or(default.start_up),
        }
    }
}
