//! The arithmetic of the autoscaling/v2 controller, exactly, with the time passed in. It is no policy of ours: the simulator, the demo and
//! the HPA linter use it to tell what a real HPA would do with a number.
//!
//! It follows the current controller (configurable tolerance); `metric` turns one metric into a proposal and
//! combines several, `scaler` applies stabilisation, rate policies and the bounds.

mod metric;
mod scaler;
#[cfg(test)]
mod tests;

pub use metric::{Counts, Kind, MetricTarget, Tolerance, combine, milli, past_tolerance, propose};
pub(crate) use metric::{TOLERANCE, is_ignored, next_above, next_below};
pub use scaler::{AtZero, Behavior, Hpa, PolicyKind, Rules, ScalingPolicy, Select, Settings};

use crate::units::Seconds;

/// How often the controller evaluates each HPA: its default sync period.
pub const SYNC_PERIOD: Seconds = Seconds::whole(15);
