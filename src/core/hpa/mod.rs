//! The arithmetic of the autoscaling/v2 controller, exactly, with time passed in. Not a policy of ours: the simulator,
//! the demo and the HPA linter ask it what a real HPA would do with a number.
//!
//! It follows the current controller (configurable tolerance); `metric` turns one metric into a proposal and
//! combines several, `scaler` applies stabilisation, rate policies and the bounds.

mod metric;
mod scaler;
#[cfg(test)]
mod tests;

pub use metric::{Counts, Kind, MetricTarget, Tolerance, combine, milli, propose};
pub use scaler::{AtZero, Behavior, Hpa, PolicyKind, Rules, ScalingPolicy, Select, Settings};

use crate::units::Seconds;

/// How often the controller looks at every HPA: its fixed re-queue interval.
pub const SYNC_PERIOD: Seconds = Seconds::whole(15);

/// How long the controller remembers recommendations before it shrinks, where the HPA does not say otherwise.
pub const DOWNSCALE_WINDOW: Seconds = Seconds::whole(300);
