//! What is asked of a role: as it will be when a pod ordered now serves, and as much of it as is sure.

use crate::learn::ArrivalLevel;

/// A level that has lasted this long, seconds, is not a chance find any more.
const SETTLED: f64 = 60.0;
/// Standard errors that a new level may be too high by, and one that has lasted.
const DOUBT: (f64, f64) = (1.0, 0.3);

/// What is asked of a role, requests a second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Demand {
    /// The level behind it.
    pub level: ArrivalLevel,
    /// F: how much counts vary against a Poisson process.
    pub dispersion: f64,
    /// H: seconds from a change of the load to a pod that serves it.
    pub horizon: f64,
    /// At the horizon.
    pub coming: f64,
    /// The same, as far as it is sure.
    pub sure: f64,
    /// What of the level is sure, and neither chance nor trend: a trend is no surge.
    pub surged: f64,
}

impl Demand {
    /// From a level, and how much the counts behind it vary.
    #[must_use]
    pub fn new(level: ArrivalLevel, dispersion: f64, horizon: f64) -> Self {
        let ArrivalLevel { rate, slope, seconds } = level;
        let coming = if slope > 0.0 { (rate + slope * horizon).min(2.0 * rate) } else { rate };
        let doubt = if seconds < SETTLED { DOUBT.0 } else { DOUBT.1 };
        let chance = doubt * (dispersion * rate / seconds.max(1.0)).sqrt();
        let surged = rate - chance - slope.max(0.0) * horizon;
        Self { level, dispersion, horizon, coming, sure: coming - chance, surged }
    }
}
